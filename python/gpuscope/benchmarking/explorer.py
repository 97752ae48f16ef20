# SPDX-License-Identifier: Apache-2.0
"""Compares CPU and GPU for kinds of work over sizes: measurement, text, JSON and page."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gpuscope.arguments import BackendName, FloatType, check_budget, check_choice
from gpuscope.benchmarking import backends, visits
from gpuscope.benchmarking.backends import OPERATIONS, Backend, Operation
from gpuscope.benchmarking.charts import curve
from gpuscope.benchmarking.crossovers import LOOKS, Answer, answer_of_visits
from gpuscope.benchmarking.rounds import Rounds, Series, SweepPoint
from gpuscope.benchmarking.stopping import Budget
from gpuscope.errors import InvalidArgument
from gpuscope.page.chart import Axis, Chart, Mark, Notices, View
from gpuscope.paths import write_text
from gpuscope.results import Abstention, Result, abstained, heading, kept_on_error, plain_fields
from gpuscope.stats import Estimate, Ratio
from gpuscope.system import environment as look
from gpuscope.tables import align_columns
from gpuscope.text import brief, shorten
from gpuscope.units import first_line, format_seconds, format_times

Side = Literal["cpu", "gpu", "gpu+transfers"]


SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
PRECISION = 0.02  # half of the 95 % interval over the time; enough for a chart
BUDGET = 60.0
LARGEST = 1 << 20  # rows of a matrix that would fill 4 TiB

SIDES: dict[Side, str] = dict(zip(get_args(Side), LOOKS, strict=True))

_Key = tuple[str, int, Side]  # operation, size and side of a point

_HEADINGS = ("n", "CPU", "GPU", "speed-up", "GPU+transfers", "speed-up")
_SPARE = 0.9  # of the free memory; the rest is for the libraries themselves
_LONGEST_ERROR = 200  # characters
_FIGURES = re.compile(r"\d[\d.,]*\s?(?:ns|us|ms|s|%|\b)")

# Variables from which libraries read their number of threads.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Point:
    """One operation at one size on one side.

    Attributes:
        operation: its name.
        n: rows and columns of the matrices.
        side: "cpu"; "gpu": data in GPU memory; "gpu+transfers": data in host memory before and after.
        wall: seconds from the call to its completion.
        rate: work per second of the estimate, in the unit of the operation.
        speedup: the CPU's time over this one, at the same size; None on the CPU.
        converged: whether the interval of `wall` is as narrow as requested.
    """

    operation: str
    n: int
    side: Side
    wall: Estimate
    rate: float
    speedup: Ratio | None
    converged: bool

    @property
    def throughput(self) -> Estimate:
        """The rate with its interval; an end is nan if it is not known."""
        work = self.rate * self.wall.value
        ends = (self.wall.high, self.wall.low)
        low, high = (work / seconds if 0 < seconds < math.inf else math.nan for seconds in ends)
        return replace(self.wall, value=self.rate, low=low, high=high)


@dataclass(frozen=True)
class OperationCrossover:
    """The size from which the GPU is faster than the CPU.

    Attributes:
        operation: the operation's name.
        transfers: whether moving the data counts.
        answer: the crossings of the two curves, with intervals.
    """

    operation: str
    transfers: bool
    answer: Answer

    @property
    def verdict(self) -> str:
        """The answer in words."""
        return f"{'with transfers' if self.transfers else 'data on the GPU'}: {self.answer}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"operation": self.operation, "transfers": self.transfers, **self.answer.to_dict()}


@dataclass(frozen=True, repr=False)
class Exploration(Result):
    """CPU against GPU over kinds of work and sizes.

    Attributes:
        operations: the measured operations, in order.
        points: one per operation, size and side, sorted.
        crossovers: per operation, with the data on the GPU and with transfers; empty without a GPU.
        dtype: number type of the matrices.
        cpu: processor and library of the CPU side.
        gpu: processor and library of the GPU side; None without a GPU.
        why_no_gpu: why there is none; empty with a GPU.
        remarks: the excluded points, and why.
        warnings: reasons for less certain figures.
        environment: machine and versions.
        started: seconds since the epoch.
        seconds: duration.
        interrupted: whether it was stopped before all points were measured.
    """

    operations: tuple[Operation, ...]
    points: tuple[Point, ...]
    crossovers: tuple[OperationCrossover, ...]
    dtype: str
    cpu: str
    gpu: str | None
    why_no_gpu: str
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    environment: dict[str, str]
    started: float
    seconds: float
    interrupted: bool

    def curve(self, operation: str, side: Side) -> tuple[Point, ...]:
        """The points of one operation on one side, by size."""
        return tuple(point for point in self.points if (point.operation, point.side) == (operation, side))

    def verdicts(self, operation: str) -> list[str]:
        """The answers for one operation, in words."""
        return [crossover.verdict for crossover in self.crossovers if crossover.operation == operation]

    def table(self) -> str:
        """Text: per operation the sizes with times and speed-ups, then the crossover."""
        lines = [f"CPU  {self.cpu}", f"GPU  {self._gpu_text}", ""]
        for operation in self.operations:
            lines += [*_block(self, operation), ""]
        if self.interrupted:
            lines.append("interrupted: only what was measured until then is shown")
        lines += [f"left out: {remark}" for remark in self.remarks]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines).rstrip("\n") + "\n"

    def plot(self) -> Chart:
        """Time, throughput and speed-up of each operation over the sizes, as a page and in notebooks."""
        above: dict[str, Sequence[str]] = {}
        if self.gpu is None:
            above[f"Only the CPU was measured: {self.why_no_gpu}."] = ()
        if self.interrupted:
            above["The exploration was interrupted: only what was measured until then is shown."] = ()
        if self.remarks:
            above["Left out"] = self.remarks
        below: Notices = {"Warnings": self.warnings} if self.warnings else {}
        facts = {
            "CPU": self.cpu,
            "GPU": self._gpu_text,
            "matrices": f"n by n {self.dtype}",
            "times": "wall, with warm caches",
            "transfers": "inputs to the GPU, the result back" if self.gpu else "",
        }
        environment = {
            **self.environment,
            "date": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(self.started)),
            "measured for": format_seconds(self.seconds, 4),
        }
        title = f"CPU against GPU: {self.gpu or self.cpu}"
        views = [view for operation in self.operations for view in _views(self, operation)]
        return Chart(title, views, facts, above=above, below=below, environment=environment)

    def to_html(self) -> str:
        """The page of `plot`."""
        return self.plot().to_html()

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Writes the page of `plot`.

        Raises:
            GpuscopeError: the file cannot be written.
        """
        write_text(path, self.to_html())

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: times in seconds, None if not known."""
        return {
            **heading("exploration"),
            "kind": "gpuscope exploration",
            "abstained": abstained(Abstention(what, why) for what, why in self._left_open),
            **plain_fields(self),
            "operations": [{key: getattr(each, key) for key in ("name", "title", "unit")} for each in self.operations],
        }

    @property
    def _left_open(self) -> list[tuple[str, str]]:
        found = [("GPU", self.why_no_gpu)] if self.why_no_gpu else []
        return found + [("points", each) for each in self.remarks]

    @property
    def _gpu_text(self) -> str:
        return self.gpu or f"none: {self.why_no_gpu}"

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per point; times in seconds, rates in the unit of the operation."""
        return [plain_fields(point) for point in self.points]

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        sizes = sorted({point.n for point in self.points})
        of_sizes = f", n from {sizes[0]} to {sizes[-1]}" if sizes else ""
        kinds = ", ".join(operation.name for operation in self.operations)
        return f"<Exploration: {kinds}: {len(self.points)} points{of_sizes}>"


