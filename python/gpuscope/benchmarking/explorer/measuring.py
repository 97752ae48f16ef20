# SPDX-License-Identifier: Apache-2.0
"""Measures CPU and GPU over kinds of work and sizes."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from gpuscope.arguments import BackendName, FloatType, check_budget, check_choice
from gpuscope.benchmarking import visits
from gpuscope.benchmarking.crossovers import answer
from gpuscope.benchmarking.explorer import backends
from gpuscope.benchmarking.explorer.backends import Backend, Operation, chosen
from gpuscope.benchmarking.explorer.exploration import SIDES, Exploration, OperationCrossover, Point, Side
from gpuscope.benchmarking.rounds import Rounds, Series, SweepPoint
from gpuscope.benchmarking.stopping import Budget
from gpuscope.errors import InvalidArgument
from gpuscope.results import kept_on_error
from gpuscope.system import environment as look
from gpuscope.text import brief
from gpuscope.units import first_line

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
PRECISION = 0.02  # half of the 95 % interval over the time; enough for a chart
BUDGET = 60.0
LARGEST = 1 << 20  # rows of a matrix that would fill 4 TiB

_Key = tuple[str, int, Side]  # operation, size and side of a point

_SPARE = 0.9  # of the free memory; the rest is for the libraries themselves
_FIGURES = re.compile(r"\d[\d.,]*\s?(?:ns|us|ms|s|%|\b)")

# Variables from which libraries read their number of threads.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def explore(
    operations: Sequence[str] | None = None,
    sizes: Sequence[int] = SIZES,
    *,
    backend: BackendName | None = None,
    dtype: FloatType = "float32",
    budget: float = BUDGET,
    progress: Callable[[str], object] | None = None,
) -> Exploration:
    """Measures the times of the CPU and the GPU for kinds of work on n by n matrices.

    They are wall times with warm caches: on the CPU; on the GPU with the data in its memory; and on the GPU with copies
    of inputs and results. All points are measured in rounds of random order. Ctrl-C ends the measurement and keeps the
    results so far.

    Args:
        operations: some of matmul, elementwise, reduction, fft, copy and sort; None for all.
        sizes: rows and columns of the matrices.
        backend: ``"torch"`` on both sides, ``"cupy"`` against NumPy, ``"numpy"`` for only the CPU; None for NumPy
            against PyTorch's GPU, or else CuPy's.
        dtype: ``"float32"`` or ``"float64"``.
        budget: seconds; the first round is always finished.
        progress: called with a line of text before each point.

    Raises:
        InvalidArgument: an argument cannot be used.
        NotAvailable: the backend is not installed.
        KeyboardInterrupt: interrupted before anything was measured.
    """
    kinds = chosen(operations)
    numbers = _checked_sizes(sizes)
    check_choice("dtype", dtype, get_args(FloatType))
    budget = check_budget(budget)
    cpu, gpu, why = backends.choose(backend)
    started, spent = time.time(), Budget(budget)
    failures: list[Exception] = []

    def say(text: str) -> None:
        if progress is None:
            return
        try:
            progress(f"{text}; about {spent.left:.0f} s left")
        except Exception as error:  # an error of the callback is no failure of the point being prepared
            failures.append(error)
            raise KeyboardInterrupt from error

    series, remarks = _plan(kinds, numbers, cpu, gpu, dtype, say)
    stopped = Rounds(PRECISION, cold=False).run(series, budget) if series else "failed"
    all_points = [each.point(PRECISION, "not reached") for each in series]
    measured = {_key(point): point for point in all_points if point.estimate is not None}
    points = _points(kinds, measured, np.dtype(dtype).itemsize)
    if stopped == "interrupted" and not points:
        raise failures[0] if failures else KeyboardInterrupt
    for each, point in zip(series, all_points, strict=True):
        if point.error is not None and each.failed:
            remarks.append(f"{_place(*_key(point))}: {_shortened(point.error)}")
    found = Exploration(
        operations=kinds,
        points=points,
        crossovers=_crossovers(kinds, measured) if gpu is not None else (),
        dtype=dtype,
        cpu=f"{cpu.device}, {cpu.library}",
        gpu=f"{gpu.device}, {gpu.library}" if gpu is not None else None,
        why_no_gpu=why,
        remarks=tuple(remarks),
        warnings=_warnings(measured.values()),
        environment=_environment(cpu, gpu),
        started=started,
        seconds=spent.spent,
        interrupted=stopped == "interrupted",
    )
    if failures:
        with kept_on_error(lambda: found):
            raise failures[0]
    return found


def _checked_sizes(sizes: Sequence[int]) -> list[int]:
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
        raise InvalidArgument(f"sizes is {brief(sizes)}; accepted are integers, as [256, 1024]")
    chosen = list(sizes)
    for size in chosen:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or not 1 <= size <= LARGEST:
            raise InvalidArgument(
                f"sizes contains {brief(size)}; accepted are integers of at least 1, and at most {LARGEST:,}"
            )
    if not chosen:
        raise InvalidArgument("sizes is empty; accepted are integers of at least 1")
    return sorted({int(size) for size in chosen})


def _plan(
    kinds: Sequence[Operation],
    sizes: Sequence[int],
    cpu: Backend,
    gpu: Backend | None,
    dtype: str,
    say: Callable[[str], None],
) -> tuple[list[Series], list[str]]:
    """The points whose matrices fit in memory, and remarks on the others."""
    itemsize = np.dtype(dtype).itemsize
    on_host = cpu.free_bytes() * _SPARE
    on_gpu = gpu.free_bytes() * _SPARE if gpu is not None else 0.0
    series, remarks = [], []
    for operation in kinds:
        for n in sizes:
            needed = operation.memory(n, itemsize)
            for side in get_args(Side) if gpu is not None else ("cpu",):
                if needed > (on_host if side == "cpu" else min(on_host, on_gpu)):
                    free = on_host if side == "cpu" or on_host < on_gpu else on_gpu
                    remarks.append(
                        f"{_place(operation.name, n, side)}: it needs {needed / 2**30:.3g} GiB of memory, "
                        f"and {free / 2**30:.3g} GiB can be used"
                    )
                    continue
                make = partial(_prepared, operation, n, side, cpu, gpu, dtype, say)
                series.append(Series({"operation": operation.name, "n": n, "side": side}, make, "wall"))
    return series, remarks


def _prepared(
    operation: Operation,
    n: int,
    side: Side,
    cpu: Backend,
    gpu: Backend | None,
    dtype: str,
    say: Callable[[str], None],
) -> Callable[[], object]:
    """The call to time, with its inputs."""
    say(_place(operation.name, n, side))
    random = np.random.default_rng(n)
    hosts: list[NDArray[Any]] = [random.random((n, n), dtype=np.dtype(dtype)) for _ in range(operation.inputs)]
    backend = cpu if gpu is None or side == "cpu" else gpu
    function = backend.function(operation.name)
    if side == "gpu+transfers":
        return lambda: backend.give(function(*map(backend.take, hosts)))
    return partial(function, *map(backend.take, hosts))


def _key(point: SweepPoint) -> _Key:
    return cast("_Key", tuple(point.parameters.values()))


def _place(operation: str, n: int, side: Side) -> str:
    return f"{operation}, n = {n}, on the {SIDES[side]}"


def _points(kinds: Sequence[Operation], measured: Mapping[_Key, SweepPoint], itemsize: int) -> tuple[Point, ...]:
    work = {operation.name: operation.work for operation in kinds}
    points = []
    for (name, n, side), point in measured.items():
        assert point.estimate is not None
        cpu = measured.get((name, n, "cpu")) if side != "cpu" else None
        points.append(
            Point(
                operation=name,
                n=n,
                side=side,
                wall=point.estimate,
                rate=work[name](n, itemsize) / point.estimate.value,
                speedup=visits.ratio(cpu.visits, point.visits) if cpu is not None else None,
                converged=point.converged,
            )
        )
    return tuple(points)


def _crossovers(kinds: Sequence[Operation], measured: Mapping[_Key, SweepPoint]) -> tuple[OperationCrossover, ...]:
    found = []
    sides: tuple[tuple[Side, bool], ...] = (("gpu", False), ("gpu+transfers", True))
    for name, (side, transfers) in itertools.product([operation.name for operation in kinds], sides):
        twice = {key for key, point in measured.items() if len(point.visits) > 1}
        sizes = sorted(n for kind, n, where in twice if (kind, where) == (name, side) and (name, n, "cpu") in twice)
        cpu, gpu = ([measured[name, n, where].visits for n in sizes] for where in ("cpu", side))
        found.append(OperationCrossover(name, transfers, answer(sizes, cpu, gpu)))
    return tuple(found)


def _warnings(measured: Collection[SweepPoint]) -> tuple[str, ...]:
    """The points' warnings; those that differ only in figures are shown once, with their number."""
    coarse = [point for point in measured if point.estimate and point.estimate.relative_half_width > PRECISION]
    found = {}
    if coarse:
        what = f"{len(coarse)} of {len(measured)} times are less certain than +-{PRECISION:.0%}; a longer budget helps"
        found[""] = [f"{what}: {_place(*_key(coarse[0]))}"] * len(coarse)
    for point in measured:
        for warning in point.warnings:
            found.setdefault(pattern(warning), []).append(f"{_place(*_key(point))}: {warning}")
    return tuple(first + (f"; and {len(others)} more like it" if others else "") for first, *others in found.values())


def pattern(warning: str) -> str:
    """A warning without its figures."""
    return _FIGURES.sub("#", warning)


def _shortened(text: str) -> str:
    line = first_line(text)
    return line if len(line) <= 200 else f"{line[:197]}..."


def _environment(cpu: Backend, gpu: Backend | None) -> dict[str, str]:
    """Facts about hardware and software by name, without unknown ones."""
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
