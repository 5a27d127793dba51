"""``caches.md``, "Tracing"."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from planner_core.errors import RlxError
from planner_core.fusion import no_fusion
from planner_core.ir import Graph
from runtime import CompileOptions, compile_graph
from runtime.command_list.thunk import registry
from runtime.session import Session
from runtime.trace import current_tracer, trace
from tests.runtime.caches.graphs import mlp, params
from tests.runtime.trace.schema import check_events, read_events

X = np.ones((3, 4), np.float32)


def loaded():
    c = Session().compile(mlp(3), CompileOptions(fusion=no_fusion()))
    c.set_params(params())
    return c


def commands(events: list[dict]) -> list[dict]:
    return [e for e in events if e["ph"] == "X"]


def test_one_event_a_command(tmp_path: Path) -> None:
    """"writes one event per command (name, thread, start, duration, bytes read and written, arena offset range) as a
    JSON-array trace … labels as in `thunks.json`"; "closed properly with a final bracket"."""
    c = loaded()
    path = tmp_path / "run.json"
    with trace(path):
        c.run({"x": X})
        c.run({"x": X})
    c.run({"x": X})
    text = path.read_text()
    assert text.rstrip().endswith("]")
    events = read_events(text)
    check_events(events)
    made = commands(events)
    thunks = c.commands.thunks
    assert [e["name"] for e in made] == 2 * [t.trace_label for t in thunks]
    labels = {t.label for t in registry().values()}
    for e, t in zip(made, (*thunks, *thunks), strict=True):
        a = e["args"]
        assert e["name"] in labels
        assert e["tid"] == 1
        assert a["bytes_read"] == t.bytes_read
        assert a["bytes_written"] == sum(o.nbytes for o in t.writes())
        spans = [o for o in (*t.reads(), *t.writes()) if o.space == "arena"]
        assert (a["arena_begin"], a["arena_end"]) == (min(o.offset for o in spans), max(o.offset + o.nbytes for o in spans))
    assert current_tracer() is None


def test_the_file_is_valid_while_it_is_written(tmp_path: Path) -> None:
    """"the file is valid even if the process dies mid-run": what a reader sees after any event."""
    path = tmp_path / "run.json"
    c = loaded()
    with trace(path):
        check_events(read_events(path.read_text(), closed=False))
        for n in range(3):
            c.run({"x": X})
            events = read_events(path.read_text(), closed=False)
            check_events(events)
            assert len(commands(events)) == (n + 1) * len(c.commands.thunks)


