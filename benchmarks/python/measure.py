# SPDX-License-Identifier: Apache-2.0
"""What the benchmark scripts share: rounds that take turns, child processes, and one form of answer.

A script prints one line of JSON: ``{"rows": {NAME: {"value", "others", "detail"} or {"skipped"}}, ...}``, where NAME is
one of budgets.toml and `others` holds the same figure of other tools.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHILD_SECONDS = 240

Row = dict[str, Any]


def arguments(description: str | None, **extra: Any) -> argparse.Namespace:
    """The command line of a script: --quick, and options of its own as name=default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and no recording of 1M launches")
    for name, default in extra.items():
        parser.add_argument(f"--{name}", default=default, type=type(default))
    return parser.parse_args()


def take_turns(
    bodies: Mapping[str, Callable[[int], None]], iterations: Mapping[str, int], rounds: int
) -> dict[str, list[float]]:
    """Runs the bodies one after the other, round by round, and returns ns per iteration of each round.

    Every round begins with another body, so that none always runs in the wake of the same one.
    """
    names = list(bodies)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            body, count = bodies[name], iterations[name]
            began = time.perf_counter_ns()
            body(count)
            spent[name].append((time.perf_counter_ns() - began) / count)
    return spent


def medians(spent: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 1) for name, values in spent.items()}


def paired_ratio(over: list[float], under: list[float]) -> float:
    """The median of the ratios round by round: what drifts from round to round cancels."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def thread_cpu_s() -> dict[int, float]:
    """CPU seconds of each thread of this process, by its id."""
    spent = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            clock = (~int(task.name) << 3) | 6  # Linux's number of the CPU clock of a thread
            spent[int(task.name)] = time.clock_gettime(clock)
    return spent


def child(script: str, *options: str, seconds: int = CHILD_SECONDS) -> dict[str, Any]:
    """The answer of another script, or of this one with other options, run in a process of its own.

    A child that fails answers ``{"error": why}``: one tool that is missing or breaks must not end the others' figures.
    """
    command = [sys.executable, str(HERE / script), *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took over {seconds} s"}
    # Tools print lines of their own, some of them while the process ends.
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        why = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        sys.stderr.write(done.stderr[-4000:])
        return {"error": why[-1][:300]}
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def why_not_available(*, gpu: bool = False) -> str:
    """Why gpuscope cannot be measured here; empty when it can."""
    try:
        import gpuscope
    except ImportError as error:
        return f"gpuscope is not installed: {error}"
    if not hasattr(gpuscope, "profile"):
        return "this build of gpuscope has no profiler"
    return why_no_gpu() if gpu else ""


def why_no_gpu() -> str:
    from gpuscope import _core

    if not hasattr(_core, "environment"):
        return "this build of gpuscope cannot look for a GPU"
    facts = _core.environment()
    return "" if facts["devices"] else f"no GPU: {facts['cuda_error'] or 'the driver lists no device'}"
