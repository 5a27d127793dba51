"""Command passes: a command list rewritten in place, every application and every refusal logged.

``run_passes`` in ``run.py`` is the entry; the questions on data flow are in ``flow.py``; one file a pass beside them.
"""

from runtime.passes.base import Applied, CommandPass
from runtime.passes.flow import Flow
from runtime.passes.options import PassOptions
from runtime.passes.order import PASSES
from runtime.passes.reasons import Refusal
from runtime.passes.run import PassCounters, PassResult, run_passes

__all__ = ["PASSES", "Applied", "CommandPass", "Flow", "PassCounters", "PassOptions", "PassResult", "Refusal",
           "run_passes"]
