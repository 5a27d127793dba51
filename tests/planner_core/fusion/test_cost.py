"""Roofline estimates against the formula written out, and the profiles' own consistency."""

from __future__ import annotations

import pytest

from planner_core.errors import FusionError
from planner_core.fusion import fuse_graph
from planner_core.fusion.cost import DEVICES, device, estimate
from planner_core.ir import Graph

TOY = device("cpu").replace(tflops_f32=1.0, tflops_f16=2.0, gb_per_s=100.0, launch_us=3.0)


def product() -> Graph:
    g = Graph("product")
    x, w = g.input("x", (64, 128)), g.param("w", (128, 256))
    y = g.mm(x, w)
    return g.set_outputs(g.reshape(g.relu(y), dims=(64 * 256,)))


def test_kernels_follow_the_roofline() -> None:
    view = estimate(fuse_graph(product(), options=None), TOY)
    flops, nbytes = 2 * 64 * 128 * 256, 4 * (64 * 128 + 128 * 256 + 64 * 256)
    unfused = max(flops / 1e6, nbytes / 1e5) + 3, max(64 * 256 / 1e6, 4 * 2 * 64 * 256 / 1e5) + 3
    assert view.us_before == pytest.approx(sum(unfused))
    assert view.us <= view.us_before
    assert sum(r.us for r in view.rows) == pytest.approx(view.us)
    first = view.rows[0]
    assert (first.flops_before, first.bytes_before) in {(flops, nbytes), (flops + 64 * 256, nbytes + 8 * 64 * 256)}


def test_half_precision_uses_its_own_peak() -> None:
    assert TOY.microseconds(4_000_000, 0, half=True) == pytest.approx(2 + 3)
    assert TOY.microseconds(4_000_000, 0, half=False) == pytest.approx(4 + 3)
    assert TOY.ridge(half=False) == pytest.approx(10)


def test_views_and_static_packs_cost_nothing() -> None:
    g = Graph("free")
    x, w = g.input("x", (4, 8)), g.param("w", (8, 8))
    g.set_outputs(g.mm(g.reshape(x, dims=(4, 8)), g.transpose(g.neg(w), perm=(1, 0))))
    assert [r.op for r in estimate(fuse_graph(g), TOY).rows][-1].startswith(("MatMul", "TransposedMatMul"))
    assert len(estimate(fuse_graph(g), TOY).rows) == 1


@pytest.mark.parametrize("name", DEVICES)
def test_profiles_are_whole(name: str) -> None:
    d = DEVICES[name]
    assert d.name == name
    assert d.tflops_f16 >= d.tflops_f32 > 0
    assert d.gb_per_s > 0
    assert d.source


def test_numbers_of_your_own() -> None:
    assert device(TOY) is TOY
    with pytest.raises(FusionError, match="gb_per_s is 0"):
        TOY.replace(gb_per_s=0)
    with pytest.raises(FusionError, match="launch_us is -1"):
        TOY.replace(launch_us=-1)
    with pytest.raises(FusionError, match="no device 'm9'; wanted one of m1"):
        device("m9")


def test_frame_says_estimated() -> None:
    frame = estimate(fuse_graph(product()), TOY).to_frame()
    assert {"us_estimated", "us_before_estimated", "saved_us_estimated", "bound", "intensity"} <= set(frame.columns)
    assert "estimated" in str(estimate(fuse_graph(product()), TOY))
