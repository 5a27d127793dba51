"""Where elementwise regions, batches of them and the upsample prologue apply and where they don't."""

from __future__ import annotations

import numpy as np

from planner_core.fusion import FusionTarget, Refusal
from planner_core.fusion.rules.region import MOST_NEAR
from planner_core.ir import DType, Graph
from planner_core.ir.ops import region_steps
from tests.planner_core.fusion.harness import Applied, Refused

METAL = FusionTarget.METAL


def chain(length: int, dtype: DType = DType.F32) -> Graph:
    g = Graph("chain")
    x, b = g.input("x", (2, 3), dtype), g.param("b", (3,), dtype)
    for i in range(length):
        x = g.sub(x, b) if i % 3 == 0 else g.relu(x) if i % 3 == 1 else g.neg(x)
    return g.set_outputs(x)


def tree() -> Graph:
    """A value read twice inside, a constant, a trailing row, two chains that meet."""
    g = Graph("tree")
    x, y, row = g.input("x", (2, 4, 3)), g.input("y", (2, 4, 3)), g.param("row", (4, 3))
    s = g.sigmoid(g.add(x, row))
    t = g.mul(g.sub(y, x), g.constant(np.float32(0.5)))
    return g.set_outputs(g.max(g.mul(s, t), g.add(g.neg(s), t)))


def symbolic() -> Graph:
    g = Graph("symbolic")
    x = g.input("x", ("B", 3))
    g.set_outputs(g.relu(g.neg(x)))
    return g.bind({"B": 2})


def fork(output: bool = False) -> Graph:
    """A value that something outside reads too."""
    g = Graph("fork")
    x = g.input("x", (2, 3))
    y = g.neg(x)
    return g.set_outputs(g.relu(y), *([y] if output else [g.reduce_sum(y, axes=(0,))]))


def spread() -> Graph:
    """A row computed once and read by every row of x."""
    g = Graph("spread")
    x, b = g.input("x", (2, 3)), g.input("b", (3,))
    return g.set_outputs(g.mul(x, g.exp(b)))


def inner() -> Graph:
    g = Graph("inner")
    x, b = g.input("x", (2, 3)), g.input("b", (2, 1))
    return g.set_outputs(g.mul(g.neg(x), b))


def after(kind: str, dtype: DType = DType.F32) -> Graph:
    g = Graph("after")
    x = g.input("x", (2, 3), dtype)
    return g.set_outputs(g.activation(g.neg(x), kind=kind))


def full(inputs: int, steps: int) -> Graph:
    """A region at its limits, read by one more op with one more input."""
    g = Graph("full")
    xs = [g.input(f"x{i}", (2, 3)) for i in range(inputs + 1)]
    text = ["s0 = add(x0, x1)"] + [f"s{i} = add(s{i - 1}, x{min(i + 1, inputs - 1)})" for i in range(1, steps)]
    region = g.elementwise_region(*xs[:inputs], steps=region_steps("; ".join(text)))
    return g.set_outputs(g.mul(region, xs[inputs]))


def gate() -> Graph:
    g = Graph("gate")
    x, y = g.input("x", (1, 8)), g.input("y", (1, 8))
    return g.set_outputs(g.mul(g.silu(x), y))


def pair(count: int, operands: int = 1, fanned: int = 0) -> Graph:
    """Equal regions over one value."""
    g = Graph("pair")
    x = g.relu(g.input("x", (2, 3)))
    steps = "s0 = neg(x0)" if operands == 1 else "; ".join(
        [f"s0 = add(x0, x{1})", *(f"s{i} = add(s{i - 1}, x{i + 1})" for i in range(1, operands - 1))])
    outs = [g.elementwise_region(x, *(g.input(f"y{k}.{i}", (2, 3)) for i in range(operands - 1)), steps=region_steps(steps))
            for k in range(count)]
    more = [g.leaky_relu(x, alpha=0.5 / (i + 1)) for i in range(fanned)]
    return g.set_outputs(*(g.reduce_sum(o, axes=(k % 2,)) for k, o in enumerate(outs)), *more)


def siblings() -> Graph:
    g = Graph("siblings")
    x = g.input("x", (2, 3))
    a, b = (g.mm(x, g.param(n, (3, 4))) for n in ("wa", "wb"))
    outs = [g.elementwise_region(v, g.param(f"b{i}", (4,)), steps=region_steps("s0 = add(x0, x1); s1 = silu(s0)"))
            for i, v in enumerate((a, b))]
    return g.set_outputs(g.mm(outs[0], g.transpose(outs[1], perm=(1, 0))))


