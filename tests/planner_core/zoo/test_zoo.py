"""The zoo's registry and its graphs."""

from __future__ import annotations

import pytest

from planner_core import zoo
from planner_core.errors import GraphError
from planner_core.ir import validate
from planner_core.memory import has_host_indexing, plan_memory_native_in_order
from planner_core.zoo import registry
from tests.planner_core.memory.checker import checked


def test_names_and_descriptions() -> None:
    assert "decoder-stack" in zoo.names() == sorted(zoo.names())
    for name in zoo.names():
        first, *params = zoo.describe(name).splitlines()
        assert first.startswith(f"{name}: ") and first.endswith(".") and params


@pytest.mark.parametrize("name", zoo.names())
def test_defaults_build_sound_graphs(name: str) -> None:
    for g, again in zip(zoo.graphs_of(name), zoo.graphs_of(name), strict=True):
        assert validate(g) == []
        assert again == g
        if len(g) < 1000:
            checked(plan_memory_native_in_order(g), g)


def test_errors_list_what_exists() -> None:
    with pytest.raises(GraphError, match=r"no zoo graph 'decoder-stak'; did you mean 'decoder-stack'\? It has: .*decoder-stack"):
        zoo.build("decoder-stak")
    with pytest.raises(GraphError, match=r"zoo graph 'decoder-stack' has no parameter depth; it has: nodes, layers, hidden"):
        zoo.build("decoder-stack", depth=3)
    with pytest.raises(GraphError, match=r"decoder-stack: layers=4, hidden=10, heads=4"):
        zoo.build("decoder-stack", hidden=10, heads=4)


@pytest.mark.parametrize("nodes", [50, 1000, 2400, 10000])
def test_node_target(nodes: int) -> None:
    assert abs(len(zoo.build("decoder-stack", nodes=nodes)) - nodes) <= 15


def test_decoder_parameters() -> None:
    g = zoo.build("decoder-stack", layers=2, hidden=64, heads=4, kv_heads=2, ffn=96, seq=8, vocab=10, batch=3)
    assert g[g.outputs[0]].shape.sizes == (3, 8, 10)
    assert {g[p].name: g[p].shape.sizes for p in g.params}["layers.1.wk"] == (64, 32)
    assert len(g.params) == 2 * 9 + 4, "RoPE tables are shared by every layer"
    assert not has_host_indexing(g)
    assert has_host_indexing(zoo.build("decoder-stack", embed=True))


def test_registration_mistakes_fail_at_import() -> None:
    def bare(size):  # type: ignore[no-untyped-def]
        """Doc."""

    def undocumented(size: int = 1) -> None: ...

    for name, function, text in (("decoder-stack", bare, "declared twice"), ("new", undocumented, "a docstring is required"),
                                 ("new", bare, r"parameters \['size'\] need defaults")):
        with pytest.raises(TypeError, match=text):
            registry.zoo(name)(function)


@pytest.mark.parametrize(("name", "params", "says"), [
    ("unet3d", {"levels": 0}, "levels=0: wanted 1 or more"),
    ("decoder-stack", {"nodes": -5}, "nodes=-5: wanted 0 or more"),
    ("minilm", {"vocab": 0}, "vocab=0: wanted 1 or more"),
    ("resnet50", {"blocks": -1}, "blocks=-1: wanted 0 or more"),
    ("bert-base", {"batch": 0}, "batch=0: wanted 1 or more"),
    ("llama-decode", {"past": -1}, "past=-1: wanted 0 or more"),
    ("tts-duration", {"kernel": 2}, "an odd kernel"),
])
def test_sizes_that_make_no_model_are_refused(name: str, params: dict[str, int], says: str) -> None:
    with pytest.raises(GraphError, match=says):
        zoo.build(name, **params)
