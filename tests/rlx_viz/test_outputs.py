"""Every JSON output of the command line validates against what `rlx-viz schema` prints."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from planner_core import zoo
from planner_core.errors import RlxError
from planner_core.ir import save_graph
from rlx_viz.cli import main
from rlx_viz.outputs import SWEEP


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    save_graph(zoo.build("minilm", layers=1, seq=8), folder / "a.json")
    save_graph(zoo.build("minilm", layers=1, seq=16), folder / "b.json")
    (folder / "p.csv").write_text("id,lower,upper,size\na,0,2,64\nb,1,4,32\n")
    return folder


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: object) -> str:
    monkeypatch.setattr("sys.argv", ["rlx-viz", *map(str, args)])
    code: object = 0
    try:
        main()
    except SystemExit as e:
        code = e.code
    assert code in (0, 3)
    return capsys.readouterr().out


@pytest.mark.parametrize(("kind", "args"), [
    ("plan", ("plan", "a.json")), ("plan", ("plan", "a.json", "--fit", "1KiB")), ("plan", ("plan", "p.csv")),
    ("compare", ("compare", "a.json", "b.json")), ("diff", ("diff", "a.json", "b.json", "--fail-if-grows", "1%")),
    ("sweep", ("sweep", "minilm", "--dim", "seq=8,16"))], ids=lambda x: " ".join(x) if isinstance(x, tuple) else x)
def test_outputs_follow_the_schema(files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str,
                                   args: tuple[str, ...]) -> None:
    schema = json.loads(said(monkeypatch, capsys, "schema"))
    jsonschema.Draft202012Validator.check_schema(schema)
    out = json.loads(said(monkeypatch, capsys, *((files / a) if (files / a).exists() else a for a in args), "--json", "-"))
    jsonschema.validate(out, schema)
    assert (out["format"], out["version"]) == (f"rlx-viz-{kind}", 1)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({k: v for k, v in out.items() if k != "format"}, schema)


def test_a_key_that_is_not_declared_is_an_error() -> None:
    with pytest.raises(RlxError, match="rlx-viz-sweep: keys extra are not both declared and given"):
        SWEEP.document({"model": "", "target": "cpu", "rows": [], "extra": 1})
