# SPDX-License-Identifier: Apache-2.0
"""Measures the samples a second of a loader and a step together, and which of them limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import devices, stats
from gpuscope.arguments import check_count, check_done, check_function, check_positive
from gpuscope.benchmarking import workloads
from gpuscope.benchmarking.stopping import now
from gpuscope.benchmarking.workloads import StreamMarks, check_batches, count_batches, marks_of_device, marks_of_process
from gpuscope.conditions import UNKNOWN, Conditions
from gpuscope.errors import InvalidArgument
from gpuscope.figures import DrawnFigures
from gpuscope.frameworks import torch
from gpuscope.results import Result, kept_on_error, plain_fields
from gpuscope.stats.ratio import FEWEST_TO_RESAMPLE
from gpuscope.streams import refuse_capture
from gpuscope.targets import Target
from gpuscope.text import brief

SCHEMA = 1

_LIMITS = {
    "loader": "the loader limits",
    "gpu": "the GPU limits",
    "step": "the step limits",
}

IDLE = 0.1  # idle share of the GPU from which it is not the limit

_TRAINING = "training: train mode, with gradients and optimizer steps"
_OTHERWISE = "pass a function of the batch instead of the module"
_END = object()


@dataclass(frozen=True, eq=False, repr=False)
class Throughput(DrawnFigures, Result):
    """The throughput of a loader and a step. ``float(throughput)`` is samples a second.

    So are formats as ``:.2f``. Its figures, as `median` and `p95`, are of `periods`.

    Attributes:
        samples_per_second: samples over time, all batches together.
        samples_per_second_ci: its 95 % interval; None for fewer than 30 batches.
        batches_per_second: batches over time.
        seconds_per_batch: time over batches.
        seconds_per_batch_ci: its 95 % interval; None for fewer than 30 batches.
        batches: batches measured.
        samples: samples in the batches.
        seconds: time of the batches, with the GPU work of the last.
        wait_seconds: time in which the host waited for the loader.
        wait_share: `wait_seconds` over `seconds`.
        gpu_idle_share: share of the time in which the GPU had no step to work on; None without a GPU.
        limit: "loader"; "gpu": it had work queued most of the time; or "step": the host limits, or there is no GPU.
        warnings: one sentence each.
        periods: seconds of each batch, from the end of the previous one.
        mode: whether a module was trained, or ran in evaluation mode without gradients; else empty.
        conditions: of the measurement; the batch is the most frequent one.
        target: whether `target` is met; None without one.
    """

    samples_per_second: float
    samples_per_second_ci: tuple[float, float] | None
    batches_per_second: float
    seconds_per_batch: float
    seconds_per_batch_ci: tuple[float, float] | None
    batches: int
    samples: int
    seconds: float
    wait_seconds: float
    wait_share: float
    gpu_idle_share: float | None
    limit: str
    warnings: tuple[str, ...]
    periods: NDArray[np.float64]
    mode: str
    conditions: Conditions = UNKNOWN
    target: Target | None = None

    @property
    def _values(self) -> NDArray[np.float64]:
        return self.periods

    def __float__(self) -> float:
        return self.samples_per_second

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __str__(self) -> str:
        interval = self.samples_per_second_ci
        rate = f"Throughput: {self.samples_per_second:.2f} samples/sec"
        rate += f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        a_batch = f"time per batch: {1000 * self.seconds_per_batch:.2f} ms"
        wait = f"{1000 * self.wait_seconds / self.batches:.2f} ms of it waiting for data"
        idle = "" if self.gpu_idle_share is None else f", GPU idle {self.gpu_idle_share:.0%}"
        early, others = workloads.cut_short(self.warnings)
        remarks = "".join(f"; {text}" for text in others)
        text = f"{rate}, {a_batch}, {wait}{idle}: {_LIMITS[self.limit]} ({count_batches(self.batches)}{remarks})"
        target = "" if self.target is None else str(self.target)
        return "\n".join(filter(None, (*early, self.mode, text, target, self.conditions.line)))

    def __repr__(self) -> str:
        return f"<{' '.join(str(self).splitlines())}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""
        return {"schema": SCHEMA, **plain_fields(self)}


def measure_throughput(
    step: Callable[[Any], object],
    loader: Iterable[Any],
    num_batches: int = 100,
    warmup: int = 3,
    *,
    criterion: Callable[[Any, Any], Any] | None = None,
    optimizer: Any = None,
    device: Any = None,
    target: str | None = None,
    baseline: Throughput | float | None = None,
) -> Throughput:
    """Runs a step on each batch of a loader as a training would, without waiting between the batches.

    A module gets its batches on its device. With `criterion` and `optimizer` it is trained, which changes it; with only
    `optimizer`, its output has the ``loss``; without both it runs in evaluation mode without gradients. The loss target
    is the last of a (data, target) pair, or "target" or "labels" of a mapping. Ctrl-C keeps the finished batches.

    Args:
        step: a callable of a batch, or a torch.nn.Module.
        loader: any iterable of batches.
        num_batches: batches to measure. A shorter loader is restarted, which counts as waiting for it; an iterator ends
            the measurement.
        warmup: batches before, not measured.
        criterion: of output and target.
        optimizer: with ``step`` and ``zero_grad``.
        device: for a module, a torch device to move batches to (default: its own); for a callable, the GPU that it
            uses, in any form that `memory_summary` takes.
        target: "500 samples/s" at least, "20 ms" a batch at most, or "+30 %" more samples/s than `baseline`.
        baseline: an earlier result, or its samples a second.

    Raises:
        InvalidArgument: the loader is empty or gives single samples, a count is out of range, or the arguments do not
            fit together.
        NotAvailable: a CUDA graph is being captured.
        Exception: raised by the loader or the step; its attribute ``measured`` has the finished batches.
    """
    check_batches(loader)
    check_function("step", step, "a torch.nn.Module or any other function of a batch")
    num_batches, warmup = check_count("num_batches", num_batches, 1), check_count("warmup", warmup, 0)
    if criterion is not None and optimizer is None:
        raise InvalidArgument("optimizer is missing; accepted with a criterion is the optimizer of a training step")
    for name, given, example in (("criterion", criterion, "MSELoss()"), ("optimizer", optimizer, "Adam(parameters)")):
        if isinstance(given, type):
            raise InvalidArgument(f"{name} is the class {given.__name__}; accepted is an object, as {example}")
    if criterion is not None:
        check_function("criterion", criterion, "a function of output and target, as torch.nn.MSELoss()")
    if baseline is not None and not isinstance(baseline, Throughput):
        check_positive("baseline", baseline, "earlier results, and samples a second")
    wanted = None if target is None else Target.of(target, of_rates=True, has_baseline=baseline is not None)
    if baseline is not None and (wanted is None or wanted.kind != "faster"):
        raise InvalidArgument(f"baseline is given with target={brief(target)}; accepted is a target as '+30 %'")
    refuse_capture("a measurement")
    mode: AbstractContextManager[None] = nullcontext()
    place, said = None, ""
    run = step
    if torch.is_module(step):
        place = torch.device_of(step) if device is None else torch.make_device(device)
        run = _training(step, criterion, optimizer, place) if optimizer is not None else _inference(step, place)
        mode = torch.in_mode(step, training=optimizer is not None)
        said = _TRAINING if optimizer is not None else f"{workloads.INFERENCE}; pass criterion= and optimizer= to train"
    elif optimizer is None:
        device = None if device is None else devices.ordinal_or_host(device)
    else:
        raise InvalidArgument("step is no torch.nn.Module; accepted with an optimizer is the module that it trains")

    def marks() -> StreamMarks | None:
        if place is not None:
            return marks_of_device(place.type, place.index)
        return None if device == devices.HOST else marks_of_process(device=device)

    with mode:
        found = _run(run, loader, num_batches, warmup, marks, said, step if said else None)
    return found if wanted is None else replace(found, target=_judged(wanted, found, baseline))


def _judged(wanted: Target, found: Throughput, baseline: Throughput | float | None) -> Target:
    """Whether the time of a batch or the samples a second meet the target."""
    if found.samples_per_second_ci is None:
        wanted = replace(wanted, why=f"no 95 % interval: it takes {FEWEST_TO_RESAMPLE} batches")
    if wanted.kind == "time":
        return wanted.judged(found.seconds_per_batch_ci)
    then = None if baseline is None else (float(baseline),) * 3
    if isinstance(baseline, Throughput):
        wanted = replace(wanted, differences=baseline.conditions.differences(found.conditions))
        then = (float(baseline), *(baseline.samples_per_second_ci or (math.nan, math.nan)))
    return wanted.judged(found.samples_per_second_ci, then, rate=True)


def _warm_up(
    step: Callable[[Any], object], loader: Iterable[Any], batches: int, warnings: list[str]
) -> tuple[Iterator[Any], int]:
    """The loader's batches after the warm-up, or from its start if the warm-up used all, and the number taken."""
    source = iter(loader)
    for done in range(batches):
        batch = next(source, _END)
        if batch is _END and not done:
            raise InvalidArgument("loader is empty; accepted are loaders with at least one batch")
        if batch is _END:
            break
        check_done("step", step(batch))
    else:
        return source, batches
    again = iter(loader)
    if again is not source:
        warnings.append("the warm-up took the whole loader: the time begins with its start")
    return again, 0


