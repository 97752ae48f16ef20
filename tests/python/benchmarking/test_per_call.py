# SPDX-License-Identifier: Apache-2.0
"""`setup` and `teardown` run once a call, outside of its time, on the host and on the GPU."""

from __future__ import annotations

import contextlib
import random
import time

import numpy as np
import pytest

from fakes.gpu import OTHER, install
from gpuscope.benchmarking import benchmark, compare
from gpuscope.benchmarking.engine import Engine
from gpuscope.benchmarking.per_call import PerCall
from gpuscope.errors import InvalidArgument

SLOW = 2e-3


@pytest.fixture
def gpu(monkeypatch):
    return install(monkeypatch.setattr)


@pytest.fixture
def calls():
    """What was called, in order."""
    return []


@pytest.fixture
def recorded(calls):
    return {
        "fn": lambda *args, **kwargs: calls.append(("fn", args, kwargs)),
        "setup": lambda: calls.append(("setup",)),
        "teardown": lambda *args, **kwargs: calls.append(("teardown", args, kwargs)),
    }


def sort_in_place(values):
    if values == sorted(values):
        raise AssertionError("sorted already")
    values.sort()


def shuffled():
    values = list(range(500))
    random.shuffle(values)
    return (values,), {}


def test_each_call_of_a_benchmark_has_input_of_its_own():
    result = benchmark(sort_in_place, setup=shuffled, budget=0.1)
    assert result.estimate.value > 0
    assert result.calls_per_sample == 1


def test_both_sides_of_a_comparison_have_input_of_their_own():
    result = compare(sort_in_place, lambda values: sort_in_place(values), setup=shuffled, budget=0.1)
    assert result.calls_per_sample == 1
    assert min(result.a.samples.min(), result.b.samples.min()) > 0


def test_setup_and_teardown_surround_every_call(calls, recorded):
    benchmark(recorded["fn"], setup=recorded["setup"], teardown=recorded["teardown"], budget=0.05)
    assert len(calls) >= 9
    assert [call[0] for call in calls] == ["setup", "fn", "teardown"] * (len(calls) // 3)


def test_teardown_has_the_arguments_that_setup_made(calls, recorded):
    def setup():
        return ([3],), {"key": 4}

    benchmark(recorded["fn"], setup=setup, teardown=recorded["teardown"], budget=0.05)
    assert all(call[1:] == (([3],), {"key": 4}) for call in calls)


def test_teardown_has_the_arguments_that_were_given(calls, recorded):
    benchmark(recorded["fn"], 1, key=2, setup=recorded["setup"], teardown=recorded["teardown"], budget=0.05)
    assert {call for call in calls if len(call) == 1} == {("setup",)}
    assert all(call[1:] == ((1,), {"key": 2}) for call in calls if len(call) > 1)


def test_their_time_is_not_in_the_samples(gpu):
    result = benchmark(lambda: gpu.work(1e-4), setup=lambda: gpu.work(SLOW), teardown=lambda: gpu.work(SLOW))
    assert result.estimate.value == pytest.approx(1e-4, rel=1e-2)


def test_time_passes_while_they_run():
    result = benchmark(int, setup=lambda: time.sleep(SLOW), budget=0.2)
    assert result.n <= 0.5 / SLOW


@pytest.mark.parametrize("quantity", ["kernel", "stream", "wall", "launch"])
def test_their_work_on_the_gpu_is_not_in_the_samples(gpu, quantity):
    def on_the_gpu():
        gpu.launch("other", 300e-6)
        gpu.launch("elsewhere", 300e-6, stream=OTHER)

    per_call = PerCall(on_the_gpu, on_the_gpu)
    alone, surrounded = (Engine([lambda: gpu.launch("own", 10e-6)], per_call=each) for each in (None, per_call))
    with alone, surrounded:
        expected = alone.sample(quantity, np.zeros(5, np.uint32)).seconds[quantity]
        alone.release_cupti()
        found = surrounded.sample(quantity, np.zeros(5, np.uint32))
    assert found.valid.all()
    assert found.seconds[quantity] == pytest.approx(np.median(expected), rel=0.05)


def test_kernels_of_a_call_are_its_own(gpu):
    result = benchmark(lambda: gpu.launch("own", 10e-6), setup=lambda: gpu.launch("other", 300e-6), budget=0.3)
    assert [kernel.name for kernel in result.kernels] == ["own"]


def test_a_setup_that_waits_for_the_gpu_does_not_wait_at_the_gate(gpu):
    with Engine([lambda: gpu.launch("own", 10e-6)], per_call=PerCall(gpu.synchronize)) as engine:
        assert engine.sample("stream", np.zeros(20, np.uint32)).valid.all()
        assert engine.gated


def test_nothing_is_captured_of_a_function_that_needs_a_setup(gpu):
    result = benchmark(lambda: gpu.launch("own", 10e-6), setup=gpu.synchronize, budget=0.3)
    assert "each call" in result.absent["marginal"]


def test_teardown_runs_where_the_function_raises(calls, recorded):
    def fails():
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        benchmark(fails, teardown=recorded["teardown"])
    assert [call[0] for call in calls] == ["teardown"]


def test_processes_prepare_each_call():
    result = benchmark(sort_in_place, setup=shuffled, processes=1, budget=0.1)
    assert result.calls_per_sample == 1


@pytest.mark.parametrize(
    ("made", "args", "kwargs"),
    [
        (0, (0,), {}),
        ([1, 2], ([1, 2],), {}),
        ((1, 2), ((1, 2),), {}),
        ({"a": 1}, ({"a": 1},), {}),
        ((), ((),), {}),
        (((), {}), (), {}),
        (([1], {}), (1,), {}),
        (((1, 2), {"a": 3}), (1, 2), {"a": 3}),
    ],
)
def test_what_setup_returns_is_given_to_the_call(calls, recorded, made, args, kwargs):
    PerCall(lambda: made, recorded["teardown"]).call(recorded["fn"])
    assert calls == [("fn", args, kwargs), ("teardown", args, kwargs)]


def test_what_setup_returns_comes_after_the_arguments_that_are_given(calls, recorded):
    def setup():
        return (2,), {"key": 3}

    benchmark(recorded["fn"], 1, other=4, setup=setup, teardown=recorded["teardown"], budget=0.05)
    assert all(call[1:] == ((1, 2), {"key": 3, "other": 4}) for call in calls)


def test_a_graph_has_no_setup():
    with pytest.raises(InvalidArgument, match="graph is True; accepted with setup="):
        benchmark(int, setup=shuffled, graph=True)


async def later():
    """Runs when it is awaited."""


@pytest.mark.parametrize("name", ["setup", "teardown"])
@pytest.mark.parametrize("value", [1, "setup", later])
@pytest.mark.parametrize("measure", [benchmark, lambda fn, **given: compare(fn, fn, **given)])
def test_they_are_functions(name, value, measure):
    with pytest.raises(InvalidArgument, match=f"^{name} is .*; accepted is None or a function"):
        measure(int, **{name: value})


@pytest.mark.parametrize("name", ["setup", "teardown"])
def test_they_do_their_work_when_they_are_called(name):
    with pytest.raises(InvalidArgument, match=f"^{name} returned a coroutine"):
        benchmark(int, **{name: lambda: later()})
