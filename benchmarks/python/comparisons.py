# SPDX-License-Identifier: Apache-2.0
"""How often compare() calls a function different from itself, and how often it misses a difference of 2 %.

And how often it blames the place: two copies that evict each other's data from the L2 cache are compared in both
orders. One of the two may be slower, as memory lies at different distances, but then it is so in either order.
"""

from __future__ import annotations

import collections
import functools
import itertools
import time
from typing import Any

import measure

SPIN_NS = 20_000
SLOWER_NS = 20_400
SAME = {"most": 300, "quick": 30, "budget": 0.2, "seconds": 50.0}
SLOWER = {"most": 60, "quick": 10, "budget": 1.0, "seconds": 60.0}
EVICTING_MIB = (8, 16, 24)  # read and as much written, of a cache of 50 MiB on an H100
EVICTING = {"most": 60, "quick": 6, "budget": 0.3, "seconds": 40.0}
ROWS = ("compare_false", "compare_missed", "compare_false_evicting")


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


def in_both_orders(plan: dict[str, Any], quick: bool) -> measure.Row:
    """The share of pairs of which the same place was called faster, or slower, in either order."""
    from gpuscope import _core
    from gpuscope.benchmarking.comparison import compare

    found: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    for pair, mebibytes in enumerate(itertools.cycle(EVICTING_MIB)):
        if pair == plan["quick" if quick else "most"] or time.monotonic() - began > plan["seconds"]:
            break
        a, b = (functools.partial(_core.Kernels().copy, mebibytes << 20) for _ in range(2))
        verdicts = [compare(*order, budget=plan["budget"], seed=pair).verdict for order in ((a, b), (b, a))]
        found[f"{mebibytes} MiB: " + ", then ".join(verdicts)] += 1
    wrong = sum(count for said, count in found.items() if said.endswith(("faster, then faster", "slower, then slower")))
    pairs = sum(found.values())
    return {"value": round(wrong / pairs, 4), "detail": {"pairs": pairs, "verdicts": dict(found)}}


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
        "compare_false_evicting": in_both_orders(EVICTING, options.quick),
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
