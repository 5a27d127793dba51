"""Owns Fourier transforms, codebook assignment and im2col."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir.dtype import DType
from planner_core.ir.graph import Graph, NodeId
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.adjoint import Grads
from planner_core.ir.ops.conv import conv_extent
from planner_core.ir.shape import Shape

NORMS = ("backward", "ortho", "forward")
"""Where the factor 1/n stands: on the inverse, its root on both, on the forward transform. Norm tags 0–2."""
METRICS = ("l2", "dot", "cosine")
"""VqAssign's metrics, tags 0–2: nearest, largest product, largest product of unit vectors."""


@op(family="signal", operands="x")
class Fft(Op):
    """Discrete Fourier transform of the last axis, complex numbers as two real blocks: ``[.., 2n]`` = n real parts, then
    n imaginary ones (Cooley & Tukey 1965).

    ``real_input``: x ``[.., n]`` has real parts only; the result has both blocks. ``norm`` as in NumPy.
    """

    inverse: bool = False
    norm: str = "backward"
    real_input: bool = False

    def infer(self, x: Shape, *_: Shape) -> Shape:
        width = x.dims[x.axis(-1)]
        if self.norm not in NORMS or x.dtype not in (DType.F32, DType.F64):
            raise GraphError(f"Fft of {x} with norm {self.norm!r}: wanted f32 or f64 and one of {', '.join(NORMS)}")
        if self.real_input:
            return x.with_dims((*x.dims[:-1], width * 2))
        if width.value is not None and width.value % 2:
            raise GraphError(f"Fft of {x}: the last axis holds real parts, then as many imaginary ones")
        return x

    def evaluate(self, x: Array, *_: Array) -> Array:
        if self.real_input:
            z = x.astype(np.complex128)
        else:
            re, im = np.split(x.astype(np.float64), 2, axis=-1)
            z = re + 1j * im
        transform: Any = np.fft.ifft if self.inverse else np.fft.fft
        y = transform(z, axis=-1, norm=self.norm)
        return np.concatenate([y.real, y.imag], axis=-1).astype(x.dtype)

    def flops(self, out: Shape, *ins: Shape) -> int:
        n = out.sizes[-1] // 2
        return int(5 * out.numel // 2 * math.log2(max(n, 2)))

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        adjoint = {"backward": "forward", "ortho": "ortho", "forward": "backward"}[self.norm]
        dx = g.fft(dy, inverse=not self.inverse, norm=adjoint)
        if not self.real_input:
            return (dx,)
        shape = g[dx].shape
        return (g.narrow(dx, axis=shape.rank - 1, start=0, len=shape.sizes[-1] // 2),)


@op(family="signal", operands="x codebook")
class VqAssign(Op):
    """Index of each row's best codebook entry, the first of equals: x ``[.., d]``, codebook ``[k, d]``, result i32 ``[..]``.

    metric ``l2``: nearest; ``dot``: largest product; ``cosine``: largest product of unit vectors.
    """

    metric: str = "l2"

    def infer(self, x: Shape, codebook: Shape, *_: Shape) -> Shape:
        if self.metric not in METRICS or x.rank < 1 or codebook.rank != 2 or not x.dims[-1].same(codebook.dims[1]):
            raise GraphError(f"VqAssign of {x} by {codebook}, metric {self.metric!r}: wanted [.., d], [k, d] and one of "
                             f"{', '.join(METRICS)}")
        return Shape(x.dims[:-1], DType.I32)

    def evaluate(self, x: Array, codebook: Array, *_: Array) -> Array:
        rows = x.reshape(-1, x.shape[-1])
        score = rows @ codebook.T
        norms = (codebook * codebook).sum(1)
        if self.metric == "l2":
            score = 2 * score - norms
        elif self.metric == "cosine":
            score = score / np.sqrt(norms)
        return np.asarray(score.argmax(1).reshape(x.shape[:-1]), dtype=np.int32)

    def flops(self, out: Shape, x: Shape, codebook: Shape, *_: Shape) -> int:
        return 2 * x.numel * codebook.sizes[0]

    def gradient(self, g: Graph, node: NodeId, inputs: tuple[NodeId, ...], dy: NodeId) -> Grads:
        return None, None


@op(family="conv", operands="x", builders={"im2col": {}})
class Im2Col(Op):
    """``col[n, c·kh·kw + i·kw + j, p] = x[n, c, window p at (i, j)]``, zero outside; NCHW to ``[N, C·kh·kw, H_out·W_out]``
    (PyTorch's unfold). pads: all begins, then all ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    def extents(self, x: Shape) -> tuple[int, int]:
        """H_out and W_out."""
        h, w = (conv_extent(f"Im2Col x {x}", x.dims[2 + i], self.kernel[i], self.strides[i], self.pads[i], self.pads[i + 2], self.dilations[i])
                for i in range(2))
        return Shape((h,)).sizes[0], Shape((w,)).sizes[0]

    def infer(self, x: Shape, *_: Shape) -> Shape:
        if x.rank != 4 or any(len(v) != 2 for v in (self.kernel, self.strides, self.dilations)) or len(self.pads) != 4:
            raise GraphError(f"Im2Col of {x}, kernel {self.kernel}: wanted NCHW and two spatial axes in each attribute")
        return x.with_dims((x.dims[0], x.dims[1] * math.prod(self.kernel), math.prod(self.extents(x))))

    def evaluate(self, x: Array, *_: Array) -> Array:
        h, w = self.extents(Shape.of(x.shape))
        xp = np.pad(x, [(0, 0), (0, 0), (self.pads[0], self.pads[2]), (self.pads[1], self.pads[3])])
        (sh, sw), (dh, dw) = self.strides, self.dilations
        taps = [xp[:, :, i * dh : i * dh + (h - 1) * sh + 1 : sh, j * dw : j * dw + (w - 1) * sw + 1 : sw]
                for i, j in itertools.product(*map(range, self.kernel))]
        return np.stack(taps, axis=2).reshape(x.shape[0], -1, h * w)
