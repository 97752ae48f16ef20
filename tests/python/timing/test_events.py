# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
import time

import pytest

from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.timing import Event


@pytest.mark.usefixtures("no_gpu")
class TestWithoutAGpu:
    def test_times_the_cpu_and_says_so(self):
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        start.record()
        time.sleep(0.01)
        end.record(7)
        assert start.elapsed_time(end) >= 10
        assert start.measures == "cpu"
        assert "measures the CPU" in repr(start)

    def test_is_done_at_once(self):
        event = Event()
        event.record()
        event.wait()
        assert event.query()
        assert event.synchronize() is None

    def test_has_no_handle_and_no_device(self):
        event = Event()
        event.record()
        assert event.cuda_event == 0
        assert event.device is None
        assert event._as_parameter_.value is None

    def test_cannot_go_to_another_process(self):
        with pytest.raises(NotAvailable, match=r"^an event's IPC handle is not available"):
            Event(interprocess=True).ipc_handle()

    def test_the_newest_record_counts(self):
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        end.record()
        start.record()
        assert start.elapsed_time(end) <= 0
        end.record()
        assert start.elapsed_time(end) >= 0

    def test_a_wrong_stream_is_refused_as_with_a_gpu(self):
        with pytest.raises(InvalidArgument, match=r"^stream is 'x'"):
            Event().record("x")


def test_methods_and_arguments_are_torchs():
    torch = pytest.importorskip("torch")
    for name in ("record", "wait", "query", "synchronize", "elapsed_time", "ipc_handle", "from_ipc_handle"):
        theirs, ours = (inspect.signature(getattr(kind, name)) for kind in (torch.cuda.Event, Event))
        assert list(theirs.parameters) == list(ours.parameters), name
        assert [p.default for p in theirs.parameters.values()] == [p.default for p in ours.parameters.values()], name
    theirs = list(inspect.signature(torch.cuda.Event.__new__).parameters.values())
    ours = list(inspect.signature(Event.__init__).parameters.values())
    assert [(p.name, p.default) for p in theirs[1:]] == [(p.name, p.default) for p in ours[1:]]


def test_tells_milliseconds(gpu):
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    start.record()
    gpu.work(0.0015)
    end.record()
    assert start.elapsed_time(end) == 1.5
    assert start.measures == "gpu"


def test_is_made_at_the_first_record(gpu):
    event = Event(enable_timing=True, blocking=True)
    assert gpu.made == []
    assert (event.cuda_event, event.device, event.query()) == (0, None, True)
    event.record(1000)
    assert gpu.made[0].options == {"timing": True, "blocking": True, "interprocess": False, "external": False}
    assert (event.cuda_event, event.device) == (0xE0, 1)
    assert repr(event) == "<gpuscope.Event 0xe0 of device 1>"


def test_is_made_once(gpu):
    event = Event()
    for _ in range(3):
        event.record(5)
    assert len(gpu.made) == 1
    assert gpu.made[0].streams == [5, 5, 5]


def test_stays_on_its_device(gpu):
    from gpuscope.streams import Stream

    event = Event()
    event.record(Stream(0, 0, "default"))
    with pytest.raises(InvalidArgument, match=r"^stream is of device 1; this event is of device 0"):
        event.record(Stream(0, 1, "default"))


def test_holds_streams_of_any_device_back(gpu):
    event = Event()
    event.wait(2000)
    event.record(0)
    event.wait(2000)
    assert gpu.made[0].waits == [(2000, 2)]


def test_waits_for_the_gpu(gpu):
    event = Event()
    event.record()
    gpu.busy = True
    assert not event.query()
    event.synchronize()
    assert gpu.waited == 1


@pytest.mark.parametrize("machine", ["gpu", "no_gpu"])
class TestElapsedTime:
    @pytest.fixture(autouse=True)
    def on(self, machine, request):
        request.getfixturevalue(machine)

    def test_needs_timing(self):
        start, end = Event(enable_timing=True), Event()
        with pytest.raises(InvalidArgument, match=r"^end_event was made without enable_timing"):
            start.elapsed_time(end)
        with pytest.raises(InvalidArgument, match=r"^the start event was made without enable_timing"):
            end.elapsed_time(start)

    def test_needs_both_records(self):
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        start.record()
        with pytest.raises(InvalidArgument, match=r"^end_event has not been recorded"):
            start.elapsed_time(end)
        with pytest.raises(InvalidArgument, match=r"^the start event has not been recorded"):
            end.elapsed_time(start)

    def test_needs_an_event(self):
        with pytest.raises(InvalidArgument, match=r"^end_event is a float; accepted are events of gpuscope"):
            Event(enable_timing=True).elapsed_time(1.0)

    def test_is_not_for_events_that_processes_share(self):
        with pytest.raises(InvalidArgument, match=r"^interprocess is True"):
            Event(enable_timing=True, interprocess=True)


class TestSharing:
    def test_handle_makes_the_event(self, gpu):
        event = Event(interprocess=True)
        assert event.ipc_handle() == bytes(64)
        assert event.cuda_event == 0xE0

    def test_needs_the_option(self, gpu):
        with pytest.raises(InvalidArgument, match=r"^interprocess was False"):
            Event().ipc_handle()

    @pytest.mark.parametrize("device", [1, "cuda:1"])
    def test_event_of_another_process_is_on_the_device(self, gpu, device):
        assert Event.from_ipc_handle(device, bytes(64)).device == 1

    def test_handle_is_bytes(self, gpu):
        with pytest.raises(InvalidArgument, match=r"^handle is a str; accepted are the bytes"):
            Event.from_ipc_handle(0, "text")

    def test_device_is_a_gpu(self, gpu):
        with pytest.raises(InvalidArgument, match=r"^device is 'cpu' .*; accepted are"):
            Event.from_ipc_handle("cpu", bytes(64))


def test_thousands_leave_nothing_behind(gpu):
    for _ in range(5000):
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        start.record()
        end.record()
        start.elapsed_time(end)
    assert gpu.live <= len(gpu.made) + 2
