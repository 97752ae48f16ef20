# SPDX-License-Identifier: Apache-2.0
"""What samples of Python, every millisecond, cost the program: alone, beside py-spy and pyinstrument at the same rate.

Programs that use one core, all cores, and many threads; each round of work runs under every tool in turns. py-spy looks
in from a process of its own, which needs the right to trace this one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import measure
import numpy as np

INTERVAL_S = 0.001
ROUND_S = 0.25  # of work, about
ROUNDS = 60
QUICK_ROUNDS = 12
THREADS = 16
ROWS = ("python_samples",)

Mode = Callable[[], Any]
Work = Callable[[int], None]


def python_loop(rounds: int) -> None:
    """Calls of Python functions, and nothing else."""

    def step(x: int) -> int:
        return x * 3 % 1001

    x = 1
    for _ in range(rounds):
        for _ in range(1000):
            x = step(x)


def deep_loop(rounds: int) -> None:
    """The same from within 60 frames."""

    def down(levels: int) -> None:
        if levels:
            down(levels - 1)
        else:
            python_loop(rounds)

    down(60)


def numpy_loop(rounds: int) -> None:
    """Small and large arrays on one core."""
    small, large = np.ones(100), np.ones(100_000)
    for _ in range(rounds):
        for _ in range(20):
            np.add(small, small, out=small)
            np.minimum(small, 1.0, out=small)
        np.sqrt(large, out=large)


def matrix_loop(rounds: int) -> None:
    """Products of matrices, which take every core."""
    a = np.ones((256, 256)) / 256
    for _ in range(rounds):
        a = a @ a


def threads_loop(rounds: int) -> None:
    """Threads that hand work to one another, most of which wait."""
    queues: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(THREADS)]

    def pass_on(number: int) -> None:
        left = 0
        while left >= 0:
            left = queues[number].get()
            if left > -THREADS:  # below 0 each thread ends
                queues[(number + 1) % THREADS].put(left - 1)

    threads = [threading.Thread(target=pass_on, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    queues[0].put(rounds)
    for thread in threads:
        thread.join()


WORK: dict[str, Work] = {
    "Python": python_loop,
    "Python, 60 frames deep": deep_loop,
    "NumPy": numpy_loop,
    "NumPy on all cores": matrix_loop,
    f"{THREADS} threads": threads_loop,
}


@contextlib.contextmanager
def gpuscope_samples() -> Iterator[None]:
    import gpuscope

    with gpuscope.profile(activities=["CPU"], python_samples=INTERVAL_S) as prof:
        yield
    if not prof.samples():
        raise RuntimeError("no samples were taken")
    taken.append(prof.samples().count / prof.samples().recorded_ns * 1e9)


taken: list[float] = []  # samples a second


@contextlib.contextmanager
def pyinstrument() -> Iterator[None]:
    from pyinstrument import Profiler

    profiler = Profiler(interval=INTERVAL_S)
    profiler.start()
    yield
    profiler.stop()


@contextlib.contextmanager
def py_spy(*options: str) -> Iterator[None]:
    program = shutil.which("py-spy", path=f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}")
    assert program is not None
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        rate = str(round(1 / INTERVAL_S))
        to = ["--format", "raw", "--output", file.name]
        command = [program, "record", "--pid", str(os.getpid()), "--rate", rate, "--duration", "600", *to, *options]
        tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert tool.stdout is not None
        said = [tool.stdout.readline()]
        while said[-1] and "Sampling process" not in said[-1]:
            said.append(tool.stdout.readline())
        if not said[-1]:
            raise RuntimeError(f"py-spy did not start: {' '.join(line.strip() for line in said)[:200]}")
        time.sleep(0.05)
        try:
            yield
        finally:
            tool.send_signal(signal.SIGINT)
            tool.communicate(timeout=60)


def modes() -> tuple[dict[str, Mode], dict[str, str]]:
    """The tools that can run here, and why others cannot."""
    found: dict[str, Mode] = {"nothing": contextlib.nullcontext, "gpuscope": gpuscope_samples}
    missing: dict[str, str] = {}
    if importlib.util.find_spec("pyinstrument"):
        found["pyinstrument"] = pyinstrument
    else:
        missing["pyinstrument"] = "pyinstrument is not installed"
    for name, options in (("py-spy", ()), ("py-spy --nonblocking", ("--nonblocking",))):
        try:
            with py_spy(*options):
                pass
            found[name] = functools.partial(py_spy, *options)
        except (AssertionError, OSError, RuntimeError) as error:
            missing[name] = str(error) or "py-spy is not installed"
    return found, missing


def rounds_for(work: Work) -> int:
    """How much work takes a round's time."""
    rounds = 32
    while True:
        began = time.perf_counter()
        work(rounds)
        spent = time.perf_counter() - began
        if spent > ROUND_S / 4:
            return max(1, round(rounds * ROUND_S / spent))
        rounds *= 4


def compare(work: Work, tools: dict[str, Mode], turns: int) -> dict[str, list[float]]:
    """Seconds of each round under each tool, the tools in turns."""
    amount = rounds_for(work)
    spent: dict[str, list[float]] = {name: [] for name in tools}
    names = list(tools)
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            with tools[name]():
                began = time.perf_counter()
                work(amount)
                spent[name].append(time.perf_counter() - began)
    return spent


def main() -> None:
    options = measure.arguments(__doc__)
    why = measure.why_not_available()
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    tools, missing = modes()
    ratios: dict[str, dict[str, float]] = {}
    for name, work in WORK.items():
        spent = compare(work, tools, QUICK_ROUNDS if options.quick else ROUNDS)
        ratios[name] = {
            tool: round(measure.paired_ratio(spent[tool], spent["nothing"]), 4) for tool in tools if tool != "nothing"
        }
    own = {name: by_tool["gpuscope"] for name, by_tool in ratios.items()}
    others: dict[str, Any] = {
        tool: {"value": max(by_tool[tool] for by_tool in ratios.values())}
        for tool in tools
        if tool not in ("nothing", "gpuscope")
    }
    others |= {tool: {"error": why} for tool, why in missing.items()}
    detail = {"x, by program": ratios, "samples a second": round(statistics.median(taken)), "cores": os.cpu_count()}
    measure.answer({"rows": {"python_samples": {"value": max(own.values()), "others": others, "detail": detail}}})


if __name__ == "__main__":
    main()
