# SPDX-License-Identifier: Apache-2.0
"""Inside a CUDA graph's capture each call works or refuses in a sentence, and the graph comes out whole."""

from __future__ import annotations

import threading

import pytest

import gpuscope as gs
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable

MODES = ("global", "thread_local", "relaxed")


class TorchCapture:
    """Captures two additions of 1 on a stream that nothing waits for, with a call between them."""

    def __init__(self, mode):
        self.torch = pytest.importorskip("torch")
        self.mode = mode
        self.x = self.torch.zeros(1000, device="cuda")
        self.idle = self.torch.cuda.Stream()
        self.x.add_(1).sub_(1)  # loads the kernels
        self.event = self.torch.cuda.Event()
        self.event.record()
        self.torch.cuda.synchronize()

    def run(self, call):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, capture_error_mode=self.mode):
            self.x += 1
            call()
            self.x += 1
        graph.replay()
        self.torch.cuda.synchronize()
        assert float(self.x[0]) == 2

    @property
    def stream(self):
        return self.torch.cuda.current_stream()


class CupyCapture:
    """The same with CuPy, on a stream that the default stream waits for, which need not be the current one."""

    def __init__(self, mode, *, non_blocking=False):
        self.cupy = pytest.importorskip("cupy")
        self.mode = MODES.index(mode)
        self.x = self.cupy.zeros(1000)
        self.idle = self.cupy.cuda.Stream(non_blocking=True)
        self.stream = self.cupy.cuda.Stream(non_blocking=non_blocking)
        with self.stream:
            self.x += 1
            self.x -= 1
        self.event = self.cupy.cuda.Event()
        self.event.record(self.stream)
        self.stream.synchronize()

    def run(self, call, *, current=True):
        with self.stream:
            self.stream.begin_capture(self.mode)
            self.x += 1
            if current:
                call()
        if not current:
            call()
        with self.stream:
            self.x += 1
            graph = self.stream.end_capture()
        graph.launch(self.stream)
        self.stream.synchronize()
        assert float(self.x[0]) == 2


@pytest.fixture(params=[f"{library} {mode}" for library in ("torch", "cupy") for mode in MODES])
def capture(request):
    library, mode = request.param.split()
    return TorchCapture(mode) if library == "torch" else CupyCapture(mode)


def refused(call, error=NotAvailable, sentence="while a CUDA graph is being captured"):
    def in_capture():
        with pytest.raises(error, match=sentence):
            call()

    return in_capture


def synchronize_event(capture):
    capture.event.record(capture.stream)
    gs.synchronize(capture.event)


