# SPDX-License-Identifier: Apache-2.0
"""Measures the latency of single calls of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats, streams
from gpuscope.arguments import check_count, check_done, check_function
from gpuscope.benchmarking import workloads
from gpuscope.benchmarking.stopping import now
from gpuscope.benchmarking.workloads import StreamMarks, marks_of_device, marks_of_process
from gpuscope.conditions import UNKNOWN, Conditions
from gpuscope.figures import Distribution, DrawnFigures
from gpuscope.frameworks import torch
from gpuscope.results import Result, kept_on_error, plain_fields

SCHEMA = 1
MOST_CALLS = 100_000_000  # whose times take 1.6 GB
DRIFT, SURE = 0.05, 0.01  # a relative change over the run that is reported, and the largest p for that

_OTHERWISE = "pass sample_input=(value,) if it is one argument"


@dataclass(frozen=True, eq=False, repr=False)
class Latency(DrawnFigures, Result):
    """Latencies of single calls.

    Its figures, as ``latency.median``, are those of ``latency.wall``, in seconds. For NumPy it is the array of wall
    times in **milliseconds**: ``np.percentile(latency, 95)``, ``latency[10:]``.

    Attributes:
        wall: from the call until its work on the GPU is done.
        gpu: between events on the stream before and after the call; None with the reason in `absent`.
        absent: why there is no GPU time; empty when there is.
        warmup: number of warm-up calls.
        warnings: one sentence each.
        mode: for a module, that it ran in evaluation mode without gradients; else empty.
        conditions: of the measurement.
    """

    wall: Distribution
    gpu: Distribution | None
    absent: str
    warmup: int
    warnings: tuple[str, ...]
    mode: str
    conditions: Conditions = UNKNOWN

    @property
    def samples(self) -> NDArray[np.float64]:
        """Wall time of each call, in seconds."""
        return self.wall.samples

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Wall time of each call, in milliseconds. Always a new array."""
        return (self.wall.samples * 1000).astype(dtype or np.float64)

    def __len__(self) -> int:
        return len(self.wall)

    def __iter__(self) -> Iterator[float]:
        return iter(np.asarray(self).tolist())

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy functions receive the array, as `mean` and the like are attributes here."""
        return function(*_with_arrays(args), **{name: _with_arrays(each) for name, each in kwargs.items()})

    def __str__(self) -> str:
        early, remarks = workloads.cut_short(self.warnings)
        lines = [*early, self.mode, f"Latency - {_line(self.wall)}"]
        if self.gpu is not None:
            lines.append(f"GPU     - {_line(self.gpu)}")
        quantiles = [self.wall.interval(q) for q in (0.5, 0.9, 0.95, 0.99)]
        known = [
            f"P{100 * x.q:g} {_ms(x.low)} to {_ms(x.high)} ms"
            for x in quantiles
            if x.low is not None and x.high is not None
        ]
        if known:
            lines.append(f"95 % intervals of {len(self)} calls: {', '.join(known)}")
        lines += [x.why for x in quantiles if x.why]
        return "\n".join(filter(None, [*lines, self.conditions.line, *remarks]))

    def __repr__(self) -> str:
        return f"<Latency of {len(self)} calls: {_line(self.wall)}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain values in seconds, ready for JSON."""
        return {"schema": SCHEMA, **plain_fields(self)}


