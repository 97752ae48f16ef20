# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import gc
import sys
import types
import warnings
from dataclasses import dataclass

import pytest

from gpuscope import _core, errors
from gpuscope.benchmarking import cuda_graphs


@dataclass(frozen=True)
class Stream:
    handle: int = 7
    device: int = 0


class Driver:
    """Plays `_core.Graph` and the streams: a capture that goes wrong says so when it ends."""

    def __init__(self):
        self.capturing = False
        self.launched = 0
        self.nodes = 0
        self.spoilt = ""

    def kernel(self):
        if self.capturing:
            self.nodes += 1

    def wait(self):
        if self.capturing:
            self.spoilt = "operation not permitted when stream is capturing"
            raise RuntimeError(self.spoilt + "\nSearch for the error in ...")

    def begin(self):
        self.capturing, self.nodes, self.spoilt = True, 0, ""

    def end(self):
        self.capturing = False
        if self.spoilt:
            raise RuntimeError("operation failed due to a previous error during capture")

    def capture(self, function, calls, *, device, stream):
        self.begin()
        try:
            for _ in range(calls):
                function()
        finally:
            with contextlib.suppress(RuntimeError):
                self.end()
        return types.SimpleNamespace(launch=self.launch, nodes=self.nodes)

    def launch(self):
        self.launched += 1


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(_core, "Graph", types.SimpleNamespace(capture=driver.capture), raising=False)
    monkeypatch.setattr(_core, "synchronize_stream", lambda stream, device=0: 0.0, raising=False)
    return driver


class Generator:
    """torch's: between a capture's begin and end it refuses random numbers."""

    def __init__(self, busy=False):
        self.busy = busy

    def clone_state(self):
        return Generator(self.busy)

    def graphsafe_set_state(self, other):
        self.busy = other.busy

    def get_state(self):
        return "state"

    def set_state(self, state):
        assert state == "state"


