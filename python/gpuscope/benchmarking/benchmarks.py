# SPDX-License-Identifier: Apache-2.0
"""Measures the time of a function until its interval is narrow enough."""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuscope import _core, stats
from gpuscope.arguments import (
    Quantity,
    check_budget,
    check_count,
    check_fraction,
    check_function,
    check_positive,
    check_progress,
)
from gpuscope.benchmarking import cuda_graphs, workloads
from gpuscope.benchmarking.engine import Engine, Facts, function_name
from gpuscope.benchmarking.per_call import PerCall
from gpuscope.benchmarking.processes import MOST_PROCESSES, in_processes, pickled
from gpuscope.benchmarking.result import BenchmarkResult, Measured, format_modes
from gpuscope.benchmarking.roofline import rates
from gpuscope.benchmarking.samples import Samples, joined
from gpuscope.benchmarking.stopping import (
    FEWEST_SAMPLES,
    GPU_PROCESSES_DIFFER,
    Budget,
    Bursts,
    Progress,
    WarmUp,
    judge,
)
from gpuscope.conditions import Conditions
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.results import kept_on_error
from gpuscope.streams import refuse_capture, resolve
from gpuscope.system import environment
from gpuscope.targets import Target
from gpuscope.text import brief
from gpuscope.units import format_rough, format_seconds, format_share

# Shares of the budget; the rest is for the headline.
_WARM_UP, _SIDE, _SLOPE = 0.25, 0.05, 0.02
_SIDE_SAMPLES = 64
_ENOUGH_VALID = 0.5
# Functions that launch more or take longer are not captured into graphs of many calls.
_MOST_CAPTURED = 64
_LONGEST_CAPTURED = 5e-3

# Stream time also includes two events and the start of the first kernel: some microseconds (measured).
_METHOD = 6e-6
_DISAGREEMENT = 0.05
_TAGGED = 0.05


