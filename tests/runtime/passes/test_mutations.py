"""A pass that skips one hazard check is caught by the sanitised comparison, and refused with the check in place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planner_core.ir import Graph, QuantScheme
from runtime import SanitizeError
from runtime.passes import Flow, PassOptions, Refusal
from tests.runtime.passes.lab import off_and_on, packed_mlp

TIGHT = {"arena_no_reuse": False, "pin_output_ancestors": False, "dequant_host_fallback": False}


def reads_what_should_vanish() -> Graph:
    g = Graph("gated")
    x, z = g.input("x", (3, 7)), g.input("z", (3, 7))
    gate = g.silu(z)
    y = g.mul(g.rms_norm(x, g.param("g", (7,), data=np.ones(7, np.float32))), gate)
    return g.set_outputs(y, g.neg(gate))


def reuses_an_operand() -> Graph:
    """The projection is dead behind the sum, and ``u`` takes its bytes before the norm."""
    g = Graph("residual")
    h = 1024
    x, res, z = g.input("x", (1, 8)), g.input("res", (1, h)), g.input("z", (1, h))
    y = g.mm(x, g.param("w", (8, h), data=np.random.default_rng(0).standard_normal((8, h)).astype(np.float32)))
    s = g.add(res, y)
    u = g.neg(z)
    return g.set_outputs(g.mul(g.rms_norm(s, g.param("g", (h,), data=np.ones(h, np.float32))), u))


def slices_into_bytes_in_use() -> Graph:
    """``p`` lives until it is read between the slices; the second slice then takes its bytes."""
    g = Graph("slices")
    p = g.relu(g.input("p", (2, 64)))
    x = g.tanh(g.input("x", (2, 128)))
    first = g.narrow(x, axis=1, start=0, len=64)
    q = g.neg(p)
    second = g.narrow(x, axis=1, start=64, len=64)
    return g.set_outputs(g.exp(first), q, g.exp(second))


CASES: dict[str, tuple[Callable[[], Graph], Refusal]] = {
    "apart": (lambda: packed_mlp(QuantScheme.Q4_K), Refusal.OUTPUT_OVERLAPS_OPERAND),
    "vanishes": (reads_what_should_vanish, Refusal.READ_ELSEWHERE),
    "may_read_later": (reuses_an_operand, Refusal.OPERAND_OVERWRITTEN),
    "may_write_earlier": (slices_into_bytes_in_use, Refusal.DESTINATION_IN_USE),
}


@pytest.mark.parametrize("check", CASES)
def test_a_pass_without_the_check_is_caught(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, reason = CASES[check]
    log = off_and_on(make(), PassOptions(), 1e-5, **TIGHT).log
    assert reason in {d.reason for d in log}
    monkeypatch.setattr(Flow, check, lambda self, *args, **more: None)
    with pytest.raises((SanitizeError, AssertionError)):
        off_and_on(make(), PassOptions(), 1e-5, **TIGHT)
