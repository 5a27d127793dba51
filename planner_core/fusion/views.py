"""Owns pictures' data of a fusion: networkx graphs, clusters, module paths, and a layered layout.

The layout is Sugiyama's in short: longest-path layers from the inputs, then sweeps that put each node at the median
of its neighbours (Sugiyama, Tagawa & Toda 1981; Gansner et al. 1993). Linear in edges a sweep, in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from planner_core.fusion.pipeline import Fusion
from planner_core.ir import Graph, NodeId
from planner_core.ir.traits import Trait

__all__ = ["Layout", "Modules", "layered_layout", "module_counts", "modules", "to_networkx"]

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def to_networkx(fusion: Fusion) -> tuple[Any, Any, dict[NodeId, NodeId]]:
    """(source graph, fused graph, source node -> fused node) as ``networkx.DiGraph``s.

    Nodes have ``name``, ``op``, ``family``, ``shape``, ``bytes``, ``source``; fused ones also ``cluster`` (the source
    nodes they stand for); edges have ``bytes``. Source nodes that nothing needs are in no mapping.
    """
    import networkx as nx

    def build(graph: Graph, clusters: bool) -> Any:
        g: Any = nx.DiGraph(name=graph.name)
        for n in graph.nodes:
            nbytes = n.dtype.nbytes(n.shape.numel) if n.shape.is_static else None
            extra = {"cluster": fusion.origins[n.id]} if clusters else {}
            g.add_node(n.id, name=n.label, op=n.op.detail, family=n.op.family, shape=str(n.shape), bytes=nbytes,
                       source="; ".join(map(str, n.source)), output=n.id in graph.outputs, **extra)
            for i in dict.fromkeys(n.inputs):
                g.add_edge(i, n.id, bytes=g.nodes[i]["bytes"], operand=n.inputs.index(i))
        return g

    mapping = {i: j for i, j in enumerate(fusion.fused_of) if j >= 0}
    return build(fusion.source, False), build(fusion.graph, True), mapping


@dataclass(frozen=True, slots=True)
class Modules:
    """Groups of nodes by module path, for collapsed pictures.

    ``group[i]`` is the group of node i (-1: hidden); ``names[g]`` its path; ``count[g]`` how many nodes it holds;
    ``src``, ``dst``, ``edge_bytes``: what flows between groups, summed over tensors (each tensor once a reader group).
    """

    group: I64
    names: tuple[str, ...]
    count: I64
    src: I64
    dst: I64
    edge_bytes: F64


@dataclass(frozen=True, slots=True)
class _Paths:
    """``shown``: nodes that are drawn; ``of[k]``: path of the k-th; ``paths``: the distinct ones."""

    shown: I64
    of: I64
    paths: list[tuple[str, ...]]

    def cut(self, depth: int) -> tuple[I64, list[str]]:
        """(run of each drawn node, name of each run) with paths cut to ``depth`` parts."""
        names: dict[tuple[str, ...], int] = {}
        prefix = np.asarray([names.setdefault(p[:depth], len(names)) for p in self.paths], np.int64)
        if not len(self.of):
            return np.zeros(0, np.int64), []
        here = prefix[self.of]
        starts = np.flatnonzero(np.diff(here, prepend=-1))
        length = np.diff(starts, append=len(here))
        label = here[starts]
        settled = np.bincount(label[length > 1], minlength=len(names)) > 0
        stray = (length == 1) & settled[label]
        stray[0] = False
        label = label[np.maximum.accumulate(np.where(stray, 0, np.arange(len(label))))]
        new = np.diff(label, prepend=-1) != 0
        texts = [".".join(p) for p in names]
        return np.repeat(np.cumsum(new) - 1, length), [texts[k] for k in label[new].tolist()]


def _paths(graph: Graph) -> _Paths:
    """A node's path is its source's scope, else its dotted name without the last part. A node without a name belongs
    with the module before it; a bare name, or a nameless node that no module precedes, stands for itself."""
    index: dict[tuple[str, ...], int] = {}
    shown: list[int] = []
    of: list[int] = []
    module: tuple[str, ...] = ()
    for n in graph.nodes:
        if n.op.has(Trait.STORED):
            continue
        scope = next((s.scope for s in n.source if s.scope), "")
        parts = [p for p in (scope or n.name).replace("/", ".").split(".") if p]
        module = tuple(parts if scope else parts[:-1]) if parts else module
        path = module or ((n.name,) if n.name else (f"{n.op.name} {n.label}",))
        shown.append(n.id)
        of.append(index.setdefault(path, len(index)))
    return _Paths(np.asarray(shown, np.int64), np.asarray(of, np.int64), list(index))


def _span(first: str, last: str) -> str:
    """Neighbours as one: ``layers.3 … 7`` within one parent."""
    if first == last:
        return first
    parent, _, leaf = last.rpartition(".")
    return f"{first} … {leaf if parent and parent == first.rpartition('.')[0] else last}"


def module_counts(graph: Graph, deepest: int = 12) -> list[int]:
    """How many groups ``modules`` makes at depth 1, 2, … down to the longest path (``deepest`` at most)."""
    paths = _paths(graph)
    longest = max(map(len, paths.paths), default=1)
    return [len(paths.cut(d)[1]) for d in range(1, min(longest, deepest) + 1)]


def modules(graph: Graph, depth: int = 2, most: int | None = None) -> Modules:
    """Nodes grouped by the first ``depth`` parts of their module path; params and constants are hidden.

    The path is the source's scope, or the node's dotted name. Only *runs* of consecutive nodes with one path are one
    group, so that groups of a graph in a valid order have no cycles between them; a single node that strayed from a
    module with longer runs stays with its neighbours. ``most``: neighbouring runs are joined, equally many to a group,
    until there are no more than that. ``ValueError`` for a depth or a most below 1.
    """
    if depth < 1 or (most is not None and most < 1):
        raise ValueError(f"depth {depth}, most {most}: wanted 1 or more")
    paths = _paths(graph)
    run, names = paths.cut(depth)
    if most is not None and len(names) > most:
        run = run * most // len(names)
        bounds = [-(-k * len(names) // most) for k in range(most + 1)]
        names = [_span(names[a], names[b - 1]) for a, b in pairwise(bounds)]
    group = np.full(len(graph), -1, np.int64)
    group[paths.shown] = run
    src, dst, nbytes = _flows(graph, group)
    return Modules(group, tuple(names), np.bincount(run, minlength=len(names)).astype(np.int64), src, dst, nbytes)


def _flows(graph: Graph, group: I64) -> tuple[I64, I64, F64]:
    ptr, flat = graph.edges
    reader = np.repeat(np.arange(len(graph), dtype=np.int64), np.diff(ptr))
    a, b = group[flat], group[reader]
    keep = (a >= 0) & (b >= 0) & (a != b)
    tensors = np.unique(np.stack([flat[keep], b[keep]], axis=1), axis=0) if keep.any() else np.zeros((0, 2), np.int64)
    size = np.asarray([n.dtype.nbytes(n.shape.numel) if n.shape.is_static else 0 for n in graph.nodes], np.float64)
    pairs = np.stack([group[tensors[:, 0]], tensors[:, 1]], axis=1)
    edges, index = np.unique(pairs, axis=0, return_inverse=True)
    total = np.bincount(index.reshape(-1), weights=size[tensors[:, 0]], minlength=len(edges))
    return edges[:, 0], edges[:, 1], total.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Layout:
    """Coordinates: ``layer[i]`` grows along edges, ``x[i]`` is the place within the layer (unit spacing, centred)."""

    layer: I64
    x: F64

    @property
    def size(self) -> tuple[float, int]:
        """(width, layers)."""
        width = float(self.x.max() - self.x.min() + 1) if len(self.x) else 0.0
        return width, int(self.layer.max() + 1) if len(self.layer) else 0


def layered_layout(count: int, src: I64, dst: I64, sweeps: int = 6) -> Layout:
    """Layers and places of ``count`` nodes with edges ``src[k] -> dst[k]``, every edge towards a larger index.

    ``ValueError`` for an edge that points back. Deterministic.
    """
    src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    if len(src) and bool((src >= dst).any()):
        raise ValueError("layered_layout: an edge points back; number the nodes in a valid order first")
    if not count:
        return Layout(np.zeros(0, np.int64), np.zeros(0))
    layer = _longest_path(count, src, dst)
    order = np.lexsort((np.arange(count), layer))
    place = np.zeros(count)
    _spread(place, layer, order)
    for sweep in range(sweeps):
        down = sweep % 2 == 0
        wanted = _neighbour_median(place, *((src, dst) if down else (dst, src)), count)
        order = np.lexsort((place, wanted, layer))
        _spread(place, layer, order)
    return Layout(layer, _straighten(place, layer, src, dst, count))


def _longest_path(count: int, src: I64, dst: I64) -> I64:
    layer = [0] * count
    order = np.argsort(dst, kind="stable")
    for a, b in zip(src[order].tolist(), dst[order].tolist(), strict=True):
        if layer[a] >= layer[b]:
            layer[b] = layer[a] + 1
    return np.asarray(layer, np.int64)


def _spread(place: F64, layer: I64, order: I64) -> None:
    """Unit spacing within each layer, centred, in the given order."""
    if not len(order):
        return
    width = np.bincount(layer)
    starts = np.concatenate([[0], np.cumsum(width)[:-1]])
    rank = np.arange(len(order)) - starts[layer[order]]
    place[order] = rank - (width[layer[order]] - 1) / 2


def _neighbour_median(place: F64, other: I64, node: I64, count: int) -> F64:
    """Median place of each node's neighbours on one side; its own where it has none."""
    out = place.copy()
    if not len(node):
        return out
    order = np.lexsort((place[other], node))
    sorted_nodes, values = node[order], place[other][order]
    counts = np.bincount(sorted_nodes, minlength=count)
    ends = np.cumsum(counts)
    has = counts > 0
    first = ends - counts
    low, high = first + (counts - 1) // 2, first + counts // 2
    out[has] = (values[low[has]] + values[high[has]]) / 2
    return out


