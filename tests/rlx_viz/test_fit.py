"""Sizes and devices, the answer of ``fit``, and ``plan --fit`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import rlx_viz
from planner_core.errors import RlxError
from planner_core.fusion import DEVICES
from rlx_viz.budget import BOARDS, Budget, budget_of, bytes_of
from rlx_viz.fit import Region, fit
from runtime.compile import Compilation
from tests.symbolic_models import transformer

# --- budgets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "nbytes"), [
    ("512KB", 512_000), ("512KiB", 524_288), ("1.5MiB", 1_572_864), ("1.5 MB", 1_500_000), ("65536", 65_536), ("7 B", 7),
    ("2gib", 2 << 30), ("0.1KiB", 102), ("3TB", 3 * 10**12),
])
def test_sizes(text: str, nbytes: int) -> None:
    assert (budget_of(text).nbytes, bytes_of(text)) == (nbytes, nbytes)
    assert f"{nbytes:,} B" in str(budget_of(text))


@pytest.mark.parametrize("name", BOARDS)
def test_boards(name: str) -> None:
    board = BOARDS[name]
    assert board.name == name and board.source and board.ram_bytes % 1024 == 0
    assert budget_of(name).nbytes == budget_of(name.upper().replace("-", " ")).nbytes == board.ram_bytes
    assert name not in DEVICES


def test_devices_with_a_memory_of_their_own() -> None:
    assert {n: d.memory_gb for n, d in DEVICES.items() if d.memory_gb} == {"a100": 80, "h100": 80, "h200": 141}
    assert budget_of("h200").nbytes == 141 * 10**9
    assert all(f"{d.memory_gb:g} GB" in d.source for d in DEVICES.values() if d.memory_gb)


@pytest.mark.parametrize(("text", "words"), [
    ("m2-max", "Apple M2 Max .38. is sold with different amounts of memory; give the size, e.g. --fit 16GB"),
    ("0KB", "wanted 1 byte or more"), ("512 kilo", "neither a size .512KB = 512,000 B, 512KiB = 524,288 B, 1.5MiB. nor a device"),
    ("esp32s3", "did you mean esp32-s3?"), ("-5", "neither a size"), ("nan", "neither a size"), ("", "neither a size"),
])
def test_no_budget(text: str, words: str) -> None:
    with pytest.raises(RlxError, match=words):
        budget_of(text)


# --- the answer ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pinned() -> Compilation:
    """A model with an option on that costs a lot."""
    return rlx_viz.compile(transformer(), dims={"batch": 1, "seq": 32}, pin_output_ancestors=True)


def test_what_fits_is_not_tried_further(pinned: Compilation) -> None:
    got = fit(pinned, Budget(pinned.allocate_bytes, "just enough"))
    assert (got.fits, got.over, got.remedies, got.best) == (True, 0, (), None)
    assert sum(n for _, n in got.parts) == got.needed == pinned.allocate_bytes


def test_what_is_over_and_what_lowers_it(pinned: Compilation) -> None:
    plan = pinned.plan
    free = pinned.with_options(pin_output_ancestors=False)
    got = fit(pinned, Budget(free.allocate_bytes, "enough without the pins"))
    assert not got.fits and got.over == pinned.allocate_bytes - free.allocate_bytes > 0
    assert [(t.name, t.nbytes) for t in got.top] == [(t.label, t.nbytes) for t in plan.peak().tensors[: len(got.top)]]
    best = got.remedies[0]
    assert (best.options, best.needed, best.fits) == ((("pin_output_ancestors", False),), free.allocate_bytes, True)
    assert got.best == best and str(best) == "--set pin_output_ancestors=false"
    for r in got.remedies:
        assert pinned.with_options(**dict(r.options)).allocate_bytes == r.needed < got.needed
    assert got.least == plan.lower_bound + plan.weights_size + pinned.allocate_bytes - plan.weights_size - plan.arena_size


def test_options_together(pinned: Compilation) -> None:
    got = fit(pinned, Budget(1000, "next to nothing"))
    assert got.best is not None and not got.best.fits
    assert got.best.needed <= got.remedies[0].needed
    assert pinned.with_options(**dict(got.best.options)).allocate_bytes == got.best.needed


def test_the_arena_alone(pinned: Compilation) -> None:
    need = pinned.allocate_bytes - pinned.plan.weights_size
    got = fit(pinned, Budget(need, "the arena"), Region.ARENA)
    assert got.fits and dict(got.parts).keys() == {"arena", "scratch"}
    assert fit(pinned, Budget(need, "the arena")).without_weights == need
    over = fit(pinned, Budget(need - 1, "less"), Region.ARENA)
    assert over.over == 1 and over.remedies and all(r.needed < need for r in over.remedies)


def test_a_better_placement_is_a_remedy() -> None:
    from tests.models import model

    path, shapes = model("cls")
    c = rlx_viz.compile(path, shapes=shapes, placement="first_fit")
    if c.plan.arena_size == c.plan.lower_bound:
        pytest.skip("first fit is optimal here")
    got = fit(c, Budget(c.allocate_bytes - 1, "a byte less"))
    exact = next(r for r in got.remedies if dict(r.options) == {"placement": "exact"})
    assert [r.needed for r in got.remedies] == sorted(r.needed for r in got.remedies) and len(got.remedies) > 1
    assert exact.needed == c.allocate_bytes - c.plan.arena_size + c.plan.lower_bound and exact.fits


# --- the command line ------------------------------------------------------------------------------------------


@pytest.fixture
def lm(tmp_path: Path) -> Path:
    onnx.save(transformer(), tmp_path / "lm.onnx")
    return tmp_path / "lm.onnx"


PIN = ("--set", "pin_output_ancestors=true")


def test_yes(rlx: Any, lm: Path) -> None:
    code, out, err = rlx("plan", lm, "--dim", "seq=8", "--fit", "1MiB")
    assert (code, err) == (0, "")
    yes, compared = out.splitlines()[-2:]
    assert yes.startswith("fits: yes, lm.onnx needs ") and "of 1MiB (1,048,576 B), " in yes and yes.endswith(" free")
    assert compared.startswith("  compared: weights + arena + scratch: weights ")


def test_no(rlx: Any, lm: Path) -> None:
    code, out, _ = rlx("plan", lm, "--dim", "seq=32", *PIN, "--fit", "150KB")
    assert code == 3
    lines = out[out.index("fits: "):].splitlines()
    assert lines[0].startswith("fits: no, lm.onnx needs ") and lines[0].endswith(" over")
    assert lines[2].startswith("  live at the peak (node ")
    assert any("kept by output_ancestors" in line for line in lines[3:11])
    assert any("--set pin_output_ancestors=false  fits" in line for line in lines)
    code, out, _ = rlx("plan", lm, "--dim", "seq=32", "--fit", "50KB")
    assert code == 3
    assert "with these options no placement needs less than " in out


def test_weights_in_flash(rlx: Any, lm: Path) -> None:
    c = rlx_viz.compile(lm, dims={"seq": 8})
    size = f"{c.allocate_bytes - c.plan.weights_size}B"
    code, out, _ = rlx("plan", lm, "--dim", "seq=8", "--fit", size)
    assert code == 3 and "with the weights elsewhere (in flash, say) it fits: " in out
    code, out, _ = rlx("plan", lm, "--dim", "seq=8", "--fit", size, "--fit-region", "arena")
    assert code == 0 and "compared: arena + scratch, weights elsewhere: arena " in out
    code, out, _ = rlx("plan", lm, "--dim", "seq=8", "--fit", "arduino-nano-33-ble-sense")
    assert code == 0 and "of the 256 KiB (262,144 B) of the Arduino Nano 33 BLE Sense" in out


def test_json(rlx: Any, lm: Path) -> None:
    code, out, err = rlx("plan", lm, "--dim", "seq=32", *PIN, "--fit", "150KB", "--json", "-")
    assert (code, err) == (3, "")
    data = json.loads(out)
    found = data["fit"]
    assert (found["fits"], found["budget_bytes"], found["compared"]) == (False, 150_000, "total")
    assert found["needed_bytes"] == data["allocate_bytes"] == sum(found["parts_bytes"].values())
    assert found["over_bytes"] == data["allocate_bytes"] - 150_000 and found["free_bytes"] == 0
    assert found["best"]["set"]["pin_output_ancestors"] is False and found["options"][0]["fits"] is found["best"]["fits"]
    assert found["top"][0].keys() == {"name", "bytes", "kept_by"}
    names = {t["name"] for t in data["tensors"]}
    assert {t["name"] for t in found["top"]} <= names
    assert "fit" not in json.loads(rlx("plan", lm, "--dim", "seq=8", "--json", "-")[1])


def test_redacted_names_stay_out(rlx: Any, lm: Path) -> None:
    data = json.loads(rlx("plan", lm, "--dim", "seq=32", "--fit", "1KB", "--redact", "--json", "-")[1])
    assert {t["name"] for t in data["fit"]["top"]} <= {t["name"] for t in data["tensors"]}
    assert not {t["name"] for t in data["fit"]["top"]} & {"logits", "probs0", "act0"}


@pytest.mark.parametrize(("args", "words"), [
    (("--fit", "lots"), "error: --fit lots: neither a size"),
    (("--fit", "1MB", "--fit-region", "heap"), "error: --fit-region heap: wanted total or arena"),
])
def test_wrong_command_lines(rlx: Any, lm: Path, args: tuple[str, ...], words: str) -> None:
    code, out, err = rlx("plan", lm, "--dim", "seq=8", *args)
    assert (code, out) == (1, "") and err.startswith(words)


def test_problem_files_have_their_own_question(rlx: Any, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,lower,upper,size\na,0,2,8\n")
    code, _, err = rlx("plan", tmp_path / "p.csv", "--fit", "1KB")
    assert code == 1 and "--set capacity=BYTES asks whether it fits" in err
