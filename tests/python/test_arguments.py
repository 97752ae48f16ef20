# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of what measures: a sentence with the name, what was given and what is accepted, before a call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import gc
import json
import math
import re
import unittest.mock
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.arguments import as_float, check_count, check_fraction, check_positive
from gpuscope.errors import InvalidArgument
from gpuscope.figures import Distribution

NEITHER: list[Any] = [
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    -(10**400),
    10**5000,
    Fraction(10**400),
    np.float64("nan"),
    -1,
    "2",
    b"2",
    "x" * 5000,
    True,
    1j,
    [1],
    np.array([1, 2]),
    Decimal("0.01"),
    object(),
]
NO_NUMBERS = [*NEITHER, 0]  # as budgets, precisions and margins are
NO_COUNTS = [*NEITHER, 2.5, 1e-300, Fraction(5, 2)]


def called(*_: object, **__: object) -> None:
    raise AssertionError("called, although an argument was wrong")


def batches() -> list[Any]:
    return [np.zeros(3)] * 6


def made(n: object) -> Callable[[], object]:
    raise AssertionError("made, although an argument was wrong")


async def coroutine(*_: object) -> None:
    await asyncio.sleep(0)


def generator(*_: object) -> Iterator[int]:
    yield 1


class Awaited:
    async def __call__(self, *_: object) -> None: ...


SUSPENDED = [coroutine, generator, functools.partial(coroutine, 1), Awaited()]

Call = Callable[[Any], object]

NUMBERS: dict[str, Call] = {
    "benchmark precision": lambda value: gs.benchmark(called, precision=value),
    "benchmark budget": lambda value: gs.benchmark(called, budget=value),
    "benchmark bytes": lambda value: gs.benchmark(called, bytes=value),
    "benchmark flops": lambda value: gs.benchmark(called, flops=value),
    "compare margin": lambda value: gs.compare(called, called, margin=value),
    "compare precision": lambda value: gs.compare(called, called, precision=value),
    "compare budget": lambda value: gs.compare(called, called, budget=value),
    "sweep precision": lambda value: gs.sweep(made, n=[1], precision=value),
    "sweep budget": lambda value: gs.sweep(made, n=[1], budget=value),
    "crossover precision": lambda value: gs.crossover(made, made, n=[1, 2], precision=value),
    "crossover budget": lambda value: gs.crossover(made, made, n=[1, 2], budget=value),
    "benchmark_dataloader step_ms": lambda value: gs.benchmark_dataloader(batches(), step_ms=value),
}

COUNTS: dict[str, Call] = {
    "benchmark processes": lambda value: gs.benchmark(called, processes=value),
    "compare seed": lambda value: gs.compare(called, called, seed=value),
    "measure_latency num_iterations": lambda value: gs.measure_latency(called, 1, num_iterations=value),
    "measure_latency warmup": lambda value: gs.measure_latency(called, 1, warmup=value),
    "measure_throughput num_batches": lambda value: gs.measure_throughput(called, batches(), num_batches=value),
    "measure_throughput warmup": lambda value: gs.measure_throughput(called, batches(), warmup=value),
    "benchmark_dataloader num_batches": lambda value: gs.benchmark_dataloader(batches(), num_batches=value),
}
# An integer too large for a float is a count, where it ends what is counted or seeds a generator.
UNBOUNDED = ("compare seed", "measure_throughput num_batches", "measure_throughput warmup")