def in_turn() -> Graph:
    """The second region waits for the first."""
    g = Graph("turn")
    x, steps = g.relu(g.input("x", (3, 3))), region_steps("s0 = add(x0, x1); s1 = neg(s0)")
    a = g.elementwise_region(x, g.input("y", (3, 3)), steps=steps)
    return g.set_outputs(g.elementwise_region(x, g.mm(a, g.param("w", (3, 3))), steps=steps))


def upsampled(factors: tuple[int, ...] = (1, 1, 2, 2), *, shared: bool = False, output: bool = False,
              taken: bool = False) -> Graph:
    g = Graph("upsampled")
    dims = (1, 2, 3, 4, 5)[: len(factors)]
    up = g.resize_nearest(g.relu(g.input("x", dims)), factors=factors)
    y = g.input("y", g[up].shape.dims)
    if taken:
        z = g.input("z", dims)
        return g.set_outputs(g.elementwise_region(z, up, steps=region_steps("s0 = add(x0, x1); s1 = neg(s0)"), prologue="nearest2x"))
    out = g.elementwise_region(y, up, steps=region_steps("s0 = mul(x0, x1); s1 = silu(s0)"))
    return g.set_outputs(out, *([up] if output else [g.reduce_max(up, axes=(0,))] if shared else []))


APPLIED = [
    Applied("elementwise_region", lambda: chain(5), made=("ElementwiseRegion",), gone=("Activation(relu)",), id="chain"),
    Applied("elementwise_region", lambda: chain(100), gone=("Activation(relu)",), times=4, id="long chain"),
    Applied("elementwise_region", tree, gone=("Binary(mul)", "Binary(add)", "Activation(sigmoid)"), id="tree"),
    Applied("elementwise_region", symbolic, id="bound symbol"),
    Applied("elementwise_region", lambda: full(4, 3), made=("ElementwiseRegion",), gone=("Binary(mul)",), id="after a region"),
    Applied("elementwise_region", gate, gone=("Binary(mul)",), target=METAL, id="gate taken on request"),
    Applied("batch_elementwise_region", lambda: pair(3), made=("BatchElementwiseRegion",), gone=("ElementwiseRegion",), id="three"),
    Applied("batch_elementwise_region", siblings, made=("BatchElementwiseRegion",), id="siblings"),
    Applied("batch_elementwise_region", lambda: pair(5, operands=16), made=("BatchElementwiseRegion", "ElementwiseRegion"), id="64 operands"),
    Applied("upsample_prologue", upsampled, gone=("ResizeNearest",)),
]
REFUSED = [
    Refused("elementwise_region", Refusal.SHARED, fork),
    Refused("elementwise_region", Refusal.OUTPUT, lambda: fork(output=True)),
    Refused("elementwise_region", Refusal.RECOMPUTE, spread),
    Refused("elementwise_region", Refusal.BROADCAST, inner),
    Refused("elementwise_region", Refusal.KIND, lambda: after("sin")),
    Refused("elementwise_region", Refusal.DTYPE, lambda: after("relu", DType.F16)),
    Refused("elementwise_region", Refusal.STEPS, lambda: full(4, 32)),
    Refused("elementwise_region", Refusal.INPUTS, lambda: full(16, 15)),
    Refused("elementwise_region", Refusal.COMMAND_PASS, gate, target=METAL, decode_forms=False),
    Refused("batch_elementwise_region", Refusal.ORDER, in_turn),
    Refused("batch_elementwise_region", Refusal.LIMIT, lambda: pair(2, fanned=MOST_NEAR)),
    Refused("upsample_prologue", Refusal.KIND, lambda: upsampled((1, 1, 3, 2))),
    Refused("upsample_prologue", Refusal.KIND, lambda: upsampled(taken=True), id="prologue taken"),
    Refused("upsample_prologue", Refusal.RANK, lambda: upsampled((1, 1, 1, 2, 2))),
    Refused("upsample_prologue", Refusal.SHARED, lambda: upsampled(shared=True)),
    Refused("upsample_prologue", Refusal.OUTPUT, lambda: upsampled(output=True)),
]
