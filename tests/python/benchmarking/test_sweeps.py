# SPDX-License-Identifier: Apache-2.0
"""Sweeps over the product of some axes."""

from __future__ import annotations

import gc
import itertools
import json
import random
import re
import weakref

import numpy as np
import pytest

from fakes.engines import Clock, Engines
from gpuscope.benchmarking import rounds, stopping
from gpuscope.benchmarking.sweeps import sweep
from gpuscope.errors import InvalidArgument, NotAvailable

generator = random.Random()


@pytest.fixture
def engines(monkeypatch):
    engines = Engines(Clock())
    monkeypatch.setattr(rounds, "Engine", engines)
    monkeypatch.setattr(stopping, "now", engines.clock)
    generator.seed(0)
    return engines


def linear(n, **_):
    """A factory: what it returns takes n us."""
    return lambda: n * 1e-6


def noisy(n, noise):
    return lambda: n * 1e-3 * generator.uniform(1 - noise, 1 + noise)


def visited(seconds, effect):
    """A function all of whose calls in one visit are longer or shorter by the same share."""
    factor = generator.lognormvariate(0, effect)
    return lambda: seconds * factor


def test_each_combination_of_values_is_a_point(engines):
    result = sweep(linear, n=[1, 2], kind=["a", "b", "c"])
    assert [tuple(point.parameters.values()) for point in result] == [(n, k) for n in (1, 2) for k in "abc"]


def test_a_factory_makes_what_is_timed(engines):
    assert sweep(linear, n=[5]).points[0].estimate.value == pytest.approx(5e-6)


def test_a_function_that_returns_no_callable_is_timed_itself(engines):
    assert sweep(lambda n: n * 1e-6, n=[7]).points[0].estimate.value == pytest.approx(7e-6)


def test_points_are_found_by_their_values(engines):
    assert sweep(linear, n=[1, 2])[2].parameters == {"n": 2}
    assert sweep(linear, n=[1, 2], kind=["a", "b"])[2, "a"].parameters == {"n": 2, "kind": "a"}


def test_a_point_that_is_not_there_is_a_key_error(engines):
    with pytest.raises(KeyError):
        sweep(linear, n=[1])[3]


def test_the_best_point_is_the_fastest(engines):
    assert sweep(linear, n=[3, 1, 2]).best().parameters == {"n": 1}


def test_the_points_with_given_values_are_a_sweep(engines):
    part = sweep(linear, n=[1, 2], kind=["a", "b"]).where(kind="b")
    assert [point.parameters["n"] for point in part] == [1, 2]


def test_points_of_arrays_are_found_by_the_arrays_of_the_axis(engines):
    arrays = [np.zeros(3), np.ones(4), np.ones(3)]
    result = sweep(lambda x: lambda: len(x) * 1e-6, x=arrays)
    assert [result[each] for each in arrays] == list(result.points)
    assert result.where(x=arrays[2]).points == result.points[2:]


def test_an_unknown_axis_is_refused(engines):
    with pytest.raises(InvalidArgument, match="m is no axis of this sweep; accepted are n"):
        sweep(linear, n=[1]).where(m=1)


def test_the_headline_is_kernel_time(engines):
    assert sweep(linear, n=[1]).points[0].quantity == "kernel"


def test_without_kernel_times_the_headline_is_the_next_that_can_be_had(engines):
    engines.absent = {"kernel": "no CUPTI", "stream": "no GPU"}
    assert sweep(linear, n=[1]).points[0].quantity == "wall"


def test_a_quantity_that_cannot_be_had_fails_with_the_reason(engines):
    engines.absent = {"span": "no CUPTI"}
    assert sweep(linear, quantity="span", n=[1]).points[0].error == "NotAvailable: span is not available: no CUPTI"


def test_a_point_that_raises_is_kept_and_the_rest_goes_on(engines):
    def make(n):
        if n == 2:
            raise MemoryError("2 is too much")
        return linear(n)

    result = sweep(make, n=[1, 2, 3])
    assert [point.error for point in result] == [None, "MemoryError: 2 is too much", None]
    assert result.stopped == "precision"


