"""Owns what is done with a zoo graph's weights: seeded data to run it, counts to compare with papers."""

from __future__ import annotations

import math
import zlib

import numpy as np

from planner_core.ir import Array, Graph, Node, QuantScheme
from planner_core.ir.ops import BatchNorm, ConvTranspose2d
from planner_core.ir.packed import random_blocks

__all__ = ["flops", "param_count", "param_elements", "random_weights"]

_TABLES = ("rope.cos", "rope.sin")
_MEANS = {"duration.head.b": 1.5}
"""Biases away from zero, without which a model says nothing: a few frames for each phoneme."""


def _fan_in(n: Node, graph: Graph) -> float:
    """Products that one element of a result sums, for the op that reads the weight."""
    sizes = n.shape.sizes
    reader = next((graph[r].op for r, operand in graph.uses.of(n.id) if operand == 1), None)
    if isinstance(reader, ConvTranspose2d):  # [C_in, C_out, k…], of whose taps 1 in stride is hit
        return sizes[0] * math.prod(sizes[2:]) / math.prod(reader.strides)
    if reader is not None and reader.family == "conv":
        return math.prod(sizes[1:])
    return sizes[-2] if len(sizes) <= 3 and n.name.endswith(".w") else math.prod(sizes[1:])


def _fill(n: Node, graph: Graph, seed: int) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(n.name.encode())])
    sizes, dtype = n.shape.sizes, n.dtype
    if n.name in _TABLES:  # a rotation, as in a real model, so that q·k depends on distance alone
        seq, half = sizes
        angle = np.arange(seq)[:, None] * 10000.0 ** (-np.arange(half) / half)
        return np.asarray(np.cos(angle) if n.name.endswith("cos") else np.sin(angle)).astype(dtype.numpy)
    last = n.name.rsplit(".", 1)[-1]
    if dtype.is_int:
        if last == "zero":  # u8 weights are centred
            return np.full(sizes, 128, dtype.numpy)
        low, high = (0, 256) if dtype.text == "u8" else (-128, 128) if dtype.text == "i8" else (0, 8)
        return rng.integers(low, high, sizes).astype(dtype.numpy)
    values: Array = rng.standard_normal(sizes, dtype=np.float32)
    if last == "scale":  # of one 8-bit matrix: a step of its weights
        return np.full(sizes, 1e-3, dtype.numpy)
    if last in ("gamma", "var"):
        values = 1 + 0.1 * np.abs(values)
    elif len(sizes) <= 1:
        values = _MEANS.get(n.name, 0.0) + 0.1 * values
    else:
        values /= math.sqrt(max(1.0, _fan_in(n, graph)))
    return values.astype(dtype.numpy)


def random_weights(graph: Graph, seed: int = 0) -> Graph:
    """Fill ``graph.weights`` for every param that has no data and return the graph.

    A param's data depends on ``seed``, its name and shape alone, so graphs that share weight names (forward
    and backward, prefill and decode) get the same data. Scales keep activations near one: 1/√fan-in for
    matrices, near one for norm gains, small for biases; packed weights are valid blocks of random codes.
    """
    for p in graph.params:
        n = graph[p]
        if n.name not in graph.weights:
            packed = _packing(n, graph)
            graph.weights[n.name] = _fill(n, graph, seed) if packed is None else _fill_packed(n, seed, *packed)
    return graph


def _packing(n: Node, graph: Graph) -> tuple[QuantScheme, int] | None:
    """The scheme and row length of a packed param, as its reader says."""
    for reader, operand in graph.uses.of(n.id):
        scheme = getattr(graph[reader].op, "scheme", None)
        if operand == 1 and isinstance(scheme, QuantScheme):
            return scheme, graph[graph[reader].inputs[0]].shape.sizes[-1]
    return None


def _fill_packed(n: Node, seed: int, scheme: QuantScheme, k: int) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(n.name.encode())])
    rows = n.shape.numel // scheme.row_bytes(k)
    return random_blocks(rng, scheme, rows, k, k**-0.5).reshape(n.shape.sizes)


def param_elements(n: Node, graph: Graph) -> int:
    """Weights that a param stands for: packed ones count elements, not bytes; rotary tables and the running
    statistics of batch norms, which no one trains, none."""
    if n.name in _TABLES:
        return 0
    for reader, operand in graph.uses.of(n.id):
        if isinstance(graph[reader].op, BatchNorm) and operand > 2:
            return 0
    packed = _packing(n, graph)
    if packed is not None:
        scheme, k = packed
        return n.shape.numel // scheme.row_bytes(k) * k
    return n.shape.numel


def param_count(graph: Graph) -> int:
    """Weights of the graph, as papers count them (``param_elements``)."""
    return sum(param_elements(graph[p], graph) for p in graph.params)


def flops(graph: Graph) -> int:
    """Floating-point operations of one run; a multiply-add counts two."""
    total = 0
    for n in graph.nodes:
        cost: int = n.op.flops(n.shape, *[graph[i].shape for i in n.inputs])
        total += cost
    return total
