"""Owns the page that a saved notebook shows where no kernel answers: the same picture, sandboxed."""

from __future__ import annotations

import html

from rlx_viz.columns import ColumnDocument
from rlx_viz.reports.sampling import render_capped

__all__ = ["embed"]

HEIGHT = 760


def embed(doc: ColumnDocument, other: ColumnDocument | None = None) -> str:
    """An iframe with the whole page in it, the comparison too; sampled, with a note, where the page would pass 2 MB."""
    name = str(doc.meta.get("model", {}).get("name") or "model")
    page = html.escape(render_capped(doc, title=name, other=other), quote=True)
    return (
        f'<iframe title="Memory of {html.escape(name, quote=True)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{HEIGHT}px;border:0" srcdoc="{page}"></iframe>'
    )
