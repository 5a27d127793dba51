"""Still figures with matplotlib, one module a kind."""

from rlx_viz.figures.sweep import sweep_figure

__all__ = ["sweep_figure"]