OTHERS: dict[str, tuple[Call, list[Any]]] = {
    "benchmark fn": (lambda value: gs.benchmark(value), [None, 1, "int", np.zeros(2), *SUSPENDED]),
    "benchmark name": (lambda value: gs.benchmark(called, name=value), [1, 1.5, b"x", np.zeros(2)]),
    "benchmark kwargs": (lambda value: gs.benchmark(called, kwargs=value), [1, "x", ["x"], np.zeros(2)]),
    "benchmark progress": (lambda value: gs.benchmark(called, progress=value), [1, "print", np.zeros(2)]),
    "compare a": (lambda value: gs.compare(value, called), [None, 1, "x", *SUSPENDED]),
    "compare b": (lambda value: gs.compare(called, value), [None, 1, "x"]),
    "compare names": (
        lambda value: gs.compare(called, called, names=value),
        [1, math.nan, "ab", ["a"], ["a", 1], ["a", ""], np.zeros(2)],
    ),
    "compare quantity": (lambda value: gs.compare(called, called, quantity=value), ["time", 1, [1], np.zeros(2)]),
    "sweep function": (lambda value: gs.sweep(value, n=[1]), [None, 1, "x", *SUSPENDED]),
    "crossover cpu_fn": (lambda value: gs.crossover(value, made, n=[1, 2]), [None, 1, "x", *SUSPENDED]),
    "crossover gpu_fn": (lambda value: gs.crossover(made, value, n=[1, 2]), [None, 1, "x", *SUSPENDED]),
    "sweep quantity": (lambda value: gs.sweep(made, quantity=value, n=[1]), ["time", 1, [1], np.zeros(2)]),
    "sweep progress": (lambda value: gs.sweep(made, progress=value, n=[1]), [1, "print"]),
    "crossover progress": (lambda value: gs.crossover(made, made, progress=value, n=[1, 2]), [1, "print"]),
    "measure_latency model": (lambda value: gs.measure_latency(value, 1), [None, 1, "x", *SUSPENDED]),
    "measure_latency stream": (lambda value: gs.measure_latency(called, 1, stream=value), [1.5, "x", -1, 10**5000]),
    "measure_throughput step": (lambda value: gs.measure_throughput(value, batches()), [None, 1, "x", *SUSPENDED]),
    "find_leaks fn": (lambda value: gs.find_leaks(value), SUSPENDED),
    "measure_throughput loader": (
        lambda value: gs.measure_throughput(called, value),
        [None, 1, np.float64(1), np.array(1)],
    ),
    "measure_throughput device": (
        lambda value: gs.measure_throughput(called, batches(), device=value),
        [1.5, "x", -1, 10**400, math.nan],
    ),
    "benchmark_dataloader loader": (lambda value: gs.benchmark_dataloader(value), [None, 1, np.int64(1)]),
    "benchmark_dataloader workers": (
        lambda value: gs.benchmark_dataloader(batches(), workers=value),
        [1, [], [-1], [1.5], [[1]], [10**400], "2", math.nan],
    ),
    "synchronize target": (lambda value: gs.synchronize(value), [-1, 10**400, 1.5, math.nan, "x"]),
    "find_leaks steps": (lambda value: gs.find_leaks(called, steps=value), [-(10**5000), 2.5, "9" * 5000, [10**5000]]),
    "find_leaks warmup": (lambda value: gs.find_leaks(called, warmup=value), [10**5000, -1, "x"]),
    "find_max_batch_size limit": (
        lambda value: gs.find_max_batch_size(called, limit=value, device="cpu"),
        [10**5000, -(10**5000), 10**400, 0],
    ),
    "find_max_batch_size margin": (
        lambda value: gs.find_max_batch_size(called, margin=value, device="cpu"),
        [10**5000, 1.5, "x"],
    ),
    "measure_counters device": (lambda value: gs.measure_counters(called, device=value), [-1, 2**31, 10**5000]),
    "measure_counters metrics": (
        lambda value: gs.measure_counters(called, metrics=value),
        [["\udcff"], [""], "\udcff", [10**5000], 10**5000],
    ),
    "profile counters": (lambda value: gs.profile(counters=value), [["\udcff"], [10**5000]]),
    "profile mode": (lambda value: gs.profile(mode=value), [10**5000, "\udcff"]),
    "timed name": (lambda value: gs.timed(value), [1, "", None, math.nan]),
}


