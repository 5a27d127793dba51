"""Owns `Explorer`, the widget: traits, requests, and what Python can ask of it. The traits are explained in the package."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anywidget
import traitlets

from planner_core.errors import OptionError, RlxError
from planner_core.ir import Array
from rlx_viz.columns import ColumnDocument
from rlx_viz.comparison import Comparison
from rlx_viz.explorer.fallback import embed
from rlx_viz.explorer.history import History, Options
from rlx_viz.explorer.live import Live, Picture
from rlx_viz.explorer.worker import Worker
from rlx_viz.foreign import ForeignError
from rlx_viz.frames import tensors_frame
from rlx_viz.inputs import fill_params, filled_inputs, require_memory
from rlx_viz.snapshots import with_profile
from rlx_viz.static.joiner import front_end, stylesheet
from rlx_viz.whatif import Stop, Stopped, counterfactuals, step_labels, waterfall, whatif_document
from runtime.compile import Compilation
from runtime.profile import Profile

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Explorer", "Replan"]

Replan = Callable[[dict[str, object]], "ColumnDocument | Picture"]
"""Plans again with the given option values, those that differ from the first document's."""
Other = Callable[[ColumnDocument, Compilation], Comparison]
"""Compares the picture on screen with one that stays."""

PATIENCE = 0.3
"""Seconds before work shows its progress and goes on behind the picture."""
MOST_BEHIND = 20_000
"""Source nodes up to which what-ifs are started: planning a larger graph many times would slow the next change."""
IDLE = 0.4
"""Seconds of quiet before what-ifs start."""
_T = TypeVar("_T")


