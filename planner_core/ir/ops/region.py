"""Owns elementwise regions: chains of steps per element, their text, and batches of equal chains.

A step is ``(kind, sub_op, left, right)``: kind 0 activation, 1 cast, 2 binary. An operand is an input's index or, with
bit 31 set, the result of an earlier step; a step of one operand has right = 0.
"""

from __future__ import annotations

import re

import numpy as np

from planner_core.errors import GraphError
from planner_core.ir import rows
from planner_core.ir.op import Array, Op, op
from planner_core.ir.ops.elementwise import ACTIVATION, BINARY, IN_PLACE_BINARIES
from planner_core.ir.shape import Dim, Shape, broadcast_dims, dim

__all__ = [
    "ACTIVATION_STEP", "BINARY_STEP", "CAST_STEP", "MAX_BATCH_INPUTS", "MAX_INPUTS", "MAX_STEPS", "REGION_ACTIVATIONS",
    "REGION_BINARIES", "REGION_CASTS", "REGION_STEP", "BatchElementwiseRegion", "ElementwiseRegion", "Step",
    "activation_step", "binary_step", "cast_step", "region_steps", "region_text", "result_of", "step_name", "step_operands",
]

Step = tuple[int, int, int, int]
ACTIVATION_STEP, CAST_STEP, BINARY_STEP = range(3)
REGION_STEP = 1 << 31
"""Set in an operand that is the result of a step."""
MAX_INPUTS, MAX_STEPS, MAX_BATCH_INPUTS = 16, 32, 64

REGION_BINARIES = tuple(BINARY)[:7]
REGION_ACTIVATIONS = tuple(ACTIVATION)[:12]
REGION_CASTS = ("keep", "to_f16", "to_bf16", "trunc")
"""Cast sub-ops: 0 the identity on f32, 1 rounded to f16 and back, 2 rounded to bf16 and back, 3 toward zero."""
_SUB_OPS = {ACTIVATION_STEP: REGION_ACTIVATIONS, CAST_STEP: REGION_CASTS, BINARY_STEP: REGION_BINARIES}


# --- reading and writing steps ------------------------------------------------------------------------


def result_of(step: int) -> int:
    """The operand that is the result of step ``step``."""
    return step | REGION_STEP


def activation_step(kind: str, x: int) -> Step:
    """``kind(x)``; ``x`` an input's index or ``result_of(step)``."""
    return ACTIVATION_STEP, _sub_op(ACTIVATION_STEP, kind), x, 0


def cast_step(kind: str, x: int) -> Step:
    """``kind(x)`` with one of ``REGION_CASTS``."""
    return CAST_STEP, _sub_op(CAST_STEP, kind), x, 0


def binary_step(kind: str, left: int, right: int) -> Step:
    """``left kind right``."""
    return BINARY_STEP, _sub_op(BINARY_STEP, kind), left, right


def _sub_op(kind: int, name: str) -> int:
    names = _SUB_OPS[kind]
    if name not in names:
        raise GraphError(f"a region has no step {name!r}; wanted one of {', '.join(names)}")
    return names.index(name)


def step_name(step: Step) -> str:
    """``mul``, ``gelu``, ``to_f16``, …"""
    return _SUB_OPS[step[0]][step[1]]


def step_operands(step: Step) -> tuple[int, ...]:
    """One operand, or two of a binary."""
    return step[2:] if step[0] == BINARY_STEP else step[2:3]


def used_inputs(steps: tuple[Step, ...]) -> frozenset[int]:
    """Indices of the inputs that the last step depends on."""
    todo, steps_used, found = [len(steps) - 1], {len(steps) - 1}, set[int]()
    while todo:
        for o in step_operands(steps[todo.pop()]):
            if not o & REGION_STEP:
                found.add(o)
            elif (k := o ^ REGION_STEP) not in steps_used:
                steps_used.add(k)
                todo.append(k)
    return frozenset(found)


def region_text(steps: tuple[Step, ...]) -> str:
    """``s0 = add(x0, x1); s1 = gelu(s0)``: x0, x1, … the inputs, the last step the result. Inverse: ``region_steps``."""
    def operand(o: int) -> str:
        return f"s{o ^ REGION_STEP}" if o & REGION_STEP else f"x{o}"

    return "; ".join(f"s{i} = {step_name(s)}({', '.join(map(operand, step_operands(s)))})" for i, s in enumerate(steps))


