"""Owns ``matmul-train``: a forward graph and its backward, sharing a weight by name."""

from __future__ import annotations

from planner_core.ir import Graph
from planner_core.zoo.blocks import require
from planner_core.zoo.registry import zoo

__all__ = ["matmul_train"]


@zoo("matmul-train")
def matmul_train(rows: int = 512, k: int = 1024, n: int = 4096) -> tuple[Graph, Graph]:
    """A matmul's training pair, forward and backward, which read one weight ``w``.

    Forward ``y = x w``; backward ``dx = dy wᵀ``, ``dw = xᵀ dy`` (Rumelhart et al. 1986, in matrix form).
    Planned with ``SharedWeightLayout``, the backward graph finds ``w`` where the forward plan put it.
    """
    require("matmul-train", positive_sizes=min(rows, k, n) > 0)
    forward = Graph("matmul-train.forward")
    y = forward.mm(forward.input("x", (rows, k)), forward.param("w", (k, n)), name="y")
    forward.set_outputs(y, names=["y"])
    backward = Graph("matmul-train.backward")
    x, dy = backward.input("x", (rows, k)), backward.input("dy", (rows, n))
    w = backward.param("w", (k, n))
    dx = backward.mm(dy, backward.transpose(w, perm=(1, 0), name="w_t"), name="dx")
    dw = backward.mm(backward.transpose(x, perm=(1, 0), name="x_t"), dy, name="dw")
    backward.set_outputs(dx, dw, names=["dx", "dw"])
    return forward, backward
