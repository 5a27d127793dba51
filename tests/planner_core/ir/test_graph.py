"""Graphs: text and file round trips, symbols and binding, validation, uses and edges, content hashes."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_core.errors import GraphError, RlxError, UnboundDimError
from planner_core.ir import (
    UNKNOWN,
    Dim,
    DimBinding,
    DType,
    Graph,
    ProblemKind,
    QuantScheme,
    Shape,
    Source,
    broadcast_dims,
    dim,
    from_text,
    load_graph,
    save_graph,
    to_text,
    validate,
    write_atomically,
)
from tests.planner_core.ir.test_ops import EXAMPLES
from tests.planner_core.memory.graphs import graphs

NAMES = st.text(min_size=1, max_size=12) | st.sampled_from(['a"b', "a\\b", "a\nb", "日本", "%1", "outputs", "}", ": f32[1]", " ", "\u2028"])


@st.composite
def named_graphs(draw: st.DrawFn) -> Graph:
    """Odd names, sources, symbols, every dtype, weights of every dtype."""
    g = Graph(draw(NAMES))
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    for k, name in enumerate(names):
        dtype = draw(st.sampled_from(list(DType)))
        dims = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3))
        source = [Source(*draw(st.tuples(NAMES, NAMES, NAMES, NAMES)))] if draw(st.booleans()) else []
        if k % 2:
            data = np.arange(int(np.prod(dims)), dtype=np.uint8) % 2
            data = data.reshape(dims).astype(dtype.numpy)
            if draw(st.booleans()):
                g.param(name, dims, dtype, data=data, source=source)
            else:
                g.constant(data, name=name, source=source)
        else:
            g.input(name, [draw(st.sampled_from([d, "B", "past+1", "B*S", "a b", "x.y", "?", Dim(4, "N")])) for d in dims], dtype,
                    source=source)
    x = draw(st.integers(0, len(g) - 1))
    g.expand(x, dims=(2, *g[x].shape.dims), name=draw(NAMES))
    outputs = draw(st.lists(st.integers(0, len(g) - 1), min_size=1, max_size=3))
    return g.set_outputs(*outputs, names=draw(st.lists(NAMES, min_size=len(outputs), max_size=len(outputs), unique=True)))


def same(a: Graph, b: Graph) -> None:
    assert a.nodes == b.nodes and a.outputs == b.outputs and a.output_names == b.output_names and a.name == b.name


@settings(max_examples=150, deadline=None)
@given(named_graphs() | graphs(max_steps=15))
def test_text_round_trip(g: Graph) -> None:
    """The text form parses back to the same graph (weights apart)."""
    back = from_text(to_text(g))
    same(back, g)
    assert to_text(back) == to_text(g)


@settings(max_examples=100, deadline=None)
@given(named_graphs() | graphs(max_steps=15))
def test_dict_and_file_round_trip(g: Graph) -> None:
    """JSON + safetensors loads back equal, weights included."""
    same(Graph.from_dict(json.loads(json.dumps(g.to_dict()))), g)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        save_graph(g, path)
        back = load_graph(path)
        same(back, g)
        assert back == g and back.content_hash == g.content_hash
        assert path.with_suffix(".safetensors").exists() == bool(g.weights)
        for name, w in g.weights.items():
            assert back.weights[name].dtype == w.dtype and back.weights[name].tobytes() == w.tobytes()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_op_survives_text_and_json(name: str) -> None:
    g = Graph()
    g.set_outputs(EXAMPLES[name](g))
    same(from_text(to_text(g)), g)
    same(Graph.from_dict(json.loads(json.dumps(g.to_dict()))), g)


@pytest.mark.parametrize("symbol", ["a,b", "n]", 'q"q', "a=3", "7", " padded ", "x[0]", "tab\t", "a\\b", "日本", "1 2"])
def test_odd_symbols_survive_text(symbol: str) -> None:
    """Exporters put anything into dim names."""
    for d in (Dim(None, symbol), Dim(5, symbol)):
        assert Dim.parse(str(d)) == d
        shape = Shape((d, dim(2), d))
        assert Shape.parse(str(shape)) == shape
        g = Graph()
        g.set_outputs(g.relu(g.input("x", (d, 3))))
        same(from_text(to_text(g)), g)
        same(Graph.from_dict(json.loads(json.dumps(g.to_dict()))), g)


@given(st.text(min_size=1, max_size=10))
def test_any_symbol_survives_text(symbol: str) -> None:
    d = Dim(None, symbol)
    assert Dim.parse(str(d)) == d
    assert Shape.parse(str(Shape((d, d)))) == Shape((d, d))


def test_golden_text() -> None:
    g = Graph("tiny")
    x = g.input("x", ("B", 4))
    h = g.mm(x, g.param("w", (4, 2)), name="proj", source=[Source("m.onnx", "MatMul_0", "layer", "MatMul")])
    g.set_outputs(g.leaky_relu(h, alpha=0.5), names=["y"])
    assert to_text(g) == (
        'graph "tiny" {\n'
        '  %0 = Input() {shape="f32[B, 4]"} : f32[B, 4] "x"\n'
        '  %1 = Param() {shape="f32[4, 2]"} : f32[4, 2] "w"\n'
        '  %2 = MatMul(%0, %1) : f32[B, 2] "proj" @ [["m.onnx", "MatMul_0", "layer", "MatMul"]]\n'
        '  %3 = Activation(%2) {kind="leaky_relu", alpha=0.5, beta=0.0} : f32[B, 2]\n'
        '  outputs %3 "y"\n'
        '}\n')


@pytest.mark.parametrize(("text", "message"), [
    ("", 'line 1: wanted: graph "name" {'),
    ('graph "g" {\n  %1 = Input()', r"line 2: wanted '%0 = Op\(%…\) \{…\} : shape', got '%1 = Input\(\)'"),
    ('graph "g" {\n  %0 = Nope() : f32[1]', "line 2: unknown op 'Nope'"),
    ('graph "g" {\n  %0 = Input() {shape="f32[1]"} : f32[2] "x"', r"line 2: %0 is written as f32\[2\] but its op gives f32\[1\]"),
    ('graph "g" {\n  %0 = Input() {shape="f32[1]"}', "line 2: "),
    ('graph "g" {\n  %0 = Input() {shape=', "line 2: "),
    ('graph "g" {\n  %0 = Input() {colour="red"} : f32[1] "x"', r"line 2: Input has no attribute \['colour'\]; wanted \['shape'\]"),
    ('graph "g" {\n  outputs %4 "x"', "line 2: output %4 is not a node"),
])
def test_text_errors_give_the_line(text: str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        from_text(text)


def test_file_errors(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="can't read graph"):
        load_graph(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(GraphError, match="holds no graph: wanted a JSON object"):
        load_graph(tmp_path / "list.json")
    (tmp_path / "other.json").write_text('{"format":"x","version":1}')
    with pytest.raises(GraphError, match="not a graph file of this version: format 'x', version 1"):
        load_graph(tmp_path / "other.json")
    g = Graph()
    g.set_outputs(g.param("w", (2,), data=np.ones(2, np.float32)))
    save_graph(g, tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    for key in ("nodes", "name", "outputs"):
        (tmp_path / "m.json").write_text(json.dumps({k: v for k, v in document.items() if k != key}))
        with pytest.raises(GraphError, match=r"m\.json"):
            load_graph(tmp_path / "m.json")
    for types in ({"v": ["f32", [2]]}, {"w": ["f32", [3]]}, {"w": ["f99", [2]]}, {"w": 3}):
        (tmp_path / "m.json").write_text(json.dumps({**document, "weights": types}))
        with pytest.raises(GraphError):
            load_graph(tmp_path / "m.json")
    (tmp_path / "m.json").write_text(json.dumps(document))
    (tmp_path / "m.safetensors").unlink()
    with pytest.raises(GraphError, match=r"m.json: can't read the weights: .*m.safetensors"):
        load_graph(tmp_path / "m.json")
    with pytest.raises(RlxError, match="does not exist; create it first"):
        write_atomically(tmp_path / "no" / "file", b"")


# --- symbols ------------------------------------------------------------------------------------------------


def test_dim_arithmetic() -> None:
    b = dim("B")
    assert [str(x) for x in (b + 1, b * 2, b * 1, b + 0, b - 0, b // 1, (b + 1) * 2, b // 2, dim(3) * 4, b * UNKNOWN)] == [
        "B+1", "B*2", "B", "B", "B", "B", "(B+1)*2", "B//2", "12", "?"]
    assert (b + 1).bind({"B": 4}) == Dim(5, "B+1") and str((b + 1).bind({"B": 4})) == "B+1=5"
    assert dim("past+1=129") == Dim(129, "past+1") and dim("7") == Dim(7)
    assert dim("B*S+1").names() == {"B", "S"} and dim("p2o.Dim.0").names() == {"p2o.Dim.0"}
    assert dim("a b").bind({"a b": 3}).value == 3
    assert b.same(dim("B")) and not b.same(dim("C")) and not UNKNOWN.same(UNKNOWN) and Dim(3, "B").same(dim(3))
    for bad, text in ((lambda: Dim(None), "a dim needs a value or a symbol"), (lambda: Dim(-1), "can't be negative: got -1")):
        with pytest.raises(GraphError, match=text):
            bad()


def test_binding() -> None:
    """Symbols bind everywhere, keep their text, and an unknown name is an error that lists those there are."""
    g = Graph()
    x, past = g.input("x", ("B", 1, 8)), g.input("past", ("B", "P", 8))
    both = g.concat(past, x, axis=1)
    e = g.expand(both, dims=("B", "P+1", 8))
    g.set_outputs(g.reshape(e, dims=("B*(P+1)", 8)))
    assert g.symbols == {"B": ["x", "past"], "P": ["past"]}
    half = g.bind({"B": 2})
    assert half.symbols == {"P": ["past"]} and str(half[both].shape) == "f32[B=2, P+1, 8]"
    full = g.bind(DimBinding.of(B=2, P=3))
    assert full[4].shape.sizes == (8, 8) and str(full[both].shape) == "f32[B=2, P+1=4, 8]"
    assert full.symbols == {} and validate(full) == []
    assert g[4].shape.dims[0].value is None, "a copy"
    assert DimBinding.batch_seq(batch=1, seq=5).as_dict() == {"batch": 1, "seq": 5}
    with pytest.raises(UnboundDimError, match=r"no dim named \['Q'\] in 'graph'; it has \['B', 'P'\]"):
        g.bind({"Q": 1})
    with pytest.raises(UnboundDimError, match=r"no dim named \['B'\] in 'graph'; it has none"):
        full.bind({"B": 1})
    with pytest.raises(UnboundDimError, match=r"dim B of f32\[B, 1, 8\] has no value; bind its symbol, e.g. graph.bind\(\{'B': 1\}\)"):
        g[x].shape.sizes


def test_binding_that_breaks_a_shape_says_where() -> None:
    g = Graph()
    g.set_outputs(g.reshape(g.input("x", ("N",)), dims=(4, 2), name="grid"))
    assert g.bind({"N": 8})[1].shape.sizes == (4, 2)
    with pytest.raises(GraphError, match=r"Reshape grid in 'graph': can't reshape f32\[N=7\] \(7 elements\)"):
        g.bind({"N": 7})


def test_broadcasting() -> None:
    assert broadcast_dims(Shape.of((1, "B")), Shape.of((3, 1)), Shape.of(())) == (dim(3), dim("B"))
    assert broadcast_dims(Shape.of(("?",)), Shape.of((4,))) == (dim(4),)
    assert broadcast_dims() == ()


def test_dtypes_and_schemes() -> None:
    for d in DType:
        assert DType.parse(str(d)) is d and DType.of(d.numpy) is d
        assert d.nbytes(3) == -(-3 * d.bits // 8)
    assert DType.of(np.dtype(">f4")) is DType.F32
    assert QuantScheme.Q4_K.row_bytes(512) == 288 and QuantScheme.Q8_0.row_bytes(33) == 68


# --- looking ------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(graphs())
def test_uses_and_edges_against_brute_force(g: Graph) -> None:
    ptr, flat = g.edges
    for n in g.nodes:
        assert tuple(flat[ptr[n.id] : ptr[n.id + 1]].tolist()) == n.inputs
        assert g.uses.of(n.id) == [(m.id, k) for m in g.nodes for k, i in enumerate(m.inputs) if i == n.id]
    assert g.uses is g.uses
    g.relu(0)
    assert g.uses.of(0)[-1] == (len(g) - 1, 0), "adding a node drops the index"


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_random_graphs_are_valid(g: Graph) -> None:
    assert validate(g) == []


def test_validate() -> None:
    """Each kind of problem, once."""
    assert [p.kind for p in validate(Graph())] == [ProblemKind.NO_OUTPUTS]
    g = Graph()
    x = g.input("x", ("B", 4))
    h = g.relu(x)
    g.param("w", (2,))
    g.set_outputs(h)
    assert [(p.kind, p.message) for p in validate(g)] == [(ProblemKind.UNBOUND, "dim 'B' of x has no value")]
    g = g.bind({"B": 2})
    assert validate(g) == []
    good = list(g.nodes)

    def problems(node: int, **change: object) -> list[ProblemKind]:
        g.nodes = list(good)
        g.nodes[node] = dataclasses.replace(good[node], **change)  # type: ignore[arg-type]
        found = [p.kind for p in validate(g)]
        g.nodes = list(good)
        return found

    assert problems(h, inputs=(h,)) == [ProblemKind.ORDER]
    assert problems(h, inputs=(x, x)) == [ProblemKind.ARITY]
    assert problems(h, shape=Shape.of((9,))) == [ProblemKind.SHAPE]
    g.weights = {"w": np.zeros(3, np.float32), "v": np.zeros(3, np.float32)}
    assert [(p.kind, p.message) for p in validate(g)] == [
        (ProblemKind.WEIGHT, "'w' is float32[3], wanted f32[2]"), (ProblemKind.WEIGHT, "weight 'v' belongs to no param")]


def test_find() -> None:
    g = Graph()
    g.relu(g.input("tokens", (2,)), name="first")
    assert g.find("tokens").id == 0 and g.find("first").id == 1
    with pytest.raises(GraphError, match=r"no node named 'token' in 'graph'; near: tokens"):
        g.find("token")


def test_content_hash() -> None:
    """Stable across runs and machines; changes with structure, names, attributes and weights."""

    def make(name: str = "x", alpha: float = 0.5, weight: float = 1.0, graph: str = "g") -> Graph:
        g = Graph(graph)
        w = g.param("w", (2,), data=np.full(2, weight, np.float32))
        return g.set_outputs(g.leaky_relu(g.mul(g.input(name, (2,)), w), alpha=alpha))

    assert make().content_hash == "062c868992830a7c1c200fc914c2394a4cb220b65ff25b6aa90fc8e4cf3655ac"
    assert make() == make() and len({make().content_hash, make("y").content_hash, make(alpha=0.25).content_hash,
                                     make(weight=2).content_hash, make(graph="h").content_hash}) == 5
    noted = make()
    noted.notes.append("assumed")
    assert noted == make() and make() != "graph"


def test_results_are_by_name_so_names_are_apart() -> None:
    g = Graph("g")
    x = g.input("x", (2,))
    a, b = g.relu(x, name="y"), g.neg(x, name="y")
    assert g.set_outputs(a, b, a).output_names == ["y", "y.1", "y"]
    with pytest.raises(GraphError, match=r"two outputs of 'g' are named 'o' \(%1 and %2\)"):
        g.set_outputs(a, b, names=["o", "o"])
    assert g.set_outputs(a, a, names=["o", "o"]).output_names == ["o", "o"]
