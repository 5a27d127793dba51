"""``caches.md``: "`get_or_specialize_aot(aot, disk_base, …)` keeps specialisations on disk (`AotCache`)"."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planner_core import zoo
from planner_core.errors import RlxError
from planner_core.ir import DimBinding, DType, Graph, Shape, registry
from planner_core.ir.hir import HirModule
from runtime import CompileOptions, compile_graph
from runtime.caches import AotCache, AotCacheWarning, DynamicDimCompileCache
from runtime.caches import aot as aot_module
from runtime.caches.aot import MAGIC, AotKey
from runtime.caches.commands_file import commands_from_parts, commands_to_parts
from tests.runtime.caches.graphs import Counted, module

BINDING = DimBinding.batch_seq(2, 3)
X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def specialise(folder: Path, key: int = 1, binding: DimBinding = BINDING, options: CompileOptions | None = None,
               build: object = module):
    cache = DynamicDimCompileCache("cpu", 4)
    made = cache.get_or_specialize_aot(AotCache(folder), "model/a b", key, binding, build, options)
    made.set_param("up.w", np.ones((4, 5), np.float32))
    made.set_param("up.b", np.zeros(5, np.float32))
    return made, [e.kind for e in cache.timeline() if e.kind.startswith("disk")]


def only(folder: Path) -> Path:
    (path,) = AotCache(folder).files()
    return path


def test_the_second_process_of_a_model_loads(tmp_path: Path) -> None:
    first, how = specialise(tmp_path)
    assert how == ["disk_miss"]
    assert only(tmp_path).name.startswith("model_a_b-")
    build = Counted(module)
    again, how = specialise(tmp_path, build=build)
    assert how == ["disk_hit"]
    assert again.compilation is None
    assert again.commands == first.commands
    assert again.plan == first.plan
    assert again.graph == first.graph
    np.testing.assert_array_equal(again.run({"x": X}, sanitize=True)["y"], first.run({"x": X})["y"])
    assert again.share_params_from(first)


def test_a_hit_needs_no_template_until_someone_asks(tmp_path: Path) -> None:
    specialise(tmp_path)
    cache = DynamicDimCompileCache("cpu", 4)
    made = cache.get_or_specialize_aot(AotCache(tmp_path), "model/a b", 1, BINDING, module)
    assert not cache.has_template, "the module was built, not optimised"
    assert made.graph.find("x").shape.sizes == (2, 3, 4)
    assert cache.has_template


def with_weights(value: float) -> Callable[[], HirModule]:
    """A module with data, some of which fusion computes with ahead."""
    def build() -> HirModule:
        m = HirModule("given")
        x = m.input_batch_seq("x", 4)
        s = m.param("s", (1,), data=np.full(1, value, np.float32))
        w = m.param("w", (4, 5), data=np.full((4, 5), value, np.float32))
        return m.outputs(m.mm(m.mul(x, m.mul(s, m.constant(2.0))), w), names=["y"])

    return build


def test_weights_that_were_folded_in_come_back_too(tmp_path: Path) -> None:
    """"never … a wrong plan": other values are another template, since fusion may compute with them."""
    def run(value: float) -> tuple[np.ndarray, list[str], bool]:
        cache = DynamicDimCompileCache("cpu", 4)
        made = cache.get_or_specialize_aot(AotCache(tmp_path), "m", 1, BINDING, with_weights(value))
        return made.run({"x": X})["y"], [e.kind for e in cache.timeline() if e.kind.startswith("disk")], bool(made.executor.frozen)

    first, how, frozen = run(1.0)
    assert how == ["disk_miss"]
    assert frozen
    np.testing.assert_allclose(first, np.repeat(X.sum(-1, keepdims=True) * 2, 5, -1), rtol=1e-5, atol=1e-5)
    again, how, frozen = run(1.0)
    assert how == ["disk_hit"]
    assert frozen
    np.testing.assert_array_equal(again, first)
    other, how, _ = run(3.0)
    assert how == ["disk_miss"]
    np.testing.assert_allclose(other, first * 9, rtol=1e-5, atol=1e-5)


def test_loaded_graphs_can_be_active(tmp_path: Path) -> None:
    specialise(tmp_path, binding=DimBinding.batch_seq(1, 6))
    made, how = specialise(tmp_path, binding=DimBinding.batch_seq(1, 6))
    assert how == ["disk_hit"]
    made.run({"x": np.ones((1, 6, 4), np.float32)})
    made.set_active_extent((2, 6))
    out = made.run({"x": np.zeros((1, 6, 4), np.float32)})["y"][0, :, 0]
    assert (out[:2] == 0).all() and (out[2:] > 0).all()


def test_keys_tell_template_binding_options_and_version_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """"keyed by template hash + binding + options + version"."""
    specialise(tmp_path)
    for kw in ({"binding": DimBinding.batch_seq(2, 4)}, {"options": CompileOptions(precision=None).changed(
            module().bind(BINDING).lower(), alignment=128)}, {"build": lambda: module(width=4).bind(DimBinding())}):
        _, how = specialise(tmp_path, **kw)
        assert how == (["disk_hit"] if "build" in kw else ["disk_miss"])
    monkeypatch.setattr(aot_module, "code_digest", lambda: "another")
    assert specialise(tmp_path)[1] == ["disk_miss"]
    assert len(AotCache(tmp_path).files()) == 4
    assert AotCache(tmp_path).clear() == 4


@pytest.mark.parametrize("model", ["decoder-stack", "bert-base", "resnet50", "mamba", "moe", "tts-duration"])
def test_command_lists_come_back_equal(model: str) -> None:
    small = {"decoder-stack": {"layers": 2, "hidden": 32, "heads": 2}, "bert-base": {"layers": 1, "seq": 8}}.get(model, {})
    g = zoo.build(model, **small)
    c = compile_graph(g)
    assert commands_from_parts(*commands_to_parts(c.commands)) == c.commands
    metal = compile_graph(g, CompileOptions.for_target("metal", g))
    assert commands_from_parts(*commands_to_parts(metal.commands)) == metal.commands


# --- damage -------------------------------------------------------------------------------------------


def rewritten(path: Path, **header: object) -> None:
    """The file with header fields changed and a checksum that holds."""
    data = path.read_bytes()
    body = data[len(MAGIC) + 32 :]
    end = 8 + int.from_bytes(body[:8], "little")
    changed = json.dumps({**json.loads(body[8:end]), **header}, sort_keys=True).encode()
    body = len(changed).to_bytes(8, "little") + changed + body[end:]
    path.write_bytes(MAGIC + hashlib.blake2b(body, digest_size=32).digest() + body)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


DAMAGE = {
    "empty": (lambda p: p.write_bytes(b""), "truncated"),
    "ten bytes": (lambda p: p.write_bytes(p.read_bytes()[:10]), "truncated"),
    "half": (lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]), "damaged"),
    "one byte less": (lambda p: p.write_bytes(p.read_bytes()[:-1]), "damaged"),
    "one byte more": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "damaged"),
    "another format": (lambda p: p.write_bytes(b"PK\3\4" + p.read_bytes()), "not an entry of this format"),
    "a flipped bit of the checksum": (lambda p: flip(p, len(MAGIC) + 3), "damaged"),
    "a flipped bit of the header": (lambda p: flip(p, len(MAGIC) + 50), "damaged"),
    "a flipped bit of the commands": (lambda p: flip(p, p.stat().st_size // 2), "damaged"),
    "a flipped last bit": (lambda p: flip(p, p.stat().st_size - 1), "damaged"),
    "another version": (lambda p: rewritten(p, version="0.0.0"), "of another version"),
    "another platform": (lambda p: rewritten(p, platform="vax-big"), "of another platform"),
    "another binding": (lambda p: rewritten(p, binding="{}"), "of another binding"),
    "no sections": (lambda p: rewritten(p, sections=[]), "no command list"),
    "sections that lie": (lambda p: rewritten(p, sections=[["commands", 3], ["constants", 0], ["plan", 5]]), "no command list"),
    "a folder": (lambda p: (p.unlink(), p.mkdir()), "can't be read"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_and_foreign_files_are_misses_with_a_warning(name: str, tmp_path: Path) -> None:
    """"a damaged or foreign file is a miss with a warning, never a crash or a wrong plan"."""
    damage, text = DAMAGE[name]
    want, _ = specialise(tmp_path)
    path = only(tmp_path)
    damage(path)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made, how = specialise(tmp_path)
    assert how == ["disk_miss"]
    assert text in str(seen[0].message)
    assert seen[0].category is AotCacheWarning
    assert made.commands == want.commands
    np.testing.assert_array_equal(made.run({"x": X})["y"], want.run({"x": X})["y"])
    if name != "a folder":
        assert specialise(tmp_path)[1] == ["disk_hit"], "compiled again and replaced"


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    specialise(tmp_path)
    path = only(tmp_path)
    good = path.read_bytes()
    rng = np.random.default_rng(1)
    for at in rng.integers(0, len(good), 60).tolist():
        data = bytearray(good)
        data[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(data))
        cache = DynamicDimCompileCache("cpu", 1)
        with pytest.warns(AotCacheWarning):
            cache.get_or_specialize_aot(AotCache(tmp_path), "model/a b", 1, BINDING, module)
    assert path.read_bytes() == good, "and written anew, byte for byte"


def test_no_pickle_in_sight() -> None:
    """"No pickle": what a file can name are declared commands."""
    text, blob = commands_to_parts(compile_graph(module().bind(BINDING).lower()).commands)
    value = json.loads(text)
    value["thunks"][0][0] = "os.system"
    with pytest.raises(KeyError):
        commands_from_parts(json.dumps(value).encode(), blob)


def test_a_folder_that_takes_no_file_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: object, data: bytes) -> None:
        raise RlxError("no space left")

    monkeypatch.setattr(aot_module, "write_atomically", full)
    with pytest.warns(AotCacheWarning, match="can't be written: no space left"):
        made, _ = specialise(tmp_path)
    assert made.run({"x": X})["y"].shape == (2, 3, 5)
    (tmp_path / "file").write_text("")
    with pytest.raises(RlxError, match="can't make the cache folder"):
        AotCache(tmp_path / "file" / "x")


def test_nested_graphs_with_weights_are_not_stored(tmp_path: Path) -> None:
    """What the file form can't hold isn't stored, rather than loaded wrong."""
    body = Graph("body")
    b = body.input("b", (2, 3))
    body.set_outputs(body.add(b, body.param("p", (3,), data=np.full(3, 5, np.float32))))
    other = Graph("other")
    other.set_outputs(other.neg(other.input("b", (2, 3))))

    def build() -> Graph:
        g = Graph("nested")
        x = g.input("x", (2, 3))
        cond = g.input("cond", (1,), DType.BOOL)
        node = g.add(registry()["If"](shape=Shape.of((2, 3)), then_body=body, else_body=other), cond, x)
        return g.set_outputs(node, names=["y"])

    feed = {"x": np.ones((2, 3), np.float32), "cond": np.ones(1, np.bool_)}
    for _ in range(2):
        cache = DynamicDimCompileCache("cpu", 1)
        with pytest.warns(AotCacheWarning, match="isn't stored: its commands don't come back equal"):
            made = cache.get_or_specialize_aot(AotCache(tmp_path), "m", 1, DimBinding(), build)
        assert (made.run(feed)["y"] == 6).all()
    assert AotCache(tmp_path).files() == []


def test_leftovers_of_killed_writers_are_swept_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / ".m-1.rlxaot.abc", tmp_path / ".m-1.rlxaot.def"
    for p in (old, new):
        p.write_bytes(b"half")
    os.utime(old, (0, 0))
    AotCache(tmp_path)
    assert not old.exists()
    assert new.exists()


# --- several writers ----------------------------------------------------------------------------------

WRITER = """
import sys
from planner_core.ir import DimBinding
from runtime.caches import AotCache, DynamicDimCompileCache
from tests.runtime.caches.graphs import module
folder, rounds = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for i in range(rounds):
    cache = DynamicDimCompileCache("cpu", 8)
    for s in (1, 2, 3):
        cache.get_or_specialize_aot(AotCache(folder), "m", s, DimBinding.batch_seq(1, s), module)
    if i % 3 == 2:
        for p in AotCache(folder).files():
            p.unlink(missing_ok=True)