def benchmark(
    fn: Callable[..., object],
    *args: Any,
    name: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    stream: object = None,
    device: int | None = None,
    cold: bool = True,
    graph: bool = False,
    precision: float = 0.01,
    target: str | None = None,
    baseline: BenchmarkResult | float | None = None,
    budget: float = 2.0,
    bytes: float | None = None,  # noqa: A002 - what users call it
    flops: float | None = None,
    dtype: object = "float32",
    setup: Callable[[], object] | None = None,
    teardown: Callable[..., object] | None = None,
    processes: int | None = None,
    progress: Callable[[str], object] | None = None,
    **kw: Any,
) -> BenchmarkResult:
    """Measures the time of a call on the GPU and on the host, until its interval is narrow enough.

    The headline is kernel time if CUPTI is available, else stream time, else the host's time to completion. Sampling
    ends when half of the 95 % interval is at most `precision` of the time, when the budget is spent, or after Ctrl-C;
    the result says which. See docs/explanation/statistics.md for intervals and times.md for short calls.

    Args:
        fn: the function to measure. It is called many times with the same arguments.
        *args: for `fn`.
        name: in the result; None takes the function's.
        kwargs: keyword arguments for `fn`, also those with the name of a parameter here.
        stream: the stream of `fn`'s work, of any framework; None is the current stream.
        device: ordinal of the GPU; None is the stream's.
        cold: clear the L2 cache before each call.
        graph: capture `fn` into a CUDA graph once and measure its replay.
        precision: half of the interval's width to reach, relative to the time.
        target: a time to reach: "20 ms" at most, "+30 %" faster than `baseline`, or "-20 %" of its time.
        baseline: an earlier result, or its seconds, for a target in percent.
        budget: seconds in total with warm-up; half of it is for samples. A single call is not cut short.
        bytes: read and written by a call, for a rate.
        flops: floating-point operations in a call, for a rate.
        dtype: number type of the operations, as "bfloat16"; selects the peak to compare with.
        setup: called before each call and not timed, for an `fn` that changes its input: ``benchmark(list.sort,
            setup=values.copy)``. It returns None, one further argument of the call, or several as (args, kwargs). Each
            sample is one call then, and there is no marginal time.
        teardown: called after each call with its arguments, and not timed.
        processes: number of fresh processes to measure in, which share the budget. `fn` has to be a function of a
            module or a script, or a functools.partial of one; its arguments have to be picklable.
        progress: called with a line when a process starts and when it measures.
        **kw: keyword arguments for `fn`.

    Raises:
        InvalidArgument: an argument is out of range, or the stream is of another device.
        NotAvailable: `fn` cannot be captured for `graph`, there is no GPU for `device`, or a CUDA graph is being
            captured.
        Exception: raised by `fn` or `progress`; its attribute ``measured`` has the result until then.
    """
    check_function("fn", fn, "a function or anything else that can be called")
    if name is not None and not isinstance(name, str):
        raise InvalidArgument(f"name is {brief(name)}; accepted is text")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidArgument(f"kwargs is {brief(kwargs)}; accepted is a mapping of names to values")
    wanted = _wanted(target, baseline)
    precision, budget = check_fraction("precision", precision), check_budget(budget)
    bytes = None if bytes is None else check_positive("bytes", bytes)  # noqa: A001
    flops = None if flops is None else check_positive("flops", flops)
    check_progress(progress)
    if processes is not None:
        processes = check_count("processes", processes, 1, MOST_PROCESSES)
        if stream is not None:
            raise InvalidArgument(
                f"stream is {brief(stream)}; accepted with processes= is None: streams are of one process"
            )
    keywords = {**(kwargs or {}), **kw}
    per_call = PerCall(setup, teardown)
    if graph and per_call:
        raise InvalidArgument("graph is True; accepted with setup= or teardown= is False: a replay has one input")
    call: Callable[[], object] = fn
    if args or keywords:
        call = functools.partial(fn, *args, **keywords)
        per_call = replace(per_call, teardown=teardown and functools.partial(teardown, *args, **keywords))
    name = name or function_name(fn)
    settings = _Settings(call, name, stream, device, cold, graph, precision, per_call, bytes, flops, dtype, processes)
    task = functools.partial(_benchmark, settings)
    if processes is None:
        found = task(budget)
    else:
        found = in_processes(
            pickled(task, fn), processes, name=name, budget=budget, precision=precision, progress=progress
        )
    return found if wanted is None else replace(found, target=_judged(wanted, found, baseline))


def _wanted(target: object, baseline: object) -> Target | None:
    """The checked target; None if none is given."""
    if baseline is not None and not isinstance(baseline, BenchmarkResult):
        check_positive("baseline", baseline, "earlier results, and seconds")
    found = None if target is None else Target.of(target, has_baseline=baseline is not None)
    if baseline is not None and (found is None or found.kind != "faster"):
        raise InvalidArgument(f"baseline is given with target={brief(target)}; accepted is a target as '+30 %'")
    return found


def _judged(wanted: Target, found: BenchmarkResult, baseline: BenchmarkResult | float | None) -> Target:
    """Whether the headline meets the target, compared with the same quantity of the baseline."""
    if not isinstance(baseline, BenchmarkResult):
        return wanted.judged(found.ci, None if baseline is None else (baseline, baseline, baseline))
    if found.quantity not in baseline.quantities:
        return replace(wanted, why=f"the baseline has no {found.quantity} time")
    then = baseline.quantities[found.quantity].estimate
    wanted = replace(wanted, differences=baseline.conditions.differences(found.conditions))
    return wanted.judged(found.ci, (then.value, then.low, then.high))


@dataclass(frozen=True)
class _Settings:
    """The checked arguments of `benchmark`, in this process or another."""

    call: Callable[[], object]
    name: str
    stream: object
    device: int | None
    cold: bool
    graph: bool
    precision: float
    per_call: PerCall
    bytes: float | None
    flops: float | None
    dtype: object
    processes: int | None


