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
# # Arena savings, one story a toggle
#
# Three networks whose memory depends on a single switch: a vocoder that pins what it need not, a 3-D U-Net whose convs
# can absorb their neighbours, and a mixture of experts that copies its banks. Each story is a *scenario* of the zoo: a
# graph with the options that tell it. Nothing is run or downloaded; a plan needs shapes alone.

# %%
import pandas as pd

import rlx_viz
from planner_core import zoo
from planner_core.units import bytes_text


def compiled(model, name):
    """A scenario's compilation, its story printed."""
    scenario = next(s for s in zoo.scenarios(model) if s.name == name)
    made = rlx_viz.compile(scenario.build(), **scenario.settings)
    print(f"{model} / {name}: {bytes_text(made.allocate_bytes)} to allocate. {scenario.story}")
    return made


def steps(compilation):
    """What each change saved, in order and alone; in order they sum exactly to the last row."""
    rows = rlx_viz.savings(compilation)
    assert rows.bytes_in_order[:-1].sum() == rows.bytes_in_order.iloc[-1]
    return rows.assign(**{"in order": rows.bytes_in_order.map(bytes_text)})


# %% [markdown]
# ## The vocoder: `pin_output_ancestors`
#
# HiFi-GAN turns a spectrogram into ten seconds of speech. Everything is an ancestor of the waveform, so an executor
# that keeps ancestors to the end keeps everything: about 5 GB. Commands that run in order need only a few stages at a
# time.

# %%
pinned = compiled("hifigan", "pinned")
reused = compiled("hifigan", "reused")
steps(reused)

# %% [markdown]
# The explorer on the pinned plan: colour the live ranges by the rule that set their end, switch the option off, and
# watch the bars end at their last read.

# %%
vocoder = rlx_viz.explore(pinned)
vocoder.pin("ancestors pinned")
vocoder.set_option("pin_output_ancestors", False)
vocoder

# %%
was, now = (int(h["arena"]) for h in (vocoder.baseline["headline"], vocoder.document.meta["headline"]))
print(f"arena {bytes_text(was)} -> {bytes_text(now)}: {100 * (1 - now / was):.1f}% saved by one toggle")

# %% [markdown]
# Fusion is not always a saving: where three branches' sum is one kernel, all three wait for it.

# %%
regions = compiled("hifigan", "regions")
rlx_viz.compare(regions.with_options(elementwise_region=False), regions).headline["arena"]

# %% [markdown]
# ## The U-Net: `fold_conv3d_epilogue`
#
# A 3-D conv can absorb its leaky ReLU and read through a concat or an upsampling. The plan has to leave room for that,
# since what the conv now reads directly must live until it runs: fewer dispatches for a larger arena.

# %%
plain = compiled("unet3d", "reused")
folds = compiled("unet3d", "folds")
unet = rlx_viz.compare(plain, folds)
print({k: bytes_text(v[2]) for k, v in unet.headline.items() if v[2]})
unet.to_frame()[["name", "change", "death_a", "death_b", "cause"]].head(8)

# %%
rlx_viz.explore(plain, compare=folds)

# %% [markdown]
# ## The experts: `elide_bank_transposes`
#
# A mixture of experts stores its banks one way round and multiplies them the other. A transpose of a constant bank is a
# second copy that lives to the end, three a layer; a grouped matmul that reads the bank as stored needs none.

# %%
copies = compiled("moe", "dead-copies")
elided = compiled("moe", "elided")
print(f"{bytes_text(copies.plan.arena_size - elided.plan.arena_size)} are copies of weights")
steps(elided)

# %% [markdown]
# The condition matters: a kernel that folds only small reads (`elide_requires_small_m`) does for one token what it
# can't do for a prompt.

# %%
one_token = compiled("moe", "small-m")
prompt = compiled("moe", "prompt-small-m")
pd.DataFrame({"arena": {"one token": one_token.plan.arena_size, "64 tokens": prompt.plan.arena_size}}).map(bytes_text)

# %%
rlx_viz.explore(elided)