class Explorer(anywidget.AnyWidget):
    """A linked, live picture of one plan.

    `replan(options)` is called with every option that was changed so far, by name, and returns the new picture. When
    it raises, the error is shown above the last good picture and the change is taken back. `selection` is the row of
    the selected tensor, -1 for none, and follows both sides; `state` reopens the same view in another explorer.
    `observe(callback, names="rev")` is told of every new plan.
    """

    _esm = front_end()
    _css = stylesheet()

    header = traitlets.Unicode().tag(sync=True)
    buffer = traitlets.Bytes().tag(sync=True)
    rev = traitlets.Int(0).tag(sync=True)
    extra_header = traitlets.Unicode("").tag(sync=True)
    extra_buffer = traitlets.Bytes(b"").tag(sync=True)
    extra_rev = traitlets.Int(-1).tag(sync=True)
    compare_header = traitlets.Unicode("").tag(sync=True)
    compare_buffer = traitlets.Bytes(b"").tag(sync=True)
    compare_rev = traitlets.Int(-1).tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)
    progress = traitlets.Float(-1.0).tag(sync=True)
    progress_text = traitlets.Unicode("").tag(sync=True)
    request = traitlets.Dict().tag(sync=True)
    done = traitlets.Int(0).tag(sync=True)
    run_request = traitlets.Dict().tag(sync=True)
    run_done = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    selection = traitlets.Int(-1).tag(sync=True)
    history = traitlets.Dict().tag(sync=True)
    baseline = traitlets.Dict().tag(sync=True)

    def __init__(self, replan: Replan, doc: ColumnDocument | Picture, *, state: Mapping[str, Any] | None = None,
                 other: Other | None = None, whatif: bool = True, **traits: Any) -> None:
        first = _picture(doc)
        header, buffer = first.document.pack()
        super().__init__(header=header, buffer=buffer, **traits)
        self._replan, self._other, self._whatif = replan, other, whatif
        self._savings_order: tuple[str, ...] = ()
        self._picture = first
        self._start = {o["name"]: o["value"] for o in first.document.meta.get("options", [])}
        self._whole = {o["name"] for o in first.document.meta.get("options", []) if o.get("stage") == "compile"}
        """Options that set where the others start: the target and the precision."""
        self._options: Options = {}
        self._history = History()
        self._finished = self._in_flight = 0
        self._fallback: tuple[ColumnDocument, str] | None = None
        self._worker, self._runner, self._behind = Worker(), Worker(), Worker()
        self.history = self._history.counts()
        self.observe(self._on_request, "request")
        self.observe(self._on_run_request, "run_request")
        self.observe(self._on_state, "state")
        opened = dict(state or self.state)
        if opened.get("options"):
            self._now(dict(opened["options"]))
        else:
            self._compare_again()
            self._start_whatifs()
        self.state = {**opened, "options": dict(self._options)}

    # --- looking ------------------------------------------------------------------------------------

    @property
    def document(self) -> ColumnDocument:
        """The document on screen."""
        return self._picture.document

    @property
    def compilation(self) -> Compilation:
        """What is on screen, with every stage. ``RlxError`` for a picture of a hand-made document."""
        if self._picture.compilation is None:
            raise RlxError("this explorer shows a document without its compilation; use rlx_viz.explore(model)")
        return self._picture.compilation

    @property
    def comparison(self) -> Comparison | None:
        """The comparison on screen, None without one."""
        c = self._picture.compilation
        return self._other(self.document, c) if self._other is not None and c is not None else None

    @property
    def options(self) -> dict[str, object]:
        """Values of the options that were changed, by name."""
        return dict(self._options)

    @property
    def whatifs(self) -> ColumnDocument | None:
        """Savings and counterfactuals of the plan on screen, None while they are not worked out; see `wait`."""
        if self.extra_rev != self.rev or not self.extra_header:
            return None
        return ColumnDocument.unpack(self.extra_header, self.extra_buffer)

    def to_frame(self) -> pd.DataFrame:
        """The tensors on screen, one row each; see `rlx_viz.frames` for decisions and commands."""
        return tensors_frame(self.document)

    def select(self, tensor: str | int) -> None:
        """Select by name or row; -1 selects nothing. ``RlxError`` when there is no such tensor."""
        row = tensor if isinstance(tensor, int) else _row_of(self.document, tensor, 0)
        if (row < 0 and tensor != -1) or row >= self.document.rows("tensors"):
            raise RlxError(f"no tensor {tensor!r} on screen; to_frame() lists their names")
        self.selection = row

    # --- changing -----------------------------------------------------------------------------------

    def set_option(self, name: str, value: object) -> None:
        """Plan again with one option changed, as its control in the picture does.

        Raises what `replan` raises, after showing it.
        """
        self.set_options(**{name: value})

    def set_options(self, **values: object) -> None:
        """Plan again with several options changed as one step."""
        self._change({**self._options, **values})

    def reset(self) -> None:
        """Every option as it was opened; can be undone."""
        self._change({})

    def preset(self, name: str) -> None:
        """The options of one of the document's presets; every other change is taken back. ``RlxError`` lists them."""
        self._change(self._preset(name))

    def refresh(self) -> None:
        """Plan and show the same options again: of a compile cache, its largest entry now and what happened since. No step
        to undo."""
        if isinstance(self._replan, Live):
            self._replan.renew()
        self._now(dict(self._options))

    def undo(self) -> bool:
        """The options before the last change; False when there was none."""
        return self._travel(back=True)

    def redo(self) -> bool:
        """The change that was undone last; False when there is none."""
        return self._travel(back=False)

    def pin(self, label: str = "") -> None:
        """Keep this plan's headline as the baseline that deltas are shown against."""
        meta = self.document.meta
        changed = ", ".join(f"{k}={str(v).lower()}" for k, v in self._options.items())
        headline = {**meta.get("headline", {}), **meta.get("counters", {})}
        self.baseline = {"label": label or changed or "as opened", "options": dict(self._options), "headline": headline}

    def unpin(self) -> None:
        """No baseline any more."""
        self.baseline = {}

    def show(self, doc: ColumnDocument | Picture) -> None:
        """Show another document; selection and zoom stay, tensors are matched by name."""
        picture = _picture(doc)
        header, buffer = picture.document.pack()
        row = self.selection
        chosen = -1
        if 0 <= row < self.document.rows("tensors"):
            names = self.document.tables["tensors"]["name"]
            chosen = _row_of(picture.document, self.document.strings[int(names[row])], int((names[:row] == names[row]).sum()))
        self._behind.cancel()
        with self.hold_sync():
            self._picture = picture
            self.header, self.buffer, self.error = header, buffer, ""
            self.selection = chosen
            self.rev += 1
            try:
                self._compare_again()
            except ForeignError as failure:  # another tool's plan, no plan of this picture: there is none to compare with
                self.error = f"{type(failure).__name__}: {failure}"
        self._start_whatifs()

    def run(self, inputs: Mapping[str, Array] | None = None, *, sanitize: bool = True, repeat: int = 5,
            seed: int = 0) -> dict[str, Array]:
        """Execute on the planned arena, check every command (`sanitize`), time each over `repeat` runs, show the times.

        Inputs that are not given are random, and so are weights without data. Returns the outputs; raises what the executor raises, after showing it.
        """
        c = self.compilation
        result = self._working("running", lambda: _execute(c, inputs, sanitize, repeat, seed, None))
        if isinstance(result, Exception):
            self.run_done = {"seq": int(self.run_done.get("seq", 0)) or 1, "ok": False, "text": self.error, "seconds": 0.0, "sanitized": sanitize}
            raise result
        self._show_run(c, result, 0)
        return result.outputs

    def wait(self, seconds: float | None = None) -> bool:
        """Block until planning and what-ifs are done and shown; False if that takes longer than `seconds`."""
        return self._worker.wait(seconds) and self._runner.wait(seconds) and self._behind.wait(seconds)

    def close(self) -> None:
        """Stop what runs behind the picture and close the widget."""
        for name in ("_worker", "_runner", "_behind"):
            if hasattr(self, name):  # not yet, when a widget fails to be made
                getattr(self, name).cancel()
        super().close()

    # --- requests of the picture --------------------------------------------------------------------

    def _on_request(self, change: dict[str, Any]) -> None:
        request = change["new"]
        sequence = int(request.get("seq", 0))
        if sequence <= self._finished:
            return  # a newer one was dealt with already
        self.error = ""  # so that the same failure twice is news twice, and controls go back both times
        if "order" in request:
            try:
                self.order_savings(list(request["order"]))
            except RlxError as failure:
                self.error = f"{type(failure).__name__}: {failure}"
            self._dealt_with(sequence)
            return
        if "pin" in request:
            self.pin() if request["pin"] else self.unpin()
            self._dealt_with(sequence)
            return
        try:
            options, move = self._asked(request)
        except RlxError as failure:
            self.error = f"{type(failure).__name__}: {failure}"
            options = None
        if options is None:
            self._dealt_with(sequence)
            return
        before, wanted = dict(self._options), options

        def finish(result: Picture | Exception) -> None:
            failure = self._planned(result, wanted)
            if failure is None:
                self._keep(before, move)
            self._dealt_with(sequence)

        self.busy, self._in_flight = True, sequence
        self._worker.submit(lambda stop: _picture(self._replan(dict(wanted))), finish, patience=PATIENCE,
                            late=lambda: self._progress(0.0, "planning"))

    def _asked(self, request: Mapping[str, Any]) -> tuple[Options | None, str]:
        """(the options to plan with, None for nothing to do; "", or "undo" or "redo")."""
        if "option" in request:
            return {**self._options, str(request["option"]): request.get("value")}, ""
        if "options" in request:
            return {**self._options, **request["options"]}, ""
        if "preset" in request:
            return self._preset(str(request["preset"])), ""
        for move in ("undo", "redo"):
            if request.get(move):
                return self._history.target(back=move == "undo"), move
        return ({}, "") if request.get("reset") else (None, "")

    def _on_run_request(self, change: dict[str, Any]) -> None:
        request = change["new"]
        sequence = int(request.get("seq", 0))
        if sequence <= int(self.run_done.get("seq", 0)):
            return
        c, sanitize, repeat = self._picture.compilation, bool(request.get("sanitize", True)), int(request.get("repeat", 5))
        if c is None:
            self.run_done = {"seq": sequence, "ok": False, "text": "this picture has no compilation to run", "seconds": 0.0,
                             "sanitized": False}
            return

        def finish(result: _Run | Exception) -> None:
            self.busy = False
            self._progress(-1.0, "")
            if isinstance(result, Exception):
                text = f"{type(result).__name__}: {result}"
                self.error = text
                self.run_done = {"seq": sequence, "ok": False, "text": text, "seconds": 0.0, "sanitized": sanitize}
            else:
                self._show_run(c, result, sequence)

        self.error = ""
        self.busy = True
        self._runner.submit(lambda stop: _execute(c, None, sanitize, repeat, 0, stop), finish, patience=PATIENCE,
                            late=lambda: self._progress(0.0, "running"))

    def _on_state(self, change: dict[str, Any]) -> None:
        new = dict(change["new"])
        wanted = dict(new.get("options") or {})
        if wanted == self._options:
            return
        if "state" in getattr(self, "_property_lock", {}):  # the picture's, and options are not its to write
            self.state = {**new, "options": dict(self._options)}
        else:
            try:
                self._change(wanted)
            except Exception:
                self.state = {**new, "options": dict(self._options)}  # what can't be planned is no state to come back to
                raise

    @traitlets.validate("selection")
    def _row_on_screen(self, proposal: dict[str, Any]) -> int:
        row, rows = int(proposal["value"]), self._picture.document.rows("tensors") if hasattr(self, "_picture") else None
        if row < -1 or (rows is not None and row >= rows):
            raise traitlets.TraitError(f"selection is row {row}: wanted 0 to {(rows or 1) - 1}, or -1 for none")
        return row

    # --- how it is done -----------------------------------------------------------------------------

    def _dealt_with(self, sequence: int) -> None:
        """A pin may overtake a plan: what was dealt with never counts down."""
        self._finished = self.done = max(self._finished, sequence)

    def _change(self, options: Options) -> None:
        before = dict(self._options)
        self._now(options)
        self._keep(before, "")

    def _travel(self, back: bool) -> bool:
        options, before = self._history.target(back), dict(self._options)
        if options is None:
            return False
        self._now(options)
        self._keep(before, "undo" if back else "redo")
        return True

    def _keep(self, before: Options, move: str) -> None:
        if move:
            self._history.went(move == "undo", before)
        elif before != self._options:
            self._history.step(before)
        self.history = self._history.counts()

    def _now(self, options: Options) -> None:
        """Plan here and now; raises the failure after showing it."""
        self._worker.cancel()
        if self._in_flight > self._finished:
            self._dealt_with(self._in_flight)  # a request of the picture that this overtakes
        failure = self._planned(self._working("planning", lambda: _picture(self._replan(dict(options)))), options)
        if failure is not None:
            raise failure

    def _working(self, what: str, job: Callable[[], _T]) -> _T | Exception:
        self.busy = True
        self.error = ""
        try:
            return job()
        except Exception as failure:
            self.error = f"{type(failure).__name__}: {failure}"
            return failure
        finally:
            self.busy = False

    def _planned(self, result: Picture | Exception, options: Options) -> Exception | None:
        self.busy = False
        self._progress(-1.0, "")
        if isinstance(result, Exception):
            self.error = f"{type(result).__name__}: {result}"
            return result
        self._options = self._differing(options, result)
        self.show(result)
        self.state = {**self.state, "options": dict(self._options)}
        return None

    def _differing(self, options: Options, shown: Picture) -> Options:
        """Without what is as it was opened. Another target or precision has its own presets, so all others count there."""
        now = {o["name"]: o["value"] for o in shown.document.meta.get("options", [])}
        alike = {k for k in self._whole if _same(now.get(k), self._start[k])}
        if alike != self._whole:
            return {k: v for k, v in options.items() if k not in alike}
        return {k: v for k, v in options.items() if not (k in self._start and _same(v, self._start[k]))}

    def _progress(self, share: float, text: str) -> None:
        self.progress, self.progress_text = share, text

    def _preset(self, name: str) -> Options:
        meta = self.document.meta
        found = next((p for p in meta.get("presets", []) if p["name"] == name), None)
        if found is None:
            raise RlxError(f"no preset {name!r}; wanted one of {', '.join(p['name'] for p in meta.get('presets', []))}")
        defaults = {o["name"]: o["default"] for o in meta["options"]}
        kept = {k: v for k, v in self._options.items() if k in self._whole}
        if kept:
            return {**kept, **found["options"]}
        return {**{k: v for k, v in defaults.items() if not _same(self._start.get(k), v)}, **found["options"]}

    def _compare_again(self) -> None:
        comparison = self.comparison
        if comparison is not None:
            self.compare_header, self.compare_buffer = comparison.document().pack()
            self.compare_rev = self.rev

    def _start_whatifs(self) -> None:
        c = self._picture.compilation
        if c is not None and self._whatif and len(c.source) <= MOST_BEHIND:
            self.work_out()

    def order_savings(self, labels: Sequence[str] = ()) -> None:
        """Tell the savings in another order: labels of the waterfall's changes, those left out behind in their usual
        order; none: the usual order. `wait` waits for it. ``OptionError`` for a label that is no change of this plan."""
        known = step_labels(self.compilation)
        stray = [label for label in labels if label not in known]
        if stray:
            raise OptionError(f"no step {stray[0]!r} in these savings; wanted an order of {', '.join(known)}")
        self._savings_order = tuple(labels)
        self.work_out()

    def work_out(self) -> None:
        """Start working out savings and counterfactuals of the plan on screen; done by itself up to ``MOST_BEHIND``
        nodes. The waterfall comes first; `wait` waits for everything."""
        c, rev, order = self.compilation, self.rev, self._savings_order

        def job(stop: Stop) -> ColumnDocument:
            known = set(step_labels(c))
            steps = waterfall(c, stop, [label for label in order if label in known])
            self._behind.report(lambda: None if stop() else self._whatifs_are(whatif_document(steps, None, {"rev": rev}), rev))
            return whatif_document(steps, list(counterfactuals(c, stop)), {"rev": rev})

        self._behind.submit(job, lambda result: self._whatifs_are(result, rev), delay=IDLE)

    def _whatifs_are(self, result: ColumnDocument | Exception, rev: int) -> None:
        if isinstance(result, Exception) or rev != self.rev:
            return  # what could not be worked out is left out of the picture
        self.extra_rev = -1  # so that a second part of the same revision is news
        with self.hold_sync():
            self.extra_header, self.extra_buffer = result.pack()
            self.extra_rev = rev

    def _show_run(self, c: Compilation, run: _Run, sequence: int) -> None:
        answer = {"seq": sequence or int(self.run_done.get("seq", 0)), "seconds": run.seconds, "sanitized": run.sanitized}
        if self._picture.compilation is not c:
            self.run_done = {**answer, "ok": False, "text": "planned again meanwhile: run it once more"}
            return
        kept = self.whatifs
        self.show(Picture(with_profile(self.document, run.profile), c))
        if kept is not None and "counterfactuals" in kept.tables:
            self._behind.cancel()
            self._whatifs_are(kept, self.rev)
        self.run_done = {**answer, "ok": True, "text": run.text}

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The widget, and for pages without a kernel the same picture as a sandboxed page."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        if self._fallback is None or self._fallback[0] is not self.document:
            comparison = self.comparison
            self._fallback = (self.document, embed(self.document, comparison.document() if comparison is not None else None))
        return {**data, "text/html": self._fallback[1]}, metadata


