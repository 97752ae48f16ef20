# SPDX-License-Identifier: Apache-2.0
"""Comparisons of models of functions, on a clock that only the models move."""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from gpuscope.benchmarking.comparison import LOOKS, Looks, compare, judge
from gpuscope.benchmarking.engine import Engine
from gpuscope.benchmarking.kernel_times import Kernel
from gpuscope.benchmarking.samples import Samples
from gpuscope.benchmarking.stopping import WarmUp
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.stats import Ratio

budget = importlib.import_module("gpuscope.benchmarking.stopping")
module = importlib.import_module("gpuscope.benchmarking.comparison")
TICK = 32e-9


def nothing() -> None:
    return


class ModelEngine:
    """Takes the time of functions from `true`, with noise and drift, and moves a clock of its own."""

    headline = Engine.headline

    def __init__(self, *true, noise=0.005, drift=0.0, cost=40e-6, seed=0, absent=(), invalid=0.0, kernels=()):
        self.true, self.noise, self.drift, self.cost = np.array(true), noise, drift, cost
        self.random = np.random.default_rng(seed)
        self.absent = dict.fromkeys(absent, "the test says so")
        self.invalid, self.kernels, self.now, self.closed = invalid, kernels, 0.0, False
        self.tick, self.on_gpu, self.device, self.asked = TICK, True, 0, []
        self.sample_seconds = float(self.true.max())
        self.interrupt_after = math.inf
        self.breaks = ()  # quantities that turn out not to be had when they are sampled

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.closed = True

    def prepare(self):
        return

    def warm_up(self, seconds):
        spent = 4 * float(self.true.mean() + self.cost)
        self.now += spent
        return WarmUp(True, spent, 4, sample_seconds=spent / 4)

    def sample(self, quantity, order, seconds=math.inf):
        self.asked.append(quantity)
        if quantity in self.breaks:
            self.absent[quantity] = "the gate does not hold"
        if self.now > self.interrupt_after:
            raise KeyboardInterrupt
        n = len(order)
        true = self.true[order]
        when = self.now + np.cumsum(true + self.cost)
        n = min(n, int(np.searchsorted(when, self.now + seconds)) + 1)
        order, true, when = order[:n], true[:n], when[:n]
        self.now = float(when[-1])
        seconds = true * (1 + self.noise * self.random.normal(size=n) + self.drift * when)
        begin = self.random.random(n) * TICK
        seconds = np.round(np.floor((begin + seconds) / TICK) - np.floor(begin / TICK)) * TICK
        valid = self.random.random(n) >= self.invalid
        given = "launch" if quantity in self.breaks else quantity  # as the engine's samples, which have no other then
        return Samples(order, {given: seconds}, np.full(n, np.nan), np.zeros(n, bool), valid, self.kernels)


@pytest.fixture
def compared(monkeypatch):
    """compare() on an engine that is given."""

    def run(engine, **options):
        monkeypatch.setattr(module, "Engine", lambda functions, **_: engine)
        monkeypatch.setattr(budget, "now", lambda: engine.now)
        return module.compare(nothing, nothing, **{"seed": 1, **options})

    return run


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.02, "slower"), (0.98, "faster"), (1.0, "same"), (1.004, "same"), (2.0, "slower")]
)
def test_the_verdict_is_on_the_second_function(compared, ratio, verdict):
    found = compared(ModelEngine(20e-6, ratio * 20e-6))
    assert found.verdict == verdict
    assert found.ratio.low <= ratio <= found.ratio.high


def test_a_slowdown_of_two_percent_is_found_within_a_second(compared):
    found = [compared(ModelEngine(20e-6, 20.4e-6, seed=seed), seed=seed) for seed in range(50)]
    assert sum(one.verdict == "slower" for one in found) >= 48
    assert max(one.seconds for one in found) <= 1.0


@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_equals_are_seldom_told_apart_even_without_a_margin(compared, drift):
    found = [
        compared(ModelEngine(20e-6, 20e-6, drift=drift, seed=seed), seed=seed, margin=1e-6, budget=0.2)
        for seed in range(100)
    ]
    assert sum(one.verdict in ("faster", "slower") for one in found) <= 8


def test_a_kernel_below_the_clocks_resolution_is_compared(compared):
    found = compared(ModelEngine(2.01e-6, 2.05e-6, noise=0.0005))
    assert found.verdict == "slower"
    assert found.ratio.value == pytest.approx(2.05 / 2.01, abs=1e-3)