class Torch(types.SimpleNamespace):
    """What of torch a capture touches."""

    def __init__(self, driver):
        self.driver = driver
        self.pools, self.current, self.begun = [], ["theirs"], []
        self.generator = Generator()
        self._C = types.SimpleNamespace(
            _cuda_endAllocateToPool=lambda device, pool: self.end_pool(pool),
            _cuda_releasePool=lambda device, pool: None,
        )
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: True,
            Stream=lambda device: self.stream_of("side"),
            ExternalStream=lambda handle, device: self.stream_of(handle),
            default_stream=lambda device: self.stream_of("default"),
            stream=self.on,
            device=lambda index: contextlib.nullcontext(),
            graph_pool_handle=lambda: (0, 1),
            CUDAGraph=lambda: self,
            default_generators=[self.generator],
        )

    def end_pool(self, pool):
        if pool not in self.pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.pools.remove(pool)

    def stream_of(self, name):
        return types.SimpleNamespace(name=name, wait_stream=lambda other: None, synchronize=lambda: None)

    @contextlib.contextmanager
    def on(self, stream):
        self.current.append(stream.name)
        try:
            yield
        finally:
            self.current.pop()

    def device(self, kind, index):
        return f"{kind}:{index}"

    def empty(self, size, device):
        return types.SimpleNamespace(uniform_=self.draw)

    def draw(self):
        if self.generator.busy:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    def capture_begin(self, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        self.begun.append(self.current[-1])
        self.pools.append(pool)
        self.generator.busy = True
        self.driver.begin()

    def capture_end(self):
        self.driver.end()
        self.pools.clear()
        self.generator.busy = False
        if not self.driver.nodes:
            warnings.warn("The CUDA Graph is empty. This usually means ...", stacklevel=1)

    def replay(self):
        self.driver.launch()
        self.replayed_on = self.current[-1]


@pytest.fixture
def torch(driver, monkeypatch):
    torch = Torch(driver)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_a_graph_holds_the_calls_asked_for_and_no_others(driver):
    calls = []
    with cuda_graphs.capture(lambda: (calls.append(driver.capturing), driver.kernel()), 5, stream=Stream()) as captured:
        assert (captured.nodes, captured.calls, captured.by) == (5, 5, "driver")
    assert calls.count(True) == 5


def test_the_function_is_warmed_up_before_it_is_captured(driver):
    calls = []
    cuda_graphs.capture(lambda: (calls.append(driver.capturing), driver.kernel()), 1, stream=Stream())
    assert calls == [False] * cuda_graphs.WARM_UP_CALLS + [True]


def test_launch_replays_the_graph(driver):
    captured = cuda_graphs.capture(driver.kernel, 2, stream=Stream())
    captured.launch()
    captured.launch()
    assert driver.launched == 2


def test_a_closed_graph_cannot_be_launched(driver):
    captured = cuda_graphs.capture(driver.kernel, 2, stream=Stream())
    captured.close()
    captured.close()
    with pytest.raises(errors.InvalidArgument, match=r"^launch is of a graph that was closed"):
        captured.launch()
    assert driver.launched == 0


class Result:
    alive = 0

    def __init__(self):
        Result.alive += 1

    def __del__(self):
        Result.alive -= 1


def test_results_of_captured_calls_live_as_long_as_the_graph(driver):
    Result.alive = 0
    captured = cuda_graphs.capture(lambda: (driver.kernel(), Result()), 4, stream=Stream())
    assert Result.alive == 4
    captured.close()
    assert Result.alive == 0


def test_waiting_inside_is_said_to_be_why_there_is_no_graph(driver):
    with pytest.raises(errors.NotAvailable, match=r"captured: operation not permitted when stream is capturing$"):
        cuda_graphs.capture(driver.wait, 1, stream=Stream())


def test_what_the_function_raises_uncaptured_goes_on(driver):
    with pytest.raises(KeyError, match="mine"):
        cuda_graphs.capture(lambda: {}["mine"], 1, stream=Stream())


def test_the_default_stream_is_said_to_be_why_there_is_no_graph(driver):
    with pytest.raises(errors.NotAvailable, match="default stream, which cannot be captured"):
        cuda_graphs.capture(driver.kernel, 1, stream=Stream(0))


def test_a_graph_of_nothing_is_refused(driver):
    with pytest.raises(errors.NotAvailable, match="nothing that it does comes onto the stream"):
        cuda_graphs.capture(lambda: None, 1, stream=Stream())


def test_calls_below_one_are_refused(driver):
    with pytest.raises(errors.InvalidArgument, match=r"^calls is 0; "):
        cuda_graphs.capture(driver.kernel, 0, stream=Stream())


def test_garbage_is_not_collected_during_a_capture_but_after_it(driver):
    enabled = []
    cuda_graphs.capture(lambda: (enabled.append(gc.isenabled()), driver.kernel()), 1, stream=Stream())
    assert enabled == [False] * len(enabled)
    assert gc.isenabled()


def test_torch_captures_on_a_side_stream_when_the_stream_is_the_default_one(driver, torch):
    captured = cuda_graphs.capture(driver.kernel, 1, stream=Stream(0))
    captured.launch()
    assert (torch.begun, torch.replayed_on) == (["side"], "default")


def test_torch_captures_on_the_stream_that_was_given(driver, torch):
    captured = cuda_graphs.capture(driver.kernel, 1, stream=Stream(7))
    captured.launch()
    assert (torch.begun, torch.replayed_on) == ([7], 7)


def test_a_capture_that_fails_leaves_torch_as_it_was(driver, torch):
    with pytest.raises(errors.NotAvailable, match="operation not permitted"):
        cuda_graphs.capture(driver.wait, 1, stream=Stream(0))
    assert not driver.capturing
    assert torch.pools == []
    assert torch.current == ["theirs"]
    assert not torch.generator.busy


def test_an_interrupt_during_a_capture_ends_it_and_goes_on(driver, torch):
    def interrupted():
        if driver.capturing:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cuda_graphs.capture(interrupted, 1, stream=Stream(0))
    assert not driver.capturing


def test_torchs_warning_of_an_empty_graph_is_why_there_is_none(driver, torch):
    with pytest.raises(errors.NotAvailable, match="nothing that it does comes onto the stream"):
        cuda_graphs.capture(lambda: None, 1, stream=Stream(0))


def test_other_warnings_of_the_function_go_on(driver, torch):
    def warned():
        driver.kernel()
        if driver.capturing:
            warnings.warn("mine", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="mine"):
        cuda_graphs.capture(warned, 1, stream=Stream(0))


class Cupy(types.SimpleNamespace):
    """What of CuPy a capture touches."""

    def __init__(self, driver):
        self.driver = driver
        self.current, self.allocators, self.begun, self.replayed_on = ["null"], ["theirs"], [], None
        self.cuda = types.SimpleNamespace(
            Device=lambda index: contextlib.nullcontext(),
            Stream=lambda non_blocking: self.stream_of("side"),
            ExternalStream=lambda handle, device: self.stream_of(handle),
            MemoryPool=lambda: types.SimpleNamespace(malloc="private"),
            using_allocator=lambda allocator: self.pushed(self.allocators, allocator),
        )
        self.cuda.Stream.null = self.stream_of("null")

    @contextlib.contextmanager
    def pushed(self, stack, value):
        stack.append(value)
        try:
            yield
        finally:
            stack.pop()

    def stream_of(self, name):
        return CupyStream(self, name)

    def graph(self):
        dot = "".join(f'"graph_1_node_{number}"[label="kernel"];\n' for number in range(self.driver.nodes))
        return types.SimpleNamespace(
            debug_dot_str=lambda: f"digraph dot {{\n{dot}}}", launch=lambda stream: self.replay(stream.name)
        )

    def replay(self, name):
        self.replayed_on = name


class CupyStream:
    def __init__(self, cupy, name):
        self.cupy, self.name = cupy, name

    def __enter__(self):
        self.cupy.current.append(self.name)
        return self

    def __exit__(self, *exception):
        self.cupy.current.pop()

    def synchronize(self):
        pass

    def begin_capture(self):
        self.cupy.begun.append((self.name, self.cupy.current[-1], self.cupy.allocators[-1]))
        self.cupy.driver.begin()

    def end_capture(self):
        self.cupy.driver.end()
        return self.cupy.graph()


@pytest.fixture
def cupy(driver, monkeypatch):
    cupy = Cupy(driver)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy


@pytest.mark.parametrize(("handle", "captured_on", "replayed_on"), [(7, 7, 7), (0, "side", "null")])
def test_cupy_captures_from_a_pool_of_its_own(driver, cupy, handle, captured_on, replayed_on):
    cuda_graphs.capture(driver.kernel, 2, stream=Stream(handle)).launch()
    assert cupy.begun == [(captured_on, captured_on, "private")]
    assert cupy.replayed_on == replayed_on


def test_a_capture_that_fails_leaves_cupy_as_it_was(driver, cupy):
    with pytest.raises(errors.NotAvailable, match="operation not permitted"):
        cuda_graphs.capture(driver.wait, 1, stream=Stream())
    assert not driver.capturing
    assert (cupy.current, cupy.allocators) == (["null"], ["theirs"])


def test_an_empty_graph_of_cupys_is_refused(driver, cupy):
    with pytest.raises(errors.NotAvailable, match="nothing that it does comes onto the stream"):
        cuda_graphs.capture(lambda: None, 1, stream=Stream())


def test_work_that_torch_does_not_see_is_captured_by_cupy(driver, torch, cupy):
    def kernel():
        if cupy.current[-1] == "side":
            driver.kernel()

    assert cuda_graphs.capture(kernel, 1, stream=Stream(0)).by == "cupy"