def test_a_coroutine_function_that_is_made_is_an_error_of_its_point(engines):
    async def answer():
        return 1

    (point,) = sweep(lambda n: answer, n=[1])
    assert re.fullmatch(r"InvalidArgument: what was made is .*, a coroutine function, whose call .*", point.error)


def test_a_point_that_raises_later_keeps_its_samples(engines):
    calls = []

    def make(n):
        calls.append(n)
        if len(calls) > 1:
            raise RuntimeError("lost")
        return linear(n)

    point = sweep(make, n=[1]).points[0]
    assert len(point.samples) > 0
    assert "then stopped: RuntimeError: lost" in point.warnings[0]


def test_when_no_point_can_be_measured_the_best_is_not_available(engines):
    result = sweep(lambda n: 1 / 0, n=[1])
    assert result.stopped == "failed"
    with pytest.raises(NotAvailable, match="ZeroDivisionError"):
        result.best()


def test_engines_are_closed_also_when_a_point_raises(engines):
    def fails(n):
        def call():
            raise ValueError(n)

        return call

    sweep(fails, n=[1, 2])
    assert engines.open == 0


def test_an_interrupt_keeps_what_there_is(engines):
    engines.interrupt_after = 150
    result = sweep(linear, n=[1, 2, 3])
    measured = [point for point in result if point.estimate]
    assert result.stopped == "interrupted"
    assert len(measured) == 1
    assert {point.error for point in result if not point.estimate} == {"not measured: interrupted"}


def test_the_points_come_in_rounds_and_not_one_after_the_other(engines):
    visited = []

    def make(n):
        visited.append(n)
        return linear(n)

    sweep(make, n=list(range(1, 30)))
    assert sorted(visited[:29]) == list(range(1, 30))
    assert visited[:29] != list(range(1, 30))


def test_each_point_is_visited_several_times_and_once_a_round(engines):
    made = []
    sweep(lambda n: made.append(n) or linear(n), n=[1, 2])
    assert [sorted(made[begin : begin + 2]) for begin in range(0, len(made), 2)] == [[1, 2]] * 6


def test_intervals_hold_the_truth_where_all_calls_of_a_visit_are_alike(engines):
    held = 0
    for _ in range(60):
        found = sweep(lambda n: visited(1e-3, 0.03), n=[1], budget=1).points[0].estimate
        held += found.low <= 1e-3 <= found.high
    assert held >= 54


def test_equals_whose_visits_differ_are_a_tie(engines):
    singles = sum(len(sweep(lambda n: visited(1e-3, 0.01), n=[1, 2, 3], budget=2).fastest) == 1 for _ in range(40))
    assert singles <= 1


def test_a_point_that_is_clearly_faster_is_named_alone(engines):
    named = 0
    for _ in range(40):
        found = sweep(lambda n: visited(0.95e-3 if n == 2 else 1e-3, 0.01), n=[1, 2, 3], budget=2)
        named += [point.parameters["n"] for point in found.fastest] == [2]
    assert named >= 38


def test_a_tie_says_within_what(engines):
    found = sweep(lambda n: visited(3e-3 if n == 3 else 1e-3, 0.01), n=[1, 2, 3], budget=3)
    assert {point.parameters["n"] for point in found.fastest} == {1, 2}
    assert 0 < found.fastest_within < 0.1
    line = str(found).splitlines()[-2]
    assert line.startswith(f"fastest within {100 * found.fastest_within:.2g} %, not told apart: n=")
    assert "n=3" not in line


def test_a_single_fastest_is_named_in_the_text(engines):
    assert str(sweep(linear, n=[2, 1])).splitlines()[-2] == "fastest: n=1"


def test_points_visited_once_are_not_told_apart(engines):
    found = sweep(linear, n=[2, 1], budget=1e-9)
    assert [point.parameters["n"] for point in found.fastest] == [1, 2]
    assert "fastest cannot be told, as some were visited once: n=1; n=2" in str(found)


def test_points_whose_visits_differ_many_times_over_are_not_told_apart(engines):
    found = sweep(lambda n: visited(1e-3, 5.0), n=[1, 2], budget=0.5)
    assert found.fastest_within > 1
    assert "fastest cannot be told, as times differ too much from visit to visit: n=" in str(found)


