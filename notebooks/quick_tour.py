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
# Where does a model's memory go? This notebook takes a real network, the file-type classifier that the
# `magika` package ships, plans its memory, and looks at the plan from several sides.

# %%
import rlx_viz
from rlx_viz.cli import summary_text
from rlx_viz.demo import magika_model
from rlx_viz.frames import tensors_frame

compilation = rlx_viz.compile(magika_model())
doc = rlx_viz.snapshot(compilation)
print(summary_text(doc))

# %% [markdown]
# The first line of numbers is what to allocate. *Naive* is what the arena would take if no bytes were ever
# used twice; the *lower bound* is the most that is live at one step, which no placement can beat.
#
# The explorer below is live: switch `pin_output_ancestors` or `arena_no_reuse` and the model is planned
# again. Hover or click a tensor in one picture to see it in all of them.

# %%
rlx_viz.explore(compilation)

# %% [markdown]
# The same tensors as data. `kept_by` names the rule that set the end of each live range.

# %%
frame = tensors_frame(doc)
frame[frame.space == "arena"].nlargest(8, "size")[["name", "op", "shape", "size", "birth", "death", "kept_by"]]

# %% [markdown]
# What is live at the peak, and why is the largest of them alive?

# %%
plan = compilation.plan
peak = plan.peak()
print(f"step {peak.step}: {peak.nbytes:,} bytes")
for tensor in peak.tensors[:5]:
    print(f"{tensor.nbytes:>12,}  {tensor.label}  (kept by {tensor.rule})")

for reason in plan.why_alive(peak.tensors[0].node):
    print("-", reason.text)

# %% [markdown]
# What did each step of planning save? The deltas sum exactly from "every tensor its own bytes" to the plan.

# %%
for saving in plan.savings():
    print(f"{saving.delta:>+14,}  {saving.name}  -> {saving.after:,}")

# %% [markdown]
# And the proof: run it on the planned arena, with every free byte poisoned.

# %%
import numpy as np

data = np.full((1, 2048), 256, dtype=np.int32)
head = np.frombuffer(b"import numpy as np\n\ndef main():\n    print('hello')\n" * 8, dtype=np.uint8)
data[0, : len(head)] = head
(name, scores), = compilation.run({"bytes": data}, sanitize=True).items()
print(name, scores.shape, "most likely label:", int(scores[0].argmax()), f"at {scores.max():.3f}")
