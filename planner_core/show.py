"""Owns how a public object shows itself: a line in a terminal, a small table where a notebook displays it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

__all__ = ["Facts", "Shown", "shown_html"]

Facts = tuple[str, Iterable[tuple[str, Any]], str]
"""Title, rows of name and value, and how to go on (code)."""
MOST_TEXT = 120
"""Characters of a title or a value."""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def shown_html(facts: Facts) -> str:
    """A table of the facts, every text escaped."""
    title, rows, how = facts
    cells = "".join(f"<tr><th style='text-align:left'>{escape(_short(k))}</th><td style='text-align:right'>{escape(_short(v))}</td></tr>"
                    for k, v in rows)
    return (f"<div><p><b>{escape(_short(title))}</b></p><table>{cells}</table>"
            + (f"<p><code>{escape(how)}</code></p>" if how else "") + "</div>")


class Shown:
    """Base of what shows itself by ``_facts``: ``repr`` is one line, however large the object is."""

    __slots__ = ()

    def _facts(self) -> Facts:
        return type(self).__name__, (), ""

    def __repr__(self) -> str:
        title, rows, _ = self._facts()
        told = ", ".join(f"{k} {_short(v)}" for k, v in rows)
        return f"<{_short(title)}{f': {told}' if told else ''}>".replace("\n", " ")

    def _repr_html_(self) -> str:
        return shown_html(self._facts())
