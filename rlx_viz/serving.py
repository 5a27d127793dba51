"""Owns ``serving_cost``: what a ladder of buckets keeps resident, what it pads, how long it compiles. Figure:
``figures/serving.py``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from planner_core.errors import RlxError
from planner_core.importers.open_model import OpenModel
from planner_core.ir import Graph
from planner_core.zoo import build
from planner_core.zoo.registry import require_params
from rlx_viz.sources import is_zoo_name
from runtime.caches.buckets import Bucket, check_buckets, find_bucket
from runtime.compile import Compilation, CompileOptions, compile_graph
from runtime.executors.host import weight_layout
from runtime.template import Template

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["BucketCost", "LadderCost", "ServingCost", "serving_cost"]

Ladder = Iterable[int | Bucket | tuple[int, int] | range]
Traffic = Mapping[int, float] | Iterable[int]


@dataclass(frozen=True, slots=True)
class BucketCost:
    """One bucket of a ladder: lengths ``shortest`` … ``longest``, compiled for the longest.

    ``weights_bytes`` are those that it brings: 0 where it stands on the copy of a bucket before it. ``traffic_share`` is its
    share of the requests, ``padding_waste`` the share of the tokens computed in it that are padding (None without traffic).
    """

    ladder: str
    shortest: int
    longest: int
    weights_bytes: int
    arena_bytes: int
    scratch_bytes: int
    traffic_share: float
    padding_waste: float | None
    compile_seconds: float

    @property
    def resident_bytes(self) -> int:
        """Weights that it brings, its arena and its scratch."""
        return self.weights_bytes + self.arena_bytes + self.scratch_bytes


@dataclass(frozen=True, slots=True)
class LadderCost:
    """A whole ladder. ``padding_waste``: Σ w·(upper - length) / Σ w·upper over the traffic's lengths with weights w."""

    ladder: str
    buckets: int
    resident_bytes: int
    weights_bytes: int
    arena_bytes: int
    scratch_bytes: int
    padding_waste: float
    compile_seconds: float


@dataclass(frozen=True, slots=True)
class ServingCost:
    """Costs by bucket and by ladder, for one model."""

    name: str
    target: str
    dim: str
    buckets: tuple[BucketCost, ...]
    ladders: tuple[LadderCost, ...]

    def __repr__(self) -> str:
        from planner_core.units import bytes_text

        parts = [f"{c.ladder}: {bytes_text(c.resident_bytes)} resident, {100 * c.padding_waste:.1f}% padding" for c in self.ladders[:2]]
        more = f"; {len(self.ladders) - 2} more" if len(self.ladders) > 2 else ""
        return f"<ServingCost {self.name!r} over {self.dim}: {'; '.join(parts)}{more}; .to_frame(), .figure()>"

    def to_frame(self) -> pd.DataFrame:
        """One row a bucket, with ``resident_bytes``."""
        return _frame(BucketCost, self.buckets, "resident_bytes")

    def ladders_frame(self) -> pd.DataFrame:
        """One row a ladder."""
        return _frame(LadderCost, self.ladders)

    def figure(self) -> Figure:
        """Resident bytes a ladder (weights, then each bucket's arena and scratch), padding, compile seconds."""
        from rlx_viz.figures.serving import serving_figure

        return serving_figure(self)

    def _repr_html_(self) -> str:
        from rlx_viz.figures.embed import figure_html

        return figure_html(self.figure(), self.ladders_frame(), self.to_frame())


def _frame(row: type[Any], rows: Sequence[Any], *more: str) -> pd.DataFrame:
    import pandas as pd

    names = [f.name for f in fields(row)] + list(more)
    frame = pd.DataFrame([[getattr(r, n) for n in names] for r in rows], columns=names)
    return frame.astype({"padding_waste": "float64"})


def serving_cost(model: Any, *, buckets: Ladder | Mapping[str, Ladder], traffic: Traffic, dim: str = "",
                 dims: Mapping[str, int] | None = None, target: str = "cpu", options: Mapping[str, Any] | None = None) -> ServingCost:
    """What it costs to serve requests of varying length with a graph compiled for each bucket.

    ``model``: what ``rlx_viz.compile`` takes, a ``Template``, or a zoo name. ``buckets``: longest lengths (``[128, 512]``) or
    ranges ``(start, end)``, end exclusive; a dict of them compares ladders. ``traffic``: length -> weight, or lengths. ``dim``: the
    symbol that lengths are of (without it the only one, or the only one that isn't just an input's first axis); ``dims`` gives
    the others, ``batch`` 1 where it doesn't.

    ``RlxError`` for a length that a ladder has no bucket for, buckets out of order, a dim that can't be told.
    """
    lengths = _traffic(traffic)
    named = buckets if isinstance(buckets, Mapping) else {"buckets": buckets}
    if not named:
        raise RlxError("no ladders; wanted a list of buckets, or a dict of name -> list")
    ladders = {name: _ladder(name, b) for name, b in named.items()}
    shares = {name: _shares(name, b, lengths) for name, b in ladders.items()}
    at = _Compiler.of(model, dim, dict(dims or {}), target, dict(options or {}))
    made = {u: at.compiled(u) for u in sorted({b.upper for ladder in ladders.values() for b in ladder})}
    rows: list[BucketCost] = []
    totals: list[LadderCost] = []
    for name, ladder in ladders.items():
        seen: set[Any] = set()
        mine: list[BucketCost] = []
        for b, share in zip(ladder, shares[name], strict=True):
            c = made[b.upper]
            weights, seen = 0 if c.layout in seen else c.weights_bytes, {*seen, c.layout}
            mine.append(BucketCost(name, b.start, b.upper, weights, c.arena_bytes, c.scratch_bytes, share.requests, share.waste,
                                   c.seconds))
        computed = sum(s.computed for s in shares[name])
        totals.append(LadderCost(name, len(mine), sum(b.resident_bytes for b in mine), sum(b.weights_bytes for b in mine),
                                 sum(b.arena_bytes for b in mine), sum(b.scratch_bytes for b in mine),
                                 sum(s.padding for s in shares[name]) / computed, sum(b.compile_seconds for b in mine)))
        rows += mine
    return ServingCost(at.name, target, at.dim, tuple(rows), tuple(totals))