def _straighten(place: F64, layer: I64, src: I64, dst: I64, count: int) -> F64:
    """Move nodes towards their neighbours' medians, keeping the order and unit spacing within a layer."""
    x = place.copy()
    for _ in range(4):
        wanted = (_neighbour_median(x, src, dst, count) + _neighbour_median(x, dst, src, count)) / 2
        order = np.lexsort((place, layer))
        starts = np.flatnonzero(np.diff(layer[order], prepend=-1))
        rank = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
        free = wanted[order] - rank  # unit spacing is "not decreasing" once ranks are taken off
        for a, b in zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True):
            free[a:b] = _isotonic(free[a:b])
        x[order] = free + rank
    return x - (x.min() if count else 0.0)


def _isotonic(values: F64) -> F64:
    """The non-decreasing sequence nearest in squares (pool adjacent violators)."""
    if len(values) < 2 or bool((np.diff(values) >= 0).all()):
        return values
    means: list[float] = []
    sizes: list[int] = []
    for v in values.tolist():
        means.append(v)
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            total = sizes[-2] + sizes[-1]
            means[-2] = (means[-2] * sizes[-2] + means[-1] * sizes[-1]) / total
            sizes[-2] = total
            means.pop()
            sizes.pop()
    return np.repeat(means, sizes)
