"""Offsets past 4 GiB: the same graph with its slots moved up, on virtual memory that is never touched below."""

from __future__ import annotations

import dataclasses
import mmap

import numpy as np
import pytest

from planner_core.ir import Array, Graph
from planner_core.memory import PlanOptions, plan_graph
from runtime.command_list import is_weight_off, raw_off, tag_weight_off
from runtime.executors import HostExecutor
from runtime.executors import host as host_module
from runtime.lowering import lower_graph
from runtime.passes import PassOptions, run_passes

FAR = 5 << 30


def sparse(nbytes: int) -> Array:
    """Zeroed virtual memory: pages exist once they are written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1), flags=flags), dtype=np.uint8)[:nbytes]


def block() -> Graph:
    g = Graph("far")
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> int:
        return g.param(name, shape, data=rng.standard_normal(shape).astype(np.float32))

    x = g.input("x", (1, 4, 16))
    h = g.rms_norm(x, weight("gamma", 16))
    qkv = g.mm(h, weight("qkv", 16, 48))
    q, k, v = (g.narrow(qkv, axis=2, start=s, len=16) for s in (0, 16, 32))
    a = g.attention(q, k, v, num_heads=2, head_dim=8, mask_kind="causal")
    y = g.add(x, g.mm(a, weight("out", 16, 16)))
    image = g.reshape(g.gelu(y), dims=(1, 4, 4, 4))
    c = g.conv(image, weight("kernel", 3, 4, 3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1))
    return g.set_outputs(y, c, names=["y", "c"])


@pytest.mark.parametrize("space", ["arena", "weights"])
def test_slots_past_four_gib_run_the_same(space: str, monkeypatch: pytest.MonkeyPatch) -> None:
    g = block()
    plan = plan_graph(g, PlanOptions(pin_output_ancestors=False, separate_weights=True))
    code = {"arena": 0, "weights": 1}[space]
    there = plan.space == code
    assert there.any()
    grown = {f"{space}_size": getattr(plan, f"{space}_size") + FAR}
    far = dataclasses.replace(plan, offset=np.where(there, plan.offset + FAR, plan.offset), **grown)
    monkeypatch.setattr(host_module, "aligned_buffer", sparse)
    feed = {"x": np.random.default_rng(1).standard_normal((1, 4, 16)).astype(np.float32)}
    near_list, far_list = (run_passes(lower_graph(g, p), PassOptions()).commands for p in (plan, far))
    offsets = [o.offset for t in far_list.thunks for _, _, o in t.operands() if o.space == space]
    assert min(offsets) >= FAR
    want, got = (HostExecutor(c, g.weights).run(feed) for c in (near_list, far_list))
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("offset", [0, 64, (4 << 30) - 64, 4 << 30, FAR, (1 << 62) + 128])
def test_weight_tags_keep_every_offset(offset: int) -> None:
    tagged = tag_weight_off(offset)
    assert is_weight_off(tagged)
    assert not is_weight_off(offset)
    assert raw_off(tagged) == offset
