"""The explorer widget: the front end in a notebook, re-planning when an option is switched.

`widget.py` the widget, `live.py` a compilation under its changing options, `history.py` undo and redo, `worker.py` work
behind the picture, `fallback.py` the page for readers without a kernel.

The picture is in `rlx_viz/static/`; `widget.js` there is the other side of these traits. ← is written by the picture,
→ by Python, ↔ by both. All sequence numbers (`seq`) count up from 1 and are the picture's.

Documents (packed: header text and buffer, see `rlx_viz.columns`; an empty header means none)
- `header`, `buffer`, `rev` →: the document on screen; `rev` counts up when a new one is there.
- `extra_header`, `extra_buffer`, `extra_rev` →: what was worked out in the background for the document of revision
  `extra_rev` (ignore it when that is not `rev`): tables `savings`, then again with `counterfactuals` and
  `counterfactual_nodes` (`extra_rev` goes through -1 between the two). Not by itself for very large graphs.
- `compare_header`, `compare_buffer`, `compare_rev` →: the other document B of a comparison, with its table `match`
  (rows of A are those of the document on screen, at revision `compare_rev`).

State
- `state` ↔: JSON object that reopens the view: `options` (values that were changed) is Python's; every other key
  (selection by name and, among equal names, `nth`; zoom, sort, colour, query, sizes, hidden legend keys, theme, ...) is the
  picture's, kept as it is.
- `selection` ↔: row of the selected tensor, -1 for none.
- `busy`, `error` →: planning or running; what went wrong, the last good picture kept.
- `progress` →: -1 when idle; past 0.3 s of work the share done in 0..1 (0 while nobody knows).
- `progress_text` →: what is being done, in a few words.
- `history` →: `{"undo": n, "redo": m}`, how many steps there are each way.
- `baseline` →: `{}`, or the pinned plan: `{"label", "options", "headline"}` (headline as in a document's meta).

Requests
- `request` ←, `done` →: `{"seq", ...}` with one of: `option` + `value`; `options` (object: several changes as one
  step); `preset` (a name out of `meta.presets`); `reset` (true: as it was opened); `undo`, `redo` (true);
  `order` (labels of the savings' changes: work them out in that order);
  `pin` (true: this plan becomes the baseline, false: none). `done` becomes the `seq` of the last one that was dealt
  with; a request that a newer one overtook is dropped.
- `run_request` ←: `{"seq", "sanitize", "repeat"}`; runs on the planned arena with random inputs.
  `run_done` →: `{"seq", "ok", "text", "seconds", "sanitized"}`; after a good run a new document has the table
  `profile`. A failure's text is in `error` too.
"""

from rlx_viz.explorer.live import Live, Picture
from rlx_viz.explorer.widget import Explorer, Replan

__all__ = ["Explorer", "Live", "Picture", "Replan"]
