"""Owns the environment: the one module that reads ``os.environ``, each variable declared once with its kind and meaning.

A flag is on with ``1``, ``true``, ``yes`` or ``on``, off with ``0``, ``false``, ``no`` or ``off``, unset or empty: as if it
weren't there. Anything else is an ``OptionError`` that names the variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from planner_core.errors import OptionError

__all__ = ["VARIABLES", "Environ", "Variable", "flag", "foreign", "number", "parse_flag", "path", "snapshot", "variable"]

Environ = Mapping[str, str] | None
"""Variables by name; None: those of the process, now."""
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable. ``option``: the option that it sets, if it is one's."""

    name: str
    kind: str
    """``flag``, ``number`` or ``path``."""
    help: str
    option: str = ""


VARIABLES: dict[str, Variable] = {}
"""Every variable that is read, in the order of declaration."""


def variable(name: str, kind: str, help: str, option: str = "") -> str:
    """Declare a variable; returns its name."""
    if not name.startswith("RLX_") or kind not in ("flag", "number", "path"):
        raise TypeError(f"variable {name} ({kind}): wanted RLX_…, and flag, number or path")
    known = VARIABLES.setdefault(name, Variable(name, kind, help, option))
    if known != Variable(name, kind, help, option):
        raise TypeError(f"variable {name} is declared twice, as {known} and as {kind}: {help}")
    return name


def _text(name: str, environ: Environ) -> str:
    if name not in VARIABLES:
        raise TypeError(f"variable {name} is read without being declared (planner_core.environment.variable)")
    return (os.environ if environ is None else environ).get(name, "").strip()


def parse_flag(text: str) -> bool | None:
    """The truth of a text, in any case; None for one that says neither."""
    text = text.strip().lower()
    return True if text in _ON else False if text in _OFF else None


def flag(name: str, environ: Environ = None) -> bool | None:
    """A flag's value; None where it isn't set."""
    text = _text(name, environ)
    if not text:
        return None
    found = parse_flag(text)
    if found is None:
        raise OptionError(f"environment variable {name} is {text!r}; wanted one of {', '.join((*_ON, *_OFF))}, or no value")
    return found


def number(name: str, environ: Environ = None) -> int | None:
    """A whole number; None where it isn't set or isn't one (spec caches: an unreadable value is the default)."""
    text = _text(name, environ)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def path(name: str, environ: Environ = None) -> str:
    """A path, empty where it isn't set."""
    return _text(name, environ)


def snapshot() -> tuple[tuple[str, str], ...]:
    """The variables of ours that are set now, by name."""
    return tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith("RLX_")))


def foreign(name: str, default: str = "") -> str:
    """A variable of another library, as that library reads it."""
    return os.environ.get(name, default)
