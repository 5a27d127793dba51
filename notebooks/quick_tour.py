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
# # Quick tour
#
# Where does a model's memory go? This notebook takes three models - the file-type classifier that the `magika`
# package ships, BERT, and one decoding step of a quantised language model - plans their memory, and looks at the plans
# from several sides.

# %%
import rlx_viz
from rlx_viz.cli import summary_text
from rlx_viz.demo import magika_model

compilation = rlx_viz.compile(magika_model())
doc = rlx_viz.snapshot(compilation)
print(summary_text(doc))

# %% [markdown]
# The first line of numbers is what to allocate. *Naive* is what the arena would take if no bytes were ever
# used twice; the *lower bound* is the most that is live at one step, which no placement of these live ranges can beat. The
# *order floor* is what any order of the same commands needs.
#
# The explorer below is live: switch `pin_output_ancestors` or `arena_no_reuse` and the model is planned
# again. Hover or click a tensor in one picture to see it in all of them; `?` lists the keys.

# %%
explorer = rlx_viz.explore(compilation)
explorer

# %% [markdown]
# Python sees the same explorer. What is done here shows above, and what is clicked above shows here.

# %%
explorer.set_option("arena_no_reuse", True)
print("options:", explorer.options, "- arena:", f"{explorer.compilation.plan.arena_size:,} bytes")
explorer.undo()
print("options:", explorer.options, "- arena:", f"{explorer.compilation.plan.arena_size:,} bytes")

# %% [markdown]
# The same tensors as data. `kept_by` names the rule that set the end of each live range.

# %%
frame = compilation.tensors()
frame[frame.space == "arena"].nlargest(8, "size_bytes")[["name", "op", "shape", "size_bytes", "birth", "death", "kept_by"]]

# %% [markdown]
# What is live at the peak, and why is the largest of them alive?

# %%
plan = compilation.plan
peak = plan.peak()
print(f"node {peak.step}: {peak.nbytes:,} bytes")
for tensor in peak.tensors[:5]:
    print(f"{tensor.nbytes:>12,}  {tensor.label}  (kept by {tensor.rule})")

for reason in plan.why_alive(peak.tensors[0].node):
    print("-", reason.text)

# %% [markdown]
# What did each rule and option save? Told in two ways: *in this order*, each change on top of those before it, summing
# exactly from "every tensor its own bytes" to the number to allocate; and *alone*, this plan against this plan without it.

# %%
rlx_viz.savings(compilation)

# %% [markdown]
# And the proof: run it on the planned arena, with every free byte poisoned.

# %%
import numpy as np

data = np.full((1, 2048), 256, dtype=np.int32)
head = np.frombuffer(b"import numpy as np\n\ndef main():\n    print('hello')\n" * 8, dtype=np.uint8)
data[0, : len(head)] = head
(name, scores), = compilation.run({"bytes": data}, sanitize=True).items()
print(name, scores.shape, "most likely label:", int(scores[0].argmax()), f"at {scores.max():.3f}")

# %% [markdown]
# ## BERT: what fusion does
#
# Twelve layers with the shapes of BERT base, from the zoo: no file, no weights needed to plan. The fusion graph shows
# which ops became one kernel; every candidate that did not has its reason.

# %%
from planner_core import zoo

bert = rlx_viz.compile(zoo.build("bert-base"), target="metal")
bert.fusion_log.to_frame().groupby(["stage", "rule", "verdict", "reason"], dropna=False).size().rename("candidates").to_frame()

# %%
rlx_viz.explore(bert)

# %% [markdown]
# What fusion saves here is traffic and dispatches: an arena that reuses bytes was small before it.

# %%
told = rlx_viz.savings(bert).set_index("change")
told.loc[[r for r in told.index if r in bert.fusion_log.counts()]]

# %% [markdown]
# The same graph as it was written, beside it: what moved, what is gone, and why.

# %%
comparison = rlx_viz.compare(bert.with_options(fusion=False), bert)
for name, (before, after, delta) in comparison.headline.items():
    print(f"{name:>12}: {before:>14,} -> {after:>14,}  ({delta:+,})")
comparison.to_frame().groupby("change").size().to_frame("tensors")

# %% [markdown]
# ## A quantised decoder: commands
#
# One token of a 32-layer decoder with 4-bit weights. The command list is what a Metal device would be told; the decode
# passes fold each layer's packed MLP into two dispatches.

# %%
from rlx_viz.frames import commands_frame

scenario = next(s for s in zoo.scenarios("llama-decode") if s.name == "packed-mlp-fused")
print(scenario.story)
decoder = rlx_viz.compile(scenario.build(), **scenario.settings)
print(f"{decoder.commands_before.dispatches} dispatches before the passes, {decoder.commands.dispatches} after")
commands_frame(rlx_viz.snapshot(decoder)).groupby("command")[["read_bytes", "written_bytes"]].agg(["size", "sum"]).head(12)

# %%
rlx_viz.explore(decoder, compare={"decode": False})
