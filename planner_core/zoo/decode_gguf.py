"""Owns ``load_gguf``: config and weights of a LLaMA-style GGUF file, for ``decode_step``. Needs the package gguf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from planner_core.errors import ImportModelError, MissingExtraError
from planner_core.ir import Array
from planner_core.zoo.decode import DecodeConfig

__all__ = ["load_gguf"]

_MATRICES = {"attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "projected", "ffn_gate": "gate", "ffn_up": "up",
             "ffn_down": "down"}
_NORMS = {"attn_norm": "norm1", "ffn_norm": "norm2"}
_FLOATS = ("F32", "F16", "BF16")


def load_gguf(path: str | Path, positions: int = 0) -> tuple[DecodeConfig, dict[str, Array]]:
    """(config, weights by param name). ``positions`` 0: the file's context length.

    Matrices of one packed type stay packed; mixed ones are unpacked to f32, floats widened to f32. ``ImportModelError`` for
    another architecture or a missing tensor, ``MissingExtraError`` without the package.
    """
    try:
        import gguf
    except ImportError:
        raise MissingExtraError("GGUF files are read by the package gguf, which is not installed; install it with: "
                                "pip install 'rlx-viz[gguf]'") from None
    try:
        reader = gguf.GGUFReader(str(path))
    except (OSError, ValueError) as e:
        raise ImportModelError(f"can't read {path}: {e}") from e
    field: dict[str, Any] = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("tokenizer.")}
    if field.get("general.architecture") != "llama":
        raise ImportModelError(f"{path} has architecture {field.get('general.architecture')!r}, wanted 'llama'")
    tensors = {t.name: t for t in reader.tensors}
    layers = int(field["llama.block_count"])
    matrices = {f"blk.{i}.{a}.weight": f"layers.{i}.{b}.w" for i in range(layers) for a, b in _MATRICES.items()}
    matrices["output.weight" if "output.weight" in tensors else "token_embd.weight"] = "head.w"
    norms = {f"blk.{i}.{a}.weight": f"layers.{i}.{b}.gamma" for i in range(layers) for a, b in _NORMS.items()}
    norms["output_norm.weight"] = "norm.gamma"
    lost = [n for n in (*matrices, *norms, "token_embd.weight") if n not in tensors]
    if lost:
        raise ImportModelError(f"{path} lacks tensors {', '.join(lost[:4])}{' …' if len(lost) > 4 else ''}")
    types = {tensors[n].tensor_type.name for n in matrices}
    packed = len(types) == 1 and not types & set(_FLOATS)

    def values(name: str) -> Array:
        t = tensors[name]
        return np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32)  # a copy: the file is mapped

    embed = values("token_embd.weight")
    heads = int(field["llama.attention.head_count"])
    config = DecodeConfig(
        layers=layers, hidden=int(field["llama.embedding_length"]), heads=heads,
        kv_heads=int(field.get("llama.attention.head_count_kv", heads)), ffn=int(field["llama.feed_forward_length"]),
        vocab=embed.shape[0], positions=positions or int(field["llama.context_length"]),
        quant=next(iter(types)).lower() if packed else "", interleaved=True,
        eps=float(field.get("llama.attention.layer_norm_rms_epsilon", 1e-5)))
    weights: dict[str, Array] = {"embed": embed}
    weights |= {mine: values(name) for name, mine in norms.items()}
    for name, mine in matrices.items():
        raw = np.array(tensors[name].data) if packed else np.ascontiguousarray(values(name).T)
        weights[mine] = raw.reshape(-1).view(np.uint8) if packed else raw
    half = config.head_dim // 2
    base = float(field.get("llama.rope.freq_base", 10000.0))
    angle = np.arange(config.positions)[:, None] * base ** (-np.arange(half) / half)
    weights["rope.cos"], weights["rope.sin"] = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    return config, weights