def _benchmark(settings: _Settings, budget: float) -> BenchmarkResult:
    """Measures in this process; with `processes` the budget begins after the first calls."""
    refuse_capture("a measurement")  # before our own capture, with `graph`
    whole = Budget(budget)
    environment()  # the first call in a process is slow, and counts too
    call, stream, device = settings.call, settings.stream, settings.device
    with contextlib.ExitStack() as stack:
        measured = call
        if settings.graph:
            if not _core.environment()["devices"]:
                raise NotAvailable("graph is True, but this machine has no NVIDIA GPU that CUDA shows")
            measured = stack.enter_context(cuda_graphs.capture(call, 1, stream=resolve(stream, device))).launch
        engine = stack.enter_context(
            Engine([measured], stream=stream, device=device, cold=settings.cold, per_call=settings.per_call)
        )
        run = _BenchmarkRun(engine, whole, settings.precision, settings.processes)
        result = functools.partial(_result, run, settings)
        with kept_on_error(lambda: result() if run.cut_short("error") else None):
            run.measure(None if settings.graph else measured)
            engine.release_cupti()
            return result()


def _result(run: _BenchmarkRun, settings: _Settings) -> BenchmarkResult:
    engine, samples, quantities = run.engine, run.samples, run.quantities()
    facts, progress = engine.facts[0], run.progress
    assert progress is not None
    modes = stats.modes(quantities[run.headline].samples[quantities[run.headline].valid], tick=engine.tick)
    found = rates(
        quantities[run.headline].estimate, settings.bytes, settings.flops, settings.dtype, engine.device, settings.cold
    )
    reasons = (*engine.absent.items(), *run.absent.items())
    absent: dict[str, str] = {key: why for key, why in reasons if key not in quantities}
    return BenchmarkResult(
        name=settings.name,
        quantity=run.headline,
        quantities=quantities,
        absent=absent,
        kernels=samples.kernels[0] if samples.kernels else (),
        converged=progress.converged,
        stopped=run.stopped,
        warnings=(
            *_warnings_of_function(facts, on_gpu=engine.on_gpu, devices=engine.sampler is not None),
            *(replace(run.warm_up, note="") if progress.drifts else run.warm_up).warnings,  # the drift is no warm-up
            *_warnings_of_samples(samples, progress, modes, run.span),
            *_unsettled(run, quantities[run.headline]),
            *_warnings_of_quantities(quantities, facts.launches),
            *(rate.alarm for rate in found if rate.alarm),
        ),
        cold=settings.cold,
        clock_hz=samples.clock_hz,
        throttled=samples.throttled,
        bytes=settings.bytes,
        flops=settings.flops,
        rates=found,
        environment=_environment(engine),
        seconds=run.whole.spent,
        value=engine.values[0] if engine.values else None,
        capped=samples.capped,
        modes=modes,
        bursts=np.array([len(part.which) for part in run.parts[run.headline]], np.int64),
        calls_per_sample=samples.calls_per_sample,
        processes_differ=run.processes_differ,
        conditions=Conditions.now(engine.device if engine.on_gpu else None, **workloads.describe_call(settings.call)),
    )


def _environment(engine: Engine) -> dict[str, object]:
    """The machine: its constant facts, and its clocks now."""
    facts = environment()
    found: dict[str, object] = {
        "gpu": engine.device_name if facts.devices else None,
        "device": engine.device if facts.devices else None,
        "on_gpu": engine.on_gpu,
        "stream": engine.stream.source,
        "driver": facts.driver_version,
        "cuda": facts.cuda_version,
        "cupti": facts.cupti_version,
        "tier": facts.tier,
        "gate": engine.gated if facts.devices else None,
        "python": facts.python_version,
        "platform": facts.platform,
        "gpuscope": facts.gpuscope_version,
        "frameworks": {one.name: one.version for one in facts.frameworks if one.imported},
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }
    if facts.devices:
        state, limits = _core.clock_state(engine.device), _core.device_limits(engine.device)
        found["sm_hz_max"] = limits.get("sm_hz_max")
        found |= {key: state.get(key) for key in ("memory_hz", "power_w", "power_limit_w", "temperature_c")}
    return found


