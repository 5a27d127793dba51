"""Joins the front end's ES modules into one text, in dependency order; no bundler, no Node.

Modules here import only each other, with `import { a, b } from "./x.js"`, and export declarations.
The joined text is the widget's module and, with a call added, a report's script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent
ENTRIES = ("report.js", "widget.js")

_IMPORT = re.compile(r'^import\s+(?:\{(?P<names>[^}]*)\}\s+from\s+)?"(?P<path>[^"]+)";[ \t]*\n', re.MULTILINE)
_LOOSE_IMPORT = re.compile(r"^\s*import\b(?!\s*\().*$", re.MULTILINE)
_EXPORT = re.compile(r"^export\s+(?=(?:async\s+)?(?:function|class|const|let)\b)", re.MULTILINE)
_LOOSE_EXPORT = re.compile(r"^export\b(?!\s+default\b).*$", re.MULTILINE)
_TOP_LEVEL = re.compile(
    r"^(?P<export>export\s+)?(?:async\s+)?(?:function\*?|class|const|let|var)\s+(?P<name>[A-Za-z_$][\w$]*)",
    re.MULTILINE,
)


class JoinError(ValueError):
    """Modules that can't be joined; says which module, and which name or path."""


def join_modules(sources: Mapping[str, str], entries: tuple[str, ...]) -> str:
    """One module text with everything `entries` need, each module once, dependencies first.

    `sources` maps file names to texts. Raises `JoinError` on an unknown module or name, a cycle,
    a name that two modules define at top level, and forms of import or export it does not read.
    """
    order: list[str] = []
    path: list[str] = []

    def visit(name: str, wanted_by: str) -> None:
        if name in path:
            raise JoinError(f"cycle: {' → '.join([*path[path.index(name) :], name])}")
        if name in order:
            return
        if name not in sources:
            raise JoinError(f"{wanted_by}: unknown module {name!r}")
        path.append(name)
        for found in _IMPORT.finditer(sources[name]):
            if not found["path"].startswith("./"):
                raise JoinError(
                    f"{name}: import from {found['path']!r}; only our own ./ modules can be joined"
                )
            visit(found["path"][2:], name)
        path.pop()
        order.append(name)

    for entry in entries:
        visit(entry, "entries")
    _check_names(sources, order)
    return "\n".join(f"// ---- {name}\n{_strip(name, sources[name])}" for name in order)


@cache
def front_end() -> str:
    """The whole front end as one module text, for the widget."""
    sources = {file.name: file.read_text("utf-8") for file in sorted(STATIC.glob("*.js"))}
    return join_modules(sources, ENTRIES)


@cache
def stylesheet() -> str:
    """The front end's style sheet."""
    return (STATIC / "style.css").read_text("utf-8")


def _check_names(sources: Mapping[str, str], order: list[str]) -> None:
    owner: dict[str, str] = {}
    exported: dict[str, set[str]] = {}
    for name in order:
        exported[name] = set()
        for found in _TOP_LEVEL.finditer(sources[name]):
            other = owner.setdefault(found["name"], name)
            if other != name:
                raise JoinError(f"{name}: top-level name {found['name']!r} is also defined in {other}")
            if found["export"]:
                exported[name].add(found["name"])
        for found in _IMPORT.finditer(sources[name]):
            for wanted in filter(None, (part.strip() for part in (found["names"] or "").split(","))):
                if wanted not in exported[found["path"][2:]]:
                    raise JoinError(f"{name}: {found['path']} does not export {wanted!r}")


def _strip(name: str, source: str) -> str:
    text = _EXPORT.sub("", _IMPORT.sub("", source))
    for loose in (_LOOSE_IMPORT.search(text), _LOOSE_EXPORT.search(text)):
        if loose:
            raise JoinError(f"{name}: can't join this line: {loose[0].strip()}")
    return text.strip() + "\n"
