"""Gallery entries of the packed products: the gguf package's dequantiser (ours: the bits read one by one), then float64."""

from __future__ import annotations

import gguf
import numpy as np

from planner_core.ir import DType, Graph, QuantScheme
from planner_core.ir.packed import random_blocks
from tests.runtime.gallery import Array, Case, case, rand

GGUF = [s for s in QuantScheme if not s.text.startswith(("q1_", "q2_0"))]


def by_hand(rows: Array, scheme: QuantScheme) -> Array:
    """Q1_0 and Q2_0, one bit at a time, as documented."""
    out = []
    for block in rows.reshape(-1, scheme.block_bytes):
        d = float(block[:2].copy().view("<f2")[0])
        if scheme is QuantScheme.Q1_0:
            out += [d if int(block[2 + i // 8]) & 1 << i % 8 else -d for i in range(128)]
        else:
            out += [((int(block[2 + i // 4]) >> 2 * (i % 4)) % 4 - 1) * d for i in range(128)]
    return np.asarray(out).reshape(len(rows), -1)


def floats(rows: Array, scheme: QuantScheme, k: int) -> Array:
    """float64 of packed rows, by other code than ours."""
    if scheme in GGUF:
        wide = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[scheme.name])
    else:
        wide = by_hand(rows, scheme)
    return wide.astype(np.float64)[:, :k]


def _packed(scheme: QuantScheme, m: int, n: int, tail: int, half: bool = False) -> Case:
    k = 2 * scheme.block - tail
    rows = random_blocks(np.random.default_rng([m, n]), scheme, n, k, k**-0.5)
    x = rand(1, m, k).astype(np.float16 if half else np.float32)
    g = Graph("packed")
    w = g.param("w", (rows.size,), DType.U8, data=rows.reshape(-1))
    g.set_outputs(g.dequant_mat_mul(g.input("x", x.shape, DType.of(x.dtype)), w, n=n, scheme=scheme))
    return Case(g, {"x": x}, [x.astype(np.float64) @ floats(rows, scheme, k).T])


case(_packed, list(QuantScheme), [1, 3], [1, 7], [0])
case(_packed, [QuantScheme.Q5_0, QuantScheme.Q8_0, QuantScheme.Q1_0], [2], [5], [3])
case(_packed, [QuantScheme.Q4_K, QuantScheme.Q2_0], [1, 3], [5], [0], [True])
case(_packed, [QuantScheme.Q6_K], [1], [1031], [0])


def _packed_experts(scheme: QuantScheme, m: int) -> Case:
    k, n, experts = scheme.block, 7, 3
    rows = random_blocks(np.random.default_rng(m), scheme, experts * n, k, k**-0.5)
    x, idx = rand(m, k), np.random.default_rng(1).integers(0, experts, m)
    g = Graph("experts")
    w = g.param("w", (rows.size,), DType.U8, data=rows.reshape(-1))
    g.set_outputs(g.dequant_grouped_mat_mul(g.input("x", x.shape), w, g.input("idx", (m,), DType.I64), n=n,
                                            experts=experts, scheme=scheme))
    bank = floats(rows, scheme, k).reshape(experts, n, k)
    return Case(g, {"x": x, "idx": idx}, [np.stack([bank[e] @ v for e, v in zip(idx, x.astype(np.float64), strict=True)])])


case(_packed_experts, [QuantScheme.Q4_K, QuantScheme.Q5_1, QuantScheme.Q2_0], [1, 5])
