"""Spec §3: each live-range rule fires, doesn't fire, and with exact ranges; §4: 3-D conv folds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from planner_core.ir import DType, Graph, QuantScheme, Shape
from planner_core.ir.ops import Custom
from planner_core.memory import (
    RULES,
    PlanOptions,
    conv3d_epilogue_folds,
    is_static_weight_tensor,
    live_ranges,
    plan_graph,
)
from tests.planner_core.memory.checker import checked

F32, I64, I32 = DType.F32, DType.I64, DType.I32
BARE = PlanOptions(pin_output_ancestors=False, dequant_host_fallback=False)
Case = tuple[Graph, dict[str, tuple[int, int]]]


def ranges_of(g: Graph, opts: PlanOptions) -> list[tuple[int, int]]:
    r = live_ranges(g, opts)
    checked(plan_graph(g, opts), g)
    return list(zip(r.birth.tolist(), r.death.tolist(), strict=True))


def fired(g: Graph, opts: PlanOptions, rule: str) -> dict[int, tuple[int, int, int]]:
    """Node -> (old, new, cause) of the rule's extensions."""
    plan = plan_graph(g, opts)
    return {n: (e.old, e.new, e.cause) for n in range(len(g)) for e in plan.extensions_of(n) if e.rule == rule}


def chain() -> Graph:
    """0 x, 1 relu, 2 neg, 3 reshape (view of 2), 4 exp, 5 abs (output)."""
    g = Graph()
    x = g.input("x", (4, 4))
    a = g.relu(x)
    b = g.neg(a)
    c = g.reshape(b, dims=(16,))
    return g.set_outputs(g.abs(g.exp(c)))


def test_reads_alone() -> None:
    """§3: born at its step, dies at its last reader; a read of a view moves its root; last_step = len."""
    assert ranges_of(chain(), BARE) == [(0, 6), (1, 2), (2, 4), (3, 4), (4, 5), (5, 6)]


def test_an_unread_node_lives_at_its_own_step() -> None:
    g = Graph()
    x = g.input("x", (4,))
    g.neg(x)
    y = g.relu(x)
    g.reshape(y, dims=(2, 2))
    z = g.exp(x)
    g.set_outputs(z)
    assert ranges_of(g, BARE) == [(0, 5), (1, 1), (2, 3), (3, 3), (4, 5)]


def test_a_result_is_born_with_its_producer() -> None:
    """§3 with several outputs: a Result's bytes are written at its producer's step."""
    g = Graph()
    x = g.input("x", (4,))
    c = g.add(Custom("split", Shape.of((2,)), num_outputs=2), x)
    n = g.neg(c)
    r = g.result(c, index=1, shape=Shape.of((2,)))
    g.set_outputs(g.mul(n, r))
    ranges = ranges_of(g, BARE)
    assert ranges[r] == (c, 4)


def test_rules_are_the_specs_in_order() -> None:
    """§3: the table, in its order; each documented."""
    assert [r.name for r in RULES] == [
        "outputs", "output_ancestors", "boundaries", "packed_qkv", "host_custom_inputs", "host_structure",
        "dequant_host_fallback", "onnx_hidden", "onnx_duration", "static_weight_pack", "conv3d_epilogue",
        "pass_operands"]  # the last is ours
    assert all(r.doc.endswith(".") for r in RULES)
    assert {r.option for r in RULES} == {"", "pin_output_ancestors", "pin_host_structure", "dequant_host_fallback",
                                         "host_custom_inputs", "onnx_hidden", "onnx_duration",
                                         "fold_conv3d_epilogue", "keep_pass_operands"}
    assert all(not r.option or hasattr(PlanOptions(), r.option) for r in RULES)


def test_outputs() -> None:
    """§3 outputs: outputs and their roots live to last_step."""
    g = Graph()
    a = g.relu(g.input("x", (4, 4)))
    v = g.reshape(a, dims=(16,))
    g.neg(a)
    g.set_outputs(v)
    assert ranges_of(g, BARE) == [(0, 4), (1, 4), (2, 4), (3, 3)]
    assert fired(g, BARE, "outputs") == {a: (3, 4, v), v: (2, 4, v)}


