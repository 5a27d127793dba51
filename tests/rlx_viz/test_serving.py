"""``serving_cost`` against a written-out formula and against a real cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import rlx_viz
from planner_core import zoo
from planner_core.errors import RlxError
from planner_core.ir import Graph
from runtime.caches import BucketedCompileCache
from runtime.caches.buckets import Bucket
from tests.symbolic_models import table_slice, transformer

TRAFFIC = {5: 10, 8: 2, 12: 4, 40: 1}


def test_numbers_by_the_formula() -> None:
    """Resident = weights once + Σ (arena + scratch); padding = Σ w (upper - n) / Σ w upper."""
    proto = transformer()
    cost = rlx_viz.serving_cost(proto, buckets=[8, 16, 64], traffic=TRAFFIC)
    assert (cost.name, cost.dim, cost.target) == ("open", "seq", "cpu")
    made = [rlx_viz.compile(proto, dims={"batch": 1, "seq": n}) for n in (8, 16, 64)]
    (total,) = cost.ladders
    arenas = sum(c.allocate_bytes - c.plan.weights_size for c in made)
    assert total.resident_bytes == made[0].plan.weights_size + arenas
    assert [b.weights_bytes for b in cost.buckets] == [made[0].plan.weights_size, 0, 0]
    assert [b.arena_bytes for b in cost.buckets] == [c.plan.arena_size for c in made]
    padded, computed = 10 * 3 + 2 * 0 + 4 * 4 + 1 * 24, 12 * 8 + 4 * 16 + 1 * 64
    assert total.padding_waste == pytest.approx(padded / computed, rel=1e-12)
    assert [b.padding_waste for b in cost.buckets] == pytest.approx([30 / 96, 16 / 64, 24 / 64])
    assert [b.traffic_share for b in cost.buckets] == pytest.approx([12 / 17, 4 / 17, 1 / 17])
    assert [(b.shortest, b.longest) for b in cost.buckets] == [(1, 8), (9, 16), (17, 64)]
    assert total.compile_seconds == pytest.approx(sum(b.compile_seconds for b in cost.buckets)) and total.compile_seconds > 0


def test_a_list_of_lengths_is_weights_of_one() -> None:
    lengths = [n for n, w in TRAFFIC.items() for _ in range(w)]
    a, b = (rlx_viz.serving_cost(transformer(), buckets=[16, 64], traffic=t) for t in (TRAFFIC, lengths))
    assert a.ladders[0].padding_waste == pytest.approx(b.ladders[0].padding_waste)


def test_it_is_what_a_cache_holds() -> None:
    template = rlx_viz.compile(transformer(), keep=["batch", "seq"])
    cost = rlx_viz.serving_cost(template, buckets=[(1, 9), range(9, 17), Bucket(17, 65)], traffic=[3])
    cache = BucketedCompileCache("cpu", [(1, 9), (9, 17), (17, 65)])
    for key in (1, 9, 17):
        cache.get_or_compile(key, template.build("seq", batch=1))
    assert cost.ladders[0].weights_bytes == cache.compiled_for_key(1).weight_bytes
    assert [bool(b.weights_bytes) for b in cost.buckets] == [not s.shares for s in cache.entry_stats()]
    assert cost.ladders[0].arena_bytes == sum(s.arena_bytes for s in cache.entry_stats())
    assert cost.buckets[1].padding_waste is None and cost.buckets[1].traffic_share == 0


def test_buckets_that_can_not_share_count_their_own() -> None:
    g = Graph("grows")
    x = g.input("x", ("S", 4))
    g.set_outputs(g.add(x, g.param("w", ("S", 4))))
    cost = rlx_viz.serving_cost(g, buckets=[4, 8], traffic=[4])
    sizes = [rlx_viz.compile(g, dims={"S": n}).plan.weights_size for n in (4, 8)]
    assert [b.weights_bytes for b in cost.buckets] == sizes and cost.ladders[0].weights_bytes == sum(sizes)


def test_ladders_side_by_side() -> None:
    ladders: dict[str, Any] = {"one": [64], "powers": [8, 16, 32, 64]}
    cost = rlx_viz.serving_cost(transformer(), buckets=ladders, traffic=TRAFFIC, options={"alignment": 256})
    one, powers = cost.ladders
    assert (one.ladder, one.buckets, powers.buckets) == ("one", 1, 4)
    assert one.resident_bytes < powers.resident_bytes and one.padding_waste > powers.padding_waste
    assert one.weights_bytes == powers.weights_bytes
    frame, whole = cost.to_frame(), cost.ladders_frame()
    assert frame["ladder"].tolist() == ["one", *["powers"] * 4]
    assert frame.groupby("ladder")["resident_bytes"].sum().to_dict() == {c.ladder: c.resident_bytes for c in cost.ladders}
    assert [str(frame[c].dtype) for c in ("longest", "resident_bytes", "padding_waste", "compile_seconds")] == [
        "int64", "int64", "float64", "float64"]
    assert whole["resident_bytes"].tolist() == [one.resident_bytes, powers.resident_bytes]
    assert "KiB resident" in repr(cost)


def test_other_models(tmp_path: Path) -> None:
    onnx.save(table_slice(), tmp_path / "cut.onnx")
    cut = rlx_viz.serving_cost(tmp_path / "cut.onnx", buckets=[4, 16], traffic=[3], dims={"batch": 2})
    assert (cut.name, cut.dim, [b.weights_bytes > 0 for b in cut.buckets]) == ("cut.onnx", "seq", [True, False])
    bert = rlx_viz.serving_cost("minilm", buckets=[8, 16], traffic=[3], dims={"layers": 1}, target="metal")
    want = rlx_viz.compile(zoo.build("minilm", layers=1, seq=16), target="metal")
    assert (bert.target, bert.buckets[1].arena_bytes) == ("metal", want.plan.arena_size)


def test_figure() -> None:
    cost = rlx_viz.serving_cost(transformer(), buckets={"one": [64], "three": [8, 16, 64]}, traffic=TRAFFIC)
    figure = cost.figure()
    resident, padding, seconds = figure.axes
    widths = [round(p.get_width()) for p in resident.patches]
    assert widths == [w for c in cost.ladders for w in (c.weights_bytes, *(b.arena_bytes + b.scratch_bytes for b in cost.buckets
                                                                          if b.ladder == c.ladder))]
    assert [round(p.get_x()) for p in resident.patches[:2]] == [0, widths[0]]
    assert [round(p.get_x()) for p in resident.patches[2:]] == [0, widths[2], *(sum(widths[2:k]) for k in (4, 5))]  # side by side
    assert [p.get_width() for p in padding.patches] == pytest.approx([100 * c.padding_waste for c in cost.ladders])
    assert [p.get_width() for p in seconds.patches] == pytest.approx([c.compile_seconds for c in cost.ladders])
    texts = [t.get_text() for t in resident.texts]
    assert "64" in texts and any("iB" in t for t in texts)
    html = cost._repr_html_()
    assert html.count("<table") == 2 and 'alt="open by seq, cpu' in html


BAD: list[tuple[dict[str, Any], str]] = [
    ({"buckets": [16]}, "ladder 'buckets' has no bucket for length 40 of the traffic; its buckets: 1 … 16"),
    ({"buckets": [16, 8]}, "ladder 'buckets': 8 comes after 16"),
    ({"buckets": {"odd": [(1, 9), (5, 65)]}}, "ladder 'odd': buckets 1..9 and 5..65 overlap"),
    ({"buckets": []}, "ladder 'buckets': no buckets"), ({"buckets": {}}, "no ladders"),
    ({"traffic": {}}, "no traffic"), ({"traffic": {5: -1}}, "gives length 5 the weight -1"), ({"traffic": [0]}, "traffic has length 0"),
    ({"dim": "tokens"}, "seq left open, not 'tokens' alone"), ({"model": 3}, "can't serve a int"),
    ({"model": "resnet50"}, "'resnet50' has no parameter 'seq'; name the one that lengths are of"),
    ({"model": table_slice()}, "the bucket of seq=64 can't be compiled"),
]


@pytest.mark.parametrize(("change", "text"), BAD, ids=[t[:30] for _, t in BAD])
def test_errors(change: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"model": transformer(), "buckets": [64], "traffic": TRAFFIC, **change}
    with pytest.raises(RlxError, match=text.replace("(", r"\(")):
        rlx_viz.serving_cost(given.pop("model"), **given)
