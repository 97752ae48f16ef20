# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from fakes.loops import Loop
from gpuscope import _core
from gpuscope.beside import Workers, for_each

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
    assert for_each(lambda value: value * 2, range(100)) == list(range(0, 200, 2))


@pytest.mark.parametrize("refused", [False, True])
def test_an_error_comes_with_the_result_and_not_before(monkeypatch, refused):
    if refused:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    with Workers(1) as beside:
        failing = beside.begin(lambda: 1 // 0)
        working = beside.begin(lambda: 1)
    assert working() == 1
    with pytest.raises(ZeroDivisionError):
        failing()


def test_calls_run_beside_the_calling_thread():
    met = threading.Barrier(2, timeout=60)
    with Workers(1) as beside:
        other = beside.begin(met.wait)
        met.wait()
        assert other() in (0, 1)


def test_no_thread_is_left():
    with Workers(3) as beside:
        results = [beside.begin(threading.current_thread) for _ in range(9)]
    assert not any(result().is_alive() for result in results)


def test_an_error_does_not_wait_for_what_was_begun():
    goes_on = threading.Event()
    begun = []

    def fail():
        with Workers(1) as beside:
            begun.append(beside.begin(goes_on.wait, 60))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    goes_on.set()
    assert begun[0]()


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
