"""Caches of compiled graphs, for callers whose shapes vary: by key, by range of keys, by values of symbols."""

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
