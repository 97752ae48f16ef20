# SPDX-License-Identifier: Apache-2.0
"""torch's reports to the history, alone and together with windows of the profiler and with torch.profiler."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

import gpuscope as gs
from gpuscope import _core
from gpuscope.frameworks import torch_memory
from gpuscope.memory.history.events import SOURCES
from gpuscope.memory.history.history import record_memory_history

torch = pytest.importorskip("torch")

CPU = [torch.profiler.ProfilerActivity.CPU]


@pytest.fixture(autouse=True)
def _torch_is_left_as_it_was():
    theirs = torch.autograd._enable_profiler
    yield
    record_memory_history(None)
    assert not torch.autograd._profiler_enabled()
    assert torch.autograd.profiler._enable_profiler is theirs


def sizes(history):
    events = history.events()
    return events.bytes[(events.source == SOURCES.index("torch")) & (events.bytes > 0)].tolist()


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_torch_does_not_take_itself_to_be_profiled():
    with record_memory_history():
        assert not torch.autograd.profiler._is_profiler_enabled


def test_what_a_backward_pass_allocates_is_recorded():
    weight = torch.ones(1000, requires_grad=True)
    with record_memory_history() as history:
        (weight * 2).sum().backward()
    assert sizes(history).count(4000) >= 2  # the product and the gradient


def test_a_window_with_memory_inside_a_history_has_the_same_events():
    with record_memory_history() as history:
        before = torch.empty(10)
        with gs.profile(profile_memory=True) as prof:
            inside = torch.empty(20)
        after = torch.empty(30)
    assert sizes(history) == [40, 80, 120]
    assert prof.trace.memory.bytes.tolist() == [80]
    del before, inside, after


def test_a_history_inside_a_window_with_memory_has_the_same_events():
    with gs.profile(profile_memory=True) as prof:
        before = torch.empty(10)
        with record_memory_history() as history:
            inside = torch.empty(20)
        after = torch.empty(30)
    assert sizes(history) == [80]
    assert prof.trace.memory.bytes.tolist() == [40, 80, 120]
    del before, inside, after


@pytest.mark.parametrize("first_ended", ["window", "history"])
@pytest.mark.parametrize("first_begun", ["window", "history"])
@pytest.mark.parametrize("ranges", [False, True], ids=["callbacks", "ranges"])
def test_a_window_and_a_history_end_in_any_order(first_begun, first_ended, ranges, monkeypatch):
    if ranges:
        monkeypatch.setattr("gpuscope.frameworks.torch_operators.why_no_callbacks", lambda: "another layout")
    prof = gs.profile(profile_memory=True)
    begin = {"window": prof.start, "history": record_memory_history}
    end = {"window": prof.stop, "history": lambda: record_memory_history(None)}
    second = {"window": "history", "history": "window"}
    begin[first_begun]()
    begin[second[first_begun]]()
    both = torch.empty(10)
    end[first_ended]()
    one = torch.empty(20)
    end[second[first_ended]]()
    none = torch.empty(30)
    history = record_memory_history(None)
    assert sizes(history) == ([40] if first_ended == "history" else [40, 80])
    assert prof.trace.memory.bytes.tolist() == ([40] if first_ended == "window" else [40, 80])
    del both, one, none


def test_a_window_of_operators_by_ranges_inside_a_history_has_them(monkeypatch):
    monkeypatch.setattr("gpuscope.frameworks.torch_operators.why_no_callbacks", lambda: "another layout")
    with record_memory_history() as history:
        with gs.profile(record_shapes=True) as prof:
            torch.ones(2, 3)
        torch.empty(10)
    paths = prof.trace.paths
    assert "aten::ones" in {prof.trace.string(int(name)) for name in paths.name}
    assert sizes(history) == [24, 40]


def test_torch_profiler_inside_a_history_is_whole_and_the_history_comes_back():
    with record_memory_history() as history:
        first = torch.empty(10)
        with torch.profiler.profile(activities=CPU, acc_events=True) as theirs:
            second = torch.empty(20)
        third = torch.empty(30)
    assert "aten::empty" in {event.key for event in theirs.key_averages()}
    assert sizes(history) == [40, 120]
    assert any("torch.profiler ran" in note for note in history.notes)
    del first, second, third


def test_a_history_that_ends_inside_torch_profiler_leaves_it_alone():
    history = record_memory_history()
    with torch.profiler.profile(activities=CPU, acc_events=True) as theirs:
        history.stop()
        torch.ones(2) * 2
    assert "aten::mul" in {event.key for event in theirs.key_averages()}


def test_a_history_inside_torch_profiler_says_why_it_lacks_torch():
    with (
        torch.profiler.profile(activities=CPU, acc_events=True) as theirs,
        record_memory_history(numpy=False) as history,
    ):
        torch.empty(10)
    assert "aten::empty" in {event.key for event in theirs.key_averages()}
    assert len(history.events()) == 0
    assert any("torch.profiler runs" in note for note in history.notes)


def test_a_history_that_ends_in_the_middle_of_backward_leaves_torch_as_it_was():
    weight = torch.ones(2, requires_grad=True)
    history = record_memory_history()
    product = weight * 2
    product.register_hook(lambda _: history.stop())
    product.sum().backward()
    assert weight.grad is not None
    with torch.profiler.profile(activities=CPU, acc_events=True) as theirs:
        torch.ones(2) * 2
    assert "aten::mul" in {event.key for event in theirs.key_averages()}


def test_a_history_that_begins_in_the_middle_of_backward_can_be_ended_after_it():
    weight = torch.ones(2, requires_grad=True)
    product = weight * 2
    product.register_hook(lambda _: record_memory_history() and None)
    product.sum().backward()
    record_memory_history(None)
    with record_memory_history() as again:
        kept = torch.empty(10)
    assert sizes(again) == [40]
    del kept


def test_another_thread_is_recorded_once_it_is_added():
    def unasked():
        torch.empty(10)

    def asked():
        with record_memory_history():
            torch.empty(20)
        torch.empty(30)

    with record_memory_history() as history:
        in_thread(unasked)
        in_thread(asked)
        kept = torch.empty(40)
    assert sizes(history) == [80, 160]
    del kept


def test_an_added_thread_that_wants_another_size_is_told():
    notes = []
    with record_memory_history(max_entries=50):
        in_thread(lambda: notes.extend(record_memory_history(max_entries=60).notes))
        assert _core.memory_history()["capacity"] == 50
    assert any("max_entries stays 50" in note for note in notes)


def test_a_history_may_be_ended_by_another_thread():
    began = threading.Event()
    ended = threading.Event()
    counts = []

    def work():
        history = record_memory_history(numpy=False)
        began.set()
        ended.wait(60)
        torch.empty(10)
        counts.append(len(history.events()))
        with torch.profiler.profile(activities=CPU, acc_events=True) as theirs:
            torch.ones(2) * 2
        counts.append("aten::mul" in {event.key for event in theirs.key_averages()})

    thread = threading.Thread(target=work)
    thread.start()
    began.wait(60)
    record_memory_history(None)
    ended.set()
    thread.join()
    assert counts == [0, True]


def test_peaks_are_told_of_while_reports_are_acquired_and_no_longer():
    peak = _core.PeakMemory(-1)
    assert torch_memory.acquire_reports() == ""
    assert torch_memory.acquire_reports() == ""
    torch_memory.release_reports()
    kept = torch.empty(1000, dtype=torch.uint8)
    highest = peak.bytes
    assert highest is not None
    assert highest >= 1000
    torch_memory.release_reports()
    more = torch.empty(5000, dtype=torch.uint8)
    assert peak.bytes == highest
    peak.close()
    del kept, more


def test_acquired_reports_know_when_torch_profiler_takes_their_place():
    assert torch_memory.acquire_reports() == ""
    reports = torch_memory.acquired_reports()
    with torch.profiler.profile(activities=CPU):
        assert (reports.pauses, reports.paused) == (1, True)
        assert torch_memory.acquire_reports() == "torch.profiler runs on this thread"
    assert (reports.pauses, reports.paused) == (1, False)
    torch_memory.release_reports()
    assert torch_memory.acquired_reports() is None


def test_releasing_what_was_not_acquired_is_harmless():
    torch_memory.release_reports()
    assert torch_memory.acquire_reports() == ""
    torch_memory.release_reports()


def test_acquiring_says_why_it_cannot_be():
    with torch.profiler.profile(activities=CPU, acc_events=True):
        assert "torch.profiler runs" in torch_memory.acquire_reports()


def test_acquiring_imports_no_torch():
    code = """
        import sys
        from gpuscope.frameworks import torch_memory
        assert torch_memory.acquire_reports() == "torch has not been imported"
        assert "torch" not in sys.modules
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_torch_imported_inside_the_history_is_recorded_from_there_on():
    code = """
        import sys
        from gpuscope.memory.history.history import record_memory_history
        with record_memory_history() as history:
            assert "torch" not in sys.modules
            import torch
            torch.empty(1234, dtype=torch.uint8)
        assert 1234 in history.events().bytes.tolist(), (history.events().bytes, history.notes)
        assert not torch.autograd._profiler_enabled()
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
