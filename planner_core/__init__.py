"""Model graphs and memory planning; needs NumPy and ml_dtypes only.

Read on in ``planner_core.ir`` (graphs), ``planner_core.importers`` (files to graphs) and
``planner_core.memory`` (graphs to memory plans).
"""
