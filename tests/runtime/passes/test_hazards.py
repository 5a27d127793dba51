"""Look-alikes that a fresh reading of the passes found: a value that is not the one it seems, or wanted twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner_core.ir import Graph
from runtime import PassOptions, run_passes
from runtime.command_list.thunks.attention import Rope
from runtime.passes import Refusal
from tests.runtime.passes.lab import off_and_on
from tests.runtime.passes.test_refusals import CASES

DEPTHWISE = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "groups": 3}


def test_a_silu_of_other_bytes_is_not_the_convolutions() -> None:
    """The convolution's result is read by nothing, and its bytes hold another value by the time of the SiLU."""
    g = Graph("dead")
    x, z = g.input("x", (1, 4, 3)), g.input("z", (1, 1, 3))
    w = g.param("w", (3, 1, 4), data=np.ones((3, 1, 4), np.float32))
    g.transpose(g.conv(g.transpose(x, perm=(0, 2, 1)), w, **DEPTHWISE), perm=(0, 2, 1))
    g.set_outputs(g.neg(g.silu(g.tanh(z))), names=["o"])
    off_and_on(g, PassOptions(), 1e-6, arena_no_reuse=False)


@pytest.mark.parametrize("reuse", [False, True])
def test_a_sum_that_is_also_the_norms_gamma_stays(reuse: bool) -> None:
    h = 1024
    g = Graph("gamma")
    x, res = g.input("x", (1, h)), g.input("res", (1, h))
    w = g.param("w", (h, h), data=np.random.default_rng(0).standard_normal((h, h)).astype(np.float32) / 32)
    s = g.add(res, g.mm(x, w))
    g.set_outputs(g.rms_norm(s, g.reshape(s, dims=(h,))), names=["o"])
    result = off_and_on(g, PassOptions(), 1e-5, arena_no_reuse=not reuse)
    assert Refusal.SUM_READ_LATER in {d.reason for d in result.log.refused("residual_rms_norm")}


def test_a_transposed_input_that_is_also_the_weight_stays() -> None:
    g = Graph("weight")
    t = g.transpose(g.input("x", (1, 4, 3)), perm=(0, 2, 1))
    y = g.conv(t, g.reshape(t, dims=(3, 1, 4)), **DEPTHWISE)
    g.set_outputs(g.transpose(y, perm=(0, 2, 1)), names=["o"])
    result = off_and_on(g, PassOptions(), 1e-6)
    assert {d.reason for d in result.log.refused("depthwise_conv")} == {Refusal.READ_ELSEWHERE}


def test_a_slice_that_is_also_a_table_stays() -> None:
    """Written by hand: a rotary embedding whose cosines lie in the slice that would vanish."""
    build, _ = CASES["narrow_rope", Refusal.READ_ELSEWHERE]
    lab = build()
    at = next(i for i, t in enumerate(lab.thunks) if isinstance(t, Rope))
    rope = lab.thunks[at]
    assert isinstance(rope, Rope)
    cos = replace(rope.src, nbytes=rope.cos.nbytes, shape=rope.cos.shape)
    lab.thunks = [*lab.thunks[:at], replace(rope, cos=cos)]
    lab.names = lab.names[: at + 1]
    result = run_passes(lab.commands(), PassOptions())
    assert not result.log.applied("narrow_rope")
    assert {d.reason for d in result.log.refused("narrow_rope")} == {Refusal.READ_ELSEWHERE}

