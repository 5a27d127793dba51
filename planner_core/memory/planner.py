"""Owns planning itself: graph and options to ``MemoryPlan``. Named entry points: ``entry.py``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner_core.errors import PlanError
from planner_core.ir import Graph, NodeId
from planner_core.ir.ops import Custom, KvAppend
from planner_core.memory.bounds import align_up, lower_bound
from planner_core.memory.facts import (
    CONSTANT,
    DTYPES,
    I64,
    INPUT,
    PARAM,
    GraphFacts,
    Mask,
    facts_of,
)
from planner_core.memory.inplace import merge, takeovers
from planner_core.memory.liveness import LiveRanges, LiveState
from planner_core.memory.options import PlanOptions
from planner_core.memory.placement import first_fit_scan
from planner_core.memory.placement.registry import run
from planner_core.memory.placement.validate import require_valid
from planner_core.memory.plan import ARENA, NO_SLOT, WEIGHTS, MemoryPlan
from planner_core.memory.problem import Budget, Problem
from planner_core.memory.rules import live_state
from planner_core.memory.widths import MIN_GUARD, storage_dtype

__all__ = ["PLAN_WORK", "BodyPlan", "arena_bound", "body_plans", "native_width_nodes", "plan_graph", "storage_codes"]

I8 = npt.NDArray[np.int8]
PLAN_WORK = 30_000
"""Work units that a search strategy gets within a plan (the same result on every machine): at most 0.1 s compiled and
half a second plain, on graphs that first fit doesn't place at the bound. ``solve(plan.problem())`` takes longer."""


def native_width_nodes(graph: Graph, options: PlanOptions) -> set[NodeId]:
    """Nodes that stay native under the two ``*_WIDENED`` policies: ``Custom`` and ``KvAppend`` ops, their
    inputs, and the whole alias family (root and all its views) of each."""
    if not options.width_policy.widens_half:
        return set()
    f = facts_of(graph)
    roots = {int(f.root[i]) for n in graph.nodes if isinstance(n.op, (Custom, KvAppend)) for i in (n.id, *n.inputs)}
    if not roots:
        return set()
    return set(np.flatnonzero(np.isin(f.root, list(roots))).tolist())


def storage_codes(graph: Graph, options: PlanOptions) -> I64:
    """The stored dtype of each node (index into the dtype list): its root's, by the width policy."""
    f = facts_of(graph)
    table = np.asarray([[DTYPES.index(storage_dtype(options.width_policy, d, is_param)) for d in DTYPES]
                        for is_param in (False, True)], dtype=np.int64)
    own = table[(f.boundary == PARAM).astype(np.int64), f.dtype]
    native = native_width_nodes(graph, options)
    if native:
        keep = np.asarray(sorted(native))
        own[keep] = f.dtype[keep]
    stored: I64 = own[f.root]
    return stored


def _bytes(elements: I64, bits: I64, before: I64) -> I64:
    """Bytes that elements touch which start ``before`` elements into their root: a nibble at an odd place shares its byte."""
    touched = (before * bits % 8 + elements * bits + 7) // 8
    return np.asarray(np.where(elements <= 0, 0, touched), dtype=np.int64)


@dataclass(slots=True)
class _Layout:
    """What a plan knows before anything is placed: ranges and sizes of every node, who owns bytes of which region."""

    state: LiveState
    ranges: LiveRanges
    root: I64
    view_offset: I64
    storage: I64
    size: I64
    guard: I64
    space: I8
    unknown: Mask
    no_reuse: bool
    inplace: tuple[tuple[NodeId, NodeId], ...]
    head: I64
    end: I64

    def region(self, space: int, alignment: int) -> tuple[I64, Problem]:
        """The buffers of a region, those that share bytes in place as one, and the problem of placing them."""
        ids = np.flatnonzero((self.space == space) & (self.head == np.arange(len(self.head))))
        return ids, Problem.of(self.ranges.birth[ids], self.end[ids], self.size[ids], alignment=alignment, guard=self.guard[ids])


