"""Owns elementwise thunks: binaries, comparisons, selections, activations, casts."""

from __future__ import annotations

import numpy as np

from planner_core.ir import Array, DType
from runtime.command_list.formulas import COMPARES, activate, activation_scratch, binary, binary_scratch
from runtime.command_list.operand import In, InOut, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import convert, convert_scratch


@thunk(name="Nop", label="nop", partial_extent="full_ok", where="none")
class Nop(Thunk):
    """Nothing: the place of a thunk that a pass took away."""

    def run(self, scratch: Scratch) -> None:
        pass


@thunk(name="Cast", label="cast", partial_extent="scales", where="gpu")
class Cast(Thunk):
    """dst = src, f32 to f16 or back; an f16 that is stored as f32 is rounded all the same."""

    src: In
    dst: Out
    len: int
    src_dt: str
    dst_dt: str

    @property
    def scratch_bytes(self) -> int:
        return convert_scratch(self.dst.storage, DType.parse(self.dst_dt), self.len)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        convert(src, dst, DType.parse(self.dst_dt), scratch)


@thunk(name="CastHost", label="cast_host", partial_extent="scales", where="host")
class CastHost(Thunk):
    """dst = src, any dtype to any; floats to integers toward zero, anything to bool as ``!= 0``. What ``dst_dt`` can't hold is
    rounded or wraps, also where it is stored wider."""

    src: In
    dst: Out
    len: int
    src_dt: DType
    dst_dt: DType

    @property
    def scratch_bytes(self) -> int:
        return convert_scratch(self.dst.storage, self.dst_dt, self.len)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        convert(src, dst, self.dst_dt, scratch)


@thunk(name="NarrowStored", label="narrow_stored", partial_extent="scales", where="gpu", extension=True)
class NarrowStored(Thunk):
    """data = data as values of ``to``, which is stored wider: halves rounded, short integers modulo 2ⁿ, bools 0 or 1."""

    data: InOut
    len: int
    to: DType

    @property
    def scratch_bytes(self) -> int:
        return convert_scratch(self.data.storage, self.to, self.len)

    def run(self, data: Array, scratch: Scratch) -> None:
        convert(data, data, self.to, scratch)


@thunk(name="CastTruncF32", label="cast_trunc_f32", partial_extent="scales", where="gpu")
class CastTruncF32(Thunk):
    """dst = src toward zero; stays f32."""

    src: In
    dst: Out
    len: int

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        np.trunc(src, out=dst)


@thunk(name="ActivationInPlace", label="activation", partial_extent="scales", where="gpu")
class ActivationInPlace(Thunk):
    """data = act(data)."""

    data: InOut
    len: int
    act: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def scratch_bytes(self) -> int:
        return activation_scratch(self.act, self.data.storage, self.len)

    def run(self, data: Array, scratch: Scratch) -> None:
        activate(self.act, data, data, scratch, self.alpha, self.beta)


@thunk(name="ActivationOut", label="activation_out", partial_extent="scales", where="gpu")
class ActivationOut(Thunk):
    """dst = act(src)."""

    src: In
    dst: Out
    len: int
    act: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def scratch_bytes(self) -> int:
        return activation_scratch(self.act, self.src.storage, self.len)

    def run(self, src: Array, dst: Array, scratch: Scratch) -> None:
        activate(self.act, src, dst, scratch, self.alpha, self.beta)


@thunk(name="BinaryFull", label="binary", partial_extent="scales", where="gpu")
class BinaryFull(Thunk):
    """dst = lhs op rhs, equal sizes."""

    lhs: In
    rhs: In
    dst: Out
    len: int
    op: str

    @property
    def scratch_bytes(self) -> int:
        return binary_scratch(self.op, self.dst.storage, self.len)

    def run(self, lhs: Array, rhs: Array, dst: Array, scratch: Scratch) -> None:
        binary(self.op, lhs, rhs, dst, scratch)


