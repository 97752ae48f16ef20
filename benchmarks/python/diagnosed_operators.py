# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis records of operators costs the CPU over profile(): by the depth of the Python stack, and of ranges
such as compiled code opens for each kernel, by how many different ones there are. Needs no GPU.

Of the calling thread's CPU time, so that other programs on the machine count little.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import measure
from diagnose_cost import DIAGNOSE

DEPTHS = (0, 10, 30, 60)  # Python functions around
KERNELS = (10, 100, 500, 2000)  # different ones
CALLS = 300
ROUNDS, QUICK_ROUNDS = 31, 7
MODES: dict[str, dict[str, Any] | None] = {
    "alone": None,
    "profile": {},
    "stacks": {"with_stack": "operators"},
    "shapes": {"record_shapes": "operators"},
    "shapes, with arguments of ranges": {"record_shapes": True},
    "samples": {"python_samples": True},
    "diagnose": DIAGNOSE,
}
Work = Callable[[], None]


def deep(depth: int, work: Work) -> None:
    if depth:
        deep(depth - 1, work)
    else:
        work()


def products(depth: int) -> tuple[Work, int]:
    """Operators in operators, so many functions deep; how many calls."""
    import torch

    x, weight, bias = torch.ones(2, 4), torch.ones(3, 4), torch.ones(3)
    linear = torch.nn.functional.linear

    def work() -> None:
        for _ in range(CALLS):
            linear(x, weight, bias)  # linear, t, transpose, as_strided, addmm and more

    return lambda: deep(depth, work), CALLS


def ranges(count: int) -> tuple[Work, int]:
    """What Inductor opens around each kernel while a profiler runs, with its arguments; how many."""
    import torch

    kernels = [
        (
            f"triton_poi_fused_{number}",
            (*(torch.empty(1 + number % 7, 2 + number // 7, 8, 8) for _ in range(4)), 12544 + number, 64),
            {
                "kernel_file": f"/tmp/torchinductor/{number}.py",
                "kernel_hash": f"{number:052d}",
                "kernel_backend": "triton",
                "stream": 1,
                "num_warps": 4,
                "num_stages": 1,
                "kernel_kwargs": f"XBLOCK={512 + number % 16}",
            },
        )
        for number in range(count)
    ]
    turns = max(1, CALLS // count)

    def work() -> None:
        opened = torch._C._profiler._RecordFunctionFast
        for _ in range(turns):
            for name, arguments, named in kernels:
                with opened(name, arguments, named):
                    pass

    return work, turns * count


def thread_ns(work: Work, calls: int, options: dict[str, Any] | None) -> float:
    """A call, warm, inside of a recording."""
    import gpuscope as gs

    cpu = [gs.ProfilerActivity.CPU]
    with gs.profile(activities=cpu, **options) if options is not None else contextlib.nullcontext():
        for _ in range(3):
            work()
        began = time.thread_time_ns()
        work()
        return (time.thread_time_ns() - began) / calls


def costs(work: Work, calls: int, rounds: int) -> dict[str, float]:
    """ns a call over profile(), by mode; that of profile() over nothing, and a call alone."""
    spent: dict[str, list[float]] = {name: [] for name in MODES}
    for turn in range(rounds):
        names = list(MODES)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            spent[name].append(thread_ns(work, calls, MODES[name]))
    base = {name: "alone" if name == "profile" else "profile" for name in MODES if name != "alone"}
    over = {
        name: round(statistics.median(a - b for a, b in zip(spent[name], spent[other], strict=True)), 1)
        for name, other in base.items()
    }
    ratio = round(measure.paired_ratio(spent["diagnose"], spent["profile"]), 4)
    return {"alone": round(statistics.median(spent["alone"]), 1), **over, "diagnose / profile()": ratio}


def main() -> None:
    options = measure.arguments(__doc__)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    names = ("diagnosed_operators", "diagnosed_ranges")
    try:
        by_depth = {depth: costs(*products(depth), rounds) for depth in DEPTHS}
        by_kernels = {count: costs(*ranges(count), rounds) for count in KERNELS}
    except ImportError as error:
        measure.answer({"rows": {name: {"skipped": str(error)} for name in names}})
        return
    rows: dict[str, measure.Row] = {
        name: {"value": max(row["diagnose / profile()"] for row in found.values()), "detail": {"ns": found}}
        for name, found in zip(names, (by_depth, by_kernels), strict=True)
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