def test_output_ancestors() -> None:
    """§3 output_ancestors: every transitive producer, through views; only with the option."""
    g = chain()
    dead = g.neg(1)
    g.set_outputs(5)
    on = ranges_of(g, BARE.replace(pin_output_ancestors=True))
    assert on == [(0, 7), (1, 7), (2, 7), (3, 7), (4, 7), (5, 7), (6, 6)]
    assert ranges_of(g, BARE)[1] == (1, dead)
    assert fired(g, BARE, "output_ancestors") == {}
    assert set(fired(g, BARE.replace(pin_output_ancestors=True), "output_ancestors")) == {0, 1, 2, 3, 4}


def test_boundaries() -> None:
    """§3 boundaries: Input, Param, Constant live [0, last_step], wherever they stand."""
    g = Graph()
    x = g.input("x", (4,))
    a = g.relu(x)
    p, c = g.param("p", (4,)), g.constant([1.0, 2.0, 3.0, 4.0])
    g.set_outputs(g.add(g.mul(a, p), c))
    ranges = ranges_of(g, BARE)
    assert ranges[x] == ranges[p] == ranges[c] == (0, 6)
    assert ranges[a] == (1, 4)
    assert fired(g, BARE, "boundaries")[p][2] == p


def qkv_graph(cut: str = "narrow", break_v: bool = False, packed: tuple[int, ...] = (1, 4, 3, 2, 8)) -> tuple[Graph, int, int]:
    g = Graph()
    parent = g.relu(g.input("x", packed))
    other = g.relu(g.input("y", packed))
    parts = []
    for i in range(3):
        of = other if break_v and i == 2 else parent
        if cut == "narrow":
            s = g.narrow(of, axis=2, start=i, len=1)
        else:
            s = g.slice(of, axes=(2,), starts=(i,), stops=(i + 1,), steps=(1,))
        parts.append(g.reshape(s, dims=(1, 4, 16)))
    att = g.attention(*parts, num_heads=2, head_dim=8)
    g.set_outputs(g.neg(att))
    return g, parent, att


def test_packed_qkv() -> None:
    """§3 packed_qkv: q, k, v slices of one [B,S,3,H,D] parent keep it to the attention's step."""
    for cut in ("narrow", "slice"):
        g, parent, att = qkv_graph(cut)
        assert ranges_of(g, BARE)[parent] == (parent, att)
        last_cut = max(r for r, _ in g.uses.of(parent))
        assert fired(g, BARE, "packed_qkv") == {parent: (last_cut, att, att)}


def test_packed_qkv_extends_the_root() -> None:
    """§3 packed_qkv: "the parent (root)"."""
    g = Graph()
    h = g.relu(g.input("x", (1, 4, 48)))
    parent = g.reshape(h, dims=(1, 4, 3, 2, 8))
    parts = [g.reshape(g.narrow(parent, axis=2, start=i, len=1), dims=(1, 4, 16)) for i in range(3)]
    att = g.attention(*parts, num_heads=2, head_dim=8)
    g.set_outputs(att)
    ranges = ranges_of(g, BARE)
    assert ranges[h] == (h, att) and ranges[parent] == (parent, att)


def test_packed_qkv_does_not_fire() -> None:
    """§3 packed_qkv: two parents, or whole tensors, are no packed qkv."""
    g, parent, _ = qkv_graph(break_v=True)
    assert fired(g, BARE, "packed_qkv") == {}
    g = Graph()
    q = g.relu(g.input("x", (1, 4, 16)))
    g.set_outputs(g.attention(q, q, q, num_heads=2, head_dim=8))
    assert fired(g, BARE, "packed_qkv") == {}
    assert parent


def custom(name: str, wanted: int) -> Graph:
    """0 x, 1 relu, 2 neg(1), 3 y, 4 exp(y), 5 Custom(2, 4), 6 abs."""
    g = Graph()
    b = g.neg(g.relu(g.input("x", (4,))))
    c = g.exp(g.input("y", (4,)))
    u = g.add(Custom(name, Shape.of((4,)), num_inputs=wanted), b, c)
    return g.set_outputs(g.abs(u))


