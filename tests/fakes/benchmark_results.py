# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks that nobody ran, and a `benchmark()` that gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpuscope import stats

H100 = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Canned:
    """What a benchmark will say.

    Attributes:
        seconds: the true time of a call.
        noise: standard deviation of a sample, as a fraction.
        seed: of the noise.
        kernels: (name, count, seconds) per call.
        gpu: None: the machine has none.
    """

    seconds: float = 10e-6
    noise: float = 0.005
    n: int = 200
    seed: int = 0
    quantity: str = "kernel"
    kernels: tuple[tuple[str, float, float], ...] = (("gemm", 1.0, 10e-6),)
    gpu: str | None = H100
    driver: str = "580.65.06"
    power_limit_w: float | None = 700.0
    converged: bool = True
    throttled: float = 0.0
    warnings: tuple[str, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)

    def result(self, value: object, cold: bool) -> Any:
        noise = np.random.default_rng(self.seed).normal(0, self.noise, self.n)
        samples = self.seconds * np.exp(noise)
        measured = {}
        for quantity in (self.quantity, "wall"):
            taken = samples if quantity == self.quantity else samples + 5e-6
            valid = np.ones(self.n, bool)
            measured[quantity] = SimpleNamespace(
                quantity=quantity, samples=taken, valid=valid, estimate=stats.estimate(taken)
            )
        headline = measured[self.quantity].estimate
        return SimpleNamespace(
            quantity=self.quantity,
            quantities=measured,
            absent=self.absent,
            kernels=tuple(SimpleNamespace(name=n, count=c, seconds=s) for n, c, s in self.kernels),
            converged=self.converged,
            stopped="target" if self.converged else "budget",
            warnings=self.warnings,
            cold=cold,
            clock_hz=np.full(self.n, 1.98e9),
            throttled=np.arange(self.n) < self.throttled * self.n,
            environment={"gpu": self.gpu, "driver": self.driver, "power_limit_w": self.power_limit_w}
            if self.gpu
            else {},
            value=value,
            samples=samples,
            median=headline.value,
            ci=(headline.low, headline.high),
        )


class Bench:
    """In place of `gpuscope.benchmark`: calls the function once and gives a canned result.

    Attributes:
        canned: what the next results say; an entry in `of` goes before it.
        of: by the test's name.
        asked: the options of each call.
    """

    def __init__(self) -> None:
        self.canned = Canned()
        self.of: dict[str, Canned] = {}
        self.asked: list[dict[str, Any]] = []

    def now(self, **changes: Any) -> None:
        """Changes what the next results say."""
        self.canned = replace(self.canned, **changes)

    def __call__(self, function: Callable[[], object], **options: Any) -> Any:
        self.asked.append(options)
        return self.of.get(options["name"], self.canned).result(function(), options["cold"])
