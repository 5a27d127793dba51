"""Owns ``LowerOptions``: every switch of lowering, declared once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from planner_core.environment import Environ
from planner_core.memory import static_weight_pack_skip_enabled
from planner_core.memory.options import STATIC_PACK_VARIABLES
from planner_core.options import coerce_option, env_overrides, option

__all__ = ["LowerOptions"]


@dataclass(frozen=True, slots=True)
class LowerOptions:
    """Options of one lowering. Values given here are final: only ``for_environment`` reads the environment. ``env`` lists the
    variables that it read, for a view to show; it is no option."""

    static_packs_once: bool = option(
        True, group="lower", env="|".join(STATIC_PACK_VARIABLES), help="Make static weight packs in the first run only.")
    env: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False)

    def replace(self, **changes: Any) -> LowerOptions:
        """A copy with options changed; text values are read as their type, unknown names explained."""
        return dataclasses.replace(self, **{k: coerce_option(LowerOptions, k, v) for k, v in changes.items()})

    @classmethod
    def for_environment(cls, environ: Environ = None, **explicit: Any) -> LowerOptions:
        """The defaults; the environment over them, read now, once; ``explicit`` over both."""
        return cls(env=env_overrides(cls, environ)[1]).replace(
            **{"static_packs_once": static_weight_pack_skip_enabled(environ), **explicit})