@pytest.mark.parametrize("ratio", [1.0, 1.02])
def test_the_interval_on_a_clock_whose_tick_is_not_told_holds_the_ratio(compared, ratio):
    absent = ["kernel", "span", "stream"]
    found = [
        compared(ModelEngine(2.01e-6, ratio * 2.01e-6, cost=2e-6, absent=absent, seed=seed), budget=0.3, seed=seed)
        for seed in range(100)
    ]
    assert {one.quantity for one in found} == {"wall"}
    assert sum(one.ratio.low <= ratio <= one.ratio.high for one in found) >= 93


def test_outliers_on_a_coarse_clock_do_not_widen_the_interval(compared):
    engine = ModelEngine(2.01e-6, 2.05e-6)
    take = engine.sample

    def with_outliers(quantity, order, seconds):
        samples = take(quantity, order, seconds)
        samples.seconds[quantity][engine.random.random(len(order)) < 0.01] *= 5
        return samples

    engine.sample = with_outliers
    found = compared(engine, precision=0.002)
    assert found.ratio.low <= 2.05 / 2.01 <= found.ratio.high
    assert found.seconds < 0.2


def test_what_cannot_be_told_says_what_would_tell_it(compared):
    found = compared(ModelEngine(20e-6, 20.6e-6, noise=0.3), budget=0.1)
    assert (found.verdict, found.stopped) == ("inconclusive", "budget")
    assert re.fullmatch(
        r"the noise is too large for a margin of 1 %: the ratio is known to \+-[1-9](\.\d)? % after 0\.1 s; "
        r"a budget of about \d[\d.e+]* s would settle it",
        found.advice,
    )
    assert found.advice in str(found)


@pytest.mark.parametrize("ratio", [1.0, 1.02])
def test_the_budget_that_is_advised_mostly_settles_it(compared, ratio):
    settled = []
    for seed in range(10):
        found = compared(ModelEngine(20e-6, ratio * 20e-6, noise=0.1, seed=seed), budget=0.1, seed=seed)
        if found.advice:
            (seconds,) = re.findall(r"a budget of about ([\d.e+]+) s would settle it", found.advice)
            again = compared(ModelEngine(20e-6, ratio * 20e-6, noise=0.1, seed=seed), budget=float(seconds), seed=seed)
            settled.append(again.verdict in ("same", "slower"))
    assert len(settled) >= 5
    assert sum(settled) >= 0.7 * len(settled)


def test_noise_for_which_no_budget_is_long_enough_is_said(compared):
    found = compared(ModelEngine(20e-6, 20e-6, noise=0.3), margin=1e-4, budget=0.1)
    assert re.search(r"too large for a margin of 0.01 %.*; a budget of more than 100 s would", found.advice)


def test_too_few_blocks_have_no_verdict(compared):
    found = compared(ModelEngine(0.1, 0.2), budget=1.0)
    assert found.verdict == "inconclusive"
    assert found.ratio.high == math.inf
    assert "cannot give an interval; a budget of about" in str(found)
    assert json.loads(found.to_json())["ratio"]["high"] is None


def test_few_blocks_of_slow_functions_are_enough_for_a_clear_difference(compared):
    found = [compared(ModelEngine(0.01, 0.011, seed=seed), seed=seed) for seed in range(30)]
    assert max(one.blocks for one in found) < 20
    assert sum(one.verdict == "slower" for one in found) >= 29


def test_equal_samples_leave_the_ticks_doubt(compared):
    engine = ModelEngine(20e-6, 20e-6)
    take = engine.sample

    def constant(quantity, order, seconds):
        samples = take(quantity, order, seconds)
        samples.seconds[quantity][:] = 640e-9
        return samples

    engine.sample = constant
    found = compared(engine)
    assert found.ratio.high == pytest.approx(math.exp(0.05))
    assert found.verdict == "inconclusive"


def test_a_target_goes_on_until_the_interval_is_narrow(compared):
    early, late = compared(ModelEngine(20e-6, 22e-6)), compared(ModelEngine(20e-6, 22e-6), precision=0.0005)
    assert late.stopped == "precision"
    assert late.ratio.high - late.ratio.low <= 0.0011 * late.ratio.value
    assert late.blocks > early.blocks


