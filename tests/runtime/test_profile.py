"""Profiles: rows, rates and FLOPs by the formula; traces in the trace-event format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from planner_core import zoo
from planner_core.ir import Array, DType, Graph
from planner_core.memory import Target, live_curve
from runtime import Compilation, CompileOptions, compile_graph

DECODER = {"layers": 1, "hidden": 256, "heads": 4, "kv_heads": 2, "ffn": 512, "vocab": 64, "past": 3, "quant": "q4_k"}


def decoder(target: Target) -> tuple[Compilation, dict[str, Array]]:
    g = zoo.build("llama-decode", **DECODER)
    zoo.random_weights(g)
    rng = np.random.default_rng(0)
    feed = {g[i].name: rng.standard_normal(g[i].shape.sizes).astype(np.float32) if g[i].dtype.is_float
            else rng.integers(0, 9, g[i].shape.sizes) for i in g.inputs}
    return compile_graph(g, CompileOptions(target=target)), feed


def k_hidden() -> int:
    return int(DECODER["hidden"])


def product() -> Graph:
    g = Graph("product")
    x, w = g.input("x", (64, 128)), g.param("w", (128, 256), data=np.ones((128, 256), np.float32))
    return g.set_outputs(g.mm(x, w), names=["y"])


def test_rows_follow_the_formulas() -> None:
    p = compile_graph(product()).profile({"x": np.ones((64, 128), np.float32)}, repeat=3)
    (row,) = p.to_frame().to_dict("records")
    assert row["flops"] == 2 * 64 * 128 * 256
    assert row["bytes_read"] == 4 * (64 * 128 + 128 * 256)
    assert row["bytes_written"] == 4 * 64 * 256
    seconds = row["us"] / 1e6
    assert row["gb_per_s"] == pytest.approx((row["bytes_read"] + row["bytes_written"]) / seconds / 1e9)
    assert row["gflop_per_s"] == pytest.approx(row["flops"] / seconds / 1e9)
    assert row["share"] == pytest.approx(1)
    assert p.repeat == 3


def test_passes_lose_no_flops_and_their_places_are_skipped() -> None:
    metal, feed = decoder(Target.METAL)
    assert metal.pass_log.applied("decode_mlp_separate")
    after = metal.profile(feed, repeat=1)
    before = metal.with_options(decode=False).profile(feed, repeat=1)
    assert int(after.flops.sum()) == int(before.flops.sum()) > 0
    frame = after.to_frame()
    assert "nop" not in set(frame["command"])
    assert frame["share"].sum() == pytest.approx(1)
    looked_up = frame[frame["command"] == "gather"].iloc[0]  # one token's row of the table, and its number
    assert (looked_up["bytes_read"], looked_up["bytes_written"]) == (4 * k_hidden() + 8, 4 * k_hidden())
    fused = frame[frame["command"].str.startswith("fused_mlp")]
    k, n = DECODER["hidden"], DECODER["ffn"]
    assert int(fused["flops"].sum()) == 3 * 2 * k * n + 2 * n + k  # gate, up, down; SiLU and product; the sum


@pytest.mark.parametrize(("dims", "rows"), [((5, 8), 1), ((4, 8), 4)])
def test_a_bank_is_read_where_its_experts_are_chosen(dims: tuple[int, int], rows: int) -> None:
    g = Graph("experts")
    x, w = g.input("x", (rows, 8)), g.param("w", (4, *dims[::-1]), data=np.ones((4, *dims[::-1]), np.float32))
    idx = g.input("i", (rows,), DType.I64)
    g.set_outputs(g.grouped_mat_mul(x, w, idx))
    (bank,) = compile_graph(g).commands.thunks
    assert bank.bytes_read == 4 * rows * 8 + min(rows, 4) * 4 * 8 * dims[0] + 8 * rows


def test_trace_is_in_the_trace_event_format(tmp_path: Path) -> None:
    metal, feed = decoder(Target.METAL)
    p = metal.profile(feed, repeat=1)
    events = json.loads(p.write_trace(tmp_path / "run.json").read_text())
    assert isinstance(events, list)
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == metal.commands.dispatches
    end = 0.0
    for e in complete:
        assert set(e) == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert e["ts"] >= end - 0.002  # one after the other, to the rounding
        end = e["ts"] + e["dur"]
        assert {"bytes_read", "bytes_written", "arena_begin", "arena_end", "index", "node"} == set(e["args"])
        assert e["args"]["arena_begin"] <= e["args"]["arena_end"] <= metal.plan.arena_size
    counters = [e["args"]["live"] for e in events if e["ph"] == "C"]
    assert max(counters) == live_curve(metal.plan).max() <= metal.plan.arena_size


def test_repeat_below_one_is_an_error() -> None:
    with pytest.raises(ValueError, match="repeat is 0, wanted 1 or more"):
        compile_graph(product()).profile({"x": np.ones((64, 128), np.float32)}, repeat=0)