def _layout(graph: Graph, options: PlanOptions, unallocated: frozenset[NodeId], own_views: bool,
            without: frozenset[str]) -> _Layout:
    f = facts_of(graph)
    if own_views:
        f = _without_views(f)
    count = len(graph)
    state, ranges = live_state(graph, options, without)
    no_reuse = options.arena_no_reuse or state.no_reuse
    storage = storage_codes(graph, options)
    if own_views:
        storage = np.asarray([DTYPES.index(storage_dtype(options.width_policy, d, False)) for d in DTYPES])[f.dtype]
    bits = np.asarray([d.bits for d in DTYPES], dtype=np.int64)[storage]
    size = _bytes(f.elements, bits, f.view_elements)
    unknown = f.elements < 0

    boundary = (f.boundary == INPUT) | (f.boundary == PARAM) | (f.boundary == CONSTANT)
    is_root = f.root == np.arange(count)
    allowed = np.ones(count, dtype=bool)
    for kind, wanted in ((INPUT, options.allocate_inputs), (PARAM, options.allocate_params),
                         (CONSTANT, options.allocate_constants)):
        if not wanted:
            allowed[f.boundary == kind] = False
    if unallocated:
        allowed[sorted(unallocated)] = False
    size[boundary & (size == 0) & ~unknown] = max(options.alignment, 1)
    owns = is_root & allowed & ~state.elided & ~unknown & (size > 0)
    guard = np.where(owns & boundary, max(options.alignment, MIN_GUARD), 0).astype(np.int64)
    space = np.full(count, NO_SLOT, dtype=np.int8)
    space[owns] = ARENA
    if options.separate_weights:
        space[owns & (f.boundary == PARAM)] = WEIGHTS

    inplace: tuple[tuple[NodeId, NodeId], ...] = ()
    if options.in_place and not no_reuse and not own_views:
        inplace = takeovers(graph, owns & (space == ARENA), state.elided, ranges.birth, ranges.death, size, guard,
                            storage)
    head, end = merge(inplace, ranges.death)
    _require_countable(graph, size[owns], options.alignment)
    return _Layout(state, ranges, f.root, f.view_elements * bits // 8, storage, size, guard, space, unknown, no_reuse,
                   inplace, head, end)


def _require_countable(graph: Graph, size: I64, alignment: int) -> None:
    """Refuse buffers whose ends, laid one behind the other, 64 bits can't count."""
    most = float(size.sum(dtype=np.float64)) + len(size) * (2.0 * alignment + MIN_GUARD)
    if most >= 1 << 62:
        raise PlanError(f"{graph.name!r}: its {len(size)} buffers take {sum(size.tolist())} bytes together, more than a plan can "
                        f"count ({1 << 62}); check its dims, or plan parts of it")


def arena_bound(graph: Graph, options: PlanOptions, without: frozenset[str] = frozenset()) -> int:
    """Bytes that no arena of this graph with these options can do without (the sum of all, where nothing is reused);
    ``without``: rules left out. Nothing is placed."""
    laid = _layout(graph, options, frozenset(), False, without)
    _, problem = laid.region(ARENA, options.alignment)
    return int((problem.size + problem.guard).sum()) if laid.no_reuse else lower_bound(problem)[0]


def plan_graph(
    graph: Graph,
    options: PlanOptions,
    *,
    unallocated: frozenset[NodeId] = frozenset(),
    own_views: bool = False,
    without: frozenset[str] = frozenset(),
) -> MemoryPlan:
    """Live ranges, sizes, placement, views: the whole of spec §1–8 for one set of options.

    ``unallocated`` nodes get no slot (a body's captured inputs live outside). ``own_views`` gives views
    bytes of their own, as if nothing were shared: the start of the savings waterfall. ``without``: names of live-range
    rules left out, for figures alone: such a plan is not meant to be run.
    Raises ``UnboundDimError`` for a symbol without a value.
    """
    laid = _layout(graph, options, unallocated, own_views, without)
    offset = np.zeros(len(graph), dtype=np.int64)
    heights = {ARENA: 0, WEIGHTS: 0}
    bound, bound_step = 0, 0
    for region in (ARENA, WEIGHTS):
        ids, problem = laid.region(region, options.alignment)
        offset[ids], proved = _place(problem, options, laid.no_reuse, graph, ids)
        heights[region] = problem.height(offset[ids])
        if region == ARENA:
            bound, bound_step = lower_bound(problem)
            bound = max(bound, proved)
    offset = offset[laid.head]
    ranges = laid.ranges
    plan = MemoryPlan(
        options=options, birth=ranges.birth, death=ranges.death, last_read=ranges.last_read, root=laid.root,
        view_offset=laid.view_offset, space=laid.space, offset=offset, size=laid.size, guard=laid.guard,
        storage=laid.storage, elided=laid.state.elided, unknown=laid.unknown, extensions=ranges.extensions,
        arena_size=heights[ARENA], weights_size=heights[WEIGHTS], scratch_size=_body_scratch(graph, options),
        lower_bound=bound, bound_step=bound_step, no_reuse=laid.no_reuse, inplace=laid.inplace, graph=graph)
    if not laid.no_reuse:
        _safety_pass(plan, graph)
    place_views(plan)
    if options.verify_memory:
        from planner_core.memory.verify import require_sound

        require_sound(graph, plan, outside=unallocated)
    return plan.read_only()


def _without_views(f: GraphFacts) -> GraphFacts:
    count = len(f.root)
    return dataclasses.replace(f, root=np.arange(count), parent=np.full(count, -1),
                               view_elements=np.zeros(count, dtype=np.int64))


