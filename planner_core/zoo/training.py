"""Owns the training graphs: ``matmul-train``, a forward and backward pair, and ``mamba-train``, one graph.

Both are derived by ``planner_core.autodiff`` from a forward graph; nothing of a backward pass is drawn here.
"""

from __future__ import annotations

from planner_core.autodiff import backward, split
from planner_core.ir import DType, Graph
from planner_core.zoo.blocks import require
from planner_core.zoo.mamba import mamba
from planner_core.zoo.registry import zoo

__all__ = ["mamba_train", "matmul_train"]


@zoo("matmul-train")
def matmul_train(rows: int = 512, k: int = 1024, n: int = 4096) -> tuple[Graph, Graph]:
    """A matmul's training pair, forward and backward, which read one weight ``w``.

    Forward ``y = x w``; backward ``d_x = d_y wᵀ``, ``d_w = xᵀ d_y`` (Rumelhart et al. 1986, in matrix form),
    derived from the forward. Planned with ``SharedWeightLayout``, the backward graph finds ``w`` where the
    forward plan put it.
    """
    require("matmul-train", positive_sizes=min(rows, k, n) > 0)
    g = Graph("matmul-train")
    y = g.mm(g.input("x", (rows, k)), g.param("w", (k, n)), name="y")
    forward, back = split(backward(g.set_outputs(y, names=["y"]), wrt=["x", "w"]))
    forward.name, back.name = "matmul-train.forward", "matmul-train.backward"
    return forward, back


@zoo("mamba-train")
def mamba_train(layers: int = 28, hidden: int = 768, state: int = 16, vocab: int = 50280, seq: int = 512,
                batch: int = 1) -> Graph:
    """One training step of a Mamba stack: forward, mean cross entropy, and the gradient of every param.

    Gu & Dao, "Mamba" (2023): the blocks of ``mamba``, at Mamba-130M's width. 28 of them, where the 130M has 24,
    make 2,375 buffers: as many as the 2,378 of the graph that a cubic placement scan took 28 s for. ``labels``
    are the next tokens; outputs are ``loss``, then ``d_<param>``.
    """
    g = mamba(layers=layers, hidden=hidden, state=state, vocab=vocab, seq=seq, batch=batch)
    labels = g.input("labels", (batch, seq), DType.I64)
    rows = g.softmax_cross_entropy(g.outputs[0], labels, name="row_losses")
    loss = g.reduce_mean(rows, axes=(0, 1), name="loss")
    training = backward(g.set_outputs(loss, names=["loss"]), loss=loss)
    training.name = "mamba-train"
    return training
