# SPDX-License-Identifier: Apache-2.0
"""What was measured before an error or Ctrl-C ended the measurement is kept: on the error, or as the result."""

from __future__ import annotations

import functools
import sys

import numpy as np
import pytest

from fakes.engines import Clock, Engines
from gpuscope import benchmark, benchmark_dataloader, compare, crossover, measure_latency, measure_throughput, sweep
from gpuscope.benchmarking import processes, rounds, stopping
from gpuscope.results import kept_on_error


class BrokenError(Exception):
    """Of the program that is measured."""


class SealedError(Exception):
    """Takes no attributes."""

    def __setattr__(self, name, value):
        if name == "measured":
            raise AttributeError(name)
        super().__setattr__(name, value)


def after(count, error, work=0):
    """A function, of anything, that raises after so many calls; each of them adds up so many numbers."""
    calls = iter(range(count))

    def function(*_, **__):
        if next(calls, None) is None:
            raise error
        sum(range(work))

    return function


@pytest.fixture
def engines(monkeypatch):
    engines = Engines(Clock())
    monkeypatch.setattr(rounds, "Engine", engines)
    monkeypatch.setattr(stopping, "now", engines.clock)
    return engines


def linear(n):
    return lambda: n * 1e-6


@pytest.mark.parametrize("error", [BrokenError("no more"), StopIteration(), SystemExit(3), BrokenPipeError()])
def test_an_error_of_progress_has_what_the_sweep_measured(engines, error):
    with pytest.raises(type(error)) as raised:
        sweep(linear, n=[1, 2, 3], progress=after(2, error))
    assert raised.value is error
    swept = raised.value.measured
    assert swept.stopped == "error"
    assert [point.error is None for point in swept].count(True) == 3
    assert "an error ended the measurement: 0 of 3 points within +-2 %" in str(swept)


def test_an_error_of_the_first_progress_says_what_was_not_measured(engines):
    with pytest.raises(BrokenError) as raised:
        sweep(linear, n=[1, 2, 3], progress=after(0, BrokenError()))
    errors = [point.error for point in raised.value.measured]
    assert sorted(map(str, errors)) == ["None", *["not measured: an error ended the measurement"] * 2]


def test_ctrl_c_in_progress_ends_the_sweep_with_what_there_is(engines):
    swept = sweep(linear, n=[1, 2, 3], progress=after(2, KeyboardInterrupt()))
    assert swept.stopped == "interrupted"
    assert len([point for point in swept if point.estimate]) == 3


def test_a_function_that_fails_in_a_later_visit_keeps_its_visits_and_the_other_points(engines):
    made = []

    def make(n):
        made.append(n)
        if n == 2 and made.count(2) > 3:
            raise BrokenError("no more of it")
        return linear(n)

    swept = sweep(make, n=[1, 2, 3])
    assert [len(point.visits) for point in swept] == [6, 3, 6]
    assert swept[2].warnings == ("measured in 3 visits, then stopped: BrokenError: no more of it",)


def test_a_function_that_ends_the_program_has_what_the_sweep_measured(engines):
    made = []

    def make(n):
        made.append(n)
        if len(made) > 4:
            sys.exit("enough")
        return linear(n)

    with pytest.raises(SystemExit) as raised:
        sweep(make, n=[1, 2, 3])
    assert all(point.estimate for point in raised.value.measured)


def test_an_error_of_progress_has_what_the_crossover_measured(engines):
    with pytest.raises(BrokenError) as raised:
        crossover(linear, lambda n: lambda: 50e-6, n=[1, 10, 100], progress=after(40, BrokenError()))
    found = raised.value.measured
    assert found.stopped == "error"
    assert found.value == pytest.approx(50, rel=0.1)


def test_an_error_of_the_function_has_what_the_benchmark_measured():
    with pytest.raises(BrokenError) as raised:
        benchmark(after(2000, BrokenError(), work=10_000), budget=20.0, precision=1e-6)
    found = raised.value.measured
    assert found.stopped == "error"
    assert "NOT converged: an error ended it" in str(found)
    assert 1 <= found.n < 2000
    assert np.isfinite(found.median)


def test_an_error_of_the_function_has_what_the_comparison_measured():
    failing = after(2000, BrokenError(), work=4_000)
    with pytest.raises(BrokenError) as raised:
        compare(lambda: sum(range(20_000)), failing, budget=20.0, precision=1e-6)
    found = raised.value.measured
    assert (found.stopped, found.verdict) == ("error", "faster")
    assert "ended by an error before the verdict was settled" in found.report()


