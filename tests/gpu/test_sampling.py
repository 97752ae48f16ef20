# SPDX-License-Identifier: Apache-2.0
"""Samples, graphs and limits on a GPU. Bounds are loose: they tell a mechanism that works from one that does not."""

from __future__ import annotations

import ctypes
import functools
import gc
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuscope import _core
from gpuscope.errors import CudaError, GpuscopeError

if TYPE_CHECKING:
    from gpuscope._core import Kernels, Sampler

SPIN_NS = 50_000


def zeros(count: int) -> np.ndarray:
    return np.zeros(count, np.uint32)


@pytest.fixture(scope="module")
def sampler(kernels: Kernels) -> Sampler:
    sampler = _core.Sampler()
    sampler.sample([lambda: kernels.spin(1000)], zeros(10))
    return sampler


@pytest.fixture
def stream(kernels: Kernels) -> Iterator[int]:
    """A stream of device 0's primary context, whose handle is a number."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, handle = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuStreamCreate(ctypes.byref(handle), 1) == 0
    yield int(handle.value or 0)
    assert cuda.cuStreamDestroy_v2(handle) == 0
    assert cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0


@pytest.mark.parametrize("flush", [True, False])
def test_delays_of_the_host_stay_out_of_the_streams_time(kernels: Kernels, sampler: Sampler, flush: bool) -> None:
    def delayed() -> None:
        time.sleep(200e-6)
        kernels.spin(SPIN_NS)

    samples = sampler.sample([delayed], zeros(20), flush=flush)
    assert samples["held"]
    assert 50e-6 <= np.median(samples["stream_s"]) < 80e-6


def test_a_function_that_waits_gets_through_a_closed_gate(kernels: Kernels, sampler: Sampler) -> None:
    def waits() -> None:
        kernels.spin(1000)
        kernels.synchronize()

    samples = sampler.sample([waits], zeros(3), timeout_ns=5_000_000)
    assert not samples["held"]
    assert (samples["stream_s"] > 0).all()


def test_the_gate_holds_again_after_it_timed_out(kernels: Kernels, sampler: Sampler) -> None:
    sampler.sample([kernels.synchronize], zeros(1), timeout_ns=1_000_000)
    assert sampler.sample([functools.partial(kernels.spin, 1000)], zeros(5))["held"]


def test_the_clock_is_one_that_gpus_have(kernels: Kernels, sampler: Sampler) -> None:
    spin = [functools.partial(kernels.spin, SPIN_NS)]
    for samples in (
        sampler.sample(spin, zeros(5)),
        sampler.sample(spin, zeros(5), gate=False),
        sampler.sample_wall(spin, zeros(5)),
    ):
        assert 0.2e9 < samples["clock_hz"] < 3e9


def test_a_flushed_cache_makes_reading_again_slower(kernels: Kernels, sampler: Sampler) -> None:
    copy = [functools.partial(kernels.copy, 8 << 20)]
    sampler.sample(copy, zeros(5))
    warm = sampler.sample(copy, zeros(50), flush=False)["stream_s"]
    cold = sampler.sample(copy, zeros(50), flush=True)["stream_s"]
    assert np.median(cold) > np.median(warm)


def test_wall_time_includes_the_work(kernels: Kernels, sampler: Sampler) -> None:
    samples = sampler.sample_wall([functools.partial(kernels.spin, SPIN_NS)], zeros(10))
    assert (samples["done_ns"] - samples["called_ns"] >= SPIN_NS).all()
    assert (samples["done_ns"] >= samples["returned_ns"]).all()


def test_events_can_be_left_out(kernels: Kernels, sampler: Sampler) -> None:
    samples = sampler.sample([functools.partial(kernels.spin, 1000)], zeros(3), events=False)
    assert np.isnan(samples["stream_s"]).all()


def test_an_exception_comes_through_and_the_sampler_goes_on(kernels: Kernels, sampler: Sampler) -> None:
    def fails() -> None:
        kernels.spin(1000)
        raise LookupError("theirs")

    for sample in (sampler.sample, sampler.sample_wall):
        with pytest.raises(LookupError, match="theirs"):
            sample([fails], zeros(3))
    assert sampler.sample([functools.partial(kernels.spin, 1000)], zeros(3))["held"]


def test_a_sampler_does_not_measure_inside_itself(sampler: Sampler) -> None:
    with pytest.raises(GpuscopeError, match="measuring already"):
        sampler.sample([lambda: sampler.sample([print], zeros(1))], zeros(1))


def test_samples_can_be_taken_on_a_stream_of_ones_own(kernels: Kernels, stream: int) -> None:
    sampler = _core.Sampler(stream=stream)
    samples = sampler.sample([lambda: kernels.spin(SPIN_NS, stream)], zeros(10))
    assert samples["held"]
    assert 50e-6 <= np.median(samples["stream_s"]) < 80e-6


def test_spins_tell_how_long_they_took(kernels: Kernels) -> None:
    kernels.spun()
    kernels.spin(20_000, count=10)
    count, total_ns = kernels.spun()
    assert count == 10
    assert 200_000 <= total_ns < 250_000
    assert kernels.spun() == (0, 0)


def test_a_graph_holds_so_many_calls(kernels: Kernels, stream: int) -> None:
    graph = _core.Graph.capture(lambda: kernels.spin(1000, stream), 5, stream=stream)
    assert graph.nodes == 5
    kernels.spun()
    for _ in range(3):
        graph.launch()
    assert kernels.spun()[0] == 15


def test_a_graph_keeps_what_it_was_captured_from_alive(kernels: Kernels, stream: int) -> None:
    def function() -> None:
        kernels.spin(1000, stream)

    alive = weakref.ref(function)
    graph = _core.Graph.capture(function, 1, stream=stream)
    del function
    gc.collect()
    assert alive() is not None
    del graph
    gc.collect()
    assert alive() is None


def test_an_exception_ends_the_capture(kernels: Kernels, stream: int) -> None:
    def fails() -> None:
        kernels.spin(1000, stream)
        raise LookupError("theirs")

    with pytest.raises(LookupError, match="theirs"):
        _core.Graph.capture(fails, 2, stream=stream)
    assert _core.Graph.capture(lambda: kernels.spin(1000, stream), 1, stream=stream).nodes == 1


def test_what_cannot_be_captured_raises(kernels: Kernels, stream: int) -> None:
    with pytest.raises(CudaError):
        _core.Graph.capture(kernels.synchronize, 1, stream=stream)
    assert _core.Graph.capture(lambda: kernels.spin(1000, stream), 1, stream=stream).nodes == 1


def test_graphs_can_be_sampled(kernels: Kernels, stream: int) -> None:
    graph = _core.Graph.capture(lambda: kernels.spin(10_000, stream), 5, stream=stream)
    graph.launch()
    samples = _core.Sampler(stream=stream).sample([graph.launch], zeros(10))
    assert samples["held"]
    assert np.median(samples["stream_s"]) >= 50e-6


def test_copies_come_near_the_memorys_bandwidth_and_not_above(kernels: Kernels, sampler: Sampler) -> None:
    bandwidth = _core.device_limits()["memory_bandwidth"]
    if bandwidth is None:
        pytest.skip("the driver does not tell the memory's clock")
    bytes_copied = 256 << 20
    copy = [functools.partial(kernels.copy, bytes_copied)]
    sampler.sample(copy, zeros(5))
    reached = 2 * bytes_copied / np.median(sampler.sample(copy, zeros(20))["stream_s"])
    assert 0.5 < reached / bandwidth < 1.02


def test_fmas_come_near_the_limit_and_not_above(kernels: Kernels, sampler: Sampler) -> None:
    limit = _core.device_limits()["fp32_flops"]
    if limit is None:
        pytest.skip("the lanes of this GPU are not known")
    rounds = 20_000
    fma = [functools.partial(kernels.fma, rounds)]
    sampler.sample(fma, zeros(5))
    reached = kernels.fma_flops(rounds) / np.median(sampler.sample(fma, zeros(10))["stream_s"])
    assert 0.4 < reached / limit < 1.02


def test_the_clock_state_is_told_or_explained() -> None:
    state = _core.clock_state()
    why = state.pop("why")
    for name, value in state.items():
        assert value is not None or why, name
    if state["sm_hz"] is not None:
        assert 0.1e9 < state["sm_hz"] < 4e9
