"""Pictures of where a model's memory goes: reports, a live explorer, frames, the command line.

``rlx_viz.compile("model.onnx")`` gives a ``Compilation``; ``explore``, ``snapshot`` and ``report`` show it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from rlx_viz.version import VERSION

if TYPE_CHECKING:
    import pandas as pd

    from planner_core.ir import Graph
    from rlx_viz.comparison import Comparison, compare
    from rlx_viz.explorer import Explorer
    from rlx_viz.serving import ServingCost, serving_cost
    from rlx_viz.snapshots import snapshot
    from rlx_viz.sweeps import Sweep, sweep
    from runtime.compile import Compilation
    from runtime.template import Template

__version__ = VERSION
__all__ = ["Compilation", "Comparison", "ServingCost", "Sweep", "Template", "__version__", "compare", "compile", "explore", "report",
           "savings", "serving_cost", "snapshot", "sweep"]
_HOMES = {"Compilation": "runtime.compile", "Comparison": "rlx_viz.comparison", "compare": "rlx_viz.comparison",
          "ServingCost": "rlx_viz.serving", "serving_cost": "rlx_viz.serving", "snapshot": "rlx_viz.snapshots",
          "Sweep": "rlx_viz.sweeps", "sweep": "rlx_viz.sweeps", "Template": "runtime.template"}
"""Where the names live that are imported when they are first used: loading all takes longer than a short program."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rlx_viz' has no attribute {name!r}; it has {', '.join(__all__)}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


@overload
def compile(model: str | Path | Graph | Compilation | Any, *, dims: Mapping[str, int] | None = None,
            shapes: Mapping[str, Sequence[int]] | None = None, target: str | None = None, keep: None = None,
            **plan_options: Any) -> Compilation: ...
@overload
def compile(model: str | Path | Graph | Any, *, dims: Mapping[str, int] | None = None,
            shapes: Mapping[str, Sequence[int]] | None = None, target: str | None = None, keep: Sequence[str],
            **plan_options: Any) -> Template: ...
def compile(  # the name users look for
    model: str | Path | Graph | Compilation | Template | Any,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    target: str | None = None,
    keep: Sequence[str] | None = None,
    **plan_options: Any,
) -> Compilation | Template:
    """A model (file, ONNX model in memory, graph, or compilation to change) planned for a target (default: cpu, or
    the compilation's own) with the given plan options. A compilation's dims are bound already. Of a compile cache, its
    entry with the largest arena.

    ``keep``: symbols that stay open; the result is a ``Template``, and ``template.at(seq=128)`` a compilation.

    Errors: ``ImportModelError`` for a file that can't be read, ``UnboundDimError`` for dims without a value,
    ``PlanError`` for an option that doesn't exist or a plan that can't be made.
    """
    from planner_core.errors import RlxError
    from planner_core.importers.open_model import OpenModel
    from planner_core.ir import Graph
    from runtime.caches.base import CacheBase
    from runtime.compile import Compilation, CompileOptions, compile_graph
    from runtime.template import Template

    if isinstance(model, CacheBase):
        model = model.largest()
    if isinstance(model, Template):
        if shapes or target or keep or plan_options:
            raise RlxError(f"a Template has its target and options; give values for {', '.join(model.symbols)} in dims, or make "
                           "another with rlx_viz.compile(model, keep=…)")
        return model.at(**(dims or {}))
    if keep is not None:
        if isinstance(model, Compilation):
            raise RlxError("a Compilation has its dims bound; compile the graph or the file again with keep=")
        return Template(OpenModel(model, keep=keep, dims=dims, shapes=shapes), target or "cpu", plan_options)
    if isinstance(model, Compilation):
        if dims or shapes:
            raise RlxError("a Compilation has its dims bound; compile the graph or the file again with other ones")
        if target is None:
            return model.with_options(**plan_options)
        graph = model.source
    elif isinstance(model, Graph):
        if shapes:
            raise RlxError("shapes= is for files; bind a graph's symbols with dims=")
        graph = model.bind(dims) if dims else model
    elif isinstance(model, (str, Path)):
        from planner_core.importers import load_model

        graph = load_model(model, dims=dims, shapes=shapes)
    elif hasattr(model, "SerializeToString"):
        from planner_core.importers import import_onnx

        graph = import_onnx(model, dims=dims, shapes=shapes)
    else:
        raise RlxError(f"can't compile a {type(model).__name__}; wanted a path, an onnx.ModelProto, a Graph or a "
                       "Compilation")
    return compile_graph(graph, CompileOptions.for_target(target or "cpu", graph, **plan_options))