# --- traffic and ladders ---------------------------------------------------------------------------------


class _Share(NamedTuple):
    """A bucket's share of the requests; tokens computed in it, and those that are padding, a request on average."""

    requests: float
    computed: float
    padding: float

    @property
    def waste(self) -> float | None:
        return self.padding / self.computed if self.computed else None


def _traffic(traffic: Traffic) -> dict[int, float]:
    """Length -> share of the requests."""
    items = list(traffic.items()) if isinstance(traffic, Mapping) else [(n, 1.0) for n in traffic]
    out: dict[int, float] = {}
    for length, weight in items:
        if isinstance(length, bool) or not hasattr(length, "__index__") or length < 1:
            raise RlxError(f"traffic has length {length!r}; wanted ints of 1 or more")
        if not 0 <= weight < float("inf"):
            raise RlxError(f"traffic gives length {length} the weight {weight}; wanted 0 or more")
        out[int(length)] = out.get(int(length), 0.0) + float(weight)
    total = sum(out.values())
    if not total:
        raise RlxError("no traffic; wanted {length: weight} with some weight, or a list of lengths")
    return {n: w / total for n, w in out.items() if w}


def _ladder(name: str, buckets: Ladder) -> tuple[Bucket, ...]:
    made: list[Bucket | tuple[int, int] | range] = []
    before = 0
    for b in buckets:
        if isinstance(b, int):
            if b <= before:
                raise RlxError(f"ladder {name!r}: {b} comes after {before}; wanted longest lengths of 1 or more, ascending")
            made.append(Bucket(before + 1, b + 1))
            before = b
        else:
            made.append(b)
            before = b.upper if isinstance(b, Bucket) else b.stop - 1 if isinstance(b, range) else b[1] - 1
    try:
        return check_buckets(made)
    except ValueError as e:
        raise RlxError(f"ladder {name!r}: {e}") from e


def _shares(name: str, ladder: tuple[Bucket, ...], lengths: Mapping[int, float]) -> list[_Share]:
    starts = [b.start for b in ladder]
    requests, padding = [0.0] * len(ladder), [0.0] * len(ladder)
    for n, w in lengths.items():
        i = find_bucket(ladder, starts, n)
        if i is None:
            raise RlxError(f"ladder {name!r} has no bucket for length {n} of the traffic; its buckets: "
                           f"{', '.join(f'{b.start} … {b.upper}' for b in ladder)}")
        requests[i] += w
        padding[i] += w * (ladder[i].upper - n)
    return [_Share(r, r * b.upper, p) for r, p, b in zip(requests, padding, ladder, strict=True)]


# --- compiling -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What is kept of a compilation. Equal ``layout``s can stand on one weight buffer."""

    layout: Any
    weights_bytes: int
    arena_bytes: int
    scratch_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Compiler:
    """A model with one dim open."""

    name: str
    dim: str
    others: Mapping[str, int]
    model: Template | str
    target: str
    changes: Mapping[str, Any]

    @classmethod
    def of(cls, model: Any, dim: str, others: dict[str, int], target: str, changes: dict[str, Any]) -> _Compiler:
        if is_zoo_name(model):
            known = require_params(model, [*others, *([dim] if dim else [])])
            if not dim and "seq" not in known:
                raise RlxError(f"{model!r} has no parameter 'seq'; name the one that lengths are of, dim=…: {', '.join(known)}")
            return cls(model, dim or "seq", others, model, target, changes)
        if isinstance(model, Compilation):
            raise RlxError("a Compilation has its dims bound; give the graph or the file")
        if not isinstance(model, Template):
            if not isinstance(model, (str, Path, Graph)) and not hasattr(model, "SerializeToString"):
                raise RlxError(f"can't serve a {type(model).__name__}; wanted a path, an onnx.ModelProto, a Graph, a Template or a "
                               "zoo name")
            whole = OpenModel(model, dims=others)
            model = Template(whole, target, changes)
            others = {}  # bound already
        elif changes or target != model.target:
            model = Template(model.model, target, {**model.changes, **changes})
        left = [s for s in model.symbols if s not in others]
        inner = [s for s in left if set(model.model.axes.get(s, ())) != {0}]
        dim = dim or (left[0] if len(left) == 1 else inner[0] if len(inner) == 1 else "")
        rest = {s: 1 for s in left if s != dim and set(model.model.axes.get(s, ())) == {0}}
        return cls(model.name, model.the_dim(dim, {**others, **rest}), {**others, **rest}, model, target, changes)

    def compiled(self, upper: int) -> _Numbers:
        try:
            start = time.perf_counter()
            if isinstance(self.model, Template):
                c = self.model.at(**{**self.others, self.dim: upper})
            else:
                graph = build(self.model, **{**self.others, self.dim: upper})
                c = compile_graph(graph, CompileOptions.for_target(self.target, graph, **self.changes))
            seconds = time.perf_counter() - start
        except RlxError as e:
            raise RlxError(f"{self.name}: the bucket of {self.dim}={upper} can't be compiled: {e}") from e
        plan = c.plan
        return _Numbers((weight_layout(c.commands), tuple(sorted(c.fusion.frozen))), plan.weights_size, plan.arena_size,
                        c.allocate_bytes - plan.weights_size - plan.arena_size, seconds)
