"""Owns the refusal of rewrites that an append makes impossible: reads moved behind it, values merged under it, bytes
under it that would outlive the run. Asks ``ir/overwrites.py`` about the draft as the rewrite would leave it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from planner_core.fusion.draft import Draft, Refused, Rewrite
from planner_core.fusion.refusal import Refusal
from planner_core.ir import NodeId, Op, Shape
from planner_core.ir.ops import Input, KvAppend
from planner_core.ir.overwrites import Access, late_reads_of, root_of
from planner_core.ir.traits import Trait
from planner_core.ir.views import is_static, views

__all__ = ["append_refusal"]


def append_refusal(g: Draft, r: Rewrite) -> Refused | None:
    """The refusal of a rewrite after which a node would read what an append overwrote, or an append would write into
    params, constants or what is computed from them alone. None for graphs without appends."""
    appends = g.nodes(KvAppend)
    if not appends and not any(op.has(Trait.APPEND) for op, *_ in r.made):
        return None
    return _After(g, r).refusal(appends)


class _After:
    """The draft with a rewrite done, looked at without doing it. Made nodes have the ids that they will get."""

    def __init__(self, g: Draft, r: Rewrite) -> None:
        self.g, self.r, self.base = g, r, len(g)
        self.new = {old: self._id(new) for old, new in r.replaced.items()}
        self.place = min((g.place[o] for o in r.replaced), default=g.place[r.anchor])
        self.reading: dict[NodeId, list[NodeId]] = {}
        """Readers that a node gains."""
        for old, new in self.new.items():
            self.reading.setdefault(new, []).extend(g.readers(old))
        for k in range(len(r.made)):
            for x in dict.fromkeys(self.inputs(self.base + k)):
                self.reading.setdefault(x, []).append(self.base + k)
        self.gone = self._gone()

    def _id(self, node: NodeId) -> NodeId:
        return self.base - node - 1 if node < 0 else node

    def op(self, node: NodeId) -> Op:
        return self.r.made[node - self.base][0] if node >= self.base else self.g.op(node)

    def shape(self, node: NodeId) -> Shape:
        return self.r.made[node - self.base][2] if node >= self.base else self.g.shape(node)

    def inputs(self, node: NodeId) -> tuple[NodeId, ...]:
        if node >= self.base:
            return tuple(self._id(x) for x in self.r.made[node - self.base][1])
        return tuple(self.new.get(x, x) for x in self.g.inputs(node))

    def readers(self, node: NodeId) -> list[NodeId]:
        own = [] if node >= self.base or node in self.new else self.g.readers(node)
        return [i for i in dict.fromkeys((*own, *self.reading.get(node, ()))) if i not in self.gone]

    def _gone(self) -> set[NodeId]:
        """What nothing reads any more."""
        reads: Counter[NodeId] = Counter()
        for _, inputs, _, _ in self.r.made:
            reads.update(self._id(x) for x in inputs)
        for old, new in self.new.items():
            reads[new] += self.g.reads(old)
            reads[old] -= self.g.reads(old)
        gone: set[NodeId] = set()
        todo = [*self.new, *self.r.dropped]
        while todo:
            i = todo.pop()
            if i in gone or i >= self.base or self.g.reads(i) + reads[i] or isinstance(self.g.op(i), Input):
                continue
            gone.add(i)
            for x in self.inputs(i):
                reads[x] -= 1
                todo.append(x)
        return gone

    def shows(self, node: NodeId) -> NodeId:
        """The operand whose bytes a view or an append has; the node itself for any other."""
        ins, op = self.inputs(node), self.op(node)
        shown = bool(ins) and (op.has(Trait.APPEND) or views(op, self.shape(ins[0]), self.shape(node)))
        return ins[0] if shown else node

    def static(self, node: NodeId) -> bool:
        if node < self.base:
            return self.g.static[node]
        return is_static(self.op(node), [self.static(i) for i in self.inputs(node)])

    def at(self, node: NodeId) -> tuple[int, NodeId]:
        return (self.place if node >= self.base else self.g.place[node]), node

    def refusal(self, appends: Iterable[NodeId]) -> Refused | None:
        made = range(self.base, self.base + len(self.r.made))
        touched = {root_of(i, self.shows) for i in (*made, *self.new.values(), *(x for k in made for x in self.inputs(k)))}
        writers: dict[NodeId, NodeId] = {}
        for a in (*(a for a in appends if a not in self.gone), *(k for k in made if self.op(k).has(Trait.APPEND))):
            writers.setdefault(root_of(a, self.shows), a)
        for root in touched & writers.keys():
            append = self._known(writers[root])
            if self.static(root):
                return Refused(Refusal.LASTING, append, facts=(("bytes", self._label(root)),))
            late = late_reads_of(*self._family(root))
            if late:
                return Refused(Refusal.OVERWRITTEN, self._known(late[0].append), facts=(("value", self._label(late[0].value)),))
        return None

    def _family(self, root: NodeId) -> tuple[list[Access], list[NodeId]]:
        """Everything that shows or reads a buffer, in the order in which it will be emitted; and which of it is output."""
        members, seen, todo = [root], {root}, [root]
        while todo:
            for i in self.readers(todo.pop()):
                if i not in seen:
                    seen.add(i)
                    if self.shows(i) in members:
                        members.append(i)
                        todo.append(i)
        accesses = []
        for i in sorted(seen, key=self.at):
            shown, appends = self.shows(i), self.op(i).has(Trait.APPEND)
            accesses.append(Access(i, self.inputs(i), shown, appends or shown == i, appends))
        outputs = [self.new.get(o, o) for o in self.g.outputs]
        return accesses, [o for o in outputs if o in seen]

    def _known(self, node: NodeId) -> NodeId:
        """A node of the draft: of a made one, the anchor."""
        return node if node < self.base else self.r.anchor

    def _label(self, node: NodeId) -> str:
        return self.g.label(node) if node < self.base else self.op(node).name