def test_the_first_quantity_of_both_decides(compared):
    assert compared(ModelEngine(20e-6, 22e-6)).quantity == "kernel"
    assert compared(ModelEngine(20e-6, 22e-6, absent=["kernel", "span"])).quantity == "stream"
    assert compared(ModelEngine(20e-6, 22e-6, absent=["kernel", "span", "stream"])).quantity == "wall"


def test_a_quantity_that_is_lost_on_the_way_gives_way_to_the_next(compared):
    engine = ModelEngine(20e-6, 22e-6, absent=["kernel"])
    engine.breaks = ("stream",)
    found = compared(engine)
    assert (found.quantity, found.verdict) == ("wall", "slower")


def test_a_quantity_that_is_asked_for_and_lost_on_the_way_gets_one_sentence(compared):
    engine = ModelEngine(20e-6, 22e-6)
    engine.breaks = ("stream",)
    with pytest.raises(NotAvailable, match=r"^stream time cannot be compared: the gate does not hold$"):
        compared(engine, quantity="stream")


def test_what_was_measured_of_a_quantity_before_it_was_lost_is_the_result(compared, monkeypatch):
    engine = ModelEngine(20e-6, 20.2e-6, absent=["kernel"])
    sample = engine.sample

    def sample_and_lose(quantity, order, seconds=math.inf):
        engine.breaks = ("stream",) if len(engine.asked) == 4 else ()
        return sample(quantity, order, seconds)

    monkeypatch.setattr(engine, "sample", sample_and_lose)
    found = compared(engine, precision=1e-6)
    assert (found.quantity, len(engine.asked)) == ("stream", 5)
    assert found.blocks >= 1
    assert any("stream time could not be measured to the end" in warning for warning in found.warnings)


def test_a_quantity_that_is_asked_for_is_taken(compared):
    engine = ModelEngine(20e-6, 22e-6)
    assert compared(engine, quantity="launch").quantity == "launch"
    assert set(engine.asked) == {"launch"}


def test_interrupted_it_keeps_what_it_has(compared):
    engine = ModelEngine(20e-6, 22e-6)
    engine.interrupt_after = 0.1
    found = compared(engine, precision=1e-4)
    assert (found.stopped, found.verdict) == ("interrupted", "slower")
    assert engine.closed


def test_interrupted_before_any_sample_it_is_interrupted(compared):
    engine = ModelEngine(20e-6, 22e-6)
    engine.interrupt_after = -1.0
    with pytest.raises(KeyboardInterrupt):
        compared(engine)


def test_samples_that_are_not_whole_are_left_out_and_told(compared):
    found = compared(ModelEngine(20e-6, 21e-6, invalid=0.2))
    assert found.verdict == "slower"
    assert any("were not whole" in warning for warning in found.warnings)


def test_without_a_whole_sample_there_is_no_comparison(compared):
    with pytest.raises(NotAvailable, match="kernel time cannot be compared"):
        compared(ModelEngine(20e-6, 21e-6, invalid=1.1))


def test_calls_in_which_the_clock_may_stand_still_are_compared_whatever_the_budget(compared):
    """Three in ten of the samples are of 0 s."""
    found = [compared(ModelEngine(0.7 * TICK, 0.7 * TICK, seed=seed), seed=seed, budget=5e-324) for seed in range(20)]
    assert {one.verdict for one in found} == {"inconclusive"}


def test_the_samples_are_those_of_each_function(compared):
    found = compared(ModelEngine(20e-6, 40e-6))
    assert found.a.median == pytest.approx(20e-6, rel=0.01)
    assert found.b.median == pytest.approx(40e-6, rel=0.01)
    assert abs(len(found.a) - len(found.b)) < found.blocks  # blocks are led by either


KERNELS = (
    (Kernel("gemm", 1, 15e-6), Kernel("copy", 1, 5e-6)),
    (Kernel("gemm", 1, 15.2e-6), Kernel("copy", 1, 6e-6)),
)


def test_the_culprit_is_the_kernel_that_grew_most(compared):
    found = compared(ModelEngine(20e-6, 21.2e-6, kernels=KERNELS))
    assert found.culprit is not None
    assert found.culprit.name == "copy"
    assert (found.culprit.before, found.culprit.after) == (pytest.approx(5e-6), pytest.approx(6e-6))
    assert str(found).endswith(", most of it in copy: +1 us")


