"""Caches of compiled graphs, for callers whose shapes vary: by key, by range of keys, by values of symbols.

Environment, read at each use: ``RLX_METAL_NO_SHARE`` (any value: weights are never shared), ``RLX_KV_CACHE_MAX_RESIDENT``
(large buckets that may stay, at least 1; set, it applies on unified memory too), ``RLX_KV_CACHE_NO_EVICT`` (any value),
``RLX_KV_CACHE_DBG`` (any value: eviction decisions to stderr). ``RLX_TRACE_PERFETTO`` is ``runtime.trace``'s.
"""

from runtime.caches.aot import AotCache, AotCacheWarning
from runtime.caches.bucketed import BucketedCompileCache
from runtime.caches.buckets import Bucket
from runtime.caches.compile_cache import CompileCache
from runtime.caches.dynamic import DynamicDimCompileCache
from runtime.caches.rows import pad_rows, pad_rows_into, slice_rows
from runtime.caches.stats import CacheEvent, EntryStats, Totals

__all__ = [
    "AotCache", "AotCacheWarning", "Bucket", "BucketedCompileCache", "CacheEvent", "CompileCache", "DynamicDimCompileCache",
    "EntryStats", "Totals", "pad_rows", "pad_rows_into", "slice_rows",
]
