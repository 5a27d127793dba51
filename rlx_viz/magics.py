"""Owns the notebook magics, after ``%load_ext rlx_viz``.

``%rlx model.onnx --set arena_no_reuse=true`` shows the explorer of a file, or of a graph or compilation by its
variable's name; ``%%rlx`` runs a cell that builds a graph ``g`` and shows that. ``%rlx --help`` lists the flags.
"""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class

import rlx_viz
from planner_core.errors import RlxError
from planner_core.ir import Graph
from planner_core.memory import Target
from runtime.compile import Compilation

__all__ = ["RlxMagics", "load_ipython_extension"]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong instead of ending the kernel."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; %rlx --help lists what there is")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Helped


class _Helped(Exception):
    """Help was printed; nothing else to do."""


def _parser() -> argparse.ArgumentParser:
    p = _Parser(prog="%rlx", add_help=True, formatter_class=argparse.RawDescriptionHelpFormatter, description=(
        "Show where a model's memory goes.\n\n"
        "  %rlx model.onnx --set alignment=256       a file\n"
        "  %rlx g --target metal                     a graph, an ONNX model or a compilation in a variable\n"
        "  %%rlx                                     a cell that builds a graph; `g = Graph(\"cell\")` is there already"))
    p.add_argument("model", nargs="?", default="", help="a file, or the name of a variable; in a cell: the graph's name (g)")
    p.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="change an option; `rlx-viz options` lists them")
    p.add_argument("--dim", action="append", default=[], metavar="NAME=INT", help="bind a symbolic dim")
    p.add_argument("--shape", action="append", default=[], metavar="INPUT=1,3,48,192", help="fix an input's shape")
    p.add_argument("--target", default="", help=", ".join(t.value for t in Target))
    p.add_argument("--compare", default="", metavar="MODEL", help="a second file or variable, or another tool's offsets (.csv)")
    p.add_argument("--into", default="", metavar="NAME", help="keep the explorer in a variable")
    return p


@magics_class
class RlxMagics(Magics):
    """``%rlx`` and ``%%rlx``."""

    @line_cell_magic
    def rlx(self, line: str, cell: str | None = None) -> Any:
        """Show a model's explorer; see ``%rlx --help``."""
        try:
            asked = _parser().parse_args(shlex.split(line))
        except _Helped:
            return None
        except ValueError as e:
            raise UsageError(f"%rlx {line}: {e}") from None
        try:
            model = self._model(asked.model) if cell is None else self._built(cell, asked.model or "g")
            made = rlx_viz.explore(model, compare=self._found(asked.compare) if asked.compare else None, **_keywords(asked))
        except RlxError as e:
            raise UsageError(str(e)) from None
        except OSError as e:
            raise UsageError(f"{e.filename or line}: {e.strerror or e}") from None
        if asked.into:
            self._space[asked.into] = made
        return made

    @property
    def _space(self) -> dict[str, Any]:
        """The notebook's variables."""
        return self.shell.user_ns if self.shell is not None else {}

    def _found(self, name: str) -> Any:
        """A variable of the notebook by that name, else the name itself: a file."""
        return self._space.get(name, name)

    def _model(self, name: str) -> Any:
        if not name:
            raise UsageError("%rlx wants a model: a file or the name of a variable; %rlx --help shows examples")
        return self._found(name)

    def _built(self, cell: str, name: str) -> Any:
        shell: Any = self.shell
        space = self._space
        space.setdefault("Graph", Graph)
        space[name] = Graph("cell")
        shell.ex(shell.transform_cell(cell))
        made = space[name]
        if not isinstance(made, (Graph, Compilation)):
            raise UsageError(f"%%rlx: {name} is a {type(made).__name__} after the cell, wanted a Graph")
        if isinstance(made, Graph) and not made.nodes:
            raise UsageError(f"%%rlx: the cell left the graph {name} empty; build on it ({name}.input(...)), or name yours: %%rlx NAME")
        if isinstance(made, Graph) and not made.outputs:
            raise UsageError(f"%%rlx: the graph {name} has no outputs; end the cell with {name}.set_outputs(...)")
        return made


def _keywords(asked: argparse.Namespace) -> dict[str, Any]:
    out: dict[str, Any] = dict(_pair(item, "--set", "arena_no_reuse=true") for item in asked.set)
    dims = {k: _whole(v, f"--dim {k}") for k, v in (_pair(item, "--dim", "batch=1") for item in asked.dim)}
    shapes = {k: [_whole(x, f"--shape {k}") for x in v.split(",")] for k, v in (_pair(i, "--shape", "x=1,3,48,192") for i in asked.shape)}
    return out | ({"dims": dims} if dims else {}) | ({"shapes": shapes} if shapes else {}) | ({"target": asked.target} if asked.target else {})


def _pair(item: str, flag: str, example: str) -> tuple[str, str]:
    name, eq, value = item.rpartition("=")
    if not eq or not name or not value:
        raise UsageError(f"{flag} {item}: wanted NAME=VALUE, such as {flag} {example}")
    return name, value


def _whole(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{what}: got {text!r}, wanted an integer") from None


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext rlx_viz`` calls."""
    shell.register_magics(RlxMagics)
