"""Model files to graphs: ``import_onnx`` and ``load_model``, which picks the importer by content and suffix."""

from planner_core.importers.load import import_onnx, load_model

__all__ = ["import_onnx", "load_model"]
