"""Owns the demo's model: the ONNX file that the ``magika`` package ships (extra ``demo``)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from planner_core.errors import ImportModelError

__all__ = ["magika_model"]


def magika_model() -> Path:
    """Path of magika's newest standard model, found through the installed package."""
    try:
        root = resources.files("magika")
    except ModuleNotFoundError:
        raise ImportModelError("the demo's model comes with the package magika: pip install 'rlx-viz[demo]'") from None
    models = sorted((p for p in (root / "models").iterdir() if p.name.startswith("standard")), key=lambda p: p.name)
    for folder in reversed(models):
        found = folder / "model.onnx"
        if found.is_file():
            return Path(str(found))
    raise ImportModelError(f"no standard*/model.onnx in the installed magika ({root}); pip install -U magika")