def _block(found: Exploration, operation: Operation) -> list[str]:
    """The table of one operation, and its verdicts."""
    title = f"{operation.title} ({operation.name}), n x n {found.dtype}"
    curves = [{point.n: point for point in found.curve(operation.name, side)} for side in SIDES]
    sizes = sorted(set().union(*curves))
    if not sizes:
        return [title, "  nothing was measured"]
    rows = [_HEADINGS]
    for n in sizes:
        cpu, gpu, moved = (points.get(n) for points in curves)
        rows.append((f"{n:,}", _time(cpu), _time(gpu), _speedup(gpu), _time(moved), _speedup(moved)))
    columns = len(_HEADINGS) if found.gpu else 2
    verdicts = [f"  {verdict}" for verdict in found.verdicts(operation.name)]
    return [title, *align_columns([row[:columns] for row in rows], rule=True), *verdicts]


def _time(point: Point | None) -> str:
    """The time and the half width of its interval."""
    if point is None:
        return "-"
    width = point.wall.relative_half_width
    return f"{format_seconds(point.wall.value, 4)} +-{f'{width:.1%}' if math.isfinite(width) else '?'}"


def _speedup(point: Point | None) -> str:
    return format_times(point.speedup.value) if point is not None and point.speedup is not None else "-"


def _views(found: Exploration, operation: Operation) -> Iterator[View]:
    """Time, throughput and, with a GPU, speed-up of one operation."""
    curves = {name: found.curve(operation.name, side) for side, name in SIDES.items()}
    sizes = sorted({point.n for points in curves.values() for point in points})
    n = Axis("n", log=True, ticks=sizes)
    crossings = [
        mark
        for crossover in found.crossovers
        if crossover.operation == operation.name
        for mark in crossover.answer.marks(SIDES["gpu+transfers" if crossover.transfers else "gpu"])
    ]
    text = " ".join(f"{verdict[0].upper()}{verdict[1:]}." for verdict in found.verdicts(operation.name))

    def view(metric: str, y: Axis, figure: Callable[[Point], Estimate | Ratio | None], *marks: Mark) -> View:
        lines = []
        for name, points in curves.items():
            known = [(point.n, value) for point in points if (value := figure(point)) is not None]
            if known:
                lines.append(curve(name, LOOKS[name], known))
        return View(f"{operation.title}: {metric}", n, y, tuple(lines), (*crossings, *marks), text)

    yield view("time", Axis("time of a call", "time", log=True), lambda point: point.wall)
    yield view("throughput", Axis("throughput", "rate", operation.unit, log=True), lambda point: point.throughput)
    if found.gpu is not None:
        equal = Mark("y", 1.0, 1.0, 1.0, "as fast as the CPU", LOOKS[SIDES["cpu"]][0])
        yield view("speed-up", Axis("CPU's time over the GPU's", "times", log=True), lambda point: point.speedup, equal)


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
        Exception: raised by `progress`; its attribute ``measured`` has the result until then.
    """
    kinds = _checked_operations(operations)
    numbers = _checked_sizes(sizes)
    check_choice("dtype", dtype, get_args(FloatType))
    budget = check_budget(budget)
    cpu, gpu, why = backends.choose(backend)
    started, spent = time.time(), Budget(budget)
    series, left_out = _plan(kinds, numbers, cpu, gpu, dtype)

    def result(stopped: str) -> Exploration | None:
        """The result of all visits until now; None if an interruption came before the first."""
        points = {key: each.point(PRECISION, "") for key, each in series.items()}
        measured = {key: point for key, point in points.items() if point.estimate is not None}
        interrupted = stopped in ("interrupted", "error")
        if interrupted and not measured:
            return None
        failed = [
            f"{each.title}: {shorten(first_line(each.error), _LONGEST_ERROR)}"
            for key, each in series.items()
            if each.error and key not in measured
        ]
        return Exploration(
            operations=kinds,
            points=_points(kinds, measured, np.dtype(dtype).itemsize),
            crossovers=_crossovers(kinds, measured) if gpu is not None else (),
            dtype=dtype,
            cpu=f"{cpu.device}, {cpu.library}",
            gpu=f"{gpu.device}, {gpu.library}" if gpu is not None else None,
            why_no_gpu=why,
            remarks=(*left_out, *failed),
            warnings=_warnings(measured),
            environment=_environment(cpu, gpu),
            started=started,
            seconds=spent.spent,
            interrupted=interrupted,
        )

    with kept_on_error(partial(result, "error")):
        found = result(_AnnouncedRounds(spent, progress).run([*series.values()], budget))
    if found is None:
        raise KeyboardInterrupt
    return found


class _AnnouncedRounds(Rounds):
    """Rounds that report each point before its visit."""

    def __init__(self, spent: Budget, announce: Callable[[str], object] | None) -> None:
        super().__init__(PRECISION, cold=False)
        self._spent, self._announce = spent, announce

    def visit(self, series: Series, seconds: float) -> None:
        """Reports the point, and measures it for `seconds`."""
        if self._announce is not None:
            self._announce(f"{series.title}; about {self._spent.left:.0f} s left")
        super().visit(series, seconds)


def _checked_operations(names: Sequence[str] | None) -> tuple[Operation, ...]:
    known = {operation.name: operation for operation in OPERATIONS}
    accepted = ", ".join(known)

    def fits(name: object) -> bool:
        return isinstance(name, str) and name in known

    if names is None:
        return OPERATIONS
    found = _checked("operations", names, fits, f"is a list of {accepted}", f"are {accepted}")
    return tuple(known[name] for name in dict.fromkeys(found))


def _checked_sizes(sizes: Sequence[int]) -> list[int]:
    def fits(size: object) -> bool:
        return isinstance(size, int | np.integer) and not isinstance(size, bool) and bool(1 <= size <= LARGEST)

    found = _checked(
        "sizes", sizes, fits, "are integers, as [256, 1024]", f"are integers of at least 1, and at most {LARGEST:,}"
    )
    return sorted({int(size) for size in found})


def _checked(name: str, values: Any, fits: Callable[[object], bool], a_list: str, each: str) -> list[Any]:
    """The values as a list.

    Args:
        name: of the argument.
        values: the argument.
        fits: whether a value is accepted.
        a_list: the accepted argument in words.
        each: the accepted values in words.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} is {brief(values)}; accepted {a_list}")
    found = list(values)
    for value in found:
        if not fits(value):
            raise InvalidArgument(f"{name} contains {brief(value)}; accepted {each}")
    if not found:
        raise InvalidArgument(f"{name} is empty; accepted {each}")
    return found