def _run(
    step: Callable[[Any], object],
    loader: Iterable[Any],
    num_batches: int,
    warmup: int,
    find_marks: Callable[[], StreamMarks | None],
    mode: str,
    module: Any,
) -> Throughput:
    """The loop over the batches. `module` is the torch.nn.Module behind the step; None without one."""
    warnings: list[str] = []
    source, taken = _warm_up(step, loader, warmup, warnings)
    marks = find_marks()  # only now is it known whether the step uses a GPU
    begins: list[Any] = []
    ends: list[Any] = []
    drained = 0  # steps that the GPU had finished when the next batch arrived
    sizes: list[int | None] = []
    waits: list[float] = []
    periods: list[float] = []
    epochs, length = 1, 0
    workload = {"workers": getattr(loader, "num_workers", None)}
    if module is not None:
        workload["mode"] = "train" if module.training else "eval"
    if marks:
        marks.synchronize()
    last = now()
    first = marks.mark() if marks else None

    def result(cut_short: str) -> Throughput:
        """The result for the batches whose steps returned."""
        if marks:
            marks.synchronize()
        done = len(periods)
        if not done:
            raise InvalidArgument(f"loader gave no batch beyond the {warmup} of the warm-up; accepted is one more")
        found, idle, seconds = periods, None, sum(periods)
        if marks and first:
            # The host runs ahead of the GPU, so a batch's period is between the ends of GPU work.
            befores = [first, *ends[: done - 1]]
            found = [marks.seconds(before, end) for before, end in zip(befores, ends[:done], strict=True)]
            gaps = [marks.seconds(before, begin) for before, begin in zip(befores, begins[:done], strict=True)]
            seconds = sum(found)
            idle = sum(gaps) / seconds
        if done < num_batches:
            repeat = "; pass a loader, or itertools.cycle(...)" if not cut_short and done < FEWEST_TO_RESAMPLE else ""
            warnings.append(f"{cut_short or 'the loader ended'} after {done} of {num_batches} batches{repeat}")
        if epochs > 1:
            each = count_batches(length)
            warnings.append(f"{epochs} epochs of {each}: the wait for the loader includes its restarts")
        made = _result(sizes[:done], sum(waits[:done]), np.array(found), seconds, idle, drained / done, warnings, mode)
        workload["batch_size"] = max(sizes[:done], key=sizes[:done].count)
        return replace(made, conditions=Conditions.now(marks.stream.device if marks else None, **workload))

    with kept_on_error(lambda: result("ended by an error") if periods else None):
        try:
            while len(sizes) < num_batches:
                asked = now()
                batch = next(source, _END)
                if batch is _END:
                    again = iter(loader)
                    batch = _END if again is source else next(again, _END)
                    if batch is _END:
                        break
                    source, epochs, length, taken = again, epochs + 1, taken, 0
                taken += 1
                waits.append(now() - asked)
                sizes.append(workloads.batch_size(batch))
                if marks:
                    drained += bool(ends) and marks.passed(ends[-1])
                    begins.append(marks.mark())
                output = step(batch)
                if marks:
                    ends.append(marks.mark())
                if not periods:
                    check_done("step", output)
                    workload["dtype"] = workloads.describe(batch, module)["dtype"]
                del batch, output
                moment = now()
                periods.append(moment - last)
                last = moment
        except KeyboardInterrupt:
            if not periods:
                raise
            return result("interrupted")
        return result("")