"""


def writer(folder: Path, rounds: int, code: str = WRITER) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-W", "error", "-c", code, str(folder), str(rounds)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    """"safe when two processes write at once": both see whole files only (a warning would be an error here)."""
    both = [writer(tmp_path, 12) for _ in range(2)]
    for p in both:
        assert p.stdout.readline() == "ready\n"
    for p in both:
        p.stdin.write("go\n")
        p.stdin.flush()
    for p in both:
        _, err = p.communicate(timeout=120)
        assert p.returncode == 0, err
    made, _ = specialise(tmp_path)
    assert made.run({"x": X})["y"].shape == (2, 3, 5)
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".rlxaot"], "no half-written file is left"


def test_two_threads_on_one_cache(tmp_path: Path) -> None:
    build = Counted(module)
    cache, aot = DynamicDimCompileCache("cpu", 8), AotCache(tmp_path)
    made: list[object] = []

    def work() -> None:
        for s in (1, 2, 3, 1, 2, 3):
            made.append((s, cache.get_or_specialize_aot(aot, "m", s, DimBinding.batch_seq(1, s), build)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(build.calls) == 1
    assert len({id(m) for _, m in made}) == 3
    assert cache.totals().misses == 3
    assert len(aot.files()) == 3


KILLED = """
import os, sys, time
from pathlib import Path
from runtime.caches import aot
import planner_core.ir.files as files
real = os.replace
def slow(a, b):
    print("writing", flush=True)
    time.sleep(60)