@pytest.mark.parametrize("measure", [benchmark, functools.partial(compare, int)])
def test_an_error_of_the_first_call_has_nothing(measure):
    with pytest.raises(BrokenError) as raised:
        measure(after(0, BrokenError()))
    assert not hasattr(raised.value, "measured")


def results_of_processes(monkeypatch, *outcomes):
    left = iter(outcomes)
    monkeypatch.setattr(processes, "_outcome", lambda task, share, measuring: (next(left), False))


@pytest.mark.parametrize("calls", [1, 2])
def test_an_error_of_progress_has_what_the_processes_measured(monkeypatch, calls):
    results_of_processes(monkeypatch, *[benchmark(int, budget=0.02)] * 3)
    with pytest.raises(BrokenError) as raised:
        benchmark(int, processes=3, progress=after(calls, BrokenError()))
    found = raised.value.measured
    assert found.stopped == "error"
    assert str(found.processes).startswith("1 process of 3" if calls == 1 else "2 processes of 3 differ by")


def test_ctrl_c_in_progress_keeps_what_the_processes_measured(monkeypatch):
    results_of_processes(monkeypatch, *[benchmark(int, budget=0.02)] * 3)
    found = benchmark(int, processes=3, progress=after(2, KeyboardInterrupt()))
    assert found.stopped == "interrupted"
    assert len(found.processes.estimates) == 2


failing_later = after(2000, BrokenError("in a process"), work=10_000)


def failing():
    failing_later()


def test_an_error_in_a_process_has_what_that_one_measured():
    with pytest.raises(BrokenError, match="in a process") as raised:
        benchmark(failing, processes=1, budget=5.0, precision=1e-6)
    assert raised.value.measured.n >= 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenError()])
def test_latencies_taken_so_far_are_kept(error):
    if isinstance(error, KeyboardInterrupt):
        found = measure_latency(after(60, error), 1, num_iterations=100, warmup=10)
        assert "interrupted after 50 of 100 calls" in found.warnings
        assert str(found).startswith("interrupted after 50 of 100 calls\n")
    else:
        with pytest.raises(BrokenError) as raised:
            measure_latency(after(60, error), 1, num_iterations=100, warmup=10)
        found = raised.value.measured
        assert "ended by an error after 50 of 100 calls" in found.warnings
    assert len(found) == 50


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenError()])
def test_batches_processed_so_far_are_kept(error):
    batches = [np.zeros((4, 2))] * 100
    if isinstance(error, KeyboardInterrupt):
        found = measure_throughput(after(53, error), batches, warmup=3)
        assert "interrupted after 50 of 100 batches" in found.warnings
    else:
        with pytest.raises(BrokenError) as raised:
            measure_throughput(after(53, error), batches, warmup=3)
        found = raised.value.measured
        assert "ended by an error after 50 of 100 batches" in found.warnings
    assert (found.batches, found.samples) == (50, 200)
    assert found.seconds == pytest.approx(found.periods.sum())


class Loader:
    def __init__(self, batches, error):
        self.batches, self.error = batches, error

    def __iter__(self):
        yield from range(self.batches)
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenError()])
def test_batches_delivered_so_far_are_kept(error):
    if isinstance(error, KeyboardInterrupt):
        found = benchmark_dataloader(Loader(21, error), 50)
        assert "interrupted after 20 of 50 batches" in found.warnings
    else:
        with pytest.raises(BrokenError) as raised:
            benchmark_dataloader(Loader(21, error), 50)
        found = raised.value.measured
        assert "ended by an error after 20 of 50 batches" in found.warnings
    assert len(found.times) == 20


@pytest.mark.parametrize("measure", [benchmark_dataloader, functools.partial(measure_throughput, print)])
def test_ctrl_c_before_the_first_batch_goes_on(measure):
    with pytest.raises(KeyboardInterrupt):
        measure(Loader(0, KeyboardInterrupt()))


def test_an_error_that_takes_no_attributes_goes_on_without():
    with pytest.raises(SealedError), kept_on_error(lambda: 1):
        raise SealedError


def test_an_error_goes_on_where_the_partial_result_cannot_be_made():
    def impossible():
        raise ValueError("nothing there")

    with pytest.raises(BrokenError) as raised, kept_on_error(impossible):
        raise BrokenError
    assert not hasattr(raised.value, "measured")
