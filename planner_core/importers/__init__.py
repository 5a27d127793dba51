"""Model files to graphs: ``import_onnx`` and ``load_model``, which picks the importer by content and suffix; ``OpenModel``
keeps dims open."""

from planner_core.importers.load import import_onnx, load_model
from planner_core.importers.open_model import OpenModel

__all__ = ["OpenModel", "import_onnx", "load_model"]