def region_steps(text: str) -> tuple[Step, ...]:
    """The steps that ``region_text`` wrote; ``GraphError`` names what doesn't parse."""
    out: list[Step] = []
    for part in filter(None, (p.strip() for p in text.split(";"))):
        found = re.fullmatch(rf"s{len(out)} = (\w+)\(([sx])(\d+)(?:, ([sx])(\d+))?\)", part)
        if not found:
            raise GraphError(f"region step {part!r}: wanted s{len(out)} = op(operand) or op(operand, operand), operands x0 or s0")
        name, a, i, b, j = found.groups()
        left = result_of(int(i)) if a == "s" else int(i)
        kind = next((k for k, names in _SUB_OPS.items() if name in names), BINARY_STEP)
        if (kind == BINARY_STEP) != (b is not None):
            raise GraphError(f"region step {part!r}: {name} takes {2 if kind == BINARY_STEP else 1} operands")
        right = 0 if b is None else result_of(int(j)) if b == "s" else int(j)
        out.append((kind, _sub_op(kind, name), left, right))
    return tuple(out)


def _check_steps(what: str, steps: tuple[Step, ...], inputs: int) -> None:
    if not 1 <= inputs <= MAX_INPUTS or not 1 <= len(steps) <= MAX_STEPS:
        raise GraphError(f"{what} of {inputs} inputs and {len(steps)} steps: wanted 1 to {MAX_INPUTS} inputs, "
                         f"1 to {MAX_STEPS} steps")
    for i, s in enumerate(steps):
        if s[0] not in _SUB_OPS or not 0 <= s[1] < len(_SUB_OPS[s[0]]):
            raise GraphError(f"{what} step {i} {s}: no such kind and sub-op")
        for o in step_operands(s):
            low = o ^ REGION_STEP if o & REGION_STEP else o
            if not 0 <= low < (i if o & REGION_STEP else inputs):
                raise GraphError(f"{what} step {i} {s}: operand {'step' if o & REGION_STEP else 'input'} {low} isn't there "
                                 f"({inputs} inputs, {i} steps before it)")
        if s[0] != BINARY_STEP and s[3]:
            raise GraphError(f"{what} step {i} {s}: a step of one operand has right = 0")


# --- shapes and values --------------------------------------------------------------------------------


