# SPDX-License-Identifier: Apache-2.0
"""Measures the batches a second of a loader, and recommends a number of workers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from gpuscope import plots
from gpuscope.arguments import check_count, check_positive
from gpuscope.benchmarking.stopping import now
from gpuscope.benchmarking.workloads import check_batches, count_batches, describe
from gpuscope.conditions import UNKNOWN, Conditions
from gpuscope.errors import InvalidArgument
from gpuscope.figures import Distribution, DrawnFigures
from gpuscope.frameworks import torch
from gpuscope.results import Result, import_pandas, kept_on_error, plain_fields
from gpuscope.text import brief
from gpuscope.threads import cached_property

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SCHEMA = 1
MOST_BATCHES, MOST_WORKERS = 100_000_000, 1024

NOISE = 0.05  # within which two worker counts are equally fast
SLOW_START = 10  # times the median at which the first batch is reported, if it also takes SLOW_SECONDS
SLOW_SECONDS = 0.5
GAIN = 1.1  # speed-up below which workers did not help

_END = object()


@dataclass(frozen=True, eq=False, repr=False)
class DataLoaderResult(DrawnFigures, Result, Mapping[str, float]):
    """Times of a loader's batches. As a mapping it has avg_batch_time_ms, batches_per_second and the like.

    Attributes:
        times: seconds of each batch except `first_batch`; includes `epoch_starts`.
        first_batch: seconds of the very first batch, with the start of the workers.
        epoch_starts: seconds of the first batch of each later epoch; empty after a single epoch.
        workers: worker processes; None if the loader does not report them.
        warnings: one sentence each.
        conditions: of the measurement; the batch is the first one.
    """

    times: Distribution
    first_batch: float
    epoch_starts: tuple[float, ...]
    workers: int | None
    warnings: tuple[str, ...]
    conditions: Conditions = UNKNOWN

    @cached_property
    def _figures(self) -> dict[str, float]:
        times = self.times
        return {
            "avg_batch_time_ms": times.mean * 1000,
            "batches_per_second": 1 / times.mean if times.mean else float("inf"),
            "slowest_batch_ms": times.max * 1000,
            "fastest_batch_ms": times.min * 1000,
            "p50_batch_ms": times.p50 * 1000,
            "p90_batch_ms": times.p90 * 1000,
            "p95_batch_ms": times.p95 * 1000,
            "p99_batch_ms": times.p99 * 1000,
            "first_batch_ms": self.first_batch * 1000,
        }

    @property
    def samples(self) -> NDArray[np.float64]:
        """Seconds of each batch, as in `times`."""
        return self.times.samples

    def __getitem__(self, name: str) -> float:
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def idle_share(self, step_ms: float) -> float:
        """Share of the time in which a GPU with steps of `step_ms` waits for this loader.

        GPU and loader overlap: with steps of 20 ms and batches of 45 ms the GPU idles 25 of 45 ms.
        """
        return max(0.0, 1 - step_ms / self["avg_batch_time_ms"])

    @property
    def row(self) -> str:
        """One line, as "workers= 4:    9.3ms/batch, 107.5 batches/sec"."""
        label = "" if self.workers is None else f"workers={self.workers:2d}: "
        return f"{label}{self['avg_batch_time_ms']:6.1f}ms/batch, {self['batches_per_second']:.1f} batches/sec"

    def __str__(self) -> str:
        figures = self._figures
        spread = ", ".join(f"{name} {figures[f'{name}_batch_ms']:.2f}" for name in ("fastest", "p50", "p95", "slowest"))
        count = count_batches(len(self.times))
        lines = [self.row, f"{count}, ms: {spread}; first batch {figures['first_batch_ms']:.1f}"]
        return "\n".join(filter(None, [*lines, self.conditions.line, *self.warnings]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the mapping in milliseconds, `times` in seconds."""
        return {
            "schema": SCHEMA,
            **self._figures,
            "workers": self.workers,
            "times": self.times.to_dict(),
            "epoch_starts": list(self.epoch_starts),
            "warnings": list(self.warnings),
            "conditions": plain_fields(self.conditions),
        }


