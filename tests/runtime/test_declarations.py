"""The thunk registry as a set: facts, derived forms, and what stops a declaration at import."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner_core.ir import Dim, DType, Op, QuantScheme
from planner_core.ir.op import registry as op_registry
from runtime.command_list import (
    In,
    Operand,
    Out,
    Scratch,
    Thunk,
    is_weight_off,
    raw_off,
    registry,
    tag_weight_off,
    thunk,
    thunk_from_json,
)
from runtime.errors import RunError
from tests.runtime import gallery_packed
from tests.runtime.gallery import CASES, as_written

assert gallery_packed.__doc__  # its cases are registered

FACTS = [line.split("|") for line in (Path(__file__).parent / "thunk_facts.txt").read_text().splitlines()[1:]]


def _compiled_thunks() -> list[Thunk]:
    out: list[Thunk] = []
    for make in CASES.values():
        case = make()
        compiled = as_written(case.graph)
        out += (compiled.with_options(**dict(case.options)) if case.options else compiled).commands.thunks
    return out


THUNKS = _compiled_thunks()
ELSEWHERE = {"Nop", "CastTruncF32", "ActivationInPlace", "GeluApproxHost", "Softmax", "CustomOp", "HostOp", "Unrunnable",
             *(c.name for c in registry().values() if c.__module__ == "runtime.command_list.thunks.decode")}
"""Thunks that no gallery graph lowers to: passes make them (quant/test_decode.py), or test_audit.py and test_lowering.py
run them."""

PENDING = {
    "AxialRope2dHost", "CustomGpuOp", "GatedDeltaNet", "GaussianSplatPrepare",
    "GaussianSplatRasterize", "GaussianSplatRender", "GaussianSplatRenderBackward", "Gru", "LogMel", "LogMelBackward", "Lstm",
    "Mamba2", "Rnn", "ScaledDequantize", "ScaledMatMul", "ScaledQuantScale", "ScaledQuantize", "SpdHost", "WelchPeaks",
}
"""Declared without a kernel: shrinks as families are filled in."""


def test_names_labels_classes_and_fields_agree_with_the_facts() -> None:
    facts = {f[0]: f for f in FACTS}
    assert len(facts) == 108
    assert set(facts) == {name for name, cls in registry().items() if not cls.extension}
    for name, cls in registry().items():
        if cls.extension:
            assert name not in facts
            continue
        _, label, extent, where, fields = facts[name]
        assert (cls.label, cls.partial_extent, cls.where) == (label, extent, where)
        for field in fields.split():
            assert hasattr(cls, field), f"{name} lacks {field}"


def of(name: str, storage: DType = DType.F32, **fields: object) -> Thunk:
    """A thunk with small made-up operands and the fields given; 0 in the rest."""
    cls = registry()[name]
    o = Operand("arena", 0, 16, storage, None, (4,))
    operands = {f.name: (o,) if f.many else o for f in cls.operand_fields}
    rest = {f.name: fields.get(f.name, 0) for f in dataclasses.fields(cls) if f.name not in operands}
    return cls(**operands, **rest)


@pytest.mark.parametrize(("t", "place"), [
    (of("DequantMatMulGguf", scheme=QuantScheme.Q4_K), "gpu"), (of("DequantMatMulGguf", scheme=QuantScheme.Q4_0), "host"),
    (of("Conv2dBackwardWeight", n=1), "gpu"), (of("Conv2dBackwardWeight", n=2), "host"),
    (of("Fft1d", n_complex=8, dtype=DType.F32), "gpu"), (of("Fft1d", n_complex=6, dtype=DType.F32), "host"),
    (of("Fft1d", n_complex=8, dtype=DType.F64), "host"),
    (of("SelectiveScan", state_size=128), "gpu"), (of("SelectiveScan", state_size=129), "host"),
    (of("SelectiveScan", DType.F16, state_size=16), "host"), (of("GatedDeltaNet", state_size=64), "gpu"),
    (of("GatedDeltaNet", state_size=256), "host"), (of("Mamba2", state_size=128), "gpu"), (of("Mamba2", state_size=256), "host"),
    (of("Lstm", num_layers=1), "gpu"), (of("Lstm", num_layers=2), "host"), (of("Rnn", num_layers=1, carry=True), "host"),
    (of("Gru", num_layers=1), "gpu"), (of("Gru", DType.F16, num_layers=1), "host"), (of("Rnn", num_layers=1, bidirectional=True), "host"),
    (of("Nop"), "none"), (of("ArgReduce"), "host"),
], ids=lambda v: v if isinstance(v, str) else repr(v.name))
def test_a_gpu_kernel_that_covers_some_cases_says_which(t: Thunk, place: str) -> None:
    assert t.place == place
    assert t.where == place or (t.where, place) == ("gpu", "host")


def test_every_thunk_has_an_example() -> None:
    assert {t.name for t in THUNKS} | ELSEWHERE | PENDING == set(registry())
    assert {t.name for t in THUNKS}.isdisjoint(PENDING)


def test_pending_thunks_are_listed_and_say_so_when_run() -> None:
    assert {name for name, cls in registry().items() if cls.pending} == PENDING
    o = Operand("arena", 0, 16, DType.F32, None, (4,))
    scaled = registry()["ScaledQuantize"](o, o, o, 1, 4, "e4m3", "tensor")  # type: ignore[call-arg]
    assert (scaled.reads(), scaled.writes()) == ((o, o), (o,))
    with pytest.raises(RunError, match="ScaledQuantize: its kernel isn't part of this version"):
        scaled.run(None, None, None, None)
    tiles = registry()["GaussianSplatRasterize"](o, o, o, 1, 2, 2, 16, 0.1, 9, 0.5, 8)  # type: ignore[call-arg]
    assert (tiles.prep_off, tiles.dst_len) == (0, 4)  # type: ignore[attr-defined]


def test_repr_evaluates_back_and_json_round_trips() -> None:
    names: dict[str, Any] = {c.__name__: c for c in registry().values()}
    scope = {"Operand": Operand, "Dim": Dim, "DType": DType, "QuantScheme": QuantScheme, "inf": float("inf"),
             **{c.__name__: c for c in op_registry().values()}}
    for t in THUNKS:
        scope[type(t).__name__] = names[type(t).__name__] = type(t)
        if not any(o.bodies() for o in (getattr(t, "op", None),) if isinstance(o, Op)):  # a graph's repr is a summary
            assert eval(repr(t), dict(scope)) == t
        assert thunk_from_json(json.loads(json.dumps(t.to_json(), allow_nan=False))) == t
        assert str(t).startswith(t.label)
        assert t.scratch_bytes <= 4 << 20


def test_spans_are_derived_from_roles() -> None:
    a = Operand("arena", 0, 16, DType.F32, None, (4,))
    b = Operand("weights", 64, 16, DType.F32, None, (4,))
    t = registry()["Concat"](a, 1, 4, 1, (b, b))  # type: ignore[call-arg]
    assert t.reads() == (b, b)
    assert t.writes() == (a,)
    inplace = registry()["ActivationInPlace"](a, 4, "relu")  # type: ignore[call-arg]
    assert inplace.reads() == inplace.writes() == (a,)
    assert b.span == ("weights", 64, 80)
    assert is_weight_off(b.tagged_offset)
    assert raw_off(b.tagged_offset) == 64
    assert tag_weight_off(5) == 5 | 1 << 63
    assert a.tagged_offset == 0


def _ok(self: Any, src: Any, dst: Any, scratch: Any) -> None:
    """A kernel with the right operands."""


@pytest.mark.parametrize(("change", "message"), [
    ({"label": ""}, "label"),
    ({"partial_extent": "maybe"}, "partial_extent"),
    ({"where": "moon"}, "where"),
    ({"name": "Copy"}, "twice"),
    ({"run": None}, "kernel"),
    ({"run": lambda self, src, scratch: None}, "run takes"),
    ({"__doc__": None}, "docstring"),
    ({"role": Operand}, "without a role"),
    ({"role": tuple[Operand, ...]}, "without a role"),
])
def test_a_bad_declaration_fails_at_import(change: dict[str, Any], message: str) -> None:
    settings = {"name": "Bad", "label": "bad", "partial_extent": "no", "where": "host"}
    body: dict[str, Any] = {"__doc__": "dst = src.", "run": _ok, "__annotations__": {"src": In, "dst": Out}}
    for k, v in change.items():
        if k in settings:
            settings[k] = v
        elif k == "role":
            body["__annotations__"]["src"] = v
        elif v is None:
            body.pop(k)
        else:
            body[k] = v
    with pytest.raises(TypeError, match=message):
        thunk(**settings)(type("Bad", (Thunk,), body))
    assert "Bad" not in registry()


def test_scratch_is_limited_to_the_declaration() -> None:
    scratch = Scratch(np.zeros(256, np.uint8))
    scratch.reset(128)
    scratch.take(16)
    with pytest.raises(RunError, match="declared 128"):
        scratch.take(17)


def test_unknown_thunk_in_json() -> None:
    with pytest.raises(ValueError, match="Nonsense"):
        thunk_from_json({"command": "Nonsense"})
