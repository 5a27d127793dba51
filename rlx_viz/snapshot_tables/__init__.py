"""The parts of a snapshot, a file an idea; `rlx_viz/snapshots.py` puts them together.

`names.py` texts and what hides them, `tensors.py` the plan, `graphs.py` what is drawn of the graphs, `decisions.py`
what rules did, `commands.py` the command list, `figures.py` counters and estimates, `meta.py` the rest.
"""
