# SPDX-License-Identifier: Apache-2.0
"""Calls timed by the core: on the CPU, and what is refused where there is no GPU."""

from __future__ import annotations

import functools
import os
import signal
import time
import traceback
from collections.abc import Callable

import numpy as np
import pytest

from gpuscope import _core
from gpuscope.errors import InvalidArgument, NotAvailable

NO_SUCH_DEVICE = 10_000
HOUR_NS = 3_600_000_000_000  # a row ends early where the machine is busy, otherwise


def once() -> np.ndarray:
    return np.zeros(1, np.uint32)


def test_functions_are_called_in_the_order_given() -> None:
    called: list[str] = []
    functions = [functools.partial(called.append, name) for name in "abc"]
    times = _core.time_calls(functions, np.array([2, 0, 2], np.uint32))
    assert called == ["c", "a", "c"]
    assert len(times["called_ns"]) == len(times["returned_ns"]) == 3


def test_functions_are_repeated_in_rows() -> None:
    called: list[str] = []
    functions = [functools.partial(called.append, name) for name in "ab"]
    times = _core.time_calls(functions, np.array([1, 0, 1], np.uint32), repeat=333, longest_ns=HOUR_NS)
    assert called == ["b"] * 333 + ["a"] * 333 + ["b"] * 333
    assert times["calls"].tolist() == [333] * 3
    assert (times["returned_ns"] >= times["called_ns"]).all()


def test_a_function_that_can_repeat_itself_does_so_in_rows() -> None:
    called: list[int] = []

    def function() -> None:
        called.append(1)

    function.gpuscope_repeat = called.append  # type: ignore[attr-defined]
    _core.time_calls([function], np.zeros(1, np.uint32), repeat=100, longest_ns=HOUR_NS)
    assert called[0] == 1
    assert sum(called) == 100
    assert len(called) < 20


def test_a_row_of_long_calls_ends_early_and_says_so() -> None:
    called: list[int] = []

    def function() -> None:
        called.append(1)
        time.sleep(0.002)

    times = _core.time_calls([function], np.zeros(2, np.uint32), repeat=1000, longest_ns=1_000_000)
    assert times["calls"].tolist() == [1, 1]
    assert len(called) == 2


def test_times_are_of_the_calls_on_the_clock_of_the_epoch() -> None:
    before = time.time_ns()
    times = _core.time_calls([lambda: time.sleep(0.002)], np.zeros(2, np.uint32))
    after = time.time_ns()
    called, returned = times["called_ns"], times["returned_ns"]
    assert called.dtype == returned.dtype == np.int64
    assert (returned - called >= 2_000_000).all()
    assert called[1] >= returned[0]
    assert before - 1_000_000_000 < called[0]
    assert returned[1] < after + 1_000_000_000


def test_what_a_function_raises_comes_through_with_its_traceback() -> None:
    def fails() -> None:
        raise LookupError("theirs")

    with pytest.raises(LookupError, match="theirs") as raised:
        _core.time_calls([fails], once())
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "fails"


def test_what_a_function_raises_ends_its_row() -> None:
    called: list[int] = []

    def fails() -> None:
        called.append(1)
        if len(called) == 77:
            raise LookupError("theirs")

    with pytest.raises(LookupError, match="theirs"):
        _core.time_calls([fails], np.zeros(9, np.uint32), repeat=100)
    assert len(called) == 77


def test_an_interrupt_ends_the_calls() -> None:
    called: list[int] = []
    interrupt = functools.partial(os.kill, os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _core.time_calls([interrupt, functools.partial(called.append, 1)], np.array([0, 1], np.uint32))
    assert called == []


def test_what_functions_return_is_not_kept() -> None:
    class Value:
        alive = 0

        def __init__(self) -> None:
            Value.alive += 1

        def __del__(self) -> None:
            Value.alive -= 1

    _core.time_calls([Value], np.zeros(3, np.uint32), repeat=50)
    assert Value.alive == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _core.time_calls([print], np.zeros(0, np.uint32)), "order is empty"),
        (lambda: _core.time_calls([print], np.array([0, 1], np.uint32)), "order holds 1; accepted are numbers below"),
        (lambda: _core.time_calls([print, 3], once()), "functions holds 3; accepted are callables"),
        (lambda: _core.time_calls([print], once(), repeat=0), "repeat is 0; accepted are 1 to 4294967295"),
        (lambda: _core.time_calls([print], once(), repeat=1 << 32), "repeat is 4294967296; accepted are 1 to"),
        (lambda: _core.time_calls([print], once(), longest_ns=0), "longest_ns is 0; accepted are positive"),
        (lambda: _core.Sampler(flush_bytes=-2), "flush_bytes is -2; accepted are 0 and more"),
        (lambda: _core.Graph.capture(print, 1, stream=0), "stream is the legacy default stream"),
        (lambda: _core.Graph.capture(print, 0, stream=8), "calls is 0; accepted are positive numbers"),
        (lambda: _core.Graph.capture(None, 1, stream=8), "function is None; accepted are callables"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: _core.Sampler(NO_SUCH_DEVICE),
        lambda: _core.Graph.capture(print, 1, device=NO_SUCH_DEVICE, stream=8),
        lambda: _core.device_limits(NO_SUCH_DEVICE),
    ],
)
def test_a_gpu_that_is_not_there_is_not_available(call: Callable[[], object]) -> None:
    with pytest.raises(NotAvailable):
        call()


def test_the_clocks_of_a_gpu_that_is_not_there_are_none_and_why() -> None:
    state = _core.clock_state(NO_SUCH_DEVICE)
    assert state.pop("why")
    assert set(state) == {"sm_hz", "memory_hz", "power_w", "power_limit_w", "temperature_c", "reasons"}
    assert set(state.values()) == {None}
