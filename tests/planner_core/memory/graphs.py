"""Random graphs and options for the planner's tests."""

from __future__ import annotations

from hypothesis import strategies as st

from planner_core.ir import DType, Graph, QuantScheme, Shape
from planner_core.ir.ops import Custom
from planner_core.ir.ops.region import region_steps
from planner_core.memory import ArenaWidthPolicy, PlanOptions

EXTENTS = st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 16])
DTYPES = st.sampled_from([DType.F32] * 6 + [DType.F16, DType.BF16, DType.I64, DType.I32, DType.I4, DType.BOOL, DType.F64,
                                           DType.U8, DType.C64])


@st.composite
def graphs(draw: st.DrawFn, max_steps: int = 25) -> Graph:
    """Graphs over most op builders: views of views, folded transposes, caches, packed weights, bodies, results."""
    g = Graph("random")
    pool = [g.input("x0", draw(st.lists(EXTENTS, min_size=1, max_size=3)), draw(DTYPES))]
    for k in range(draw(st.integers(0, max_steps))):
        pool += _step(draw, g, pool, k)
    outputs = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    return g.set_outputs(*outputs)


def _step(draw: st.DrawFn, g: Graph, pool: list[int], k: int) -> list[int]:
    x = draw(st.sampled_from(pool))
    s = g[x].shape
    dtype, sizes = s.dtype, s.sizes
    kind = draw(st.sampled_from([
        "input", "param", "constant", "act", "act", "act", "binary", "binary", "mm", "mm_t", "bank", "reshape", "reshape",
        "cast", "narrow", "narrow", "transpose", "concat", "expand", "kv", "dequant", "custom", "gather", "where",
        "if", "result", "attention", "compare", "argmax", "norm", "conv3d", "zero", "region"]))
    if kind == "input":
        return [g.input(f"x{k + 1}", draw(st.lists(EXTENTS, min_size=0, max_size=3)), draw(DTYPES))]
    if kind == "param":
        return [g.param(f"p{k}", draw(st.lists(EXTENTS, min_size=0, max_size=3)), draw(DTYPES))]
    if kind == "constant":
        return [g.constant(draw(st.sampled_from([0.5, [1.0, 2.0], 3])))]
    if kind == "zero":
        return [g.input(f"z{k}", (2, 0, 3))]
    if kind == "act":
        return [g.relu(x)]
    if kind == "binary":
        y = draw(st.sampled_from([p for p in pool if g[p].shape == s]))
        return [getattr(g, draw(st.sampled_from(["add", "mul", "max"])))(x, y)]
    if kind == "region":
        if dtype not in (DType.F32, DType.F16, DType.BF16):
            return [g.cast(x, to=DType.F32)]
        y = draw(st.sampled_from([p for p in pool if g[p].shape == s]))
        text = draw(st.sampled_from(["s0 = add(x0, x1); s1 = relu(s0)", "s0 = mul(x0, x1); s1 = sub(s0, x0)", "s0 = pow(x0, x1)"]))
        return [g.elementwise_region(x, y, steps=region_steps(text))]
    if kind == "compare":
        return [g.lt(x, x)]
    if kind == "where":
        return [g.where(g.eq(x, x), x, x)]
    if kind in ("mm", "mm_t", "bank", "dequant") and dtype is not DType.F32:
        return [g.cast(x, to=DType.F32)]
    if kind == "mm" and s.rank >= 1:
        return [g.mm(x, g.param(f"w{k}", (sizes[-1], draw(EXTENTS))))]
    if kind == "mm_t" and s.rank == 2:
        t = g.transpose(g.relu(g.param(f"w{k}", (draw(EXTENTS), sizes[-1]))), perm=(1, 0))
        return [t, g.mm(x, t)] if draw(st.booleans()) else [g.mm(x, t)]
    if kind == "bank" and s.rank == 2:
        w = g.relu(g.input(f"w{k}", (2, draw(EXTENTS), sizes[1])))
        t = g.transpose(w, perm=(0, 2, 1))
        out = [g.grouped_mat_mul(x, t, g.input(f"i{k}", (sizes[0],), DType.I32))]
        return out if draw(st.booleans()) else [t, *out]
    if kind == "dequant" and s.rank >= 1 and sizes[-1]:
        rows = draw(EXTENTS)
        w = g.param(f"w{k}", (rows * QuantScheme.Q8_0.row_bytes(sizes[-1]),), DType.U8)
        return [g.dequant_mat_mul(x, w, n=rows, scheme=QuantScheme.Q8_0)]
    if kind == "cast":
        return [g.cast(x, to=draw(st.sampled_from([dtype, draw(DTYPES)])))]
    if kind == "reshape":
        flat = 1
        for d in sizes:
            flat *= d
        return [g.reshape(x, dims=draw(st.sampled_from([(flat,), (1, flat), (flat, 1), tuple(reversed(sizes)), sizes])))]
    if kind == "narrow" and s.rank:
        axis = draw(st.integers(0, s.rank - 1)) if draw(st.booleans()) else 0
        start = draw(st.integers(0, sizes[axis]))
        return [g.narrow(x, axis=axis, start=start, len=draw(st.integers(0, sizes[axis] - start)))]
    if kind == "transpose" and s.rank:
        return [g.transpose(x, perm=draw(st.permutations(range(s.rank))))]
    if kind == "concat" and s.rank:
        return [g.concat(x, x, axis=draw(st.integers(0, s.rank - 1)))]
    if kind == "expand":
        return [g.expand(x, dims=(draw(EXTENTS), *sizes))]
    if kind == "kv" and s.rank == 2 and sizes[0]:
        cache = g.input(f"c{k}", (sizes[0] + 3, sizes[1]), dtype) if draw(st.booleans()) else g.concat(x, x, axis=0)
        return [g.kv_append(cache, x, axis=0, start=0)]
    if kind == "custom":
        name = draw(st.sampled_from(["mine", "onnx.Foo", "onnx.QMatMul", "onnx.ConcatFromSequence"]))
        y = draw(st.sampled_from(pool))
        return [g.add(Custom(name, s, num_inputs=draw(st.sampled_from([-1, 2]))), x, y)]
    if kind == "result":
        c = g.add(Custom("split", s, num_outputs=2), x)
        return [c, g.result(c, index=1, shape=Shape.of((draw(EXTENTS), 4), dtype))]
    if kind == "gather" and s.rank:
        return [g.gather(x, g.constant([0, 0]), axis=0)] if sizes[0] else []
    if kind == "argmax" and s.rank and sizes[-1]:
        return [g.argmax(x, axis=-1)]
    if kind == "norm" and s.rank >= 1:
        return [g.layer_norm(x, g.param(f"g{k}", sizes[-1:], dtype), g.param(f"b{k}", sizes[-1:], dtype))]
    if kind == "if":
        bodies = []
        for steps in (1, draw(st.integers(1, 4))):
            b = Graph(f"body{steps}")
            y = b.input("y", sizes, dtype)
            for _ in range(steps):
                y = b.exp(b.concat(y, y, axis=0) if s.rank else y)
            bodies.append(b.set_outputs(b.relu(y)))
        cond = g.input(f"cond{k}", (), DType.BOOL)
        return [g.add(_if(s, *bodies), cond, x)]
    if kind == "attention":
        qkv = g.relu(g.input(f"qkv{k}", (1, 4, 3, 2, 8)))
        q, key, v = (g.reshape(g.narrow(qkv, axis=2, start=i, len=1), dims=(1, 4, 16)) for i in range(3))
        return [g.attention(q, key, v, num_heads=2, head_dim=8)]
    if kind == "conv3d":
        a = g.input(f"v{k}", (1, 2, 2, 2, 2))
        up = g.reshape(g.expand(g.reshape(g.relu(a), dims=(1, 2, 2, 2, 2, 1)), dims=(1, 2, 2, 2, 2, 2)), dims=(1, 2, 2, 2, 4))
        both = g.concat(up, g.relu(g.input(f"u{k}", (1, 1, 2, 2, 4))), axis=1)
        conv = g.conv3d(both, g.param(f"w{k}", (2, 3, 1, 1, 1)), strides=(1, 1, 1), pads=(0,) * 6, dilations=(1, 1, 1))
        return [g.max(conv, g.mul(conv, g.constant(0.1)))]
    return [g.neg(x)] if dtype is DType.F32 else []


def _if(shape: Shape, then_body: Graph, else_body: Graph):  # type: ignore[no-untyped-def]
    from planner_core.ir.ops import If

    return If(shape, then_body, else_body)


FLAGS = ("allocate_params", "allocate_inputs", "allocate_constants", "arena_no_reuse", "pin_output_ancestors",
         "dequant_host_fallback", "pin_host_structure", "elide_bank_transposes", "elide_requires_small_m",
         "fold_conv3d_epilogue", "separate_weights", "keep_pass_operands")


def options(**fixed: object) -> st.SearchStrategy[PlanOptions]:
    """Any combination of options; the built-in checks stay off, tests run their own."""
    flags = {f: st.booleans() for f in FLAGS if f not in fixed}
    return st.builds(PlanOptions, **flags, alignment=st.sampled_from([1, 2, 16, 64, 128, 4096]),
                     width_policy=st.sampled_from(list(ArenaWidthPolicy)), **{k: st.just(v) for k, v in fixed.items()})
