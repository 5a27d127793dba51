"""Reverse-mode differentiation of graphs: ``backward`` makes a training graph, ``split`` cuts it in two.

Each op declares its own gradient (``Op.gradient``); what they share is in ``planner_core.ir.ops.adjoint``.
"""

from planner_core.autodiff.reverse import backward
from planner_core.autodiff.split import split

__all__ = ["backward", "split"]
