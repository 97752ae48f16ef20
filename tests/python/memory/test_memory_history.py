# SPDX-License-Identifier: Apache-2.0
"""The memory history and its ring; torch on the host, as where there is no GPU."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading

import pytest

from gpuscope import _core
from gpuscope.devices import HOST
from gpuscope.errors import InvalidArgument
from gpuscope.memory.history import history as history_module
from gpuscope.memory.history.events import SOURCES
from gpuscope.memory.history.history import history_events, record_memory_history, recording

OTHER = SOURCES.index("other")


@pytest.fixture(autouse=True)
def _ended():
    yield
    record_memory_history(None)


def tell(address, size, device=3, **more):
    _core.record_memory(OTHER, device, address, size, **more)


def told(events):
    return events.address[events.source == OTHER].tolist()


def test_what_any_allocator_tells_is_kept_in_order():
    with record_memory_history(numpy=False) as history:
        tell(0x100, 512, allocated=512, reserved=1024)
        tell(0x100, -512)
    events = history.events()
    assert told(events) == [0x100, 0x100]
    assert events.bytes.tolist() == [512, -512]
    assert events.allocated_bytes.tolist() == [512, 0]
    assert events.reserved_bytes.tolist() == [1024, 0]
    assert events.device.tolist() == [3, 3]
    assert events.thread.tolist() == [threading.get_native_id()] * 2
    assert events.time_ns[0] <= events.time_ns[1]


def test_nothing_is_kept_outside_a_history():
    tell(0x1, 1)
    with record_memory_history() as history:
        tell(0x2, 2)
    tell(0x3, 3)
    assert told(history.events()) == [0x2]


def test_the_oldest_are_lost_when_the_ring_is_full_and_it_says_so():
    with record_memory_history(max_entries=5, numpy=False) as history:
        for address in range(1, 13):
            tell(address, 8)
        events = history.events()
    assert told(events) == [8, 9, 10, 11, 12]
    assert events.lost == 7
    expected = {"recording": False, "capacity": 5, "recorded": 12, "lost": 7}
    assert _core.memory_history().items() >= expected.items()


def where():
    _core.record_memory(OTHER, 3, 0x100, 8)


def test_an_event_has_the_python_stack_of_its_moment():
    with record_memory_history(numpy=False) as history:
        where()
    events = history.events()
    frames = events.frames(events.stack[0])
    assert [frame.function for frame in frames[:2]] == ["where", "test_an_event_has_the_python_stack_of_its_moment"]
    assert frames[0].file == __file__
    assert frames[0].line == where.__code__.co_firstlineno + 1


@pytest.mark.parametrize("options", [{"stacks": False}, {"context": None}])
def test_stacks_are_left_out_where_nobody_wants_them(options):
    with record_memory_history(numpy=False, **options) as history:
        where()
    assert history.events().stack.tolist() == [0]


TORCHS = {"compile_context": True, "global_record_annotations": True, "skip_actions": ["free_requested"]}


@pytest.mark.parametrize(
    "options", [{"stacks": "python"}, {"stacks": "all"}, {"context": "state", "device": 0}, TORCHS]
)
def test_the_arguments_of_torch_are_accepted(options):
    with record_memory_history("all", clear_history=True, numpy=False, **options) as history:
        where()
    assert history.events().stack[0] != 0


@pytest.mark.parametrize("enabled", [None, False])
def test_it_is_stopped_as_in_torch(enabled):
    record_memory_history()
    tell(0x1, 1)
    ended = record_memory_history(enabled)
    tell(0x2, 2)
    assert not recording()
    assert told(ended.events()) == [0x1]
    assert told(history_events()) == [0x1]


def test_stopping_what_never_began_is_allowed(monkeypatch):
    monkeypatch.setattr(history_module, "_last", None)
    assert len(record_memory_history(None).events()) == 0


def test_a_second_call_begins_anew_with_the_new_size_and_says_so():
    first = record_memory_history(max_entries=10, numpy=False)
    tell(0x1, 1)
    second = record_memory_history(max_entries=20, numpy=False)
    tell(0x2, 2)
    assert told(second.events()) == [0x2]
    assert told(first.events()) == [0x1]
    assert not first.active
    assert _core.memory_history()["capacity"] == 20
    assert any("20" in note for note in second.notes)


def test_stopping_an_earlier_history_leaves_the_later_one_on():
    first = record_memory_history()
    record_memory_history()
    first.stop()
    assert recording()


def test_events_of_an_earlier_history_that_nobody_holds_are_not_kept():
    record_memory_history()
    earlier = history_module._last
    tell(0x1, 1)
    gc.collect()
    record_memory_history()
    assert len(earlier.events()) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enabled": "some"}, "enabled is 'some'; accepted are 'all', 'state', True, None, False"),
        ({"max_entries": 0}, "max_entries is 0; accepted are whole numbers from 1 to 100,000,000"),
        ({"max_entries": sys.maxsize}, f"max_entries is {sys.maxsize}; accepted are"),
        ({"max_entries": 1.5}, "max_entries is 1.5; accepted are"),
        ({"stacks": "cpp"}, "stacks is 'cpp'; accepted are True, False, 'python', 'all'"),
        ({"context": "none"}, "context is 'none'; accepted are 'all', 'alloc', 'state', None"),
    ],
)
def test_bad_input_is_told_in_one_sentence(options, said):
    with pytest.raises(InvalidArgument) as raised:
        record_memory_history(**options)
    assert str(raised.value).startswith(said)


def test_bad_input_leaves_a_running_history_alone():
    record_memory_history()
    with pytest.raises(InvalidArgument):
        record_memory_history(max_entries=0)
    assert recording()


def test_without_a_history_it_says_what_to_call():
    code = """
        from gpuscope.errors import NotAvailable
        from gpuscope.memory.history.history import history_events, recording
        assert not recording()
        try:
            history_events()
        except NotAvailable as error:
            assert "record_memory_history()" in str(error)
        else:
            raise AssertionError
    """
    in_a_process(code)


def test_a_peak_is_the_highest_report_of_its_device_with_and_without_a_history():
    peak = _core.PeakMemory(3)
    assert peak.bytes is None
    tell(0x1, 10, allocated=70)
    with record_memory_history():
        tell(0x2, 10, allocated=90)
        tell(0x3, 10, allocated=500, device=4)
    tell(0x2, -10, allocated=80)
    assert peak.bytes == 90
    peak.close()
    tell(0x4, 10, allocated=900)
    assert peak.bytes == 90


def test_reports_without_the_allocators_total_raise_no_peak():
    peak = _core.PeakMemory(3)
    tell(0x1, 10)
    assert peak.bytes is None
    peak.close()


def test_a_refused_driver_watch_is_a_note(monkeypatch):
    monkeypatch.setattr(_core, "watch_allocations", lambda stacks: "another tool holds CUPTI", raising=False)
    ended = []
    monkeypatch.setattr(_core, "unwatch_allocations", lambda: ended.append(1), raising=False)
    with record_memory_history() as history:
        pass
    assert any("another tool holds CUPTI" in note for note in history.notes)
    assert ended == []


def test_the_driver_watch_is_ended_once(monkeypatch):
    calls = []
    monkeypatch.setattr(_core, "watch_allocations", lambda stacks: calls.append(stacks) or "", raising=False)
    monkeypatch.setattr(_core, "unwatch_allocations", lambda: calls.append("end"), raising=False)
    with record_memory_history(stacks=False) as history:
        pass
    history.stop()
    assert calls == [False, "end"]


def test_a_child_of_a_fork_goes_on_recording_for_itself():
    code = """
        import os, threading
        from gpuscope import _core
        from gpuscope.memory.history.history import record_memory_history, history_events
        record_memory_history()
        _core.record_memory(3, 0, 1, 1)
        child = os.fork()
        _core.record_memory(3, 0, 2 if child else 3, 1)
        events = history_events()
        assert events.address.tolist() == ([1, 2] if child else [1, 3])
        assert events.thread[1] == threading.get_native_id()
        if child:
            assert os.waitpid(child, 0)[1] == 0
        else:
            os._exit(0)
    """
    in_a_process(code)


def test_the_program_may_end_while_a_history_is_recorded():
    in_a_process("""
        from gpuscope.memory.history.history import record_memory_history
        record_memory_history()
    """)


def test_the_program_may_end_while_the_history_of_its_tensors_is_recorded():
    pytest.importorskip("torch")
    in_a_process("""
        from gpuscope.memory.history.history import record_memory_history
        record_memory_history()
        import torch
        kept = [torch.empty(10) for _ in range(100)]
    """)


def test_frameworks_are_not_imported():
    in_a_process("""
        import sys
        from gpuscope.memory.history.history import record_memory_history
        with record_memory_history():
            pass
        assert not {"torch", "cupy", "jax"} & set(sys.modules)
        assert not any(type(finder).__name__ == "WhenImported" for finder in sys.meta_path)
    """)


def in_a_process(code):
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_host_events_are_those_of_the_host():
    torch = pytest.importorskip("torch")
    with record_memory_history(numpy=False) as history:
        tensor = torch.empty(1000, dtype=torch.float32)
        del tensor
    events = history.events()
    assert events.bytes.tolist() == [4000, -4000]
    assert set(events.device.tolist()) == {HOST}
    assert {SOURCES[number] for number in events.source.tolist()} == {"torch"}
    assert events.address[0] == events.address[1]
