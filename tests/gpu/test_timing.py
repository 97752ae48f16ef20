# SPDX-License-Identifier: Apache-2.0
"""Events, timers and streams on a real GPU."""

from __future__ import annotations

import gc
import threading
import time

import pytest
from child import last_facts, run_code

from gpuscope import _core, streams
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.timing import Event, Timer, reset_timings, synchronize, timed, timings

MILLISECOND = 1_000_000  # ns
LONG = 300 * MILLISECOND


@pytest.fixture(autouse=True)
def idle():
    synchronize(0)
    reset_timings()
    yield
    synchronize(0)


@pytest.fixture
def stream():
    """A stream of a framework that is here, which does not wait for the default one."""
    torch = pytest.importorskip("torch")
    with torch.cuda.stream(torch.cuda.Stream()):
        yield streams.current()


class TestEvent:
    def test_tells_how_long_a_kernel_took(self, kernels):
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        start.record(0)
        kernels.spin(MILLISECOND)
        end.record(0)
        end.synchronize()
        assert 0.9 < start.elapsed_time(end) < 5
        assert start.measures == "gpu"

    def test_is_not_reached_while_the_gpu_works(self, kernels):
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        start.record(0)
        kernels.spin(LONG)
        end.record(0)
        assert not end.query()
        with pytest.raises(InvalidArgument, match="not been reached by the GPU yet"):
            start.elapsed_time(end)
        end.synchronize()
        assert end.query()

    def test_synchronize_lets_other_threads_run(self, kernels):
        turns = 0
        stop = threading.Event()

        def count() -> None:
            nonlocal turns
            while not stop.wait(0.001):
                turns += 1

        thread = threading.Thread(target=count)
        thread.start()
        kernels.spin(LONG)
        event = Event()
        event.record(0)
        event.synchronize()
        stop.set()
        thread.join()
        assert turns > 10

    @pytest.mark.parametrize("options", [{}, {"blocking": True}, {"interprocess": True}, {"external": True}])
    def test_every_kind_can_be_waited_for(self, kernels, options):
        event = Event(**options)
        kernels.spin(MILLISECOND)
        event.record(0)
        event.synchronize()
        assert event.query()

    def test_holds_another_stream_back(self, kernels, stream):
        reached = Event(enable_timing=True)
        kernels.spin(LONG)
        reached.record(0)
        reached.wait(stream)
        behind = Event(enable_timing=True)
        behind.record(stream)
        behind.synchronize()
        assert reached.query()
        assert reached.elapsed_time(behind) >= 0

    def test_comes_from_the_pool(self):
        for _ in range(2000):
            start, end = Event(enable_timing=True), Event(enable_timing=True)
            start.record(0)
            end.record(0)
        del start, end
        gc.collect()
        created = _core.event_pool(0)["created"]
        for _ in range(2000):
            event = Event(enable_timing=True)
            event.record(0)
        assert _core.event_pool(0)["created"] == created
        assert _core.event_pool(0)["in_use"] <= created

    def test_of_the_pool_is_new_to_its_next_user(self, kernels):
        old = _core.Event()
        kernels.spin(LONG)
        old.record()
        del old
        event = _core.Event()
        assert event.query()
        assert not event.recorded

    def test_times_work_of_a_device_that_was_reset(self):
        code = """
import ctypes, json
from gpuscope import _core
from gpuscope.timing import Event

def timed_ms():
    kernels, start, end = _core.Kernels(), Event(enable_timing=True), Event(enable_timing=True)
    start.record()
    kernels.spin(1_000_000)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)

before = timed_ms()
assert ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxReset_v2(0) == 0
print(json.dumps({"before": before, "after": timed_ms()}))
"""
        found = last_facts(run_code(code))
        assert found["after"] == pytest.approx(found["before"], rel=0.2)

    def test_of_a_device_that_is_not_there(self):
        with pytest.raises(NotAvailable, match="device 99"):
            _core.Event(99)

    def test_pools_survive_threads(self, kernels):
        def cycle() -> None:
            for _ in range(500):
                event = Event(enable_timing=True)
                event.record(0)
                event.query()

        threads = [threading.Thread(target=cycle) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_event_goes_to_another_process(kernels):
    event = Event(interprocess=True)
    kernels.spin(MILLISECOND)
    event.record(0)
    code = (
        "import os; from gpuscope.timing import Event\n"
        "event = Event.from_ipc_handle(0, bytes.fromhex(os.environ['HANDLE']))\n"
        "event.synchronize(); print(event.query(), event.device)"
    )
    assert run_code(code, HANDLE=event.ipc_handle().hex()).strip() == "True 0"


class TestTimer:
    def test_gpu_time_is_the_kernels(self, kernels):
        with Timer(stream=0) as timer:
            kernels.spin(5 * MILLISECOND)
        assert timer.gpu_time is not None
        assert 0.0045 < timer.gpu_time < 0.02

    def test_does_not_wait_for_the_gpu(self, kernels):
        with Timer(stream=0) as timer:
            kernels.spin(LONG)
        assert not timer.ready
        assert timer.launch_time is not None
        assert timer.launch_time < 0.2
        assert timer.gpu_time is not None
        assert timer.gpu_time > 0.29
        assert timer.ready

    def test_wall_time_ends_with_the_gpus_work(self, kernels):
        began = time.perf_counter()
        with Timer(stream=0) as timer:
            kernels.spin(LONG)
        synchronize(0)
        waited = time.perf_counter() - began
        assert timer.wall_time is not None
        assert timer.wall_error is not None
        assert 0.29 < timer.wall_time <= waited + timer.wall_error
        assert timer.wall_error < 0.002

    def test_wall_time_of_work_behind_other_work_is_longer_than_its_gpu_time(self, kernels):
        kernels.spin(LONG)
        with Timer(stream=0) as timer:
            kernels.spin(MILLISECOND)
        assert timer.gpu_time is not None
        assert timer.wall_time is not None
        assert timer.gpu_time < 0.1 < timer.wall_time

    def test_capture_is_told_of_and_not_disturbed(self):
        torch = pytest.importorskip("torch")
        x = torch.ones(1000, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        timer = Timer()
        with torch.cuda.graph(graph), timer:
            x += 1
        graph.replay()
        torch.cuda.synchronize()
        assert "captured into a CUDA graph" in timer.why
        assert timer.gpu_time is None
        assert float(x[0]) == 2

    def test_reading_does_not_spoil_a_capture(self, kernels):
        torch = pytest.importorskip("torch")
        x = torch.ones(1000, device="cuda")
        with Timer() as timer:
            x += 1
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            x += 1
            assert timer.ready
            assert timer.gpu_time is not None
        graph.replay()
        torch.cuda.synchronize()
        assert float(x[0]) == 3

    def test_events_for_graphs_time_a_replay(self):
        torch = pytest.importorskip("torch")
        x = torch.ones(1 << 20, device="cuda")
        start, end = (Event(enable_timing=True, external=True) for _ in range(2))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            start.record()
            x += 1
            end.record()
        graph.replay()
        torch.cuda.synchronize()
        assert start.elapsed_time(end) > 0


class TestTimed:
    def test_adds_up(self, kernels):
        for _ in range(20):
            with timed("spin", stream=0):
                kernels.spin(MILLISECOND)
        timing = timings()["spin"]
        assert timing.count == 20
        assert timing.gpu is not None
        assert 0.019 < timing.gpu.total < 0.2
        assert timing.why == ""
        assert "spin" in str(timings())

    def test_thousands_of_blocks_use_few_events(self):
        for _ in range(5000):
            with timed("empty", stream=0):
                pass
        assert timings()["empty"].count == 5000
        assert _core.event_pool(0)["created"] < 5000

    def test_does_not_wait(self, kernels):
        began = time.perf_counter()
        with timed("long", stream=0):
            kernels.spin(LONG)
        assert time.perf_counter() - began < 0.25


class TestSynchronize:
    def test_says_how_long_it_waited(self, kernels):
        kernels.spin(LONG)
        assert 0.2 < synchronize(0) < 5
        assert synchronize(0) < 0.1

    def test_waits_for_one_stream_only(self, kernels, stream):
        kernels.spin(LONG)
        assert synchronize(stream) < 0.2
        assert synchronize() > 0.05

    def test_takes_torchs_things(self, kernels):
        torch = pytest.importorskip("torch")
        event = torch.cuda.Event()
        kernels.spin(MILLISECOND)
        event.record(torch.cuda.default_stream())
        for target in (event, torch.device("cuda"), torch.device("cuda:0"), torch.cuda.current_stream(), "cuda:0"):
            assert synchronize(target) >= 0

    def test_makes_no_context_where_there_is_none(self):
        code = (
            "from gpuscope import _core; from gpuscope.timing import synchronize\n"
            "print(synchronize(0), _core.event_pool(0))"
        )
        assert run_code(code).strip() == "0.0 {'created': 0, 'in_use': 0, 'free': 0}"


class TestStreams:
    """The work goes on the framework's stream, and a Timer on the stream object finds it there."""

    def timed_on(self, kernels, stream, source):
        resolved = streams.resolve(stream)
        assert resolved.source in source
        assert resolved.device == 0
        with Timer(stream=stream) as timer:
            kernels.spin(2 * MILLISECOND, stream=resolved.handle)
        assert timer.gpu_time is not None
        assert 0.0018 < timer.gpu_time < 0.02

    def test_torch(self, kernels):
        torch = pytest.importorskip("torch")
        own = torch.cuda.Stream()
        self.timed_on(kernels, own, ("torch",))
        self.timed_on(kernels, torch.cuda.ExternalStream(own.cuda_stream), ("torch",))
        with torch.cuda.stream(own):
            assert streams.current() == streams.Stream(own.cuda_stream, 0, "torch")

    def test_cupy(self, kernels):
        cupy = pytest.importorskip("cupy")
        own = cupy.cuda.Stream(non_blocking=True)
        self.timed_on(kernels, own, ("cupy",))
        self.timed_on(kernels, cupy.cuda.Stream.null, ("cupy",))
        event = own.record()
        assert synchronize(event) >= 0
        assert synchronize(cupy.cuda.Device(0)) >= 0

    def test_numba(self, kernels):
        cuda = pytest.importorskip("numba.cuda")
        self.timed_on(kernels, cuda.stream(), ("numba",))
        self.timed_on(kernels, cuda.default_stream(), ("numba",))

    def test_cuda_bindings(self, kernels):
        driver = pytest.importorskip("cuda.bindings.driver")
        runtime = pytest.importorskip("cuda.bindings.runtime")
        error, own = runtime.cudaStreamCreate()
        assert int(error) == 0
        known = ("cuda-python", "__cuda_stream__")  # newer ones speak the protocol
        self.timed_on(kernels, own, known)
        self.timed_on(kernels, driver.CUstream(int(own)), known)

    def test_cuda_core(self, kernels):
        core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")
        device = getattr(core, "Device", None) or pytest.importorskip("cuda.core.experimental").Device
        gpu = device(0)
        gpu.set_current()
        own = gpu.create_stream()
        self.timed_on(kernels, own, ("__cuda_stream__",))
        assert synchronize(gpu) >= 0
        own.close()
        with pytest.raises(InvalidArgument, match="closed"):
            streams.resolve(own)

    def test_jax_device(self, kernels):
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("this JAX has no GPU")
        kernels.spin(MILLISECOND)
        assert synchronize(jax.devices()[0]) >= 0

    def test_number(self, kernels, stream):
        self.timed_on(kernels, stream.handle, ("int",))
        self.timed_on(kernels, 0, ("int",))


@pytest.fixture
def second_gpu():
    if _core.environment()["devices"][1:] == []:
        pytest.skip("this machine has one GPU")
    torch = pytest.importorskip("torch")
    with torch.cuda.device(1):
        yield torch.cuda.Stream(device=1)


def test_stream_of_another_device_is_refused(second_gpu):
    event = _core.Event(0)
    with pytest.raises(InvalidArgument, match=r"^stream is of device 1; this event is of device 0"):
        event.record(second_gpu.cuda_stream)


def test_stream_of_another_device_can_wait(second_gpu, kernels):
    event = Event()
    kernels.spin(MILLISECOND)
    event.record(streams.Stream(0, 0, "default"))
    event.wait(second_gpu)
    event.wait(streams.Stream(0, 1, "default"))
    assert synchronize(second_gpu) >= 0


def test_stream_of_another_device_is_timed_there(second_gpu):
    with Timer(stream=second_gpu) as timer:
        pass
    assert timer.gpu_time is not None
    assert _core.stream_device(second_gpu.cuda_stream) == 1
