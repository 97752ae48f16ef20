# SPDX-License-Identifier: Apache-2.0
"""How often the 95 % interval of a short benchmark holds the truth, for three kinds of work.

Each repetition samples kernel time by the public stopping rule. The truth is the same estimator's answer on the samples
of all repetitions. With 300 repetitions a share of 0.95 is itself uncertain by 0.013 (one standard deviation), with
1000 by 0.007: as many are made as the time allows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

TARGET = 0.01
BUDGET = 0.5  # seconds a repetition
FEWEST = 300
MOST = 1000
SECONDS = 25.0  # a workload, once the fewest are there
LONGEST = 60.0  # a workload in any case
QUICK = 60
NOMINAL = 0.95
COPY_BYTES = 64 << 20
MATRIX = 1024


def jittered_spin() -> Callable[[], object]:
    """5 us and more: a random length each call, as of a kernel whose data differ."""
    from gpuscope import _core

    kernels = _core.Kernels()
    lengths = itertools.cycle((5000 + np.random.default_rng(0).gamma(2.0, 150.0, 100_003)).astype(int).tolist())
    return lambda: kernels.spin(next(lengths))


def copy() -> Callable[[], object]:
    from gpuscope import _core

    kernels = _core.Kernels()
    return lambda: kernels.copy(COPY_BYTES)


def matmul() -> Callable[[], object]:
    import torch

    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


WORKLOADS = {"coverage_spin": jittered_spin, "coverage_copy": copy, "coverage_matmul": matmul}


def repetition(engine: Any, call_seconds: float) -> tuple[np.ndarray, Any]:
    """One short benchmark of the kernel time: its samples and how it ended."""
    from gpuscope.benchmarking.stopping import Budget, Bursts, judge

    spent, progress = Budget(BUDGET), None
    bursts, taken = Bursts(BUDGET, np.random.default_rng()), []
    while progress is None or (not progress.converged and spent.left):
        size = bursts.size(call_seconds, spent.left)
        engine.keep_busy(bursts.pause(size, call_seconds, spent.left))
        samples = engine.sample("kernel", np.zeros(size, np.uint32))
        taken.append(samples.seconds["kernel"][samples.valid])
        if any(map(len, taken)) and (spent.spent >= bursts.next_look or not spent.left):
            progress = judge(np.concatenate(taken), engine.tick, TARGET, [len(burst) for burst in taken if len(burst)])
            bursts.looked(spent.spent)
    return np.concatenate(taken), progress


def cover(function: Callable[[], object], quick: bool) -> measure.Row:
    """The share of repetitions whose interval holds the truth, as its distance from 95 %."""
    from gpuscope import stats
    from gpuscope.benchmarking.engine import Engine

    samples, ends = [], []
    with Engine([function]) as engine:
        warm_up = engine.warm_up(2.0)
        call_seconds = warm_up.seconds / max(1, warm_up.samples)
        began = time.monotonic()
        while len(ends) < (QUICK if quick else MOST):
            spent = time.monotonic() - began
            if spent > LONGEST or (spent > SECONDS and len(ends) >= FEWEST):
                break
            times, progress = repetition(engine, call_seconds)
            samples.append(times)
            ends.append(progress)
        truth = stats.estimate(np.concatenate(samples), tick=engine.tick)
    estimates = [end.estimate for end in ends]
    share = float(np.mean([found.low <= truth.value <= found.high for found in estimates]))
    detail = {
        "share": round(share, 4),
        "repetitions": len(ends),
        "converged": round(float(np.mean([end.converged for end in ends])), 3),
        "samples a repetition": float(np.median([found.n for found in estimates])),
        "relative half-width": round(float(np.median([found.relative_half_width for found in estimates])), 5),
        "truth, us": round(truth.value * 1e6, 4),
        "too low": round(float(np.mean([found.high < truth.value for found in estimates])), 4),
        "too high": round(float(np.mean([found.low > truth.value for found in estimates])), 4),
        "drift of the repetitions": stats.trend([found.value for found in estimates]).drift,
    }
    return {"value": round(abs(share - NOMINAL), 4), "detail": detail}


def main() -> None:
    options = measure.arguments(__doc__, workload="")
    if options.workload:
        measure.answer(cover(WORKLOADS[options.workload](), options.quick))
        return
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in WORKLOADS}})
        return
    quick = ["--quick"] if options.quick else []
    measure.answer({"rows": {name: measure.child("coverage.py", "--workload", name, *quick) for name in WORKLOADS}})


if __name__ == "__main__":
    main()
