"""Still figures with matplotlib, one module a kind."""

from rlx_viz.figures.caches import cache_figure, cache_text
from rlx_viz.figures.placement import arena_figure, compare_placements, placement_figure
from rlx_viz.figures.serving import serving_figure
from rlx_viz.figures.sweep import sweep_figure

__all__ = ["arena_figure", "cache_figure", "cache_text", "compare_placements", "placement_figure", "serving_figure",
           "sweep_figure"]
