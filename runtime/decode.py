"""Owns ``Decoder``: text generation over a power-of-two ladder of decode graphs with a resident KV cache.

Each rung is compiled when the text grows into it. The new rung takes over the weights of a live one (one copy for the
whole ladder), gets the cached rows slot to slot, and only then are its bytes counted, which may evict the rung before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner_core.ir import Array, Graph
from planner_core.zoo import random_weights
from planner_core.zoo.decode import DecodeConfig, decode_step
from runtime.caches import BucketedCompileCache
from runtime.caches.bucketed import weight_bytes_of
from runtime.caches.eviction import LARGE_BYTES
from runtime.caches.kv_roll import handle_names, row_feeds
from runtime.compile import CompileOptions
from runtime.errors import RunError
from runtime.session import CompiledGraph, Device

__all__ = ["Decoder", "Generated", "random_decode_weights"]


def random_decode_weights(config: DecodeConfig, seed: int = 0) -> dict[str, Array]:
    """Seeded weights by name, packed where the config says so."""
    return dict(random_weights(decode_step(config, 1), seed).weights)


@dataclass(slots=True)
class Generated:
    """``tokens``: those that were chosen, without the prompt. ``logits``: one row a token that was read, on request."""

    tokens: list[int]
    logits: list[Array] = field(default_factory=list)


class Decoder:
    """One text at a time; ``reset`` starts another. ``weights`` by param name; the rest goes to the cache.

    ``ladder`` holds the compiled rungs, their bytes and what happened to them.
    """

    def __init__(self, config: DecodeConfig, weights: Mapping[str, Array], device: Device | str = Device.AUTO, *,
                 min_rows: int = 8, options: CompileOptions | None = None, large_bytes: int = LARGE_BYTES,
                 unified_memory: bool | None = None) -> None:
        self.config = config
        self.weights = dict(weights)
        extent = 1 << (config.positions.bit_length() - 1)  # rungs are powers of two within the positions
        self.ladder = BucketedCompileCache.power_of_two_ladder(
            device, min(min_rows, extent), extent, options=options, unified_memory=unified_memory,
            large_bytes=large_bytes)
        self.position = 0
        self._names = handle_names(config.layers)
        self._rung: CompiledGraph | None = None
        self._upper = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit the last rung."""
        return self.ladder.buckets[-1].upper

    def reset(self) -> None:
        """Start over: nothing read yet; compiled rungs stay."""
        self.position, self._rung, self._upper = 0, None, 0

    def _build(self, upper: int) -> Graph:
        return decode_step(self.config, upper)

    def _climb(self) -> CompiledGraph:
        """The rung of the next row, with its rows and weights in place."""
        key = self.position + 1
        if self._rung is not None and key <= self._upper:
            return self._rung
        before = self.ladder.compiled_for_key(key)
        got = self.ladder.get_or_compile(key, self._build)
        if got is None:
            raise RunError(f"the text is {self.position} tokens long, which is all that the ladder takes; make the "
                           "config's positions larger")
        upper, rung = got
        own = 0
        if before is not rung and not self.ladder.try_share_params_from_donor(upper):
            rung.set_params(self.weights)
            self.ladder.set_weight_donor(upper)
            own = weight_bytes_of(self.weights)
        if self.position and not self.ladder.seed_resident_kv_prefix_from_keys(
                self.position, key, self.position, self._upper, self.config.kv_dim, self.config.layers):
            raise RunError(f"the rung of {self._upper} rows is gone, and the text's {self.position} cached rows with it")
        for name in self._names:
            rung.prepare_resident_gpu_handle(name)
        row_feeds(rung, self.config.layers, self.position)
        self.ladder.note_resident_bytes(key, own)
        self._rung, self._upper = rung, upper
        return rung

    def step(self, token: int) -> Array:
        """Read one token; the logits ``[vocab]`` of what follows. ``RunError`` for a token out of range or a full ladder."""
        if not 0 <= token < self.config.vocab:
            raise RunError(f"token {token} is outside the vocabulary of {self.config.vocab}")
        rung = self._climb()
        out = rung.run({"tokens": np.full((1, 1), token, np.int64), "position": np.full(1, self.position, np.int64)})
        self.position += 1
        return out["logits"].reshape(-1)

    def generate(self, prompt: Sequence[int], count: int, keep_logits: bool = False) -> Generated:
        """Read the prompt, then choose the likeliest token ``count`` times. ``RunError`` for an empty prompt."""
        if not prompt:
            raise RunError("generation needs at least one token of prompt")
        made = Generated([])
        logits = np.empty(0)
        for token in prompt:
            logits = self.step(int(token))
            if keep_logits:
                made.logits.append(logits)
        for i in range(count):
            made.tokens.append(int(np.argmax(logits)))
            if i + 1 < count:
                logits = self.step(made.tokens[-1])
                if keep_logits:
                    made.logits.append(logits)
        return made
