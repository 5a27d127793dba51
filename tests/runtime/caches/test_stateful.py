"""Random operations on each cache against a plain model: 10,000 of them in ``slow``, fewer by default."""

from __future__ import annotations

import os
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from planner_core.ir import DimBinding, Graph
from runtime import RunError
from runtime.caches import BucketedCompileCache, CompileCache, DynamicDimCompileCache
from runtime.session import CompiledGraph
from tests.runtime.caches.graphs import expected, mlp, module, params

KEYS = st.integers(0, 6)
KINDS = st.integers(0, 1)
"""Two layouts: what has the same one shares."""


def graph(kind: int, rows: int = 2) -> Graph:
    return mlp(rows, hidden=6 + kind)


def weights(kind: int, seed: int = 0) -> dict[str, np.ndarray]:
    return params(seed, hidden=6 + kind)


class Fifo(RuleBasedStateMachine):
    """CompileCache: an ordered dict of key -> (layout, buffer's identity)."""

    CAPACITY = 3

    def __init__(self) -> None:
        super().__init__()
        self.cache = CompileCache("cpu", self.CAPACITY)
        self.model: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.data: dict[int, int] = {}
        self.donor: int | None = None
        self.fresh = 0
        self.hits = self.misses = self.evictions = 0

    def _admit(self, key: int, kind: int, buffer: int) -> None:
        self.misses += 1
        while len(self.model) >= self.CAPACITY:
            gone, _ = self.model.popitem(last=False)
            self.evictions += 1
            if self.donor == gone:
                self.donor = None
        self.model[key] = (kind, buffer)

    def _source(self, key: int, kind: int) -> int | None:
        order = [self.donor] if self.donor in self.model else []
        for k in [*order, *self.model]:
            if k != key and self.model[k][0] == kind and self.model[k][1] in self.data:
                return k
        return None

    @rule(key=KEYS, kind=KINDS)
    def get(self, key: int, kind: int) -> None:
        made = self.cache.get_or_compile(key, lambda: graph(kind))
        if key in self.model:
            self.hits += 1
        else:
            self.fresh += 1
            self._admit(key, kind, self.fresh)
        assert made is self.cache.get(key)

    @rule(key=KEYS, kind=KINDS, seed=st.integers(0, 2))
    def ensure(self, key: int, kind: int, seed: int) -> None:
        self.cache.ensure_with_params(key, graph(kind), weights(kind, seed))
        if key in self.model:
            self.hits += 1
            return
        source = self._source(key, kind)
        if source is not None:
            self.donor = source
            buffer = self.model[source][1]
            self._admit(key, kind, buffer)
        else:
            self.fresh += 1
            self.data[self.fresh] = seed
            self._admit(key, kind, self.fresh)
            if self.donor is None:
                self.donor = key

    @rule(key=KEYS)
    def share(self, key: int) -> None:
        got = self.cache.try_share_params_from_donor(key)
        source = self._source(key, self.model[key][0]) if key in self.model else None
        assert got == (source is not None)
        if source is not None:
            self.model[key] = (self.model[key][0], self.model[source][1])
            self.donor = source

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model.clear()
        self.donor = None

    @invariant()
    def same_keys_in_order(self) -> None:
        assert list(self.cache) == list(self.model)
        assert len(self.cache) == len(self.model) <= self.CAPACITY
        assert self.cache.weight_donor == self.donor
        t = self.cache.totals()
        assert (t.hits, t.misses, t.evictions) == (self.hits, self.misses, self.evictions)

    @invariant()
    def same_buffers_and_values(self) -> None:
        seen: dict[int, object] = {}
        for key, (kind, buffer) in self.model.items():
            made = self.cache.get(key)
            assert seen.setdefault(buffer, made.executor.weight_buffer) is made.executor.weight_buffer
            if buffer in self.data:
                x = np.ones((2, 4), np.float32)
                np.testing.assert_allclose(made.run({"x": x})["y"], expected(x, weights(kind, self.data[buffer])), rtol=1e-4,
                                           atol=1e-5)
        assert len({id(b) for b in seen.values()}) == len(seen)


