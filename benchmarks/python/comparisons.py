# SPDX-License-Identifier: Apache-2.0
"""How often compare() calls a function different from itself, and how often it misses a difference of 2 %."""

from __future__ import annotations

import collections
import functools
import time
from typing import Any

import measure

SPIN_NS = 20_000
SLOWER_NS = 20_400
SAME = {"most": 300, "quick": 30, "budget": 0.2, "seconds": 50.0}
SLOWER = {"most": 60, "quick": 10, "budget": 1.0, "seconds": 60.0}
ROWS = ("compare_false", "compare_missed")


def verdicts(kernels: Any, nanoseconds: int, plan: dict[str, Any], quick: bool) -> tuple[dict[str, int], float]:
    """How often each verdict came, comparing a spin of SPIN_NS with another; the median of the seconds they took."""
    from gpuscope.benchmarking.comparison import compare

    a, b = (functools.partial(kernels.spin, ns) for ns in (SPIN_NS, nanoseconds))
    found, seconds = collections.Counter(), []
    began = time.monotonic()
    while len(seconds) < plan["quick" if quick else "most"] and time.monotonic() - began < plan["seconds"]:
        result = compare(a, b, budget=plan["budget"], seed=len(seconds))
        found[result.verdict] += 1
        seconds.append(result.seconds)
    return dict(found), sorted(seconds)[len(seconds) // 2]


def row(found: dict[str, int], seconds: float, wrong: list[str]) -> measure.Row:
    """The share of wrong verdicts."""
    every = sum(found.values())
    detail = {"comparisons": every, "verdicts": found, "s a comparison": round(seconds, 4)}
    return {"value": round(sum(found.get(verdict, 0) for verdict in wrong) / every, 4), "detail": detail}


def main() -> None:
    options = measure.arguments(__doc__)
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    from gpuscope import _core

    kernels = _core.Kernels()
    same = verdicts(kernels, SPIN_NS, SAME, options.quick)
    slower = verdicts(kernels, SLOWER_NS, SLOWER, options.quick)
    rows = {
        "compare_false": row(*same, ["faster", "slower"]),
        "compare_missed": row(*slower, ["faster", "same", "inconclusive"]),
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
