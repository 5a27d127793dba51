"""Reports as text: deterministic, small, closed to the network, and safe with hostile names."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlx_viz.columns import ColumnDocument
from rlx_viz.explorer import Explorer
from rlx_viz.reports import render_html, write_report
from rlx_viz.reports.sampling import EMBED_LIMIT, render_capped, sample
from tests.browser.synthetic import make_document

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'&<!--",
    "\u2028\ud800",
    "]]>",
]


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of one element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def payload_of(page: str) -> ColumnDocument:
    found = re.search(r'id="rlx-payload">([^<]*)<', page)
    assert found
    plain = zlib.decompress(base64.b64decode(found[1]))
    (length,) = struct.unpack_from("<I", plain)
    start = 4 + length + -(4 + length) % 8
    return ColumnDocument.unpack(plain[4 : 4 + length].decode(), plain[start:])


def test_the_page_carries_the_whole_document() -> None:
    doc = make_document(300)
    assert payload_of(render_html(doc, title="t")) == doc


def test_equal_documents_give_the_same_bytes() -> None:
    assert render_html(make_document(200), title="t") == render_html(make_document(200), title="t")
    assert render_html(make_document(200), title="t") != render_html(make_document(201), title="t")


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_size_stays_below_the_budget(n: int) -> None:
    assert len(render_html(make_document(n), title="t")) < 2_000_000


def test_nothing_in_the_page_can_reach_the_network() -> None:
    page = render_html(make_document(50), title="t")
    elements = Elements(page)
    policy = next(
        a["content"] for tag, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not [a for _, a in elements.tags if {"src", "href", "srcset", "action"} & a.keys()]
    without_payload = re.sub(r'id="rlx-payload">[^<]*<', "", page)
    assert "http:" not in without_payload
    assert "https:" not in without_payload
    assert "url(" not in without_payload


def test_hostile_names_and_titles_stay_text() -> None:
    doc = make_document(20, names=HOSTILE, unknown=5)
    doc.meta["notes"] = HOSTILE[:3]
    doc.meta["footer"]["command"] = HOSTILE[0]
    page = render_html(doc, title=HOSTILE[0])
    tags = [tag for tag, _ in Elements(page).tags]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert payload_of(page).strings[1 : 1 + len(HOSTILE)] == tuple(HOSTILE)


def test_the_headline_is_readable_without_javascript() -> None:
    doc = make_document(100, unknown=1, big=True)
    page = render_html(doc, title="t")
    total = int(doc.meta["headline"]["allocate"])
    assert total > 2**53
    assert re.search(rf"<th scope=\"row\">Allocate</th><td>≥ [\d.]+ \w+ \({total:,} B\)</td>", page)
    assert "<noscript>" in page
    assert "dim unk__214 unknown on axis 0: took 1" in page


def test_writing_replaces_the_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "r.html"
    write_report(make_document(3), target, title="first")
    before = target.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_report(make_document(3), target, title="second")
    assert target.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]


def test_a_sample_keeps_the_largest_tensors_and_says_so() -> None:
    doc = make_document(1000)
    small = sample(doc, 50)
    sizes = sorted(doc.tables["tensors"]["size"].tolist(), reverse=True)
    kept = small.tables["tensors"]
    assert sorted(kept["size"].tolist(), reverse=True)[:50] == sizes[:50]
    assert small.meta["sampled"]["total"] == 1000
    assert small.meta["notes"][0].startswith("Sampled: the 5")
    assert small.meta["headline"] == doc.meta["headline"]
    names = [doc.strings[i] for i in doc.tables["tensors"]["name"][kept["step"]].tolist()]
    assert [small.strings[i] for i in kept["name"].tolist()] == names
    edges = small.tables["edges"]
    assert len(edges["src"]) > 0
    assert max(edges["src"].max(), edges["dst"].max()) < small.rows("tensors")
    assert sample(doc, 1000) is doc


def test_an_embedded_page_keeps_to_its_limit() -> None:
    page = render_capped(make_document(30_000), title="t", limit=600_000)
    assert len(page) <= 600_000
    assert payload_of(page).meta["sampled"]["total"] == 30_000


def flip(options: dict[str, object]) -> ColumnDocument:
    if options.get("pin_output_ancestors"):
        raise RuntimeError("no room for ancestors")
    return make_document(60, no_reuse=bool(options.get("arena_no_reuse")))


def test_a_request_replans_and_keeps_the_selected_tensor() -> None:
    explorer = Explorer(flip, make_document(60))
    explorer.selection = 20
    explorer.request = {"option": "arena_no_reuse", "value": True, "seq": 1}
    assert explorer.rev == 1
    assert explorer.done == 1
    assert explorer.selection == 20
    assert explorer.options == {"arena_no_reuse": True}
    assert json.loads(explorer.header)["meta"]["options"][0]["value"] is True
    assert explorer.document == flip({"arena_no_reuse": True})


def test_a_failed_request_shows_why_and_keeps_the_picture() -> None:
    explorer = Explorer(flip, make_document(60))
    before = explorer.header, explorer.buffer
    explorer.request = {"option": "pin_output_ancestors", "value": True, "seq": 1}
    assert explorer.error == "RuntimeError: no room for ancestors"
    assert (explorer.header, explorer.buffer, explorer.rev) == (*before, 0)
    assert explorer.done == 1
    assert not explorer.busy
    assert explorer.options == {}
    explorer.set_option("arena_no_reuse", True)
    assert explorer.error == ""
    with pytest.raises(RuntimeError, match="no room"):
        explorer.set_option("pin_output_ancestors", True)


def test_an_overtaken_request_is_dropped() -> None:
    explorer = Explorer(flip, make_document(60))
    explorer.request = {"option": "arena_no_reuse", "value": True, "seq": 2}
    explorer.request = {"option": "arena_no_reuse", "value": False, "seq": 1}
    assert explorer.options == {"arena_no_reuse": True}


def test_the_notebook_fallback_is_a_sandboxed_page() -> None:
    bundle = Explorer(flip, make_document(60, name='x" onload="alert(1)'))._repr_mimebundle_()
    assert bundle is not None
    (tag, attributes), *others = Elements(bundle[0]["text/html"]).tags
    assert (tag, others) == ("iframe", [])
    assert attributes.keys() == {"title", "sandbox", "style", "srcdoc"}
    assert attributes["sandbox"] == "allow-scripts"
    assert payload_of(attributes["srcdoc"] or "") == make_document(60, name='x" onload="alert(1)')
    assert len(bundle[0]["text/html"]) < EMBED_LIMIT
    assert "application/vnd.jupyter.widget-view+json" in bundle[0]


def test_a_real_sample_keeps_savings_groups_and_places_in_step() -> None:
    import rlx_viz
    from planner_core import zoo
    from rlx_viz.whatif import with_whatif

    c = rlx_viz.compile(zoo.build("decoder-stack", nodes=600), target="metal", pin_output_ancestors=True)
    doc = with_whatif(rlx_viz.snapshot(c), c)
    small = sample(doc, 400)
    rows, kept = small.rows("tensors"), small.tables["tensors"]["step"]
    assert rows < len(c.legal)
    assert small.rows("layout") == rows
    assert small.tables["layout"]["x"].tolist() == doc.tables["layout"]["x"][kept].tolist()
    for table, column in (("groups", "name"), ("savings", "label"), ("counterfactuals", "option"), ("counterfactuals", "value")):
        texts = [[d.strings[i] for i in d.tables[table][column].tolist()] for d in (doc, small)]
        assert texts[0] == texts[1], (table, column)
    assert small.tables["savings"]["option"].max() == 0xFFFFFFFF
    nodes = small.tables["counterfactual_nodes"]
    assert len(nodes["node"]) and nodes["node"].max() < rows
    assert not small.tables.keys() & {"decisions", "commands", "source"}
    page = render_capped(doc, title="t", limit=len(render_html(doc, title="t")) - 1000)
    assert payload_of(page).meta["sampled"]["total"] == len(c.legal)


def test_an_embedded_page_has_the_comparison_where_it_fits() -> None:
    one, two = make_document(300), make_document(300, no_reuse=True)
    page = render_capped(one, title="t", other=two)
    assert 'id="rlx-payload-b"' in page
    short = render_capped(one, title="t", other=two, limit=len(page) - 1)
    assert 'id="rlx-payload-b"' not in short
    assert payload_of(short).meta["notes"][0].startswith("Left out for its size")
