"""Owns the fusion rules, one family a file, imported in the order in which a pipeline runs them."""

from planner_core.fusion.rules import cleanup

__all__ = ["cleanup"]
