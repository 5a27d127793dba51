"""Owns the zoo's scenarios: options by name, for each stage, that tell what a model is there to show.

Scenarios of one model are meant to be compared: same model, a few options apart. They name every option that
matters, so they say the same over any preset: ``rlx_viz.compile(s.build(), **s.settings)``, or a stage at a time,
``fuse_graph(g, s.target, s.fusion_options())`` and ``plan_graph(g, s.options())``. Each stands in ``_STORIES``, made
by ``_say``: what it doesn't say about fusion is ``AS_WRITTEN``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner_core.fusion import RULES, Fusion, FusionOptions, fuse_graph, fusion_for_target
from planner_core.ir import Graph
from planner_core.memory import ArenaWidthPolicy, MemoryPlan, PlanOptions, Target, plan_graph
from planner_core.memory.options import IN_ORDER
from planner_core.zoo.registry import graphs_of, names, require_name
from planner_core.zoo.weights import random_weights

__all__ = ["Scenario", "scenarios"]

LLAMA_3B = {"layers": 28, "hidden": 3072, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 128256}
"""Llama-3.2-3B's sizes (Meta 2024): 28 layers, grouped queries."""
PROMPT_8K = {**LLAMA_3B, "seq": 8192, "quant": "q4_k", "packed_qkv": True, "last_only": True, "embed": False}

PINNED: dict[str, Any] = {"pin_output_ancestors": True, "dequant_host_fallback": True, "separate_weights": False,
                          "elide_bank_transposes": False, "width_policy": ArenaWidthPolicy.F32_UNIFORM,
                          "keep_pass_operands": False, "elide_requires_small_m": False, "placement": "first_fit",
                          "host_custom_inputs": True, "onnx_hidden": True, "onnx_duration": True}
REUSED: dict[str, Any] = {**PINNED, **IN_ORDER, "placement": "auto"}
HOST = {**REUSED, "host_custom_inputs": True, "onnx_hidden": True, "onnx_duration": True}
PACKED_MLP = {"quant": "q4_k", "packed_mlp": True, "sliced_mlp": True}
"""The form that one-row MLP passes look for (spec/command-list.md)."""

NATIVE = {**REUSED, "width_policy": ArenaWidthPolicy.NATIVE}
WIDENED = {**REUSED, "width_policy": ArenaWidthPolicy.NATIVE_HALF_WIDENED}
UNIFORM = REUSED
APART: dict[str, Any] = {**REUSED, "separate_weights": True}
AS_WRITTEN: dict[str, Any] = {"target": "cpu", "fusion": False}
METAL_LIST: dict[str, Any] = {"target": "metal", "fusion": False}
"""Metal's command passes on the graph as it was written."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``model`` built with ``params``, planned with ``plan``; ``story`` says in a sentence what to look at.

    ``fusion``: ``target``, then bools by rule name over the target's preset, ``fusion`` off for none at all.
    ``passes``: bools by command pass likewise.
    """

    model: str
    name: str
    story: str
    plan: Mapping[str, Any]
    params: Mapping[str, Any] = field(default_factory=dict)
    fusion: Mapping[str, Any] = field(default_factory=lambda: AS_WRITTEN)
    passes: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = False
    """Seeded random weights are filled in: some rules compute with them."""

    def graphs(self) -> tuple[Graph, ...]:
        """The graph, or forward and backward."""
        made = graphs_of(self.model, **self.params)
        return tuple(random_weights(g) for g in made) if self.weights else made

    def build(self) -> Graph:
        """The graph; of a training pair, the forward one."""
        return self.graphs()[0]

    @property
    def target(self) -> Target:
        """What it is compiled for."""
        return Target(self.fusion["target"])

    @property
    def settings(self) -> dict[str, Any]:
        """Target and options of every stage by name, as ``rlx_viz.compile`` takes them."""
        return {**self.plan, **self.fusion, **self.passes}

    def options(self) -> PlanOptions:
        """``plan`` over the plain defaults; the environment is not read."""
        return PlanOptions().replace(**self.plan)

    def fusion_options(self) -> FusionOptions:
        """``fusion`` over the target's preset; ``OptionError`` where it names no rule."""
        return fusion_for_target(self.target, **{k: v for k, v in self.fusion.items() if k != "target"})

    def fusions(self) -> tuple[Fusion, ...]:
        """Each graph as the rules leave it, with their log."""
        return tuple(fuse_graph(g, self.target, self.fusion_options()) for g in self.graphs())

    def plans(self) -> tuple[MemoryPlan, ...]:
        """A plan for each of ``fusions``."""
        return tuple(plan_graph(f.graph, self.options()) for f in self.fusions())


def _only(*rules: str) -> dict[str, Any]:
    """Those fusion rules and no others, now and when there are more."""
    return {"target": "metal", "fusion": True, **{name: name in rules for name in RULES}, **dict.fromkeys(rules, True)}


Entry = tuple[str, str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], Mapping[str, Any], bool]
"""A ``Scenario``'s fields after ``model``."""

_NONE: Mapping[str, Any] = {}