def test_without_kernels_there_is_no_culprit(compared):
    assert compared(ModelEngine(20e-6, 21.2e-6)).culprit is None


def test_it_says_itself_in_one_line(compared):
    slower = str(compared(ModelEngine(20e-6, 20.42e-6), names=("old", "new")))
    assert slower.startswith("new is 1.02")
    assert "x slower than old (95 %: 1.0" in slower
    assert "kernel time" in slower
    assert "margin 1 %" in slower
    assert str(compared(ModelEngine(20e-6, 10e-6))).startswith(("b is 2.00", "b is 1.99"))
    assert str(compared(ModelEngine(20e-6, 20e-6))).startswith("b is as fast as a: ratio ")


def test_times_that_are_worlds_apart_have_no_exponent(compared):
    found = replace(
        compared(ModelEngine(20e-6, 20e-6)), verdict="slower", ratio=Ratio(19_837.0, 18_950.0, 20_030.0, 9, 0.01)
    )
    assert str(found).startswith("b is 19,837x slower than a (95 %: 18,950 to 20,030,")
    unsure = replace(found, verdict="inconclusive", ratio=Ratio(5.05e-5, 0.0, math.inf, 1, 1.0))
    assert str(unsure).startswith("b against a is inconclusive: ratio 0.0000505 (95 %: 0 to inf,")


def test_the_report_is_aligned_by_what_a_terminal_shows(compared):
    lines = compared(ModelEngine(20e-6, 20e-6), names=("\u65e5\u672c", "kernel")).report().splitlines()
    assert lines[1].startswith("  \u65e5\u672c    kernel ")
    assert lines[2].startswith("  kernel  kernel ")


def test_it_is_neither_true_nor_false(compared):
    with pytest.raises(TypeError, match="read its verdict"):
        bool(compared(ModelEngine(20e-6, 20e-6)))


def test_it_is_saved_as_json(compared, tmp_path):
    path = tmp_path / "a.json"
    found = compared(ModelEngine(20e-6, 21e-6, kernels=KERNELS))
    text = found.to_json(path)
    assert path.read_text(encoding="utf-8").strip() == text
    content = json.loads(text)
    assert content["verdict"] == "slower"
    assert len(content["b"]) == len(found.b)


def test_names_come_from_the_functions():
    def old() -> None:
        return

    assert module._names(functools.partial(old), nothing, None) == ("old", "nothing")
    assert module._names(old, old, None) == ("a", "b")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"a": 3}, r"a is 3; accepted is a function"),
        ({"b": None}, r"b is None; accepted is a function"),
        ({"quantity": "time"}, r"quantity is 'time'; accepted are 'kernel', 'span',"),
        ({"margin": 0}, r"margin is 0; accepted are fractions"),
        ({"margin": None}, r"margin is None; accepted are fractions"),
        ({"precision": 1.5}, r"precision is 1.5; accepted are fractions"),
        ({"budget": -1}, r"budget is -1; accepted are seconds above 0"),
        ({"budget": math.inf}, r"budget is inf; accepted are seconds above 0"),
        ({"names": "ab"}, r"names is 'ab'; accepted are two names"),
        ({"names": ("a",)}, r"names is \('a',\); accepted are two names"),
    ],
)
def test_bad_input_gets_one_sentence(options, sentence):
    with pytest.raises(InvalidArgument, match=rf"^{sentence}"):
        module.compare(**{"a": nothing, "b": nothing, **options})


@pytest.mark.parametrize("calls", [2, 6])
def test_each_function_lies_at_the_same_place_on_average(calls):
    rows = module.FUNCTION[module.block_order(np.random.default_rng(1), 50, calls)].reshape(50, 1 + 2 * calls)[:, 1:]
    places = [np.nonzero(rows == function)[1].reshape(50, calls).mean(axis=1) for function in (0, 1)]
    assert np.array_equal(places[0], places[1])


