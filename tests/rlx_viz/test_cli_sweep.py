"""``rlx-viz sweep`` as a user calls it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import rlx_viz
from tests.symbolic_models import transformer


@pytest.fixture
def lm(tmp_path: Path) -> Path:
    onnx.save(transformer(), tmp_path / "lm.onnx")
    return tmp_path / "lm.onnx"


def test_table(rlx: Any, lm: Path) -> None:
    code, out, err = rlx("sweep", lm, "--dim", "seq=4,8,-1", "--dim", "batch=1,2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "lm.onnx for cpu"
    assert lines[1].split() == ["seq", "batch", "to", "allocate", "weights", "arena", "scratch", "lower", "bound", "dispatches", "seconds"]
    assert [line.split()[:2] for line in lines[2:]] == [[s, b] for s in ("4", "8", "-1") for b in "12"]
    assert "error: " in lines[-1] and "dim 'seq' is given as -1" in lines[-1]
    c = rlx_viz.compile(lm, dims={"seq": 4, "batch": 1})
    assert lines[2].split()[-3:-1] == ["reached", str(c.commands.dispatches)] and c.plan.arena_size == c.plan.lower_bound
    assert len({len(line) for line in lines[1:6]}) == 1


def test_csv_json_and_figure(rlx: Any, lm: Path, tmp_path: Path) -> None:
    code, out, _ = rlx("sweep", lm, "--dim", "seq=4,8", "--dim", "batch=1", "--csv", "-", "--figure", tmp_path / "s.png",
                       "--set", "alignment=256", "--target", "metal", "--json", tmp_path / "s.json")
    rows = list(csv.DictReader(io.StringIO(out)))
    want = rlx_viz.sweep(lm, seq=[4, 8], batch=1, options={"alignment": 256}, target="metal").to_frame()
    assert code == 0 and [int(r["allocate_bytes"]) for r in rows] == want["allocate_bytes"].tolist()
    assert (tmp_path / "s.png").read_bytes()[:4] == b"\x89PNG"
    data = json.loads((tmp_path / "s.json").read_text())
    assert (data["model"], data["target"]) == ("lm.onnx", "metal")
    assert [r["arena_bytes"] for r in data["rows"]] == want["arena_bytes"].tolist()
    bad = json.loads(rlx("sweep", lm, "--dim", "seq=-1,4", "--json", "-")[1])
    assert bad["rows"][0]["arena_bytes"] is None and bad["rows"][0]["error"]


def test_the_zoo_and_processes(rlx: Any, lm: Path) -> None:
    code, out, _ = rlx("sweep", "minilm", "--dim", "seq=4,8", "--dim", "layers=1")
    assert code == 0 and out.startswith("minilm for cpu\nseq  layers  to allocate")
    alone, spread = (rlx("sweep", lm, "--dim", "seq=4,8", "--dim", "batch=1", "--csv", "-", *more)[1] for more in ((), ("--jobs", "1")))
    drop = [[{k: v for k, v in r.items() if k != "compile_seconds"} for r in csv.DictReader(io.StringIO(t))] for t in (alone, spread)]
    assert drop[0] == drop[1]


@pytest.mark.parametrize(("args", "words"), [
    (("--dim", "seq"), "--dim seq: wanted NAME=VALUE, such as --dim seq=128,512"),
    (("--dim", "tokens=4"), "no cell could be planned; the first, tokens=4: "),
    (("--dim", "seq=4", "--figure", "s.jpeg"), "--figure s.jpeg: wanted a name that ends in .png, .svg, .pdf"),
    (("--dim", "seq=4", "--csv", "-", "--json", "-"), "would mix on standard output"),
    (("--dim", "seq=4", "--dim", "batch=1", "--set", "fuse=no"), "no option 'fuse'"),
])
def test_wrong_command_lines(rlx: Any, lm: Path, args: tuple[str, ...], words: str) -> None:
    code, out, err = rlx("sweep", lm, *args)
    assert (code, out) == (1, "") and words in err