def test_many_tied_points_are_named_in_part(engines):
    found = sweep(lambda n: visited(1e-3, 0.01), n=range(12), budget=1e-9)
    assert "; and 4 more" in str(found)


def test_a_single_point_is_not_called_the_fastest(engines):
    assert "fastest" not in str(sweep(linear, n=[1]))


def test_one_visit_gives_no_interval_however_many_calls_it_has(engines):
    point = sweep(linear, n=[1], budget=1e-9).points[0]
    assert len(point.visits) == 1
    assert point.estimate.high == float("inf")


def test_what_differs_between_visits_is_no_mode_of_the_calls(engines):
    effects = iter([1.0, 1.03] * 1000)

    def make(n):
        factor = next(effects)
        return lambda: factor * 1e-3 * generator.uniform(0.999, 1.001)

    assert not sweep(make, n=[1], budget=1).points[0].warnings


def test_the_budget_goes_to_the_points_known_worst(engines):
    visited = []

    def make(n):
        visited.append(n)
        return noisy(n, 0.9 if n == 2 else 0.0)

    sweep(make, n=[1, 2, 3], precision=0.001, budget=10)
    assert visited.count(2) > 2 * visited.count(1)


def test_points_known_well_are_visited_again_before_the_worst_get_the_rest(engines):
    result = sweep(lambda n: noisy(n, 0.9 if n == 2 else 0.0), n=[1, 2, 3], precision=0.001, budget=5)
    assert [point.converged for point in result] == [True, False, True]


def test_the_budget_ends_it(engines):
    before = engines.clock.now
    result = sweep(lambda n: noisy(n, 0.5), n=[1, 2], precision=1e-6, budget=3)
    assert result.stopped == "budget"
    assert engines.clock.now - before < 4


@pytest.mark.parametrize(
    ("seconds", "count", "budget"), [(1e-5, 100, 1.0), (0.02, 40, 10.0), (0.3, 3, 10.0), (1e-3, 2, 0.2)]
)
def test_the_budget_is_kept(engines, seconds, count, budget):
    before = engines.clock.now
    found = sweep(
        lambda n: lambda: seconds * generator.uniform(0.5, 1.5), n=range(count), precision=1e-6, budget=budget
    )
    assert found.stopped == "budget"
    assert 0.5 * budget < engines.clock.now - before < 1.2 * budget


def test_a_visit_that_is_interrupted_keeps_what_it_measured(engines):
    calls = []

    def make(n):
        def call():
            calls.append(n)
            if len(calls) > 40:
                raise KeyboardInterrupt
            return 5e-3

        return call

    found = sweep(make, n=[1], budget=60)
    assert found.stopped == "interrupted"
    assert len(found.points[0].samples) >= 15


def test_the_first_round_is_finished_whatever_the_budget(engines):
    result = sweep(linear, n=[1, 2, 3], budget=1e-9)
    assert all(point.estimate for point in result)
    assert not any(point.converged for point in result)


def test_one_points_inputs_are_let_go_before_the_nexts_are_made(engines):
    alive = weakref.WeakSet()

    class Inputs:
        pass

    def make(n):
        assert not alive, "another point's inputs are still there"
        inputs = Inputs()
        alive.add(inputs)
        return lambda: inputs and n * 1e-6

    gc.disable()
    try:
        result = sweep(make, n=[1, 2, 3])
    finally:
        gc.enable()
    assert [point.error for point in result] == [None, None, None]


def test_a_failed_points_inputs_are_let_go_too(engines):
    alive = weakref.WeakSet()

    class Inputs:
        def __init__(self):
            self.cycle = self

    def make(n):
        assert not alive, "another point's inputs are still there"
        inputs = Inputs()
        alive.add(inputs)
        raise MemoryError(n)

    gc.disable()
    try:
        errors = [point.error for point in sweep(make, n=[1, 2])]
    finally:
        gc.enable()
    assert errors == ["MemoryError: 1", "MemoryError: 2"]


def test_calls_with_a_throttled_clock_are_told(engines):
    engines.throttled = True
    assert sweep(linear, n=[1]).points[0].warnings == ("100% of the calls ran with a throttled clock",)


