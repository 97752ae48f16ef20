# SPDX-License-Identifier: Apache-2.0
"""`tune` and `triton_bench` on a clock that only the models of functions move."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest

from gpuscope import _core
from gpuscope.benchmarking import triton_bench, tune
from gpuscope.errors import InvalidArgument, NotAvailable

stopping = importlib.import_module("gpuscope.benchmarking.stopping")


class Clock:
    """Functions that take a given time, with noise; calls move the clock."""

    def __init__(self) -> None:
        self.now, self.random, self.noise, self.calls = 0.0, np.random.default_rng(1), 0.01, {}

    def function(self, seconds, error=None, after=0):
        def run(*args):
            self.calls[run] = self.calls.get(run, 0) + 1
            if error is not None and self.calls[run] > after:
                raise error
            self.now += seconds * (1 + self.noise * self.random.normal())
            return args

        return run

    def time_calls(self, functions, order, *, repeat=1, longest_ns=0):
        returned, called = [], []
        for each in order:
            called.append(self.now * 1e9)
            for _ in range(repeat):
                functions[each]()
            returned.append(self.now * 1e9)
        return {"called_ns": np.array(called), "returned_ns": np.array(returned), "calls": np.full(len(order), repeat)}


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_core, "time_calls", clock.time_calls)
    monkeypatch.setattr(_core, "environment", lambda: {"devices": []})
    monkeypatch.setattr(stopping, "now", lambda: clock.now)
    return clock


def tuned(clock, *seconds, **options):
    return tune({f"{each:g}": clock.function(1e-3 * each) for each in seconds}, seed=1, **options)


def test_the_fastest_wins_and_the_others_are_slower(clock):
    found = tuned(clock, 1.2, 1, 1.1)
    assert (found.winner, found.ties, found.stopped) == ("1", (), "winner")


def test_equal_candidates_tie(clock):
    assert len(tuned(clock, 1, 1.0001).ties) == 1


def test_the_ratios_hold_the_true_ones(clock):
    found = {one.name: one.ratio for one in tuned(clock, 1, 1.05, 1.1).candidates}
    assert found["1"] is None
    assert all(found[name].low <= float(name) <= found[name].high for name in ("1.05", "1.1"))


def test_a_far_slower_candidate_is_called_twice(clock):
    slow = clock.function(60.0)
    found = tune({"fast": clock.function(1e-3), "slow": slow})
    assert (found.winner, clock.calls[slow], found.candidates[1].left_out) == ("fast", 2, "far slower")


def test_a_slow_first_call_does_not_lose(clock):
    fast = clock.function(1e-3)

    def compiled():
        clock.now += 0.0 if clock.calls.get(fast) else 30.0
        return fast()

    assert tune({"compiled": compiled, "other": clock.function(2e-3)}).winner == "compiled"


def test_a_candidate_that_raises_is_left_out_and_named(clock):
    found = tune({"bad": clock.function(1e-3, ValueError("no room")), "good": clock.function(1e-3)})
    assert (found.winner, found.candidates[1].error) == ("good", "ValueError: no room")


def test_a_candidate_that_raises_later_is_left_out_too(clock):
    found = tune({"bad": clock.function(1e-3, ValueError("late"), after=20), "good": clock.function(2e-3)})
    assert (found.winner, found.candidates[1].left_out) == ("good", "error")


def test_without_any_candidate_the_errors_are_said(clock):
    with pytest.raises(NotAvailable, match="no candidate could be measured: bad: ValueError: no room"):
        tune({"bad": clock.function(1e-3, ValueError("no room"))})


def test_arguments_are_passed_to_each(clock):
    seen = []
    tune([lambda *args: (seen.append(args), clock.function(1e-3)())], (1, 2), budget=0.01)
    assert set(seen) == {(1, 2)}


def test_the_budget_is_kept(clock):
    clock.noise = 0.3
    began = clock.now
    tuned(clock, 1, 1.001, 1.002, budget=0.5)
    assert clock.now - began < 0.6


def test_a_single_candidate_wins(clock):
    assert tuned(clock, 1).winner == "1"


def test_functions_of_one_name_get_numbers(clock):
    assert {one.name for one in tune([clock.function(1e-3), clock.function(2e-3)]).candidates} == {"run", "run 2"}


def test_the_winner_is_the_function_itself(clock):
    fast = clock.function(1e-3)
    assert tune([clock.function(2e-3), fast]).function is fast


def test_json_has_all_candidates(clock):
    found = json.loads(tuned(clock, 1, 2).to_json())
    assert [one["name"] for one in found["candidates"]] == ["1", "2"]


def test_the_frame_has_a_row_for_each_candidate(clock):
    pytest.importorskip("pandas")
    assert tuned(clock, 1, 2).to_pandas()["name"].tolist() == ["1", "2"]


def test_the_table_says_why_a_candidate_left(clock):
    assert "far slower" in tuned(clock, 1, 100).table()


@pytest.mark.parametrize("candidates", [{}, [], "sort", 1, {"a": 1}], ids=repr)
def test_candidates_that_are_no_functions_are_refused(candidates):
    with pytest.raises(InvalidArgument, match="accepted are functions by name, or a list of functions"):
        tune(candidates)


def test_arguments_that_are_no_tuple_are_refused():
    with pytest.raises(InvalidArgument, match="accepted is a tuple"):
        tune([int], 3)


def test_triton_bench_returns_the_quantiles_in_ms(clock):
    middle, low, high = triton_bench(clock.function(2e-3), quantiles=(0.5, 0.2, 0.8))
    assert low < middle < high
    assert middle == pytest.approx(2, rel=0.02)


def test_triton_bench_returns_the_mean_without_quantiles(clock):
    assert triton_bench(clock.function(2e-3)) == pytest.approx(2, rel=0.02)


def test_triton_bench_does_not_repeat_a_long_call(clock):
    slow = clock.function(60.0)
    triton_bench(slow, quantiles=(0.5, 0.2, 0.8))
    assert clock.calls[slow] == 2


def test_triton_bench_passes_errors_on(clock):
    with pytest.raises(ValueError, match="no room"):
        triton_bench(clock.function(1e-3, ValueError("no room")))


def test_triton_bench_drops_gradients_before_each_call(clock):
    class Tensor:
        grad = "old"

    tensor = Tensor()
    triton_bench(clock.function(1e-3), grad_to_none=[tensor])
    assert tensor.grad is None


def test_triton_bench_refuses_a_quantile_above_one():
    with pytest.raises(InvalidArgument, match="accepted are fractions from 0 to 1"):
        triton_bench(int, quantiles=(1.5,))