@thunk(name="BinaryBroadcast", label="binary_broadcast", partial_extent="no", where="gpu", proven=True)
class BinaryBroadcast(Thunk):
    """dst = lhs op rhs over ``out_dims``; strides count elements, 0 = broadcast."""

    lhs: In
    rhs: In
    dst: Out
    len: int
    op: str
    rank: int
    out_dims: tuple[int, ...]
    lhs_strides: tuple[int, ...]
    rhs_strides: tuple[int, ...]

    @property
    def scratch_bytes(self) -> int:
        return binary_scratch(self.op, self.dst.storage, self.len)

    def run(self, lhs: Array, rhs: Array, dst: Array, scratch: Scratch) -> None:
        binary(self.op, lhs, rhs, dst, scratch)


@thunk(name="BiasAdd", label="bias_add", partial_extent="scales", where="gpu")
class BiasAdd(Thunk):
    """dst[m,n] = src[m,n] + bias[n]."""

    src: In
    bias: In
    dst: Out
    m: int
    n: int

    def run(self, src: Array, bias: Array, dst: Array, scratch: Scratch) -> None:
        binary("add", src, bias, dst, scratch)


@thunk(name="Compare", label="compare", partial_extent="scales", where="gpu")
class Compare(Thunk):
    """dst = lhs op rhs as 0 or 1; either side may be one element."""

    lhs: In
    rhs: In
    dst: Out
    len: int
    op: str
    lhs_scalar: bool = False
    rhs_scalar: bool = False

    def run(self, lhs: Array, rhs: Array, dst: Array, scratch: Scratch) -> None:
        COMPARES[self.op](lhs, rhs, out=dst)


@thunk(name="CompareBroadcast", label="compare_broadcast", partial_extent="no", where="host", extension=True, proven=True)
class CompareBroadcast(Thunk):
    """dst = lhs op rhs as 0 or 1, with NumPy broadcasting."""

    lhs: In
    rhs: In
    dst: Out
    op: str

    def run(self, lhs: Array, rhs: Array, dst: Array, scratch: Scratch) -> None:
        COMPARES[self.op](lhs, rhs, out=dst)


def _select(cond: Array, on_true: Array, on_false: Array, dst: Array, scratch: Scratch) -> None:
    np.copyto(dst, on_false)
    if cond.dtype != np.bool_:
        mask = scratch.take(cond.shape, np.bool_)
        np.not_equal(cond, 0, out=mask)
        cond = mask
    np.copyto(dst, on_true, where=cond)


@thunk(name="Where", label="where", partial_extent="scales", where="gpu")
class Where(Thunk):
    """dst = on_true where cond != 0, else on_false; each may be one element."""

    cond: In
    on_true: In
    on_false: In
    dst: Out
    len: int
    cond_scalar: bool = False
    true_scalar: bool = False
    false_scalar: bool = False

    @property
    def scratch_bytes(self) -> int:
        return 0 if self.cond.storage is DType.BOOL else scratch_for((self.cond.numel, DType.BOOL.numpy))

    def run(self, cond: Array, on_true: Array, on_false: Array, dst: Array, scratch: Scratch) -> None:
        _select(cond, on_true, on_false, dst, scratch)


@thunk(name="WhereBroadcast", label="where_broadcast", partial_extent="no", where="host", extension=True, proven=True)
class WhereBroadcast(Thunk):
    """dst = on_true where cond != 0, else on_false, with NumPy broadcasting."""

    cond: In
    on_true: In
    on_false: In
    dst: Out

    @property
    def scratch_bytes(self) -> int:
        return 0 if self.cond.storage is DType.BOOL else scratch_for((self.cond.numel, DType.BOOL.numpy))

    def run(self, cond: Array, on_true: Array, on_false: Array, dst: Array, scratch: Scratch) -> None:
        _select(cond, on_true, on_false, dst, scratch)


@thunk(name="Fma", label="fma", partial_extent="no", where="gpu", proven=True)
class Fma(Thunk):
    """dst = a * b + c; operands broadcast as in NumPy (the GPU form wants equal sizes)."""

    a: In
    b: In
    c: In
    dst: Out
    len: int

    def run(self, a: Array, b: Array, c: Array, dst: Array, scratch: Scratch) -> None:
        np.multiply(a, b, out=dst)
        np.add(dst, c, out=dst)
