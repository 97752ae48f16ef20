# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from fakes.loops import Loop
from gpuscope import _core
from gpuscope.diagnosis.beside import Workers, for_each

AT_EXIT = """
import atexit, sys
import gpuscope
recording = gpuscope.load(sys.argv[1])
atexit.register(lambda: print(recording.diagnose().verdict))
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
    for thread in {result() for result in results}:
        thread.join(60)
        assert not thread.is_alive()


def test_a_recording_can_be_diagnosed_while_the_interpreter_ends(tmp_path):
    loop = Loop()
    for _ in loop.steps(14):
        with loop.at("train.py", 20):
            loop.launch(gpu=100)
    with open(tmp_path / "run.gscope", "wb") as file:
        _core.write_gscope(loop.trace().store, file.write)
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path / "run.gscope")], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
