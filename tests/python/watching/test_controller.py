# SPDX-License-Identifier: Apache-2.0
"""The controller on simulated programs, whose true cost is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from gpuscope.watching.controller import (
    WINDOW,
    Place,
    RequestController,
    StepController,
    begins_window,
)

PLACES = {
    (False, False): Place.OUTSIDE,
    (False, True): Place.FIRST_INSIDE,
    (True, True): Place.INSIDE,
    (True, False): Place.FIRST_OUTSIDE,
}
SWITCHES = (Place.FIRST_INSIDE, Place.FIRST_OUTSIDE)


LEARNING = 5000  # steps until the period has followed the cost


def simulated(steps, *, cost, switch=0.0, noise=0.01, budget=0.01, drift=0.0, seed=0):
    """A controller that has seen a program, the periods on its way, and the extra share of its time once it learnt."""
    random = np.random.default_rng(seed)
    controller = StepController(budget)
    periods = [controller.period]
    until, was_inside, lost, total = -1, False, 0.0, 0.0
    for number in range(steps):
        if until <= number and begins_window(number, controller.period):
            until = number + controller.size
        inside = number < until
        place = PLACES[was_inside, inside]
        extra = cost * inside + switch * (place in SWITCHES)
        level = 0.1 * (1 + drift * math.sin(number / 3000))
        controller.add([(level * (1 + extra) * math.exp(random.normal(0, noise)), place)])
        was_inside = inside
        if number >= LEARNING:
            lost, total = lost + level * extra, total + level
        if controller.period != periods[-1]:
            periods.append(controller.period)
    return controller, periods, lost / total


@pytest.mark.parametrize("cost", [0.0, 0.03, 0.16, 0.6])
def test_the_cost_of_the_program_stays_under_the_budget(cost):
    controller, _, share = simulated(60_000, cost=cost, switch=0.2, drift=0.2)
    assert share < 0.01
    assert controller.cost().job_high <= 0.01
    assert not controller.off


def test_the_stated_cost_is_the_true_one():
    controller, _, _ = simulated(60_000, cost=0.16, switch=0.5, drift=0.2)
    cost = controller.cost()
    assert cost.step == pytest.approx(0.16, abs=0.002)
    assert cost.step_low < 0.16 < cost.step_high
    true = (controller.size * 0.16 + 2 * 0.5) / controller.period
    assert cost.job == pytest.approx(true, abs=0.0002)
    assert cost.switch == pytest.approx(1.16, abs=0.05)


def test_the_period_moves_by_a_factor_of_two_and_windows_stay_nested():
    _, periods, _ = simulated(60_000, cost=2.0)
    assert len(periods) > 3
    assert {max(a, b) / min(a, b) for a, b in itertools.pairwise(periods)} == {2.0}
    assert all(math.log2(period / WINDOW).is_integer() for period in periods)
    begins = [{step for step in range(20_000) if begins_window(step, period)} for period in sorted(periods)]
    assert all(longer <= shorter for shorter, longer in itertools.pairwise(begins))


def test_a_cheap_window_comes_more_often():
    controller, periods, _ = simulated(60_000, cost=0.01)
    assert controller.period < periods[0]


def test_windows_that_cost_too_much_end_and_say_so():
    controller, _, _ = simulated(250_000, cost=100.0)
    assert controller.period == 0
    assert "only the heartbeat is on" in controller.off
    assert controller.cost().job == 0.0


def test_a_large_cost_shortens_the_windows_first():
    controller, _, _ = simulated(300_000, cost=8.0)
    assert (controller.size, controller.period) == (5, 12_800)


def test_a_budget_of_zero_has_no_windows():
    controller = StepController(0.0)
    assert controller.period == 0
    assert "budget is 0" in controller.off
    assert not any(begins_window(step, controller.period) for step in range(1000))


def test_the_first_steps_are_in_no_window():
    controller = StepController(0.01)
    assert not begins_window(0, controller.period)
    assert begins_window(controller.period, controller.period)


def test_the_first_window_does_not_count_as_it_loads_libraries():
    controller = StepController(0.01)
    begun = controller.period

    def window(first_s):
        times = [(0.1, Place.OUTSIDE)] * 30 + [(first_s, Place.FIRST_INSIDE)] + [(0.1, Place.INSIDE)] * 24
        controller.add([*times, (0.1, Place.FIRST_OUTSIDE), *[(0.1, Place.OUTSIDE)] * 30])

    window(100.0)
    assert controller.cost() is None
    assert controller.period == begun
    window(0.1)
    assert controller.cost().job == pytest.approx(0.0, abs=1e-9)
    assert controller.extra == pytest.approx(999, abs=1)


def test_steps_of_other_profilers_are_not_compared():
    plain, mixed = StepController(0.01), StepController(0.01)
    for _ in range(3):
        window = [(0.1, Place.OUTSIDE)] * 30 + [(0.1, Place.FIRST_INSIDE)] + [(0.12, Place.INSIDE)] * 24
        window += [(0.1, Place.FIRST_OUTSIDE), *[(0.1, Place.OUTSIDE)] * 30]
        plain.add(window)
        mixed.add([each for time in window for each in (time, (9.0, Place.APART))])
    assert plain.cost() == mixed.cost()


def requests(controller, *, inside, outside, count, seed=0):
    random = np.random.default_rng(seed)
    for number in range(count):
        in_window = bool(controller.period) and number % controller.period < controller.size
        scale = inside if in_window else outside
        controller.add([(scale * math.exp(random.normal(0, 0.3)), Place.INSIDE if in_window else Place.OUTSIDE)])


def test_the_p99_of_requests_is_guarded():
    controller = RequestController(0.01)
    requests(controller, inside=0.013, outside=0.01, count=100_000)
    cost = controller.cost()
    assert cost.step_low < 0.3 < cost.step_high
    assert cost.job_high <= 0.01
    inside, outside = controller.p99_s
    assert inside / outside == pytest.approx(1 + cost.step, rel=0.02)


def test_few_requests_have_no_interval():
    controller = RequestController(0.01)
    assert controller.cost() is None
    requests(controller, inside=0.01, outside=0.01, count=150)
    assert controller.cost().step_high == math.inf
