"""Owns Fourier transforms, codebook assignment and im2col."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from planner_core.ir import Array, DType
from planner_core.ir.ops.signal import METRICS, NORMS
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import PIECE


@thunk(name="Fft1d", label="fft1d", partial_extent="no", where="gpu")
class Fft1d(Thunk):
    """dst[outer, 2 n_complex] = the transform of each row, real block then imaginary block, some rows at a time;
    ``real_input``: src has the real block only. norm_tag: 0 backward, 1 ortho, 2 forward."""

    src: In
    dst: Out
    outer: int
    n_complex: int
    inverse: bool
    norm_tag: int
    dtype: DType
    real_input: bool

    @property
    def place(self) -> str:
        return "gpu" if self.dtype is DType.F32 and self.n_complex.bit_count() == 1 else "host"

    @property
    def _rows(self) -> int:
        return max(1, min(self.outer, PIECE // max(self.n_complex, 1)))

    @property
    def _complex(self) -> np.dtype[np.complexfloating]:
        return np.dtype(np.complex128 if self.dtype is DType.F64 else np.complex64)

    @property
    def scratch_bytes(self) -> int:
        return scratch_for((self._rows * self.n_complex, self._complex))

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        n = self.n_complex
        import scipy.fft

        transform: Any = scipy.fft.ifft if self.inverse else scipy.fft.fft
        piece = scratch.take((self._rows, n), self._complex)
        for r in range(0, self.outer, self._rows):
            x, out = src[r : r + self._rows], dst[r : r + self._rows]
            z = piece[: len(x)]
            np.copyto(z.real, x[:, :n])
            z.imag[...] = 0 if self.real_input else x[:, n:]
            y = transform(z, axis=1, norm=NORMS[self.norm_tag], overwrite_x=True)
            np.copyto(out[:, :n], y.real)
            np.copyto(out[:, n:], y.imag)


@thunk(name="VqAssign", label="vq_assign", partial_extent="no", where="gpu")
class VqAssign(Thunk):
    """out[n] = index of each row's best entry of cb[k, d], the first of equals; metric 0 nearest, 1 largest product,
    2 largest product of unit vectors."""

    x: In
    cb: In
    out: Out
    n: int
    d: int
    k: int
    metric: int

    @property
    def _rows(self) -> int:
        return max(1, min(self.n, PIECE // max(self.k, 1)))

    @property
    def scratch_bytes(self) -> int:
        dtype = self.x.storage.numpy
        return scratch_for((self._rows * self.k, dtype), (self.k, dtype), (self._rows, np.dtype(np.intp)))

    def run(self, x: Array, cb: Array, out: Array, scratch: Scratch) -> None:
        scores, norms = scratch.take((self._rows, self.k), x.dtype), scratch.take(self.k, x.dtype)
        found = scratch.take(self._rows, np.intp)
        np.matmul(cb[:, None, :], cb[:, :, None], out=norms[:, None, None])
        if METRICS[self.metric] == "cosine":
            np.sqrt(norms, out=norms)
        for r in range(0, self.n, self._rows):
            rows = x[r : r + self._rows]
            s = scores[: len(rows)]
            np.matmul(rows, cb.T, out=s)
            if METRICS[self.metric] == "l2":
                s *= 2
                s -= norms
            elif METRICS[self.metric] == "cosine":
                s /= norms
            np.argmax(s, axis=1, out=found[: len(rows)])
            np.copyto(out[r : r + self._rows], found[: len(rows)], casting="unsafe")


@thunk(name="Im2Col", label="im2col", partial_extent="no", where="host")
class Im2Col(Thunk):
    """col[n, c kh kw, h_out w_out] = the windows of x, zero outside (PyTorch's unfold)."""

    x: In
    col: Out
    n: int
    c_in: int
    h: int
    w: int
    h_out: int
    w_out: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw_dil: int

    def run(self, x: Array, col: Array, scratch: Scratch) -> None:
        into = col.reshape(self.n, self.c_in, self.kh, self.kw, self.h_out, self.w_out)
        into[...] = 0
        for i, j in itertools.product(range(self.kh), range(self.kw)):
            y, ys = self._inside(i * self.dh - self.ph, self.sh, self.h_out, self.h)
            z, zs = self._inside(j * self.dw_dil - self.pw, self.sw, self.w_out, self.w)
            np.copyto(into[:, :, i, j, y, z], x[:, :, ys, zs])

    @staticmethod
    def _inside(first: int, step: int, count: int, extent: int) -> tuple[slice, slice]:
        """(outputs whose tap lies inside, the elements they see)."""
        lo = max(0, -(first // step))
        hi = max(lo, min(count, (extent - 1 - first) // step + 1))
        return slice(lo, hi), slice(first + lo * step, first + (hi - 1) * step + 1, step) if hi > lo else slice(0, 0)