def measure_latency(
    model: Callable[..., object],
    sample_input: object,
    num_iterations: int = 100,
    warmup: int = 10,
    *,
    stream: object = None,
) -> Latency:
    """Times single calls; each call starts after the work of the previous one is done.

    A torch.nn.Module runs in evaluation mode without gradients, with its input moved to its device before; afterwards
    each submodule is back in its mode. Ctrl-C keeps the finished calls; an error of the model has them as its attribute
    ``measured``.

    Args:
        model: a module or any callable.
        sample_input: a tuple or list of positional arguments, a mapping of keyword arguments, or the only argument.
        num_iterations: calls timed.
        warmup: calls before, not timed: compilation, algorithm choice and the allocator's first blocks.
        stream: the stream of the model's work, in any form that ``streams.resolve`` takes; None is the current stream.

    Raises:
        InvalidArgument: a count is out of range, or `stream` is no stream.
        NotAvailable: a CUDA graph is being captured.
    """
    check_function("model", model, "a torch.nn.Module or any other function")
    num_iterations = check_count("num_iterations", num_iterations, 1, MOST_CALLS)
    warmup = check_count("warmup", warmup, 0, MOST_CALLS)
    streams.refuse_capture("a measurement")
    if stream is not None:
        streams.resolve(stream)  # raises before the model runs
    is_module = torch.is_module(model)
    device = torch.device_of(model) if is_module else None
    inputs = sample_input if device is None else workloads.to_device(sample_input, device)
    with torch.in_mode(model, training=False) if is_module else nullcontext():
        for _ in range(warmup):
            check_done("model", workloads.call(model, inputs, _OTHERWISE))
        marks = marks_of_process(stream) if device is None else marks_of_device(device.type, device.index, stream)
        return _measured(model, inputs, num_iterations, warmup, marks, workloads.INFERENCE if is_module else "")


def _measured(model: Any, inputs: Any, iterations: int, warmup: int, marks: StreamMarks | None, mode: str) -> Latency:
    wall = np.empty(iterations)
    gpu = np.empty(iterations)
    done = 0

    def result(*cut_short: str) -> Latency:
        times, absent = wall[:done], "" if marks else "nothing of the model is on a GPU"
        on_gpu = Distribution(gpu[:done]) if marks else None
        warnings = (*cut_short, *_remarks(times))
        workload = workloads.describe(inputs, model)
        workload = workload | {"mode": "eval"} if mode else {"dtype": workload["dtype"]}  # only modules have batches
        conditions = Conditions.now(marks.stream.device if marks else None, **workload)
        return Latency(Distribution(times), on_gpu, absent, warmup, warnings, mode, conditions)

    begin, end = (marks.mark(), marks.mark()) if marks else (None, None)
    with kept_on_error(lambda: result(f"ended by an error after {done} of {iterations} calls") if done else None):
        try:
            while done < iterations:
                if marks:
                    marks.synchronize()
                    begin = marks.mark(begin)
                started = now()
                output = workloads.call(model, inputs, _OTHERWISE)
                if marks:
                    end = marks.mark(end)
                    marks.synchronize()
                wall[done] = now() - started
                if marks and begin and end:
                    gpu[done] = marks.seconds(begin, end)
                if not done:
                    check_done("model", output)
                done += 1
                del output  # so that the next call can reuse its memory
        except KeyboardInterrupt:
            if not done:
                raise
            return result(f"interrupted after {done} of {iterations} calls")
    return result()


def _remarks(wall: NDArray[np.float64]) -> list[str]:
    found = stats.trend(wall) if len(wall) >= 10 else None
    if found is None or found.p > SURE or abs(found.drift) < DRIFT:
        return []
    if found.drift < 0:
        return [f"latency fell by {-found.drift:.0%} while it was measured: give a longer warmup"]
    return [f"latency rose by {found.drift:.0%} while it was measured: the machine slows down"]


def _with_arrays(argument: Any) -> Any:
    if isinstance(argument, Latency):
        return np.asarray(argument)
    if isinstance(argument, (tuple, list)):  # as concatenate takes them
        return (tuple if isinstance(argument, tuple) else list)(map(_with_arrays, argument))
    return argument


def _line(times: Distribution) -> str:
    names = ("Mean", "Std", "Median", "Min", "Max", "P95", "P99")
    return ", ".join(f"{name}: {_ms(getattr(times, name.lower()))} ms" for name in names)


def _ms(seconds: float) -> str:
    """Milliseconds with two digits after the point, or four if small."""
    return f"{1000 * seconds:.2f}" if not 5e-8 <= seconds < 1e-4 else f"{1000 * seconds:.4f}"