@pytest.mark.parametrize("calls", [2, 6])
def test_each_function_follows_itself_as_often_as_the_other(calls):
    rows = module.FUNCTION[module.block_order(np.random.default_rng(1), 50, calls)].reshape(50, 1 + 2 * calls)
    before, after = rows[:, :-1], rows[:, 1:]
    for first in (0, 1):
        for second in (0, 1):
            assert (((before == first) & (after == second)).sum(axis=1) == calls // 2).all()


def test_the_order_of_blocks_is_random():
    assert len(np.unique(module.block_order(np.random.default_rng(1), 100, 2).reshape(100, 5), axis=0)) == 2


class EvictingEngine(ModelEngine):
    """A call after the other function takes 30 % longer: each evicts the other's data."""

    def sample(self, quantity, order, seconds=math.inf):
        taken = super().sample(quantity, order, seconds)
        changed = np.diff(order.astype(int), prepend=-1) != 0
        return replace(taken, seconds={quantity: taken.seconds[quantity] * np.where(changed, 1.3, 1.0)})


def test_equals_that_evict_each_other_are_seldom_told_apart(compared):
    found = [compared(EvictingEngine(20e-6, 20e-6, seed=seed), seed=seed, budget=0.3) for seed in range(40)]
    assert sum(one.verdict in ("faster", "slower") for one in found) == 0


def test_what_one_function_leaves_for_the_other_is_reported(compared):
    found = compared(EvictingEngine(20e-6, 20e-6))
    assert found.carry_over.value == pytest.approx(1.3, rel=0.02)
    assert any("after the other function" in warning for warning in found.warnings)


class SeldomSlowEngine(ModelEngine):
    def sample(self, quantity, order, seconds=math.inf):
        taken = super().sample(quantity, order, seconds)
        slow = (taken.which == 1) & (self.random.random(len(taken.which)) < 0.1)
        return replace(taken, seconds={quantity: taken.seconds[quantity] * np.where(slow, 10.0, 1.0)})


def test_times_that_the_ratio_says_nothing_of_are_told(compared):
    (warning,) = (each for each in compared(SeldomSlowEngine(20e-6, 20e-6)).warnings if "gather" in each)
    assert re.fullmatch(r"the samples of b gather around 2 values: 20\.\d+ us \(.*\), 20\d\.\d us \(.*\)", warning)


@pytest.mark.parametrize("absent", [(), ("kernel", "stream")], ids=["of a GPU", "of the host"])
def test_steps_of_a_coarse_clock_are_not_told_as_modes(compared, absent):
    found = compared(ModelEngine(20e-6, 20.3e-6, noise=0.001, absent=absent))
    assert not any("gather" in each for each in found.warnings)


def test_coarse_clocks_get_more_calls_a_block():
    arms = module.block_order(np.random.default_rng(1), 100, 2)
    fine = np.random.default_rng(1).normal(20e-6, 3e-7, len(arms))
    assert module.calls_per_block(fine, arms, TICK) == module.FEWEST_CALLS
    assert module.calls_per_block(np.full(len(arms), 2e-6), arms, TICK) == module.MOST_CALLS


def test_all_looks_together_may_err_in_five_percent():
    looks = Looks()
    assert sum(1 - looks.confidence(share) for share in LOOKS) == pytest.approx(0.05)


def test_looks_not_taken_leave_their_share_to_the_next():
    looks = Looks()
    looks.confidence(0.25)
    assert looks.confidence(1.0) == pytest.approx(1 - 0.75 * 0.05)


def test_a_control_that_differs_does_not_widen_the_margin():
    random = np.random.default_rng(1)
    found = judge(random.normal(0.02, 0.002, 100), random.normal(0.03, 0.002, 100), 0.01, 0.95, 0.0)
    assert found.biased
    assert found.margin == 0.01
    assert found.verdict == "inconclusive"


def test_a_noisy_control_forbids_a_difference_within_its_noise():
    random = np.random.default_rng(1)
    logs = random.normal(0.02, 0.001, 100)
    noisy = random.normal(0, 0.3, 100)
    found = judge(logs, noisy - noisy.mean(), 0.01, 0.95, 0.0)
    assert (found.noisy, found.verdict) == (True, "inconclusive")


def test_blocks_that_repeat_each_other_count_less():
    random = np.random.default_rng(1)
    states = np.repeat(random.normal(0, 0.05, 20), 20)
    logs = states + random.normal(0, 0.001, 400)
    quiet = random.normal(0, 0.001, 400)
    found = judge(logs, quiet, 0.0001, 0.95, 0.0).ratio
    assert found.high - found.low > 0.03


@pytest.mark.parametrize("seed", [float("nan"), 1.5, "1", -1, True])
def test_a_bad_seed_gets_one_sentence(seed):
    with pytest.raises(InvalidArgument, match=r"^seed is .*; accepted are integers from 0$"):
        compare(int, int, seed=seed)
