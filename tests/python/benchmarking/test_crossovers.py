# SPDX-License-Identifier: Apache-2.0
"""Where the GPU begins to be faster, and how sure that is."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest

from fakes.engines import Clock, Engines
from gpuscope.benchmarking import crossovers, rounds, stopping
from gpuscope.benchmarking.crossovers import answer, crossover, roots
from gpuscope.errors import InvalidArgument

GRID = [16, 64, 256, 1024, 4096]


@pytest.fixture
def engines(monkeypatch):
    engines = Engines(Clock())
    monkeypatch.setattr(rounds, "Engine", engines)
    monkeypatch.setattr(stopping, "now", engines.clock)
    monkeypatch.setattr(rounds, "random", SimpleNamespace(Random=lambda: random.Random(0)))
    return engines


def taking(seconds, noise=0.01):
    """A factory of functions that take ``seconds(n)``, more or less."""
    generator = random.Random(0)
    return lambda n: lambda: seconds(n) * generator.uniform(1 - noise, 1 + noise)


def linear_cpu(n):
    return n * 1e-6


def fixed_gpu(n):
    return 300e-6


def test_the_crossing_is_found(engines):
    result = crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID)
    (crossing,) = result.without_transfers.crossings
    assert result.value == pytest.approx(300, rel=0.02)
    assert crossing.low <= 300 <= crossing.high
    assert crossing.gpu_faster == "above"


def test_sizes_are_added_near_the_crossing(engines):
    result = crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID)
    added = [p.parameters["n"] for p in result.curves["cpu"] if p.parameters["n"] not in GRID]
    assert added
    assert all(256 < n < 1024 and isinstance(n, int) for n in added)


def test_sizes_between_fractions_are_fractions(engines):
    result = crossover(taking(lambda n: n), taking(lambda n: 0.03), n=[0.01, 0.1])
    assert result.value == pytest.approx(0.03, rel=0.05)


def test_neighbouring_whole_sizes_are_not_parted(engines):
    result = crossover(taking(lambda n: n * 1e-3, 0), taking(lambda n: 2.5e-3, 0), n=[2, 3])
    assert [p.parameters["n"] for p in result.curves["gpu"]] == [2, 3]


def test_sizes_that_are_close_are_not_parted(engines):
    result = crossover(taking(lambda n: 1e-21 * n**9), taking(lambda n: 1e-21 * 101.5**9), n=[100, 103])
    assert [p.parameters["n"] for p in result.curves["gpu"]] == [100, 103]


def test_transfers_have_an_answer_of_their_own(engines):
    with_transfers = taking(lambda n: 300e-6 + n * 0.5e-6)
    result = crossover(taking(linear_cpu), taking(fixed_gpu), transfers=with_transfers, n=GRID)
    assert result.value == pytest.approx(300, rel=0.02)
    assert result.with_transfers.crossings[0].value == pytest.approx(600, rel=0.05)


def test_without_a_third_factory_there_is_no_answer_on_transfers(engines):
    assert crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID).with_transfers is None


def test_a_gpu_that_is_always_faster_is_an_answer(engines):
    result = crossover(taking(linear_cpu), taking(lambda n: 1e-6), n=GRID)
    assert result.without_transfers.kind == "everywhere"
    assert "the GPU is faster everywhere between 16 and 4,096" in str(result)
    assert result.value is None


def test_a_gpu_that_is_never_faster_is_an_answer(engines):
    result = crossover(taking(linear_cpu), taking(lambda n: 1e-2), n=GRID)
    assert result.without_transfers.kind == "never"
    assert "the GPU is never faster between 16 and 4,096" in str(result)


@pytest.mark.parametrize(("first", "text"), [(5, "faster at 1 of 4 sizes"), (20, "slower at 1 of 4 sizes")])
def test_sizes_at_which_nothing_can_be_told_are_no_part_of_the_answer(first, text):
    noise = np.random.default_rng(1)
    visits = [
        [level * np.exp(noise.normal(0, spread, 6)) for level, spread in zip(of, (0.01, 0.3, 0.3, 0.3), strict=True)]
        for of in ((10, 10, 10, 10), (first, 10, 10, 10))
    ]
    found = answer([64, 256, 1024, 4096], *visits)
    assert found.kind == "undecided"
    assert str(found) == f"the GPU is {text} between 64 and 4,096; no difference can be told at the others"


def test_equals_are_undecided_however_noisy(engines):
    result = crossover(taking(linear_cpu, 0.3), taking(linear_cpu, 0.3), n=GRID, budget=0.5)
    assert result.without_transfers.kind == "undecided"
    assert "no difference can be told between 16 and 4,096" in str(result)


def test_equals_at_many_sizes_are_seldom_called_different():
    noise = np.random.default_rng(0)
    kinds = []
    for seed in range(100):
        cpu, gpu = noise.uniform(0.7, 1.3, (2, len(GRID), 60))
        kinds.append(answer(GRID, list(cpu), list(gpu), seed).kind)
    assert kinds.count("undecided") >= 97


def test_several_crossings_are_all_told(engines):
    def wave(n):
        return n * 1e-6 * (2 if 50 < n < 500 else 0.5)

    result = crossover(taking(linear_cpu), taking(wave), n=[16, 32, 128, 256, 1024])
    assert [crossing.gpu_faster for crossing in result.without_transfers.crossings] == ["below", "above"]
    assert str(result.without_transfers).startswith("2 crossings between 16 and 1,024: the GPU is faster up to")


def test_a_size_that_fails_on_one_side_is_left_out_and_told(engines):
    def gpu(n):
        if n == 4096:
            raise MemoryError("out of memory")
        return taking(fixed_gpu)(n)

    result = crossover(taking(linear_cpu), gpu, n=GRID)
    assert result.without_transfers.range == (16, 1024)
    assert "GPU, n=4096: MemoryError: out of memory" in result.warnings


def test_when_nothing_is_measured_the_answer_is_not_known(engines):
    result = crossover(lambda n: 1 / 0, taking(fixed_gpu), n=GRID)
    assert result.without_transfers.kind == "unknown"
    assert str(result).startswith(
        "CPU, every size: ZeroDivisionError: division by zero\nn, computation alone: not known"
    )


def test_a_misspelt_axis_is_the_first_line(engines):
    text = str(crossover(lambda n: None, lambda n: None, m=GRID))
    assert text.splitlines()[0].startswith("CPU, every size: TypeError: ")
    assert text.splitlines()[0].endswith("got an unexpected keyword argument 'm'")


def test_an_interrupt_keeps_what_there_is(engines):
    engines.interrupt_after = 400
    result = crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID)
    assert result.stopped == "interrupted"
    assert any(point.error == "not measured: interrupted" for point in result.curves["cpu"])


def test_what_is_compared_is_wall_time(engines):
    result = crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID)
    assert {point.quantity for points in result.curves.values() for point in points} == {"wall"}


def test_the_budget_ends_it(engines):
    before = engines.clock.now
    crossover(taking(linear_cpu, 0.5), taking(fixed_gpu, 0.5), n=GRID, precision=1e-6, budget=5)
    assert engines.clock.now - before < 7


def test_a_warning_names_its_points_together(engines):
    engines.steady = False
    result = crossover(taking(linear_cpu), taking(lambda n: 1e-6), n=[16, 64])
    assert "CPU, n=16; n=64: not steady after the warm-up" in result.warnings


def test_progress_names_the_curve(engines):
    lines = []
    crossover(taking(linear_cpu), taking(lambda n: 1e-6), n=[16, 64], progress=lines.append)
    assert {line.split(",")[0] for line in lines} == {"CPU", "GPU"}


def test_a_budget_that_is_spent_adds_no_sizes(engines):
    result = crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID, budget=0.01)
    assert [point.parameters["n"] for point in result.curves["cpu"]] == GRID


def test_the_table_has_a_line_for_each_size(engines):
    lines = crossover(taking(linear_cpu, 0), taking(lambda n: 1e-6, 0), n=[16, 64]).table().splitlines()
    assert lines[0].split() == ["n", "CPU", "GPU", "CPU", "/", "GPU"]
    assert [(line.split()[0], line.split()[-1]) for line in lines[2:]] == [("16", "16x"), ("64", "64x")]


def test_json_holds_answers_and_curves(engines, tmp_path):
    crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID).to_json(tmp_path / "crossover.json")
    read = json.loads((tmp_path / "crossover.json").read_text())
    assert read["without_transfers"]["kind"] == "one"
    assert set(read["curves"]) == {"cpu", "gpu"}


def test_the_conditions_are_part_of_the_result(engines):
    found = crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID)
    assert found.conditions.python
    assert found.to_dict()["conditions"]["python"] == found.conditions.python


def test_the_chart_has_a_line_for_each_curve(engines):
    found = crossover(taking(linear_cpu), taking(fixed_gpu), transfers=taking(fixed_gpu), n=GRID)
    (view,) = found.plot().views
    assert [line.name for line in view.lines] == ["CPU", "GPU", "GPU with transfers"]
    assert (view.x.log, view.y.log) == (True, True)
    for line, points in zip(view.lines, found.curves.values(), strict=True):
        assert line.y == [point.estimate.value for point in points]
    assert [mark.value for mark in view.marks] == [crossing.value for crossing in found.without_transfers.crossings] + [
        crossing.value for crossing in found.with_transfers.crossings
    ]


def test_the_root_is_linear_in_logarithms():
    at = np.log([100.0, 400.0])
    assert np.exp(roots(at, np.array([[-1.0, 1.0]]), rising=True)[0]) == pytest.approx(200)


def test_of_several_roots_the_middle_one_counts():
    at = np.array([0.0, 1.0, 2.0, 3.0])
    assert roots(at, np.array([[-1.0, 1.0, -1.0, 1.0]]), rising=True)[0] == pytest.approx(1.5)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(1)
    sizes = [100.0, 400.0]
    held = 0
    for trial in range(200):
        cpu = [n * 1e-6 * generator.lognormal(0, 0.2, 50) for n in sizes]
        gpu = [200e-6 * generator.lognormal(0, 0.2, 50) for _ in sizes]
        (crossing,) = answer(sizes, cpu, gpu, seed=trial).crossings
        held += crossing.low <= 200 <= crossing.high
    assert 0.90 <= held / 200 <= 0.995


def test_the_interval_holds_the_truth_where_all_calls_of_a_visit_are_alike(engines):
    effects = random.Random(0)

    def shared(seconds):
        def make(n):
            factor = effects.lognormvariate(0, 0.03)
            return lambda: seconds(n) * factor

        return make

    held = 0
    for _ in range(40):
        found = crossover(shared(lambda n: n * 1e-5), shared(lambda n: 3e-3), n=GRID, budget=4).without_transfers
        held += len(found.crossings) == 1 and found.crossings[0].low <= 300 <= found.crossings[0].high
    assert held >= 36


def test_sizes_visited_once_give_no_answer(engines):
    result = crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID, budget=1e-9)
    assert result.without_transfers.kind == "unknown"
    assert "not known: no two sizes were visited twice on both" in str(result)


@pytest.mark.parametrize("seconds", [1e-5, 0.02, 0.1])
def test_the_budget_is_kept(engines, seconds):
    before = engines.clock.now
    crossover(
        taking(lambda n: seconds * n / 300, 0.5),
        taking(lambda n: seconds, 0.5),
        n=[100, 900],
        precision=1e-6,
        budget=10,
    )
    assert 5 < engines.clock.now - before < 12


def test_an_interrupt_between_visits_keeps_what_there_is(engines, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(crossovers._Search, "between", interrupted)
    result = crossover(taking(linear_cpu), taking(fixed_gpu), n=GRID)
    assert result.stopped == "interrupted"
    assert result.value == pytest.approx(300, rel=0.05)


def test_sizes_are_sorted_and_measured_once_each(engines):
    result = crossover(taking(linear_cpu), taking(lambda n: 1e-6), n=[64, 16, 64, 16.0])
    assert [point.parameters["n"] for point in result.curves["cpu"]] == [16, 64]


def test_huge_sizes_are_refined(engines):
    result = crossover(taking(lambda n: n / 1e205, 0), taking(lambda n: 1e-3, 0), n=[10**200, 10**204])
    assert result.value == pytest.approx(1e202, rel=0.05)


@pytest.mark.parametrize("names", [("cpu_fn", "gpu_fn"), ("gpu_fn", "cpu_fn"), ("transfers", "gpu_fn")])
def test_what_cannot_be_called_is_refused(engines, names):
    functions = {"cpu_fn": taking(linear_cpu), "gpu_fn": taking(fixed_gpu), names[0]: 5}
    with pytest.raises(InvalidArgument) as refused:
        crossover(**functions, n=[1, 2])
    assert str(refused.value) == f"{names[0]} is 5; accepted is a function of the values of the axes"


@pytest.mark.parametrize("option", ["budget", "precision"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -1, None])
def test_bad_budgets_and_targets_are_refused_before_anything_is_called(engines, option, value):
    def make(n):
        raise AssertionError("was called")

    with pytest.raises(InvalidArgument, match=f"^{option} is .{{1,90}}; accepted are "):
        crossover(make, make, n=[1, 2], **{option: value})


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({}, "axis is none; accepted is exactly one"),
        ({"n": [1, 2], "m": [1, 2]}, "axis is n, m; accepted is exactly one"),
        ({"n": [1]}, "n has one size, 1; accepted are at least two"),
        ({"n": [0, 1]}, "n has 0; accepted are numbers above 0"),
        ({"n": ["a", "b"]}, "n has 'a'; accepted are numbers above 0"),
        ({"n": [1, float("nan")]}, "n has nan; accepted are numbers above 0"),
        ({"n": [1, float("inf")]}, "n has inf; accepted are numbers above 0"),
        ({"n": [1, 10**400]}, "n has an integer of 1329 bits; accepted are numbers above 0"),
        ({"n": []}, "n is empty; accepted is at least one value"),
        ({"n": [5, 5]}, "n has one size, 5; accepted are at least two"),
    ],
)
def test_bad_axes_are_refused(engines, axes, message):
    with pytest.raises(InvalidArgument) as refused:
        crossover(taking(linear_cpu), taking(fixed_gpu), **axes)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("budget", [float("nan"), None, "1", 10**400, 0])
def test_a_bad_budget_gets_one_sentence(budget):
    with pytest.raises(InvalidArgument, match=r"^budget is .*; accepted are seconds above 0"):
        crossover(lambda n: int, lambda n: int, n=[1, 2], budget=budget)
