# SPDX-License-Identifier: Apache-2.0
"""Calls on the CPU that take less than reading the clock is small against are timed in rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fakes.gpu import READING_THE_CLOCK, install
from gpuscope.benchmarking import benchmark, compare, sweep
from gpuscope.benchmarking.engine import Engine, calls_in_a_row
from gpuscope.benchmarking.result import BenchmarkResult

SHORT, CALLS = 1.9e-6, 10  # seconds of a call, and calls in its rows


@pytest.fixture
def gpu(monkeypatch):
    return install(monkeypatch.setattr, present=False)


class Work:
    """A function of the CPU that counts its calls; each takes so many seconds."""

    def __init__(self, gpu, seconds):
        self.gpu, self.seconds, self.calls = gpu, seconds, 0

    def __call__(self):
        self.calls += 1
        self.gpu.work(self.seconds)


class Steps(Work):
    """Its calls take so long from one of them on, or raise an error."""

    def __init__(self, gpu, seconds, after, later=0.0, error=None):
        super().__init__(gpu, seconds)
        self.after, self.later, self.error = after, later, error

    def __call__(self):
        super().__call__()
        if self.calls > self.after:
            self.gpu.work(self.later)
            if self.error is not None:
                raise self.error


def order(count, functions=1):
    return np.arange(count, dtype=np.uint32) % np.uint32(functions)


# -- how long rows are -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [(1e-9, 1000), (30e-9, 500), (45e-9, 200), (0.9e-6, 20), (4.9e-6, 2), (5.1e-6, 1), (1e-3, 1)],
)
def test_rows_are_of_calls_shorter_than_5_us_and_last_20_us_at_most(gpu, seconds, calls):
    with Engine([Work(gpu, seconds)]) as measuring:
        measuring.warm_up(0.005)
    assert measuring.calls_per_sample == calls


def test_a_sample_is_of_exactly_as_many_calls_as_it_says(gpu):
    work = Work(gpu, 1e-6)
    with Engine([work]) as measuring:
        measuring.warm_up(0.01)
        before = work.calls
        samples = measuring.sample("wall", order(45))
    assert work.calls - before == 45 * measuring.calls_per_sample
    assert samples.calls.tolist() == [measuring.calls_per_sample] * 45
    assert samples.calls_of("wall") == work.calls - before


def test_a_sample_is_the_time_of_one_call_of_its_row(gpu):
    with Engine([Work(gpu, 40e-9)]) as measuring:
        alone = measuring.sample("wall", order(3)).seconds["wall"]
        measuring.warm_up(0.01)
        rows = measuring.sample("wall", order(3)).seconds["wall"]
    assert alone == pytest.approx(40e-9 + READING_THE_CLOCK)
    assert rows == pytest.approx(40e-9 + READING_THE_CLOCK / measuring.calls_per_sample)


def test_the_tick_is_that_of_a_rows_mean(gpu):
    with Engine([Work(gpu, 40e-9)]) as measuring:
        measuring.warm_up(0.01)
        assert measuring.tick == measuring.tick_of("wall") == pytest.approx(1e-9 / measuring.calls_per_sample)


def test_all_functions_have_rows_of_the_same_number(gpu):
    short, long = Work(gpu, 50e-9), Work(gpu, 3e-6)
    with Engine([short, long]) as measuring:
        measuring.warm_up(0.01)
        samples = measuring.sample("wall", order(10, functions=2))
    assert len(set(samples.calls)) == 1
    assert short.calls == long.calls


@pytest.mark.parametrize("long", [20e-6, 1e-3, 0.1])
def test_rows_of_a_short_function_do_not_keep_a_long_one_beside_it_for_long(gpu, long):
    calls = calls_in_a_row([50e-9, long])
    assert calls == 1 or calls * long <= 1e-3
    assert calls_in_a_row([50e-9, 20e-6]) > 1


# -- calls that change -----------------------------------------------------------------------------------------------


def test_rows_get_no_more_calls_once_warm(gpu):
    work = Work(gpu, 4e-6)
    with Engine([work]) as measuring:
        measuring.warm_up(0.01)
        calls, work.seconds = measuring.calls_per_sample, 0.0
        measuring.sample("wall", order(100))
    assert measuring.calls_per_sample == calls


def test_rows_keep_their_number_while_times_swing(gpu):
    work = Steps(gpu, SHORT, after=5000, later=2 * SHORT)
    with Engine([work]) as measuring:
        measuring.warm_up(0.05)
    assert measuring.calls_per_sample == CALLS


def test_a_row_ends_early_when_its_calls_became_long(gpu):
    work = Work(gpu, 50e-9)
    with Engine([work]) as measuring:
        measuring.warm_up(0.01)
        work.seconds = 5e-3
        samples = measuring.sample("wall", order(20))
    assert samples.calls.tolist() == [1] * 20
    assert samples.seconds["wall"] == pytest.approx(5e-3, rel=1e-3)


def test_calls_that_become_long_do_not_outlast_the_budget_by_much(gpu):
    result = benchmark(Steps(gpu, SHORT, after=150_000, later=1e-3), budget=0.5, precision=1e-6)
    assert result.max > 1e-3
    assert result.seconds < 0.8


def test_a_row_that_ended_early_counts_with_the_calls_that_it_has(gpu):
    work = Work(gpu, 50e-9)
    with Engine([work]) as measuring:
        measuring.warm_up(0.01)
        usual, before = measuring.calls_per_sample, work.calls
        work.seconds = 0.3e-3
        samples = measuring.sample("wall", order(5))
    assert samples.calls_of("wall") == work.calls - before
    assert set(samples.calls) == {7}
    assert usual == 200


def test_a_long_first_call_does_not_make_rows_few_at_a_time(gpu):
    work = Work(gpu, 0.5)
    with Engine([work]) as measuring:
        measuring.prepare()
        assert measuring.chunk == 1
        work.seconds = SHORT
        measuring.warm_up(0.01)
        assert measuring.chunk > 10
        assert measuring.facts[0].call_seconds == pytest.approx(SHORT, rel=0.01)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_what_a_call_raises_in_a_row_comes_through(gpu):
    work = Steps(gpu, 50e-9, after=12_345, error=ZeroDivisionError("mine"))
    with pytest.raises(ZeroDivisionError, match="mine"):
        benchmark(work)
    assert work.calls == 12_346


def test_an_interrupt_in_a_row_keeps_what_was_measured(gpu):
    work = Steps(gpu, SHORT, after=100_007, error=KeyboardInterrupt())
    result = benchmark(work, precision=1e-6)
    assert result.stopped == "interrupted"
    assert result.calls_per_sample == CALLS
    assert result.n > 100
    assert result.median == pytest.approx(SHORT, rel=0.01)


def test_a_point_of_a_sweep_keeps_the_rows_before_an_error(gpu):
    work = Steps(gpu, SHORT, after=40_007, error=ValueError("theirs"))
    point = sweep(lambda n: work, n=[1]).points[0]
    assert point.estimate.value == pytest.approx(SHORT, rel=0.01)
    assert point.calls == CALLS * len(point.samples) > 0
    assert "theirs" in point.warnings[0]


# -- where there is a GPU --------------------------------------------------------------------------------------------


def test_a_function_without_gpu_work_is_timed_in_rows_beside_a_gpu_too(gpu):
    gpu.present = True
    result = benchmark(Work(gpu, SHORT))
    assert result.calls_per_sample == CALLS
    assert result.median == pytest.approx(SHORT, rel=0.01)
    assert np.isnan(result.clock_hz).all()
    assert "no work on the GPU" in result.absent["kernel"]


def test_gpu_work_is_never_timed_in_rows(gpu):
    gpu.present, gpu.launch_seconds = True, 1e-6
    result = benchmark(lambda: gpu.launch(seconds=1e-6))
    assert result.calls_per_sample == 1
    assert not result.headline.samples.min() < 1e-6 - 1e-9


def test_where_gpu_work_cannot_be_ruled_out_there_are_no_rows(gpu):
    gpu.present, gpu.tier = True, "events"
    with Engine([Work(gpu, 50e-9)]) as measuring:
        measuring.warm_up(0.01)
        assert "done_ns" in measuring._chunk("wall", order(2))
    assert measuring.calls_per_sample == 1


def test_beside_a_function_of_the_gpu_there_are_no_rows(gpu):
    gpu.present = True
    found = compare(Work(gpu, SHORT), gpu.launch, budget=0.1)
    assert found.quantity == "wall"
    assert found.calls_per_sample == 1


# -- results ---------------------------------------------------------------------------------------------------------


def test_a_result_says_how_many_calls_a_sample_has(gpu):
    result = benchmark(Work(gpu, SHORT))
    assert result.calls_per_sample == CALLS
    assert f", {CALLS} calls a sample, CPU)" in str(result)
    assert result.report().count(f"{CALLS} calls a sample") == 2
    assert json.loads(result.to_json())["calls_per_sample"] == CALLS
    assert BenchmarkResult.from_json(result.to_json()).calls_per_sample == CALLS


def test_a_result_of_single_calls_says_nothing_of_it(gpu):
    result = benchmark(Work(gpu, 20e-6))
    assert result.calls_per_sample == 1
    assert "calls a sample" not in result.report()


def test_a_result_saved_before_there_were_rows_is_of_single_calls(gpu):
    saved = json.loads(benchmark(Work(gpu, 20e-6)).to_json())
    del saved["calls_per_sample"]
    assert BenchmarkResult.from_json(json.dumps(saved)).calls_per_sample == 1


def test_compared_functions_are_called_equally_often(gpu):
    a, b = Work(gpu, SHORT), Work(gpu, 1.1 * SHORT)
    found = compare(a, b, budget=0.2, precision=1e-6)
    assert found.verdict == "slower"
    assert found.ratio.value == pytest.approx(1.1, rel=0.001)
    assert found.calls_per_sample == CALLS
    assert f"{CALLS} calls a sample" in str(found)
    assert json.loads(found.to_json())["calls_per_sample"] == CALLS
    assert abs(a.calls - b.calls) < 0.05 * a.calls  # the leads of blocks are random


def test_a_function_too_long_for_rows_has_them_beside_one_that_is_not(gpu):
    found = compare(Work(gpu, 4.9e-6), Work(gpu, 5.1e-6), budget=0.2)
    assert found.calls_per_sample == 2
    assert found.ratio.value == pytest.approx(5.125 / 4.925, rel=1e-6)


def test_reading_the_clock_is_told_where_a_long_function_leaves_no_rows(gpu):
    result = compare(Work(gpu, 50e-9), Work(gpu, 2e-3), budget=0.2)
    assert any("reading the clock is about 50.0 ns of the " in warning for warning in result.warnings)


@pytest.mark.parametrize("other", [50e-9, 1e-6])
def test_reading_the_clock_is_not_told_where_rows_are_long(gpu, other):
    assert not any("clock" in text for text in compare(Work(gpu, 50e-9), Work(gpu, other), budget=0.2).warnings)


def test_a_sweep_counts_calls_and_not_rows(gpu):
    works = []

    def make(n):
        works.append(Work(gpu, n * SHORT))
        return works[-1]

    found = sweep(make, n=[1])
    point = found.points[0]
    assert point.calls_per_sample == CALLS
    assert point.calls == CALLS * len(point.samples) <= sum(work.calls for work in works)
    assert f" {point.calls} calls in " in str(point)
    assert str(point.calls) in found.table()
    assert point.row()["calls"] == point.calls
    assert point.to_dict()["calls_per_sample"] == CALLS
