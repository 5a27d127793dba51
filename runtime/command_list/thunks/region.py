"""Owns elementwise regions: a chain of steps per element, run piece by piece, one scratch piece a step in use.

The steps' words are those of ``planner_core.ir.ops.region``.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from planner_core.ir import Array, DType
from planner_core.ir.ops.region import ACTIVATION_STEP, BINARY_STEP, REGION_STEP, Step, step_name, step_operands
from runtime.command_list.formulas import ACTIVATIONS, BINARIES
from runtime.command_list.operand import In, Operand, Out
from runtime.command_list.scratch import Scratch, scratch_for
from runtime.command_list.thunk import Thunk, thunk
from runtime.command_list.widths import PIECE, store, wide_dtype, widened

__all__ = ["PROLOGUE_NEAREST2X", "BatchElementwiseRegion", "ElementwiseRegion", "flat_chain", "reading", "steps_of"]

PROLOGUE_NONE, PROLOGUE_NEAREST2X = range(2)
_ROUNDED = {"to_f16": DType.F16.numpy, "to_bf16": np.dtype(ml_dtypes.bfloat16)}


def flat_chain(steps: Sequence[Step]) -> tuple[int, ...]:
    """Four words a step."""
    return tuple(w for s in steps for w in s)


def steps_of(chain: tuple[int, ...]) -> tuple[Step, ...]:
    """Inverse of ``flat_chain``."""
    return tuple((chain[i], chain[i + 1], chain[i + 2], chain[i + 3]) for i in range(0, len(chain), 4))


def _pieces(count: int, storage: DType, inputs: int, steps: int) -> int:
    """Scratch: a piece an input that must be repeated (or widened, of halves), one a step, one temporary, one for half widths."""
    piece = (min(count, PIECE), wide_dtype(storage.numpy))
    return scratch_for(*[piece] * (inputs + steps + 1), (min(count, PIECE), DType.F16.numpy))


class _Chain:
    """Steps over pieces of at most ``PIECE`` elements; buffers are taken once. Halves are f32 between steps and rounded at the
    end, as in the op's reference; a region that stands for ops of a half type rounds after each, by steps of its own."""

    def __init__(self, steps: tuple[Step, ...], inputs: int, count: int, dtype: np.dtype[np.generic], scratch: Scratch) -> None:
        size = min(count, PIECE)
        self.steps = steps
        self.rounds, dtype = wide_dtype(dtype) != dtype, wide_dtype(dtype)
        self.repeated = [scratch.take(size, dtype) for _ in range(inputs)]
        self.results = [scratch.take(size, dtype) for _ in steps]
        self.temporary = scratch.take(size, dtype)
        self.half = scratch.take(size, np.float16)

    def read(self, k: int, x: Array, start: int, count: int, t: ElementwiseRegion | BatchElementwiseRegion) -> Array:
        """Input k of elements [start, start + count), as the thunk's mask and moduli say."""
        buffer = self.repeated[k] if x.dtype != self.temporary.dtype else None
        if t.scalar_input_mask >> k & 1:
            return widened(x, buffer)
        if t.input_modulus and t.input_modulus[k]:
            return _repeat_piece(x, start, self.repeated[k][:count])
        return widened(x[start : start + count], buffer)

    def run(self, xs: list[Array], out: Array) -> None:
        """One piece: ``out`` = the last step over xs; each x has out's size or one element."""
        n, last = out.size, len(self.steps) - 1
        done: list[Array] = []
        for i, s in enumerate(self.steps):
            args = [done[o ^ REGION_STEP] if o & REGION_STEP else xs[o] for o in step_operands(s)]
            whole = any(a.size == n for a in args)
            into = out if i == last and not self.rounds else self.results[i][: n if whole else 1]
            target = into if whole or n == 1 else self.results[i][:1]
            self._step(s, args, target)
            if target is not into:
                into[...] = target
            done.append(into)
        if self.rounds:
            store(out, done[-1])

    def _step(self, s: Step, args: list[Array], into: Array) -> None:
        name = step_name(s)
        if s[0] == BINARY_STEP:
            BINARIES[name](*args, out=into)
        elif s[0] == ACTIVATION_STEP:
            ACTIVATIONS[name](args[0], into, self.temporary[: into.size], 0.0, 0.0)
        elif name == "trunc":
            np.trunc(args[0], out=into)
        elif name in _ROUNDED:
            narrow = self.half[: into.size].view(_ROUNDED[name])
            np.copyto(narrow, args[0], casting="unsafe")
            np.copyto(into, narrow)
        else:
            np.copyto(into, args[0])


def _repeat_piece(x: Array, start: int, into: Array) -> Array:
    """into[i] = x[(start + i) % len(x)]."""
    at, done = start % x.size, 0
    while done < into.size:
        n = min(x.size - at, into.size - done)
        into[done : done + n] = x[at : at + n]
        at, done = 0, done + n
    return into


