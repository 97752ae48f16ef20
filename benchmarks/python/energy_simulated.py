# SPDX-License-Identifier: Apache-2.0
"""How far the energy of regions is from the truth, and how often its interval holds it, by simulation. Needs no GPU.

The power of the GPU is known at every moment. Its counter steps every 100 ms and is read every second. The detail has,
for each program and region, relative to the truth: the root mean square of the error, the worst error, and half of the
95 % interval; and the share of runs whose interval contains the truth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from fakes.powered import MS, PoweredGpu
from gpuscope.costs.energy import energy


def long_regions(gpu: PoweredGpu) -> None:
    """Three turns of regions of a second among idle time."""
    for _ in range(3):
        for name, watts, ms in (("big", 620, 10), ("small", 300, 5)):
            gpu.idle(int(gpu.random.integers(200, 700)) * MS)
            for _ in range(1000 // ms):
                gpu.run(name, ms * MS, watts, name)
    gpu.idle(300 * MS)


def short_regions(gpu: PoweredGpu) -> None:
    """200 regions of 5 ms among other work and idle time."""
    for _ in range(200):
        gpu.run("gemm", 5 * MS, 600, "short")
        gpu.run("norm", int(gpu.random.integers(2, 20)) * MS, 300, "other")
        gpu.idle(int(gpu.random.integers(1, 20)) * MS)


def training(gpu: PoweredGpu) -> None:
    """Steps of 9 ms, each of the same kernels: only small differences between readings separate them."""
    for _ in range(1000):
        gpu.run("gemm", 3 * MS, 600, "train/forward")
        gpu.run("norm", 2 * MS, 350, "train/backward")
        gpu.run("gemm", 1 * MS, 600, "train/backward")
        gpu.idle(int(gpu.random.integers(1, 6)) * MS)


def bursts(gpu: PoweredGpu) -> None:
    """200 regions of 5 ms of a product that has more power in turns than where it runs on and on, at the limit."""
    gpu.idle(700 * MS)
    for _ in range(30):
        gpu.run("pause", 50 * MS, 126)
    for _ in range(850):
        gpu.run("gemm", 2 * MS, 700, "steady")
    for _ in range(200):
        gpu.run("gemm", 5 * MS, 990, "burst")
        gpu.run("pause", int(gpu.random.integers(2, 20)) * MS, 126)
    gpu.idle(400 * MS)


def turns(gpu: PoweredGpu) -> None:
    """Some kernels on and on, then two of them in turns with a kernel that waits, which draws nothing.

    The product is held back by the limit of power where it runs on and on.
    """
    gpu.idle(700 * MS)
    for _ in range(30):
        gpu.run("pause", 50 * MS, 126, "pause")
    for name, watts, ns in (("copy", 385, 360_000), ("fma", 260, 2 * MS), ("product", 718, 100_000)):
        for region, ms in (("", 400), (name, 1200), ("", 300)):
            for _ in range(ms * MS // ns):
                gpu.run(name, ns, watts, region)
    for name, watts in (("copy", 387), ("product", 960)):
        for _ in range(200):
            gpu.run(name, 5 * MS, watts, f"{name}, 5 ms")
            gpu.run("pause", int(gpu.random.integers(2, 20)) * MS, 126)
    gpu.idle(400 * MS)


PROGRAMS: dict[str, Callable[[PoweredGpu], None]] = {
    "1 s regions": long_regions,
    "200 x 5 ms regions": short_regions,
    "1000 equal steps": training,
    "bursts": bursts,
    "turns": turns,
}
MACHINES: dict[str, dict[str, Any]] = {
    "99.5 ms": {},
    "100 ms": {"step_ns": 100 * MS},
    "100 ms behind": {"lag_ns": 100 * MS},
    "uneven by 8 ms": {"uneven_ns": 8 * MS},
    "powers vary by 10 %": {"varies": 0.1},
    "recordings of earlier versions": {"read_ns": 0},
}
OF_A_SECOND = ("total", "big", "small", "steady", "copy", "fma", "product")  # the others come in pieces of 5 ms
RUNS, QUICK_RUNS = 40, 10


def judge(play: Callable[[PoweredGpu], None], options: dict[str, Any], runs: int) -> dict[str, Any]:
    """By region: rms and worst error, share of intervals that hold the truth, and their half width."""
    rows: dict[str, list[tuple[float, bool, float]]] = {}
    for seed in range(runs):
        gpu = PoweredGpu(seed, **options)
        play(gpu)
        found = energy(gpu.trace())[0]
        known = {row.name: (row.energy, gpu.joules(row.name)) for row in found.regions}
        for name, (each, truth) in {"total": (found.total, gpu.joules()), **known}.items():
            assert each is not None, found.why
            half = (each.high - each.low) / 2 / truth
            rows.setdefault(name, []).append((each.joules / truth - 1, each.low <= truth <= each.high, half))
    judged = {}
    for name, values in rows.items():
        off, held, half = np.array(values, float).T
        figures = (off**2).mean() ** 0.5, np.abs(off).max(), held.mean(), half.mean()
        judged[name] = dict(
            zip(("rms", "worst", "held", "half"), (round(float(each), 4) for each in figures), strict=True)
        )
    return judged


def main() -> None:
    options = measure.arguments(__doc__, runs=RUNS)
    runs = QUICK_RUNS if options.quick else options.runs
    detail = {
        f"{program}, {machine}": judge(play, values, runs)
        for program, play in PROGRAMS.items()
        for machine, values in MACHINES.items()
    }
    regions = [(name, row) for case in detail.values() for name, row in case.items()]
    worst = max(row["rms"] for name, row in regions if name in OF_A_SECOND)
    missed = round(1 - float(np.mean([row["held"] for _, row in regions])), 4)
    rows = {"energy_simulated": {"value": worst, "detail": detail}, "energy_interval": {"value": missed}}
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
