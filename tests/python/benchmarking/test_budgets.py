# SPDX-License-Identifier: Apache-2.0
"""Budgets are kept where first calls are slow, and where calls come to take far longer than they took at first."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from fakes.engines import Clock, Engines
from fakes.gpu import install
from gpuscope import _core
from gpuscope.benchmarking import benchmark, benchmarks, compare, engine, rounds, stopping, sweep
from gpuscope.benchmarking.engine import Engine
from gpuscope.system import environment

comparison = importlib.import_module("gpuscope.benchmarking.comparison")  # whose name in the package is a function's


class Machine:
    """Takes the time of calls on a clock that only they move: a machine without a GPU.

    Attributes:
        seconds: what a call takes, by how many were made before.
        starting: what finding out about the environment takes.
        overhead: of a call, beside its time.
    """

    def __init__(self, monkeypatch, seconds, starting=0.0):
        self.seconds, self.starting, self.overhead = seconds, starting, 1e-7
        self.now, self.calls = 100.0, 0
        monkeypatch.setattr(_core, "environment", lambda: {"devices": []})
        monkeypatch.setattr(_core, "time_calls", self.time_calls)
        monkeypatch.setattr(stopping, "now", lambda: self.now)
        monkeypatch.setattr(benchmarks, "environment", self.environment)
        monkeypatch.setattr(engine, "_LARGEST_CHUNK", 8)
        self.random = np.random.default_rng(0)

    def spend(self, seconds):
        self.now += seconds

    def environment(self):
        """As that of the system, which looks once a process."""
        self.spend(self.starting)
        self.starting = 0.0
        return environment()

    def call(self):
        """The function that is measured; what it takes is of the clock alone."""
        self.spend(self.seconds(self.calls))
        self.calls += 1

    def time_calls(self, functions, order, *, repeat, longest_ns):
        taken, made = [], []
        for number in order:
            before, calls = self.now, 0
            while calls < repeat and self.now - before <= longest_ns / 1e9:
                functions[number]()
                calls += 1
            taken.append(self.now - before)
            made.append(calls)
            self.spend(self.overhead)
        spread = 1 + 0.3 * self.random.random(len(order))
        return {
            "called_ns": np.zeros(len(order)),
            "returned_ns": np.array(taken) * spread * 1e9,
            "calls": np.array(made, np.uint32),
        }


@pytest.mark.parametrize("budget", [0.05, 0.5, 2.0])
def test_a_first_call_longer_than_the_budget_leaves_half_of_it_for_samples(monkeypatch, budget):
    machine = Machine(monkeypatch, lambda calls: 3.0 if not calls else 20e-6)
    found = benchmark(machine.call, budget=budget, precision=1e-9)
    assert found.n >= 100
    assert found.p95 < 30e-6
    assert found.seconds < 3.0 + 0.6 * budget


def test_a_start_longer_than_the_budget_leaves_half_of_it_for_samples(monkeypatch):
    machine = Machine(monkeypatch, lambda calls: 20e-6, starting=0.4)
    found = benchmark(machine.call, budget=0.05, precision=1e-9)
    assert found.n >= 100
    assert found.seconds < 0.4 + 0.04


def test_a_first_call_longer_than_the_budget_leaves_blocks_to_compare(monkeypatch):
    machine = Machine(monkeypatch, lambda calls: 3.0 if calls < 2 else 20e-6)
    found = compare(machine.call, machine.call, budget=0.1, precision=1e-9)
    assert found.blocks >= 50


@pytest.mark.parametrize("functions", [1, 2])
def test_tiny_calls_are_measured_in_rows_after_a_first_one_longer_than_the_budget(monkeypatch, functions):
    machine = Machine(monkeypatch, lambda calls: 3.0 if calls < functions else 100e-9)
    measure = benchmark if functions == 1 else compare
    found = measure(*[machine.call] * functions, budget=0.05, precision=1e-9)
    assert found.calls_per_sample >= 50
    assert found.seconds < 3.0 * functions + 0.06


def test_calls_that_leave_no_time_for_warming_up_are_said_to_have_had_none(monkeypatch):
    machine = Machine(monkeypatch, lambda calls: 3.0)
    assert benchmark(machine.call, budget=0.5).warnings == ("nothing was warmed up: the budget left no time for it",)


def test_a_first_call_counts_where_it_leaves_time_enough(monkeypatch):
    machine = Machine(monkeypatch, lambda calls: 0.4 if not calls else 20e-6)
    assert 0.95 < benchmark(machine.call, budget=1.0, precision=1e-9).seconds < 1.05


@pytest.mark.parametrize("call", [0.02, 0.1, 0.25, 0.4])
@pytest.mark.parametrize("budget", [0.5, 2.0])
def test_long_calls_end_with_the_budget(monkeypatch, call, budget):
    machine = Machine(monkeypatch, lambda calls: call)
    assert benchmark(machine.call, budget=budget, precision=1e-9).seconds <= budget + 0.76 * call


@pytest.mark.parametrize("call", [0.02, 0.1, 0.25, 0.4])
@pytest.mark.parametrize("budget", [0.5, 2.0])
def test_comparisons_of_long_calls_end_with_the_budget_or_one_block(monkeypatch, call, budget):
    machine = Machine(monkeypatch, lambda calls: call)
    least = 2 + 5  # the first call of each, and a block
    found = compare(machine.call, machine.call, budget=budget, precision=1e-9)
    assert found.seconds <= max(1.2 * budget, (least + 0.1) * call)


@pytest.mark.parametrize(("later", "budget"), [(1000, 0.5), (5000, 0.5), (5000, 2.0)])
def test_calls_that_become_slower_by_far_end_with_the_budget(monkeypatch, later, budget):
    slow = 0.01  # as where the threads of all cores wait for each other
    machine = Machine(monkeypatch, lambda calls: slow if calls > later else 20e-6)
    assert benchmark(machine.call, budget=budget, precision=1e-9).seconds <= budget + 8 * slow
    machine.calls = 0
    assert compare(machine.call, machine.call, budget=budget, precision=1e-9).seconds <= budget + 8 * slow


def test_a_comparison_that_is_cut_short_rests_on_whole_blocks(monkeypatch):
    machine = Machine(monkeypatch, lambda calls: 0.01 if calls > 3000 else 20e-6)
    found = compare(machine.call, machine.call, budget=0.5, precision=1e-9)
    assert len(found.a.samples) + len(found.b.samples) == 5 * found.blocks


def test_visits_of_calls_that_become_slower_by_far_end_with_the_budget(monkeypatch):
    engines = Engines(Clock())
    monkeypatch.setattr(rounds, "Engine", engines)
    monkeypatch.setattr(stopping, "now", engines.clock)
    calls = iter(range(10**9))
    before = engines.clock.now
    sweep(lambda n: lambda: 0.01 if next(calls) > 3000 else 20e-6, n=[1, 2, 3], precision=1e-9, budget=1.0)
    assert engines.clock.now - before < 1.2


def test_ticks_far_longer_than_a_call_leave_blocks_that_fit_into_the_budget(monkeypatch):
    machine = Machine(monkeypatch, lambda calls: 0.01)
    times = machine.time_calls

    def coarse(*given, **rows):
        found = times(*given, **rows)
        return found | {"returned_ns": np.round(found["returned_ns"] / 15.6e6) * 15.6e6}

    monkeypatch.setattr(_core, "time_calls", coarse)
    assert compare(machine.call, machine.call, budget=2.0, precision=1e-9).seconds <= 2.2


def test_samples_end_after_the_seconds_that_they_may_take(monkeypatch):
    gpu = install(monkeypatch.setattr)
    with Engine([lambda: gpu.launch(seconds=1e-3)]) as measuring:
        for quantity in ("kernel", "stream", "wall"):
            taken = measuring.sample(quantity, np.zeros(1000, np.uint32), 0.05)
            assert 1 <= len(taken.which) < 200
            assert {len(column) for column in taken.seconds.values()} == {len(taken.which)}
            assert len(measuring.sample(quantity, np.zeros(1000, np.uint32), 0.0).which) == measuring.chunk
