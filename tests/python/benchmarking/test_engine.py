# SPDX-License-Identifier: Apache-2.0
"""The engine finds out what functions do, samples them accordingly and says what cannot be had, and why."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from fakes.gpu import OTHER, PAGEABLE, Session, install
from gpuscope.benchmarking.engine import Engine
from gpuscope.errors import InvalidArgument, NotAvailable


@pytest.fixture
def gpu(monkeypatch):
    return install(monkeypatch.setattr)


def zeros(count):
    return np.zeros(count, np.uint32)


def prepared(function):
    with Engine([function]) as engine:
        engine.prepare()
        return engine


def test_kernel_time_is_exact_whatever_the_host_does_between_launches(gpu):
    def function():
        for delay in (0, 50e-6, 3e-6):
            gpu.work(delay)
            gpu.launch("gemm", 4.321e-6)

    with Engine([function]) as engine:
        kernel = engine.sample("kernel", zeros(40)).seconds["kernel"]
    assert set(np.rint(kernel * 1e9)) == {3 * 4321}


def test_stream_time_does_not_contain_the_hosts_delays_either(gpu):
    def function():
        gpu.work(100e-6)
        gpu.launch("gemm", 10e-6)

    with Engine([function]) as engine:
        stream = engine.sample("stream", zeros(10)).seconds["stream"]
    assert stream == pytest.approx(10.5e-6)


def test_launch_and_wall_are_the_hosts_times(gpu):
    def function():
        gpu.work(100e-6)
        gpu.launch("gemm", 10e-6)

    with Engine([function]) as engine:
        assert engine.sample("launch", zeros(5)).seconds["launch"] == pytest.approx(102e-6)
        assert engine.sample("wall", zeros(5)).seconds["wall"] == pytest.approx(113e-6)


def test_functions_take_turns_in_the_order_asked_for(gpu):
    order = np.array([0, 1, 1, 0, 1], np.uint32)
    with Engine([lambda: gpu.launch("short", 1e-6), lambda: gpu.launch("long", 9e-6)]) as engine:
        samples = engine.sample("kernel", order)
    assert list(np.rint(samples.seconds["kernel"] * 1e6)) == [1, 9, 9, 1, 9]
    assert list(samples.which) == list(order)
    assert [kernels[0].name for kernels in samples.kernels] == ["short", "long"]


def test_the_dry_run_counts_launches_and_kernels(gpu):
    def function():
        gpu.launch("gemm", 9e-6)
        gpu.launch("add", 1e-6)

    facts = prepared(function).facts[0]
    assert (facts.launches, facts.kernels) == (2, ("gemm", "add"))
    assert not any((facts.synchronizes, facts.other_streams, facts.allocates))


def waits(gpu):
    gpu.launch()
    gpu.synchronize()


def copies_to_pageable_memory(gpu):
    gpu.launch()
    gpu.copy(memory=PAGEABLE)


def copies_with_waiting(gpu):
    gpu.launch()
    gpu.copy(call="cuMemcpyDtoH_v2")


@pytest.mark.parametrize("work", [waits, copies_to_pageable_memory, copies_with_waiting])
def test_a_function_that_waits_is_not_gated_and_has_no_stream_time(gpu, work):
    with Engine([lambda: work(gpu)]) as engine:
        engine.prepare()
        assert engine.facts[0].synchronizes
        assert not engine.gated
        assert "waits for the GPU" in engine.absent["stream"]
        assert engine.sample("kernel", zeros(5)).valid.all()


def test_a_copy_that_does_not_wait_is_gated(gpu):
    assert prepared(gpu.copy).gated


def test_a_stream_that_waits_for_an_event_does_not_make_the_host_wait(gpu):
    def function():
        gpu.wait_event()
        gpu.launch()

    engine = prepared(function)
    assert not engine.facts[0].synchronizes
    assert engine.gated


def test_work_on_another_stream_leaves_kernel_time_and_no_stream_time(gpu):
    def function():
        gpu.launch("here", 10e-6)
        gpu.launch("there", 15e-6, stream=OTHER)

    with Engine([function]) as engine:
        samples = engine.sample("kernel", zeros(5))
        assert "other streams" in engine.absent["stream"]
    # The other begins when it is launched, 2 us after the first was.
    assert np.rint(samples.seconds["kernel"] * 1e9) == pytest.approx(17_000)


def test_memory_from_the_driver_is_noticed(gpu):
    def function():
        gpu.allocate()
        gpu.launch()

    engine = prepared(function)
    assert engine.facts[0].allocates
    assert not engine.gated


def test_memory_in_the_order_of_a_stream_is_no_obstacle(gpu):
    def function():
        gpu.allocate("cuMemAllocAsync")
        gpu.launch()

    engine = prepared(function)
    assert not engine.facts[0].allocates
    assert engine.gated


def test_many_launches_a_call_make_small_chunks(gpu):
    def function():
        for _ in range(100):
            gpu.launch(seconds=1e-6)

    assert prepared(function).chunk == 2
    assert prepared(gpu.launch).chunk == 32


def test_more_launches_than_a_queue_takes_are_not_gated(gpu):
    def function():
        for _ in range(701):
            gpu.launch(seconds=1e-6)

    engine = prepared(function)
    assert not engine.gated
    assert "launches" in engine.absent["stream"]


def test_long_calls_are_sampled_one_by_one(gpu):
    assert prepared(lambda: gpu.launch(seconds=0.1)).chunk == 1


def test_a_function_without_gpu_work_has_only_wall_time(gpu):
    engine = prepared(lambda: gpu.work(1e-3))
    assert not engine.on_gpu
    assert set(engine.absent) == {"kernel", "span", "stream", "launch"}
    assert engine.absent["kernel"] == "the function puts no work on the GPU"


def test_without_a_gpu_the_cpu_is_measured(gpu):
    gpu.present = False
    with Engine([lambda: gpu.work(1e-3)]) as engine:
        wall = engine.sample("wall", zeros(5)).seconds["wall"]
        assert engine.device_name == "CPU"
        assert "no NVIDIA GPU" in engine.absent["kernel"]
    assert wall == pytest.approx(1e-3, rel=1e-3)


def test_without_cupti_stream_time_is_left_and_the_reason_said(gpu):
    gpu.tier, gpu.tier_reason = "events", "libcupti was not found"
    with Engine([gpu.launch]) as engine:
        engine.prepare()
        assert engine.absent == {"kernel": "libcupti was not found", "span": "libcupti was not found"}
        assert engine.sample("stream", zeros(3)).seconds["stream"] == pytest.approx(10.5e-6)
        with pytest.raises(NotAvailable, match="libcupti was not found"):
            engine.sample("kernel", zeros(3))


def test_without_cupti_the_gate_tells_who_waits(gpu):
    gpu.tier = "events"
    engine = prepared(lambda: waits(gpu))
    assert engine.facts[0].synchronizes


def test_another_profile_leaves_cupti_to_itself(gpu):
    other = Session()
    engine = prepared(gpu.launch)
    assert "another profile is active" in engine.absent["kernel"]
    other.stop()


def test_cupti_is_off_while_other_quantities_are_taken(gpu):
    with Engine([gpu.launch]) as engine:
        engine.sample("kernel", zeros(3))
        engine.sample("stream", zeros(3))
        assert not Session.active()


def test_cupti_stays_on_between_kernel_passes(gpu):
    with Engine([gpu.launch]) as engine:
        engine.prepare()
        gpu.log.clear()
        engine.sample("kernel", zeros(3))
        engine.sample("kernel", zeros(3))
        assert gpu.log == ["start", "open", "cut", "open", "cut"]
    assert not Session.active()


def test_the_first_records_after_cupti_starts_are_not_used(gpu):
    with Engine([gpu.launch]) as engine:
        engine.prepare()
        began = gpu.seconds
        gpu.slowdown = lambda seconds: 2 if seconds < began + 0.5e-3 else 1
        samples = engine.sample("kernel", zeros(10))
    assert set(np.rint(samples.seconds["kernel"] * 1e9)) == {10_000}


def test_lost_records_make_samples_invalid_and_not_short(gpu):
    # Three records a call: first the dry run's two calls, then ten in which CUPTI settles.
    gpu.loses = lambda number: number == 3 * 12 + 3 * 4 + 2
    with Engine([gpu.launch]) as engine:
        samples = engine.sample("kernel", zeros(10))
    assert np.count_nonzero(~samples.valid) == 1
    assert set(np.rint(samples.seconds["kernel"][samples.valid] * 1e9)) == {10_000}


def test_a_gate_that_does_not_hold_is_given_up_and_its_times_are_not_used(gpu):
    calls = []

    def function():
        calls.append(1)
        gpu.launch()
        if len(calls) > 10:  # begins to wait after the dry run
            gpu.synchronize()

    with Engine([function]) as engine:
        samples = engine.sample("stream", zeros(100))
        assert "stream" in engine.absent
        assert "stream" not in samples.seconds
        assert not engine.gated


def test_throttled_chunks_are_tagged_and_kept(gpu):
    with Engine([gpu.launch]) as engine:
        engine.prepare()
        half = gpu.seconds + 64 * 50e-6
        gpu.reasons = lambda seconds: 0x20 if seconds > half else 0
        samples = engine.sample("stream", zeros(128))
    assert 0 < np.count_nonzero(samples.throttled) < 128
    assert samples.valid.all()


def test_a_shifted_clock_is_tagged_against_the_steady_one(gpu):
    with Engine([gpu.launch]) as engine:
        engine.warm_up(1.0)
        gpu.clock_hz = lambda seconds: 1.5e9
        samples = engine.sample("stream", zeros(32))
    assert samples.throttled.all()
    assert (samples.clock_hz == 1.5e9).all()


def test_the_power_cap_is_no_throttling(gpu):
    gpu.reasons = lambda seconds: 0x4
    with Engine([gpu.launch]) as engine:
        samples = engine.sample("stream", zeros(8))
    assert samples.capped.all()
    assert not samples.throttled.any()


def test_the_garbage_collector_rests_during_samples_and_not_after(gpu):
    seen = []

    def function():
        seen.append(gc.isenabled())
        gpu.launch()

    with Engine([function]) as engine:
        engine.prepare()
        seen.clear()
        engine.sample("stream", zeros(4))
    assert not any(seen)
    assert gc.isenabled()


def test_what_a_function_raises_comes_through_and_nothing_stays_behind(gpu):
    calls = []

    def function():
        calls.append(1)
        gpu.launch()
        if len(calls) == 20:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"), Engine([function]) as engine:
        engine.sample("kernel", zeros(40))
    assert not Session.active()
    assert gc.isenabled()


class Array:
    """What JAX returns: a promise."""

    def __init__(self, gpu):
        self.gpu = gpu

    def block_until_ready(self):
        self.gpu.launch("xla", 10e-6, stream=OTHER)
        self.gpu.synchronize()


def test_results_that_are_promises_are_waited_for(gpu):
    with Engine([lambda: {"loss": (Array(gpu),)}]) as engine:
        samples = engine.sample("kernel", zeros(8))
        assert engine.sample("wall", zeros(4)).seconds["wall"].min() > 10e-6
        assert engine.facts[0].synchronizes
    assert np.rint(samples.seconds["kernel"] * 1e9) == pytest.approx(10_000)


def test_launch_time_is_without_waiting_for_promises(gpu):
    def function():
        gpu.work(3e-6)
        return Array(gpu)

    with Engine([function]) as engine:
        samples = engine.sample("launch", zeros(8))
    assert len(samples.which) == 8
    assert samples.seconds["launch"] == pytest.approx(3e-6)


@pytest.mark.parametrize("functions", [[], [3]], ids=["none", "not callable"])
def test_functions_are_needed(gpu, functions):
    with pytest.raises(InvalidArgument, match=r"^functions "):
        Engine(functions)


def test_a_device_that_is_not_there_is_named(gpu):
    with pytest.raises(InvalidArgument, match=r"^device is 3; accepted are 0 to 0"):
        Engine([gpu.launch], device=3)


def test_a_stream_of_another_device_is_refused(gpu, monkeypatch):
    monkeypatch.setattr("gpuscope._core.stream_device", lambda stream: 1)
    with pytest.raises(InvalidArgument, match="stream is of device 1"):
        Engine([gpu.launch], stream=0x1234, device=0)
