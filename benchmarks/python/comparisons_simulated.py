# SPDX-License-Identifier: Apache-2.0
"""How often `compare` is wrong, and how often it finds what is there, by simulation. Needs no GPU.

The functions are models: a call takes its true time with noise, on a clock of 32 ns ticks, and costs 60 us of time that
passes in the model only. Prints, for pairs that differ as stated, how often each verdict came, and when.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from gpuscope.benchmarking.engine import Engine
from gpuscope.benchmarking.samples import Samples
from gpuscope.benchmarking.stopping import WarmUp

TICK = 32e-9
BUDGET = 1.0


@dataclass(frozen=True)
class Model:
    """A pair of functions: their times, and what makes them vary (fractions).

    Attributes:
        a: seconds a call of the first takes.
        b: of the second.
        noise: of each call.
        memory: how strongly each call's noise follows that of the call before it.
        drift: over a second, upwards.
        steps: a second state of the clock, that much slower, comes and goes with about 10 ms in each.
        tails: every hundredth call takes ten times as long.
        cost: seconds a sample takes beyond the call.
    """

    a: float
    b: float
    noise: float = 0.005
    memory: float = 0.0
    drift: float = 0.0
    steps: float = 0.0
    tails: bool = False
    cost: float = 40e-6


class ModelEngine:
    """As `gpuscope.benchmarking.engine.Engine`, of a model."""

    on_gpu, device_name, tick = True, "a model", TICK
    headline = Engine.headline

    def __init__(self, model: Model, random: np.random.Generator) -> None:
        self.model, self.random, self.now = model, random, 0.0
        self.absent: dict[str, str] = {}
        self._noise, self._slow = 0.0, False

    def __enter__(self) -> ModelEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def prepare(self) -> None:
        return

    def warm_up(self, seconds: float) -> WarmUp:
        self.now += 0.03
        return WarmUp(True, 0.03, 100)

    def sample(self, quantity: str, order: NDArray[np.uint32]) -> Samples:
        model, random, n = self.model, self.random, len(order)
        true = np.where(order == 0, model.a, model.b)
        when = self.now + np.cumsum(true + model.cost)
        noise = random.normal(size=n)
        if model.memory:
            for i in range(n):
                self._noise = model.memory * self._noise + math.sqrt(1 - model.memory**2) * noise[i]
                noise[i] = self._noise
        factor = 1 + model.noise * noise + model.drift * when
        if model.steps:
            switches = random.random(n) < (true + model.cost) / 0.01
            slow = np.logical_xor.accumulate(np.concatenate([[self._slow], switches]))[1:]
            self._slow = bool(slow[-1])
            factor += model.steps * slow
        if model.tails:
            factor = np.where(random.random(n) < 0.01, 10.0, factor)
        seconds = true * factor
        begin = random.random(n) * TICK
        seconds = np.round(np.floor((begin + seconds) / TICK) - np.floor(begin / TICK)) * TICK
        self.now = float(when[-1])
        ones = np.ones(n, bool)
        return Samples(order, {"kernel": seconds}, np.full(n, np.nan), ~ones, ones)  # type: ignore[dict-item]


def compared(model: Model, random: np.random.Generator, **options: Any) -> Any:
    """One comparison of a model."""
    module = importlib.import_module("gpuscope.benchmarking.comparison")
    engine = ModelEngine(model, random)
    call: Callable[[], object] = functools.partial(int)
    with (
        mock.patch.object(module, "Engine", return_value=engine),
        mock.patch("gpuscope.benchmarking.stopping.now", side_effect=lambda: engine.now),
    ):
        return module.compare(call, call, seed=int(random.integers(2**32)), **{"budget": BUDGET, **options})


MODELS = {
    "20 us": Model(20e-6, 20e-6),
    "20 us, noise with memory 0.6": Model(20e-6, 20e-6, memory=0.6),
    "20 us, 2 % drift": Model(20e-6, 20e-6, drift=0.02),
    "20 us, clock steps of 1.5 %": Model(20e-6, 20e-6, steps=0.015),
    "20 us, tails": Model(20e-6, 20e-6, tails=True),
    "20 us, noise 5 %": Model(20e-6, 20e-6, noise=0.05),
    "2 us, below a tick": Model(2.01e-6, 2.01e-6, noise=0.0005),
    "1 ms": Model(1e-3, 1e-3, noise=0.01),
    "10 ms": Model(10e-3, 10e-3, noise=0.01),
}
# How much longer b takes, and the margin. Without a margin to speak of, and at its edge, noise alone decides.
CASES = ((1.0, 0.0001), (1.0, 0.01), (1.01, 0.01), (1.02, 0.01), (0.9, 0.01))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="comparisons behind each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", default="", help="only those whose name holds this")
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    print(
        f"{'model':32}{'b / a':>8}{'margin':>8}{'faster':>9}{'slower':>9}{'same':>9}"
        f"{'unsure':>9}{'in 95 %':>9}{'seconds':>9}"
    )
    for (name, model), (ratio, margin) in itertools.product(MODELS.items(), CASES):
        if options.models not in name:
            continue
        pair = Model(**{**vars(model), "b": model.a * ratio})
        found = [compared(pair, random, margin=margin) for _ in range(options.runs)]
        counts = collections.Counter(one.verdict for one in found)
        shares = [counts[verdict] / len(found) for verdict in ("faster", "slower", "same", "inconclusive")]
        held = sum(one.ratio.low <= ratio <= one.ratio.high for one in found) / len(found)
        seconds = float(np.mean([one.seconds for one in found]))
        row = "".join(f"{share:9.3f}" for share in (*shares, held, seconds))
        print(f"{name:32}{ratio:8.3f}{margin:8.4f}{row}", flush=True)


if __name__ == "__main__":
    main()
