# SPDX-License-Identifier: Apache-2.0
"""How often the intervals of gpuscope.stats hold the truth, by simulation. Needs no GPU.

Prints tables: of samples whose true centre is known, the share of intervals that hold it (0.93 to 0.97 is what an
interval of 95 % may show), and its half width relative to the centre. ``--runs`` sets how many runs a figure rests on.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats

TICK = 32e-9
SIZES = (30, 60, 100, 300, 1000)
CORRELATIONS = (0.0, 0.3, 0.6)
TARGET = 0.01
MOST = 5000

Floats = NDArray[np.float64]


def first_order(random: np.random.Generator, rho: float, n: int) -> Floats:
    """A standard normal process of first order."""
    noise = random.normal(size=n)
    if rho == 0:
        return noise
    noise[1:] *= math.sqrt(1 - rho**2)
    state = noise[0]
    for i in range(1, n):
        state = noise[i] = rho * state + noise[i]
    return noise


def ticked(random: np.random.Generator, seconds: Floats) -> Floats:
    """What a clock of ticks says of durations that begin anywhere between two ticks."""
    begin = random.random(len(seconds)) * TICK
    return np.round(np.floor((begin + seconds) / TICK) - np.floor(begin / TICK)) * TICK


def lognormal(random: np.random.Generator, rho: float, n: int, spread: float = 0.05) -> tuple[Floats, float]:
    return np.exp(spread * first_order(random, rho, n)), 1.0


def on_ticks(random: np.random.Generator, rho: float, n: int, jitter: float) -> tuple[Floats, float]:
    """A kernel of 1 to 20 us, its normal jitter given in seconds."""
    true = random.uniform(1e-6, 20e-6)
    return ticked(random, true + jitter * first_order(random, rho, n)), true


def fixed(make: Callable[[float, int], tuple[Floats, float]], tick: float, rho: float, n: int, runs: int) -> str:
    held, widths = 0, []
    for _ in range(runs):
        samples, true = make(rho, n)
        found = stats.estimate(samples, tick=tick)
        held += found.low <= true <= found.high
        widths.append(found.relative_half_width)
    return f"{held / runs:.3f} {100 * float(np.median(widths)):7.3f} %"


def until_narrow(make: Callable[[float, int], tuple[Floats, float]], tick: float, rho: float, runs: int) -> str:
    """Looks at the samples from 30 on, after every tenth more and at least 10, until the interval is narrow."""
    held, sizes = 0, []
    for _ in range(runs):
        samples, true = make(rho, MOST)
        n = 30
        while True:
            found = stats.estimate(samples[:n], tick=tick)
            if found.relative_half_width <= TARGET or n >= MOST:
                break
            n += max(10, n // 10)
        held += found.low <= true <= found.high
        sizes.append(n)
    return f"{held / runs:.3f} {np.mean(sizes):6.0f}   "


def centres(random: np.random.Generator, runs: int) -> None:
    kinds: dict[str, tuple[Callable[[float, int], tuple[Floats, float]], float]] = {
        "5 % lognormal": (lambda rho, n: lognormal(random, rho, n), 0.0)
    }
    for jitter in (0.1e-9, 5e-9, 20e-9, 60e-9, 150e-9):
        kinds[f"32 ns ticks, jitter {jitter * 1e9:g} ns"] = (
            lambda rho, n, jitter=jitter: on_ticks(random, rho, n, jitter),  # type: ignore[misc]
            TICK,
        )
    print("Intervals of the centre: share that hold it, median half width")
    print(f"{'':30}{'rho':5}" + "".join(f"{f'n = {n}':>18}" for n in SIZES))
    for (kind, (make, tick)), rho in itertools.product(kinds.items(), CORRELATIONS):
        row = "".join(f"{fixed(make, tick, rho, n, runs):>18}" for n in SIZES)
        print(f"{kind:30}{rho:<5}{row}", flush=True)
    print(f"\nTaken until the half width is {TARGET:.0%}: share that hold it, mean samples")
    print(f"{'':30}" + "".join(f"{f'rho = {rho}':>18}" for rho in CORRELATIONS))
    stopped: dict[str, tuple[Callable[[float, int], tuple[Floats, float]], float]] = {
        f"{spread:.0%} lognormal": (lambda rho, n, s=spread: lognormal(random, rho, n, s), 0.0)  # type: ignore[misc]
        for spread in (0.02, 0.05)
    }
    for jitter in (5e-9, 60e-9, 150e-9):
        stopped[f"2 us on ticks, jitter {jitter * 1e9:g} ns"] = (
            lambda rho, n, j=jitter: (ticked(random, 2.01e-6 + j * first_order(random, rho, n)), 2.01e-6),  # type: ignore[misc]
            TICK,
        )
    for kind, (make, tick) in stopped.items():
        row = "".join(f"{until_narrow(make, tick, rho, max(runs // 2, 1)):>18}" for rho in CORRELATIONS)
        print(f"{kind:30}{row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs behind each figure")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    centres(np.random.default_rng(options.seed), options.runs)


if __name__ == "__main__":
    main()
