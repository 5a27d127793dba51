"""Owns the binding of input dims: symbols, whole shapes, the axis-0 default, one error for all that is open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner_core.errors import GraphError, ImportModelError, OpenDimError
from planner_core.importers.onnx_extents import canonical
from planner_core.importers.onnx_tensors import STRING, dtype_of
from planner_core.ir import UNKNOWN, Dim, DType, Shape

if TYPE_CHECKING:
    import onnx

__all__ = ["BoundInputs", "bind_inputs", "declared_dims"]


@dataclass(frozen=True, slots=True)
class BoundInputs:
    """Shapes by input, values by symbol, and what was assumed."""

    shapes: dict[str, Shape]
    values: dict[str, int]
    notes: list[str]
    open: frozenset[str] = frozenset()
    """Inputs with a dim that the file doesn't fix."""


def declared_dims(tensor: onnx.TypeProto.Tensor) -> list[int | str | None] | None:
    """Per axis a value, a symbol's text or None (anonymous); None without a rank."""
    if not tensor.HasField("shape"):
        return None
    out: list[int | str | None] = []
    for d in tensor.shape.dim:
        if d.WhichOneof("value") == "dim_value":
            out.append(d.dim_value if d.dim_value >= 0 else None)
        else:
            text = d.dim_param.replace("\0", "").strip()
            out.append(None if not text or "?" in text or text in ("-1", "0", "None") else text)
    return out


def _symbol(text: str) -> str:
    clean = re.sub(r"[^\w.+\-*/() ]", "_", text)
    return f"_{clean}" if clean.isdigit() else clean


def evaluate(text: str, values: Mapping[str, int]) -> int | None:
    """A symbol's or expression's value; None while a name in it has none."""
    if text in values:
        return values[text]
    d = Dim(None, text)
    if d.names() == {text} or not d.names() <= values.keys():
        return None
    try:
        return d.bind(values).value
    except (GraphError, ArithmeticError):
        return -1


