# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from fakes.loops import Loop
from gpuscope import _core
from gpuscope.threads import thread_pool

AT_EXIT = """
import atexit, sys
import gpuscope as gs
recording = gs.load(sys.argv[1])
atexit.register(lambda: print({}))
"""


def refuse(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")


@pytest.mark.parametrize("refused", [False, True])
def test_results_come_in_order_of_the_values_whether_or_not_threads_can_be_started(monkeypatch, refused):
    if refused:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    with thread_pool(2) as pool:
        assert list(pool.map(lambda value: value * 2, range(100))) == list(range(0, 200, 2))


@pytest.mark.parametrize("refused", [False, True])
def test_an_error_comes_with_the_result_and_not_before(monkeypatch, refused):
    if refused:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    with thread_pool(1) as pool:
        failing = pool.submit(lambda: 1 // 0)
        working = pool.submit(lambda: 1)
    assert working.result() == 1
    with pytest.raises(ZeroDivisionError):
        failing.result()


def test_calls_begun_while_the_interpreter_ends_have_results(monkeypatch):
    with thread_pool(2) as pool:
        before = pool.submit(lambda: 1)
        monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
        after = pool.submit(lambda: 2)
        monkeypatch.undo()
    assert (before.result(), after.result()) == (1, 2)


def test_a_second_thread_may_be_refused(monkeypatch):
    met = threading.Event()
    with thread_pool(2) as pool:
        waiting = pool.submit(met.wait, 60)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert pool.submit(lambda: 2).result(timeout=60) == 2
        met.set()
        assert waiting.result()


def test_calls_run_concurrently_with_the_calling_thread():
    met = threading.Barrier(2, timeout=60)
    with thread_pool(1) as pool:
        other = pool.submit(met.wait)
        met.wait()
        assert other.result() in (0, 1)


def test_no_thread_is_left():
    with thread_pool(3) as pool:
        results = [pool.submit(threading.current_thread) for _ in range(9)]
    assert not any(result.result().is_alive() for result in results)


def test_an_error_does_not_wait_for_what_was_begun():
    met, goes_on = threading.Barrier(2, timeout=60), threading.Event()
    begun = []

    def wait():
        met.wait()
        return goes_on.wait(60)

    def fail():
        with thread_pool(1) as pool:
            begun.append(pool.submit(wait))
            met.wait()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    goes_on.set()
    assert begun[0].result()


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("recording.diagnose().verdict", "fine"),
        ("gs.diff(recording, recording).step.verdict", "same"),
        ("recording.report(sys.argv[2]), open(sys.argv[2]).read(15)", "None <!DOCTYPE html>"),
        ("recording.sql('select count(*) as n from kernels').rows", "[(14,)]"),
    ],
    ids=["diagnose", "diff", "report", "sql"],
)
def test_a_recording_can_be_used_while_the_interpreter_ends(tmp_path, what, said):
    if "sql" in what:
        pytest.importorskip("duckdb")
    loop = Loop()
    for _ in loop.steps(14):
        with loop.at("train.py", 20):
            loop.launch(gpu=100)
    with open(tmp_path / "run.gscope", "wb") as file:
        _core.write_gscope(loop.trace().store, file.write)
    arguments = [str(tmp_path / "run.gscope"), str(tmp_path / "page.html")]
    program = [sys.executable, "-c", AT_EXIT.format(what), *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == (f"{said}\n", "")
