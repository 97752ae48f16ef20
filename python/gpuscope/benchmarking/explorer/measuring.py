# SPDX-License-Identifier: Apache-2.0
"""Measures CPU and GPU over kinds of work and sizes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmarking.crossovers import answer
from gpuscope.benchmarking.explorer import backends
from gpuscope.benchmarking.explorer.backends import Backend, Operation, chosen
from gpuscope.benchmarking.explorer.exploration import Exploration, OperationCrossover, Point, Side
from gpuscope.benchmarking.stopping import check_budget
from gpuscope.benchmarking.sweeps import Rounds, Series, SweepPoint
from gpuscope.errors import InvalidArgument
from gpuscope.system import environment as look
from gpuscope.units import first_line

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
DTYPES = ("float32", "float64")
TARGET = 0.02  # half of the 95% interval over the time; enough for a line in a chart
BUDGET = 60.0

_SPARE = 0.9  # of the free memory; the rest is for what libraries take besides
_SIDES = {"cpu": "the CPU", "gpu": "the GPU", "gpu+transfers": "the GPU with transfers"}
_FIGURES = re.compile(r"\d[\d.,]*\s?(?:ns|us|ms|s|%|\b)")

# What libraries read the number of their threads from.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class _Task:
    """One point to measure."""

    operation: Operation
    n: int
    side: Side
    series: Series

    @property
    def place(self) -> str:
        return f"{self.operation.name}, n = {self.n}, on {_SIDES[self.side]}"


def explore(
    operations: Sequence[str] | None = None,
    sizes: Sequence[int] = SIZES,
    *,
    backend: str | None = None,
    dtype: str = "float32",
    budget: float = BUDGET,
    progress: Callable[[str], object] | None = None,
) -> Exploration:
    """Measures how long the CPU and the GPU take for kinds of work on n by n matrices.

    Wall times, as a caller sees them, with warm caches: on the CPU; on the GPU with the data in its memory; and on the
    GPU with the inputs copied there and the result copied back. All points are measured in rounds, in random order.
    Ctrl-C ends it and keeps what was measured.

    Args:
        operations: of matmul, elementwise, reduction, fft, copy and sort; None for all.
        sizes: rows and columns of the matrices.
        backend: ``"torch"`` on both sides, ``"cupy"`` against NumPy, ``"numpy"`` for the CPU alone; None for NumPy
            against PyTorch's GPU, or else CuPy's.
        dtype: ``"float32"`` or ``"float64"``.
        budget: seconds; the first round is always finished.
        progress: called with a line of text, before each point.

    Raises:
        InvalidArgument: an argument cannot be used.
        NotAvailable: the backend is not installed.
        KeyboardInterrupt: interrupted before anything was measured.
    """
    kinds = chosen(operations)
    numbers = _checked_sizes(sizes)
    if dtype not in DTYPES:
        raise InvalidArgument(f"dtype is {dtype!r}; accepted are {' and '.join(DTYPES)}")
    check_budget(budget)
    cpu, gpu, why = backends.choose(backend)
    started, clock = time.time(), time.perf_counter()

    def say(text: str) -> None:
        if progress is not None:
            left = max(0.0, budget - (time.perf_counter() - clock))
            progress(f"{text}; about {left:.0f} s left")

    tasks, remarks = _plan(kinds, numbers, cpu, gpu, dtype, say)
    stopped = Rounds(TARGET, cold=False).run([task.series for task in tasks], budget) if tasks else "failed"
    measured = [(task, task.series.point(TARGET, "not reached")) for task in tasks]
    points = _points(measured, np.dtype(dtype).itemsize)
    if stopped == "interrupted" and not points:
        raise KeyboardInterrupt
    for task, point in measured:
        if point.error is not None and task.series.failed:
            remarks.append(f"{task.place}: {_shortened(point.error)}")
    return Exploration(
        operations=kinds,
        points=points,
        crossovers=_crossovers(kinds, measured) if gpu is not None else (),
        dtype=dtype,
        cpu=f"{cpu.device}, {cpu.library}",
        gpu=f"{gpu.device}, {gpu.library}" if gpu is not None else None,
        why_no_gpu=why,
        remarks=tuple(remarks),
        warnings=_warnings(measured),
        environment=_environment(cpu, gpu),
        started=started,
        seconds=time.perf_counter() - clock,
        interrupted=stopped == "interrupted",
    )


def _checked_sizes(sizes: Sequence[int]) -> list[int]:
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise InvalidArgument(f"sizes contains {size!r}; accepted are integers of at least 1")
    if not len(sizes):
        raise InvalidArgument("sizes is empty; accepted are integers of at least 1")
    return sorted({int(size) for size in sizes})


def _plan(
    kinds: Sequence[Operation],
    sizes: Sequence[int],
    cpu: Backend,
    gpu: Backend | None,
    dtype: str,
    say: Callable[[str], None],
) -> tuple[list[_Task], list[str]]:
    """The points whose matrices fit in memory, and remarks on those that do not."""
    itemsize = np.dtype(dtype).itemsize
    on_host = cpu.free_bytes() * _SPARE
    on_gpu = gpu.free_bytes() * _SPARE if gpu is not None else 0.0
    tasks, remarks = [], []
    for operation in kinds:
        for n in sizes:
            needed = operation.memory(n, itemsize)
            for side in get_args(Side) if gpu is not None else ("cpu",):
                if needed > (on_host if side == "cpu" else min(on_host, on_gpu)):
                    free = on_host if side == "cpu" or on_host < on_gpu else on_gpu
                    remarks.append(
                        f"{operation.name}, n = {n}, on {_SIDES[side]}: it needs {needed / 2**30:.3g} GiB of memory, "
                        f"and {free / 2**30:.3g} GiB can be used"
                    )
                    continue
                make = partial(_prepared, operation, n, side, cpu, gpu, dtype, say)
                series = Series({"operation": operation.name, "n": n, "side": side}, make, "wall")
                tasks.append(_Task(operation, n, side, series))
    return tasks, remarks


def _prepared(
    operation: Operation,
    n: int,
    side: Side,
    cpu: Backend,
    gpu: Backend | None,
    dtype: str,
    say: Callable[[str], None],
) -> Callable[[], object]:
    """The call to be timed, its inputs made."""
    say(f"{operation.name}, n = {n}, on {_SIDES[side]}")
    random = np.random.default_rng(n)
    hosts: list[NDArray[Any]] = [random.random((n, n), dtype=np.dtype(dtype)) for _ in range(operation.inputs)]
    backend = cpu if gpu is None or side == "cpu" else gpu
    function = backend.function(operation.name)
    if side == "gpu+transfers":
        return lambda: backend.give(function(*map(backend.take, hosts)))
    return partial(function, *map(backend.take, hosts))


def _points(measured: Sequence[tuple[_Task, SweepPoint]], itemsize: int) -> tuple[Point, ...]:
    on_cpu = {(task.operation.name, task.n): point for task, point in measured if task.side == "cpu"}
    points = []
    for task, point in measured:
        if point.estimate is None:
            continue
        cpu = on_cpu.get((task.operation.name, task.n))
        compared = task.side != "cpu" and cpu is not None and cpu.estimate is not None
        points.append(
            Point(
                operation=task.operation.name,
                n=task.n,
                side=task.side,
                wall=point.estimate,
                rate=task.operation.work(task.n, itemsize) / point.estimate.value,
                speedup=stats.ratio_of_medians(cpu.samples, point.samples) if cpu is not None and compared else None,
                converged=point.estimate.relative_half_width <= TARGET,
            )
        )
    return tuple(points)


def _crossovers(
    kinds: Sequence[Operation], measured: Sequence[tuple[_Task, SweepPoint]]
) -> tuple[OperationCrossover, ...]:
    samples = {
        (task.operation.name, task.side, task.n): point.samples
        for task, point in measured
        if point.estimate is not None
    }
    found = []
    for operation in kinds:
        sides: tuple[tuple[Side, bool], ...] = (("gpu", False), ("gpu+transfers", True))
        for side, transfers in sides:
            name = operation.name
            sizes = sorted(
                n for kind, where, n in samples if (kind, where) == (name, side) and (name, "cpu", n) in samples
            )
            cpu, gpu = ([samples[name, where, n] for n in sizes] for where in ("cpu", side))
            found.append(OperationCrossover(name, transfers, answer(sizes, cpu, gpu)))
    return tuple(found)


def _warnings(measured: Sequence[tuple[_Task, SweepPoint]]) -> tuple[str, ...]:
    """What the points warn of: of warnings that differ in their figures alone the first, and how many there are."""
    estimates = [(task, point.estimate) for task, point in measured if point.estimate is not None]
    coarse = [task for task, estimate in estimates if estimate.relative_half_width > TARGET]
    found = {}
    if coarse:
        what = f"{len(coarse)} of {len(estimates)} times are less certain than +-{TARGET:.0%}; a longer budget helps"
        found[""] = [f"{what}: {coarse[0].place}"] * len(coarse)
    for task, point in measured:
        for warning in point.warnings:
            found.setdefault(pattern(warning), []).append(f"{task.place}: {warning}")
    return tuple(first + (f"; and {len(others)} more like it" if others else "") for first, *others in found.values())


def pattern(warning: str) -> str:
    """A warning without its figures."""
    return _FIGURES.sub("#", warning)


def _shortened(text: str) -> str:
    line = first_line(text)
    return line if len(line) <= 200 else f"{line[:197]}..."


def _environment(cpu: Backend, gpu: Backend | None) -> dict[str, str]:
    """Names and what they stand for, in words; what is not known is left out."""
    found = look()
    memory = f"{found.devices[0].memory_bytes / 2**30:.0f} GiB" if gpu is not None and found.devices else None
    facts = {
        "GPU": gpu.device if gpu is not None else None,
        "GPU memory": memory,
        "GPU library": gpu.library if gpu is not None else None,
        "driver": found.driver_version,
        "CUDA of the driver": found.cuda_version,
        "CPU": cpu.device,
        "CPU library": cpu.library,
        "threads": ", ".join(f"{name}={os.environ[name]}" for name in _THREADS if name in os.environ) or None,
        "NumPy": np.__version__,
        "Python": found.python_version,
        "system": found.platform,
        "gpuscope": found.gpuscope_version,
    }
    return {name: text for name, text in facts.items() if text}