def _place(problem: Problem, options: PlanOptions, no_reuse: bool, graph: Graph, ids: I64) -> tuple[I64, int]:
    """Offsets, and the bound that the strategy proved (0: none)."""
    if no_reuse:
        order = np.lexsort((np.arange(len(problem)), -problem.size))
        span = align_up(problem.size + problem.guard, options.alignment)[order]
        offsets = np.zeros(len(problem), dtype=np.int64)
        offsets[order] = np.cumsum(span) - span
        return offsets, 0
    offsets, proved = run(options.placement, problem, Budget(work=PLAN_WORK))
    if options.placement != "first_fit":
        require_valid(problem, offsets, options.placement)
    elif options.verify_placement:
        plain = first_fit_scan(problem)
        differ = np.flatnonzero(plain != offsets)
        if len(differ):
            k = int(differ[0])
            n = graph[int(ids[k])]
            raise PlanError(f"placement check: {len(differ)} offsets differ from the plain scan, first {n.op.name} "
                            f"{n.label}: got {offsets[k]}, wanted {plain[k]}. Please report this graph.")
    return offsets, proved


def _safety_pass(plan: MemoryPlan, graph: Graph) -> None:
    """Move an output that overlaps one of its own inputs' bytes to the end (never needed; recorded if so)."""
    ptr, flat = graph.edges
    reader = np.repeat(np.arange(len(graph), dtype=np.int64), np.diff(ptr))
    read = flat.copy()
    through = plan.elided[flat]
    read[through] = flat[ptr[flat[through]]]  # the reader of an elided transpose reads its source
    a, b = plan.root[read], plan.root[reader]
    hit = ((a != b) & (plan.space[a] == ARENA) & (plan.space[b] == ARENA)
           & (plan.offset[a] < plan.offset[b] + plan.size[b]) & (plan.offset[b] < plan.offset[a] + plan.size[a])
           & (plan.size[a] > 0) & (plan.size[b] > 0))
    for old, new in plan.inplace:  # recorded, hence meant
        hit &= (a != old) | (b != new)
    moved = []
    for node in np.unique(b[hit]).tolist():
        plan.offset[node] = -(-plan.arena_size // plan.options.alignment) * plan.options.alignment
        plan.arena_size = int(plan.offset[node] + plan.size[node] + plan.guard[node])
        moved.append(node)
    plan.safety_moves = tuple(moved)


def place_views(plan: MemoryPlan) -> None:
    """Give every view the slot ``root.offset + view_offset`` in its root's region (spec §1)."""
    is_view = plan.root != np.arange(len(plan.root))
    views = np.flatnonzero(is_view & (plan.size > 0) & ~plan.unknown)
    roots = plan.root[views]
    has = plan.space[roots] != NO_SLOT
    views, roots = views[has], roots[has]
    plan.space[views] = plan.space[roots]
    plan.offset[views] = plan.offset[roots] + plan.view_offset[views]


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """The plan of one control-flow body: what node ``owner`` needs beside its operands while it runs. ``path`` names the
    body within the graph, as in ``If_3/then/Loop_1/body``; ``depth`` counts the bodies around it."""

    owner: NodeId
    path: str
    depth: int
    plan: MemoryPlan

    @property
    def graph(self) -> Graph:
        """The body."""
        if self.plan.graph is None:
            raise PlanError(f"body {self.path}: its plan has no graph")
        return self.plan.graph


def body_plans(graph: Graph, options: PlanOptions, path: str = "", depth: int = 0) -> Iterator[BodyPlan]:
    """Each control-flow body of a graph planned with the same options, bodies within bodies behind the one they are in
    (with the outermost node as owner). Captured inputs live outside, in the slots of whoever runs the body."""
    for n in graph.nodes:
        bodies = n.op.bodies()
        if not bodies:
            continue
        own = n.op.body_inputs
        for body, name in zip(bodies, n.op.body_names, strict=True):
            # what is outside this plan's graph is not outside a body's: its own inputs are its caller's to give
            inner = plan_graph(body, options.replace(allocate_inputs=True), unallocated=frozenset(body.inputs[own:]))
            here = f"{path}{n.label}/{name}"
            yield BodyPlan(n.id, here, depth, inner)
            for nested in body_plans(body, options, here + "/", depth + 1):
                yield dataclasses.replace(nested, owner=n.id)


def _body_scratch(graph: Graph, options: PlanOptions) -> int:
    """Largest arena of a control-flow body (of ``If``, the larger branch), those within it included."""
    if not any(n.op.bodies() for n in graph.nodes):
        return 0
    return max((b.plan.total_size for b in body_plans(graph, options) if b.depth == 0), default=0)


Planner = Callable[[Graph, PlanOptions], MemoryPlan]