def _say(name: str, story: str, plan: Mapping[str, Any], params: Mapping[str, Any] = _NONE, *,
         fusion: Mapping[str, Any] = AS_WRITTEN, passes: Mapping[str, Any] = _NONE, weights: bool = False) -> Entry:
    return name, story, plan, params, fusion, passes, weights


_PAIR: list[Entry] = [
    _say("pinned", "Everything an output was computed from stays alive to the end.", PINNED),
    _say("reused", "A tensor's bytes are free after its last read.", REUSED),
]
_ENCODER: list[Entry] = [
    _say("host-gathers", "The embedding's gathers may run on the host, so every ancestor of the output is kept.", PINNED),
    _say("reused", "With commands in order a layer's tensors make room for the next layer's.", REUSED),
    _say("weights-apart", "Weights in a region of their own: the arena holds activations alone.",
     APART),
    _say("fused", "Bias and GELU go into their products, each residual sum into its norm: half the dispatches, and the "
         "widest tensor is never written twice.", APART, fusion=_only("matmul_bias_act", "residual_into_layer_norm")),
]
_HALF: list[Entry] = [
    _say("half-native", "All floats in 16 bits: half the bytes of f32.", NATIVE, {"quant": "f16"}),
    _say("half-widened", "Half-float activations stored in 32 bits; caches, and what appends to them, stay native.", WIDENED,
     {"quant": "f16"}),
    _say("half-uniform", "Four bytes for every activation: the caches double too.", UNIFORM, {"quant": "f16"}),
]
_STORIES: dict[str, list[Entry]] = {
    "decoder-stack": [
        *_PAIR,
        _say("fused", "The residual stream is read again after every norm, so fusion may not take the sums: it says so seven "
             "times.", APART, fusion=_only("residual_into_rms_norm", "matmul_bias_act")),
    ],
    "bert-base": _ENCODER,
    "minilm": _ENCODER,
    "resnet50": [
        *_PAIR,
        _say("no-reuse", "Every buffer has bytes of its own: what reuse starts from.", {**REUSED, "arena_no_reuse": True}),
        _say("regions", "Each residual sum and its ReLU are one kernel, 16 dispatches fewer.", REUSED,
             fusion=_only("elementwise_region")),
        _say("conv-folds", "Batch norm goes into the weights, residual and ReLU into the convolution: 57 dispatches for 175, "
             "and what was written between them is not.", APART, weights=True,
             fusion=_only("conv_batch_norm", "conv_bias_act", "constant_folding", "bake_static")),
    ],
    "hifigan": [
        _say("pinned", "The vocoder with all ancestors of the waveform pinned: ~5 GB for 10 s of speech.", PINNED),
        _say("reused", "The same graph with a handful of stage tensors alive at a time.", REUSED),
        _say("regions", "Fusion that costs memory: the three branches' sum and mean are one kernel, so all three wait for it.",
             REUSED, fusion=_only("elementwise_region")),
        _say("conv-folds", "Bias, residual and activation go into their convolutions: 2.1 GB less is written in a run, though "
             "the arena holds a little more at its peak.", REUSED, fusion=_only("conv_bias_act")),
    ],
    "llama-prefill": [
        _say("packed-8k-pinned", "8,192 tokens through packed QKV and dequant matmuls that a host might run: every "
         "activation is kept.", PINNED, PROMPT_8K),
        _say("packed-8k-reused", "The same prompt in order: packed weights, caches and a few activations.", REUSED, PROMPT_8K),
        _say("packed-8k-mlp", "Gate and up from one matmul, read by SwiGLU: fewer nodes, the same bytes at the peak.", REUSED,
         {**PROMPT_8K, "packed_mlp": True}),
        _say("packed-8k-mlp-pinned", "Pinned, the packed form saves the gate's activated copy in every layer.", PINNED,
         {**PROMPT_8K, "packed_mlp": True}),
        *_HALF,
    ],
    "llama-decode": [
        _say("pinned", "One token's activations are small: pinning them costs little beside weights and cache.", PINNED),
        _say("quantised", "Four-bit weights in place of f32: now the cache is a third of the arena.", REUSED, {"quant": "q4_0"}),
        _say("mlp-refused", "Metal's decode pass for gate and up apart: their product lies on the bytes of its own operand, so "
             "it refuses all 32.", APART, {"quant": "q4_k"}, fusion=METAL_LIST, passes={"decode": True}),
        _say("mlp-kept-rows", "The operand's one row kept alive up to the product, 16 KB more: now each MLP is two dispatches "
             "in place of six.", {**APART, "keep_pass_operands": True}, {"quant": "q4_k"}, fusion=METAL_LIST,
             passes={"decode": True}),
        _say("packed-mlp-list", "Gate and up from one packed matmul, cut in two: seven dispatches a layer without the passes.",
             APART, PACKED_MLP, fusion=METAL_LIST, passes={"decode": False}),
        _say("packed-mlp-fused", "The decode pass makes two of the seven, on the same arena.", APART, PACKED_MLP,
             fusion=METAL_LIST, passes={"decode": True}),
        *_HALF,
    ],
    "moe": [
        _say("dead-copies", "Each transposed bank is a second copy that lives to the end: 1.88 GB, three a layer.",
         {**REUSED, "elide_bank_transposes": False}),
        _say("elided", "The grouped matmul reads the bank as stored: the copies are gone.",
         {**REUSED, "elide_bank_transposes": True}),
        _say("small-m", "One token makes two rows: few enough for a kernel that folds only small reads.",
         {**REUSED, "elide_bank_transposes": True, "elide_requires_small_m": True}),
        _say("prompt-small-m", "64 tokens make 128 rows: that kernel folds nothing, and the copies are back.",
         {**REUSED, "elide_bank_transposes": True, "elide_requires_small_m": True}, {"seq": 64}),
        _say("quantised", "Banks packed in 4 bits are read as stored: nothing to transpose.", REUSED, {"quant": "q4_0"}),
    ],
    "unet3d": [
        *_PAIR,
        _say("folds", "Room for convs that absorb their leaky ReLU and read through concat and upsample.",
         {**REUSED, "fold_conv3d_epilogue": True}),
        _say("regions", "Leaky ReLU, two ops as exporters write it, is one kernel: fewer dispatches on the same arena.", REUSED,
             fusion=_only("elementwise_region")),
        _say("conv-folds", "The convolution itself ends in the leaky ReLU: 24 dispatches for 52, 2.5 GB less written.", REUSED,
             fusion=_only("conv_bias_act")),
    ],
    "albert-onnx": [
        _say("host-matmuls", "onnx.QMatMul runs on the host: what it reads, and every sum and norm, stays.", HOST),
        _say("in-order", "The same list run in order: layers share bytes.", REUSED),
        _say("kernels", "The same products as ordinary ops: layers share bytes, but each use makes an f32 copy of its weight, "
         "a static pack that stays.", REUSED, {"kernels": True}),
    ],
    "tts-duration": [
        _say("int64-output", "One int64 output among the results: for a host's length logic the plan reuses nothing at all.",
             {**NATIVE, "onnx_duration": True}),
        _say("weights-apart", "Still nothing is reused; the region of activations alone shows what that costs.",
             {**NATIVE, "onnx_duration": True, "separate_weights": True}),
        _say("in-order", "Commands that run in order need none of it: bytes are free after their last read.",
             {**NATIVE, "separate_weights": True}),
        _say("fused", "With nothing reused, each value that fusion keeps in registers is arena saved.",
             {**NATIVE, "onnx_duration": True, "separate_weights": True},
             fusion=_only("layout_pairs", "conv_bias_act", "matmul_bias_act", "residual_into_layer_norm")),
    ],
    "sam-attention": [
        *_PAIR,
        _say("host-structure", "Everything that transposes and slices touch is kept for the host: the scores, block by block.",
         {**REUSED, "pin_host_structure": True}),
    ],
    "dit-block": [
        *_PAIR,
        _say("weights-apart", "675 M weights aside, 28 blocks run in a few megabytes.", APART),
        _say("shared-silu", "The conditioning's SiLU, written in every block, is computed once.", APART,
             fusion=_only("common_subexpressions")),
        _say("fused", "Every product takes its bias, half of them GELU or the modulation's SiLU too.", APART,
             fusion=_only("common_subexpressions", "matmul_bias_act")),
        _say("clusters", "Six slices of each block's modulation, and the last two, are cut by one dispatch: 29 for 170.", APART,
             fusion=METAL_LIST, passes={"narrow_clusters": True}),
    ],
    "mamba": [
        *_PAIR,
        _say("embeddings-apart", "From hidden states: no gather, no logits, no transposed table.", REUSED, {"embed": False}),
        _say("depthwise", "The short convolution reads channels last, without the transposes around it.", APART,
             fusion=_only("depthwise_conv1d")),
    ],
    "mamba-train": [
        _say("pinned", "Every activation and gradient kept to the end: 2,375 buffers, each with bytes of its own.", PINNED),
        _say("reused", "One step in order: an activation stays until its last backward reader, a gradient until its last.",
             REUSED),
        _say("weights-apart", "Weights aside: what is left is activations, and the gradients that leave as outputs.",
             APART),
        _say("transposes-read", "Backward products read activations and weights transposed, as they are stored: the copies go.",
             APART, fusion=_only("transpose_into_matmul")),
    ],
    "matmul-train": [
        _say("own-weights", "Forward and backward each hold the weight.", REUSED),
        _say("shared-weights", "Params outside the plan: the backward finds the weight where the forward put it.",
         {**REUSED, "allocate_params": False}),
    ],
}


def scenarios(name: str) -> tuple[Scenario, ...]:
    """The model's scenarios in reading order; ``GraphError`` for an unknown model."""
    require_name(name)
    return tuple(Scenario(name, *entry) for entry in _STORIES.get(name, _PAIR))


_stray = _STORIES.keys() - set(names())
if _stray:
    raise TypeError(f"scenarios for models that are not in the zoo: {sorted(_stray)}")
