"""Owns the cost view: a roofline estimate of kernels on a chosen device, before and after fusion.

``t = max(FLOPs / peak FLOP/s, bytes / bandwidth) + launch`` a kernel (Williams, Waterman & Patterson, "Roofline",
CACM 2009). It is an estimate: no cache, no overlap, no kernel reaches its peak. FLOPs and bytes come from the ops'
declarations; a view, a boundary and a static pack cost nothing in a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from planner_core.errors import FusionError
from planner_core.fusion.pipeline import Fusion
from planner_core.ir import Graph, Node, NodeId
from planner_core.ir.ops import Result
from planner_core.ir.traits import Trait
from planner_core.ir.views import is_pure_view, static_mask

__all__ = ["DEVICES", "CostRow", "CostView", "DeviceProfile", "device", "estimate"]



@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """Peak numbers of a device: TFLOP/s in f32 and f16, GB/s of memory (10⁹ bytes), µs a launch, GB of memory (0: it depends
    on how the device is built).

    ``source`` says where the peaks were published, or how they were worked out. ``launch_us`` is an assumption:
    measure your own and give it with ``replace``.
    """

    name: str
    title: str
    tflops_f32: float
    tflops_f16: float
    gb_per_s: float
    launch_us: float
    source: str
    memory_gb: float = 0.0

    def replace(self, **changes: Any) -> DeviceProfile:
        """A copy with numbers of your own; they must be positive (``launch_us`` may be 0)."""
        made = dataclasses.replace(self, **changes)
        for f in ("tflops_f32", "tflops_f16", "gb_per_s"):
            if not getattr(made, f) > 0:
                raise FusionError(f"device {made.name!r}: {f} is {getattr(made, f)}, wanted more than 0")
        if made.launch_us < 0:
            raise FusionError(f"device {made.name!r}: launch_us is {made.launch_us}, wanted 0 or more")
        return made

    def microseconds(self, flops: int, nbytes: int, half: bool) -> float:
        """The roofline of one kernel, its launch included."""
        peak = (self.tflops_f16 if half else self.tflops_f32) * 1e6  # FLOP a µs
        return max(flops / peak, nbytes / (self.gb_per_s * 1e3)) + self.launch_us

    def ridge(self, half: bool) -> float:
        """FLOPs a byte where memory stops being the limit."""
        return (self.tflops_f16 if half else self.tflops_f32) * 1e3 / self.gb_per_s


_ALUS = "GPU cores × 128 ALUs × 2 × the clock that spec collections report (Apple publishes none); bandwidth: Apple"


def _apple(name: str, title: str, cores: int, ghz: float, gb_per_s: float) -> DeviceProfile:
    tflops = cores * 128 * 2 * ghz / 1e3
    return DeviceProfile(name, title, round(tflops, 2), round(tflops, 2), gb_per_s, 5.0,
                         f"{cores} {_ALUS} ({ghz} GHz)")


DEVICES: dict[str, DeviceProfile] = {d.name: d for d in (
    _apple("m1", "Apple M1 (8 GPU cores)", 8, 1.278, 68.25),
    _apple("m1-pro", "Apple M1 Pro (16)", 16, 1.296, 200),
    _apple("m1-max", "Apple M1 Max (32)", 32, 1.296, 400),
    _apple("m1-ultra", "Apple M1 Ultra (64)", 64, 1.296, 800),
    _apple("m2", "Apple M2 (10)", 10, 1.398, 100),
    _apple("m2-pro", "Apple M2 Pro (19)", 19, 1.398, 200),
    _apple("m2-max", "Apple M2 Max (38)", 38, 1.398, 400),
    _apple("m2-ultra", "Apple M2 Ultra (76)", 76, 1.398, 800),
    _apple("m3", "Apple M3 (10)", 10, 1.398, 100),
    _apple("m3-pro", "Apple M3 Pro (18)", 18, 1.398, 150),
    _apple("m3-max", "Apple M3 Max (40)", 40, 1.398, 400),
    _apple("m4", "Apple M4 (10)", 10, 1.47, 120),
    _apple("m4-pro", "Apple M4 Pro (20)", 20, 1.47, 273),
    _apple("m4-max", "Apple M4 Max (40)", 40, 1.678, 546),
    DeviceProfile("a100", "NVIDIA A100 80 GB SXM", 19.5, 312, 2039, 4.0,
                  "NVIDIA A100 datasheet: FP32 19.5, FP16 tensor core dense 312 TFLOP/s, 2,039 GB/s; 80 GB", 80),
    DeviceProfile("h100", "NVIDIA H100 SXM", 67, 989, 3350, 4.0,
                  "NVIDIA H100 datasheet: FP32 67, FP16 tensor core dense 989 TFLOP/s, 3.35 TB/s; 80 GB", 80),
    DeviceProfile("h200", "NVIDIA H200 SXM", 67, 989, 4800, 4.0,
                  "NVIDIA H200 datasheet: FP32 67, FP16 tensor core dense 989 TFLOP/s, 4.8 TB/s; 141 GB", 141),
    DeviceProfile("cpu", "A generic CPU (8 cores, AVX2, two DDR4-3200 channels)", 0.768, 0.768, 51.2, 0.5,
                  "8 cores × 3 GHz × 32 FLOP a cycle (two 8-wide FMAs); 2 × 25.6 GB/s"),
)}
"""Device profiles by name; ``device("m2-max").replace(launch_us=2)`` edits one."""


def device(name: str | DeviceProfile) -> DeviceProfile:
    """A profile by name; a profile is itself. ``FusionError`` lists the names."""
    if isinstance(name, DeviceProfile):
        return name
    if name not in DEVICES:
        raise FusionError(f"no device {name!r}; wanted one of {', '.join(DEVICES)}, or a DeviceProfile of your own")
    return DEVICES[name]


@dataclass(frozen=True, slots=True)
class CostRow:
    """One kernel of the fused graph beside the source kernels that it stands for. Times in µs, estimated."""

    node: NodeId
    name: str
    op: str
    kernels_before: int
    flops_before: int
    flops: int
    bytes_before: int
    bytes: int
    us_before: float
    us: float
    bound: str
    """``memory``, ``compute`` or ``launch``: what the estimate's largest part is."""

    @property
    def intensity(self) -> float:
        """FLOPs a byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def saved_us(self) -> float:
        return self.us_before - self.us


@dataclass(frozen=True, slots=True)
class CostView:
    """Estimates for every kernel of a fused graph on one device."""

    device: DeviceProfile
    rows: tuple[CostRow, ...]
    us_before: float
    us: float
    """Totals; kernels that fusion dropped altogether count in ``us_before`` only."""

    def to_frame(self) -> Any:
        """A pandas frame, one row a kernel; every time is an estimate."""
        import pandas as pd

        names = [f.name for f in dataclasses.fields(CostRow)]
        frame = pd.DataFrame([[getattr(r, n) for n in names] + [r.intensity, r.saved_us] for r in self.rows],
                             columns=[*names, "intensity", "saved_us"])
        return frame.rename(columns={"us": "us_estimated", "us_before": "us_before_estimated",
                                     "saved_us": "saved_us_estimated"})

    def __str__(self) -> str:
        return (f"estimated on {self.device.title}: {self.us_before:,.1f} µs before fusion, {self.us:,.1f} µs after "
                f"(roofline, {len(self.rows)} kernels)")


def _work(graph: Graph, n: Node, static: list[bool]) -> tuple[int, int, bool] | None:
    """(FLOPs, bytes, half precision) of a node's kernel; None for what costs nothing."""
    shapes = [graph[i].shape for i in n.inputs]
    if n.op.has(Trait.BOUNDARY) or isinstance(n.op, Result) or static[n.id] or is_pure_view(graph, n.id):
        return None
    if not all(s.is_static for s in (*shapes, n.shape)):
        return 0, 0, False
    read = sum(s.dtype.nbytes(s.numel) for s in dict(zip(n.inputs, shapes, strict=True)).values())
    return n.op.flops(n.shape, *shapes), read + n.dtype.nbytes(n.shape.numel), n.dtype.is_half


