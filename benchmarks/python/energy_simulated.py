# SPDX-License-Identifier: Apache-2.0
"""How far the energy of regions is from the truth, and how often its interval holds it, by simulation. Needs no GPU.

A GPU whose power is known at every moment, with a counter that goes on each 99.5 ms, whose ticks are known to 5 ms,
and to 9 ms where they are read as seldom as a recording reads them. For each program and region: the root of the mean
square of its error, the worst, the share of runs whose interval of 95 % holds the truth, and half of that interval, as
parts of the truth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from fakes.powered import MS, PoweredGpu, S
from gpuscope.diagnosis.energy import energy


def long_regions(gpu: PoweredGpu) -> None:
    """Regions of a second among idle time."""
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
    """Steps of 9 ms, each of the same kernels: what little differs between ticks is all that tells them apart."""
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
UNREAD: dict[str, Any] = {"every": 0, "tick_error_ns": 9 * MS, "unread_ns": (2 * S, 7 * S)}
VAGUE: dict[str, Any] = {"every": 0, "tick_error_ns": 65 * MS, "jitter_ns": 25 * MS}
MACHINES: dict[str, dict[str, Any]] = {
    "each tick": {},
    "each fifth tick": {"every": 5},
    "powers vary by 10 %": {"varies": 0.1},
    "ticks known to 20 ms": {"tick_error_ns": 20 * MS},
    "ticks off by 20 ms": {"jitter_ns": 20 * MS},
    "ticks uneven by 5 ms": {"uneven_ns": 5 * MS},
    "counter 25 ms behind": {"lag_ns": 25 * MS},
    "counter 100 ms behind": {"lag_ns": 100 * MS},
    "ticks of a recording": {"every": 0, "tick_error_ns": 9 * MS},
    "and uneven by 5 ms": {"every": 0, "tick_error_ns": 9 * MS, "uneven_ns": 5 * MS},
    "recording with means": {"every": 0, "tick_error_ns": 9 * MS, "means_ns": 100 * MS},
    "known to 65 ms": VAGUE,
    "65 ms, and means": {**VAGUE, "means_ns": 100 * MS},
    "none from 2 to 7 s": UNREAD,
    "and means of power": {**UNREAD, "means_ns": 100 * MS},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="recordings behind each row")
    parser.add_argument(
        "--only", default="", help="programs and machines with one of these in their names, with commas"
    )
    options = parser.parse_args()
    print(f"{'program':20}{'machine':22}{'of':16}{'rms':>8}{'worst':>8}{'holds':>8}{'+-':>8}")
    for program, play in PROGRAMS.items():
        for machine, values in MACHINES.items():
            if not any(part in f"{program}, {machine}" for part in options.only.split(",")):
                continue
            errors: dict[str, list[tuple[float, bool, float]]] = {}
            for seed in range(options.runs):
                gpu = PoweredGpu(seed, **values)
                play(gpu)
                found = energy(gpu.trace())[0]
                known = {row.name: (row.energy, gpu.joules(row.name)) for row in found.regions}
                for name, (each, truth) in {"total": (found.total, gpu.joules()), **known}.items():
                    assert each is not None, found.why
                    half = (each.high - each.low) / 2 / truth
                    errors.setdefault(name, []).append((each.joules / truth - 1, each.low <= truth <= each.high, half))
            for name, rows in errors.items():
                off, held, half = np.array(rows, float).T
                shares = f"{(off**2).mean() ** 0.5:8.2%}{np.abs(off).max():8.2%}{held.mean():8.2f}{half.mean():8.2%}"
                print(f"{program:20}{machine:22}{name:16}{shares}", flush=True)


if __name__ == "__main__":
    main()
