# SPDX-License-Identifier: Apache-2.0
"""Children forked while other threads of the parent are inside gpuscope: they use it, and end."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from gpuscope.threads import cached_property, shared_lock

FORKS = """
import os, signal, threading, time, warnings
import gpuscope as gs
from gpuscope import _core
import gpuscope.analysis.averages, gpuscope.analysis.python_samples, gpuscope.profiler.facade  # not in each child
warnings.simplefilter("ignore")

def record():
    with gs.profile(activities=["CPU"], python_samples=1e-3) as prof:
        with gs.record_function("work"):
            sum(range(1000))
    return [row.key for row in prof.key_averages()]

def busy(call):
    def loop():
        while True:
            call()
    threading.Thread(target=loop, daemon=True).start()

def try_children(call, count=8):
    '''How many of them did not end.'''
    failed = 0
    for _ in range(count):
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # a child that hangs is killed
            call()
            os._exit(0 if "work" in record() else 1)
        failed += os.waitpid(child, 0)[1] != 0
    return failed
"""


def ran(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", FORKS + textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


CALLS = {
    "monitor": "with gs.GPUMonitor(None, interval=0.01) as monitor: monitor.latest()",
    "snapshot": "gs.gpu_snapshot(); gs.memory_snapshot()",
    "ledger": "gs.memory_ledger()",
    "history": "gs.record_memory_history(); gs.record_memory_history(enabled=None)",
    "timed": "gs.timed('block')(int)(); gs.timings()",
    "stages": "gs.track_memory('stage', quiet=True)(int)(); gs.memory_stages()",
    "region": "[gs.mark(f'{time.perf_counter()}') for _ in range(99)]",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_children_end_that_use_what_threads_of_the_parent_use(call):
    script = f"""
        def call():
            {call}
        call()
        busy(call)
        print(try_children(call), flush=True)
        os._exit(0)
    """
    assert ran(script) == "0\n"


def test_children_record_while_threads_of_the_parent_record_and_read():
    script = """
        record()  # all is imported: Python's own locks of imports are another thing
        busy(lambda: record() if not _core.Session.active() else None)
        print(try_children(lambda: None, 6), flush=True)
        os._exit(0)
    """
    assert ran(script).splitlines()[-1] == "0"


def test_a_profiler_that_another_thread_stops_can_be_used_in_a_child():
    script = """
        prof = gs.profile(activities=["CPU"])
        stop = _core.Session.stop
        stops, goes_on = threading.Event(), threading.Event()
        def slow(session, *args, **named):
            if os.getpid() == parent:
                stops.set()
                goes_on.wait()
            return stop(session, *args, **named)
        parent = os.getpid()
        prof.start()
        _core.Session.stop = slow
        thread = threading.Thread(target=prof.stop)
        thread.start()
        stops.wait()
        def again():
            prof.stop()
            with prof, gs.record_function("of the child"):
                pass
            assert [row.key for row in prof.key_averages()] == ["of the child"]
        print(try_children(again, 1))
        goes_on.set()
        thread.join()
        print(prof.audit().complete)
    """
    assert ran(script) == "0\nTrue\n"


def test_a_child_samples_gpus_whose_monitor_was_the_parents():
    script = """
        monitor = gs.GPUMonitor(None, interval=0.01)
        monitor.start()
        busy(monitor.latest)
        def again():
            monitor.start()
            while not monitor.take():
                time.sleep(0.01)
            monitor.stop()
        print(try_children(again, 2), flush=True)
        os._exit(0)
    """
    assert ran(script) == "0\n"


def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    script = """
        from gpuscope.threads import shared_lock
        lock, held = shared_lock(), threading.Event()
        def hold():
            with lock:
                held.set()
                time.sleep(60)
        threading.Thread(target=hold, daemon=True).start()
        held.wait()
        def take():
            with lock:
                pass
        print(try_children(take, 1), flush=True)
        os._exit(0)
    """
    assert ran(script) == "0\n"


def test_a_lock_that_the_forking_thread_holds_is_still_its_own_in_the_child():
    script = """
        from gpuscope.threads import shared_lock
        lock = shared_lock()
        with lock:
            failed = try_children(lambda: lock.release(), 1)
        print(failed)
    """
    assert ran(script) == "0\n"


def test_a_shared_lock_keeps_other_threads_out():
    lock, taken = shared_lock(), []
    with lock:
        thread = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
    assert taken == [False]


def test_a_cached_property_is_computed_once():
    class Rows:
        computed = 0

        @cached_property
        def count(self) -> int:
            """Of rows."""
            self.computed += 1
            return 7

    rows = Rows()
    assert (rows.count, rows.count, rows.computed) == (7, 7, 1)
    assert Rows.count.__doc__ == "Of rows."


def test_a_module_that_another_thread_is_importing_at_the_fork_can_be_imported_in_the_child():
    script = """
        import sys
        begun = threading.Event()

        class SlowFinder:
            def find_spec(self, name, path=None, target=None):
                if name == "gpuscope.diffing":
                    begun.set()
                    time.sleep(0.2)

        sys.meta_path.insert(0, SlowFinder())
        threading.Thread(target=lambda: gs.diff).start()
        begun.wait()
        print(try_children(lambda: gs.diff, 1))
    """
    assert ran(script) == "0\n"
