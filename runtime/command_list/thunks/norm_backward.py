"""Owns the backward thunks of LayerNorm and RMSNorm, and their row kernels: a block of rows at a time in scratch."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.command_list.formulas import PIECE
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.thunks.reduce import normalize, row_dots, row_dtype


def _block(rows: int, h: int) -> int:
    return max(1, min(rows, PIECE // max(h, 1)))


def norm_backward_scratch(rows: int, h: int, dtype: np.dtype[Any]) -> int:
    """What either row kernel takes."""
    block = _block(rows, h)
    return scratch_for((block * h, dtype), (block, row_dtype(dtype)), (block, row_dtype(dtype)), (h, dtype))


def _take(rows: int, h: int, dtype: np.dtype[Any], scratch: Scratch) -> tuple[Array, Array, Array, Array]:
    block = _block(rows, h)
    wide = row_dtype(dtype)
    return scratch.take((block, h), dtype), scratch.take(block, wide), scratch.take(block, wide), scratch.take(h, dtype)


def norm_backward(x: Array, dx: Array, eps: float, centre: bool, scratch: Scratch) -> None:
    """dx, which holds dx̂, becomes r (dx̂ - mean dx̂ - x̂ mean(dx̂ x̂)), the first mean only where centred."""
    rows, h = x.shape
    normal, deviation, mean, _ = _take(rows, h, dx.dtype, scratch)
    for r in range(0, rows, len(normal)):
        d = dx[r : r + len(normal)]
        n = len(d)
        xhat, dev, m = normal[:n], deviation[:n], mean[:n]
        normalize(x[r : r + n], xhat, dev, eps, centre)
        row_dots(d, xhat, m)
        m /= h
        np.multiply(xhat, m[:, None], out=xhat, casting="same_kind")
        if centre:
            np.add.reduce(d, axis=1, out=m, dtype=m.dtype)
            m /= h
            np.add(xhat, m[:, None], out=xhat, casting="same_kind")
        np.subtract(d, xhat, out=d)
        np.divide(d, dev[:, None], out=d, casting="same_kind")


def add_gain_gradient(x: Array, dy: Array, out: Array, eps: float, centre: bool, scratch: Scratch) -> None:
    """out += Σ dy x̂ over rows."""
    rows, h = x.shape
    normal, deviation, _, row = _take(rows, h, dy.dtype, scratch)
    for r in range(0, rows, len(normal)):
        d = dy[r : r + len(normal)]
        xhat = normal[: len(d)]
        normalize(x[r : r + len(d)], xhat, deviation[: len(d)], eps, centre)
        np.multiply(xhat, d, out=xhat)
        np.add.reduce(xhat, axis=0, out=row)
        np.add(out, row, out=out)


@thunk(name="RmsNormBackwardInput", label="rms_norm_backward_input", partial_extent="scales", where="host")
class RmsNormBackwardInput(Thunk):
    """dx = r (d - x̂ mean(d x̂)), d = dy gamma, x̂ = x r, r = 1 / sqrt(mean x² + eps); beta has no part in it."""

    x: In
    gamma: In
    beta: In | None
    dy: In
    dx: Out
    rows: int
    h: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        return norm_backward_scratch(self.rows, self.h, self.dx.storage.numpy)

    def run(self, x: Array, gamma: Array, beta: Array | None, dy: Array, dx: Array, scratch: Scratch) -> None:
        np.multiply(dy, gamma, out=dx)
        norm_backward(x, dx, self.eps, False, scratch)


@thunk(name="RmsNormBackwardGamma", label="rms_norm_backward_gamma", partial_extent="scales", where="host")
class RmsNormBackwardGamma(Thunk):
    """dgamma = Σ dy x / sqrt(mean x² + eps) over rows."""

    x: In
    gamma: In | None
    beta: In | None
    dy: In
    dgamma: Out
    rows: int
    h: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        return norm_backward_scratch(self.rows, self.h, self.dgamma.storage.numpy)

    def run(self, x: Array, gamma: Array | None, beta: Array | None, dy: Array, dgamma: Array, scratch: Scratch) -> None:
        dgamma[...] = 0
        add_gain_gradient(x, dy, dgamma, self.eps, False, scratch)


@thunk(name="RmsNormBackwardBeta", label="rms_norm_backward_beta", partial_extent="scales", where="host")
class RmsNormBackwardBeta(Thunk):
    """dbeta = Σ dy over rows."""

    x: In | None
    gamma: In | None
    beta: In | None
    dy: In
    dbeta: Out
    rows: int
    h: int
    eps: float = 0.0

    def run(self, x: Array | None, gamma: Array | None, beta: Array | None, dy: Array, dbeta: Array,
            scratch: Scratch) -> None:
        np.add.reduce(dy, axis=0, out=dbeta)


@thunk(name="LayerNormBackwardInput", label="layer_norm_backward_input", partial_extent="scales", where="host", extension=True)
class LayerNormBackwardInput(Thunk):
    """dx = r (d - mean d - x̂ mean(d x̂)), d = dy gamma, x̂ = (x - mean) r, r = 1 / sqrt(var + eps)."""

    x: In
    gamma: In
    dy: In
    dx: Out
    rows: int
    h: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        return norm_backward_scratch(self.rows, self.h, self.dx.storage.numpy)

    def run(self, x: Array, gamma: Array, dy: Array, dx: Array, scratch: Scratch) -> None:
        np.multiply(dy, gamma, out=dx)
        norm_backward(x, dx, self.eps, True, scratch)


@thunk(name="LayerNormBackwardGamma", label="layer_norm_backward_gamma", partial_extent="scales", where="host", extension=True)
class LayerNormBackwardGamma(Thunk):
    """dgamma = Σ dy (x - mean) / sqrt(var + eps) over rows."""

    x: In
    dy: In
    dgamma: Out
    rows: int
    h: int
    eps: float

    @property
    def scratch_bytes(self) -> int:
        return norm_backward_scratch(self.rows, self.h, self.dgamma.storage.numpy)

    def run(self, x: Array, dy: Array, dgamma: Array, scratch: Scratch) -> None:
        dgamma[...] = 0
        add_gain_gradient(x, dy, dgamma, self.eps, True, scratch)