def _result(
    sizes: list[int | None],
    wait: float,
    periods: NDArray[np.float64],
    seconds: float,
    idle: float | None,
    drained: float,
    warnings: list[str],
    mode: str,
) -> Throughput:
    if None in sizes:
        warnings.append("the size of the batches cannot be told: each counts as one sample")
    counts = np.array([1 if each is None else each for each in sizes], dtype=np.float64)
    if len(set(sizes)) > 1:
        warnings.append(f"batches of {counts.min():.0f} to {counts.max():.0f} samples")
    if len(periods) < FEWEST_TO_RESAMPLE:
        warnings.append(f"no 95 % interval: it takes {FEWEST_TO_RESAMPLE} batches")
    wait_share = wait / seconds if seconds else 0.0
    limit = _limit(wait_share, idle, drained)
    if limit == "step" and idle is not None:
        warnings.append(
            f"the GPU had nothing left to do after {drained:.0%} of the steps: "
            "they are held up by their launches or by waiting for results"
        )
    rate_ci = stats.ratio_of_sums(counts, periods)
    batch_ci = stats.ratio_of_sums(periods, np.ones(len(periods)))
    return Throughput(
        samples_per_second=float(counts.sum()) / seconds,
        samples_per_second_ci=rate_ci,
        batches_per_second=len(sizes) / seconds,
        seconds_per_batch=seconds / len(sizes),
        seconds_per_batch_ci=batch_ci,
        batches=len(sizes),
        samples=int(counts.sum()),
        seconds=seconds,
        wait_seconds=wait,
        wait_share=wait_share,
        gpu_idle_share=idle,
        limit=limit,
        warnings=tuple(warnings),
        periods=periods,
        mode=mode,
    )


def _limit(wait_share: float, idle: float | None, drained: float) -> str:
    if idle is None:
        return "loader" if wait_share > 0.5 else "step"
    if idle >= IDLE and wait_share >= idle / 2:
        return "loader"
    return "gpu" if idle < IDLE and drained < 0.5 else "step"


def _inference(model: Any, device: Any) -> Callable[[Any], object]:
    def step(batch: Any) -> object:
        inputs = workloads.split_target(workloads.to_device(batch, device))[0]
        return workloads.call(model, inputs, _OTHERWISE)

    return step


def _training(model: Any, criterion: Any, optimizer: Any, device: Any) -> Callable[[Any], object]:
    def step(batch: Any) -> None:
        batch = workloads.to_device(batch, device)
        if criterion is None:
            output = workloads.call(model, batch, _OTHERWISE)
            loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
            if loss is None:
                raise InvalidArgument("criterion is missing; accepted without one are models whose output has a loss")
        else:
            inputs, target = workloads.with_target(batch)
            loss = criterion(workloads.call(model, inputs, _OTHERWISE), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