@dataclass(frozen=True, eq=False, repr=False)
class DataLoaderWorkers(Result):
    """A loader with several counts of workers. ``str(...)`` is the table and the advice.

    Attributes:
        results: by worker count, in the given order.
        recommended: the smallest count that is fast enough.
        why: the reason for it.
        warnings: one sentence each.
    """

    results: Mapping[int, DataLoaderResult]
    recommended: int
    why: str
    warnings: tuple[str, ...]

    def __getitem__(self, workers: int) -> DataLoaderResult:
        return self.results[workers]

    def __iter__(self) -> Iterator[DataLoaderResult]:
        return iter(self.results.values())

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        rows = [result.row for result in self]
        conditions = [replace(result.conditions, workers=None).line for result in self][:1]
        return "\n".join(filter(None, [*rows, self._advice, *conditions, *self.warnings]))

    @property
    def _advice(self) -> str:
        return f"recommended: num_workers={self.recommended}: {self.why}"

    def __repr__(self) -> str:
        return f"<DataLoaderWorkers of {', '.join(map(str, self.results))}: {self._advice}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"schema": SCHEMA, **plain_fields(self), "results": [result.to_dict() for result in self]}

    def plot(self, ax: Axes | None = None) -> Axes:
        """Mean and 95th percentile of batch times over the workers, and the recommended number.

        Args:
            ax: Matplotlib's axes to draw on; None makes a figure.

        Raises:
            NotAvailable: Matplotlib is not installed.
        """
        counts = sorted(self.results)
        lines = {
            name: (counts, [self.results[count][figure] for count in counts])
            for name, figure in (("mean", "avg_batch_time_ms"), ("95th percentile", "p95_batch_ms"))
        }
        ax = plots.curves(lines, across="workers", up="time of a batch (ms)", marker=".", ax=ax)
        ax.axvline(self.recommended, color=plots.FASTER, linewidth=1, label=f"recommended: {self.recommended}")
        ax.set_xticks(counts)
        ax.legend(frameon=False, fontsize="small")
        return ax

    def to_pandas(self) -> pd.DataFrame:
        """One row per worker count: workers, and the figures of each result's mapping; needs pandas."""
        return import_pandas().DataFrame([{"workers": result.workers, **result} for result in self])


@overload
def benchmark_dataloader(
    loader: Iterable[Any], num_batches: int = ..., workers: None = ..., *, step_ms: float | None = ...
) -> DataLoaderResult: ...


@overload
def benchmark_dataloader(
    loader: Iterable[Any], num_batches: int = ..., *, workers: Sequence[int], step_ms: float | None = ...
) -> DataLoaderWorkers: ...


@overload
def benchmark_dataloader(
    loader: Iterable[Any], num_batches: int, workers: Sequence[int], *, step_ms: float | None = ...
) -> DataLoaderWorkers: ...


def benchmark_dataloader(
    loader: Iterable[Any],
    num_batches: int = 50,
    workers: Sequence[int] | None = None,
    *,
    step_ms: float | None = None,
) -> DataLoaderResult | DataLoaderWorkers:
    """Times the batches of a loader without any work on them.

    The very first batch is separate, as it includes the start of the workers. With n workers, the next n - 1 batches
    are not timed, as they were loaded at the same time. Later epochs are timed whole.

    With `workers` a torch DataLoader is rebuilt for each count with persistent workers, which are shut down before the
    next count. Dataset, samplers, collation, pinning and prefetching are the same. Ctrl-C keeps the finished counts, or
    without `workers` the batches; an error of the loader has them as its attribute ``measured``.

    Args:
        loader: a DataLoader or any iterable of batches. It is restarted when it ends, if possible.
        num_batches: batches to time.
        workers: worker counts to try, as ``[0, 2, 4, 8]``.
        step_ms: milliseconds of a GPU step; the advice is then the smallest count that keeps up.

    Raises:
        InvalidArgument: the loader is empty, gives single samples or cannot be rebuilt, or another argument is out of
            range.
    """
    check_batches(loader)
    num_batches = check_count("num_batches", num_batches, 1, MOST_BATCHES)
    if step_ms is not None:
        step_ms = check_positive("step_ms", step_ms, "milliseconds")
    if workers is None:
        result = _measured(loader, num_batches)
        return result if step_ms is None else _judged(result, step_ms)
    counts = _checked(workers)
    if not torch.is_loader(loader):
        kind = type(loader).__name__
        raise InvalidArgument(f"loader is a {kind}; accepted with workers is a torch DataLoader, which can be rebuilt")
    results: dict[int, DataLoaderResult] = {}

    def compared(cut_short: str = "") -> DataLoaderWorkers:
        recommended, why = recommendation({count: r["avg_batch_time_ms"] for count, r in results.items()}, step_ms)
        texts = [f"workers={count}: {text}" for count, result in results.items() for text in result.warnings]
        remarks = [f"{cut_short}: {len(results)} of {len(counts)} worker counts were measured"] if cut_short else []
        return DataLoaderWorkers(results, recommended, why, (*remarks, *_advice(results, loader), *texts))

    with kept_on_error(lambda: compared("an error ended it") if results else None):
        try:
            for count in counts:
                results[count] = _measured(torch.rebuilt(loader, count), num_batches, own=True)
        except KeyboardInterrupt:
            if not results:
                raise
            return compared("interrupted")
    return compared()