def cases(calls: dict[str, Call], values: list[Any]) -> list[Any]:
    return [
        pytest.param(what.split()[1], call, value, id=f"{what}-{number}")
        for what, call in calls.items()
        for number, value in enumerate(values)
        if not (what in UNBOUNDED and isinstance(value, int) and value > 1 and value is not True)
    ]


def sentence(call: Call, value: Any) -> str:
    with pytest.raises(InvalidArgument) as refused:
        call(value)
    return str(refused.value)


@pytest.mark.parametrize(("name", "call", "value"), cases(NUMBERS, NO_NUMBERS))
def test_a_wrong_number_gets_one_sentence(name, call, value):
    assert re.fullmatch(rf"{name} is .{{1,90}}; accepted are .{{1,90}}", sentence(call, value))


@pytest.mark.parametrize(("name", "call", "value"), cases(COUNTS, NO_COUNTS))
def test_a_wrong_count_gets_one_sentence(name, call, value):
    assert re.fullmatch(rf"{name} is .{{1,90}}; accepted are integers from [01]( to \d+)?", sentence(call, value))


@pytest.mark.parametrize(
    ("name", "call", "value"),
    [
        pytest.param(what.split()[1], call, value, id=f"{what}-{number}")
        for what, (call, values) in OTHERS.items()
        for number, value in enumerate(values)
    ],
)
def test_a_wrong_argument_gets_one_sentence(name, call, value):
    assert re.fullmatch(rf"{name} is .{{1,140}}; accepted .{{1,200}}", sentence(call, value))


async def later_values(*_: object) -> AsyncIterator[int]:
    yield 1


class Handed:
    """Starts its work and does not wait for it."""

    def __init__(self, make: Callable[..., object]) -> None:
        self.make = make

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.make(*args, **kwargs)


class Awaitable:
    def __init__(self, *_: object, **__: object) -> None: ...

    def __await__(self) -> Iterator[None]:
        yield


UNDONE: dict[str, tuple[Callable[..., object], str]] = {
    "coroutine": (lambda *_, **__: coroutine(), "a coroutine"),
    "partial": (functools.partial(lambda *_, **__: coroutine(), 1), "a coroutine"),
    "object": (Handed(lambda *_, **__: coroutine()), "a coroutine"),
    "generator": (lambda *_, **__: generator(), "a generator"),
    "asynchronous generator": (lambda *_, **__: later_values(), "an asynchronous generator"),
    "future of a pool": (lambda *_, **__: concurrent.futures.Future(), "a future"),
    "awaitable": (Awaitable, "an awaitable"),
}

MEASURES: dict[str, Call] = {
    "benchmark": gs.benchmark,
    "compare": lambda fn: gs.compare(int, fn),
    "sweep": lambda fn: gs.sweep(fn, n=[1, 2]),
    "sweep, what is made": lambda fn: gs.sweep(lambda n: fn, n=[1, 2]),
    "crossover": lambda fn: gs.crossover(lambda n: int, fn, n=[1, 2]),
    "find_leaks": gs.find_leaks,
    "measure_latency": lambda fn: gs.measure_latency(fn, 1),
    "measure_latency, cold": lambda fn: gs.measure_latency(fn, 1, warmup=0),
    "measure_throughput": lambda fn: gs.measure_throughput(fn, batches()),
    "measure_throughput, cold": lambda fn: gs.measure_throughput(fn, batches(), warmup=0),
    "find_max_batch_size": lambda fn: gs.find_max_batch_size(fn, device="cpu"),
}


@pytest.mark.filterwarnings("error")  # of coroutines that nobody awaits
@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(("function", "kind"), UNDONE.values(), ids=UNDONE)
def test_what_only_stands_for_work_is_not_timed(measure, function, kind):
    said = sentence(measure, function)
    gc.collect()
    assert re.fullmatch(
        rf"\S+ returned {kind}, whose work .*; accepted are functions that wait .* calls .* on .*", said
    )


def test_a_future_of_asyncio_is_not_timed():
    async def started():
        with pytest.raises(InvalidArgument, match="returned a future"):
            gs.benchmark(asyncio.get_running_loop().create_future)

    asyncio.run(started())