def test_host_custom_inputs() -> None:
    """§3 host_custom_inputs: onnx.* only; the first num_inputs inputs and all their ancestors to the end."""
    g = custom("onnx.Foo", 2)
    ranges = ranges_of(g, BARE)
    assert ranges[1] == (1, 7) and ranges[2] == (2, 7) and ranges[4] == (4, 7)
    assert fired(g, BARE, "host_custom_inputs") == {1: (2, 7, 5), 2: (5, 7, 5), 4: (5, 7, 5)}
    assert set(fired(custom("onnx.Foo", -1), BARE, "host_custom_inputs")) == {1, 2, 4}
    assert fired(g, BARE.replace(host_custom_inputs=False), "host_custom_inputs") == {}
    for name in ("mine", "onnxish", "my.onnx.Foo"):
        assert fired(custom(name, 2), BARE, "host_custom_inputs") == {}


def test_host_custom_inputs_counts_declared_inputs() -> None:
    """§3 host_custom_inputs: *its first num_inputs inputs*."""
    g = custom("onnx.Foo", 2)
    object.__setattr__(g[5].op, "num_inputs", 1)
    assert set(fired(g, BARE, "host_custom_inputs")) == {1, 2}


@pytest.mark.parametrize("make", [
    lambda g, x: g.expand(x, dims=(2, 4, 4)),
    lambda g, x: g.concat(x, x, axis=0),
    lambda g, x: g.transpose(x, perm=(1, 0)),
    lambda g, x: g.narrow(x, axis=1, start=0, len=2),
], ids=["Expand", "Concat", "Transpose", "Narrow"])
def test_host_structure(make: Callable[[Graph, int], int]) -> None:
    """§3 host_structure: the node, its inputs and all ancestors, with the option only."""
    g = Graph()
    a = g.neg(g.relu(g.input("x", (4, 4))))
    s = make(g, a)
    g.set_outputs(g.exp(g.abs(s)))
    on = BARE.replace(pin_host_structure=True)
    ranges = ranges_of(g, on)
    assert [ranges[i] for i in (1, 2, s)] == [(1, 6), (2, 6), (s, 6)]
    assert ranges[s + 1] == (s + 1, s + 2)
    assert fired(g, BARE, "host_structure") == {}


@pytest.mark.parametrize("grouped", [False, True])
def test_dequant_host_fallback(grouped: bool) -> None:
    """§3 dequant_host_fallback: operand 0 with all ancestors, for both dequant matmuls; not the weights' side."""
    g = Graph()
    a = g.neg(g.relu(g.input("x", (4, 32))))
    row = QuantScheme.Q8_0.row_bytes(32)
    if grouped:
        idx = g.cast(g.relu(g.input("i", (4,))), to=I32)
        d = g.dequant_grouped_mat_mul(a, g.param("w", (2 * 6 * row,), DType.U8), idx, n=6, experts=2, scheme=QuantScheme.Q8_0)
    else:
        d = g.dequant_mat_mul(a, g.param("w", (6 * row,), DType.U8), n=6, scheme=QuantScheme.Q8_0)
    g.set_outputs(g.exp(d))
    end = len(g)
    on = BARE.replace(dequant_host_fallback=True)
    assert ranges_of(g, on)[1:3] == [(1, end), (2, end)]
    assert ranges_of(g, BARE)[1:3] == [(1, 2), (2, d)]
    assert set(fired(g, on, "dequant_host_fallback")) == {1, 2}


def hidden(flag: str) -> Graph:
    g = Graph()
    x = g.relu(g.input("x", (1, 4, 2, 4)))                                  # 1
    gamma, beta = g.relu(g.input("ga", (4,))), g.relu(g.input("be", (4,)))  # 3, 5
    n = g.layer_norm(x, gamma, beta)                                        # 6
    m = g.layer_norm2d(g.exp(n), gamma, beta)                               # 7, 8
    u, v = g.neg(m), g.abs(m)                                               # 9, 10
    s = g.add(u, v)                                                         # 11
    t = g.mul(g.neg(s), g.abs(s))                                           # 12, 13, 14
    if flag:
        g.add(Custom(flag, Shape.of((4,))), g.input("q", (4,)))
    return g.set_outputs(g.exp(t))