def _upsampled_piece(x: Array, start: int, into: Array, width: int, height: int) -> Array:
    """into[i] = element start + i of the nearest 2× upsample of planes x[.., height / 2, width / 2]."""
    done, half = 0, width // 2
    while done < into.size:
        row, column = divmod(start + done, width)
        plane, y = divmod(row, height)
        n = min(width - column, into.size - done)
        line = x[(plane * (height // 2) + y // 2) * half :][:half]
        first = column % 2  # an odd start shows the second copy of its element
        columns = into[done : done + n]
        columns[first::2] = line[(column + first) // 2 :][: len(columns[first::2])]
        columns[1 - first :: 2] = line[(column + 1 - first) // 2 :][: len(columns[1 - first :: 2])]
        done += n
    return into


@thunk(name="ElementwiseRegion", label="elementwise_region", partial_extent="scales", where="gpu")
class ElementwiseRegion(Thunk):
    """dst[i] = the last step of ``chain`` (four words a step) over inputs at i, all flat. Bit k of
    ``scalar_input_mask``: input k is one element; ``input_modulus[k]`` m > 0: input k repeats after m elements.

    ``prologue`` 1: input ``prologue_input`` is NCHW and read through a nearest 2× upsample to out_n … out_w.
    """

    inputs: tuple[In, ...]
    dst: Out
    len: int
    chain: tuple[int, ...]
    scalar_input_mask: int = 0
    input_modulus: tuple[int, ...] = ()
    prologue: int = PROLOGUE_NONE
    out_n: int = 0
    out_c: int = 0
    out_h: int = 0
    out_w: int = 0
    prologue_input: int = 0

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self.chain)

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    @property
    def num_steps(self) -> int:
        return len(self.chain) // 4

    @property
    def input_offs(self) -> tuple[int, ...]:
        """Offsets in f32 elements."""
        return tuple(o.offset // 4 for o in self.inputs)

    @property
    def is_dense(self) -> bool:
        """No prologue, no scalar, no modulus: what the region rewrite asks."""
        return not self.prologue and not self.scalar_input_mask and not any(self.input_modulus)

    @property
    def scratch_bytes(self) -> int:
        return _pieces(self.len, self.dst.storage, len(self.inputs), self.num_steps)

    def run(self, inputs: tuple[Array, ...], dst: Array, scratch: Scratch) -> None:
        chain = _Chain(self.steps, len(inputs), self.len, dst.dtype, scratch)
        for i in range(0, self.len, PIECE):
            out = dst[i : i + PIECE]
            xs = []
            for k, x in enumerate(inputs):
                if self.prologue and k == self.prologue_input:
                    xs.append(_upsampled_piece(x, i, chain.repeated[k][: out.size], self.out_w, self.out_h))
                else:
                    xs.append(chain.read(k, x, i, out.size, self))
            chain.run(xs, out)


@thunk(name="BatchElementwiseRegion", label="batch_elementwise_region", partial_extent="scales", where="gpu")
class BatchElementwiseRegion(Thunk):
    """``num_batch`` equal regions in one launch: slice s of dst[num_batch, slice_len] = ``chain`` over the s-th group of
    inputs (batch-major). Masks and moduli as in ElementwiseRegion, one set for all slices."""

    inputs: tuple[In, ...]
    dst: Out
    slice_len: int
    num_batch: int
    chain: tuple[int, ...]
    scalar_input_mask: int = 0
    input_modulus: tuple[int, ...] = ()

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self.chain)

    @property
    def num_steps(self) -> int:
        return len(self.chain) // 4

    @property
    def base_dst(self) -> int:
        """Byte offset of slice 0."""
        return self.dst.offset

    @property
    def slice_elems(self) -> int:
        """Elements from one slice of dst to the next."""
        return self.slice_len

    @property
    def batch_input_offs(self) -> tuple[int, ...]:
        """Offsets in f32 elements, batch-major."""
        return tuple(o.offset // 4 for o in self.inputs)

    @property
    def scratch_bytes(self) -> int:
        return _pieces(self.slice_len, self.dst.storage, len(self.inputs) // self.num_batch, self.num_steps)

    def run(self, inputs: tuple[Array, ...], dst: Array, scratch: Scratch) -> None:
        group = len(inputs) // self.num_batch
        chain = _Chain(self.steps, group, self.slice_len, dst.dtype, scratch)
        for s in range(self.num_batch):
            for i in range(0, self.slice_len, PIECE):
                out = dst[s, i : i + PIECE]
                mine = inputs[s * group : (s + 1) * group]
                chain.run([chain.read(k, x, i, out.size, self) for k, x in enumerate(mine)], out)


def reading(inputs: Sequence[Operand], length: int, upsampled: int = -1) -> tuple[int, tuple[int, ...]]:
    """(scalar mask, moduli) of flat inputs of a region of ``length`` elements; input ``upsampled`` has its own way."""
    mask = sum(1 << k for k, o in enumerate(inputs) if o.numel == 1 < length)
    moduli = tuple(o.numel if 1 < o.numel < length and k != upsampled else 0 for k, o in enumerate(inputs))
    return mask, moduli
