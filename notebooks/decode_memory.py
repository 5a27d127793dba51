# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Where a decoder's memory goes
#
# A decoder writes one token at a time, and its KV cache grows with the text. A compiled graph has fixed shapes, so a
# runtime compiles a *ladder* of graphs, for 8, 16, 32 … rows of cache, and climbs to the next rung when one is full.
# Two questions decide what that costs: how many copies of the weights are resident, and how much of a rung is padding.

# %%
# %matplotlib inline
from planner_core.zoo.decode import DecodeConfig
from rlx_viz.figures import cache_figure, cache_text
from runtime.decode import Decoder, random_decode_weights

config = DecodeConfig(layers=4, hidden=128, heads=8, kv_heads=4, ffn=256, vocab=512, positions=128)
weights = random_decode_weights(config, seed=0)
copy = sum(w.nbytes for w in weights.values())

decoder = Decoder(config, weights)
tokens = decoder.generate([1, 2, 3], 100).tokens
print(tokens[:12], "…")
print(f"one copy of the weights: {copy:,} bytes")

# %% [markdown]
# ## One copy for the whole ladder
#
# Each rung is compiled when the text grows into it. Its weights lie at the same offsets as the rung's before, byte for
# byte, so it takes over that buffer instead of uploading another: the resident weights stay at one copy.

# %%
ladder = decoder.ladder
print(cache_text(ladder.entry_stats(), ladder.timeline()))
assert ladder.resident_bytes == copy

# %%
cache_figure(ladder.entry_stats(), ladder.timeline(), "a ladder that shares its weights")

# %% [markdown]
# ## Without sharing, under a cap
#
# Some backends can't share a buffer. Then every rung holds a copy, and on a device with its own memory the rungs behind
# have to go: here at most one large rung may stay. The new rung gets the cached rows, slot to slot, before the old one
# is dropped, so for a moment there are two copies.

# %%
import os

os.environ["RLX_METAL_NO_SHARE"] = "1"
capped = Decoder(config, weights, large_bytes=1, unified_memory=False)
assert capped.generate([1, 2, 3], 100).tokens == tokens
del os.environ["RLX_METAL_NO_SHARE"]

print(capped.ladder.totals())
cache_figure(capped.ladder.entry_stats(), capped.ladder.timeline(), "at most one large rung")

# %% [markdown]
# ## Active rows
#
# A bucket pads what it is given. Where no row depends on a later one, the run can stop at the rows that are there:
# `run_padded` hints them to the executable, which skips the rest.

# %%
import numpy as np

from planner_core import zoo
from planner_core.ir import Graph
from runtime.caches import BucketedCompileCache


def mlp(rows):
    g = Graph("mlp")
    h = g.relu(g.mm(g.input("x", (rows, 64)), g.param("up", (64, 256))))
    g.set_outputs(g.mm(h, g.param("down", (256, 64))), names=["y"])
    return zoo.random_weights(g)


rows = BucketedCompileCache.power_of_two_ladder("cpu", 8, 64, bucket_dim={"x": 0})
for n in (3, 8, 9, 20, 33, 64):
    upper, out = rows.run_padded(n, n, mlp, [("x", np.ones((n, 64), np.float32), 64)], {"y": 64})
    print(f"{n:>2} rows in a bucket of {upper:>2}: {out['y'].shape}", rows.compiled_for_key(n).extent_reason or "active")
rows.stats()[["start", "end", "rows", "padding_rows", "padding_waste"]]

# %%
cache_figure(rows.entry_stats(), rows.timeline(), "padding of a ladder")

# %% [markdown]
# ## Inside one rung
#
# The ladder, live: what happened to each rung (view "Cache"), beside the last rung's plan, where the KV caches are the
# long bars, since their rows stay from run to run.

# %%
import rlx_viz

rlx_viz.explore(ladder)