class Buckets(RuleBasedStateMachine):
    """BucketedCompileCache on a device of its own memory: dicts of layout, buffer, bytes, last use."""

    RANGES = ((1, 3), (3, 4), (6, 9))
    LARGE = 300
    """Bytes; the layouts have 216 and 252, so that only noted bytes make a bucket large."""

    def __init__(self) -> None:
        super().__init__()
        self.cap = 2
        os.environ["RLX_KV_CACHE_MAX_RESIDENT"] = str(self.cap)
        self.cache = BucketedCompileCache("cpu", self.RANGES, large_bytes=self.LARGE)
        self.live: dict[int, tuple[int, int]] = {}
        self.data: dict[int, int] = {}
        self.bytes: dict[int, int] = {}
        self.owner: dict[int, int] = {}  # buffer -> the bucket that made it
        self.left: dict[int, int] = {}   # buffer -> bytes of its owner, once that is dropped
        self.used: dict[int, int] = {}
        self.donor: int | None = None
        self.clock = self.fresh = 0

    def teardown(self) -> None:
        os.environ.pop("RLX_KV_CACHE_MAX_RESIDENT", None)

    def _index(self, key: int) -> int | None:
        return next((i for i, (a, b) in enumerate(self.RANGES) if a <= key < b), None)

    def _use(self, i: int) -> None:
        self.clock += 1
        self.used[i] = self.clock

    def _drop(self, i: int) -> None:
        buffer = self.live.pop(i)[1]
        if self.owner.get(buffer) == i:
            del self.owner[buffer]
            self.left[buffer] = self.bytes[i]
        self.bytes[i] = 0
        if self.donor == i:
            self.donor = None

    def _room(self, i: int, size: int) -> None:
        if size >= self.LARGE:
            large = sorted((j for j in self.live if j != i and self.bytes.get(j, 0) >= self.LARGE), key=lambda j: self.used[j])
            for j in large[: max(0, len(large) + 1 - self.cap)]:
                self._drop(j)

    def _source(self, i: int, kind: int) -> int | None:
        order = [self.donor] if self.donor is not None else []
        for j in [*order, *self.live]:
            if j != i and self.live[j][0] == kind and self.live[j][1] in self.data:
                return j
        return None

    @rule(key=st.integers(0, 9), kind=KINDS)
    def get(self, key: int, kind: int) -> None:
        got = self.cache.get_or_compile(key, lambda upper: graph(kind, upper))
        i = self._index(key)
        assert (got is None) == (i is None)
        if i is None or got is None:
            return
        assert got[0] == self.RANGES[i][1] - 1
        if i not in self.live:
            self.fresh += 1
            self.live[i], self.owner[self.fresh] = (kind, self.fresh), i
            self.bytes[i] = 0
        self._use(i)

    @rule(key=st.integers(0, 9), kind=KINDS, seed=st.integers(0, 2), hir=st.booleans())
    def ensure(self, key: int, kind: int, seed: int, hir: bool) -> None:
        i, size = self._index(key), 4 * (9 * (6 + kind))
        if hir:
            class Module:
                def __init__(self, upper: int) -> None:
                    self.upper = upper

                def lower(self) -> Graph:
                    return graph(kind, self.upper)

            got = self.cache.ensure_hir_with_params(key, lambda upper: (Module(upper), weights(kind, seed)))
        else:
            got = self.cache.ensure_graph_with_params(key, lambda upper: (graph(kind, upper), weights(kind, seed)))
        assert (got is None) == (i is None)
        if i is None:
            return
        if i not in self.live:
            if not hir:
                self._room(i, size)
            source = None if hir else self._source(i, kind)
            if source is not None:
                self.live[i] = (kind, self.live[source][1])
                self.bytes[i] = 0
                self.donor = source if self.donor is None else self.donor
            else:
                self.fresh += 1
                self.data[self.fresh] = seed
                self.live[i], self.owner[self.fresh] = (kind, self.fresh), i
                self.bytes[i] = size
                if not hir and self.donor is None:
                    self.donor = i
        self._use(i)

    @rule(key=st.integers(0, 9), extra=st.sampled_from([0, 50, 200, 400]))
    def note(self, key: int, extra: int) -> None:
        self.cache.note_resident_bytes(key, extra)
        i = self._index(key)
        if i in self.live:
            self._use(i)
            self.bytes[i] += extra
            self._room(i, self.bytes[i])

    @rule(i=st.integers(0, 2))
    def share(self, i: int) -> None:
        got = self.cache.try_share_params_from_donor(self.RANGES[i][1] - 1)
        source = self._source(i, self.live[i][0]) if i in self.live else None
        assert got == (source is not None)
        if source is not None:
            self.donor = source if self.donor is None else self.donor
            mine, theirs = self.live[i][1], self.live[source][1]
            if mine == theirs and self.owner.get(mine) == i:
                return  # the other stands on this one's buffer already
            if self.owner.get(mine) == i:
                del self.owner[mine]
                self.left[mine] = self.bytes[i]
            self.live[i] = (self.live[i][0], theirs)
            self.bytes[i] = 0

    @rule(i=st.integers(0, 2))
    def donate(self, i: int) -> None:
        got = self.cache.set_weight_donor(self.RANGES[i][1] - 1)
        assert got == (i in self.live and self.donor is None)
        if got:
            self.donor = i

    @rule(a=st.integers(0, 2), b=st.integers(0, 2))
    def copy(self, a: int, b: int) -> None:
        got = self.cache.try_copy_params_between_uppers(self.RANGES[a][1] - 1, self.RANGES[b][1] - 1)
        fits = a in self.live and b in self.live and (a == b or (
            self.live[a][0] == self.live[b][0] and self.live[b][1] in self.data))
        if fits and a != b:
            self.data[self.live[a][1]] = self.data[self.live[b][1]]
        if not (a in self.live and b in self.live and self.live[a][0] != self.live[b][0]):
            assert got == fits

    @rule(protect=st.sampled_from([None, 0, 1, 2]))
    def evict_one(self, protect: int | None) -> None:
        victim = max((i for i in self.live if i != protect), default=None)
        assert self.cache.evict_one_except(protect) == victim
        if victim is not None:
            self._drop(victim)

    @rule(keep=st.sampled_from([None, 0, 1, 2]))
    def evict_all(self, keep: int | None) -> None:
        gone = [i for i in self.live if i != keep]
        assert self.cache.evict_except(keep) == len(gone)
        for i in gone:
            self._drop(i)

    @precondition(lambda self: len(self.live) == 3)
    @rule()
    def clear(self) -> None:
        self.cache.clear_compiled()
        for i in list(self.live):
            self._drop(i)

    @invariant()
    def same_state(self) -> None:
        for i, (_, end) in enumerate(self.RANGES):
            compiled = self.cache.compiled_for_upper(end - 1)
            assert (compiled is not None) == (i in self.live)
            assert self.cache.resident_bytes_of(end - 1) == self.bytes.get(i, 0)
        assert self.cache.compiled_count == len(self.live)
        alive = {buffer for _, buffer in self.live.values()}
        assert self.cache.resident_bytes == sum(self.bytes.values()) + sum(v for b, v in self.left.items() if b in alive)
        donor = self.donor
        assert self.cache.weight_donor == (None if donor is None else self.RANGES[donor][1] - 1)
        assert sum(size >= self.LARGE for size in self.bytes.values()) <= max(self.cap, 0)

    @invariant()
    def same_buffers_and_values(self) -> None:
        seen: dict[int, object] = {}
        for i, (kind, buffer) in self.live.items():
            made: CompiledGraph = self.cache.compiled_for_upper(self.RANGES[i][1] - 1)
            assert seen.setdefault(buffer, made.executor.weight_buffer) is made.executor.weight_buffer
            if buffer in self.data:
                np.testing.assert_array_equal(made.param("v"), weights(kind, self.data[buffer])["v"])
        assert len({id(b) for b in seen.values()}) == len(seen)