class _BenchmarkRun:
    """One benchmark: its samples so far, kept on an interrupt."""

    def __init__(self, engine: Engine, whole: Budget, precision: float, processes: int | None) -> None:
        self.engine, self.whole, self.precision, self.processes = engine, whole, precision, processes
        self.spent = whole  # the budget of the current phase
        self.parts: dict[Quantity, list[Samples]] = {}
        self.slope: Measured | None = None
        self.absent: dict[str, str] = {}
        self.warm_up = WarmUp(False, 0.0, 0)
        self.progress: Progress | None = None
        self.stopped = "budget"
        self.span = 0.0  # seconds over which the headline was sampled
        self._instead: Quantity | None = None
        self._random = np.random.default_rng()

    @property
    def headline(self) -> Quantity:
        """The quantity that decides: the first of kernel, stream and wall that is available."""
        return self._instead or self.engine.headline

    @property
    def processes_differ(self) -> float:
        """The assumed spread between processes in the headline's interval; 0 on the host, or if measured."""
        several = self.processes is not None and self.processes > 1
        return 0.0 if several or self.headline == "wall" else GPU_PROCESSES_DIFFER

    @property
    def samples(self) -> Samples:
        """The headline's samples."""
        return joined(self.parts[self.headline])

    def measure(self, captured: Callable[[], object] | None) -> None:
        """Measures all quantities; kernel times last, as CUPTI would disturb others.

        Marginal time is measured only with `captured`.
        """
        try:
            self.engine.prepare()
            if self.processes is not None:
                self.whole = Budget(self.whole.seconds)
            self.spent = self.whole.for_samples()
            self._warm_up(self.engine.sample_seconds)
            for quantity in ("stream", "launch", "wall"):
                self._sample_side(quantity)
            self._slope(captured)
            self.spent = self.whole.for_samples()
            self._sample_headline()
        except KeyboardInterrupt:
            if not self.cut_short("interrupted"):
                raise

    def _warm_up(self, sample_seconds: float) -> None:
        """Warms up, unless the budget has no time for a warm-up and a sample this long."""
        fits = self.spent.left >= 2 * sample_seconds
        self.warm_up = self.engine.warm_up(self.spent.share(_WARM_UP).seconds if fits else 0.0)

    def cut_short(self, why: str) -> bool:
        """Judges the samples; False if there are none."""
        self.stopped = why
        return self._judge(self.headline) or self._fall_back()

    def _sample_side(self, quantity: Quantity) -> None:
        has_stream_pass = quantity == "launch" and "stream" not in self.engine.absent
        if quantity in self.engine.absent or quantity == self.headline or has_stream_pass:
            return
        share, taken = self.spent.share(_SIDE), 0
        while not taken or (taken < _SIDE_SAMPLES and share.left):
            order = np.zeros(self.engine.chunk, np.uint32)
            self.parts.setdefault(quantity, []).append(self.engine.sample(quantity, order))
            taken += len(order)
            if quantity in self.engine.absent:  # the gate does not hold
                return

    def _slope(self, function: Callable[[], object] | None) -> None:
        engine, facts = self.engine, self.engine.facts[0]
        if not facts.uses_gpu or engine.sampler is None:
            return
        why = "a graph's replay was measured" if function is None else _why_no_slope(facts)
        if self.engine.per_call:
            why = "something runs before or after each call"
        if function is None or why:
            self.absent["marginal"] = why
            return
        seconds = self.spent.share(_SLOPE).seconds
        try:
            slope = cuda_graphs.marginal(
                function, engine.sampler, engine.stream, precision=self.precision, budget=seconds
            )
        except GpuscopeError as error:
            self.absent["marginal"] = str(error)
            return
        self.slope = Measured("marginal", slope.samples, np.ones(len(slope.samples), bool), slope.estimate)

    def _sample_headline(self) -> None:
        cost = self.warm_up.sample_seconds
        bursts, began, first = Bursts(self.spent.left, self._random), self.spent.spent, True
        warming = 0  # parts that count as warming up once there are others
        while True:
            quantity = self.headline
            size = bursts.size(cost, self.spent.left)
            self.engine.keep_busy(bursts.pause(size, cost, self.spent.left))
            burst_began = self.spent.spent
            part = self.engine.sample(quantity, np.zeros(size, np.uint32), self.spent.left)
            cost = (self.spent.spent - burst_began) / len(part.which)
            if quantity in self.engine.absent:  # the gate did not hold: use another headline
                continue
            if not self.warm_up.samples:
                # If only the first call was slow (compilation), there is time to warm up after all.
                self._warm_up(cost)
                if self.warm_up.samples:
                    self.parts.pop(quantity, None)
                    cost = self.warm_up.sample_seconds
                    bursts, began = Bursts(self.spent.left, self._random), self.spent.spent
                    continue
            del self.parts.setdefault(quantity, [])[:warming]
            self.parts[quantity].append(part)
            warming, span = 0, self.spent.spent - began
            self.span = span
            if span < bursts.next_look and self.spent.left:
                continue
            if self._judge(quantity) and self.progress is not None and self.progress.enough:
                self.stopped = "precision" if self.progress.converged else "processes"
                return
            if not self.spent.left:
                break
            bursts.looked(span)
            if first and self.progress is not None and self.progress.drifts and self.spent.left > bursts.span:
                # The change over the first span may be warm-up; a lasting drift shows again. These samples are kept
                # until there are others, for Ctrl-C.
                warming = len(self.parts[quantity])
                samples = sum(len(part.which) for part in self.parts[quantity])
                seconds, samples = self.warm_up.seconds + span, self.warm_up.samples + samples
                note = f"{_drift_sentence(self.progress, span)}: what came before counts as warming up"
                self.warm_up = replace(self.warm_up, seconds=seconds, samples=samples, note=note)
                bursts, began = Bursts(self.spent.left, self._random), self.spent.spent
            first = False
        valid = joined(self.parts[quantity]).valid
        if self.progress is None or valid.mean() < _ENOUGH_VALID:
            why = f"{np.count_nonzero(~valid)} of {len(valid)} samples lack records of CUPTI"
            if self._fall_back():
                self.engine.absent |= dict.fromkeys(("kernel", "span"), why)
            elif self.progress is None:
                raise NotAvailable(f"{quantity} time cannot be measured: {why}")

    def _judge(self, quantity: Quantity) -> bool:
        """Judges the samples of a quantity; False if there are none."""
        times = [part.times(quantity) for part in self.parts.get(quantity, ())]
        finite = [part[np.isfinite(part)] for part in times]
        sizes = [len(part) for part in finite if len(part)]
        if sizes:
            samples, tick, differ = np.concatenate(finite), self.engine.tick, self.processes_differ
            self.progress = judge(samples, tick, self.precision, sizes, differ)
        return bool(sizes)

    def _fall_back(self) -> bool:
        """Makes another sampled quantity the headline; False if there is none."""
        choices: tuple[Quantity, ...] = ("stream", "wall")
        for quantity in choices:
            if quantity not in self.engine.absent and self._judge(quantity):
                self._instead = quantity
                return True
        return False

    def quantities(self) -> dict[str, Measured]:
        """All sampled quantities, the headline first."""
        found: dict[str, Measured] = {}
        for key in dict.fromkeys((self.headline, *self.parts)):
            samples = joined(self.parts[key])
            for quantity in samples.seconds:
                times = samples.times(quantity)
                valid = np.isfinite(times)
                if quantity in found or quantity in self.engine.absent or not valid.any():
                    continue
                times = times[valid]
                if quantity == self.headline and self.progress is not None:
                    estimate = self.progress.estimate
                else:
                    estimate = stats.estimate(times, tick=self.engine.tick_of(quantity))
                found[quantity] = Measured(quantity, samples.seconds[quantity], valid, estimate)
        if self.slope is not None:
            found["marginal"] = self.slope
        return found


