"""networkx export, module groups, layout: what a picture of a fusion is drawn from."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core import zoo
from planner_core.fusion import fuse_graph
from planner_core.fusion.views import layered_layout, modules, to_networkx


def test_networkx_export_is_the_graphs() -> None:
    f = fuse_graph(zoo.build("bert-base", layers=2, hidden=32, heads=2, ffn=64, vocab=50, seq=8))
    source, fused, mapping = to_networkx(f)
    assert nx.is_directed_acyclic_graph(source)
    assert nx.is_directed_acyclic_graph(fused)
    assert set(source.nodes) == set(range(len(f.source)))
    assert set(fused.nodes) == set(range(len(f.graph)))
    for n in f.source.nodes:
        assert set(source.predecessors(n.id)) == set(n.inputs)
        for i in n.inputs:
            assert source.edges[i, n.id]["bytes"] == f.source[i].dtype.nbytes(f.source[i].shape.numel)
    for i, j in mapping.items():
        assert i in fused.nodes[j]["cluster"]
    assert {i for j in fused.nodes for i in fused.nodes[j]["cluster"]} == set(mapping)


def test_modules_cover_the_graph_in_order() -> None:
    g = zoo.build("bert-base", layers=3, hidden=32, heads=2, ffn=64, vocab=50, seq=8)
    m = modules(g)
    hidden = {n.id for n in g.nodes if n.op.name in ("Param", "Constant")}
    assert {i for i in range(len(g)) if m.group[i] < 0} == hidden
    assert int(m.count.sum()) == len(g) - len(hidden)
    assert (m.src < m.dst).all()
    assert [n for n in m.names if n.startswith("layers.")] == ["layers.0", "layers.1", "layers.2"]
    into = m.dst == m.names.index("layers.1")
    assert m.edge_bytes[into & (m.src == m.names.index("layers.0"))].sum() == 8 * 32 * 4  # one hidden state


@settings(deadline=None)
@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.lists(
    st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]), max_size=80))))
def test_layout_has_no_overlap_and_no_edge_back(case: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = case
    src, dst = (np.asarray([e[k] for e in edges], np.int64) for k in (0, 1))
    out = layered_layout(count, src, dst)
    assert (out.layer[src] < out.layer[dst]).all()
    for layer in np.unique(out.layer):
        xs = np.sort(out.x[out.layer == layer])
        assert (np.diff(xs) >= 1 - 1e-9).all()
    again = layered_layout(count, src, dst)
    assert (again.x == out.x).all()
    width, layers = out.size
    assert layers == out.layer.max() + 1
    assert width >= np.bincount(out.layer).max()


def test_a_chain_is_straight_and_a_diamond_symmetric() -> None:
    chain = layered_layout(5, np.arange(4), np.arange(1, 5))
    assert chain.layer.tolist() == [0, 1, 2, 3, 4]
    assert np.ptp(chain.x) == 0
    diamond = layered_layout(4, np.asarray([0, 0, 1, 2]), np.asarray([1, 2, 3, 3]))
    assert diamond.x[0] == diamond.x[3] == pytest.approx((diamond.x[1] + diamond.x[2]) / 2)


def test_edges_that_point_back_are_refused() -> None:
    with pytest.raises(ValueError, match="points back"):
        layered_layout(2, np.asarray([1]), np.asarray([0]))