def test_threads_have_their_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    graphs = [loaded() for _ in range(4)]

    def work(c) -> None:
        for _ in range(5):
            c.run({"x": X})

    with trace(path):
        threads = [threading.Thread(target=work, args=(c,), name=f"worker {i}") for i, c in enumerate(graphs)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    events = read_events(path.read_text())
    check_events(events)
    names = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert sorted(names) == [f"worker {i}" for i in range(4)]
    assert {e["tid"] for e in commands(events)} == set(names.values())


def test_active_runs_are_traced_as_they_ran(tmp_path: Path) -> None:
    g = Graph("g")
    g.set_outputs(g.relu(g.input("x", (8,))), names=["y"])
    c = Session().compile(g, bucket_dim={"x": 0})
    c.set_active_extent((2, 8))
    with trace(tmp_path / "run.json"):
        c.run({"x": np.ones(8, np.float32)})
    (event,) = commands(read_events((tmp_path / "run.json").read_text()))
    assert event["args"]["bytes_written"] == 8


def test_inner_traces_take_over_and_failures_close(tmp_path: Path) -> None:
    c = loaded()

    def inner(path: Path) -> None:
        with trace(path):
            c.run({"x": X})
            raise ZeroDivisionError

    with trace(tmp_path / "outer.json"):
        with pytest.raises(ZeroDivisionError):
            inner(tmp_path / "inner.json")
        c.run({"x": X})
    for name in ("outer.json", "inner.json"):
        assert len(commands(read_events((tmp_path / name).read_text()))) == len(c.commands.thunks)
    with pytest.raises(RlxError, match="can't write the trace"), trace(tmp_path / "no" / "run.json"):
        pass


def test_of_overlapping_traces_the_last_begun_is_written_to(tmp_path: Path) -> None:
    """Blocks of two threads may end in any order; none leaves a closed trace behind."""
    c = loaded()
    first, second = trace(tmp_path / "first.json"), trace(tmp_path / "second.json")
    first.__enter__()
    second.__enter__()
    c.run({"x": X})
    first.__exit__(None, None, None)
    c.run({"x": X})
    second.__exit__(None, None, None)
    assert current_tracer() is None
    counts = [len(commands(read_events((tmp_path / f"{n}.json").read_text()))) for n in ("first", "second")]
    assert counts == [0, 2 * len(c.commands.thunks)]


def test_a_file_has_one_writer(tmp_path: Path) -> None:
    with trace(tmp_path / "run.json"):
        with pytest.raises(RlxError, match=r"run\.json: another trace is writing it"), trace(tmp_path / "run.json"):
            pass
        loaded().run({"x": X})
    check_events(read_events((tmp_path / "run.json").read_text()))
    with trace(tmp_path / "run.json"):
        pass
    assert not commands(read_events((tmp_path / "run.json").read_text())), "a new trace starts the file over"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_writes_beside_its_parent(tmp_path: Path) -> None:
    p = started(tmp_path / "run.json", 1, FORK)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    child = tmp_path / f"run.{out.strip()}.json"
    parents, childs = read_events((tmp_path / "run.json").read_text()), read_events(child.read_text(), closed=False)
    for events in (parents, childs):
        check_events(events)
    assert len(commands(parents)) == 2 * len(commands(childs)) > 0
    assert sorted(tmp_path.iterdir()) == sorted([child, tmp_path / "run.json"]), "the child that ran nothing left no file"


def test_a_child_process_with_the_same_variable_writes_beside_its_parent(tmp_path: Path) -> None:
    parent = started(tmp_path / "run.json", -1)
    assert parent.stdout.readline() == "ran\n"
    second = started(tmp_path / "run.json", 2)
    assert second.wait(60) == 0
    parent.kill()
    parent.communicate(timeout=30)
    check_events(read_events((tmp_path / "run.json").read_text(), closed=False))
    events = read_events((tmp_path / f"run.{second.pid}.json").read_text())
    check_events(events)
    assert commands(events)
    second.communicate(timeout=30)


def test_odd_names_are_escaped(tmp_path: Path) -> None:
    g = Graph('a "graph"\n')
    g.set_outputs(g.relu(g.input("x\t\u2028\ud7ff", (2,)), name='é\\"'), names=["y"])
    c = compile_graph(g)
    with trace(tmp_path / "run.json"):
        c.run({"x\t\u2028\ud7ff": np.ones(2, np.float32)})
    check_events(read_events((tmp_path / "run.json").read_text()))


RUN = """
import sys, numpy as np
from runtime.session import Session
from tests.runtime.caches.graphs import mlp, params
c = Session().compile(mlp(3))
c.set_params(params())
n = int(sys.argv[1])
while n:
    c.run({"x": np.ones((3, 4), np.float32)})
    n -= 1
    if n < 0:
        print("ran", flush=True)
"""


FORK = """
import os, numpy as np
from runtime.session import Session
from tests.runtime.caches.graphs import mlp, params
c = Session().compile(mlp(3))
c.set_params(params())
run = lambda: c.run({"x": np.ones((3, 4), np.float32)})
run()
for work in (run, lambda: None):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    if work is run:
        print(pid, flush=True)
    os.waitpid(pid, 0)
run()
"""


def started(path: Path, runs: int, code: str = RUN) -> subprocess.Popen[str]:
    env = {**os.environ, "RLX_TRACE_PERFETTO": str(path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "-c", code, str(runs)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_the_variable_traces_a_whole_process(tmp_path: Path) -> None:
    """"`RLX_TRACE_PERFETTO=path`"."""
    p = started(tmp_path / "run.json", 3)
    _, err = p.communicate(timeout=60)
    assert p.returncode == 0, err
    events = read_events((tmp_path / "run.json").read_text())
    check_events(events)
    assert len(commands(events)) % 3 == 0 < len(commands(events))


def test_a_killed_process_leaves_a_valid_file(tmp_path: Path) -> None:
    """"the file is valid even if the process dies mid-run"."""
    p = started(tmp_path / "run.json", -1)
    for _ in range(5):
        assert p.stdout.readline() == "ran\n"
    p.send_signal(signal.SIGKILL)
    p.communicate(timeout=30)
    text = (tmp_path / "run.json").read_text()
    assert not text.rstrip().endswith("]"), "it was killed while it wrote"
    events = read_events(text, closed=False)
    check_events(events)
    assert len(commands(events)) >= 5


@pytest.mark.parametrize("text", ['[{"ph":"X"}]', '[{"name":"a","ph":"Z"}]', "[]", '[{"name":"a","ph":"C","ts":1,"pid":1,"args":{"v":"x"}}]',
                                  '[{"name":"a","ph":"X","ts":-1,"dur":1,"pid":1,"tid":1}]',
                                  '[{"name":"a","ph":"X","ts":0,"dur":5,"pid":1,"tid":1},{"name":"b","ph":"X","ts":3,"dur":5,"pid":1,"tid":1}]'])
def test_the_check_refuses_what_is_no_trace(text: str) -> None:
    with pytest.raises(AssertionError):
        check_events(read_events(text))
    with pytest.raises(json.JSONDecodeError):
        read_events(text[:-3])


@pytest.mark.skipif(not os.environ.get("RLX_TRACE_PROCESSOR"), reason="RLX_TRACE_PROCESSOR names no trace processor binary")
def test_perfettos_own_processor_reads_it(tmp_path: Path) -> None:
    """"and by Perfetto's trace processor where a binary is given" (nothing is fetched)."""
    binary = shutil.which(os.environ["RLX_TRACE_PROCESSOR"])
    assert binary
    c = loaded()
    with trace(tmp_path / "run.json"):
        c.run({"x": X})
    query = tmp_path / "q.sql"
    query.write_text("select count(*) as n from slice;")
    got = subprocess.run([binary, "-q", str(query), str(tmp_path / "run.json")], capture_output=True, text=True, check=True)
    assert str(len(c.commands.thunks)) in got.stdout
