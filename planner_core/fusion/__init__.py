"""Owns fusion: rules that merge ops into kernels, and a log that says what each did and what it refused.

``rules/`` has the rules by family, ``rule.py`` their declaration, ``draft.py`` the graph under rewriting,
``pipeline.py`` the order and the log, ``cost.py`` the estimates, ``views.py`` what pictures are drawn from.
"""

from planner_core.decision import Decision, DecisionLog, Verdict
from planner_core.fusion.cost import DEVICES, CostView, DeviceProfile, device, estimate
from planner_core.fusion.options import FusionOptions, fusion_for_target, no_fusion
from planner_core.fusion.pipeline import Fusion, fuse_graph
from planner_core.fusion.refusal import Refusal
from planner_core.fusion.rule import RULES, Limits, Rule
from planner_core.fusion.views import Layout, Modules, layered_layout, module_counts, modules, to_networkx
from planner_core.target import Target as FusionTarget

__all__ = [
    "DEVICES", "RULES", "CostView", "Decision", "DecisionLog", "DeviceProfile", "Fusion", "FusionOptions", "FusionTarget",
    "Layout", "Limits", "Modules", "Refusal", "Rule", "Verdict", "device", "estimate", "fuse_graph", "fusion_for_target",
    "layered_layout", "module_counts", "modules", "no_fusion", "to_networkx",
]
