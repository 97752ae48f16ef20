# SPDX-License-Identifier: Apache-2.0
"""What a reader of a benchmark should know before believing its number, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gpuscope import stats
from gpuscope.benchmarking.rates import Rate
from gpuscope.benchmarking.result import Measured
from gpuscope.benchmarking.sampling.budget import Progress
from gpuscope.benchmarking.sampling.facts import Facts
from gpuscope.benchmarking.sampling.samples import Quantity, Samples
from gpuscope.benchmarking.sampling.warm_up import WarmUp
from gpuscope.benchmarking.text import percent, seconds

# Stream time holds two events and the start of the first kernel beside the kernels: some microseconds (measured).
_METHOD = 6e-6
_DISAGREEMENT = 0.05
_TAGGED = 0.05


def of_function(facts: Facts, *, on_gpu: bool, devices: bool) -> Iterator[str]:
    """What the dry run told."""
    if devices and not on_gpu:
        yield "the function puts no work on the GPU: its time on the CPU is measured"
    if facts.synchronizes:
        yield "the function waits for the GPU inside, so that its calls cannot be queued: there is no stream time"
    if facts.other_streams:
        yield "the function has work done on other streams than the one timed: there is no stream time"
    if facts.allocates:
        yield "the function allocates GPU memory or frees it in each call, which may wait for the GPU"


def of_samples(
    headline: Samples, quantity: Quantity, progress: Progress, warm_up: WarmUp, tick: float
) -> Iterator[str]:
    """What the headline's samples tell of themselves."""
    times = headline.seconds[quantity]
    times = times[headline.valid & np.isfinite(times)]
    if not warm_up.steady:
        yield f"time or clock were not steady after {warm_up.seconds:.2g} s of warming up"
    throttled = float(headline.throttled.mean())
    if throttled > 0:
        verdict = ": do not rely on it" if throttled > _TAGGED else ""
        yield f"{percent(throttled)} of the samples were taken throttled or with a clock 2 % off{verdict}"
    if progress.drifts:
        yield f"the time drifted by {100 * progress.trend.drift:+.1f} % over the run"
    modes = stats.modes(times, tick=tick)
    if len(modes) > 1:
        values = ", ".join(f"{seconds(mode.value)} ({percent(mode.share)})" for mode in modes)
        yield f"the samples gather around {len(modes)} values, of which the estimate is one or none: {values}"
    lost = int(np.count_nonzero(~headline.valid))
    if lost:
        yield f"{lost} of {len(headline.valid)} samples lack records of CUPTI and were left out"
    works = len(np.unique(headline.signature[headline.valid]))
    if works > 1:
        yield f"the work changes from call to call: {works} different sets of kernels were seen"


def of_quantities(quantities: Mapping[str, Measured], launches: int) -> Iterator[str]:
    """Where two ways of measuring do not agree."""
    stream, span = quantities.get("stream"), quantities.get("span")
    if stream is None or span is None:
        return
    difference = stream.estimate.value - span.estimate.value
    # CUPTI's records themselves widen the gaps between a call's kernels.
    allowed = max(_DISAGREEMENT * span.estimate.value, _METHOD * max(1, launches))
    if abs(difference) > allowed:
        way = "longer" if difference > 0 else "shorter"
        yield (
            f"stream time is {seconds(abs(difference), 3)} {way} than the kernels' span, "
            f"more than the {seconds(allowed, 3)} that the method explains"
        )


def of_rates(rates: Sequence[Rate]) -> Iterator[str]:
    """Rates that no device reaches."""
    for rate in rates:
        if rate.alarm:
            yield rate.alarm
