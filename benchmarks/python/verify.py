# SPDX-License-Identifier: Apache-2.0
"""How often `gpuscope verify` rejects an unchanged program, and misses one that is 5 % slower. No GPU is needed.

Recordings are made up: a step of five kernels whose times vary by 2 % from step to step. Whole runs vary as well: by
1 % or 2 % each, in phases of the machine of up to 5 % that last for some runs, or with one run in ten that is
disturbed by 10 %. With --real 1, programs of the CPU are recorded too, unchanged, in both forms.
"""

from __future__ import annotations

import functools
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import measure

ROOT = Path(__file__).resolve().parents[2]
CASES, QUICK_CASES = 50, 5  # of each noise
SLOWER = 1.05
SEEDS = 8  # of the noise of steps
KERNELS = {f"kernel_{letter}": 100_000.0 for letter in "abcde"}
WHATS = ("unchanged, pairs", "unchanged, runs", "5 % slower, pairs")
ROWS = ("verify_false", "verify_missed")
REAL_RUNS = 32
PROGRAMS = {
    "pure Python": "sum(i * i for i in range(20_000))",
    "sorting": "sorted(str(i) for i in range(8_000))",
    "NumPy": "float((np.ones((300, 300)) @ np.ones((300, 300))).sum())",
}
SOURCE = """
import numpy as np
import gpuscope as gs
for _ in range(40):
    with gs.record_function("forward"):
        {line}
    gs.step()
"""

Level = Callable[[random.Random, int], float]


def of_runs(spread: float) -> Level:
    """Runs that vary by themselves."""
    return lambda levels, run: levels.gauss(1, spread)


def in_phases(levels: random.Random, run: int) -> float:
    """Phases of the machine, of seven runs each, over runs that vary by 1 %."""
    phase = random.Random(f"{levels.phases} {run // 7}").uniform(1, 1.05)  # type: ignore[attr-defined]
    return phase * levels.gauss(1, 0.01)


def disturbed(levels: random.Random, run: int) -> float:
    """One run in ten takes 10 % longer."""
    return levels.gauss(1, 0.01) * (1.1 if levels.random() < 0.1 else 1)


NOISES: dict[str, Level] = {
    "runs 1 %": of_runs(0.01),
    "runs 2 %": of_runs(0.02),
    "phases": in_phases,
    "disturbed": disturbed,
}


@functools.cache
def recorded(level: float, seed: int) -> Any:
    from fakes.versions import version

    return version({name: ns * level for name, ns in KERNELS.items()}, seed=seed, steps=20)


def verdict(case: int, noise: Level, factor: float, pairs: bool) -> str:
    """The verdict on one change, as the command finds it."""
    from gpuscope.diffing.verifying import INCONCLUSIVE, PAIRS, RUNS, looks, verify

    levels = random.Random(case)
    levels.phases = case  # type: ignore[attr-defined]
    sides: tuple[list[Any], list[Any]] = ([], [])
    for count in looks(PAIRS) if pairs else (RUNS,):
        for number in range(len(sides[1]), count):
            for place, side in enumerate((0, 1) if number % 2 else (1, 0)):
                if number and not (side or pairs):
                    continue
                run = 2 * number + place
                level = noise(levels, run) * (factor if side else 1.0)
                sides[side].append(recorded(round(level, 3), levels.randrange(SEEDS)))
        found = verify(*sides, pairs=pairs).verdict
        if found != INCONCLUSIVE:
            break
    return found


def simulated(cases: int) -> dict[str, dict[str, dict[str, int]]]:
    """Verdicts of each noise: unchanged, in pairs and single, and 5 % slower in pairs."""
    with ProcessPoolExecutor() as pool:
        return dict(zip(NOISES, pool.map(of_noise, NOISES, [cases] * len(NOISES)), strict=True))


def of_noise(name: str, cases: int) -> dict[str, dict[str, int]]:
    return {
        what: dict(Counter(verdict(case, NOISES[name], factor, pairs) for case in range(cases)))
        for what, factor, pairs in zip(WHATS, (1.0, 1.0, SLOWER), (True, False, True), strict=True)
    }


def real() -> dict[str, dict[str, dict[str, int]]]:
    """Verdicts on programs of the CPU that did not change, by runs next to each other."""
    from gpuscope.diffing.verifying import RUNS, verify
    from gpuscope.recording import load

    found: dict[str, dict[str, dict[str, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, line) in enumerate(PROGRAMS.items()):
            script = Path(folder, f"program{number}.py")
            script.write_text(SOURCE.format(line=line), encoding="utf-8")
            runs = []
            for run in range(REAL_RUNS):
                path = Path(folder, f"{number}-{run}.gscope")
                command = [sys.executable, "-m", "gpuscope", "run", "-o", str(path), str(script)]
                subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
                runs.append(load(path))
            pairs = [verify(runs[at : at + 20 : 2], runs[at + 1 : at + 20 : 2], pairs=True) for at in (0, 6, 12)]
            single = [verify([runs[at]], runs[at + 1 : at + 1 + RUNS]) for at in range(REAL_RUNS - RUNS)]
            found[name] = {
                "unchanged, pairs": dict(Counter(each.verdict for each in pairs)),
                "unchanged, runs": dict(Counter(each.verdict for each in single)),
            }
    return found


def main() -> None:
    options = measure.arguments(__doc__, real=0)
    if why := measure.why_not_available():
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    sys.path.insert(0, str(ROOT / "tests"))
    cases = QUICK_CASES if options.quick else CASES
    found = simulated(cases)
    of_all = len(NOISES) * cases
    false = [sum(each[what].get("reject", 0) for each in found.values()) / of_all for what in WHATS[:2]]
    missed = 1 - sum(each[WHATS[2]].get("reject", 0) for each in found.values()) / of_all
    detail = {"cases of each noise": cases, "simulated": found, "real": real() if options.real else {}}
    measure.answer(
        {"rows": {"verify_false": {"value": max(false), "detail": detail}, "verify_missed": {"value": missed}}}
    )


if __name__ == "__main__":
    main()
