# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import time
import types

import numpy as np
import pytest

from gpuscope import errors
from gpuscope.benchmarking import cuda_graphs

OVERHEAD = 3e-6


class Replay:
    """A captured graph, which is as long as its calls and a constant."""

    def __init__(self, calls, call_seconds):
        self.calls = calls
        self.seconds = OVERHEAD + calls * call_seconds
        self.launch = self

    def __call__(self):
        pass


class Sampler:
    """Times replays with a little noise; the gate holds up to so many of them."""

    def __init__(self, noise=1e-8, depth=10**9):
        self.random = np.random.default_rng(1)
        self.noise, self.depth = noise, depth
        self.orders = []

    def sample(self, functions, order, *, gate, flush):
        assert gate
        assert not flush
        self.orders.append(order)
        seconds = np.array([functions[which].seconds for which in order])
        late = 0.0 if len(order) <= self.depth else 1e-3
        return {"stream_s": seconds + self.random.normal(late, self.noise, len(order)), "held": late == 0.0}

    def synchronize(self):
        pass


@pytest.fixture
def captures(monkeypatch):
    """Call times to capture with, as the attribute `seconds`, and the graphs captured."""
    found = types.SimpleNamespace(seconds=5e-6, graphs=[], closed=0)

    @contextlib.contextmanager
    def capture(function, calls, *, stream):
        found.graphs.append(Replay(calls, found.seconds))
        try:
            yield found.graphs[-1]
        finally:
            found.closed += 1

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    return found


def measure(sampler, **options):
    return cuda_graphs.marginal(lambda: None, sampler, types.SimpleNamespace(handle=7, device=0), **options)


def test_the_slope_is_the_time_of_a_call_without_the_methods_overhead(captures):
    result = measure(Sampler())
    assert result.estimate.value == pytest.approx(5e-6, rel=1e-3)


def test_the_intercept_is_reported_as_the_methods_overhead(captures):
    result = measure(Sampler())
    assert result.overhead.value == pytest.approx(OVERHEAD, rel=0.02)


def test_sampling_stops_when_the_interval_is_as_narrow_as_asked_for(captures):
    result = measure(Sampler(), precision=0.01, budget=60)
    assert result.converged
    assert result.estimate.relative_half_width <= 0.01
    assert cuda_graphs.FEWEST_ROUNDS <= len(result.samples) <= cuda_graphs.FEWEST_ROUNDS + cuda_graphs.ROUNDS_A_CHUNK


def test_noise_too_large_for_the_budget_is_said(captures):
    result = measure(Sampler(noise=1e-5), precision=1e-6, budget=0.05)
    assert not result.converged


def test_every_round_replays_each_graph_once(captures):
    sampler = Sampler()
    measure(sampler)
    rounds = sampler.orders[-1].reshape(-1, 3)
    assert (np.sort(rounds, axis=1) == [0, 1, 2]).all()
    assert len({tuple(row) for row in rounds}) > 1


def test_fewer_rounds_are_queued_when_the_gate_does_not_hold_them_all(captures):
    result = measure(Sampler(depth=7))
    assert result.estimate.value == pytest.approx(5e-6, rel=1e-3)


def test_a_gate_that_holds_no_round_is_said(captures):
    with pytest.raises(errors.NotAvailable, match="the gate does not hold"):
        measure(Sampler(depth=1), budget=0.05)


def test_graphs_are_closed_again(captures):
    measure(Sampler())
    assert captures.closed == len(captures.graphs)


@pytest.mark.parametrize("call_seconds", [0.5e-6, 5e-6, 50e-6, 1e-3])
def test_the_shortest_replay_is_many_ticks_and_the_longest_ends_soon(call_seconds):
    calls = cuda_graphs.calls_a_graph(lambda count: OVERHEAD + count * call_seconds)
    assert OVERHEAD + calls[0] * call_seconds >= 200 * cuda_graphs.TICK
    assert calls == (calls[0], 2 * calls[0], 4 * calls[0])
    assert calls[-1] * call_seconds <= 1.1 * cuda_graphs.LONGEST


def test_a_call_that_is_long_by_itself_is_captured_the_fewest_times():
    assert cuda_graphs.calls_a_graph(lambda count: count * 0.1) == (1, 2, 4)


def test_calls_of_no_time_do_not_make_an_endless_graph():
    assert cuda_graphs.calls_a_graph(lambda count: 0.0)[-1] <= cuda_graphs.MOST_CALLS


def test_calls_that_take_the_host_long_are_captured_as_often_as_the_budget_allows():
    def replay_seconds(count):
        time.sleep(0.004)
        return count * 1e-7

    assert cuda_graphs.calls_a_graph(replay_seconds, budget=0.1)[0] <= 0.05 / 0.001 / 7


def test_slopes_are_those_of_least_squares():
    seconds = np.array([[3.0, 5.0, 9.5], [1.0, 1.0, 1.0]])
    slope, intercept = cuda_graphs.slopes(seconds, (1, 2, 4))
    expected = [np.polyfit([1, 2, 4], row, 1) for row in seconds]
    np.testing.assert_allclose(np.column_stack((slope, intercept)), expected, atol=1e-12)
