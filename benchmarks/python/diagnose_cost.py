# SPDX-License-Identifier: Apache-2.0
"""What `gpuscope diagnose` costs the programs that it looks at, beside a recording without what it asks for.

The programs are those of tests/gpu: tuned ones, and some whose host keeps the GPU waiting, which feel every
nanosecond. Steps of each take turns: alone, under ``profile()``, with what a diagnosis records, with hardware counters
beside, and with every call of a Python function, which a diagnosis can do without. ``--only gpt,R15`` runs those,
``--parts stacks,shapes`` each of these options by itself too.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, QUICK_ROUNDS = 15, 5
MOST_MS = 250.0  # of the steps of a round
SHARE = 0.4
HOST_BOUND = ("R15", "R19", "R24")
DIAGNOSE = {"with_stack": "operators", "record_shapes": "operators", "python_samples": True}
MODES: dict[str, dict[str, Any] | None] = {
    "alone": None,
    "profile": {},
    "diagnose": DIAGNOSE,
    "counters": {**DIAGNOSE, "counters": "why"},
    "functions": {**DIAGNOSE, "with_stack": True},
}
PARTS: dict[str, dict[str, Any] | None] = {
    "stacks": {"with_stack": "operators"},
    "shapes": {"record_shapes": "operators"},
    "arguments": {"record_shapes": True},  # those of compiled kernels too
    "samples": {"python_samples": True},
}


def counted(step: Callable[[], object]) -> dict[str, int]:
    """What a step has of all that each option pays for."""
    import torch

    import gpuscope as gs

    with gs.profile() as prof:
        step()
        torch.cuda.synchronize()
    trace = prof.trace
    return {"regions": len(trace.regions), "driver calls": len(trace.api), "kernels": len(trace.kernels)}


def timed_ms(step: Callable[[], object], options: dict[str, Any] | None, steps: int) -> float:
    """Of a step, where the recording has begun and ends later."""
    import contextlib

    import torch

    import gpuscope as gs

    with gs.profile(**options) if options is not None else contextlib.nullcontext():
        step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps * 1e3


def costs(step: Callable[[], object], rounds: int, modes: dict[str, dict[str, Any] | None]) -> dict[str, Any]:
    for _ in range(5):
        step()
    steps = max(3, round(MOST_MS / timed_ms(step, None, 3)))
    spent: dict[str, list[float]] = {name: [] for name in modes}
    for turn in range(rounds):
        names = list(modes)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            spent[name].append(timed_ms(step, modes[name], steps))
    over = {name: round(measure.paired_ratio(spent[name], spent["profile"]) - 1, 4) for name in modes}
    step_ms = round(statistics.median(spent["alone"]), 3)
    return {"step_ms": step_ms, "over profile()": over, "a step": counted(step)}


def main() -> None:
    options = measure.arguments(__doc__, only="", parts="")
    why = measure.why_not_available(gpu=True)
    names = ("diagnose_cost", "diagnose_counters_cost")
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in names}})
        return
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    from faults import faults
    from tuned import TUNED

    programs: dict[str, Callable[[], Callable[[], object]]] = {each.__name__: each for each in TUNED}
    programs |= {each.name: lambda each=each: each.faulty(SHARE) for each in faults() if each.rule in HOST_BOUND}
    modes = MODES | {name: PARTS[name] for name in filter(None, options.parts.split(","))}
    wanted = list(filter(None, options.only.split(",")))
    lines: dict[str, Any] = {}
    for name, program in programs.items():
        if wanted and not any(name.startswith(each) for each in wanted):
            continue
        try:
            lines[name] = costs(program(), QUICK_ROUNDS if options.quick else ROUNDS, modes)
        except ModuleNotFoundError as missing:
            lines[name] = {"skipped": str(missing)}
        print(name, lines[name], file=sys.stderr, flush=True)
    ran = [line["over profile()"] for line in lines.values() if "skipped" not in line]
    rows: dict[str, measure.Row] = {
        row: {"value": max((each[mode] for each in ran), default=0.0), "detail": lines}
        for row, mode in zip(names, ("diagnose", "counters"), strict=True)
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
