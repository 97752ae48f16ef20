# SPDX-License-Identifier: Apache-2.0
"""How often diff() names what did not change, misses what did, and how long it takes. No GPU is needed.

Recordings are made up: 500 kernels of one region, 30 steps of each version, whose times vary from step to step by 2 %,
by 10 %, or in phases of ten steps by 5 % together. Speed is that of two recordings of 1M kernels laid end to end.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).resolve().parents[2]
KERNELS, PAIRS, QUICK_PAIRS = 500, 100, 10
KERNEL_NS = 20_000.0
SLOWER = 1.05
NOISES: dict[str, dict[str, Any]] = {
    "2 %": {"noise": 0.02},
    "10 %": {"noise": 0.1},
    "2 % and phases": {"noise": 0.02, "phases": True},
}
REPEATS = 3
ROWS = ("diff_false", "diff_missed", "diff_1m")


def kernels() -> dict[str, float]:
    """Names that differ by more than a number, which compilers make up."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return {f"kernel_{letters[n // 26]}{letters[n % 26]}": KERNEL_NS for n in range(KERNELS)}


def recorded(times: dict[str, float], seed: int, noise: float, phases: bool = False) -> Any:
    from fakes.versions import version

    levels = random.Random(seed)
    of_phase = [1 + (0.05 * levels.random() if phases else 0.0) for _ in range(4)]
    return version(times, seed=seed, noise=noise, slow_steps=lambda step: of_phase[step // 10])


def judged(pairs: int) -> dict[str, dict[str, Any]]:
    """Of pairs of equals how many have any change; of those with a slower kernel how many name it, and it first."""
    import gpuscope

    found: dict[str, dict[str, Any]] = {}
    for name, how in NOISES.items():
        false = named = first = others = 0
        for pair in range(pairs):
            times = kernels()
            before = recorded(times, 3 * pair, **how)
            false += bool(gpuscope.diff(before, recorded(times, 3 * pair + 1, **how), findings=False).changes)
            culprit = list(times)[pair * 37 % KERNELS]
            times[culprit] *= SLOWER
            changes = gpuscope.diff(before, recorded(times, 3 * pair + 2, **how), findings=False).changes
            named += any(change.name == culprit for change in changes)
            first += bool(changes) and changes[0].name == culprit
            others += sum(change.name != culprit and change.kind == "gpu" for change in changes)
        found[name] = {"pairs": pairs, "false": false, "named": named, "named first": first, "others named": others}
    return found


def seconds() -> dict[str, list[float]]:
    """What two recordings of 1M kernels take, without and with their diagnoses."""
    from diagnoses import end_to_end, gpu_bound, launch_bound

    import gpuscope
    from gpuscope.recording import Recording

    spent: dict[str, list[float]] = {}
    for name, program in (("GPU-bound", gpu_bound), ("launch-bound", launch_bound)):
        store = end_to_end(program(), 1_000_000)
        for what, findings in (("", False), (", with findings", True)):
            for _ in range(REPEATS):
                before, after = Recording(store), Recording(store)
                began = time.perf_counter()
                str(gpuscope.diff(before, after, findings=findings))
                spent.setdefault(name + what, []).append(round(time.perf_counter() - began, 3))
    return spent


def main() -> None:
    options = measure.arguments(__doc__)
    if why := measure.why_not_available():
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    sys.path.insert(0, str(ROOT / "tests"))
    found = judged(QUICK_PAIRS if options.quick else PAIRS)
    rows: dict[str, measure.Row] = {
        "diff_false": {"value": max(each["false"] / each["pairs"] for each in found.values()), "detail": found},
        "diff_missed": {"value": 1 - found["2 %"]["named"] / found["2 %"]["pairs"], "detail": found},
        "diff_1m": {"skipped": "recordings of 1M launches are left out"},
    }
    if not options.quick:
        spent = seconds()
        worst = max(statistics.median(each) for name, each in spent.items() if "findings" not in name)
        rows["diff_1m"] = {"value": worst, "detail": spent}
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
