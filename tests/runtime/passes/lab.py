"""What the pass tests share: command lists written by hand, patterns with knobs, lists off and on compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from planner_core.ir import DType, Graph, QuantScheme
from planner_core.ir.packed import random_blocks
from planner_core.memory import PlanOptions, plan_graph
from runtime import CommandList, HostExecutor, lower_graph
from runtime.command_list import Binding, Operand, Thunk
from runtime.command_list.thunks.elementwise import ActivationOut, BinaryFull
from runtime.command_list.thunks.host import CustomOp
from runtime.command_list.thunks.structure import Copy
from runtime.passes import CommandPass, PassOptions, PassResult, run_passes

F32, F16 = DType.F32, DType.F16


@dataclass
class Lab:
    """A list under construction; each thunk has a name to insert beside or to change."""

    names: list[str] = field(default_factory=list)
    thunks: list[Thunk] = field(default_factory=list)
    outputs: list[Operand] = field(default_factory=list)
    at: int = 0

    def value(self, *shape: int, dtype: DType = F32, space: str = "arena") -> Operand:
        """Fresh bytes."""
        nbytes = int(np.prod(shape)) * dtype.bits // 8
        self.at += nbytes + 64
        return Operand(space, self.at - nbytes - 64, nbytes, dtype, None, shape)

    def weight(self, n: int, k: int, scheme: QuantScheme) -> Operand:
        return self.value(n, scheme.row_bytes(k), dtype=DType.U8, space="weights")

    def op(self, name: str, t: Thunk) -> Thunk:
        self.names.append(name)
        self.thunks.append(t)
        return t

    def __getitem__(self, name: str) -> Any:
        return self.thunks[self.names.index(name)]

    def change(self, name: str, **fields: Any) -> Lab:
        i = self.names.index(name)
        self.thunks[i] = replace(self.thunks[i], **fields)  # type: ignore[type-var]
        return self

    def after(self, name: str, t: Thunk) -> Lab:
        i = self.names.index(name) + 1
        self.names.insert(i, f"extra{len(self.names)}")
        self.thunks.insert(i, t)
        return self

    def read_after(self, name: str, o: Operand) -> Lab:
        """A stranger reads ``o`` there."""
        return self.after(name, Copy(o, replace(self.value(*o.shape, dtype=o.storage)), o.numel))

    def write_after(self, name: str, o: Operand) -> Lab:
        """A stranger overwrites ``o`` there."""
        return self.after(name, Copy(self.value(*o.shape, dtype=o.storage), o, o.numel))

    def opaque_after(self, name: str) -> Lab:
        return self.after(name, CustomOp("k", (), self.value(1), ""))

    def end(self, o: Operand) -> Lab:
        self.outputs.append(o)
        return self

    def commands(self) -> CommandList:
        n = len(self.thunks)
        return CommandList(
            "lab", tuple(self.thunks), tuple(range(n)), self.at, self.at, 0, (),
            tuple(Binding(f"out{i}", o, o.storage) for i, o in enumerate(self.outputs)), (), (), (), tuple(self.names))


def only(p: CommandPass, **more: bool) -> PassOptions:
    """Options with one pass on."""
    return PassOptions.none().replace(**{"decode_gelu": True, **dict.fromkeys(p.switches, True), **more})


def outcome(lab: Lab, p: CommandPass, **more: bool) -> PassResult:
    return run_passes(lab.commands(), only(p, **more))


# --- graphs ---------------------------------------------------------------------------------------------


def lowered(g: Graph, **plan: Any) -> CommandList:
    """The graph's list as it is: no fusion, every buffer its own bytes unless said otherwise."""
    options = PlanOptions(**{"arena_no_reuse": True, "separate_weights": True, **plan})
    return lower_graph(g, plan_graph(g, options))


def feed_of(g: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {g[i].name: rng.integers(0, 3, g[i].shape.sizes).astype(g[i].dtype.numpy) if g[i].dtype.is_int
            else rng.standard_normal(g[i].shape.sizes).astype(g[i].dtype.numpy) for i in g.inputs}


def off_and_on(g: Graph, options: PassOptions, tolerance: float = 0.0, **plan: Any) -> PassResult:
    """The list with the passes off and on gives the same outputs, sanitised."""
    before = lowered(g, **plan)
    result = run_passes(before, options)
    assert result.log.dispatches_saved == before.dispatches - result.commands.dispatches
    feed = feed_of(g)
    want = HostExecutor(before, g.weights).run(feed, sanitize=True)
    executor = HostExecutor(result.commands, g.weights)
    for run in (executor.run(feed, sanitize=True), executor.run(feed)):
        for name, a in want.items():
            scale = float(np.abs(a.astype(np.float64)).max(initial=0))
            np.testing.assert_allclose(run[name].astype(np.float64), a.astype(np.float64), rtol=tolerance,
                                       atol=tolerance * scale)
    return result


def packed_param(g: Graph, name: str, n: int, k: int, scheme: QuantScheme) -> int:
    rows = random_blocks(np.random.default_rng(len(name) + n), scheme, n, k, k**-0.5)
    return g.param(name, (rows.size,), DType.U8, data=rows.reshape(-1))


def packed_mlp(scheme: QuantScheme, *, act: str = "silu", combined: bool = False, down: QuantScheme | None = None,
               residual: bool = True, swapped: bool = False, norm: bool = False, dtype: DType = F32, layers: int = 1,
               k: int = 256, n: int = 512, gated: str = "") -> Graph:
    """Decoder MLPs: rms norm, gate and up, act(gate) * up, down, (norm,) residual add. ``gated``: activation and product in
    one op, which reads ``gate`` or ``up`` first."""
    g = Graph("mlp")
    x = g.input("x", (1, 1, k), dtype)
    gamma = g.param("gamma", (k,), dtype, data=np.ones(k, dtype.numpy))
    down = down or scheme
    for i in range(layers):
        h = g.rms_norm(x, gamma)
        both = g.dequant_mat_mul(h, packed_param(g, f"{i}.both", 2 * n, k, scheme), n=2 * n, scheme=scheme) if combined else None
        if both is None:
            gate, up = (g.dequant_mat_mul(h, packed_param(g, f"{i}.{w}", n, k, scheme), n=n, scheme=scheme)
                        for w in ("gate", "up"))
        elif not gated:
            gate, up = (g.narrow(both, axis=2, start=s, len=n) for s in (0, n))
        if gated:
            first = gated == "gate"
            row = both if both is not None else g.concat(*((gate, up) if first else (up, gate)), axis=2)
            h = (g.swi_g_l_u(row, gate_first=first) if act == "silu"
                 else g.ge_g_l_u(row, gate_first=first, approximate=act == "gelu_approx"))
        else:
            active = g.activation(gate, kind=act)
            h = g.mul(up, active) if swapped else g.mul(active, up)
        h = g.dequant_mat_mul(h, packed_param(g, f"{i}.down", k, n, down), n=k, scheme=down)
        if norm:
            h = g.rms_norm(h, gamma)
        x = (g.add(h, x) if swapped else g.add(x, h)) if residual else h
    return g.set_outputs(x)


# --- patterns by hand -----------------------------------------------------------------------------------


def act_mul(lab: Lab, gate: Operand, up: Operand, n: int, act: str, dtype: DType = F32) -> Operand:
    active, product = lab.value(n, dtype=dtype), lab.value(n, dtype=dtype)
    lab.op("act", ActivationOut(gate.viewed(n), active, n, act))
    lab.op("mul", BinaryFull(active, up.viewed(n), product, n, "mul"))
    return product