files.os.replace = slow
from planner_core.ir import DimBinding
from runtime.caches import AotCache, DynamicDimCompileCache
from tests.runtime.caches.graphs import module
c = DynamicDimCompileCache("cpu", 1)
f = c.ensure_template(module)
cache = AotCache(sys.argv[1])
real_load = AotCache.load
AotCache.load = lambda *a: None
c.get_or_specialize_aot(cache, "model/a b", 1, DimBinding.batch_seq(2, 3), module)
"""


def test_a_kill_during_a_write_leaves_the_old_entry(tmp_path: Path) -> None:
    """"written atomically"."""
    specialise(tmp_path)
    before = only(tmp_path).read_bytes()
    p = writer(tmp_path, 1, KILLED)
    assert p.stdout.readline() == "writing\n", p.stderr.read() if p.poll() is not None else ""
    p.send_signal(signal.SIGKILL)
    p.communicate(timeout=30)
    assert only(tmp_path).read_bytes() == before
    assert specialise(tmp_path)[1] == ["disk_hit"]


def test_kills_at_any_moment_leave_whole_files(tmp_path: Path) -> None:
    for delay in (0.0, 0.02, 0.05):
        p = writer(tmp_path, 10_000)
        p.stdout.readline()
        p.stdin.write("go\n")
        p.stdin.flush()
        time.sleep(delay)
        p.kill()
        p.communicate(timeout=30)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for s in (1, 2, 3):
                DynamicDimCompileCache("cpu", 1).get_or_specialize_aot(
                    AotCache(tmp_path), "m", s, DimBinding.batch_seq(1, s), module)


def test_keys_are_equal_in_another_process() -> None:
    key = AotKey("t", "b", "o")
    code = "from runtime.caches.aot import AotKey; print(AotKey('t','b','o').digest)"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env={**os.environ, "PYTHONHASHSEED": "3", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
    assert got.stdout.strip() == key.digest
    assert len({dataclasses.replace(key, **{f: "x"}).digest for f in ("template", "binding", "options")} | {key.digest}) == 4
