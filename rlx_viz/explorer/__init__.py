"""The explorer widget: the front end in a notebook, re-planning when an option is switched.

The picture is in `rlx_viz/static/`; `widget.js` there is the other side of these traits. ← is written by the picture,
→ by Python, ↔ by both. All sequence numbers (`seq`) count up from 1 and are the picture's.

Documents (packed: header text and buffer, see `rlx_viz.columns`; an empty header means none)
- `header`, `buffer`, `rev` →: the document on screen; `rev` counts up when a new one is there.
- `extra_header`, `extra_buffer`, `extra_rev` →: what was worked out in the background for the document of revision
  `extra_rev` (ignore it when that is not `rev`): tables `savings`, `counterfactuals`, `counterfactual_nodes`.
- `compare_header`, `compare_buffer`, `compare_rev` →: the other document B of a comparison, with its table `match`
  (rows of A are those of the document on screen, at revision `compare_rev`).

State
- `state` ↔: JSON object that reopens the view: `options` (values that were changed) is Python's; every other key
  (selection by name, zoom, sort, colour, query, sizes, ...) is the picture's, kept as it is.
- `selection` ↔: row of the selected tensor, -1 for none.
- `busy`, `error` →: planning or running; what went wrong, the last good picture kept.
- `progress` →: -1 when idle; past 0.3 s of work the share done in 0..1 (0 while nobody knows).
- `progress_text` →: what is being done, in a few words.
- `history` →: `{"undo": n, "redo": m}`, how many steps there are each way.
- `baseline` →: `{}`, or the pinned plan: `{"label", "options", "headline"}` (headline as in a document's meta).

Requests
- `request` ←, `done` →: `{"seq", ...}` with one of: `option` + `value`; `options` (object: several changes as one
  step); `preset` (a name out of `meta.presets`); `reset` (true: as it was opened); `undo`, `redo` (true);
  `pin` (true: this plan becomes the baseline, false: none). `done` becomes the `seq` of the last one that was dealt
  with; a request that a newer one overtook is dropped.
- `run_request` ←: `{"seq", "sanitize", "repeat"}`; runs on the planned arena with random inputs.
  `run_done` →: `{"seq", "ok", "text", "seconds", "sanitized"}`; after a good run a new document has the table
  `profile`. A failure's text is in `error` too.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from rlx_viz.columns import ColumnDocument
from rlx_viz.report.sampling import render_capped
from rlx_viz.static.joiner import front_end, stylesheet

__all__ = ["Explorer", "Replan"]

Replan = Callable[[dict[str, object]], ColumnDocument]
"""Plans again with the given option values, those that differ from the first document's."""

FALLBACK_HEIGHT = 760


class Explorer(anywidget.AnyWidget):
    """A linked, live picture of one plan.

    `replan(options)` is called with every option that was changed so far, by name, and returns the
    new document. When it raises, the error is shown above the last good picture and the change is
    taken back. `selection` is the row of the selected tensor, -1 for none, and follows both sides.
    """

    _esm = front_end()
    _css = stylesheet()

    header = traitlets.Unicode().tag(sync=True)
    buffer = traitlets.Bytes().tag(sync=True)
    rev = traitlets.Int(0).tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)
    request = traitlets.Dict().tag(sync=True)
    done = traitlets.Int(0).tag(sync=True)
    selection = traitlets.Int(-1).tag(sync=True)

    def __init__(self, replan: Replan, doc: ColumnDocument, **traits: Any) -> None:
        header, buffer = doc.pack()
        super().__init__(header=header, buffer=buffer, **traits)
        self._replan = replan
        self._doc = doc
        self._options: dict[str, object] = {}
        self._finished = 0
        self._fallback: tuple[ColumnDocument, str] | None = None
        self.observe(self._on_request, "request")

    @property
    def document(self) -> ColumnDocument:
        """The document on screen."""
        return self._doc

    @property
    def options(self) -> dict[str, object]:
        """Values of the options that were changed, by name."""
        return dict(self._options)

    def set_option(self, name: str, value: object) -> None:
        """Plan again with one option changed, as its control in the picture does.

        Raises what `replan` raises, after showing it.
        """
        failure = self._plan_with({**self._options, name: value})
        if failure is not None:
            raise failure

    def show(self, doc: ColumnDocument) -> None:
        """Show another document; selection and zoom stay, tensors are matched by name."""
        header, buffer = doc.pack()
        chosen = self._same_tensor(doc)
        with self.hold_sync():
            self._doc = doc
            self.header, self.buffer, self.error = header, buffer, ""
            self.selection = chosen
            self.rev += 1

    def _on_request(self, change: dict[str, Any]) -> None:
        request = change["new"]
        sequence = request.get("seq", 0)
        # Only the latest request counts: one that a newer overtook is dropped.
        if "option" in request and sequence > self._finished:
            self._plan_with({**self._options, str(request["option"]): request.get("value")})
            self._finished = sequence
            self.done = sequence

    def _plan_with(self, options: dict[str, object]) -> Exception | None:
        self.busy = True
        self.error = ""  # so that the same failure twice is news twice, and controls go back both times
        try:
            doc = self._replan(dict(options))
            self.show(doc)
        except Exception as failure:
            self.error = f"{type(failure).__name__}: {failure}"
            return failure
        finally:
            self.busy = False
        self._options = options
        return None

    def _same_tensor(self, doc: ColumnDocument) -> int:
        """Row in `doc` of the tensor selected now, by name; the same row if two share the name."""
        row = self.selection
        if not 0 <= row < self._doc.rows("tensors"):
            return -1
        name = self._doc.strings[int(self._doc.tables["tensors"]["name"][row])]
        if name not in doc.strings:
            return -1
        rows = (doc.tables["tensors"]["name"] == doc.strings.index(name)).nonzero()[0].tolist()
        return row if row in rows else int(rows[0]) if rows else -1

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The widget, and for pages without a kernel the same picture as a sandboxed page."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        if self._fallback is None or self._fallback[0] is not self._doc:
            self._fallback = (self._doc, _embed(self._doc))
        return {**data, "text/html": self._fallback[1]}, metadata


def _embed(doc: ColumnDocument) -> str:
    name = str(doc.meta.get("model", {}).get("name") or "model")
    page = html.escape(render_capped(doc, title=name), quote=True)
    return (
        f'<iframe title="Memory of {html.escape(name, quote=True)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{FALLBACK_HEIGHT}px;border:0" srcdoc="{page}"></iframe>'
    )