def _name(model: str | Path | Graph | Compilation | Any) -> str:
    return Path(model).name if isinstance(model, (str, Path)) else ""


def report(
    model: str | Path | Graph | Compilation | Any, path: str | Path, *, redact: bool = False, whatif: bool | None = None,
    compare: Any = None, **kw: Any,
) -> Path:
    """Write the self-contained HTML report of a model (arguments as for ``compile``) and return its path.

    ``whatif``: carry the savings waterfall and what each toggle would free (default: up to
    ``whatif.SAVINGS_NODES`` and ``CHEAP_NODES`` nodes, about two seconds of work each). ``compare``: a second model, options or another tool's CSV, as for ``compare``.
    """
    from rlx_viz import comparison
    from rlx_viz.reports import write_report
    from rlx_viz.snapshot_tables.caches import with_cache
    from rlx_viz.snapshots import snapshot
    from rlx_viz.whatif import with_whatif
    from runtime.caches.base import CacheBase

    compilation = compile(model, **kw)
    doc = with_whatif(snapshot(compilation, name=_name(model), redact=redact), compilation, whatif)
    if isinstance(model, CacheBase):
        doc = with_cache(doc, model)
    other = None
    if compare is not None:
        other = comparison.compare(compilation, compare, redact=redact).document()
    return write_report(doc, path, title=doc.meta["model"]["name"], other=other)


def explore(
    model: str | Path | Graph | Compilation | Any, *, compare: Any = None, state: Mapping[str, Any] | None = None,
    redact: bool = False, whatif: bool = True, **kw: Any,
) -> Explorer:
    """The live explorer, for a notebook cell's last line (arguments as for ``compile``). A compile cache shows what
    happened in it so far beside the plan of its largest entry; ``explorer.refresh()`` shows what happened since.

    Switching an option there plans again and redraws; ``explorer.selection`` is the selected tensor. ``compare``: a
    second model, options or another tool's CSV, as for ``compare``; it stays while the first is changed. ``state``:
    another explorer's ``state``, to reopen its view. ``whatif``: work out savings behind the picture.
    """
    from rlx_viz.comparison import comparing
    from rlx_viz.explorer import Explorer, Live
    from runtime.caches.base import CacheBase

    live = Live(compile(model, **kw), _name(model), redact, model if isinstance(model, CacheBase) else None)
    other = None
    if compare is not None:
        other = comparing(live.start, compare, redact)
    return Explorer(live, live.first(), state=state, other=other, whatif=whatif)


def savings(model: str | Path | Graph | Compilation | Any, *, order: Sequence[str] = (), **kw: Any) -> pd.DataFrame:
    """What each fusion rule, option and pass saved, as a frame (arguments as for ``compile``): on top of the changes before
    it, in an order that can be given, and alone, in bytes, intermediate traffic and dispatches; see ``frames.savings_frame``.

    ``OptionError`` for an order that names no change of this plan.
    """
    from rlx_viz.frames import savings_frame

    return savings_frame(compile(model, **kw), order)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext rlx_viz``: the magics ``%rlx`` and ``%%rlx``."""
    from rlx_viz.magics import load_ipython_extension as load

    load(shell)
