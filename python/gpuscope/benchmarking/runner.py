# SPDX-License-Identifier: Apache-2.0
"""`benchmark`: the time of a function, sampled until it is known well enough."""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from gpuscope import _core
from gpuscope.benchmarking import cautions
from gpuscope.benchmarking.rates import Rate, rates
from gpuscope.benchmarking.result import BenchmarkResult
from gpuscope.benchmarking.run import Run
from gpuscope.benchmarking.sampling import graphs
from gpuscope.benchmarking.sampling.budget import Budget
from gpuscope.benchmarking.sampling.engine import Engine
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.streams import resolve
from gpuscope.system import environment


def benchmark(
    fn: Callable[..., object],
    *args: Any,
    name: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    stream: object = None,
    device: int | None = None,
    cold: bool = True,
    graph: bool = False,
    target: float = 0.01,
    budget: float = 2.0,
    bytes: int | None = None,  # noqa: A002 - what users call it
    flops: int | None = None,
    dtype: object = "float32",
    **kw: Any,
) -> BenchmarkResult:
    """Measures how long a call takes, on the GPU and on the host, until the time is known well enough.

    The headline is kernel time where CUPTI is to be had, else stream time, else the host's time to completion.
    Sampling ends when half of its 95 % interval is at most `target` of it, on at least 30 samples that are worth 20
    independent ones and do not drift; or when the budget is used up, or Ctrl-C is pressed: the result says which.

    Args:
        fn: what to measure. It is called many times, and the same way each time.
        *args: for `fn`.
        name: in the result; None takes the function's.
        kwargs: keyword arguments for `fn`, those too whose names are taken here.
        stream: where `fn` puts its work, of any framework; None is the current stream.
        device: its ordinal; None is the stream's.
        cold: clear the L2 cache before each call.
        graph: capture `fn` into a CUDA graph once and measure its replay.
        target: half of the interval's width to reach, relative to the time.
        budget: seconds for everything, warming up included. A single call is not cut short.
        bytes: read and written by a call, for a rate.
        flops: floating-point operations in a call, for a rate.
        dtype: what they are done in, as "bfloat16"; for the peak to compare with.
        **kw: keyword arguments for `fn`.

    Raises:
        InvalidArgument: an argument is out of range, or the stream is of another device.
        NotAvailable: `graph` is wanted and `fn` cannot be captured, or `device` is given and there is no GPU.
        Exception: whatever `fn` raises.
    """
    _check(fn, target, budget, bytes, flops)
    spent = Budget(budget)
    call: Callable[[], object] = functools.partial(fn, *args, **{**(kwargs or {}), **kw})
    with contextlib.ExitStack() as kept:
        if graph:
            if not _core.environment()["devices"]:
                raise NotAvailable("graph is True, but this machine has no NVIDIA GPU that CUDA shows")
            measured = kept.enter_context(graphs.capture(call, 1, stream=resolve(stream, device))).launch
        else:
            measured = call if args or kwargs or kw else fn
        engine = kept.enter_context(Engine([measured], stream=stream, device=device, cold=cold))
        run = Run(engine, spent, target)
        run.measure(None if graph else measured)
        engine.release_cupti()
        estimate = run.quantities()[run.headline].estimate
        found = rates(estimate, bytes, flops, dtype, engine.device, cold) if bytes or flops else ()
        return _result(run, found, name or _name(fn), cold, bytes, flops)


def _check(fn: object, target: float, budget: float, bytes: float | None, flops: float | None) -> None:  # noqa: A002
    if not callable(fn):
        raise InvalidArgument(f"fn is {fn!r}; accepted is a function or anything else that can be called")
    if not _is_number(target) or not 0 < target < 1:
        raise InvalidArgument(f"target is {target!r}; accepted are fractions above 0 and below 1")
    if not _is_number(budget) or not 0 < budget < math.inf:
        raise InvalidArgument(f"budget is {budget!r}; accepted are seconds above 0")
    for name, work in (("bytes", bytes), ("flops", flops)):
        if work is not None and not (_is_number(work) and 0 < work < math.inf):
            raise InvalidArgument(f"{name} is {work!r}; accepted are numbers above 0")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _name(fn: object) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__).rpartition("<locals>.")[2]


def _result(
    run: Run,
    found: tuple[Rate, ...],
    name: str,
    cold: bool,
    bytes: int | None,  # noqa: A002
    flops: int | None,
) -> BenchmarkResult:
    engine, samples, quantities = run.engine, run.samples, run.quantities()
    facts, progress = engine.facts[0], run.progress
    assert progress is not None
    reasons = (*engine.absent.items(), *run.absent.items())
    absent: dict[str, str] = {key: why for key, why in reasons if key not in quantities}
    return BenchmarkResult(
        name=name,
        quantity=run.headline,
        quantities=quantities,
        absent=absent,
        kernels=samples.kernels[0] if samples.kernels else (),
        converged=progress.converged,
        stopped=run.stopped,
        warnings=(
            *cautions.of_function(facts, on_gpu=engine.on_gpu, devices=engine.sampler is not None),
            *cautions.of_samples(samples, run.headline, progress, run.warm_up, engine.tick),
            *cautions.of_quantities(quantities, facts.launches),
            *cautions.of_rates(found),
        ),
        cold=cold,
        clock_hz=samples.clock_hz,
        throttled=samples.throttled,
        bytes=bytes,
        flops=flops,
        rates=found,
        environment=_environment(engine),
        seconds=run.spent.spent,
        value=engine.values[0] if engine.values else None,
        capped=samples.capped,
    )


def _environment(engine: Engine) -> dict[str, object]:
    """Where it was measured: what stays true of the machine, and the clocks of this moment."""
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