@pytest.mark.parametrize(("flag", "on"), [("onnx.QMatMul", True), ("onnx.ActCopy", True), ("onnx.Other", False), ("", False),
                                          ("QMatMul", False)])
def test_onnx_hidden(flag: str, on: bool) -> None:
    """§3 onnx_hidden: norms' input 0 and adds' inputs with ancestors, and their outputs, live to the end."""
    g = hidden(flag)
    ranges = ranges_of(g, BARE)
    kept = {i for i in range(len(g)) if ranges[i][1] == len(g)}
    everything = {1, 6, 7, 8, 9, 10, 11}
    assert everything <= kept if on else not everything & kept
    assert not kept & {12, 13, 14}
    # gamma and beta are not input 0, but exp(n) has them among its ancestors
    assert ({3, 5} <= kept) == on


def test_onnx_duration() -> None:
    """§3 onnx_duration: an int64 output pins its ancestors and every int64 piece, and forbids any reuse."""
    g = Graph()
    x = g.input("x", (4, 4))
    a = g.exp(g.relu(x))                               # 1, 2
    out = g.argmax(a, axis=-1)                         # 3, int64 output
    f = g.neg(g.abs(x))                                # 4, 5: float, nothing to do with it
    i = g.cast(g.reshape(f, dims=(2, 2, 4)), to=I64)   # 6, 7: a cast to int64
    e = g.expand(i, dims=(2, 2, 2, 4))                 # 8: int64 expand of rank 4
    w = g.where(g.eq(e, e), e, e)                      # 9, 10
    b = g.mul(w, w)                                    # 11
    u = g.transpose(b, perm=(0, 1, 3, 2))              # 12: another int64 of rank 4: not listed
    r = g.concat(g.reshape(b, dims=(16, 2)), g.reshape(b, dims=(16, 2)), axis=0)  # 13-15: int64 of rank 2
    c = g.add(Custom("onnx.ConcatFromSequence", Shape.of((4,))), g.sin(x))        # 16, 17
    k = g.add(Custom("onnx.KittenConcatFromSequence", Shape.of((4,))), g.cos(x))  # 18, 19
    z = g.floor(g.ceil(x))                             # 20, 21: the other output
    lone = g.exp(g.tanh(x))                            # 22, 23: float, no output's ancestor
    g.set_outputs(out, z)
    end = len(g)
    ranges = ranges_of(g, BARE)
    kept = {n for n in range(end) if ranges[n][1] == end}
    assert kept == {0, 1, 2, out, 4, f, 6, i, e, 9, w, b, 13, 14, r, c - 1, c, k - 1, k, z - 1, z}
    assert ranges[u] == (u, u) and ranges[lone - 1] == (lone - 1, lone)
    plan = plan_graph(g, BARE)
    assert plan.no_reuse and not BARE.arena_no_reuse
    slots = sorted((int(plan.offset[n]), int(plan.offset[n] + plan.size[n])) for n in plan.buffers())
    assert all(p[1] <= q[0] for p, q in itertools.pairwise(slots))
    off = BARE.replace(onnx_duration=False)
    assert fired(g, off, "onnx_duration") == {}
    assert not checked(plan_graph(g, off), g).no_reuse
    g.set_outputs(z)
    assert fired(g, BARE, "onnx_duration") == {}
    assert not plan_graph(g, BARE).no_reuse


def test_static_weight_pack() -> None:
    """§3 static_weight_pack: computed from weights alone: lives [0, last_step]."""
    g = Graph()
    x = g.input("x", (4, 4))
    w = g.param("w", (4, 4))
    t = g.transpose(w, perm=(1, 0))
    s = g.mul(t, g.constant(2.0))
    y = g.mul(x, s)
    g.set_outputs(g.neg(y))
    ranges = ranges_of(g, BARE)
    assert ranges[t] == ranges[s] == (0, 7)
    assert ranges[y] == (y, 6)
    plan = plan_graph(g, BARE)
    assert {(e.rule, e.birth, e.old, e.new) for e in plan.extensions_of(t)} == {
        ("static_weight_pack", True, t, 0), ("static_weight_pack", False, s, 7)}