def _why_no_slope(facts: Facts) -> str:
    """Why a function cannot be captured into graphs of many calls; empty if it may."""
    if facts.synchronizes:
        return "the function waits for the GPU inside, which cannot be captured"
    if facts.allocates:
        return "the function allocates GPU memory, which cannot be captured"
    if facts.other_streams:
        return "the function has work done on other streams than the one timed"
    if facts.launches > _MOST_CAPTURED:
        return f"the function launches more than {_MOST_CAPTURED} times a call"
    if facts.call_seconds > _LONGEST_CAPTURED:
        return f"a call takes longer than {_LONGEST_CAPTURED * 1e3:g} ms: single calls are as precise"
    return ""


def _warnings_of_function(facts: Facts, *, on_gpu: bool, devices: bool) -> Iterator[str]:
    """Warnings from the dry run."""
    if devices and not on_gpu:
        yield "the function puts no work on the GPU: its time on the CPU is measured"
    if facts.synchronizes:
        yield "the function waits for the GPU inside, so that its calls cannot be queued: there is no stream time"
    if facts.other_streams:
        yield "the function has work done on other streams than the one timed: there is no stream time"
    if facts.allocates:
        yield "the function allocates GPU memory or frees it in each call, which may wait for the GPU"


def _warnings_of_samples(
    headline: Samples, progress: Progress, modes: tuple[stats.Mode, ...], span: float
) -> Iterator[str]:
    """Warnings from the headline's samples, taken over `span` seconds."""
    throttled = float(headline.throttled.mean())
    if throttled > 0:
        verdict = ": do not rely on it" if throttled > _TAGGED else ""
        yield f"{format_share(throttled)} of the samples were taken throttled or with a clock 2 % off{verdict}"
    if progress.drifts:
        yield _drift_sentence(progress, span)
    if len(modes) > 1:
        shown = format_modes(modes)
        yield f"the samples gather around {len(modes)} values, and the estimate is one of them or none: {shown}"
    lost = int(np.count_nonzero(~headline.valid))
    if lost:
        yield f"{lost} of {len(headline.valid)} samples lack records of CUPTI and were left out"
    works = len(np.unique(headline.signature[headline.valid]))
    if works > 1:
        yield f"the work changes from call to call: {works} different sets of kernels were seen"


