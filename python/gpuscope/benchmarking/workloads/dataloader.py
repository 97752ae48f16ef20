# SPDX-License-Identifier: Apache-2.0
"""How fast a loader delivers batches, and with how many workers it is fast enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, overload

from gpuscope.benchmarking.workloads.dataloader_results import DataLoaderResult, DataLoaderWorkers
from gpuscope.benchmarking.workloads.loaders import (
    cpu_cores,
    is_torch_loader,
    many_workers,
    rebuilt,
    shut_down,
    uses_cuda,
)
from gpuscope.errors import InvalidArgument
from gpuscope.results import Distribution

NOISE = 0.05  # within which two worker counts are equally fast
SLOW_START = 10  # times the median at which the first batch is worth a word, if it also takes SLOW_SECONDS
SLOW_SECONDS = 0.5
GAIN = 1.1  # speed-up below which workers did not help

_END = object()


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
    """Times how fast a loader delivers batches when nothing else is done with them.

    The first batch, with the start of the workers, is kept apart, and so is the first of each further epoch; with
    several workers as many batches follow untimed, for they were begun together.

    With `workers` a torch DataLoader is rebuilt for each count, with the same dataset, samplers, collation, pinning
    and prefetching, and persistent workers; these are shut down before the next count begins. Ctrl-C keeps the counts
    that are done.

    Args:
        loader: a DataLoader or any iterable of batches. It begins anew when it ends, if it can.
        num_batches: batches to time.
        workers: worker counts to try, as ``[0, 2, 4, 8]``.
        step_ms: milliseconds that the GPU takes for a batch; the advice is then the smallest count that keeps up.

    Raises:
        InvalidArgument: the loader is empty or cannot be rebuilt, or another argument is out of range.
    """
    if num_batches < 1:
        raise InvalidArgument(f"num_batches is {num_batches}; accepted are 1 and above")
    if step_ms is not None and not step_ms > 0:
        raise InvalidArgument(f"step_ms is {step_ms}; accepted are milliseconds above 0")
    if workers is None:
        result = _measured(loader, num_batches)
        return result if step_ms is None else _judged(result, step_ms)
    counts = _checked(workers)
    if not is_torch_loader(loader):
        kind = type(loader).__name__
        raise InvalidArgument(f"loader is a {kind}; accepted with workers is a torch DataLoader, which can be rebuilt")
    results: dict[int, DataLoaderResult] = {}
    remarks = []
    for count in counts:
        try:
            results[count] = _measured(rebuilt(loader, count), num_batches, own=True)
        except KeyboardInterrupt:
            if not results:
                raise
            remarks.append(f"interrupted: {len(results)} of {len(counts)} worker counts were measured")
            break
    recommended, why = recommendation({count: r["avg_batch_time_ms"] for count, r in results.items()}, step_ms)
    texts = [f"workers={count}: {text}" for count, result in results.items() for text in result.warnings]
    return DataLoaderWorkers(results, recommended, why, (*remarks, *_advice(results, loader), *texts))


def recommendation(batch_ms: Mapping[int, float], step_ms: float | None = None) -> tuple[int, str]:
    """The smallest worker count that is fast enough, and why.

    Args:
        batch_ms: mean milliseconds a batch of each count.
        step_ms: milliseconds of a step to keep up with.
    """
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
    """Times a loader, then ends the workers that this started, also after an exception.

    Args:
        loader: see ``benchmark_dataloader``.
        num_batches: the same.
        own: nobody else uses it, so that its workers end even if they are persistent.
    """
    workers = getattr(loader, "num_workers", None)
    skipped = max(workers or 0, 1) - 1  # after the first batch
    steady: list[float] = []
    starts: list[float] = []
    warnings: list[str] = []
    source: Iterator[Any] | None = None
    try:
        while len(steady) < num_batches and len(starts) <= num_batches:
            begun = perf_counter()
            with many_workers() if own else nullcontext():
                source = iter(loader)
            taken = next(source, _END)
            if taken is _END:
                break
            starts.append(perf_counter() - begun)
            while len(steady) < num_batches:
                taken = None
                begun = perf_counter()
                taken = next(source, _END)
                if taken is _END:
                    break
                if skipped:
                    skipped -= 1
                else:
                    steady.append(perf_counter() - begun)
    finally:
        if own or not getattr(loader, "persistent_workers", False):
            shut_down(source)
    if not starts:
        raise InvalidArgument("loader is empty; accepted are loaders with at least one batch")
    if not steady:
        steady = starts[1:] or starts
        warnings.append("an epoch is a single batch: each time has the start of one")
    elif len(steady) < num_batches:
        warnings.append(f"the loader ended after {len(steady)} of {num_batches} batches")
    times = Distribution(steady)
    if starts[0] > max(SLOW_SECONDS, SLOW_START * times.median):
        warnings.append(f"the first batch took {starts[0]:.1f} s: the start of the workers, or a dataset slow to open")
    return DataLoaderResult(times, starts[0], tuple(starts[1:]), workers, tuple(warnings))


def _judged(result: DataLoaderResult, step_ms: float) -> DataLoaderResult:
    idle = result.idle_share(step_ms)
    text = f"the GPU idles {idle:.0%} of the time" if idle else "the loader keeps up"
    remarks = (*result.warnings, f"with a step of {step_ms:g} ms {text}")
    return DataLoaderResult(result.times, result.first_batch, result.epoch_starts, result.workers, remarks)


def _advice(results: Mapping[int, DataLoaderResult], loader: Any) -> list[str]:
    found = []
    cores = cpu_cores()
    if max(results) > cores:
        found.append(f"this process may use {cores} CPU cores: more workers than that take turns")
    if not loader.pin_memory and uses_cuda():
        found.append("pin_memory is off: pinned batches are copied to the GPU faster, and without waiting")
    fewest, others = min(results), [count for count in results if count > min(results)]
    if others:
        base = results[fewest]["avg_batch_time_ms"]
        best = min(results[count]["avg_batch_time_ms"] for count in others)
        if base < GAIN * best:
            found.append(
                f"more workers than {fewest} gain nothing: the storage, a lock, the {cores} cores, "
                "or the way of batches between processes limit"
            )
    return found


def _checked(workers: Sequence[int]) -> list[int]:
    counts = list(dict.fromkeys(workers)) if isinstance(workers, Iterable) else []
    if not counts or any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for each in counts):
        raise InvalidArgument(f"workers is {workers!r}; accepted is a list of counts from 0, as [0, 2, 4]")
    return counts
