"""The op registry as a set: every op has a docstring, a family, a builder and an example here; every op that
can be evaluated gives what its shape rule says; shape rules and their errors as a table."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable

import numpy as np
import pytest

from planner_core.errors import GraphError
from planner_core.ir import Dim, DType, Graph, QuantScheme, Shape, registry
from planner_core.ir.op import Op
from planner_core.ir.ops import Custom, If, Loop, Scan, region_steps

op_module = importlib.import_module("planner_core.ir.op")  # the package has a decorator of that name
F32, I64, I32, BOOL = DType.F32, DType.I64, DType.I32, DType.BOOL
ONE = {"strides": (1, 2), "pads": (1, 0, 1, 0), "dilations": (1, 1)}
ONE3 = {"strides": (1, 1, 1), "pads": (0,) * 6, "dilations": (1, 1, 1)}


def _body(*inputs: tuple[int, ...], flag: bool = False) -> Graph:
    b = Graph("body")
    ids = [b.input("i", (), I64), b.input("c", (), BOOL)] if flag else []
    ids += [b.input(f"s{k}", dims) for k, dims in enumerate(inputs)]
    return b.set_outputs(*(ids[1:2] if flag else []), b.relu(ids[-1]))


# op -> a function that adds one to a graph
EXAMPLES: dict[str, Callable[[Graph], int]] = {
    "ActivationBackward": lambda g: g.activation_backward(g.input("x", (2, 3)), g.input("dy", (2, 3)), kind="elu", alpha=0.5),
    "AdaLayerNormBackward": lambda g: g.ada_layer_norm_backward(g.input("x", (2, 3, 4)), g.input("a", (2, 4)),
                                                                g.input("dy", (2, 3, 4)), wrt="scale"),
    "AttentionBackward": lambda g: g.attention_backward(
        g.input("q", (1, 4, 16)), g.input("k", (1, 6, 8)), g.input("v", (1, 6, 8)), g.input("dy", (1, 4, 16)), wrt="k",
        num_heads=4, head_dim=4, kv_heads=2, mask_kind="causal", softcap=5.0),
    "ConvBackwardInput": lambda g: g.conv_backward_input(g.param("w", (6, 2, 3, 3)), g.input("dy", (1, 6, 6, 2)), groups=2,
                                                         dims=(1, 4, 6, 6), **ONE),
    "ConvBackwardWeight": lambda g: g.conv_backward_weight(g.input("x", (1, 4, 6, 6)), g.input("dy", (1, 6, 6, 2)), groups=2,
                                                           dims=(6, 2, 3, 3), **ONE),
    "CumsumBackward": lambda g: g.cumsum_backward(g.input("dy", (2, 3)), exclusive=True),
    "GatedResidualBackward": lambda g: g.gated_residual_backward(g.input("y", (2, 3, 4)), g.input("dy", (2, 3, 4)), wrt="gate"),
    "GatherBackward": lambda g: g.gather_backward(g.input("dy", (5, 2, 2, 3)), g.constant([[0, 1], [2, -1]]), axis=1, extent=Dim(4)),
    "GroupedMatMulBackwardWeight": lambda g: g.grouped_mat_mul_backward_weight(
        g.input("x", (4, 5)), g.input("dy", (4, 6)), g.constant([0, 1, 1, 0]), experts=3),
    "LayerNormBackwardBeta": lambda g: g.layer_norm_backward_beta(g.input("dy", (2, 3))),
    "LayerNormBackwardInput": lambda g: g.layer_norm_backward_input(g.input("x", (2, 3)), g.param("g", (3,)), g.input("dy", (2, 3))),
    "MaxPool2dBackward": lambda g: g.max_pool2d_backward(g.input("x", (1, 2, 7, 7)), g.input("dy", (1, 2, 3, 4)), kernel=(3, 3),
                                                         strides=(2, 2), pads=(0, 1, 0, 1), ceil_mode=True),
    "MeanPool2dBackward": lambda g: g.mean_pool2d_backward(
        g.input("dy", (1, 2, 3, 4)), kernel=(3, 3), strides=(2, 2), pads=(0, 1, 0, 1), ceil_mode=True, count_include_pad=False,
        dims=(1, 2, 7, 7)),
    "RmsNormBackwardBeta": lambda g: g.rms_norm_backward_beta(g.input("dy", (2, 3))),
    "RmsNormBackwardGamma": lambda g: g.rms_norm_backward_gamma(g.input("x", (2, 3)), g.input("dy", (2, 3))),
    "RmsNormBackwardInput": lambda g: g.rms_norm_backward_input(g.input("x", (2, 3)), g.param("g", (3,)), g.input("dy", (2, 3))),
    "RopeBackward": lambda g: g.rope_backward(g.input("dy", (1, 4, 16)), g.param("c", (4, 3)), g.param("s", (4, 3)), head_dim=8,
                                              n_rot=6),
    "RopeTableBackward": lambda g: g.rope_table_backward(g.input("x", (1, 4, 16)), g.input("dy", (1, 4, 16)), wrt="sin", head_dim=8,
                                                         n_rot=6),
    "SelectiveScanBackward": lambda g: g.selective_scan_backward(
        g.input("x", (2, 5, 3)), g.input("d", (2, 5, 3)), g.param("a", (3, 4)), g.input("b", (2, 5, 4)), g.input("c", (2, 5, 4)),
        g.input("dy", (2, 5, 3)), wrt="a"),
    "SliceBackward": lambda g: g.slice_backward(g.input("dy", (3, 5)), axes=(0, 1), starts=(1, 4), stops=(6, -1), steps=(2, -1),
                                                dims=(6, 5)),
    "SoftmaxBackward": lambda g: g.softmax_backward(g.input("y", (2, 3)), g.input("dy", (2, 3)), axis=0),
    "SoftmaxCrossEntropy": lambda g: g.softmax_cross_entropy(g.input("x", (2, 3, 4)), g.constant([[0, 1, 2], [3, -1, 0]])),
    "SoftmaxCrossEntropyBackward": lambda g: g.softmax_cross_entropy_backward(
        g.input("x", (2, 3)), g.input("t", (2, 3)), g.input("dy", (2,))),
    "SwiGLUBackward": lambda g: g.swiglu_backward(g.input("x", (2, 6)), g.input("dy", (2, 3))),
    "BatchElementwiseRegion": lambda g: g.batch_elementwise_region(
        *[g.input(n, (2, 3) if n in "ac" else (3,)) for n in "abcd"], num_batch=2, steps=region_steps("s0 = mul(x0, x1); s1 = silu(s0)")),
    "DepthwiseConv1dBsc": lambda g: g.depthwise_conv1d_bsc(g.input("x", (2, 7, 5)), g.param("w", (5, 1, 4)), silu=True),
    "DequantMatMulBlocked": lambda g: g.dequant_mat_mul_blocked(
        g.input("x", (2, 3, 7)), g.param("w", (5, 4), DType.U8), g.param("s", (5, 2)), g.param("z", (5, 2), DType.U8), bits=4,
        block_size=4),
    "ElementwiseRegion": lambda g: g.elementwise_region(
        g.input("x", (1, 2, 3, 2)), g.input("y", (1, 2, 6, 4)), g.input("b", (4,)), g.input("s", (1,)), prologue="nearest2x",
        steps=region_steps("s0 = add(x0, x1); s1 = mul(s0, x2); s2 = gelu(s1); s3 = max(s2, x3); s4 = to_bf16(s3)")),
    "FusedAttentionBlock": lambda g: g.fused_attention_block(
        g.input("x", (2, 3, 24)), g.param("c", (3, 2)), g.param("s", (3, 2)), num_heads=2, head_dim=4, has_rope=True,
        mask_kind="causal"),
    "FusedMatMulBiasAct": lambda g: g.fused_mat_mul_bias_act(g.input("a", (2, 3, 5)), g.param("w", (5, 7)), g.param("b", (7,)),
                                                             activation="gelu"),
    "DequantMatMulFp8": lambda g: g.dequant_mat_mul_fp8(g.input("x", (2, 3, 7)), g.param("w", (5, 7), DType.F8E4M3), g.param("s", (1,))),
    "DequantMatMulNvfp4": lambda g: g.dequant_mat_mul_nvfp4(g.input("x", (3, 32)), g.param("w", (5, 16), DType.U8),
                                                            g.param("s", (5, 2), DType.F8E4M3), g.param("t", (1,))),
    "Fft": lambda g: g.fft(g.input("x", (2, 5)), real_input=True, norm="ortho"),
    "Im2Col": lambda g: g.im2col(g.input("x", (2, 3, 5, 7)), kernel=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), dilations=(1, 2)),
    "RngNormal": lambda g: g.rng_normal(shape=Shape.of((2, 5), DType.F16), mean=1.0, key=3, op_seed=0.5),
    "RngUniform": lambda g: g.rng_uniform(shape=Shape.of((2, 5)), low=-1.0, key=3),
    "Sample": lambda g: g.sample(g.input("x", (2, 9)), top_k=5, top_p=0.9, temperature=0.7, seed=4),
    "VqAssign": lambda g: g.vq_assign(g.input("x", (2, 3, 4)), g.param("c", (5, 4)), metric="cosine"),
    "GeGLU": lambda g: g.geglu(g.input("x", (2, 6)), gate_first=False),
    "GroupNorm": lambda g: g.group_norm(g.input("x", (2, 6, 3, 5)), g.param("g", (6,)), g.param("b", (6,)), groups=3),
    "ResidualLayerNorm": lambda g: g.residual_layer_norm(*[g.input(n, (2, 3)) for n in "xr"], *[g.param(n, (3,)) for n in "gbc"]),
    "ResidualRmsNorm": lambda g: g.residual_rms_norm(*[g.input(n, (2, 3)) for n in "xr"], *[g.param(n, (3,)) for n in "gbc"],
                                                     has_bias=True, has_beta=True),
    "RmsNormMulSilu": lambda g: g.rms_norm_mul_silu(g.input("x", (2, 3)), g.param("g", (3,)), g.input("z", (2, 3))),
    "Activation": lambda g: g.leaky_relu(g.input("x", (2, 3)), alpha=0.1),
    "AdaLayerNorm": lambda g: g.ada_layer_norm(g.input("x", (2, 3, 4)), g.input("a", (2, 4)), g.input("b", (2, 4))),
    "ArgReduce": lambda g: g.argmax(g.input("x", (2, 3)), axis=-1, keepdims=True),
    "Attention": lambda g: g.attention(g.input("q", (1, 4, 16)), g.input("k", (1, 6, 8)), g.input("v", (1, 6, 8)),
                                       num_heads=4, head_dim=4, kv_heads=2, mask_kind="causal", softcap=5.0),
    "BatchNorm": lambda g: g.batch_norm(g.input("x", (2, 3, 4, 4)), *[g.param(p, (3,)) for p in "abmv"]),
    "Binary": lambda g: g.add(g.input("a", (2, 1, 3)), g.input("b", (4, 3))),
    "Cast": lambda g: g.cast(g.input("x", (2, 3)), to=DType.BF16),
    "Compare": lambda g: g.le(g.input("a", (2, 3)), g.input("b", (3,))),
    "Concat": lambda g: g.concat(g.input("a", (2, 3)), g.input("b", (4, 3)), axis=0),
    "Constant": lambda g: g.constant(np.arange(6).reshape(2, 3), I32),
    "Conv": lambda g: g.conv(g.input("x", (1, 4, 6, 6)), g.param("w", (6, 2, 3, 3)), groups=2, **ONE),
    "Conv3d": lambda g: g.conv3d(g.input("x", (1, 2, 4, 4, 4)), g.param("w", (3, 2, 2, 2, 2)), **ONE3),
    "ConvTranspose2d": lambda g: g.conv_transpose2d(g.input("x", (1, 4, 3, 3)), g.param("w", (4, 2, 3, 3)), strides=(2, 2),
                                                    pads=(1, 1, 1, 1), dilations=(1, 1), output_padding=(1, 1), groups=2),
    "Cumsum": lambda g: g.cumsum(g.input("x", (2, 3)), exclusive=True),
    "Custom": lambda g: g.add(Custom("mine", Shape.of((2, 5), DType.F16), num_inputs=1), g.input("x", (2, 3))),
    "DequantGroupedMatMul": lambda g: g.dequant_grouped_mat_mul(
        g.input("x", (4, 32)), g.param("w", (2 * 6 * 34,), DType.U8), g.input("i", (4,), I32), n=6, experts=2,
        scheme=QuantScheme.Q8_0),
    "Dequantize": lambda g: g.dequantize(g.param("w", (6 * 34,), DType.U8), n=6, k=32, scheme=QuantScheme.Q8_0),
    "DequantMatMul": lambda g: g.dequant_mat_mul(g.input("x", (2, 4, 32)), g.param("w", (6 * 34,), DType.U8), n=6,
                                                 scheme=QuantScheme.Q8_0),
    "Expand": lambda g: g.expand(g.input("x", (3, 1)), dims=(2, 3, 4)),
    "Fma": lambda g: g.fma(g.input("a", (2, 3)), g.input("b", (3,)), g.input("c", (2, 1))),
    "FusedConvBiasAct": lambda g: g.fused_conv_bias_act(
        g.input("x", (1, 4, 6, 6)), g.param("w", (6, 4, 3, 3)), g.param("b", (6,)), g.input("r", (1, 6, 6, 2)),
        activation="relu", **ONE),
    "GatedResidual": lambda g: g.gated_residual(g.input("x", (2, 3, 4)), g.input("y", (2, 3, 4)), g.input("z", (2, 4))),
    "Gather": lambda g: g.gather(g.input("x", (4, 3)), g.constant([[0, 1], [2, -1]]), axis=0),
    "GatherElements": lambda g: g.gather_elements(g.input("x", (4, 3)), g.constant([[0, 1, 2]]), axis=0),
    "GatherNd": lambda g: g.gather_nd(g.input("x", (4, 3, 2)), g.constant([[0, 1], [2, -1]])),
    "GlobalPool": lambda g: g.global_pool(g.input("x", (1, 3, 4, 5)), kind="mean"),
    "GroupedMatMul": lambda g: g.grouped_mat_mul(g.input("x", (4, 5)), g.param("w", (2, 5, 6)), g.constant([0, 1, 1, 0])),
    "If": lambda g: g.add(If(Shape.of((3,)), _body((3,)), _body((3,))), g.input("c", (), BOOL), g.input("x", (3,))),
    "Input": lambda g: g.input("x", (2, "B")),
    "KvAppend": lambda g: g.kv_append(g.input("c", (2, 8, 3)), g.input("r", (2, 2, 3)), axis=1, start=4),
    "LayerNorm": lambda g: g.layer_norm(g.input("x", (2, 3)), g.param("g", (3,)), g.param("b", (3,))),
    "LayerNorm2d": lambda g: g.layer_norm2d(g.input("x", (1, 3, 4, 4)), g.param("g", (3,)), g.param("b", (3,))),
    "LayerNormBackwardGamma": lambda g: g.layer_norm_backward_gamma(g.input("x", (2, 3)), g.input("dy", (2, 3))),
    "Loop": lambda g: g.add(Loop(Shape.of((3,)), _body((3,), flag=True), 1), g.input("n", (), I64), g.input("c", (), BOOL),
                            g.input("x", (3,))),
    "MatMul": lambda g: g.mm(g.input("a", (2, 1, 4, 5)), g.param("b", (3, 5, 6))),
    "Narrow": lambda g: g.narrow(g.input("x", (4, 6)), axis=1, start=2, len=3),
    "Pad": lambda g: g.pad(g.input("x", (2, 4)), before=(1, -1), after=(0, 2), mode="edge"),
    "Param": lambda g: g.param("w", (2, 3), DType.BF16),
    "Pool2D": lambda g: g.pool2d(g.input("x", (1, 2, 7, 7)), kind="mean", kernel=(3, 3), strides=(2, 2), pads=(0, 1, 0, 1),
                                 ceil_mode=True),
    "Reduce": lambda g: g.reduce_mean(g.input("x", (2, 3, 4)), axes=(0, -1)),
    "Reshape": lambda g: g.reshape(g.input("x", (2, 3)), dims=(3, 1, 2)),
    "ResizeNearest": lambda g: g.resize_nearest(g.input("x", (1, 2, 3, 3)), factors=(1, 1, 2, 3)),
    "Result": lambda g: g.result(g.add(Custom("two", Shape.of((2,)), num_outputs=2), g.input("x", (2,))), index=1,
                                 shape=Shape.of((7,), I64)),
    "Reverse": lambda g: g.reverse(g.input("x", (2, 3)), axes=(1,)),
    "RmsNorm": lambda g: g.rms_norm(g.input("x", (2, 3)), g.param("g", (3,)), g.param("b", (3,))),
    "Rope": lambda g: g.rope(g.input("x", (1, 4, 16)), g.param("c", (4, 3)), g.param("s", (4, 3)), head_dim=8, n_rot=6),
    "Scan": lambda g: g.add(Scan(Shape.of((3,)), _body((3,), (4,)), 1, 1), g.input("s", (3,)), g.input("xs", (5, 4))),
    "ScatterAdd": lambda g: g.scatter_add(g.input("u", (4, 3)), g.constant([0, 2, 2, 1]), out_dim=5),
    "ScatterElements": lambda g: g.scatter_elements(g.input("x", (4, 3)), g.constant([[0, 1, 2]]), g.input("u", (1, 3)), axis=0,
                                                    reduction="add"),
    "ScatterNd": lambda g: g.scatter_nd(g.input("x", (4, 3)), g.constant([[0], [2]]), g.input("u", (2, 3))),
    "SelectiveScan": lambda g: g.selective_scan(g.input("x", (2, 5, 3)), g.input("d", (2, 5, 3)), g.param("a", (3, 4)),
                                                g.input("b", (2, 5, 4)), g.input("c", (2, 5, 4))),
    "Slice": lambda g: g.slice(g.input("x", (6, 5)), axes=(0, 1), starts=(1, 4), stops=(6, -1), steps=(2, -1)),
    "Softmax": lambda g: g.softmax(g.input("x", (2, 3)), axis=0),
    "SwiGLU": lambda g: g.swi_g_l_u(g.input("x", (2, 6))),
    "TopK": lambda g: g.top_k(g.input("x", (2, 6)), k=3, values=True),
    "TransposedGroupedMatMul": lambda g: g.transposed_grouped_mat_mul(
        g.input("x", (4, 5)), g.param("w", (3, 6, 5)), g.constant([0, 1, 1, 0])),
    "TransposedMatMul": lambda g: g.transposed_mat_mul(g.input("a", (2, 5, 3)), g.input("b", (2, 4, 5)), trans_a=True, trans_b=True),
    "Transpose": lambda g: g.transpose(g.input("x", (2, 3, 4)), perm=(2, 0, 1)),
    "Where": lambda g: g.where(g.lt(g.input("a", (2, 3)), g.input("b", (3,))), g.input("t", (3,)), g.input("f", (1,))),
}

OURS = {name: cls for name, cls in registry().items() if cls.__module__.startswith("planner_core.")}


def test_every_op_has_an_example() -> None:
    """No op without an example, no example without an op."""
    assert set(EXAMPLES) == set(OURS)


@pytest.mark.parametrize("name", sorted(OURS))
def test_declarations(name: str) -> None:
    """Docstring, family, a builder that makes it, a frozen value."""
    cls = OURS[name]
    assert cls.__doc__ and cls.__doc__[0] not in " \n" and cls.family and cls.name == name
    assert any(c is cls for c, _ in op_module.builders().values())
    g = Graph()
    node = g[EXAMPLES[name](g)]
    assert type(node.op) is cls and node.op == op_module.decode_op(name, op_module.encode_op(node.op))
    assert node.op.bodies() or hash(node.op) == hash(op_module.decode_op(name, op_module.encode_op(node.op)))
    low, high = op_module.arity(cls)
    assert low <= len(node.inputs) <= high
    assert node.op.flops(node.shape, *[g[i].shape for i in node.inputs]) >= 0 if node.shape.is_static else True


def test_builders_are_reachable() -> None:
    """A builder name that a method of ``Graph`` hides would never be called: only those made to are hidden."""
    hidden = {b for b in op_module.builders() if b in vars(Graph)}
    assert hidden == {"input", "param", "constant", "add"}
    g = Graph()
    assert g[g.add(g.input("a", (2,)), g.input("b", (2,)), name="sum")].op == registry()["Binary"]("add")  # type: ignore[call-arg]
    assert set(op_module.builders()) <= set(dir(g))


@pytest.mark.parametrize("name", sorted(n for n, c in OURS.items() if c.evaluate is not Op.evaluate))
def test_evaluate_agrees_with_the_shape_rule(name: str) -> None:
    """The reference evaluation gives the shape and dtype that ``infer`` says."""
    g = Graph()
    target = EXAMPLES[name](g)
    rng = np.random.default_rng(3)
    values: list[np.ndarray] = []
    for n in g.nodes[: target + 1]:
        if n.op.name in ("Input", "Param"):
            a = rng.random(n.shape.sizes) + 0.5
            values.append(a.astype(n.dtype.numpy))
        else:
            values.append(n.op.evaluate(*[values[i] for i in n.inputs]))
    assert values[target].shape == g[target].shape.sizes
    assert DType.of(values[target].dtype) is g[target].dtype


@pytest.mark.parametrize("name", sorted(n for n, c in OURS.items() if c.evaluate is Op.evaluate and n not in ("Input", "Param")))
def test_ops_without_a_reference_say_so(name: str) -> None:
    g = Graph()
    node = g[EXAMPLES[name](g)]
    with pytest.raises(GraphError, match=f"{name} has no reference evaluation"):
        node.op.evaluate()


SHAPES: list[tuple[str, Callable[[Graph], int], str]] = [
    ("mm symbols", lambda g: g.mm(g.input("a", ("B", "S", 8)), g.input("b", (8, 4))), "f32[B, S, 4]"),
    ("mm vector", lambda g: g.mm(g.input("a", (3, 8)), g.input("b", (8,))), "f32[3]"),
    ("mm unknown inner", lambda g: g.mm(g.input("a", (3, "?")), g.input("b", (8, 2))), "f32[3, 2]"),
    ("add broadcasts symbols", lambda g: g.add(g.input("a", ("B", 1)), g.input("b", (1, 5))), "f32[B, 5]"),
    ("concat sums symbols", lambda g: g.concat(g.input("a", ("P", 2)), g.input("b", (1, 2)), axis=0), "f32[P+1, 2]"),
    ("conv symbol", lambda g: g.conv(g.input("x", (1, 2, "T")), g.param("w", (4, 2, 3)), strides=(1,), pads=(1, 1), dilations=(1,)),
     "f32[1, 4, T]"),
    ("reshape", lambda g: g.reshape(g.input("x", ("B", 4)), dims=("B", 2, 2)), "f32[B, 2, 2]"),
    ("topk", lambda g: g.top_k(g.input("x", ("B", 9)), k=2), "i64[B, 2]"),
    ("compare", lambda g: g.lt(g.input("a", (2,)), g.input("b", (2,))), "bool[2]"),
    ("gather", lambda g: g.gather(g.input("x", (9, 4)), g.input("i", ("B", "S"), I64), axis=0), "f32[B, S, 4]"),
    ("reduce keepdims", lambda g: g.reduce_sum(g.input("x", (2, 3)), axes=(-1,), keepdims=True), "f32[2, 1]"),
    ("swiglu symbol", lambda g: g.swi_g_l_u(g.input("x", (2, "2*N"))), "f32[2, (2*N)//2]"),
    ("slice empty", lambda g: g.slice(g.input("x", (6,)), axes=(0,), starts=(4,), stops=(2,), steps=(1,)), "f32[0]"),
]


@pytest.mark.parametrize(("make", "want"), [s[1:] for s in SHAPES], ids=[s[0] for s in SHAPES])
def test_shape_rules(make: Callable[[Graph], int], want: str) -> None:
    g = Graph()
    assert str(g[make(g)].shape) == want


ERRORS: list[tuple[str, Callable[[Graph], object], str]] = [
    ("inner extents", lambda g: g.mm(g.input("a", (2, 3)), g.input("b", (4, 2)), name="m"),
     r"MatMul m in 'graph': matmul of f32\[2, 3\] and f32\[4, 2\]: inner extents 3 and 4 differ"),
    ("dtypes", lambda g: g.mul(g.input("a", (2,)), g.input("b", (2,), I32)),
     r"Binary %2 in 'graph': mul of f32\[2\] and i32\[2\]: dtypes differ, cast one of them"),
    ("arity", lambda g: g.mm(g.input("a", (2, 3))), r"MatMul %1 in 'graph': MatMul got 1 operands, wanted 2: a, b"),
    ("operand range", lambda g: g.relu(7), r"operand %7 is not a node of this graph \(0 nodes so far\)"),
    ("attribute", lambda g: g.narrow(g.input("a", (2,)), axis=0), r"Narrow in 'graph': .*missing 2 required .*'start' and 'len'"),
    ("unknown attribute", lambda g: g.relu(g.input("a", (2,)), slope=1), r"Activation in 'graph': .*unexpected keyword argument 'slope'"),
    ("broadcast", lambda g: g.add(g.input("a", (2, 3)), g.input("b", (4,))), r"shapes f32\[2, 3\], f32\[4\] don't broadcast: 3 against 4"),
    ("reshape", lambda g: g.reshape(g.input("a", (2, 3)), dims=(7,)), r"can't reshape f32\[2, 3\] \(6 elements\) to f32\[7\]"),
    ("perm", lambda g: g.transpose(g.input("a", (2, 3)), perm=(0, 0)), r"perm \(0, 0\) is no permutation of the 2 axes"),
    ("narrow", lambda g: g.narrow(g.input("a", (4,)), axis=0, start=2, len=3), r"narrow \[2, 5\) leaves axis 0 of f32\[4\]"),
    ("axis", lambda g: g.softmax(g.input("a", (4,)), axis=2), r"axis 2 is out of range for f32\[4\]"),
    ("empty concat", lambda g: g.concat(axis=0), "Concat needs at least one operand"),
    ("concat ranks", lambda g: g.concat(g.input("a", (2,)), g.input("b", (2, 1)), axis=0), "rank and dtype must agree"),
    ("cache", lambda g: g.kv_append(g.input("c", (4, 2)), g.input("r", (2, 2)), axis=0, start=3), r"don't fit cache f32\[4, 2\] on axis 0"),
    ("window", lambda g: g.conv(g.input("x", (1, 1, 2)), g.param("w", (1, 1, 5)), strides=(1,), pads=(0, 0), dilations=(1,)),
     r"window of 5 is wider than the padded extent 2 \+ 0"),
    ("channels", lambda g: g.conv(g.input("x", (1, 3, 9)), g.param("w", (1, 2, 5)), strides=(1,), pads=(0, 0), dilations=(1,)),
     "has 3 channels, .* wants 2 × groups 1"),
    ("packed", lambda g: g.dequant_mat_mul(g.input("x", (1, 32)), g.param("w", (5,), DType.U8), n=2, scheme=QuantScheme.Q4_0),
     r"u8\[5\] holds 5 bytes; q4_0 with k=32, 2 rows wants 36"),
    ("mask", lambda g: g.attention(*[g.input(n, (1, 2, 4)) for n in "qkv"], num_heads=2, head_dim=2, mask_kind="bias"),
     "Attention with mask 'bias' got 0 mask operands"),
    ("heads", lambda g: g.attention(*[g.input(n, (1, 2, 4)) for n in "qkv"], num_heads=3, head_dim=2), r"wanted 3 heads × 2 \(bshd\)"),
    ("norm", lambda g: g.rms_norm(g.input("x", (2, 3)), g.param("g", (2,))), r"a norm over axis 1 of f32\[2, 3\] wants vectors of 3"),
    ("modulation", lambda g: g.ada_layer_norm(g.input("x", (2, 3, 4)), g.input("a", (3, 4)), g.input("b", (2, 4))),
     r"AdaLayerNorm: x f32\[2, 3, 4\] and modulation f32\[3, 4\]: wanted \[B, S, H\] and \[B, H\]"),
    ("gated", lambda g: g.gated_residual(g.input("x", (2, 3, 4)), g.input("y", (2, 2, 4)), g.input("z", (2, 4))),
     r"GatedResidual: x f32\[2, 3, 4\] and y f32\[2, 2, 4\] differ"),
    ("scan", lambda g: g.selective_scan(*[g.input(n, (1, 2, 3)) for n in "xd"], g.param("a", (4, 5)),
                                        *[g.input(n, (1, 2, 5)) for n in "bc"]), r"SelectiveScan: .* wanted \[B, S, D\] twice"),
    ("if", lambda g: g.add(If(Shape.of((3,)), _body((3,)), _body((3,))), g.input("c", (), BOOL)), "If body 'body' has 1 inputs for 0 captures"),
    ("unnamed input", lambda g: g.input("", (2,)), "Input %0 in 'graph' needs a name"),
    ("name taken", lambda g: (g.input("a", (2,)), g.param("a", (2,))), "Param 'a' in 'graph': the name is taken by %0"),
    ("param data", lambda g: g.param("a", (2,), data=np.zeros(3, np.float32)), r"param 'a': data is float32\[3\], wanted f32\[2\]"),
    ("output", lambda g: g.set_outputs(3), r"output %3 is not a node of 'graph' \(0 nodes\)"),
    ("dtype", lambda g: DType.parse("f31"), "unknown dtype 'f31'; wanted one of f64, f32, f16"),
    ("numpy dtype", lambda g: g.constant(np.zeros(1, "complex128")), "no IR dtype for NumPy's complex128"),
    ("kind", lambda g: g.binary(g.input("a", (2,)), 0, kind="plus"), "binary kind 'plus': wanted one of add, sub"),
    ("alpha", lambda g: g.relu(g.input("a", (2,)), alpha=1.0), "activation relu takes no alpha or beta"),
]


@pytest.mark.parametrize(("make", "text"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_errors_say_what_and_where(make: Callable[[Graph], object], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        make(Graph())


def test_an_unknown_builder_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Graph has no builder 'conv9d'"):
        Graph().conv9d(0)


def _declare(**how: object) -> None:
    made = type("Thing", (Op,), {"__doc__": how.get("doc", "A thing."), "__annotations__": {},
                                 **({"infer": lambda self, *s: s[0]} if how.get("infer", True) else {})})
    op_module.op(family="test", name=str(how.get("name", "Thing")), builders=how.get("builders"))(made)  # type: ignore[arg-type]


@pytest.mark.parametrize(("how", "text"), [
    ({"doc": ""}, "op Thing: a docstring with the formula is required"),
    ({"infer": False}, r"op Thing: a shape rule \(infer\) is required"),
    ({"name": "Relu2", "builders": {"mm": {}}}, "op Relu2: builder mm is already MatMul's"),
    ({"name": "MatMul"}, "op MatMul is declared twice"),
])
def test_declaration_mistakes_fail_at_import(how: dict[str, object], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_module, "_REGISTRY", dict(op_module._REGISTRY))
    monkeypatch.setattr(op_module, "_BUILDERS", dict(op_module._BUILDERS))
    with pytest.raises(TypeError, match=text):
        _declare(**how)


def test_every_op_docstring_is_its_formula_line() -> None:
    for name, cls in OURS.items():
        first = inspect.cleandoc(cls.__doc__ or "").splitlines()[0]
        assert len(first) > 10 and first[0] != " ", name


def test_integer_division_is_exact_and_toward_zero() -> None:
    a = np.asarray([2**53 + 1, -(2**53) - 1, 7, -7, 7, -7, 5], np.int64)
    b = np.asarray([1, 1, 2, 2, -2, -2, 0], np.int64)
    div = registry()["Binary"](kind="div")
    with np.errstate(all="ignore"):
        got = div.evaluate(a, b)
    assert got.tolist() == [2**53 + 1, -(2**53) - 1, 3, -3, -3, 3, 0]
    assert div.evaluate(np.uint8([200]), np.uint8([7])).tolist() == [28]


def test_narrow_counts_axes_from_the_end_too() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    assert (registry()["Narrow"](-1, 1, 2).evaluate(x) == x[..., 1:3]).all()
    assert (registry()["Narrow"](-3, 1, 1).evaluate(x) == x[1:]).all()


@pytest.mark.parametrize(("start", "stop", "step"), [(3, -5, -1), (5, 0, -1), (-1, 3, 1), (0, 5, 1)])
def test_slice_bounds_outside_the_axis_are_refused(start: int, stop: int, step: int) -> None:
    g = Graph()
    with pytest.raises(GraphError, match=r"wanted bounds within \[0, 4\]"):
        g.slice(g.input("x", (4,)), axes=(0,), starts=(start,), stops=(stop,), steps=(step,))


def test_grouped_products_know_every_float() -> None:
    x, w = np.arange(12).reshape(3, 4), np.arange(40).reshape(2, 4, 5) % 7
    idx = np.asarray([0, 1, 1])
    want = np.stack([row @ w[e] for row, e in zip(x, idx, strict=True)])
    for dtype in (DType.F64, DType.F32, DType.F16, DType.BF16):
        got = registry()["GroupedMatMul"]().evaluate(x.astype(dtype.numpy), w.astype(dtype.numpy), idx)
        assert got.dtype == dtype.numpy
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=2**-7)


def test_convolutions_know_every_float() -> None:
    rng = np.random.default_rng(0)
    x, w, dy = (rng.integers(-3, 4, s).astype(np.float64) for s in ((1, 4, 5, 5), (4, 2, 2, 2), (1, 4, 4, 4)))
    how = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 2}
    cases = [("Conv", (x, w), {}), ("ConvTranspose2d", (x, w), {"output_padding": (0, 0)}),
             ("ConvBackwardInput", (w, dy), {"dims": tuple(map(Dim, x.shape))}),
             ("ConvBackwardWeight", (x, dy), {"dims": tuple(map(Dim, w.shape))})]
    for name, operands, more in cases:
        want = registry()[name](**how, **more).evaluate(*operands)
        for dtype in (DType.F32, DType.F16, DType.BF16):
            got = registry()[name](**how, **more).evaluate(*(a.astype(dtype.numpy) for a in operands))
            assert got.dtype == dtype.numpy, name
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=2**-7, atol=2**-7 * np.abs(want).max())
