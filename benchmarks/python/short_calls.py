# SPDX-License-Identifier: Apache-2.0
"""Calls of 30 ns to 10 us on the CPU: as `benchmark` samples them, beside `timeit`. Needs no GPU.

They take turns of some milliseconds, with Python's collection of garbage off in both. `timeit` has its loop in its
times, gpuscope the way from C++ into Python; neither takes anything off. Functions in C are called faster from C++ than
by the interpreter, which is no error of either: they are shown and not judged.
"""

from __future__ import annotations

import functools
import json
import statistics
import timeit
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

ROUNDS, QUICK_ROUNDS = 400, 60
SAMPLES = 32  # of each in a round
TIMEIT_SECONDS = 20e-6  # of one timing of timeit's, where gpuscope times single calls
ROWS = ("short_calls",)

DIGITS = [1, 2, 3]
NUMBER = 1
RECORD = {"name": "gemm", "grid": [4, 4, 1], "us": 12.5}


def empty() -> None:
    pass


def ten_us() -> None:
    for _ in range(900):
        pass


FUNCTIONS: dict[str, Callable[[], object]] = {
    "empty function": empty,
    "lambda: None": lambda: None,
    "lambda: len(x)": lambda: len(DIGITS),
    "lambda: x + 1": lambda: NUMBER + 1,
    "json.dumps": lambda: json.dumps(RECORD),
    "10 us": ten_us,
}
IN_C: dict[str, Callable[[], object]] = {"partial(len, x)": functools.partial(len, DIGITS), "int": int}


def compared(function: Callable[[], object], rounds: int) -> dict[str, Any]:
    """ns a call of one function, by both and by single calls between two readings of the clock, and the ratio."""
    from gpuscope.benchmarking.engine import Engine

    order = np.zeros(SAMPLES, np.uint32)
    with Engine([function]) as engine:
        alone = engine.sample("wall", np.zeros(10 * SAMPLES, np.uint32)).seconds["wall"]
        engine.warm_up(0.3)
        number = engine.calls_per_sample
        theirs_number = max(number, round(TIMEIT_SECONDS / float(np.median(alone))))
        ours: list[float] = []
        theirs: list[float] = []
        fastest: list[float] = []
        for turn in range(rounds):
            for is_ours in (turn % 2 == 0, turn % 2 != 0):
                if is_ours:
                    seconds = engine.sample("wall", order).seconds["wall"].tolist()
                else:
                    seconds = [
                        each / theirs_number for each in timeit.repeat(function, number=theirs_number, repeat=SAMPLES)
                    ]
                    fastest.append(min(seconds))
                (ours if is_ours else theirs).append(statistics.median(seconds) * 1e9)
    return {
        "calls a sample": number,
        "single calls": round(float(np.median(alone)) * 1e9, 1),
        "gpuscope": round(statistics.median(ours), 1),
        "timeit": round(statistics.median(theirs), 1),
        "timeit's minimum": round(min(fastest) * 1e9, 1),
        "ratio": round(measure.paired_ratio(ours, theirs), 3),
    }


def off(found: dict[str, Any], loop: float) -> float:
    """By how much gpuscope's time lies beyond timeit's, or below that without its loop, as a share of it."""
    ratio, least = found["ratio"], 1 - loop / found["timeit"]
    return float(max(ratio - 1, least - ratio, 0.0))


def main() -> None:
    options = measure.arguments(__doc__)
    why = measure.why_not_available()
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    loop = min(timeit.repeat(number=1000, repeat=1000)) * 1e6  # ns, of timeit's own without anything in it
    found = {name: compared(function, rounds) for name, function in (FUNCTIONS | IN_C).items()}
    worst = max(off(found[name], loop) for name in FUNCTIONS)
    detail = {"ns": found, "timeit's loop": round(loop, 1)}
    measure.answer({"rows": {"short_calls": {"value": round(worst, 4), "detail": detail}}})


if __name__ == "__main__":
    main()