def _is_size(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 0


def _checked(what: str, axes: Mapping[str, list[int | str | None] | None], dims: Mapping[str, int],
             shapes: Mapping[str, Sequence[int]], listing: str) -> dict[str, int]:
    known: dict[str, None] = {}
    for row in axes.values():
        for a in row or []:
            if isinstance(a, str):
                known.update(dict.fromkeys([a, *sorted(Dim(None, a).names())]))
    for name, value in dims.items():
        if name not in known:
            raise ImportModelError(f"{what}: dims names {name!r}, which no input has; symbols: "
                                   f"{', '.join(known) or 'none'}. {listing}")
        if not _is_size(value):
            raise ImportModelError(f"{what}: dim {name!r} is given as {value!r}; wanted an int of 0 or more")
    values = {k: int(v) for k, v in dims.items()}
    for name, sizes in shapes.items():
        if name not in axes:
            raise ImportModelError(f"{what}: shapes names {name!r}, which is no input. {listing}")
        if not all(_is_size(s) for s in sizes):
            raise ImportModelError(f"{what}: shape of {name!r} is given as {list(sizes)}; wanted ints of 0 or more")
        row = axes[name]
        if row is None:
            continue
        if len(row) != len(sizes):
            raise ImportModelError(f"{what}: shape of {name!r} is given as {list(sizes)} (rank {len(sizes)}); "
                                   f"the file has rank {len(row)}. {listing}")
        for axis, (a, size) in enumerate(zip(row, sizes, strict=True)):
            if isinstance(a, int) and a != size:
                raise ImportModelError(f"{what}: shape of {name!r} is given as {list(sizes)}; "
                                       f"the file fixes axis {axis} to {a}, got {size}")
            if isinstance(a, str) and values.setdefault(a, size) != size:
                raise ImportModelError(f"{what}: dim {a!r} is given as {values[a]}, and as {size} by the shape of "
                                       f"{name!r} (axis {axis}); make them agree")
    return values


def bind_inputs(what: str, inputs: Sequence[onnx.ValueInfoProto], dims: Mapping[str, int],
                shapes: Mapping[str, Sequence[int]], keep: Sequence[str] = ()) -> BoundInputs:
    """Give every dim of every input a value, but for those of the symbols ``keep``; or raise one ``ImportModelError``
    that lists what is open."""
    axes: dict[str, list[int | str | None] | None] = {}
    types: dict[str, DType] = {}
    fixed: dict[str, Shape] = {}
    for v in inputs:
        if v.type.WhichOneof("value") not in ("tensor_type", None) or v.type.tensor_type.elem_type == STRING:
            fixed[v.name] = Shape((UNKNOWN,), DType.U8)
        else:
            axes[v.name] = declared_dims(v.type.tensor_type)
            types[v.name] = dtype_of(v.type.tensor_type.elem_type)[0]
    listing = "Inputs: " + ("; ".join(
        [f"{n} {types[n]}{_text(row)}" for n, row in axes.items()] + [f"{n} (no tensor)" for n in fixed]) or "none")
    values = _checked(what, axes, dims, shapes, listing)
    _check_kept(what, axes, keep, values, listing)
    notes: list[str] = []
    plain = {a for row in axes.values() for a in row or [] if isinstance(a, str) and Dim(None, a).names() == {a}}
    for name, row in axes.items():
        a = row[0] if row else None
        if name in shapes or not isinstance(a, str) or evaluate(a, values) is not None or Dim(None, a).names() & set(keep):
            continue
        if a in plain or not Dim(None, a).names() & (plain | values.keys()):
            values[a] = 1
            notes.append(f"Axis 0 of input {name!r} (symbol {a!r}) has no size in the file; taken as 1.")
    out: dict[str, Shape] = {}
    for v in inputs:
        name = v.name
        if name in fixed:
            out[name] = fixed[name]
            notes.append(f"Input {name!r} is no numeric tensor; its size is unknown.")
            continue
        row = axes[name]
        if row is None:
            given: Sequence[int] | None = shapes.get(name)
            out[name] = Shape.of([UNKNOWN] if given is None else given, types[name])
            continue
        got: list[Dim] = []
        for axis, a in enumerate(row):
            if isinstance(a, int):
                got.append(Dim(a))
            elif name in shapes:
                got.append(Dim(int(shapes[name][axis]), None if a is None else _symbol(a)))
            elif a is None:
                got.append(UNKNOWN if axis else Dim(1))
                if not axis:
                    notes.append(f"Axis 0 of input {name!r} (no symbol) has no size in the file; taken as 1.")
            else:
                value = evaluate(a, values)
                if value is None and Dim(None, a).names() & set(keep):
                    got.append(_kept(a, values))
                    continue
                if value is not None and value < 0:
                    raise ImportModelError(f"{what}: axis {axis} of input {name!r} is {a!r}, which comes to less than "
                                           f"0 with {values}; bind other values")
                got.append(Dim(value, _symbol(a)))
        out[name] = Shape(tuple(got), types[name])
    if any(d.value is None and not d.names() <= set(keep) for n, s in out.items() if n not in fixed for d in s.dims):
        raise _unbound(what, axes, out, fixed)
    left = frozenset(n for n, row in axes.items() if row is None or any(not isinstance(a, int) for a in row))
    return BoundInputs(out, values, notes, left)


def _check_kept(what: str, axes: Mapping[str, list[int | str | None] | None], keep: Sequence[str],
                values: Mapping[str, int], listing: str) -> None:
    known = {n for row in axes.values() for a in row or [] if isinstance(a, str) for n in Dim(None, a).names()}
    for name in keep:
        if name not in known:
            raise ImportModelError(f"{what}: keep names {name!r}, which no input has; symbols: "
                                   f"{', '.join(sorted(known)) or 'none'}. {listing}")
        if name in values:
            raise ImportModelError(f"{what}: dim {name!r} is given as {values[name]} and is to stay open (keep); do one")
        if not re.fullmatch(r"[^\W\d][\w.]*", name):
            raise OpenDimError(f"{what}: dim {name!r} can't stay open: extents are worked out of names such as 'seq'; bind it "
                               f"with dims={{{name!r}: 128}}")


def _kept(text: str, values: Mapping[str, int]) -> Dim:
    """An open dim, written one way; symbols in it that have a value are replaced."""
    for name in Dim(None, text).names() & values.keys():
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w.])", str(values[name]), text)
    return canonical(Dim(None, text))


def _text(row: list[int | str | None] | None) -> str:
    return "[no rank]" if row is None else "[" + ", ".join("?" if a is None else str(a) for a in row) + "]"


def _unbound(what: str, axes: Mapping[str, list[int | str | None] | None], out: Mapping[str, Shape],
             fixed: Mapping[str, Shape]) -> ImportModelError:
    symbols: dict[str, None] = {}
    lines, example = [], ""
    for name, row in axes.items():
        holes = [i for i, d in enumerate(out[name].dims) if d.value is None]
        for i in holes:
            if row is not None and isinstance(row[i], str):
                symbols.update(dict.fromkeys(sorted(Dim(None, str(row[i])).names())))
        mark = "" if not holes else f"   <- no size on axis {', '.join(map(str, holes))}"
        mark = "   <- no rank" if holes and row is None else mark
        lines.append(f"  {name}: {out[name].dtype}{_text(row)}{mark}")
        if holes and not example:
            sizes = [640 if d.value is None else d.value for d in out[name].dims]
            example = f"--shape {name}={','.join(map(str, sizes if row is not None else [1, 3, 640, 640]))}"
    lines += [f"  {name}: no tensor" for name in fixed]
    by_dim = f"rlx-viz plan {what} " + " ".join(f"--dim {s}=640" for s in symbols) if symbols else ""
    return ImportModelError("\n".join([
        f"{what}: some input dims have no size. Inputs:", *lines,
        f"Symbols: {', '.join(symbols) or 'none (the open dims are anonymous)'}",
        "Give sizes, for example (use sizes that suit the model):",
        *([f"  {by_dim}"] if by_dim else []),
        f"  rlx-viz plan {what} {example}",
        "or in Python dims={symbol: size}, shapes={input: sizes}.",
    ]))
