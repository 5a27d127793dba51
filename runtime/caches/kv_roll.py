"""Owns rolling a resident KV cache from one bucket's graph to the next: handles ``past_k_{i}``, ``past_v_{i}``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner_core.ir import Array
from runtime.caches.rows import pad_rows
from runtime.session import CompiledGraph

__all__ = ["Pair", "handle_names", "rebind", "row_feeds", "seed"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two keys of one cache: whether they fall into one bucket, the buckets' upper bounds, what is compiled there."""

    same: bool
    src_upper: int
    dst_upper: int
    src: CompiledGraph | None
    dst: CompiledGraph | None


def handle_names(n_layers: int) -> list[str]:
    """``past_k_0``, ``past_v_0``, ``past_k_1``, …"""
    return [f"past_{part}_{i}" for i in range(n_layers) for part in "kv"]


def _fed_from(compiled: CompiledGraph, n_layers: int) -> dict[str, str]:
    """Handle -> the output that it is fed from: ``past_k_{i}`` from output 1+2i, ``past_v_{i}`` from 2+2i. ``ValueError`` for
    fewer outputs."""
    outputs = [b.name for b in compiled.commands.outputs]
    if len(outputs) <= 2 * n_layers:
        raise ValueError(f"{compiled.commands.name!r} has {len(outputs)} outputs, wanted the result and {2 * n_layers} rows behind it: "
                         f"past_k_i is fed from output 1 + 2i, past_v_i from 2 + 2i, for {n_layers} layers")
    return dict(zip(handle_names(n_layers), outputs[1:], strict=False))


def row_feeds(compiled: CompiledGraph, n_layers: int, row: int) -> None:
    """Feed every handle from its output (``_fed_from``), beginning with ``row``."""
    for name, output in _fed_from(compiled, n_layers).items():
        compiled.register_kv_row_feed(name, output, row)


def _check(pair: Pair, outgoing_upper: int, kv_dim: int, n_layers: int) -> None:
    if pair.src_upper != outgoing_upper:
        raise ValueError(f"outgoing_upper is {outgoing_upper}, the source key's bucket has {pair.src_upper} rows")
    for compiled in (pair.src, pair.dst):
        for name in handle_names(n_layers):
            width = compiled.handles.view(name).shape[1] if compiled else kv_dim
            if width != kv_dim:
                raise ValueError(f"kv_dim is {kv_dim}, handle {name!r} has rows of {width}")


def seed(pair: Pair, prefix_tokens: int, outgoing_upper: int, kv_dim: int, n_layers: int) -> bool:
    """Copy ``prefix_tokens`` rows of every handle. True for one bucket; False where one isn't compiled."""
    if pair.src is None or pair.dst is None:
        return False
    if pair.same:
        return True
    _check(pair, outgoing_upper, kv_dim, n_layers)
    pair.dst.seed_resident_kv_prefix_from(pair.src, handle_names(n_layers), prefix_tokens)
    return True


def rebind(pair: Pair, host_k: Sequence[Array], host_v: Sequence[Array], prefix_tokens: int, outgoing_upper: int, upper: int,
           kv_dim: int, n_layers: int) -> bool:
    """Stage the host's rows, zero-padded to ``upper``; rows it doesn't know come from the outgoing bucket. The next run's rows
    are fed behind the prefix."""
    if pair.src is None or pair.dst is None:
        return False
    if pair.same:
        return True
    _check(pair, outgoing_upper, kv_dim, n_layers)
    if pair.dst_upper != upper or len(host_k) < n_layers or len(host_v) < n_layers:
        raise ValueError(f"upper is {upper}, the target key's bucket has {pair.dst_upper} rows; {len(host_k)} and "
                         f"{len(host_v)} layers of host rows, wanted {n_layers}")
    _fed_from(pair.dst, n_layers)  # before anything is staged
    rows = np.size(host_k[0]) // max(kv_dim, 1) if n_layers else 0
    for i in range(n_layers):
        for part, host in (("k", host_k), ("v", host_v)):
            pair.dst.bind_gpu_handle(f"past_{part}_{i}", pad_rows(host[i], kv_dim, upper))
    pair.dst.stage_bound_gpu_handles_to_arena()
    pair.dst.handles.unbind(handle_names(n_layers))  # the host's rows go up once
    names = handle_names(n_layers)
    if rows < prefix_tokens:
        pair.dst.copy_resident_kv_rows_from(pair.src, names, rows, prefix_tokens)
    for name in names:
        pair.dst.prepare_resident_gpu_handle(name)
    row_feeds(pair.dst, n_layers, prefix_tokens)
    return True
