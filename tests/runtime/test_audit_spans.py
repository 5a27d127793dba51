"""Shortened spans: every operand of every thunk of the gallery declared one element short is caught.

Once by the graph (a span is no value of the node), and once by the bytes alone, on lists without a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from planner_core.fusion import no_fusion
from planner_core.ir import DType, Graph, QuantScheme
from planner_core.memory import PlanOptions
from runtime import CommandList, Compilation, CompileOptions, HostExecutor, PassOptions, SanitizeError, compile_graph
from runtime.command_list import Binding, Operand, Role, SlotLife, Thunk
from runtime.command_list.thunks.structure import Copy
from runtime.executors.audit_spans import FILL, POISON, SpanMap, poison, poisoned
from tests.runtime import gallery_packed
from tests.runtime.gallery import CASES, Array, as_written
from tests.runtime.passes.lab import feed_of, packed_mlp
from tests.runtime.passes.test_applied import CHAINS, depthwise, residual_norm, rope_of_slices
from tests.runtime.test_audit import Mutant

assert gallery_packed.__doc__  # its cases are registered

BYTES_ALONE_CANNOT_TELL = {
    ("Narrow", "src"): "the gallery's slices end before the last element, so no result depends on it",
    ("Where", "on_false"): "the gallery's last condition is true, so no result depends on the other side",
}
"""Reads whose last element changes no result in any case; with the graph known they are caught as well."""


def compiled(name: str) -> tuple[Compilation, dict[str, Array]]:
    case = CASES[name]()
    c = as_written(case.graph)
    return (c.with_options(**dict(case.options)) if case.options else c), case.feed


def shortened(o: Operand) -> Operand:
    """Without its last element: the last axis with an extent above one is cut (rank stays: scratch sizes ask for it)."""
    count = o.nbytes // o.storage.numpy.itemsize - 1
    return replace(o, nbytes=count * o.storage.numpy.itemsize, shape=(1,) * (len(o.shape) - 1) + (count,))


def short_forms(t: Thunk) -> Iterator[tuple[str, Role, Operand, Thunk]]:
    """(field, role, the operand, the thunk that declares it one element short), for each operand of several."""
    for f in t.operand_fields:
        value = getattr(t, f.name)
        for k, o in enumerate(() if value is None else value if f.many else (value,)):
            if o.nbytes > o.storage.numpy.itemsize:
                new = (*value[:k], shortened(o), *value[k + 1 :]) if f.many else shortened(o)
                yield f.name, f.role, o, replace(t, **{f.name: new})  # type: ignore[type-var]


def breach(executor: HostExecutor, feed: dict[str, Array]) -> SanitizeError | None:
    """What an audited run finds."""
    try:
        executor.run(feed, sanitize=True)
    except SanitizeError as e:
        return e
    return None


def test_every_shortened_span_is_caught_by_the_graph() -> None:
    done = set()
    for name in CASES:
        c, feed = compiled(name)
        executor, whole = c.executor, c.executor.commands
        for i, t in enumerate(whole.thunks):
            for field, _, o, short in short_forms(t):
                if (t.name, field, name.split("-")[0]) in done:
                    continue  # one case of a family is enough
                done.add((t.name, field, name.split("-")[0]))
                executor.commands = replace(whole, thunks=(*whole.thunks[:i], short, *whole.thunks[i + 1 :]))
                with pytest.raises(SanitizeError) as caught:  # the kernel still gets the whole view
                    executor.run(feed, sanitize=True)
                e = caught.value
                assert (e.thunk, e.field, e.space, e.offset) == (i, field, o.space, o.offset), (name, str(e))
                assert e.label == t.trace_label
                assert f"lowering of {whole.node_names[whole.node_of[i]]}" in e.blame
        executor.commands = whole
    lowered = {t.name for name in CASES for t in compiled(name)[0].commands.thunks if any(True for _ in short_forms(t))}
    assert {t for t, _, _ in done} == lowered


def test_bytes_alone_tell_nearly_all() -> None:
    """Without a graph: what a kernel reads or writes beyond its declaration shows in the bytes."""
    seen: set[tuple[str, str]] = set()
    caught: set[tuple[str, str]] = set()
    for name in CASES:
        c, feed = compiled(name)
        executor, whole = c.executor, replace(c.executor.commands, provenance=None)
        for i, t in enumerate(whole.thunks):
            for field, _, _, short in short_forms(t):
                seen.add((t.name, field))
                if (t.name, field) in caught:
                    continue
                executor.commands = replace(whole, thunks=(*whole.thunks[:i], short, *whole.thunks[i + 1 :]))
                found = breach(executor, feed)
                if found is not None:
                    assert found.thunk == i, (name, str(found))
                    caught.add((t.name, field))
    assert seen - caught == set(BYTES_ALONE_CANNOT_TELL)


def pass_made() -> Iterator[tuple[Graph, Compilation]]:
    """Lists in which each kind of thunk that passes make stands at least once."""
    gated = Graph("gated")
    x, z = gated.input("x", (3, 7)), gated.input("z", (3, 7))
    gain = gated.param("g", (7,), data=np.ones(7, np.float32))
    gated.set_outputs(gated.mul(gated.rms_norm(x, gain), gated.silu(z)))
    region = Graph("region")
    xs = [region.input(f"x{k}", (13,)) for k in range(2)]
    region.set_outputs(region.elementwise_region(*xs, steps=tuple(CHAINS["binary-act"][0])))
    graphs = [gated, region, residual_norm(), residual_norm(bias=True), depthwise(3, 7, 2, True), rope_of_slices(3),
              packed_mlp(QuantScheme.Q4_K), packed_mlp(QuantScheme.Q4_K, combined=True)]
    for g in graphs:
        yield g, compile_graph(g, CompileOptions(fusion=no_fusion(), passes=PassOptions(),
                                                 plan=PlanOptions(separate_weights=True, arena_no_reuse=True)))


@pytest.mark.parametrize("known", [True, False])
def test_shortened_spans_of_what_passes_make_are_caught(known: bool) -> None:
    done = set()
    for g, c in pass_made():
        executor, whole = c.executor, c.executor.commands
        for i, t in enumerate(whole.thunks):
            if t.where == "none" or t in whole.provenance.thunks:
                continue
            for _, _, _, short in short_forms(t):
                executor.commands = replace(whole, thunks=(*whole.thunks[:i], short, *whole.thunks[i + 1 :]),
                                            provenance=whole.provenance if known else None)
                found = breach(executor, feed_of(g))
                assert found is not None
                assert found.thunk == i, str(found)
                assert ("command pass" in found.blame) == known
            done.add(t.label)
    assert done >= {"fused_rms_norm_mul_silu", "fused_residual_rms_norm", "fused_depthwise_conv1d_bsc", "rope",
                    "fused_mlp_gate_up_swiglu", "fused_mlp_down_residual", "fused_binary_activation"}, done


def test_a_halved_rope_source_is_caught_at_its_kernel() -> None:
    """The kernel walks by ``src_row_stride``, past the view it declares."""
    c, feed = compiled("rope-4-False")
    commands = replace(c.commands, provenance=None)
    (i, t), = ((i, t) for i, t in enumerate(commands.thunks) if t.name == "Rope")
    src = t.src  # type: ignore[attr-defined]
    half = replace(src, nbytes=src.nbytes // 2, shape=(src.numel // 2,))
    c.executor.commands = replace(commands, thunks=(*commands.thunks[:i], replace(t, src=half), *commands.thunks[i + 1 :]))  # type: ignore[type-var]
    with pytest.raises(SanitizeError, match="bytes that the thunk does not declare") as caught:
        c.executor.run(feed, sanitize=True)
    e = caught.value
    assert (e.thunk, e.label, e.field) == (i, "rope", "dst")
    dst = t.dst  # type: ignore[attr-defined]
    assert e.offset == dst.offset + dst.nbytes // 2


@pytest.mark.parametrize("known", [True, False])
def test_a_read_that_is_missing_is_caught(known: bool) -> None:
    """The kernel gets both operands, the list declares one: the graph tells at once, the bytes after the run."""
    g = Graph("g")
    x, w = g.input("x", (3, 5)), g.input("w", (3, 5))
    g.set_outputs(g.add(g.relu(x), g.neg(w)))
    c = as_written(g)
    t = c.commands.thunks[2]
    one = replace(t, rhs=t.lhs)  # type: ignore[type-var, attr-defined]
    c.executor.commands = replace(c.commands, thunks=(*c.commands.thunks[:2], one),
                                  provenance=c.commands.provenance if known else None)
    want = "is where its input %3 Activation lies, and it never reads that" if known else "bytes that the thunk does not declare"
    with pytest.raises(SanitizeError, match=want) as caught:
        c.executor.run({"x": np.ones((3, 5), np.float32), "w": np.ones((3, 5), np.float32)}, sanitize=True)
    assert (caught.value.thunk, caught.value.field) == (2, "" if known else "dst")


# --- elements of any size -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint8", "bool", "int32", "int64"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_one_unwritten_element_of_any_type_is_found(kind: str, count: int) -> None:
    storage = DType.of(np.dtype(kind))
    size = storage.numpy.itemsize
    a, b = (Operand("arena", at, count * size, storage, None, (count,)) for at in (0, 128))
    for missing in {0, count // 2, count - 1}:
        def run(src: Array, dst: Array, scratch: object, missing: int = missing) -> None:
            dst[:missing], dst[missing + 1 :] = src[:missing], src[missing + 1 :]

        slots = tuple(SlotLife(k, f"t{k}", "Input", "arena", o.offset, o.nbytes, 0, 0, 3) for k, o in enumerate((a, b)))
        commands = CommandList("hand", (Mutant(Copy(a, b, count), run),), (1,), 256, 0, 0, (Binding("x", a, storage),),
                               (Binding("y", b, storage),), (), (), slots, ("%0", "%1 Copy"))
        for value in (0, 0xF5, 0xFA, 0xFF, 0x7F):  # legitimate bytes may equal a poison's
            x = np.frombuffer(bytes([value % 2 if kind == "bool" else value]) * (count * size), storage.numpy)
            with pytest.raises(SanitizeError, match="left unwritten") as caught:
                HostExecutor(commands, {}).run({"x": x}, sanitize=True)
            assert caught.value.offset == b.offset + missing * size
            clean = replace(commands, thunks=(Copy(a, b, count),))
            got = HostExecutor(clean, {}).run({"x": x}, sanitize=True)["y"]
            assert got.tobytes() == x.tobytes()


@pytest.mark.parametrize("word", [POISON, FILL])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "bf2"])
def test_the_poisons_are_what_they_say(word: int, kind: str) -> None:
    b = np.zeros(64, np.uint8)
    poison(b, 0, 64, word)
    for at in range(0, 16, 2):
        view = b[at : at + 32].view(ml_dtypes.bfloat16 if kind == "bf2" else kind)
        assert np.isnan(view.astype(np.float64)).all()
        assert poisoned(view, at, word).all()
    assert all((b.view(k).astype(np.int64) > 30_000).all() for k in ("i2", "i4", "i8")) or word == FILL
    assert (POISON ^ FILL) & 0xFF and (POISON ^ FILL) >> 8


def test_span_map_against_an_array() -> None:
    rng = np.random.default_rng(0)
    spans, want = SpanMap(), np.full(60, -1)
    for step in range(400):
        a, b = sorted(rng.integers(0, 61, 2).tolist())
        if step % 4:
            spans.put(a, b, step)
            want[a:b] = step
        else:
            spans.clear(a, b)
            want[a:b] = -1
        a, b = sorted(rng.integers(0, 61, 2).tolist())
        got = np.concatenate([np.full(e - s, -1 if v is None else v) for s, e, v in spans.pieces(a, b)] or [np.zeros(0)])
        np.testing.assert_array_equal(got, want[a:b])
        holes = np.flatnonzero(want[a:b] < 0)
        assert spans.undefined(a, b) == (a + int(holes[0]) if len(holes) else None)