REFUSED = {
    "synchronize": lambda capture: gs.synchronize(),
    "synchronize of a device": lambda capture: gs.synchronize(0),
    "synchronize of the stream": lambda capture: gs.synchronize(capture.stream),
    "synchronize of an event": lambda capture: synchronize_event(capture),
    "profile": lambda capture: gs.profile().start(),
    "benchmark": lambda capture: gs.benchmark(lambda: None, budget=0.1),
    "benchmark of a graph": lambda capture: gs.benchmark(lambda: None, budget=0.1, graph=True),
    "compare": lambda capture: gs.compare(lambda: None, lambda: None, budget=0.1),
    "measure_latency": lambda capture: gs.measure_latency(lambda x: x, 1),
    "find_max_batch_size": lambda capture: gs.find_max_batch_size(lambda size: None, limit=2),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refuses_and_leaves_the_capture_whole(capture, call):
    capture.run(refused(lambda: call(capture)))


def timed_block(capture):
    with gs.timed("captured"):
        pass


def timer_block(capture):
    with gs.Timer(stream=capture.stream) as timer:
        pass
    assert timer.gpu_time is None
    assert "captured into a CUDA graph" in timer.why


def tracked(capture):
    with gs.track_memory("captured", quiet=True) as stage:
        pass
    assert stage.allocated_bytes >= 0
    assert gs.track_memory("a statement", quiet=True).allocated_bytes >= 0


def event_of_the_capture(capture):
    event = gs.Event(enable_timing=True)
    event.record(capture.stream)
    for ask in (event.query, event.synchronize, lambda: event.elapsed_time(event), lambda: gs.synchronize(event)):
        with pytest.raises(InvalidArgument, match="was recorded into a CUDA graph"):
            ask()


def event_of_another_stream(capture):
    event = gs.Event(enable_timing=True)
    event.record(capture.idle)
    event.synchronize()
    assert event.query()


def another_stream(capture):
    assert gs.synchronize(capture.idle) >= 0


WORKS = {
    "timed": timed_block,
    "Timer": timer_block,
    "track_memory": tracked,
    "an event of the capture": event_of_the_capture,
    "an event of another stream": event_of_another_stream,
    "another stream": another_stream,
    "memory_snapshot": lambda capture: gs.memory_snapshot(),
    "memory_summary": lambda capture: str(gs.memory_summary()),
    "gpu_snapshot": lambda capture: gs.gpu_snapshot(),
}


@pytest.mark.parametrize("call", WORKS.values(), ids=WORKS)
def test_works_and_leaves_the_capture_whole(capture, call):
    capture.run(lambda: call(capture))


@pytest.mark.parametrize("mode", MODES)
def test_a_recording_ends_inside_and_keeps_what_it_has(mode):
    capture = TorchCapture(mode)
    prof = gs.profile()
    prof.start()
    with gs.record_function("before"):
        capture.x.add_(1).sub_(1)
    capture.torch.cuda.synchronize()
    capture.run(prof.stop)
    assert {row.key: row.device_time_total > 0 for row in prof.key_averages()}["before"]


@pytest.mark.parametrize("mode", MODES)
def test_a_recording_goes_from_window_to_window_inside(mode):
    capture = TorchCapture(mode)
    windows = []
    schedule = gs.schedule(wait=0, warmup=0, active=1, repeat=3)
    with gs.profile(schedule=schedule, on_trace_ready=lambda p: windows.append(len(p.trace.kernels))) as prof:
        capture.x.add_(1).sub_(1)
        capture.torch.cuda.synchronize()
        capture.run(prof.step)
    assert windows[0] >= 2  # torch fills the state of its generator before a capture
    assert len(windows) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_recording_goes_on_around_a_capture(mode):
    capture = TorchCapture(mode)
    with gs.profile() as prof:
        capture.run(lambda: None)
    assert prof.audit().complete, prof.audit()


def on_another_thread(call):
    """Calls there; what it raised, or None."""
    raised = []

    def run():
        try:
            call()
        except GpuscopeError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.parametrize("mode", MODES)
def test_another_thread_that_would_wait_for_the_device_refuses(mode):
    found = []
    TorchCapture(mode).run(lambda: found.append(on_another_thread(gs.synchronize)))
    assert isinstance(found[0], NotAvailable)


@pytest.mark.parametrize("mode", MODES)
def test_another_thread_may_time_and_look_at_memory(mode):
    capture = TorchCapture(mode)

    def work():
        for call in (timer_on_its_own_stream, tracked, event_of_another_stream, another_stream):
            call(capture)
        gs.memory_snapshot()

    found = []
    capture.run(lambda: found.append(on_another_thread(work)))
    assert found == [None]


def timer_on_its_own_stream(capture):
    with gs.Timer(stream=capture.idle) as timer:
        pass
    assert timer.gpu_time is not None, timer.why


def test_a_capture_on_a_stream_that_is_not_current_is_seen_where_the_default_stream_waits_for_it():
    CupyCapture("relaxed").run(refused(gs.synchronize), current=False)


def test_a_capture_of_cupy_is_seen_beside_pytorch():
    pytest.importorskip("torch").ones(1, device="cuda")
    CupyCapture("global", non_blocking=True).run(refused(gs.synchronize))


def test_the_default_stream_is_not_touched_while_another_captures():
    event = gs.Event(enable_timing=True)
    event.record(0)
    sentence = "stream is the default stream while another stream"
    CupyCapture("relaxed").run(refused(lambda: event.record(0), InvalidArgument, sentence))
    CupyCapture("relaxed").run(refused(lambda: event.wait(0), InvalidArgument, sentence))


def test_everything_works_again_after_the_capture():
    TorchCapture("global").run(refused(gs.synchronize))
    assert gs.synchronize() >= 0
    with gs.Timer() as timer:
        pass
    assert timer.gpu_time is not None
