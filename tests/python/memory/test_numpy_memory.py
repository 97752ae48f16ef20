# SPDX-License-Identifier: Apache-2.0
"""The memory of NumPy's arrays in the memory history."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from fakes import numpy_handler
from gpuscope import _core
from gpuscope.devices import HOST
from gpuscope.frameworks.numpy import NumpyReports
from gpuscope.memory.history import history as history_module
from gpuscope.memory.history.events import SOURCES
from gpuscope.memory.history.history import record_memory_history
from gpuscope.memory.history.peak import peak_memory
from gpuscope.memory.usage.ledger import memory_ledger
from gpuscope.regions import record_function

NUMPY = SOURCES.index("numpy")
TESTS = Path(__file__).resolve().parents[2]
SIZE = 123_456  # bytes, as nothing else here has


@pytest.fixture(autouse=True)
def _ended():
    yield
    record_memory_history(None)


def own_functions():
    return numpy_handler.functions_of(numpy_handler.current())


def lives_of(history, size=SIZE):
    """The arrays of one size among the events."""
    lives = history.events().lifetimes()
    return lives.select((lives.source == NUMPY) & (lives.bytes == size))


def make(size=SIZE):
    return np.empty(size, np.uint8)


def python(source, *, code=0):
    """Runs a program; what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(source)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


@pytest.mark.parametrize("function", [np.empty, np.zeros, np.ones])
def test_an_array_is_memory_of_the_host_with_its_size(function):
    with record_memory_history() as history:
        kept = function(SIZE, np.uint8)
    lives = lives_of(history)
    assert lives.address.tolist() == [kept.ctypes.data]
    assert lives.device.tolist() == [HOST]


def test_an_array_has_the_line_and_the_region_that_made_it():
    with record_memory_history() as history, record_function("load"):
        kept = make()
    events = history.events()
    (born,) = lives_of(history).born.tolist()
    assert events.frames(int(events.stack[born]))[0].function == "make"
    assert events.regions[events.region[born]] == "load"
    del kept


def test_an_array_that_is_dropped_ends():
    with record_memory_history() as history:
        make()
        kept = make()
    assert lives_of(history).alive.tolist() == [False, True]
    del kept


@pytest.mark.parametrize("starts", ["before", "after"])
def test_arrays_of_other_threads_are_seen(starts):
    goes, kept = threading.Event(), []
    thread = threading.Thread(target=lambda: (goes.wait(60), kept.append(make())))
    if starts == "before":
        thread.start()
    with record_memory_history() as history:
        if starts == "after":
            thread.start()
        goes.set()
        thread.join()
    events = history.events()
    (born,) = lives_of(history).born.tolist()
    assert events.thread[born] != threading.get_native_id()
    assert "make" in {frame.function for frame in events.frames(int(events.stack[born]))}


def test_an_array_that_another_thread_drops_ends():
    with record_memory_history() as history:
        kept = [make()]
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
    assert lives_of(history).alive.tolist() == [False]


def test_an_array_that_grows_is_one_that_ends_and_another():
    with record_memory_history() as history:
        array = make()
        array.resize(2 * SIZE, refcheck=False)
    assert lives_of(history).alive.tolist() == [False]
    assert lives_of(history, 2 * SIZE).alive.tolist() == [True]


def test_arrays_that_an_exception_leaves_behind_end():
    def fail():
        array = make()
        raise ValueError(len(array))

    with record_memory_history() as history, pytest.raises(ValueError, match=str(SIZE)):
        fail()
    assert lives_of(history).alive.tolist() == [False]


def test_an_array_that_there_is_no_room_for_is_not_there():
    with record_memory_history() as history, pytest.raises(MemoryError):
        np.empty(1 << 60, np.uint8)
    assert len(lives_of(history, 1 << 60)) == 0


def test_numbers_that_meet_an_array_are_left_out():
    array = make()
    with record_memory_history() as history:
        for _ in range(100):
            array += 1
    assert len(lives_of(history, 8)) == 0


def test_an_array_of_before_may_end_in_a_recording():
    array = make()
    with record_memory_history() as history:
        del array
    assert len(lives_of(history)) == 0


def test_arrays_outlive_the_recording():
    with record_memory_history():
        array = np.ones(SIZE, np.uint8)
    assert array.sum() == SIZE
    array.resize(2 * SIZE, refcheck=False)
    del array


def test_what_numpy_calls_is_its_own_again_at_the_end():
    before = own_functions()
    with record_memory_history():
        assert own_functions() != before
    assert own_functions() == before


def test_a_recording_without_numpy_leaves_its_functions_alone():
    before = own_functions()
    with record_memory_history(numpy=False) as history:
        assert own_functions() == before
        kept = make()
    assert len(lives_of(history)) == 0
    del kept


def test_threads_that_are_added_leave_numpy_to_the_history():
    before = own_functions()
    with record_memory_history() as history:
        thread = threading.Thread(target=lambda: record_memory_history().stop())
        thread.start()
        thread.join()
        kept = make()
    assert len(lives_of(history)) == 1
    assert own_functions() == before
    del kept


def test_a_history_that_follows_another_sees_what_is_new():
    record_memory_history()
    kept = [make()]
    history = record_memory_history()
    kept += [make(), make()]
    assert len(lives_of(history)) == 2


def test_two_users_have_numpy_report_until_the_last_ends():
    before = own_functions()
    first, second = NumpyReports(), NumpyReports()
    first.end()
    first.end()
    assert own_functions() != before
    second.end()
    assert own_functions() == before


def test_looking_at_the_events_adds_none():
    with record_memory_history() as history:
        recorded = history_module.position()
        events = history.events()
        peak_memory()
        memory_ledger()
        assert not (history.events().select(slice(recorded, None)).bytes > 0).any()
    del events


