"""networkx export, module groups, layout: what a picture of a fusion is drawn from."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core import zoo
from planner_core.fusion import fuse_graph
from planner_core.fusion.views import layered_layout, module_counts, modules, to_networkx
from planner_core.ir import Graph


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


def named(*names: str) -> Graph:
    """A chain of as many nodes, with those names."""
    g = Graph("chain")
    x = g.input("x", (4,))
    for n in names:
        x = g.relu(x, name=n)
    return g.set_outputs(x)


@pytest.mark.parametrize(("names", "want"), [
    (["a.p", "a.q", "", "b.p", "", "b.q", "end"], ["x", "a", "b", "end"]),
    (["a.p", "a.q", "b.p", "a.r", "b.q", "b.r", "a.s", "b.s"], ["x", "a", "b"]),  # strays stay with their neighbours
    (["a.p", "b.p", "c.p"], ["x", "a", "b", "c"]),  # single nodes of modules of one node are no strays
    (["", "", "p"], ["x", "Activation %1", "Activation %2", "p"]),
    ([], ["x"]),
])
def test_runs_of_one_path_are_a_group(names: list[str], want: list[str]) -> None:
    m = modules(named(*names), 1)
    assert list(m.names) == want
    assert m.count.sum() == 1 + len(names)
    assert (np.diff(m.group) >= 0).all()


def test_neighbours_are_joined_where_there_are_too_many() -> None:
    g = named(*[f"layers.{i}.{op}" for i in range(9) for op in "ab"])
    assert module_counts(g) == [2, 10]
    m = modules(g, 2, most=5)
    assert list(m.names) == ["x … layers.0", "layers.1 … 2", "layers.3 … 4", "layers.5 … 6", "layers.7 … 8"]
    assert m.count.tolist() == [3, 4, 4, 4, 4]
    assert list(modules(g, 2, most=10).names) == list(modules(g, 2).names)
    for wrong in ({"depth": 0}, {"most": 0}):
        with pytest.raises(ValueError, match="wanted 1 or more"):
            modules(g, **wrong)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["", "a", "a.b", "a.c", "a.b.c", "d.e", "d.f", "a.b.d"]), max_size=30), st.integers(1, 4),
       st.integers(1, 6))
def test_groups_are_runs_that_cover_the_graph(names: list[str], depth: int, most: int) -> None:
    g = named(*names)
    m = modules(g, depth, most)
    assert len(m.names) <= most
    assert sorted(set(m.group.tolist())) == list(range(len(m.names)))
    assert set(np.diff(m.group).tolist()) <= {0, 1}
    assert m.count.tolist() == np.bincount(m.group).tolist()
    assert (m.src < m.dst).all()


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
