"""Owns ``FusionOptions``: one switch a rule, generated from the rules' declarations."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from planner_core.errors import FusionError
from planner_core.fusion import rules as _declared  # noqa: F401  (declares the rules)
from planner_core.fusion.rule import RULES
from planner_core.options import coerce_option, option
from planner_core.target import Target

__all__ = ["FusionOptions", "fusion_for_target", "no_fusion"]

"""Targets whose command passes own the decode forms (m = 1)."""

if TYPE_CHECKING:

    class FusionOptions:
        """Which rules run; one bool field a rule, named as the rule, and those below."""

        fusion: bool
        decode_forms: bool

        def __init__(self, **values: bool) -> None: ...

else:
    FusionOptions = dataclasses.make_dataclass(
        "FusionOptions",
        [("fusion", bool, option(True, group="fusion", help="Run the fusion rules; off, the graph stays as it was written.")),
         ("decode_forms", bool, option(
             True, group="fusion", help="Take one-row forms too, which a command pass owns on Metal; only the graph's "
             "rules can shrink the arena."))]
        + [(r.name, bool, option(True, group=f"fusion: {r.group}", help=r.doc)) for r in RULES.values()],
        frozen=True, slots=True,
    )
    FusionOptions.__module__ = __name__
    FusionOptions.__doc__ = "Which rules run; one bool field a rule, named as the rule."


def fusion_for_target(target: Target | str, **explicit: Any) -> FusionOptions:
    """The target's preset: its rules on, the others off; the decode forms where no command pass owns them.

    ``explicit`` values (perhaps text) are final; ``FusionError`` names an unknown one.
    """
    try:
        target = Target(target)
    except ValueError:
        raise FusionError(f"target {target!r}: wanted one of {', '.join(t.value for t in Target)}") from None
    mine: dict[str, Any] = {r.name: target in r.targets for r in RULES.values()}
    mine["decode_forms"] = not target.profile.command_passes
    mine |= {k: coerce_option(FusionOptions, k, v) for k, v in explicit.items()}
    return FusionOptions(**mine)


def no_fusion() -> FusionOptions:
    """Nothing runs: the graph as it was written."""
    return FusionOptions(fusion=False)
