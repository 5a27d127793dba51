"""Owns the backward thunks of LayerNorm and RMSNorm, and their row kernels: a block of rows at a time in scratch."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_core.ir import Array
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.thunks.reduce import normalize, row_dots
from runtime.command_list.widths import PIECE, buffers, store, wide_dtype, wide_scratch


def _block(rows: int, h: int) -> int:
    return max(1, min(rows, PIECE // max(h, 1)))


def norm_backward_scratch(rows: int, h: int, dtype: np.dtype[Any]) -> int:
    """What either row kernel takes."""
    block, wide = _block(rows, h), wide_dtype(dtype)
    return scratch_for((block * h, wide), (block, wide), (block, wide), (h, wide)) + wide_scratch(dtype, block * h)


class _Rows:
    """Scratch of a block, f32 for halves: x̂, two values a row, a row, and dx̂ where it can't be made in place."""

    def __init__(self, rows: int, h: int, dtype: np.dtype[Any], scratch: Scratch) -> None:
        block, wide = _block(rows, h), wide_dtype(dtype)
        self.normal = scratch.take((block, h), wide)
        self.deviation, self.mean, self.row = scratch.take(block, wide), scratch.take(block, wide), scratch.take(h, wide)
        self.grad: Array | None
        (self.grad,) = buffers(scratch, dtype, block * h)

    def normalized(self, x: Array, eps: float, centre: bool) -> Array:
        """x̂ of a block of rows; ``deviation`` has the divisors."""
        xhat = self.normal[: len(x)]
        if self.grad is not None:
            np.copyto(xhat, x)
            x = xhat
        normalize(x, xhat, self.deviation[: len(x)], eps, centre)
        return xhat


def norm_backward(x: Array, dy: Array, gain: Array, dx: Array, eps: float, centre: bool, scratch: Scratch,
                  plus_one: bool = False) -> None:
    """dx = r (d - mean d - x̂ mean(d x̂)), d = dy gain (or dy + dy gain), the first mean only where centred."""
    rows, h = x.shape
    own = _Rows(rows, h, dx.dtype, scratch)
    for r in range(0, rows, len(own.normal)):
        to, given = dx[r : r + len(own.normal)], dy[r : r + len(own.normal)]
        n = len(to)
        d = to if own.grad is None else own.grad[: to.size].reshape(to.shape)
        np.multiply(given, gain, out=d, dtype=d.dtype)
        if plus_one:
            np.add(d, given, out=d)
        m = own.mean[:n]
        xhat = own.normalized(x[r : r + n], eps, centre)
        row_dots(d, xhat, m)
        m /= h
        np.multiply(xhat, m[:, None], out=xhat)
        if centre:
            np.add.reduce(d, axis=1, out=m)
            m /= h
            np.add(xhat, m[:, None], out=xhat)
        np.subtract(d, xhat, out=d)
        np.divide(d, own.deviation[:n, None], out=to)


def gain_gradient(x: Array, dy: Array, out: Array, eps: float, centre: bool, scratch: Scratch) -> None:
    """out = Σ dy x̂ over rows."""
    rows, h = x.shape
    own = _Rows(rows, h, dy.dtype, scratch)
    total = out if own.grad is None else own.grad[:h]  # of halves only: nothing else asks for dx̂'s place
    total[...] = 0
    for r in range(0, rows, len(own.normal)):
        d = dy[r : r + len(own.normal)]
        xhat = own.normalized(x[r : r + len(d)], eps, centre)
        np.multiply(xhat, d, out=xhat)
        np.add.reduce(xhat, axis=0, out=own.row)
        np.add(total, own.row, out=total)
    if own.grad is not None:
        store(out, total)


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
        norm_backward(x, dy, gamma, dx, self.eps, False, scratch)


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
        gain_gradient(x, dy, dgamma, self.eps, False, scratch)


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

    @property
    def scratch_bytes(self) -> int:
        return wide_scratch(self.dbeta.storage.numpy, self.h)

    def run(self, x: Array | None, gamma: Array | None, beta: Array | None, dy: Array, dbeta: Array,
            scratch: Scratch) -> None:
        (wide,) = buffers(scratch, dbeta.dtype, self.h)
        total = dbeta if wide is None else wide
        np.add.reduce(dy, axis=0, out=total, dtype=total.dtype)
        store(dbeta, total)


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
        norm_backward(x, dy, gamma, dx, self.eps, True, scratch)


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
        gain_gradient(x, dy, dgamma, self.eps, True, scratch)