@pytest.mark.parametrize(("make", "static"), [
    (lambda g, p, x: p, True),
    (lambda g, p, x: g.constant(1.0), True),
    (lambda g, p, x: x, False),
    (lambda g, p, x: g.cast(p, to=DType.F16), True),
    (lambda g, p, x: g.cast(x, to=DType.F16), False),
    (lambda g, p, x: g.reshape(p, dims=(16,)), True),
    (lambda g, p, x: g.transpose(p, perm=(1, 0)), True),
    (lambda g, p, x: g.narrow(p, axis=0, start=0, len=1), True),
    (lambda g, p, x: g.expand(p, dims=(2, 4, 4)), True),
    (lambda g, p, x: g.concat(p, p, axis=0), True),
    (lambda g, p, x: g.concat(p, x, axis=0), False),
    (lambda g, p, x: g.relu(p), True),
    (lambda g, p, x: g.relu(g.relu(p)), True),
    (lambda g, p, x: g.relu(x), False),
    (lambda g, p, x: g.add(p, p), True),
    (lambda g, p, x: g.add(p, x), False),
    (lambda g, p, x: g.where(p, p, p), True),
    (lambda g, p, x: g.where(p, p, x), False),
    (lambda g, p, x: g.fma(p, p, p), True),
    (lambda g, p, x: g.fma(p, x, p), False),
    (lambda g, p, x: g.mm(p, p), False),
    (lambda g, p, x: g.softmax(p), False),
    (lambda g, p, x: g.lt(p, p), False),
    (lambda g, p, x: g.add(Custom("mine", Shape.of((4,))), p), False),
])
def test_is_static_weight_tensor(make: Callable[[Graph, int, int], int], static: bool) -> None:
    """§3 "static": the listed ops of static inputs; anything else, and Input, is not."""
    g = Graph()
    p, x = g.param("p", (4, 4)), g.input("x", (4, 4))
    n = make(g, p, x)
    assert is_static_weight_tensor(g, n) is static


# --- what a command pass may read later --------------------------------------------------------------

KEPT = BARE.replace(keep_pass_operands=True)


def one_row_mlp(rows: int = 1, gate: str = "silu", sliced: bool = False) -> tuple[Graph, dict[str, int]]:
    g = Graph()
    scheme = QuantScheme.Q4_K

    def packed(x: int, name: str, k: int, n: int) -> int:
        return g.dequant_mat_mul(x, g.param(name, (n * scheme.row_bytes(k),), DType.U8), n=n, scheme=scheme)

    x = g.relu(g.input("x", (rows, 256)))
    if sliced:
        both = packed(x, "both", 256, 512)
        a, b = (g.narrow(both, axis=1, start=s, len=256) for s in (0, 256))
    else:
        a, b = packed(x, "gate", 256, 256), packed(x, "up", 256, 256)
    product = g.mul(g.activation(a, kind=gate), b)
    down = packed(product, "down", 256, 256)
    out = g.add(g.input("res", (rows, 256)), down)
    g.set_outputs(g.neg(out))
    return g, {"x": x, "product": product, "down": down, "out": out}


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("gate", ["silu", "gelu_approx"])
def test_a_one_row_mlps_operands_wait_for_the_fused_commands(gate: str, sliced: bool) -> None:
    """The gate and up matmuls move to the product, the down matmul to the residual add."""
    g, at = one_row_mlp(gate=gate, sliced=sliced)
    on, off = ranges_of(g, KEPT), ranges_of(g, BARE)
    assert (on[at["x"]][1], on[at["product"]][1]) == (at["product"], at["out"])
    assert off[at["x"]][1] < at["product"]
    assert off[at["product"]][1] == at["down"]
    assert set(fired(g, KEPT, "pass_operands")) == {at["x"], at["product"]}
    assert fired(g, BARE, "pass_operands") == {}