def _plan(
    kinds: Sequence[Operation], sizes: Sequence[int], cpu: Backend, gpu: Backend | None, dtype: str
) -> tuple[dict[_Key, Series], list[str]]:
    """The points whose matrices fit in memory, and remarks on the others."""
    sides: dict[Side, Backend] = {"cpu": cpu}
    if gpu is not None:
        sides |= {"gpu": gpu, "gpu+transfers": gpu}
    free = {side: _SPARE * min(cpu.free_bytes(), backend.free_bytes()) for side, backend in sides.items()}
    series: dict[_Key, Series] = {}
    remarks = []
    for operation, n, (side, backend) in product(kinds, sizes, sides.items()):
        key = (operation.name, n, side)
        needed = operation.memory(n, np.dtype(dtype).itemsize)
        if needed > free[side]:
            lack = f"it needs {needed / 2**30:.3g} GiB of memory, and {free[side] / 2**30:.3g} GiB can be used"
            remarks.append(f"{_place(*key)}: {lack}")
            continue
        make = partial(_prepared, operation, n, side, backend, dtype)
        series[key] = Series({"operation": operation.name, "n": n, "side": side}, make, "wall", _place(*key))
    return series, remarks


def _prepared(operation: Operation, n: int, side: Side, backend: Backend, dtype: str) -> Callable[[], object]:
    """The call to time, with its inputs."""
    random = np.random.default_rng(n)
    hosts: list[NDArray[Any]] = [random.random((n, n), dtype=np.dtype(dtype)) for _ in range(operation.inputs)]
    function = backend.function(operation.name)
    if side == "gpu+transfers":
        return lambda: backend.give(function(*map(backend.take, hosts)))
    return partial(function, *map(backend.take, hosts))


