"""Time of the nine command passes over long lists, and how it grows."""

from __future__ import annotations

from typing import Any

import pytest

from planner_core import zoo
from planner_core.memory import PlanOptions, plan_graph
from runtime.command_list import CommandList
from runtime.lowering import lower_graph
from runtime.passes import run_passes

pytestmark = pytest.mark.bench


def decoder(layers: int, tight: bool) -> CommandList:
    """A quantised one-row decoder, about 19 thunks a layer."""
    g = zoo.build("llama-decode", layers=layers, hidden=32, heads=4, ffn=64, vocab=30, past=3, quant="q5_0", packed_qkv=True)
    plan = PlanOptions(arena_no_reuse=not tight, pin_output_ancestors=False, dequant_host_fallback=False)
    return lower_graph(g, plan_graph(g, plan))


@pytest.mark.parametrize("tight", [False, True], ids=["no reuse", "tight"])
@pytest.mark.parametrize("layers", [53, 530])
def test_passes(benchmark: Any, layers: int, tight: bool) -> None:
    commands = decoder(layers, tight)
    benchmark.extra_info["thunks"] = len(commands)
    benchmark.pedantic(run_passes, args=(commands,), rounds=3, iterations=1, warmup_rounds=1)
