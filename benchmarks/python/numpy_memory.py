# SPDX-License-Identifier: Apache-2.0
"""What it takes to record one of NumPy's arrays, from its allocation to its release, in CPU time of the thread.

The program calls functions 12 deep and makes arrays of 1 KiB to 1 MiB at four lines: nothing else, and with work on
half a megabyte between them, so that the caches are cold. tracemalloc, of Python's own library, is measured beside it
with a stack of as many frames.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import measure
import numpy as np

DEPTH = 12
SIZES = (1 << 10, 4 << 10, 64 << 10, 1 << 20)
NUMBERS = 64_000  # of 8 bytes, that the work goes through
ARRAYS = {"nothing else": 20_000, "with work between": 2_000}  # a round
SETTLE = 400
ROUNDS = 40
QUICK_ROUNDS = 10
ROWS = ("numpy_memory",)


def make_arrays(count: int, work: Callable[[], object], depth: int = DEPTH) -> None:
    if depth > 1:
        make_arrays(count, work, depth - 1)
        return
    one, two, three, four = SIZES
    for _ in range(count // len(SIZES)):
        np.empty(one, np.uint8)
        work()
        np.empty(two, np.uint8)
        work()
        np.empty(three, np.uint8)
        work()
        np.empty(four, np.uint8)
        work()


@contextlib.contextmanager
def under_ours(**options: Any) -> Iterator[None]:
    from gpuscope.memory.history.history import record_memory_history

    with record_memory_history(max_entries=1_000_000, **options) as history:
        yield
    if any("NumPy" in note for note in history.notes):
        raise RuntimeError("; ".join(history.notes))


@contextlib.contextmanager
def under_tracemalloc() -> Iterator[None]:
    tracemalloc.start(DEPTH)
    try:
        yield
    finally:
        tracemalloc.stop()


MODES: dict[str, Callable[[], Any]] = {
    "nothing": contextlib.nullcontext,
    "gpuscope": under_ours,
    "gpuscope, no stacks": lambda: under_ours(stacks=False),
    "tracemalloc": under_tracemalloc,
}


def cost_us(work: Callable[[], object], arrays: int, rounds: int) -> dict[str, float]:
    """Of an array, by what records it: the median of the rounds' differences to nothing, and what one takes without."""
    spent: dict[str, list[float]] = {name: [] for name in MODES}
    for number in range(rounds + 1):
        turn = number % len(MODES)
        for name in [*MODES][turn:] + [*MODES][:turn]:
            with MODES[name]():
                make_arrays(SETTLE, work)
                began = time.thread_time_ns()
                make_arrays(arrays, work)
                took = (time.thread_time_ns() - began) / arrays / 1e3
            if number > 0:  # the first round starts every tool up
                spent[name].append(took)
    base = spent.pop("nothing")
    costs = {
        name: round(statistics.median(a - b for a, b in zip(values, base, strict=True)), 3)
        for name, values in spent.items()
    }
    return {**costs, "nothing": round(statistics.median(base), 3)}


def main() -> None:
    options = measure.arguments(__doc__)
    why = measure.why_not_available()
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    numbers = np.ones(NUMBERS)
    programs: dict[str, Callable[[], object]] = {
        "nothing else": lambda: None,
        "with work between": lambda: np.sqrt(numbers, out=numbers),
    }
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    found = {name: cost_us(work, ARRAYS[name], rounds) for name, work in programs.items()}
    worst = {name: {"value": max(costs[name] for costs in found.values())} for name in MODES if name != "nothing"}
    measure.answer({"rows": {"numpy_memory": {**worst.pop("gpuscope"), "others": worst, "detail": found}}})


if __name__ == "__main__":
    main()
