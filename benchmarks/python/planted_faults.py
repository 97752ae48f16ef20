# SPDX-License-Identifier: Apache-2.0
"""Whether diagnose() names faults that were planted in programs, and what it says that mending them is worth.

The programs are those of tests/gpu/faults. Of each share of a step that the fault takes: how often the first finding is
the fault's, and how far the predicted saving is from what the mended program really saves. Of the mended programs: how
often they are said to have a fault. ``--only R09,R15`` runs those; Each program has a line on stderr.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).resolve().parents[2]
SHARES = (0.4, 0.1, 0.03)
ROUNDS = 3
ROWS = ("faults_named", "fault_savings", "false_alarms", "idle_unexplained")
NEAR = 0.2  # of the realised saving


def unexplained(prof: Any) -> float:
    """The share of the GPUs' idle time for which there is no cause."""
    from gpuscope.diagnosis.idle import IdleCause

    devices = prof.step_breakdown().devices
    without = {cause.label for cause in (IdleCause.UNSEEN, IdleCause.NO_WORK_AFTER)}
    unknown = sum(part.exclusive_ns for device in devices for part in device.parts if part.name in without)
    return unknown / max(sum(device.idle_ns for device in devices), 1)


def diagnosed(step: Any) -> tuple[Any, Any, float]:
    """A program's recording, what is found of it, and the seconds that it took to find it."""
    from faults import recorded

    prof = recorded(step)
    began = time.perf_counter()
    return prof, prof.diagnose(), time.perf_counter() - began


def judged(fault: Any, share: float) -> dict[str, Any]:
    """A faulty program beside the mended one."""
    from faults import timed_ms

    faulty, clean = fault.faulty(share), fault.clean(share)
    prof, found, seconds = diagnosed(faulty)
    _, mended, _ = diagnosed(clean)
    times = [(timed_ms(faulty), timed_ms(clean)) for _ in range(ROUNDS)]
    slow_ms, fast_ms = (statistics.median(each) for each in zip(*times, strict=True))
    realised = 1 - fast_ms / slow_ms
    first = found.findings[0] if found.findings else None
    return {
        "share": share,
        "first": [each.id for each in (first, *first.parts)] if first else [],
        "where": str(first.where[0]) if first and first.where else "",
        "others": [each.id for each in found.findings[1:]],
        "predicted": None if first is None or first.saving is None else round(first.saving, 4),
        "is bound": first is not None and first.is_bound,
        "realised": round(realised, 4),
        "ms": [round(slow_ms, 3), round(fast_ms, 3)],
        "of the mended": [each.id for each in mended.findings],
        "s to answer": round(seconds, 3),
        "idle without cause": round(unexplained(prof), 4),
    }


def near(line: dict[str, Any]) -> bool:
    return line["predicted"] is not None and abs(line["predicted"] - line["realised"]) <= NEAR * abs(line["realised"])


def main() -> None:
    options = measure.arguments(__doc__, only="")
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    sys.path.insert(0, str(ROOT / "tests" / "gpu"))
    from faults import faults

    wanted = set(filter(None, options.only.split(",")))
    lines: dict[str, list[dict[str, Any]]] = {}
    for fault in faults():
        if not wanted or fault.rule in wanted:
            lines[fault.name] = [judged(fault, share) for share in (SHARES[:1] if options.quick else SHARES)]
            print(fault.name, *lines[fault.name], sep="\n  ", file=sys.stderr, flush=True)
    every = [(name.split()[0], line) for name, each in lines.items() for line in each]
    named = [rule in line["first"] for rule, line in every]
    right = [near(line) for rule, line in every if rule in line["first"]]
    quiet = [not line["of the mended"] for _, line in every]
    rows: dict[str, measure.Row] = {
        "faults_named": {"value": round(statistics.mean(named), 4), "detail": lines},
        "fault_savings": {"value": round(statistics.mean(right), 4) if right else 0.0},
        "false_alarms": {"value": round(1 - statistics.mean(quiet), 4)},
        "idle_unexplained": {"value": max(line["idle without cause"] for _, line in every)},
    }
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