def _picture(made: ColumnDocument | Picture) -> Picture:
    return made if isinstance(made, Picture) else Picture(made)


def _row_of(doc: ColumnDocument, name: str, which: int) -> int:
    """Row of the tensor of that name, of several the one with `which` before it (or the last); -1 for none."""
    if name not in doc.strings:
        return -1
    rows = (doc.tables["tensors"]["name"] == doc.strings.index(name)).nonzero()[0].tolist()
    return int(rows[min(which, len(rows) - 1)]) if rows else -1


def _same(a: object, b: object) -> bool:
    return a == b or str(getattr(a, "value", a)).lower() == str(getattr(b, "value", b)).lower()


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    profile: Profile
    outputs: dict[str, Array]
    seconds: float
    sanitized: bool
    made_up: int
    """Params that had no data and got small random values."""

    @property
    def text(self) -> str:
        parts = ["every command checked"] if self.sanitized else []
        parts.append(f"{len(self.outputs)} output{'s' if len(self.outputs) != 1 else ''}")
        parts.append(f"{self.profile.total_seconds * 1e3:.2f} ms in commands (median of {self.profile.repeat})")
        if self.made_up:
            parts.append(f"random values for {self.made_up} params without data")
        return ", ".join(parts)


def _execute(c: Compilation, inputs: Mapping[str, Array] | None, sanitize: bool, repeat: int, seed: int,
             stop: Stop | None) -> _Run:
    require_memory(c)
    arrays = filled_inputs(c.legal, inputs, seed)
    start = time.perf_counter()
    fill_params(c.executor, seed)
    made_up = sum(p.name not in c.legal.weights for p in c.commands.params)
    outputs = c.run(arrays, sanitize=sanitize)
    if stop is not None and stop():
        raise Stopped
    profile = c.profile(arrays, repeat=repeat)
    return _Run(profile, outputs, time.perf_counter() - start, sanitize, made_up)
