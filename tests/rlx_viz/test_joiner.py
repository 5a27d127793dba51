"""The joiner: order, each refusal with its reason, and that the real front end joins."""

from __future__ import annotations

import pytest

from rlx_viz.static.joiner import ENTRIES, STATIC, JoinError, front_end, join_modules


def test_dependencies_come_first_and_only_once() -> None:
    joined = join_modules(
        {
            "a.js": 'import { b } from "./b.js";\nimport { c } from "./c.js";\nexport const a = b + c;\n',
            "b.js": 'import {\n  c,\n} from "./c.js";\nexport function b() { return c; }\n',
            "c.js": "export const c = 1;\n",
            "unused.js": "export const c = 2;\n",
        },
        ("a.js",),
    )
    assert joined == (
        "// ---- c.js\nconst c = 1;\n\n"
        "// ---- b.js\nfunction b() { return c; }\n\n"
        "// ---- a.js\nconst a = b + c;\n"
    )


def test_a_default_export_stays() -> None:
    assert "export default { render };" in join_modules(
        {"w.js": "function render() {}\nexport default { render };\n"}, ("w.js",)
    )


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        pytest.param(
            {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'},
            "cycle: a.js → b.js → a.js",
            id="cycle",
        ),
        pytest.param(
            {
                "a.js": 'import { x } from "./b.js";\nconst y = 1;\n',
                "b.js": "export const x = 1;\nlet y = 2;\n",
            },
            "a.js: top-level name 'y' is also defined in b.js",
            id="duplicate",
        ),
        pytest.param(
            {"a.js": 'import { x } from "./gone.js";\n'},
            "a.js: unknown module 'gone.js'",
            id="unknown module",
        ),
        pytest.param(
            {"a.js": 'import { x } from "./b.js";\n', "b.js": "const x = 1;\n"},
            "a.js: ./b.js does not export 'x'",
            id="unknown name",
        ),
        pytest.param({"a.js": 'import { x } from "lib";\n'}, "only our own ./ modules", id="package"),
        pytest.param(
            {"a.js": 'import * as b from "./b.js";\n', "b.js": ""}, "can't join this line: import", id="star"
        ),
        pytest.param(
            {"a.js": 'export * from "./b.js";\n', "b.js": ""}, "can't join this line: export", id="re-export"
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(sources: dict[str, str], message: str) -> None:
    with pytest.raises(JoinError, match=message.replace("*", r"\*")):
        join_modules(sources, ("a.js",))


def test_the_front_end_joins_with_every_module_in_it() -> None:
    text = front_end()
    for file in STATIC.glob("*.js"):
        assert f"// ---- {file.name}\n" in text, f"{file.name} is reached from none of {ENTRIES}"
    assert "\nimport " not in text
    assert text.count("\nexport ") == text.count("\nexport default ") == 1
    assert len(text) < 400_000


def test_modules_never_parse_text_as_markup_or_fetch() -> None:
    for file in STATIC.glob("*.js"):
        text = file.read_text("utf-8")
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "fetch(",
            "XMLHttpRequest",
        ):
            assert word not in text, f"{file.name} uses {word}"