def _works(graph: Graph) -> list[tuple[int, int, bool] | None]:
    static = static_mask(graph)
    return [_work(graph, n, static) for n in graph.nodes]


def _bound(d: DeviceProfile, flops: int, nbytes: int, half: bool) -> str:
    compute = flops / ((d.tflops_f16 if half else d.tflops_f32) * 1e6)
    memory = nbytes / (d.gb_per_s * 1e3)
    if d.launch_us > max(compute, memory):
        return "launch"
    return "compute" if compute > memory else "memory"


def estimate(fusion: Fusion, profile: str | DeviceProfile = "m2-max") -> CostView:
    """Roofline estimates of the fused graph's kernels and of the source kernels behind each.

    A source node that several fused kernels share is counted once, with the last of them.
    """
    d = device(profile)
    before, after = _works(fusion.source), _works(fusion.graph)

    def time(ws: Iterable[tuple[int, int, bool] | None]) -> float:
        return sum(d.microseconds(*w) for w in ws if w is not None)

    rows = []
    for n, w in zip(fusion.graph.nodes, after, strict=True):
        old = [before[i] for i in fusion.origins[n.id] if fusion.fused_of[i] == n.id]
        olds = [o for o in old if o is not None]
        if w is None:
            continue
        rows.append(CostRow(n.id, n.label, n.op.detail, len(olds), sum(o[0] for o in olds), w[0],
                            sum(o[1] for o in olds), w[1], time(olds), d.microseconds(*w), _bound(d, *w)))
    return CostView(d, tuple(rows), time(before), time(after))
