"""Owns a result's HTML in a notebook: its figure as a picture, its frame as a table below."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["figure_html"]


def figure_html(figure: Figure, *frames: pd.DataFrame) -> str:
    """Self-contained HTML: nothing is fetched, names are escaped."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    data = base64.b64encode(buffer.getvalue()).decode()
    alt = " ".join(t for t in [figure.get_suptitle(), *(a.get_title() for a in figure.axes)] if t)
    from html import escape

    tables = "".join(f.to_html(index=False, na_rep="", border=0) for f in frames)
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">{tables}'