def test_a_point_that_did_not_warm_up_is_told(engines):
    engines.steady = False
    assert "not steady after the warm-up" in sweep(linear, n=[1]).points[0].warnings


def test_points_of_different_quantities_are_told(engines):
    result = sweep(linear, n=[1, 2])
    object.__setattr__(result.points[0], "quantity", "wall")
    assert "not alike: kernel and wall" in result.warnings[0]


def test_progress_is_told_after_each_visit(engines):
    lines = []
    sweep(linear, n=[1], progress=lines.append)
    assert len(lines) == 6
    assert lines[-1].startswith("n=1: kernel 1.000 us +-0.1 %, 3000 calls in 6 visits")
    assert "1 of 1 points done" in lines[-1]


def test_the_table_has_a_line_for_each_point(engines):
    def make(n, dtype):
        if n == 2:
            raise MemoryError("out of memory")
        return linear(n)

    text = sweep(make, n=[1, 2], dtype=[np.float16]).table()
    assert [line.split() for line in text.splitlines()] == [
        ["n", "dtype", "quantity", "time", "interval", "min", "p5", "p95", "max", "std", "visits", "calls"],
        ["-", "-------", *["-" * width for width in (8, 8, 8, 7, 7, 7, 7, 3, 6, 5)]],
        ["1", "float16", "kernel", "1.000", "us", "+-0.1", "%", *["1.00", "us"] * 4, "0", "s", "6", "3000"],
        ["2", "float16", "-", "MemoryError:", "out", "of", "memory"],
    ]


@pytest.mark.parametrize("axes", [1, 3, 5])
def test_the_table_is_no_wider_than_120_columns(engines, axes):
    def make(**parameters):
        if parameters["axis0"]:
            raise RuntimeError("much too long " * 40)
        return linear(1)

    names = {f"axis{number}": [0] for number in range(1, axes)}
    table = sweep(make, axis0=[0, 1], kind=["a" * 10], **names).table()
    assert max(map(len, table.splitlines())) <= 120
    assert " ".join(table.split()).count("much too long") == 40


def test_rows_hold_the_figures_of_the_calls(engines):
    pytest.importorskip("pandas")
    found = sweep(lambda n: noisy(n, 0.5), n=[1], budget=1)
    (point,), (row,) = json.loads(found.to_json())["points"], found.to_pandas().to_dict("records")
    for name in ("min", "p5", "p95", "max", "std"):
        assert point[name] == row[name] == pytest.approx(getattr(found.points[0], name))
    assert row["visits"] == len(point["visits"]) == len(found.points[0].visits)


def test_figures_of_a_point_that_failed_are_null_in_json(engines):
    (point,) = json.loads(sweep(lambda n: 1 / 0, n=[1]).to_json())["points"]
    assert [point[name] for name in ("min", "p5", "p95", "max", "std", "value")] == [None] * 6


def test_json_holds_the_fastest(engines):
    read = json.loads(sweep(linear, n=[3, 1]).to_json())
    assert (read["fastest"], read["fastest_within"]) == ([{"n": 1}], 0)


def test_a_value_given_twice_is_measured_once(engines):
    assert [point.parameters["n"] for point in sweep(linear, n=[3, 1, 3, 2, 1])] == [3, 1, 2]


def test_values_that_are_equal_and_of_other_types_are_several(engines):
    assert len(sweep(lambda n: linear(1), n=[1, True, 1.0])) == 3


def test_values_without_a_hash_are_measured(engines):
    assert len(sweep(lambda shape: linear(1), shape=[[1, 2], [1, 2, 3]])) == 2


def test_calls_none_of_which_could_be_used_are_told(engines, monkeypatch):
    monkeypatch.setattr(rounds.Samples, "times", lambda samples, quantity: np.full(len(samples.which), np.nan))
    found = sweep(linear, n=[1], budget=0.1)
    assert found.points[0].error == "none of its calls could be used"


def test_the_text_says_how_it_ended(engines):
    assert str(sweep(linear, n=[1])).endswith("all points reached the precision: 1 of 1 points within +-2 %")


def test_the_text_does_not_say_of_points_that_failed_that_they_reached_the_target(engines):
    found = sweep(lambda n: linear(n) if n < 3 else 1 / 0, n=[1, 2, 3])
    ended = "all points that did not fail reached the precision: 2 of 3 points within +-2 %, 1 not measured"
    assert str(found).endswith(ended)


