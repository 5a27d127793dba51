"""Names of gradients: what each is of, so that a list of a training step's tensors can be read."""

from __future__ import annotations

from planner_core.autodiff import backward
from planner_core.ir import Graph


def test_a_gradient_is_named_after_its_tensor() -> None:
    g = Graph("net")
    x, w = g.input("x", (2, 3)), g.param("fc.w", (3, 4))
    h = g.mm(x, w, name="fc.product")
    y = g.relu(h, name="fc.act")
    g.set_outputs(g.reduce_mean(g.mul(y, y, name="square"), axes=(0, 1), name="loss"))
    t = backward(g, loss=g.outputs[0], wrt=["fc.w"])
    made = [n for n in t.nodes if n.id >= len(g)]
    assert all(n.name for n in made if n.op.name != "Constant")
    final = dict(zip(t.output_names, t.outputs, strict=True))["d_fc.w"]
    assert t[final].name == "fc.w.grad"
    parts = [n for n in made if n.name == "fc.act.grad.part"]
    (total,) = [n for n in made if n.name == "fc.act.grad"]
    assert len(parts) == 2 or len(set(total.inputs)) == 1, "both factors of the square give a part"
    assert t.find("x") == t[x]
    assert [n.name for n in t.nodes[: len(g)]] == [n.name for n in g.nodes]
