"""The command line, called as a user calls it: output, files, exit codes and error texts."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import rlx_viz
from planner_core.ir import Graph, save_graph


def test_plan_prints_the_number_to_allocate_first(rlx, mlp_file: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = rlx("plan", mlp_file)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("mlp.json: 7 nodes")
    assert lines[1].split()[:2] == ["to", "allocate"]
    assert "= weights + activations + scratch + padding" in lines[1]


def test_json_has_the_promised_keys_and_adds_up(rlx, mlp_file: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = rlx("plan", mlp_file, "--json", "-")
    data = json.loads(out)
    assert code == 0
    assert {"model", "nodes", "tensors", "arena_bytes", "naive_bytes", "saved_bytes", "lower_bound_bytes", "peak_step",
            "unsupported_ops"} <= data.keys()
    assert len(data["tensors"]) == data["nodes"] == 7
    assert data["saved_bytes"] == data["naive_bytes"] - data["arena_bytes"]
    assert data["unsupported_ops"] == {}
    assert data["options"]["pin_output_ancestors"] is False


def test_set_changes_the_plan(rlx, mlp_file: Path) -> None:  # type: ignore[no-untyped-def]
    plain = json.loads(rlx("plan", mlp_file, "--json", "-")[1])
    pinned = json.loads(rlx("plan", mlp_file, "--json", "-", "--set", "arena_no_reuse=true")[1])
    assert pinned["arena_bytes"] == plain["naive_bytes"] > plain["arena_bytes"]


def test_csv_has_one_row_a_tensor(rlx, mlp_file: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "t.csv"
    assert rlx("plan", mlp_file, "--csv", target)[0] == 0
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [r["name"] for r in rows][:2] == ["x", "w"]
    assert len(rows) == 7


def test_report_is_one_file_and_repeatable(rlx, mlp_file: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "r.html"
    code, out, _ = rlx("report", mlp_file, "-o", target)
    first = target.read_bytes()
    assert code == 0
    assert str(target) in out
    assert rlx("report", mlp_file, "-o", target)[0] == 0
    assert target.read_bytes() == first
    assert b"rlx-viz report mlp.json" in first


def test_report_compares(rlx, mlp_file: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    target, table = tmp_path / "r.html", tmp_path / "o.csv"
    table.write_text("name,offset,size\nhidden,64,256\n")
    assert rlx("report", mlp_file, "-o", target, "--compare", table, "--no-whatif")[0] == 0
    assert b"rlx-payload-b" in target.read_bytes()
    code, _, err = rlx("report", mlp_file, "-o", target, "--compare", tmp_path / "no.csv")
    assert (code, err.count("\n")) == (1, 1)
    assert "no such file" in err


def test_redacted_report_names_nothing(rlx, mlp_file: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "r.html"
    assert rlx("report", mlp_file, "-o", target, "--redact")[0] == 0
    page = target.read_bytes()
    assert b"mlp.json" not in page
    assert '"mlp"' not in page.decode()


def test_run_writes_outputs_equal_to_numpy(rlx, mlp: Graph, mlp_file: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(4, 16)
    np.savez(tmp_path / "in.npz", x=x)
    code, out, _ = rlx("run", mlp_file, "--inputs", tmp_path / "in.npz", "--sanitize", "--out", tmp_path / "out.npz")
    assert code == 0
    assert "sanitised: clean" in out
    with np.load(tmp_path / "out.npz") as got:
        np.testing.assert_allclose(got["y"], (np.maximum(x, 0) @ mlp.weights["w"] - x).ravel(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("args", "wanted"), [
    (["plan", "no-such-file.onnx"], "no-such-file.onnx"),
    (["plan", "MLP", "--set", "aligment=64"], "did you mean 'alignment'"),
    (["plan", "MLP", "--set", "alignment=48"], "power of two"),
    (["plan", "MLP", "--set", "arena_no_reuse=maybe"], "wanted true or false"),
    (["plan", "MLP", "--set", "width_policy=narrow"], "f32_uniform"),
    (["plan", "MLP", "--dim", "batch"], "--dim batch=1"),
    (["plan", "MLP", "--dim", "batch=two"], "wanted an integer"),
    (["plan", "MLP", "--target", "abacus"], "wanted one of cpu"),
    (["plan", "MLP", "--set", "alignment=1", "--set", "alignment=64"], "given twice"),
    (["plan", "MLP", "--json", "-", "--csv", "-"], "would mix"),
    (["plan", "MLP", "--dim", "B=100000000000000000000"], "B"),
    (["report", "MLP", "-o", "-"], "file name"),
    (["report", "MLP", "-o", "."], "it is a folder"),
    (["plan", "MLP", "--shape", "x=2,5,"], "x=1,3,48,192"),
    (["report", "MLP", "-o", "no/such/folder/r.html"], "no/such/folder"),
    (["run", "MLP", "--inputs", "nothing.npz", "--out", "o.npz"], "nothing.npz"),
])
def test_errors_are_one_line_and_exit_1(rlx, mlp_file: Path, args: list[str], wanted: str) -> None:  # type: ignore[no-untyped-def]
    code, out, err = rlx(*[str(mlp_file) if a == "MLP" else a for a in args])
    assert code == 1
    assert err.startswith("error: ")
    assert wanted in err
    assert "Traceback" not in err + out


def test_options_lists_every_option_with_help(rlx) -> None:  # type: ignore[no-untyped-def]
    from planner_core.memory import PlanOptions
    from planner_core.options import options_of

    out = rlx("options")[1]
    assert "pin_output_ancestors=false" in out, "the target's default, not the class's"
    for o in options_of(PlanOptions):
        assert f"{o.name}=" in out
        assert o.help in out


def test_demo_plans_the_packages_model(rlx, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = rlx("demo", "-o", tmp_path / "demo.html")
    assert (code, err) == (0, "")
    assert "to allocate" in out
    assert "ran on the planned arena, free bytes poisoned" in out
    assert str(tmp_path / "demo.html") in out
    assert (tmp_path / "demo.html").stat().st_size < 2_000_000


def test_compile_takes_what_users_hold_and_refuses_the_rest(mlp: Graph) -> None:
    import onnx

    import rlx_viz
    from planner_core.errors import PlanError, RlxError
    from rlx_viz.demo import magika_model

    c = rlx_viz.compile(mlp)
    assert rlx_viz.compile(c, target="metal").options.target.value == "metal"
    assert len(rlx_viz.compile(onnx.load(magika_model())).legal) == len(rlx_viz.compile(magika_model()).legal)
    for bad in ({"model": None}, {"model": c, "dims": {"B": 1}}, {"model": mlp, "shapes": {"x": (1, 2)}}):
        with pytest.raises(RlxError):
            rlx_viz.compile(**bad)
    assert c.plan.why_alive("hidden")[0].text == "hidden is produced at step 3"
    with pytest.raises(PlanError, match="wanted 0 to 6"):
        c.plan.why_here(99)


def test_a_tensor_too_large_to_count_is_named() -> None:
    import rlx_viz
    from planner_core.errors import PlanError

    g = Graph("huge")
    g.set_outputs(g.relu(g.input("x", [1 << 30, 1 << 30, 1 << 30])))
    with pytest.raises(PlanError, match="Input x has shape"):
        rlx_viz.compile(g)


def test_two_toggles_really_re_plan_in_the_explorer(mlp: Graph) -> None:
    import rlx_viz

    explorer = rlx_viz.explore(mlp)
    start = explorer.document.meta["headline"]
    explorer.set_option("arena_no_reuse", True)
    assert explorer.document.meta["headline"]["arena"] == start["naive"]
    explorer.set_option("arena_no_reuse", False)
    explorer.set_option("pin_output_ancestors", True)
    pinned = explorer.document
    rules = [r["name"] for r in pinned.meta["rules"]]
    assert "output_ancestors" in {rules[k] for k in pinned.tables["extensions"]["rule"]}
    assert pinned.meta["headline"]["arena"] >= start["arena"]


@pytest.fixture
def block_file(tmp_path: Path) -> Path:
    """Two products with bias and GELU, the first read twice."""
    g = Graph("block")
    x = g.input("x", (4, 16))
    w, b = g.param("w", (16, 16)), g.param("b", (16,))
    g.add(g.mm(x, w), b, name="summed")
    shared = g.add(g.mm(x, w), b, name="shared")
    y = g.gelu(shared, name="activated")
    save_graph(g.set_outputs(g.add(g.gelu(g.add(g.mm(y, w), b)), shared)), tmp_path / "block.json")
    return tmp_path / "block.json"


def test_decisions_say_what_was_done_and_what_was_not(rlx, block_file: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, err = rlx("decisions", block_file)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    c = rlx_viz.compile(block_file)
    assert lines[0].startswith(f"fusion: {c.fusion_log.dispatches_saved} dispatches and ")
    assert any(line.startswith("  matmul_bias_act: ") and line.endswith("less written") for line in lines)
    assert any(line.startswith("  dead_code: 1 applied") for line in lines)
    assert "command passes: nothing applied" in lines
    assert any(line.startswith("  refused ") for line in lines)
    assert "refused" not in rlx("decisions", block_file, "--top", "0")[1]
    assert "graph output" not in rlx("decisions", block_file, "--node", "activated")[1]
    assert "matmul_bias_act" in rlx("decisions", block_file, "--node", "shared")[1]
    code, out, err = rlx("decisions", block_file, "--node", "shred")
    assert code == 1
    assert "no node named 'shred'" in err
    assert "shared" in err


def test_decisions_as_rows(rlx, block_file: Path) -> None:  # type: ignore[no-untyped-def]
    out = rlx("decisions", block_file, "--csv", "-")[1]
    rows = out.splitlines()
    c = rlx_viz.compile(block_file)
    assert len(rows) == 1 + len(c.fusion_log) + len(c.pass_log)
    assert rows[0].startswith("stage,rule,verdict,anchor,label")


def test_the_summary_says_what_the_stages_did(rlx, block_file: Path) -> None:  # type: ignore[no-untyped-def]
    out = rlx("plan", block_file)[1]
    c = rlx_viz.compile(block_file)
    assert f"{len(c.source)} nodes, {len(c.legal)} after fusion" in out
    before = c.with_options(fusion=False).commands.dispatches
    assert f"fusion: {before} -> {c.commands.dispatches} dispatches" in out
    assert "estimated: " in out
    assert "fusion:" not in rlx("plan", block_file, "--set", "fusion=off")[1]


def test_a_problem_file_has_a_report(rlx, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from rlx_viz.problems import problem_document

    file, page = tmp_path / "p.csv", tmp_path / "p.html"
    file.write_text("id,lower,upper,size\na,0,3,10\nb,3,5,20\nc,1,4,30\nlate,900000,900002,7\n")
    code, out, err = rlx("report", file, "-o", page, "--set", "placement=exact")
    assert (code, err) == (0, "")
    assert page.read_text().count("<html") == 1
    assert out.startswith("p.csv: 4 buffers")
    doc, _ = problem_document(str(file), {"placement": "exact"})
    t = doc.tables["tensors"]
    assert [doc.strings[i] for i in t["name"]] == ["a", "b", "c", "late"]
    assert doc.meta["headline"]["arena"] == doc.meta["headline"]["lower_bound"] == 50  # b and c live at once
    assert doc.meta["notes"] == ["steps are ranks of the file's 7 distinct times"]
    live = [int(t["size"][(t["birth"] <= step) & (step <= t["death"])].sum()) for step in range(doc.rows("occupancy"))]
    assert doc.tables["occupancy"]["live"].tolist() == live
    ends = [(int(o), int(o + n)) for o, n in zip(t["offset"], t["size"], strict=True)]
    assert max(e for _, e in ends) == 50
    assert "line 3" in rlx("report", _bad(tmp_path), "-o", page)[2]


def _bad(folder: Path) -> Path:
    (folder / "bad.csv").write_text("id,lower,upper,size\na,0,3,10\nb,x,5,20\n")
    return folder / "bad.csv"