def test_points_that_all_fail_later_have_not_reached_the_target(engines):
    visits = iter(range(5))  # of two points
    found = sweep(lambda n: linear(n) if next(visits, None) is not None else 1 / 0, n=[1, 2], precision=1e-9)
    assert str(found).endswith("every point failed: 0 of 2 points within +-1e-07 %")


def test_json_holds_the_points(engines, tmp_path):
    text = sweep(linear, n=[1, 2], dtype=[np.float16]).to_json(tmp_path / "sweep.json")
    read = json.loads((tmp_path / "sweep.json").read_text())
    assert read == json.loads(text)
    assert read["axes"] == {"n": [1, 2], "dtype": ["float16"]}
    assert [point["value"] for point in read["points"]] == pytest.approx([1e-6, 2e-6])


def test_an_interval_without_an_end_is_null_in_json(engines):
    result = sweep(lambda n: noisy(n, 0.5), n=[1000], budget=1e-9)
    (point,) = json.loads(result.to_json())["points"]
    assert point["low"] is None
    assert "Infinity" not in result.to_json()


def test_pandas_has_a_row_for_each_point(engines):
    pytest.importorskip("pandas")
    frame = sweep(linear, n=[1, 2]).to_pandas()
    assert frame["n"].tolist() == [1, 2]
    assert frame["seconds"].tolist() == pytest.approx([1e-6, 2e-6])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "axes are missing; accepted is at least one list of values, as n="),
        ({"n": 5}, "n is 5; accepted is a list of values"),
        ({"n": "abc"}, "n is 'abc'; accepted is a list of values"),
        ({"n": []}, "n is empty; accepted is at least one value"),
        ({"n": [1], "precision": -1}, "precision is -1; accepted are fractions above 0 and below 1"),
        ({"n": [1], "budget": 0}, "budget is 0; accepted are seconds above 0"),
        ({"n": [1], "budget": float("nan")}, "budget is nan; accepted are seconds above 0"),
        ({"n": [1], "budget": float("inf")}, "budget is inf; accepted are seconds above 0"),
        ({"n": [1], "budget": 10**400}, "budget is an integer of 1329 bits; accepted are seconds above 0"),
        ({"n": [1], "budget": 10**5000}, "budget is an integer of 16610 bits; accepted are seconds above 0"),
        ({"n": [1], "precision": float("nan")}, "precision is nan; accepted are fractions above 0 and below 1"),
        ({"n": [1], "precision": float("inf")}, "precision is inf; accepted are fractions above 0 and below 1"),
        ({"n": [1], "precision": 10**400}, "precision is an integer of 1329 bits; accepted are fractions above 0"),
        ({"n": [1], "progress": "yes"}, "progress is 'yes'; accepted is a function of one line of text, as print"),
        ({"n": itertools.count()}, "n has more than 10,000 values; accepted are so many"),
        ({"n": range(1000), "m": range(1000)}, "the axes have 1,000,000 combinations; accepted are up to 10,000"),
        (
            {"n": [1], "quantity": "time"},
            "quantity is 'time'; accepted are 'kernel', 'span', 'stream', 'launch', 'wall', None",
        ),
        ({"n": [1], "device": 9}, "device is 9; accepted is 0"),
    ],
)
def test_bad_arguments_are_refused(engines, arguments, message):
    with pytest.raises(InvalidArgument) as refused:
        sweep(linear, **arguments)
    assert str(refused.value).startswith(message)


def test_what_cannot_be_called_is_refused(engines):
    with pytest.raises(InvalidArgument, match=r"^function is 5; accepted is a function of the values of the axes$"):
        sweep(5, n=[1])


@pytest.mark.parametrize("option", ["budget", "precision"])
def test_a_budget_or_target_too_small_to_keep_still_gives_the_first_round(engines, option):
    point = sweep(lambda n: noisy(n, 0.1), n=[1], **{"budget": 0.1, option: 1e-300}).points[0]
    assert point.estimate.value == pytest.approx(1e-3, rel=0.1)
    assert not point.converged