@pytest.mark.parametrize("how", [{"rows": 2}, {"gate": "relu"}])
def test_other_mlps_keep_nothing_for_the_product(how: dict[str, object]) -> None:
    g, at = one_row_mlp(**how)  # type: ignore[arg-type]
    assert at["x"] not in fired(g, KEPT, "pass_operands")


def test_a_sliced_rotary_embedding_keeps_its_wide_row() -> None:
    g = Graph()
    wide = g.relu(g.input("x", (4, 24)))
    q = g.narrow(wide, axis=1, start=8, len=8)
    k = g.neg(q)
    r = g.rope(q, g.param("cos", (4, 4)), g.param("sin", (4, 4)), head_dim=8, n_rot=8)
    g.set_outputs(g.add(r, k))
    assert fired(g, KEPT, "pass_operands") == {wide: (q, r, r)}


# --- §4 -----------------------------------------------------------------------------------------------

FOLD = BARE.replace(fold_conv3d_epilogue=True)
ONE = {"strides": (1, 1, 1), "pads": (0,) * 6, "dilations": (1, 1, 1)}


def leaky(*, fused: bool = False, activation: str = "", residual: bool = False, swap_mul: bool = False,
          swap_max: bool = False, constant: object = 0.1, third_use: bool = False, product_used: bool = False,
          conv_output: bool = False, product_output: bool = False, rank: int = 5, kind: str = "max") -> tuple[Graph, int, int, int]:
    """conv, something in between, mul, max."""
    g = Graph()
    space = rank - 2
    x = g.input("x", (1, 2, *[4] * space))
    w = g.param("w", (2, 2, *[1] * space))
    one = {"strides": (1,) * space, "pads": (0,) * 2 * space, "dilations": (1,) * space}
    if fused:
        more = [g.input("res", (1, 2, *[4] * space))] if residual else []
        conv = g.fused_conv_bias_act(x, w, g.param("b", (2,)), *more, activation=activation, **one)
    elif rank == 5:
        conv = g.conv3d(x, w, **one)
    else:
        conv = g.conv(x, w, **one)
    g.neg(x)
    c = g.input("c", ()) if constant is None else g.constant(constant)
    product = g.mul(c, conv) if swap_mul else g.mul(conv, c)
    top = getattr(g, kind)(product, conv) if swap_max else getattr(g, kind)(conv, product)
    outs = [top]
    if third_use:
        outs.append(g.neg(conv))
    if product_used:
        outs.append(g.neg(product))
    outs += [conv] * conv_output + [product] * product_output
    return g.set_outputs(*outs), conv, product, top


@pytest.mark.parametrize("how", [{}, {"swap_mul": True}, {"swap_max": True}, {"swap_mul": True, "swap_max": True},
                                 {"fused": True}])
def test_leaky_relu_is_absorbed(how: dict[str, object]) -> None:
    """§4 absorbed: either operand order on both ops; max and product are born at the conv's step."""
    g, conv, product, top = leaky(**how)  # type: ignore[arg-type]
    (fold,) = conv3d_epilogue_folds(g)
    assert (fold.conv, fold.leaky, fold.sources) == (conv, (top, product), ())
    on, off = ranges_of(g, FOLD), ranges_of(g, BARE)
    assert (on[product], on[top]) == ((conv, top), (conv, len(g)))
    assert (off[product], off[top]) == ((product, top), (top, len(g)))
    assert fired(g, FOLD, "conv3d_epilogue") == {
        product: (product, conv, conv), top: (top, conv, conv)}
    assert fired(g, BARE, "conv3d_epilogue") == {}


@pytest.mark.parametrize("broken", [
    {"fused": True, "activation": "relu"}, {"fused": True, "residual": True}, {"rank": 4}, {"fused": True, "rank": 4},
    {"constant": [0.1, 0.2, 0.3, 0.4]}, {"constant": None}, {"third_use": True}, {"product_used": True},
    {"conv_output": True}, {"product_output": True}, {"kind": "min"},
])
def test_leaky_relu_conditions(broken: dict[str, object]) -> None:
    """§4 absorbed: each condition broken once."""
    g, *_ = leaky(**broken)  # type: ignore[arg-type]
    assert conv3d_epilogue_folds(g) == []


