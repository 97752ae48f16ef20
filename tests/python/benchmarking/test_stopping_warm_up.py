# SPDX-License-Identifier: Apache-2.0
"""Warming up ends when time and clock are steady, and not before."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.gpu import install
from gpuscope.benchmarking.engine import Engine
from gpuscope.benchmarking.stopping import is_steady

CLOCK = [1.7e9] * 8
FLAT = [10e-6] * 8


def test_equal_times_and_clocks_are_steady():
    assert is_steady(FLAT, CLOCK)


def test_fewer_chunks_than_a_window_are_not():
    assert not is_steady(FLAT[:7], CLOCK[:7])


def test_a_ramp_of_times_is_not_steady():
    assert not is_steady([10e-6 * (1 - 0.01 * step) for step in range(8)], CLOCK)


def test_a_ramp_too_small_to_matter_is_steady():
    assert is_steady([10e-6 * (1 - 0.0001 * step) for step in range(8)], CLOCK)


def test_only_the_last_window_counts():
    assert is_steady([20e-6, 15e-6, 12e-6, *FLAT], [1e9, 1.2e9, 1.5e9, *CLOCK])


def test_noise_without_a_trend_is_steady():
    assert is_steady([10e-6, 11e-6, 10.2e-6, 10.9e-6, 10.1e-6, 10.8e-6, 10.3e-6, 10.7e-6], CLOCK)


def test_a_changing_clock_is_not_steady():
    assert not is_steady(FLAT, [1.6e9, *CLOCK[1:]])


def test_unknown_clocks_leave_the_decision_to_the_times():
    assert is_steady(FLAT, [np.nan] * 8)


@pytest.fixture
def gpu(monkeypatch):
    return install(monkeypatch.setattr)


def test_a_steady_kernel_is_warm_soon(gpu):
    with Engine([lambda: gpu.launch(seconds=5e-6)]) as engine:
        warm_up = engine.warm_up(1.0)
    assert warm_up.steady
    assert warm_up.seconds < 0.05
    assert warm_up.samples >= 10


def test_it_goes_on_while_the_clock_ramps_up(gpu):
    gpu.clock_hz = lambda seconds: 1e9 + min(seconds, 0.2) * 3.5e9
    with Engine([gpu.launch]) as engine:
        warm_up = engine.warm_up(1.0)
    assert warm_up.steady
    assert warm_up.seconds > 0.15
    assert engine.reference_hz == pytest.approx(1.7e9)


def test_it_ends_with_its_time_and_says_that_nothing_was_steady(gpu):
    gpu.noise = 0.01
    gpu.slowdown = lambda seconds: 1 + 10 * seconds
    with Engine([gpu.launch]) as engine:
        warm_up = engine.warm_up(0.3)
    assert not warm_up.steady
    assert 0.3 <= warm_up.seconds < 0.35