def _same(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    return len(a) == len(b) and all(p.same(q) for p, q in zip(a, b, strict=True))


def _joined(what: str, xs: list[Shape]) -> Shape:
    """The region's shape, after checking that each input is full, one element or a trailing broadcast."""
    if any(not x.dtype.is_float for x in xs) or any(x.dtype is not xs[0].dtype for x in xs):
        raise GraphError(f"{what} of {', '.join(map(str, xs))}: wanted one float dtype")
    out = broadcast_dims(*xs)
    for i, x in enumerate(xs):
        core = list(x.dims)
        while core and core[0].value == 1:
            core.pop(0)
        if core and not _same(tuple(core), out[len(out) - len(core):]):
            raise GraphError(f"{what} input {i} {x}: neither {Shape(out, x.dtype)}, nor one element, nor its last axes")
    return Shape(out, xs[0].dtype)


def _run(steps: tuple[Step, ...], xs: tuple[Array, ...]) -> Array:
    import ml_dtypes

    done: list[Array] = []
    for s in steps:
        args = [done[o ^ REGION_STEP] if o & REGION_STEP else xs[o] for o in step_operands(s)]
        name = step_name(s)
        if s[0] == BINARY_STEP:
            y = BINARY[name](*args)
        elif s[0] == ACTIVATION_STEP:
            y = ACTIVATION[name](args[0], 0.0, 0.0)
        else:
            to = {"to_f16": np.dtype(np.float16), "to_bf16": np.dtype(ml_dtypes.bfloat16)}.get(name)
            y = np.trunc(args[0]) if name == "trunc" else args[0] if to is None else args[0].astype(to)
        done.append(np.asarray(y, dtype=xs[0].dtype))
    return done[-1]


@op(family="elementwise", operands="xs*", rows=rows.region)
class ElementwiseRegion(Op):
    """The last of ``steps``, each an activation, cast or binary of inputs and earlier steps, per element.

    It is one op: of halves it computes in f32 and rounds once, at its end. Where it stands for ops that each round, a
    ``to_f16`` or ``to_bf16`` step after each says so (no fusion rule makes a region of halves).
    Inputs, at most 16, of one float dtype: the output's shape, one element, or its last axes. ``prologue``
    "nearest2x": input ``prologue_input`` (NCHW) is read through a nearest 2× upsample of H and W.
    """

    steps: tuple[tuple[int, int, int, int], ...]
    prologue: str = ""
    prologue_input: int = 0

    def _seen(self, xs: tuple[Shape, ...]) -> list[Shape]:
        if self.prologue not in ("", "nearest2x"):
            raise GraphError(f"ElementwiseRegion prologue {self.prologue!r}: wanted nearest2x or none")
        seen = list(xs)
        if self.prologue:
            i = self.prologue_input
            if not 0 <= i < len(xs) or xs[i].rank != 4:
                raise GraphError(f"ElementwiseRegion prologue input {i} of {len(xs)}: wanted an NCHW input")
            n, c, h, w = xs[i].dims
            seen[i] = xs[i].with_dims((n, c, h * 2, w * 2))
        return seen

    @property
    def by_element(self) -> bool:
        """A prologue reads through an upsample; the last step writes where its operands may lie."""
        last = self.steps[-1]
        return not self.prologue and (last[0] != BINARY_STEP or step_name(last) in IN_PLACE_BINARIES)

    def infer(self, *xs: Shape) -> Shape:
        _check_steps("ElementwiseRegion", self.steps, len(xs))
        seen = self._seen(xs)
        try:
            out = _joined("ElementwiseRegion", seen)
        except GraphError as e:
            raise GraphError(f"ElementwiseRegion of xs {', '.join(map(str, xs))}: {e}") from e
        if self.prologue and not _same(seen[self.prologue_input].dims, out.dims):
            raise GraphError(f"ElementwiseRegion: prologue input {xs[self.prologue_input]} doesn't fill {out}")
        return out

    def evaluate(self, *xs: Array) -> Array:
        seen = list(xs)
        if self.prologue:
            seen[self.prologue_input] = seen[self.prologue_input].repeat(2, axis=2).repeat(2, axis=3)
        y = _run(self.steps, tuple(seen))
        return np.array(np.broadcast_to(y, np.broadcast_shapes(*(x.shape for x in seen))))

    def flops(self, out: Shape, *ins: Shape) -> int:
        return len(self.steps) * out.numel

    @property
    def detail(self) -> str:
        return f"ElementwiseRegion({' · '.join(map(step_name, self.steps))})"


@op(family="elementwise", operands="xs*")
class BatchElementwiseRegion(Op):
    """``num_batch`` equal regions: slice i of the output is ``steps`` over the i-th group of inputs.

    Operands are batch-major: the inputs of slice 0, then of slice 1, …; every slice has the same shapes, as in
    ``ElementwiseRegion``; at most 64 operands; output ``[num_batch, *slice]``.
    """

    steps: tuple[tuple[int, int, int, int], ...]
    num_batch: int

    def infer(self, *xs: Shape) -> Shape:
        if self.num_batch < 1 or len(xs) % self.num_batch or len(xs) > MAX_BATCH_INPUTS:
            raise GraphError(f"BatchElementwiseRegion of {len(xs)} operands in {self.num_batch} slices: wanted equal "
                             f"groups, {MAX_BATCH_INPUTS} operands at most")
        k = len(xs) // self.num_batch
        _check_steps("BatchElementwiseRegion", self.steps, k)
        out = _joined("BatchElementwiseRegion", list(xs[:k]))
        for i, x in enumerate(xs):
            if x.dtype is not xs[0].dtype or not _same(x.dims, xs[i % k].dims):
                raise GraphError(f"BatchElementwiseRegion operand {i} {x}: slice 0 has {xs[i % k]} there")
        return Shape((dim(self.num_batch), *out.dims), out.dtype)

    def evaluate(self, *xs: Array) -> Array:
        k = len(xs) // self.num_batch
        slices = [_run(self.steps, xs[i : i + k]) for i in range(0, len(xs), k)]
        dims = np.broadcast_shapes(*(x.shape for x in xs[:k]))
        return np.stack([np.broadcast_to(y, dims) for y in slices])

    def flops(self, out: Shape, *ins: Shape) -> int:
        return len(self.steps) * out.numel

    @property
    def detail(self) -> str:
        return f"BatchElementwiseRegion({self.num_batch} × {' · '.join(map(step_name, self.steps))})"