def test_results_that_have_every_attribute_are_measured():
    assert gs.benchmark(unittest.mock.Mock, budget=0.05).estimate.value > 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.1, "0.5", True, None, 10**400, np.array([0.5, 0.6])])
def test_a_quantile_is_of_a_fraction(value):
    times = Distribution([1.0, 2.0, 3.0])
    for ask in (times.quantile, times.interval):
        assert re.fullmatch(r"q is .{1,40}; accepted are fractions .*", sentence(ask, value))


@pytest.mark.parametrize("q", [1e-300, 5e-324, Fraction(1, 3), np.float32(0.25), 1 - 1e-16])
def test_any_quantile_has_a_value_and_an_interval_or_the_reason_for_none(q):
    found = Distribution([1.0, 2.0, 3.0]).interval(q)
    assert 1 <= found.value <= 3
    assert found.low is None
    assert found.why.endswith(" are needed")


@pytest.mark.parametrize("tiny", [1e-300, 5e-324])
@pytest.mark.parametrize(
    "measure",
    [
        lambda tiny: gs.benchmark(int, budget=tiny),
        lambda tiny: gs.benchmark(int, precision=tiny, budget=0.01),
        lambda tiny: gs.benchmark(int, bytes=tiny, flops=tiny, budget=0.01),
        lambda tiny: gs.compare(int, int, budget=tiny),
        lambda tiny: gs.compare(int, int, margin=tiny, budget=0.01),
        lambda tiny: gs.compare(int, int, precision=tiny, budget=0.01),
        lambda tiny: gs.sweep(lambda n: int, n=[1], budget=tiny),
        lambda tiny: gs.sweep(lambda n: int, n=[1], precision=tiny, budget=0.1),
        lambda tiny: gs.crossover(lambda n: int, lambda n: int, n=[tiny, 1], budget=tiny),
        lambda tiny: gs.benchmark_dataloader(batches(), step_ms=tiny),
    ],
)
def test_the_smallest_numbers_above_0_are_measured_with(measure, tiny):
    result: Any = measure(tiny)
    assert str(result)
    json.loads(result.to_json())


@pytest.mark.parametrize("fraction", [Fraction(1, 50), np.float32(0.02), np.float64(0.02)])
def test_numbers_of_other_types_become_plain_ones(fraction):
    result = gs.benchmark(int, precision=fraction, budget=fraction, bytes=np.int64(8), flops=Fraction(5, 2))
    saved = json.loads(result.to_json())
    assert (saved["bytes"], saved["flops"]) == (8, 2.5)
    compared = gs.compare(int, int, margin=fraction, budget=fraction)
    assert "margin 2 %" in str(compared)
    assert json.loads(compared.to_json())["margin"] == pytest.approx(0.02)
    assert "+-2 %" in str(gs.sweep(lambda n: int, n=[1], precision=fraction, budget=fraction))


def test_the_longest_integers_are_points_of_a_sweep():
    swept = gs.sweep(lambda n: int, n=[10**5000], budget=0.01)
    assert "n=an integer of 16610 bits" in str(swept.best())
    json.loads(swept.to_json())


def test_a_float_of_what_is_no_number_is_nan_and_of_what_is_too_large_infinite():
    assert [as_float(value) for value in (1, Fraction(1, 2), np.int8(3))] == [1.0, 0.5, 3.0]
    assert [as_float(value) for value in (10**400, -(10**400))] == [math.inf, -math.inf]
    assert all(math.isnan(as_float(value)) for value in ("1", None, True, 1j, np.zeros(1)))


def test_what_is_accepted_comes_back_as_a_plain_number():
    assert type(check_fraction("share", np.float64(0.5))) is float
    assert type(check_positive("bytes", np.int64(5))) is int
    assert type(check_positive("bytes", Fraction(1, 2))) is float
    assert type(check_count("runs", np.uint8(5), 1)) is int