def upsampled(*, axis: int = 1, three: bool = False, used_twice: bool = False, output: bool = False,
              upsample: bool = True, operand: int = 0) -> tuple[Graph, dict[str, int]]:
    g = Graph()
    t = g.relu(g.input("t", (1, 2, 2, 2, 2)))
    if upsample:
        r1 = g.reshape(t, dims=(1, 2, 2, 2, 2, 1))
        e = g.expand(r1, dims=(1, 2, 2, 2, 2, 2))
        a = g.reshape(e, dims=(1, 2, 2, 2, 4))
    else:
        e = a = g.concat(t, t, axis=4)
    b = g.neg(g.input("u", (1, 2, 2, 2, 4)))
    both = g.concat(a, b, *[b] * three, axis=axis)
    g.exp(g.input("z", (4,)))
    x = g.input("x", (1, g[both].shape.sizes[1], *g[both].shape.sizes[2:]))
    w = g.param("w", (2, g[both].shape.sizes[1], 1, 1, 1))
    conv = g.conv3d(both if operand == 0 else x, w if operand == 0 else both, **ONE)
    outs = [g.neg(conv)]
    if used_twice:
        outs.append(g.neg(both))
    outs += [both] * output
    return g.set_outputs(*outs), {"t": t, "e": e, "a": a, "b": b, "concat": both, "conv": conv}


def test_conv_reads_through_a_concat_and_an_upsample() -> None:
    """§4 read through: both concat inputs, the upsample's source, and their roots live to the conv's step."""
    g, n = upsampled()
    (fold,) = conv3d_epilogue_folds(g)
    assert fold.leaky is None and set(fold.sources) == {n["a"], n["b"], n["t"]}
    on, off = ranges_of(g, FOLD), ranges_of(g, BARE)
    assert [on[n[k]][1] for k in ("t", "e", "a", "b")] == [n["conv"]] * 4  # e is a's root
    assert [off[n[k]][1] for k in ("t", "e", "a", "b")] == [n["e"], n["concat"], n["concat"], n["concat"]]
    plain, m = upsampled(upsample=False)
    (fold,) = conv3d_epilogue_folds(plain)
    assert fold.sources == (m["a"], m["b"])


@pytest.mark.parametrize("broken", [{"axis": 0}, {"three": True}, {"used_twice": True}, {"output": True}])
def test_read_through_conditions(broken: dict[str, object]) -> None:
    """§4 read through: each condition broken once."""
    g, _ = upsampled(**broken)  # type: ignore[arg-type]
    assert conv3d_epilogue_folds(g) == []


def test_only_operand_0_is_read_through() -> None:
    """§4 read through: the conv's operand 0."""
    g = Graph()
    w = g.concat(g.param("w0", (2, 1, 1, 1, 1)), g.param("w1", (2, 1, 1, 1, 1)), axis=1)
    g.set_outputs(g.conv3d(g.input("x", (1, 2, 4, 4, 4)), w, **ONE))
    assert conv3d_epilogue_folds(g) == []


def test_fold_counts_are_logged_on_demand(caplog: pytest.LogCaptureFixture) -> None:
    """§6: ``RLX_FOLD_LIVENESS_DEBUG`` tells the counts of §4, and the plan shows that it was read."""
    caplog.set_level("INFO", "rlx_viz")
    g, *_ = leaky()
    opts = PlanOptions.inference({"RLX_FOLD_LIVENESS_DEBUG": "1"}, fold_conv3d_epilogue=True)
    plan = plan_graph(g, opts)
    assert caplog.messages == ["fold_conv3d_epilogue: 1 leaky ReLUs absorbed, 0 concats read through"]
    assert plan.options.env == (("RLX_FOLD_LIVENESS_DEBUG", "1"),)
    plan_graph(g, FOLD)
    assert len(caplog.messages) == 1
