"""Self-contained HTML reports: the explorer, its data and a static summary in one offline file.

`render_html` is pure and byte-identical for equal input; `write_report` puts its text on disk whole
or not at all; `sampling.py` makes a document small enough to embed.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from planner_core.errors import RlxError
from planner_core.ir import write_atomically
from planner_core.units import bytes_text
from rlx_viz.columns import ALIGNMENT, ColumnDocument
from rlx_viz.static.joiner import front_end, stylesheet

__all__ = ["ReportError", "render_html", "write_report"]

_HERE = Path(__file__).parent
_FACTS = (
    ("allocate", "Allocate"),
    ("weights", "of it weights"),
    ("activations", "of it activations"),
    ("scratch", "of it scratch"),
    ("padding", "of it padding"),
    ("arena", "Arena"),
    ("naive", "Naive (nothing reused)"),
    ("saved", "Saved"),
    ("peak_bytes", "Live at the peak"),
    ("lower_bound", "Lower bound"),
)


class ReportError(RlxError, RuntimeError):
    """The report could not be made; the text says why."""


def render_html(doc: ColumnDocument, *, title: str, other: ColumnDocument | None = None) -> str:
    """One HTML page that needs no network and no other file; the same text for equal input.

    ``other``: the document to compare with, as ``rlx_viz.compare`` makes it.
    """
    script = front_end() + "\nstartReport();\n"
    style = stylesheet() + (_HERE / "page.css").read_text("utf-8")
    # Our own code goes in raw, so it must not be able to end its element early.
    for name, text, tag in (("script", script, "script"), ("style", style, "style")):
        if re.search(rf"</{tag}|<!--", text, re.IGNORECASE):
            raise ReportError(
                f"the front end's {name} contains </{tag} or <!--, which would end it in a page"
            )
    return _template().render(
        title=title,
        script=Markup(script),
        script_hash=_csp_hash(script),
        style=Markup(style),
        style_hash=_csp_hash(style),
        payload=_payload(doc),
        other=_payload(other) if other is not None else "",
        facts=[*_facts(doc.meta), *_verdict(other)],
        notes=[str(note) for note in doc.meta.get("notes", [])],
        footer=list(_footer(doc.meta)),
    )


def write_report(doc: ColumnDocument, path: str | Path, *, title: str, other: ColumnDocument | None = None) -> Path:
    """Write the page to `path` and return it; a crash half-way leaves the old file as it was."""
    target = Path(path)
    write_atomically(target, render_html(doc, title=title, other=other).encode("utf-8", "replace"))
    return target


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("template.html")


def _csp_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _payload(doc: ColumnDocument) -> str:
    """Base64 of deflate(header length as u4, header, padding, buffer); see static/report.js."""
    header, buffer = doc.pack()
    text = header.encode("utf-8")
    head = struct.pack("<I", len(text)) + text
    return base64.b64encode(zlib.compress(head + bytes(-len(head) % ALIGNMENT) + buffer, 6)).decode("ascii")


def _facts(meta: dict[str, Any]) -> Iterator[tuple[str, str]]:
    headline = meta.get("headline", {})
    unknown = int(headline.get("unknown", 0))
    least, about = ("≥ ", "≈ ") if unknown else ("", "")  # a difference of lower limits is no limit
    for key, label in _FACTS:
        if key in headline:
            count = int(headline[key])
            yield label, f"{about if key == 'saved' else least}{bytes_text(count)} ({count:,} B)"
    if "peak_step" in headline:
        yield "Peak step", str(headline["peak_step"])
    yield from claim_rows(meta)
    if unknown:
        yield "Tensors of unknown size", str(unknown)
    for op, count in sorted(meta.get("unsupported", {}).items()):
        yield "Opaque op", f"{op} × {count}"


def claim_rows(meta: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, sentence) of each thing that a headline says beside its numbers."""
    claims = meta.get("claims", {})
    for key, label in (("optimal", "Optimal?"), ("order", "Order")):
        if claims.get(key):
            yield label, claims[key]
    for key, label in (("holders", "Held up by"), ("bodies", "Control flow")):
        for row in claims.get(key, []):
            yield label, row["text"]


def _verdict(other: ColumnDocument | None) -> Iterator[tuple[str, str]]:
    if other is not None and "verdict" in other.meta:
        yield "Compared", str(other.meta["verdict"]["sentence"])


def _footer(meta: dict[str, Any]) -> Iterator[tuple[str, str]]:
    footer = meta.get("footer", {})
    for key, label in (
        ("model_hash", "model"),
        ("version", "rlx-viz"),
        ("options", "options"),
        ("command", "command"),
    ):
        if footer.get(key):
            yield label, str(footer[key])
