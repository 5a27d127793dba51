"""Owns the declaration of options: one frozen dataclass field each, from which command line, widget,
docs table and cache key are derived."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Any

from planner_core.environment import Environ, flag, parse_flag, path, variable
from planner_core.errors import OptionError

__all__ = ["OptionInfo", "coerce_option", "env_overrides", "option", "options_of", "variables_of"]


def option(default: Any, *, help: str, group: str, env: str = "", choices: Collection[Any] | type[Enum] = (),
           cache_key: bool = True) -> Any:
    """A dataclass field that is an option; ``env`` names the flags that presets read, ``|``-separated, the first that is set
    before the others. ``choices`` may be a live collection, read anew each time, or the Enum whose members the values are."""
    return dataclasses.field(
        default=default,
        metadata={"option": True, "help": help, "group": group, "env": env, "choices": choices,
                  "cache_key": cache_key},
    )


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """What a front end needs to show one option."""

    name: str
    type: str
    default: Any
    help: str
    group: str
    choices: tuple[str, ...]
    env: str
    cache_key: bool


def options_of(cls: type[Any]) -> list[OptionInfo]:
    """Every option of an options class, in declaration order."""
    out = []
    for f in dataclasses.fields(cls):
        if f.metadata.get("option"):
            choices = tuple(_text(c) for c in f.metadata["choices"])
            if not choices and isinstance(f.default, Enum):
                choices = tuple(_text(c) for c in type(f.default))
            kind = "bool" if isinstance(f.default, bool) else "choice" if choices else "int"
            out.append(OptionInfo(f.name, kind, _text(f.default), f.metadata["help"], f.metadata["group"], choices,
                                  f.metadata["env"], f.metadata["cache_key"]))
    return out


def _text(v: Any) -> Any:
    return v.value if isinstance(v, Enum) else v


def coerce_option(cls: type[Any], name: str, value: Any) -> Any:
    """``value`` (perhaps text from a command line) as the option's own type; ``OptionError`` explains."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.metadata.get("option")}
    if name not in fields:
        import difflib

        near = difflib.get_close_matches(name, fields, 1)
        raise OptionError(f"no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ".")
                        + f" Options: {', '.join(fields)}")
    default: Any = fields[name].default
    info = next(o for o in options_of(cls) if o.name == name)
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        found = parse_flag(str(value))
        if found is None:
            raise OptionError(f"option {name}: got {value!r}, wanted true or false")
        return found
    if info.choices:
        text = _text(value)
        for c in info.choices:
            if str(text).lower() == str(c).lower():
                kind = type(default) if isinstance(default, Enum) else fields[name].metadata["choices"]
                return kind(c) if isinstance(kind, type) and issubclass(kind, Enum) else c
        raise OptionError(f"option {name}: got {value!r}, wanted one of {', '.join(map(str, info.choices))}")
    try:
        whole = int(value)
        if isinstance(value, float) and whole != value:
            raise ValueError
        return whole
    except (TypeError, ValueError, OverflowError):
        raise OptionError(f"option {name}: got {value!r}, wanted an integer") from None


def env_overrides(cls: type[Any], environ: Environ = None) -> tuple[dict[str, bool], tuple[tuple[str, str], ...]]:
    """Flags that the environment sets: option values, and the variables as read. ``OptionError`` for a text that is no flag."""
    values: dict[str, bool] = {}
    read: list[tuple[str, str]] = []
    for o in options_of(cls):
        for name in variables_of(o):
            found = flag(name, environ)
            if found is not None:
                read.append((name, path(name, environ)))
                values.setdefault(o.name, found)
    return values, tuple(read)


def variables_of(o: OptionInfo) -> tuple[str, ...]:
    """The environment variables of an option, the strongest first."""
    return tuple(variable(name, "flag", o.help, o.name) for name in filter(None, o.env.split("|")))