def _drift_sentence(progress: Progress, span: float) -> str:
    """The drift or change of samples taken over `span` seconds."""
    change, drift = progress.change, 100 * progress.trend.drift
    if not progress.abrupt:
        rate = f", {'+' if drift > 0 else ''}{format_rough(drift / span)} % a second" if span else ""
        return f"the time drifted by {drift:+.1f} % over the run{rate}"
    levels = [format_seconds(level, 4) for level in (change.before, change.after)]
    return (
        f"the time changed by {100 * change.size:+.1f} % in the run, from {levels[0]} to {levels[1]}, "
        f"after {change.at} of {progress.estimate.n} samples"
    )


def _unsettled(run: _BenchmarkRun, headline: Measured) -> Iterator[str]:
    """Warnings about a time without drift whose interval did not become narrow enough."""
    progress = run.progress
    assert progress is not None
    estimate = progress.estimate
    if run.stopped == "processes":
        yield (
            f"fresh processes differ by {format_share(run.processes_differ)}, more than the +-"
            f"{100 * run.precision:.2g} % that was wanted, and one process does not show it: processes=5 measures it"
        )
    if run.stopped != "budget" or progress.drifts or estimate.n < FEWEST_SAMPLES:
        return
    half = estimate.relative_half_width
    reached = f"known to +-{format_rough(100 * half)} %" if math.isfinite(half) else "without an interval"
    low, high = format_seconds(headline.p5, 4), format_seconds(headline.p95, 4)
    yield (
        f"the time did not settle: it is {reached} after {format_rough(run.span)} s of samples, "
        f"+-{100 * run.precision:.2g} % was wanted; 90 % of them are between {low} and {high}"
    )


def _warnings_of_quantities(quantities: Mapping[str, Measured], launches: int) -> Iterator[str]:
    """Warnings about two methods that disagree."""
    stream, span = quantities.get("stream"), quantities.get("span")
    if stream is None or span is None:
        return
    difference = stream.estimate.value - span.estimate.value
    # CUPTI's recording widens the gaps between a call's kernels.
    allowed = max(_DISAGREEMENT * span.estimate.value, _METHOD * max(1, launches))
    if abs(difference) > allowed:
        yield (
            f"stream time is {format_seconds(abs(difference))} "
            f"{'longer' if difference > 0 else 'shorter'} than the kernels' span, "
            f"more than the {format_seconds(allowed)} that the method explains"
        )
