"""The errors users meet: one class per stage, each message says what, where, got, wanted, what next."""

from __future__ import annotations

__all__ = ["FusionError", "GraphError", "ImportModelError", "MissingExtraError", "OpenDimError", "OptionError", "PlanError",
           "RlxError", "UnboundDimError"]


class RlxError(Exception):
    """Base of every error this project raises on purpose."""


class GraphError(RlxError, ValueError):
    """A graph, shape, dtype or op attribute that breaks the IR's contract."""


class UnboundDimError(GraphError):
    """A symbolic dim has no value where one is needed."""


class MissingExtraError(RlxError, ImportError):
    """An optional package is wanted; the message says how to install it."""


class ImportModelError(RlxError, ValueError):
    """A model file that can't be read or turned into a graph."""


class OpenDimError(ImportModelError):
    """A dim that can't stay without a value through the nodes of a model."""


class PlanError(RlxError, ValueError):
    """A plan that can't be made, or that failed its self-check."""


class OptionError(PlanError):
    """An option that doesn't exist, or a value it doesn't take."""


class FusionError(RlxError, ValueError):
    """A fusion pipeline that can't run, or a rule that breaks its contract."""