class Dynamic(RuleBasedStateMachine):
    """DynamicDimCompileCache: an ordered dict of key -> binding, and a flag for the template."""

    CAPACITY = 2

    def __init__(self) -> None:
        super().__init__()
        self.cache = DynamicDimCompileCache("cpu", self.CAPACITY)
        self.model: OrderedDict[int, DimBinding] = OrderedDict()
        self.builds = self.want_builds = 0

    def _build(self) -> object:
        self.builds += 1
        return module()

    @rule(key=st.integers(0, 3), seq=st.integers(1, 2))
    def specialise(self, key: int, seq: int) -> None:
        binding = DimBinding.batch_seq(1, seq)
        if self.model.get(key, binding) != binding:
            with pytest.raises(RunError, match=f"key {key}"):
                self.cache.get_or_specialize(key, binding, self._build)
            return
        made = self.cache.get_or_specialize(key, binding, self._build)
        assert made.graph.find("x").shape.sizes == (1, seq, 4)
        if key not in self.model:
            self.want_builds += not self.cache_has
            self.cache_has = True
            while len(self.model) >= self.CAPACITY:
                self.model.popitem(last=False)
            self.model[key] = binding

    cache_has = False

    @rule()
    def template(self) -> None:
        self.cache.ensure_template(self._build)
        self.want_builds += not self.cache_has
        self.cache_has = True

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model.clear()
        self.cache_has = False

    @invariant()
    def same(self) -> None:
        assert list(self.cache) == list(self.model)
        assert self.cache.has_template == self.cache_has
        assert self.builds == self.want_builds


MACHINES = {"compile": Fifo, "bucketed": Buckets, "dynamic": Dynamic}


def _run(name: str, examples: int, steps: int) -> None:
    run_state_machine_as_test(MACHINES[name], settings=settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)))


@pytest.mark.parametrize("name", MACHINES)
def test_some_random_operations(name: str) -> None:
    _run(name, 8, 25)


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_ten_thousand_random_operations(name: str) -> None:
    _run(name, 200, 50)
