"""Owns ``BucketedCompileCache``: one compiled graph a range of keys, compiled lazily at the range's upper bound.

Eviction is in ``eviction.py``, rolling a resident KV cache to the next bucket in ``kv_roll.py``, padded runs in
``padded.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from planner_core.ir import Array, Graph
from planner_core.ir.hir import HirModule
from runtime.caches import kv_roll, padded
from runtime.caches.base import CacheBase, upload
from runtime.caches.buckets import Bucket, check_buckets, find_bucket, ladder
from runtime.caches.eviction import LARGE_BYTES, EvictionPolicy
from runtime.caches.stats import EntryStats
from runtime.compile import CompileOptions
from runtime.marking import BucketDim
from runtime.session import CompiledGraph, Device, PrecisionPolicy

__all__ = ["BucketedCompileCache", "weight_bytes_of"]

Params = Mapping[str, Array]


def weight_bytes_of(params: Params, packed: Params | None = None) -> int:
    """4 bytes per float, whatever its width; other params and packed ones as they are."""
    def one(a: Array) -> int:
        a = np.asarray(a)
        return a.nbytes if a.dtype.kind in "biu" else 4 * a.size

    return sum(map(one, params.values())) + sum(np.asarray(a).nbytes for a in (packed or {}).values())


class BucketedCompileCache(CacheBase):
    """Compiled graphs by range of keys. Safe for threads; a key outside every bucket gives None and builds nothing.

    ``options`` and ``bucket_dim`` hold for every compile (``bucket_dim`` says which dim an active extent cuts).
    ``unified_memory`` overrides the device's own answer, ``large_bytes`` what counts as a large bucket.
    ``ValueError`` for ranges that are empty, overlap or are out of order.
    """

    def __init__(self, device: Device | str, buckets: Iterable[Bucket | tuple[int, int] | range],
                 precision_policy: PrecisionPolicy | str | None = None, *, options: CompileOptions | None = None,
                 bucket_dim: BucketDim | None = None, unified_memory: bool | None = None,
                 large_bytes: int = LARGE_BYTES) -> None:
        self._buckets = check_buckets(buckets)
        super().__init__(device, precision_policy)
        self._starts = [b.start for b in self._buckets]
        self._stats = {i: EntryStats(b.start, b.end) for i, b in enumerate(self._buckets)}
        self._used: dict[int, int] = {}
        self._incoming: dict[int, tuple[int, bool]] = {}
        """Bucket in the making -> its own bytes, and whether it may evict others when it comes in."""
        self._clock = 0
        self.options = options
        self.bucket_dim = bucket_dim
        unified = self.device.unified_memory if unified_memory is None else unified_memory
        self.eviction = EvictionPolicy(unified, large_bytes)

    @classmethod
    def power_of_two_ladder(cls, device: Device | str, min: int, max: int,
                            precision_policy: PrecisionPolicy | str | None = None, **more: object) -> BucketedCompileCache:
        """Buckets 1 … ``min`` rounded up to a power of two, then doubling until ``max`` is covered."""
        return cls(device, ladder(min, max), precision_policy, **more)  # type: ignore[arg-type]

    # --- looking ----------------------------------------------------------------------------------

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        return self._buckets

    @property
    def total_buckets(self) -> int:
        return len(self._buckets)

    @property
    def compiled_count(self) -> int:
        return len(self._entries)

    def bucket_for(self, key: int) -> int | None:
        """Index of the key's bucket."""
        return find_bucket(self._buckets, self._starts, key)

    def bucket_upper_for_key(self, key: int) -> int | None:
        """What the key's bucket is compiled for."""
        i = self.bucket_for(key)
        return None if i is None else self._buckets[i].upper

    def compiled_for_key(self, key: int) -> CompiledGraph | None:
        """The key's compiled graph, if it is resident; no use, no hit."""
        i = self.bucket_for(key)
        return None if i is None else self._entries.get(i)

    def compiled_for_upper(self, upper: int) -> CompiledGraph | None:
        """The compiled graph of the bucket with that upper bound."""
        i = self._index_of_upper(upper)
        return None if i is None else self._entries.get(i)

    def _index_of_upper(self, upper: int) -> int | None:
        i = self.bucket_for(upper)
        return i if i is not None and self._buckets[i].upper == upper else None

    def resident_bytes_of(self, upper: int) -> int:
        """Weights that the bucket holds as its own: 0 where it shares."""
        i = self._index_of_upper(upper)
        return 0 if i is None else self._stats[i].resident_bytes

    # --- compiling --------------------------------------------------------------------------------

    def get_or_compile(self, key: int, build: Callable[[int], Graph],
                       options: CompileOptions | None = None) -> tuple[int, CompiledGraph] | None:
        """(upper, compiled) of the key's bucket; ``build(upper)`` runs only if it isn't resident. Weights that the graph
        brings along are counted, and may evict others; where another bucket holds the same bytes, it stands on those."""
        i = self.bucket_for(key)
        if i is None:
            return None
        upper = self._buckets[i].upper

        def make() -> CompiledGraph:
            graph = build(upper)
            self._expect(i, weight_bytes_of(graph.weights))
            made = self._one_copy(i, self._compile(graph, options))
            if made.weight_bytes and not made.own_weight_bytes:
                self._incoming[i] = 0, False
            return made

        return upper, self._get(i, key, make, "share")

    def get_or_compile_hir(self, key: int, build: Callable[[int], HirModule],
                           options: CompileOptions | None = None) -> tuple[int, CompiledGraph] | None:
        """``get_or_compile`` of a high-level module, bound by itself or by ``options.dims``."""
        return self.get_or_compile(key, lambda upper: build(upper).lower(), options)

    def ensure_graph_with_params(self, key: int, build: Callable[[int], tuple[Graph, Params]],
                                 options: CompileOptions | None = None) -> tuple[int, CompiledGraph] | None:
        """On a miss: make room for the incoming bytes, compile, then share a sibling's weights or upload."""
        return self._ensure(key, lambda upper: (*build(upper), {}), options)

    def ensure_graph_with_packed(self, key: int, build: Callable[[int], tuple[Graph, Params, Params]],
                                 options: CompileOptions | None = None) -> tuple[int, CompiledGraph] | None:
        """Likewise, with packed weights (uint8 blocks) beside the params."""
        return self._ensure(key, build, options)

    def ensure_hir_with_params(self, key: int, build: Callable[[int], tuple[HirModule, Params]],
                               options: CompileOptions | None = None) -> tuple[int, CompiledGraph] | None:
        """Compile, upload, count the bytes; neither evicts nor shares, so that the rung before is still there: the caller
        tries the donor, then calls ``note_resident_bytes``."""
        i = self.bucket_for(key)
        if i is None:
            return None
        upper = self._buckets[i].upper

        def make() -> CompiledGraph:
            module, params = build(upper)
            made = self._compile(module.lower(), options)
            upload(made, params)
            self._incoming[i] = weight_bytes_of(params), False
            return made

        return upper, self._get(i, key, make, "upload")

    def _ensure(self, key: int, build: Callable[[int], tuple[Graph, Params, Params]],
                options: CompileOptions | None) -> tuple[int, CompiledGraph] | None:
        i = self.bucket_for(key)
        if i is None:
            return None
        upper = self._buckets[i].upper

        def make() -> CompiledGraph:
            graph, params, packed = build(upper)
            self._expect(i, weight_bytes_of({**graph.weights, **params}, packed))
            made = self._compile(graph, options)
            with self._lock:
                source = self._share_into(i, made)
                if source is not None and self._donor is None:
                    self._donor = source
            if source is None:
                upload(made, {**params, **packed})
            else:
                self._incoming[i] = 0, False
            return made

        return upper, self._get(i, key, make, "ensure")

    def _expect(self, i: int, nbytes: int) -> None:
        """Evict for a bucket that will bring ``nbytes``; once more when it is in, for those that came in meanwhile."""
        with self._dropping():
            self._incoming[i] = nbytes, True
            self._make_room(i, nbytes)

    def _compile(self, graph: Graph, options: CompileOptions | None) -> CompiledGraph:
        return self.session.compile(graph, options or self.options, self.bucket_dim)

    def _get(self, i: int, key: int, make: Callable[[], CompiledGraph], how: str = "") -> CompiledGraph:
        found = self._entries.get(i)
        if found is not None:
            with self._lock:
                if self._entries.get(i) is found:
                    self._hit(i, key)
                    return found
        made, there = self._once(i, key, make)
        if how == "share" and not there:
            self._log_share(i, key, made)
        elif how and not there:
            with self._lock:
                if self._entries.get(i) is made:
                    s = self._stats[i]
                    self._log.add("share" if s.shares else "upload", key, i, self.resident_bytes)
                    if how == "ensure" and not s.shares and self._donor is None:
                        self._donor = i
        return made

    def _hit(self, slot: int, key: int) -> None:
        super()._hit(slot, key)
        self._use(slot)

    def _insert(self, slot: int, key: int, made: CompiledGraph) -> None:
        evicts = self._incoming.get(slot, (0, False))[1]
        super()._insert(slot, key, made)
        self._use(slot)
        if evicts:
            self._make_room(slot, self._stats[slot].resident_bytes)

    def _own_bytes(self, slot: int, made: CompiledGraph) -> int:
        return self._incoming.pop(slot, (0, False))[0]

    def _use(self, slot: int) -> None:
        self._clock += 1
        self._used[slot] = self._clock

    # --- bytes and eviction -----------------------------------------------------------------------

    def _make_room(self, incoming: int, nbytes: int) -> None:
        """Evict large buckets, least recently used first, until the incoming one fits the cap (under the lock)."""
        sizes = {i: self._stats[i].resident_bytes for i in self._entries}
        for victim in self.eviction.victims(incoming, nbytes, sizes, self._used):
            self.eviction.say(f"evict bucket {self._buckets[victim]} ({sizes[victim]} B) for {self._buckets[incoming]} ({nbytes} B)")
            self._drop(victim)

    def note_resident_bytes(self, key: int, extra: int) -> None:
        """Count ``extra`` packed bytes for the key's bucket; a bucket that is large now may evict others."""
        i = self.bucket_for(key)
        with self._dropping():
            if i is None or i not in self._entries:
                return
            self._use(i)
            s = self._stats[i]
            s.resident_bytes += extra
            self._log.add("note", key, i, self.resident_bytes)
            self._make_room(i, s.resident_bytes)

    def evict_except(self, keep: int | None) -> int:
        """Drop every compiled bucket but the one with index ``keep``; how many."""
        with self._dropping():
            gone = [i for i in self._entries if i != keep]
            for i in gone:
                self._drop(i)
            return len(gone)

    def evict_one_except(self, protect: int | None) -> int | None:
        """Drop the compiled bucket of the highest index but ``protect``; its index."""
        with self._dropping():
            victim = max((i for i in self._entries if i != protect), default=None)
            if victim is not None:
                self._drop(victim)
            return victim

    def clear_compiled(self) -> None:
        """Drop every compiled bucket, each after its runs."""
        self._clear()

    clear = clear_compiled

    # --- weights ----------------------------------------------------------------------------------

    @property
    def weight_donor(self) -> int | None:
        """Upper bound of the bucket whose weights others are first offered."""
        donor = self._donor
        return None if donor is None else self._buckets[donor].upper

    def set_weight_donor(self, upper: int) -> bool:
        """Make a compiled bucket the donor; False if there is one already (the first wins) or it isn't compiled."""
        i = self._index_of_upper(upper)
        with self._lock:
            if i is None or i not in self._entries or self._donor is not None:
                return False
            self._donor = i
            return True

    def try_share_params_from_donor(self, upper: int) -> bool:
        """Let the bucket stand on the donor's weights, or, where that is gone or differs, on any other live bucket's.
        Then none of its bytes are its own, and the bucket that gave them is the donor where there was none. False: the caller uploads."""
        i = self._index_of_upper(upper)
        target = None if i is None else self._entries.get(i)
        if i is None or target is None:
            return False
        with target.standing_still(), self._lock:
            source = self._share_into(i, target) if self._entries.get(i) is target else None
            if source is None:
                return False
            self._donor = source if self._donor is None else self._donor  # the first wins
            self._shared(i, upper, target)
            return True

    def try_copy_params_between_uppers(self, dst: int, src: int) -> bool:
        """Copy every weight of ``src``'s bucket into ``dst``'s; a compiled bucket to itself is True. False unless both are
        compiled and every param of ``dst`` was found."""
        a, b = self.compiled_for_upper(dst), self.compiled_for_upper(src)
        if a is None or b is None:
            return False
        return a is b or a.copy_params_from(b) == len(set(a.param_names) - a.executor.frozen)

    # --- padded runs and resident rows ------------------------------------------------------------

    def run_padded(self, key: int, actual_rows: int, build: Callable[[int], Graph], inputs: Sequence[tuple[str, Array, int]],
                   output_inners: padded.Inners) -> tuple[int, dict[str, Array]] | None:
        """(upper, outputs): each input ``(name, data, inner)`` padded with zero rows to the bucket's extent, the active
        extent hinted for this run, each output cut to ``actual_rows``. ``output_inners`` by name or in order; 0 or
        missing: uncut, and then the whole run is at full extent. ``PaddingWarning`` where the run was whole and its rows may
        depend on the zeros (``padded.py``)."""
        return self.run_padded_mixed(key, actual_rows, build, [(*i, True) for i in inputs], output_inners)

    def run_padded_mixed(self, key: int, actual_rows: int, build: Callable[[int], Graph],
                         inputs: Sequence[tuple[str, Array, int, bool]], output_inners: padded.Inners,
                         ) -> tuple[int, dict[str, Array]] | None:
        """``run_padded`` whose inputs are ``(name, data, inner, pad)``; ``pad`` False: given as it is."""
        got = self.get_or_compile(key, build)
        if got is None:
            return None
        upper, compiled = got
        out = padded.run(compiled, upper, actual_rows, inputs, output_inners)
        with self._lock:
            s = self._stats[self.bucket_for(key) or 0]
            s.rows, s.padding_rows = s.rows + upper, s.padding_rows + upper - actual_rows
            self._log.add("run", key, self.bucket_for(key) or 0, self.resident_bytes, upper, upper - actual_rows)
        return upper, out

    def seed_resident_kv_prefix_from_keys(self, src: int, dst: int, prefix_tokens: int, outgoing_upper: int, kv_dim: int,
                                          n_layers: int) -> bool:
        """Copy the first rows of every layer's handles from ``src``'s bucket to ``dst``'s, slot to slot. True for one and
        the same compiled bucket; False where one isn't compiled."""
        return kv_roll.seed(self._pair(src, dst), prefix_tokens, outgoing_upper, kv_dim, n_layers)

    def rebind_resident_kv_hybrid_from_keys(self, src: int, dst: int, host_k: Sequence[Array], host_v: Sequence[Array],
                                            prefix_tokens: int, outgoing_upper: int, upper: int, kv_dim: int,
                                            n_layers: int) -> bool:
        """Upload the rows that the host knows, once, and copy only the missing ones from ``src``'s bucket. The next run's rows go
        behind the prefix: handles are fed from outputs 1+2i and 2+2i."""
        return kv_roll.rebind(self._pair(src, dst), host_k, host_v, prefix_tokens, outgoing_upper, upper, kv_dim, n_layers)

    def _pair(self, src: int, dst: int) -> kv_roll.Pair:
        a, b = self.bucket_for(src), self.bucket_for(dst)
        return kv_roll.Pair(a == b, self.bucket_upper_for_key(src) or 0, self.bucket_upper_for_key(dst) or 0,
                            self.compiled_for_key(src), self.compiled_for_key(dst))