def _place(operation: str, n: int, side: Side) -> str:
    return f"{operation}, n = {n}, on the {SIDES[side]}"


def _points(kinds: Sequence[Operation], measured: Mapping[_Key, SweepPoint], itemsize: int) -> tuple[Point, ...]:
    work = {operation.name: operation.work for operation in kinds}
    points = []
    for (name, n, side), point in measured.items():
        assert point.estimate is not None
        cpu = measured.get((name, n, "cpu")) if side != "cpu" else None
        speedup = visits.ratio(cpu.visits, point.visits) if cpu is not None else None
        rate = work[name](n, itemsize) / point.estimate.value
        points.append(Point(name, n, side, point.estimate, rate, speedup, point.converged))
    return tuple(points)


def _crossovers(kinds: Sequence[Operation], measured: Mapping[_Key, SweepPoint]) -> tuple[OperationCrossover, ...]:
    def visited(operation: str, side: Side) -> dict[float, NDArray[np.float64]]:
        return {n: point.visits for (name, n, where), point in measured.items() if (name, where) == (operation, side)}

    found = []
    for operation in kinds:
        cpu = visited(operation.name, "cpu")
        for transfers, side in enumerate(get_args(Side)[1:]):
            answer = answer_of_visits(cpu, visited(operation.name, side))
            found.append(OperationCrossover(operation.name, bool(transfers), answer))
    return tuple(found)


def _warnings(measured: Mapping[_Key, SweepPoint]) -> tuple[str, ...]:
    """The points' warnings; those that differ only in figures are shown once, with their number."""
    coarse = [
        key for key, point in measured.items() if point.estimate and point.estimate.relative_half_width > PRECISION
    ]
    found: dict[str, list[str]] = {}
    if coarse:
        what = f"{len(coarse)} of {len(measured)} times are less certain than +-{PRECISION:.0%}; a longer budget helps"
        found[""] = [f"{what}: {_place(*coarse[0])}"] * len(coarse)
    for key, point in measured.items():
        for warning in point.warnings:
            found.setdefault(pattern(warning), []).append(f"{_place(*key)}: {warning}")
    return tuple(first + (f"; and {len(others)} more like it" if others else "") for first, *others in found.values())


def pattern(warning: str) -> str:
    """A warning without its figures."""
    return _FIGURES.sub("#", warning)


def _environment(cpu: Backend, gpu: Backend | None) -> dict[str, str]:
    """Facts about hardware and software by name, without unknown ones."""
    found = look()
    facts = {
        "GPU": gpu.device if gpu is not None else None,
        "GPU memory": f"{found.devices[0].memory_bytes / 2**30:.0f} GiB" if gpu is not None and found.devices else None,
        "GPU library": gpu.library if gpu is not None else None,
        "driver": found.driver_version,
        "CUDA of the driver": found.cuda_version,
        "CPU": cpu.device,
        "CPU library": cpu.library,
        "threads": ", ".join(f"{name}={os.environ[name]}" for name in _THREADS if name in os.environ),
        "NumPy": np.__version__,
        "Python": found.python_version,
        "system": found.platform,
        "gpuscope": found.gpuscope_version,
    }
    return {name: text for name, text in facts.items() if text}
