# SPDX-License-Identifier: Apache-2.0
"""Profilers at the end of a process and in its children, each tried in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PREAMBLE = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from fakes import session as fake
log = fake.install()
from gpuscope.errors import *
from gpuscope.profiler import profile, schedule

def deliver(prof):
    print("delivered", prof.trace.store.number, flush=True)
"""


def run(script, *options):
    return subprocess.run(
        [sys.executable, *options, "-c", PREAMBLE + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def lines(script, *options):
    finished = run(script, *options)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return finished.stdout.splitlines()


def test_a_process_that_ends_without_stop_delivers():
    assert lines("profile(on_trace_ready=deliver).start()") == ["delivered 1"]


def test_a_process_that_ends_inside_a_step_delivers_it():
    script = """
        prof = profile(schedule=schedule(wait=0, warmup=0, active=2), on_trace_ready=deliver)
        prof.start()
        for _ in range(3):
            prof.step()
    """
    assert lines(script) == ["delivered 1", "delivered 2"]


def test_a_script_that_raises_delivers_and_keeps_its_exit_code():
    finished = run("profile(on_trace_ready=deliver).start(); raise SystemExit(7)")
    assert (finished.returncode, finished.stdout) == (7, "delivered 1\n")


def test_sys_exit_inside_the_block_delivers_once():
    finished = run("with profile(on_trace_ready=deliver): sys.exit(3)")
    assert (finished.returncode, finished.stdout) == (3, "delivered 1\n")


def test_a_stopped_profiler_is_not_delivered_again():
    assert lines("with profile(on_trace_ready=deliver): pass") == ["delivered 1"]


def test_a_process_in_which_nothing_was_to_be_recorded_yet_ends_well():
    pytest.importorskip("torch")
    script = """
        import torch, warnings
        from gpuscope.errors import GpuscopeWarning
        from gpuscope.profiler import profile, schedule
        warnings.simplefilter("ignore", GpuscopeWarning)
        with profile(schedule=schedule(wait=9, warmup=1, active=1)) as prof:
            prof.step()
    """
    finished = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, timeout=60)
    assert (finished.returncode, finished.stderr) == (0, b"")


def test_contexts_can_be_kept_before_anything_has_opened_the_driver():
    script = "from gpuscope import _core; _core.keep_primary_contexts()"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)
    assert (finished.returncode, finished.stderr) == (0, b"")


def test_one_profiler_that_fails_at_exit_does_not_cost_another_its_delivery():
    script = """
        idle = profile(schedule=schedule(wait=9, warmup=0, active=1))
        idle.start()
        profile(on_trace_ready=deliver).start()
    """
    finished = run(script, "-W", "error")  # the idle one says by a warning that it recorded nothing
    assert "begins to record at step 9" in finished.stderr
    assert finished.stdout == "delivered 1\n"


def test_a_callback_that_raises_at_exit_is_shown():
    finished = run("profile(on_trace_ready=lambda prof: 1 / 0).start()")
    assert "ZeroDivisionError" in finished.stderr
    assert finished.returncode == 0


def test_nothing_is_hooked_before_the_first_start():
    script = """
        import atexit
        before = atexit._ncallbacks()
        prof = profile()
        print(atexit._ncallbacks() - before)
        for _ in range(3):
            with prof:
                pass
        print(atexit._ncallbacks() - before)
    """
    assert lines(script) == ["0", "1"]


CHILD = """
import os

def in_child(body):
    child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException as error:
            print("child:", type(error).__name__, error, flush=True)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_forked_child_has_no_recording_and_says_so():
    script = CHILD + textwrap.dedent("""
        with profile() as prof:
            in_child(lambda: prof.key_averages())
        print("parent", prof.trace.store.number)
    """)
    assert lines(script) == [
        "child: NotAvailable no recording: this process was forked while the profiler ran, "
        "and its recording is the parent's",
        "parent 1",
    ]


def test_a_forked_child_can_step_and_stop_without_touching_the_session():
    script = CHILD + textwrap.dedent("""
        def go_on():
            before = list(log)
            prof.step()
            prof.stop()
            print(log == before, fake.Session.running is not None)

        prof = profile(schedule=schedule(wait=0, warmup=0, active=5), on_trace_ready=deliver)
        with prof:
            in_child(go_on)
    """)
    assert lines(script) == ["True True", "delivered 1"]


def test_a_forked_child_never_destroys_the_session():
    script = CHILD + textwrap.dedent("""
        fake.Session.__del__ = lambda session: print("destroyed", os.getpid() == parent, flush=True)
        parent = os.getpid()
        with profile() as prof:
            in_child(lambda: setattr(fake.Session, "running", None))
            print("ended")
            sys.stdout.flush()
    """)
    assert lines(script) == ["ended", "destroyed True"]


def test_a_child_that_leaves_the_block_delivers_nothing():
    script = """
        import os
        with profile(on_trace_ready=deliver) as prof:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
        if not child:
            print("child ends", flush=True)
            os._exit(0)
    """
    assert lines(script) == ["child ends", "delivered 1"]


def test_a_child_that_exits_normally_delivers_nothing():
    script = """
        import os
        profile(on_trace_ready=deliver).start()
        child = os.fork()
        if child:
            os.waitpid(child, 0)
    """
    assert lines(script) == ["delivered 1"]


def test_a_recording_made_before_the_fork_can_be_read_in_the_child():
    script = CHILD + textwrap.dedent("""
        with profile() as prof:
            pass
        in_child(lambda: print(prof.trace.store.number))
    """)
    assert lines(script) == ["1"]


@pytest.mark.parametrize("options", [(), ("-W", "error")])
def test_a_warning_never_replaces_the_exception_of_the_block(options):
    script = """
        try:
            with profile(on_trace_ready=lambda prof: 1 / 0):
                raise KeyError("mine")
        except KeyError as error:
            print(repr(error), error.__context__)
    """
    finished = run(script, *options)
    assert finished.stdout == "KeyError('mine') None\n"
    assert "division by zero" in finished.stderr