def recommendation(batch_ms: Mapping[int, float], step_ms: float | None = None) -> tuple[int, str]:
    """The smallest worker count that is fast enough, and why; `batch_ms` is the mean time by count."""
    best = min(batch_ms, key=lambda count: batch_ms[count])
    feeding = [count for count, each in batch_ms.items() if step_ms is not None and each <= step_ms]
    if step_ms is not None and feeding:
        count = min(feeding)
        return count, f"the fewest that feed a step of {step_ms:g} ms ({batch_ms[count]:.1f} ms/batch)"
    count = min(count for count, each in batch_ms.items() if each <= batch_ms[best] * (1 + NOISE))
    if count == best:
        why = f"the fastest at {batch_ms[best]:.1f} ms/batch"
    else:
        why = f"within {NOISE:.0%} of the fastest, {best} workers at {batch_ms[best]:.1f} ms/batch"
    if step_ms is not None:
        why += f"; none feeds a step of {step_ms:g} ms, the GPU idles {1 - step_ms / batch_ms[count]:.0%} of the time"
    return count, why


def _measured(loader: Iterable[Any], num_batches: int, own: bool = False) -> DataLoaderResult:
    """Times a loader, then shuts its workers down.

    A loader that is not our `own` keeps its persistent workers, and its times on Ctrl-C.
    """
    workers = getattr(loader, "num_workers", None)
    ahead = (workers or 0) * (getattr(loader, "prefetch_factor", None) or 0)  # batches loaded before they are asked for
    skipped = max(workers or 0, 1) - 1  # batches after the first one
    times: list[float] = []
    taken_batches = 0
    starts: list[float] = []
    source: Iterator[Any] | None = None
    workload: dict[str, Any] = {"workers": workers}

    def result(ended: str) -> DataLoaderResult:
        warnings = []
        if not starts:
            raise InvalidArgument("loader is empty; accepted are loaders with at least one batch")
        if taken_batches == len(starts):
            warnings.append("an epoch is a single batch: each time has the start of one")
        elif len(times) < num_batches:
            warnings.append(f"{ended} after {len(times)} of {num_batches} batches")
        if len(starts) == 1 < taken_batches <= ahead:
            waited = "during the wait for the first one, which is not counted"
            warnings.append(f"the workers may have loaded most of the {taken_batches} batches {waited}")
        found = Distribution(times or starts)
        if starts[0] > max(SLOW_SECONDS, SLOW_START * found.median):
            seconds = f"{starts[0]:.1f} s"
            warnings.append(f"the first batch took {seconds}: the start of the workers, or a dataset slow to open")
        conditions = Conditions.now(**workload)
        return DataLoaderResult(found, starts[0], tuple(starts[1:]), workers, tuple(warnings), conditions)

    with kept_on_error(lambda: result("ended by an error") if times and not own else None):
        try:
            while len(times) < num_batches:
                begun = now()
                with torch.many_workers() if own else nullcontext():
                    source = iter(loader)
                taken = next(source, _END)
                if taken is _END:
                    break
                starts.append(now() - begun)
                taken_batches += 1
                if len(starts) == 1:
                    workload |= describe(taken)
                else:
                    times.append(starts[-1])
                    skipped = 0
                while len(times) < num_batches:
                    taken = None
                    begun = now()
                    taken = next(source, _END)
                    if taken is _END:
                        break
                    taken_batches += 1
                    if skipped:
                        skipped -= 1
                    else:
                        times.append(now() - begun)
        except KeyboardInterrupt:
            if own or not times:
                raise
            return result("interrupted")
        finally:
            if own or not getattr(loader, "persistent_workers", False):
                torch.shut_down(source)
    return result("the loader ended")


def _judged(result: DataLoaderResult, step_ms: float) -> DataLoaderResult:
    idle = result.idle_share(step_ms)
    text = f"the GPU idles {idle:.0%} of the time" if idle else "the loader keeps up"
    return replace(result, warnings=(*result.warnings, f"with a step of {step_ms:g} ms {text}"))


def _advice(results: Mapping[int, DataLoaderResult], loader: Any) -> list[str]:
    found = []
    cores = _cpu_cores()
    if max(results) > cores:
        found.append(f"this process may use {cores} CPU cores: more workers than that take turns")
    if not loader.pin_memory and torch.uses_cuda():
        found.append("pin_memory is off: pinned batches are copied to the GPU faster, and without waiting")
    fewest, others = min(results), [count for count in results if count > min(results)]
    if others:
        base = results[fewest]["avg_batch_time_ms"]
        best = min(results[count]["avg_batch_time_ms"] for count in others)
        if base < GAIN * best:
            found.append(
                f"more workers than {fewest} gain nothing: the storage, a lock, the {cores} cores, "
                "or the transfer of batches between processes limit"
            )
    return found


def _checked(workers: Sequence[int]) -> list[int]:
    given = list(workers) if isinstance(workers, Iterable) else []
    try:
        counts = [check_count("workers", each, 0, MOST_WORKERS) for each in given]
    except InvalidArgument:
        counts = []
    if not counts:
        raise InvalidArgument(
            f"workers is {brief(workers)}; accepted is a list of counts from 0 to {MOST_WORKERS}, as [0, 2, 4]"
        )
    return list(dict.fromkeys(counts))


def _cpu_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0))
