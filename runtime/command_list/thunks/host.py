"""Owns thunks that run whole graph ops on the host: any evaluable op, control flow, the user's kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planner_core.errors import RlxError
from planner_core.ir import Array, DType, Op
from runtime.command_list.operand import In, Out
from runtime.command_list.scratch import Scratch
from runtime.command_list.thunk import Thunk, thunk
from runtime.errors import RunError

__all__ = ["CustomOp", "HostOp", "Kernel", "ScanHost", "body_runner", "kernel_attrs", "kernels", "register_kernel"]

Kernel = Callable[[Sequence[Array], Sequence[Array], dict[str, Any]], None]
"""``kernel(inputs, outputs, attrs)``: read-only views, views to fill, the op's attributes."""

_KERNELS: dict[str, Kernel] = {}
_BODY_RUNNERS: dict[type[Op], Callable[[Op, Sequence[Array]], Sequence[Array]]] = {}


def register_kernel(name: str, fn: Kernel) -> None:
    """Give every ``Custom`` op named ``name`` a host kernel; a later call replaces an earlier one. ``RunError`` for an empty
    name or what can't be called."""
    given: object = fn
    if not callable(given) or not str(name).strip():
        raise RunError(f"register_kernel({name!r}, {fn!r}): wanted the name of a Custom op (not empty) and a function "
                       "fn(inputs, outputs, attrs)")
    _KERNELS[name] = fn


def kernels() -> dict[str, Kernel]:
    """Registered kernels by ``Custom`` op name (a copy)."""
    return dict(_KERNELS)


def kernel_attrs(kernel: str, text: str, error: type[RlxError] = RunError) -> dict[str, Any]:
    """A ``Custom`` op's attributes; ``error`` where they are no JSON object."""
    try:
        attrs = json.loads(text or "{}")
    except json.JSONDecodeError as e:
        raise error(f"custom op {kernel!r}: its attrs are not JSON ({e}): got {text!r}, wanted an object such as "
                    '{"axis": 1}') from e
    if not isinstance(attrs, dict):
        raise error(f"custom op {kernel!r}: its attrs are {text!r}; wanted a JSON object such as {{\"axis\": 1}}")
    return attrs


def body_runner(op: type[Op], fn: Callable[[Op, Sequence[Array]], Sequence[Array]]) -> None:
    """Say how ``HostOp`` runs an op with nested bodies; it returns output 0, 1, …"""
    _BODY_RUNNERS[op] = fn


@thunk(name="HostOp", label="host_op", partial_extent="no", where="host")
class HostOp(Thunk):
    """dst = op.evaluate(inputs): the op's NumPy reference. It makes temporaries of the size of its result
    (bodies: of their arenas), outside the plan; ops with a thunk of their own don't. ``result_index`` says which
    further output each of ``results`` is. ``dtypes``: what the inputs are evaluated as, where integers are stored wider."""

    op: Op
    inputs: tuple[In, ...]
    dst: Out
    results: tuple[Out, ...] = ()
    result_index: tuple[int, ...] = ()
    node: str = ""
    dtypes: tuple[DType, ...] = ()

    @property
    def desc(self) -> str:
        """Which op on which node."""
        return f"{self.op.name} {self.node}"

    @property
    def trace_label(self) -> str:
        return f"host_op:{self.op.name}"

    def run(self, inputs: tuple[Array, ...], dst: Array, results: tuple[Array, ...], scratch: Scratch) -> None:
        if self.dtypes:
            inputs = tuple(x.astype(d.numpy, copy=False) for x, d in zip(inputs, self.dtypes, strict=True))
        _run_op(self, inputs, (dst, *results))


@thunk(name="ScanHost", label="scan_host", partial_extent="no", where="host")
class ScanHost(Thunk):
    """A Scan whose compiled body runs once a slice, in an arena of its own outside the plan. Fields as in HostOp."""

    op: Op
    inputs: tuple[In, ...]
    dst: Out
    results: tuple[Out, ...] = ()
    result_index: tuple[int, ...] = ()
    node: str = ""

    @property
    def desc(self) -> str:
        """Which op on which node."""
        return f"{self.op.name} {self.node}"

    def run(self, inputs: tuple[Array, ...], dst: Array, results: tuple[Array, ...], scratch: Scratch) -> None:
        _run_op(self, inputs, (dst, *results))


def _run_op(t: HostOp | ScanHost, inputs: tuple[Array, ...], targets: tuple[Array, ...]) -> None:
    runner = _BODY_RUNNERS.get(type(t.op))
    made = runner(t.op, inputs) if runner else (t.op.evaluate(*inputs),)
    for target, k in zip(targets, (0, *t.result_index), strict=True):
        value = made[k]
        if np.shape(value) != target.shape:
            raise RunError(f"{t.op.name} {t.node}: result has shape {np.shape(value)}, planned {target.shape}")
        np.copyto(target, value, casting="unsafe")


@thunk(name="Unrunnable", label="unrunnable", partial_extent="no", where="host", extension=True)
class Unrunnable(Thunk):
    """The place of an op that is planned but can't run here; ``run`` raises ``RunError`` with the reason."""

    op: str
    node: str
    reason: str

    @property
    def message(self) -> str:
        return f"{self.op} {self.node} is planned, not runnable: {self.reason}"

    def run(self, scratch: Scratch) -> None:
        raise RunError(self.message)


@thunk(name="CustomOp", label="custom_op", partial_extent="no", where="host")
class CustomOp(Thunk):
    """The user's kernel for a ``Custom`` op; ``RunError`` when none is registered."""

    kernel: str
    inputs: tuple[In, ...]
    output: Out
    attrs: str
    results: tuple[Out, ...] = ()
    node: str = ""

    @property
    def trace_label(self) -> str:
        return f"custom_op:{self.kernel}"

    def run(self, inputs: tuple[Array, ...], output: Array, results: tuple[Array, ...], scratch: Scratch) -> None:
        fn = _KERNELS.get(self.kernel)
        if fn is None:
            raise RunError(
                f"node {self.node!r} is the custom op {self.kernel!r}: planned, not runnable here, since no kernel "
                f"is registered; call runtime.register_kernel({self.kernel!r}, fn) with fn(inputs, outputs, attrs)"
            )
        attrs = kernel_attrs(self.kernel, self.attrs)
        try:
            fn(inputs, (output, *results), attrs)
        except RunError:
            raise
        except Exception as e:  # the user's code raises what it likes; the executor adds the thunk and the node
            raise RunError(f"the kernel registered for {self.kernel!r} raised {type(e).__name__}: {e}") from e