def test_a_handler_of_the_program_is_called_and_recorded_once():
    with numpy_handler.Handler().set() as handler, record_memory_history() as history:
        kept = make()
    assert handler.calls[:1] == ["malloc"]
    assert len(lives_of(history)) == 1
    del kept


def test_a_handler_of_the_program_keeps_its_name():
    name = np._core.multiarray.get_handler_name if hasattr(np, "_core") else np.core.multiarray.get_handler_name
    with numpy_handler.Handler(b"mine").set(), record_memory_history():
        assert name(make()) == "mine"


def test_a_handler_of_the_program_is_the_current_one_again_at_the_end():
    with numpy_handler.Handler().set() as handler:
        with record_memory_history():
            assert numpy_handler.current() is not handler.capsule
        assert numpy_handler.current() is handler.capsule


def test_arrays_of_the_programs_handler_outlive_the_recording():
    with numpy_handler.Handler().set() as handler:
        with record_memory_history():
            array = np.ones(SIZE, np.uint8)
        assert array.sum() == SIZE
        del array
    assert handler.calls[-1] == "free"


def test_a_handler_that_the_program_sets_meanwhile_stays():
    with numpy_handler.Handler().set() as handler:
        history = record_memory_history()
        with numpy_handler.Handler(b"later").set() as later:
            history.stop()
            assert numpy_handler.current() is later.capsule
        # The one that was wrapped comes back as NumPy has kept it, and passes on.
        kept = make()
        assert handler.calls[-1] == "malloc"
        del kept


def test_a_context_that_was_copied_meanwhile_still_makes_arrays():
    import contextvars

    with numpy_handler.Handler().set() as handler:
        with record_memory_history() as history:
            copied = contextvars.copy_context()
        array = copied.run(make)
        assert handler.calls[-1] == "malloc"
        assert len(lives_of(history)) == 0
        del array


@pytest.mark.parametrize("versions", [(0x02000001, 0x14), (0x01000009, 0x0E), (0x01000008, 0x14)])
def test_functions_of_another_version_are_not_called(versions):
    assert "not known" in _core.watch_numpy(numpy_handler.Table(*versions).capsule)


def test_a_history_says_why_numpy_is_not_recorded(monkeypatch):
    monkeypatch.setattr(_core, "watch_numpy", lambda table: "it is another one")
    with record_memory_history() as history:
        pass
    assert "NumPy's allocations are not recorded: it is another one" in history.notes


def test_the_ledger_has_arrays_by_region_with_their_line():
    with record_memory_history():
        with record_function("load"):
            kept = make()
        rows = [row for row in memory_ledger().host_rows if row.library == "numpy" and row.region == "load"]
    assert [(row.bytes, row.what) for row in rows] == [(SIZE, "allocated")]
    assert "test_numpy_memory.py" in rows[0].where
    assert rows[0].where.endswith(" make")
    del kept


def test_a_peak_of_arrays_is_at_their_line():
    line = make.__code__.co_firstlineno + 1
    with record_memory_history() as history:
        make(50_000_000)
    (place,) = peak_memory(history.events(), HOST).at(f"test_numpy_memory.py:{line}")
    assert place.bytes >= 50_000_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_arrays_live_on_in_a_forked_child():
    said = python("""\
        import os, sys
        import numpy as np
        from gpuscope.memory.history.history import record_memory_history
        history = record_memory_history()
        arrays = [np.ones(100_000) for _ in range(10)]
        child = os.fork()
        if not child:
            print(int(sum(array.sum() for array in arrays)), flush=True)
            arrays.append(np.ones(100_000))
            arrays[0].resize(200_000, refcheck=False)
            del arrays
            history.stop()
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """)
    assert said.split() == ["1000000", "0"]


@pytest.mark.parametrize("ends", ["", "history.stop()"])
def test_arrays_that_live_at_the_interpreters_end_do_no_harm(ends):
    python(f"""\
        import threading
        import numpy as np
        from gpuscope.memory.history.history import record_memory_history
        history = record_memory_history()
        class Cycle:
            pass
        cycle = Cycle()
        cycle.own, cycle.array = cycle, np.ones(100_000)
        local = threading.local()
        local.array = np.ones(100_000)
        np.kept = np.ones(100_000)
        arrays = [np.ones(100_000) for _ in range(10)]
        {ends}
        """)


def test_numpy_that_the_program_imports_later_is_recorded():
    said = python("""\
        import sys
        import gpuscope
        assert "numpy" not in sys.modules
        history = gpuscope.record_memory_history()
        import numpy as np
        kept = np.empty(123_456, np.uint8)
        print(history.events().bytes.tolist().count(123_456))
        """)
    assert said == "1\n"


def test_numpy_that_is_reloaded_is_recorded_and_has_its_functions_back():
    said = python("""\
        import importlib, warnings
        import numpy as np
        from fakes import numpy_handler
        from gpuscope.memory.history.history import record_memory_history
        before = numpy_handler.functions_of(numpy_handler.current())
        history = record_memory_history()
        warnings.simplefilter("ignore")
        importlib.reload(np)
        kept = np.empty(123_456, np.uint8)
        print(history.events().bytes.tolist().count(123_456))
        history.stop()
        print(numpy_handler.functions_of(numpy_handler.current()) == before)
        """)
    assert said == "1\nTrue\n"


def test_stages_are_measured_where_there_is_no_numpy():
    said = python("""\
        import sys
        sys.modules["numpy"] = None
        import gpuscope
        from gpuscope.frameworks import numpy
        with gpuscope.track_memory("here") as stage:
            pass
        print(stage.stage.where == "", numpy.NumpyReports().why, numpy.array_type())
        """)
    assert said == "True it has no table of functions None\n"
