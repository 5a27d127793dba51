"""Owns ``PlanOptions``: every switch of the planner, declared once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner_core.environment import Environ, flag, variable
from planner_core.errors import OptionError, PlanError
from planner_core.ir.traits import Trait
from planner_core.memory.placement.registry import CHOICES
from planner_core.memory.widths import ArenaWidthPolicy, Target, arena_width_policy
from planner_core.options import coerce_option, env_overrides, option

if TYPE_CHECKING:
    from planner_core.ir import Graph

__all__ = ["IN_ORDER", "PlanOptions", "has_host_indexing", "static_weight_pack_skip_enabled"]


IN_ORDER: dict[str, Any] = {
    "pin_output_ancestors": False, "dequant_host_fallback": False, "host_custom_inputs": False, "onnx_hidden": False,
    "onnx_duration": False}
"""Options of an executor that runs commands in order: none of the pins made for one that doesn't (spec §6)."""



@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of one plan. Values given here are final: only presets and entry points read the environment.

    ``env`` lists the variables that a preset read, for the plan to show; it is no option.
    """

    allocate_params: bool = option(True, group="boundary", help="Give params bytes in this plan.")
    allocate_inputs: bool = option(True, group="boundary", help="Give graph inputs bytes in this plan.")
    allocate_constants: bool = option(True, group="boundary", help="Give constants bytes in this plan.")
    separate_weights: bool = option(
        False, group="boundary", help="Put params in a region of their own instead of the arena.")
    arena_no_reuse: bool = option(
        False, group="reuse", env="RLX_ARENA_NO_REUSE", help="Give every buffer its own bytes: nothing is reused.")
    in_place: bool = option(
        False, group="reuse", help="Let the output of an elementwise op or fused region take the bytes of an input that dies there. "
        "What pin_output_ancestors keeps alive to the end dies nowhere and hands nothing over: switch it off as well.")
    pin_output_ancestors: bool = option(
        True, group="liveness", help="Keep everything an output was computed from alive to the end.")
    dequant_host_fallback: bool = option(
        True, group="liveness", help="Keep activations that a host dequant-matmul might read alive to the end.")
    pin_host_structure: bool = option(
        False, group="liveness", env="RLX_ARENA_PIN_HOST_STRUCTURE",
        help="Keep what Expand, Concat, Transpose and Narrow touch alive to the end.")
    host_custom_inputs: bool = option(
        True, group="liveness", help="Keep what an opaque ONNX op reads, and its ancestors, alive to the end: for a host that "
        "reads it late.")
    onnx_hidden: bool = option(
        True, group="liveness", help="With quantised ONNX ops present, keep what norms and adds touch alive to the end: for "
        "hidden host copies.")
    onnx_duration: bool = option(
        True, group="liveness", help="With an int64 output, keep its ancestors and every int64 piece alive and reuse nothing at "
        "all: for host-side length logic.")
    elide_bank_transposes: bool = option(
        False, group="elision", help="Drop transposes that the matmul reading them folds away.")
    elide_requires_small_m: bool = option(
        False, group="elision", help="Drop only expert-bank transposes read with at most 4 rows.")
    fold_conv3d_epilogue: bool = option(
        False, group="liveness", help="Leave room for 3-D convs that absorb a leaky ReLU or read through a concat.")
    keep_pass_operands: bool = option(
        False, group="liveness", help="Keep operands alive to where a fused decode command would read them: a few rows, "
        "without which reuse makes the passes refuse.")
    alignment: int = option(64, group="layout", help="Every slot starts at a multiple of this power of two (bytes).")
    width_policy: ArenaWidthPolicy = option(
        ArenaWidthPolicy.F32_UNIFORM, group="layout", help="How wide activations are stored.")
    placement: str = option(
        "first_fit", group="layout", choices=CHOICES, help="How offsets are chosen.")
    verify_placement: bool = option(
        False, group="checks", env="RLX_PLAN_VERIFY", cache_key=False,
        help="Derive every offset a second time with the plain candidate scan.")
    verify_memory: bool = option(
        False, group="checks", env="RLX_MEM_VERIFY", cache_key=False,
        help="Run the self-check after planning and fail on any violation.")
    print_conv3d_folds: bool = option(
        False, group="checks", env="RLX_FOLD_LIVENESS_DEBUG", cache_key=False,
        help="Print how many 3-D conv epilogues the plan leaves room for.")
    env: tuple[tuple[str, str], ...] = dataclasses.field(default=(), compare=False)

    def __post_init__(self) -> None:
        a = self.alignment
        if type(a) is not int or a < 1 or a & (a - 1):
            raise PlanError(f"alignment {a!r}: wanted a power of two, such as 1, 64 or 4096")
        if not isinstance(self.width_policy, ArenaWidthPolicy):
            raise PlanError(f"width_policy {self.width_policy!r}: wanted an ArenaWidthPolicy")

    def replace(self, **changes: Any) -> PlanOptions:
        """A copy with options changed; text values are read as their type, unknown names explained."""
        return dataclasses.replace(self, **{k: coerce_option(PlanOptions, k, v) for k, v in changes.items()})

    # --- presets (these read the environment, once) -----------------------------------------------

    @classmethod
    def inference(cls, environ: Environ = None, **explicit: Any) -> PlanOptions:
        """The conservative defaults; the environment over them, ``explicit`` values over both."""
        values, read = env_overrides(cls, environ)
        return dataclasses.replace(cls(env=read), **{**values, **explicit})

    @classmethod
    def backward_activations_only(cls, environ: Environ = None, **explicit: Any) -> PlanOptions:
        """``inference`` with params not allocated: the forward plan holds them."""
        return cls.inference(environ, **{"allocate_params": False, **explicit})

    @classmethod
    def for_target(cls, target: Target | str, graph: Graph | None = None,
                   environ: Environ = None, **explicit: Any) -> PlanOptions:
        """What ``compile_graph``, the command line and the explorer start from.

        Our executors run commands in order, so that nothing is pinned for the sake of one that doesn't
        (``IN_ORDER``), host indexing or not; the target's width policy; folded transposes dropped where the target
        folds them; params in their own region; placed by ``auto``, whose search stops at the bound. ``graph`` is the
        one to plan: a preset may depend on it (none does today).
        """
        try:
            target = Target(target)
        except ValueError:
            raise OptionError(f"target {target!r}: wanted one of {', '.join(t.value for t in Target)}") from None
        folds = target.profile.folds
        mine: dict[str, Any] = {
            **IN_ORDER,
            "placement": "auto",
            "width_policy": arena_width_policy(target),
            "elide_bank_transposes": folds is not None,
            "elide_requires_small_m": folds is not None and folds.small_banks_only,
            "separate_weights": True,
            "keep_pass_operands": target.profile.command_passes,
        }
        return cls.inference(environ, **{**mine, **explicit})


def has_host_indexing(graph: Graph) -> bool:
    """The graph holds an op that a backend may run on the host (``Trait.HOST_INDEXING``)."""
    return any(n.op.has(Trait.HOST_INDEXING) for n in graph.nodes)


STATIC_PACK_VARIABLES = tuple(variable(name, "flag", "Make static weight packs in the first run only.", "static_packs_once")
                              for name in ("RLX_STATIC_WEIGHT_PACK", "RLX_QWEN3_BAKE_WEIGHTS"))
"""The second is an older name of the first."""


def static_weight_pack_skip_enabled(environ: Environ = None) -> bool:
    """Whether a backend may skip making a static pack again after the first run (spec §6).

    On unless ``RLX_STATIC_WEIGHT_PACK`` (or its older name ``RLX_QWEN3_BAKE_WEIGHTS``) is off.
    """
    return next((on for name in STATIC_PACK_VARIABLES if (on := flag(name, environ)) is not None), True)
