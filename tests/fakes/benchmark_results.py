# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks that nobody ran, and a `benchmark()` that gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmark.kernel_times import Kernel
from gpuscope.benchmark.result import BenchmarkResult, Measured

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

    def result(self, value: object, cold: bool) -> BenchmarkResult:
        noise = np.random.default_rng(self.seed).normal(0, self.noise, self.n)
        samples = self.seconds * np.exp(noise)
        return BenchmarkResult(
            name="canned",
            quantity=self.quantity,
            quantities={"wall": _measured("wall", samples + 5e-6), self.quantity: _measured(self.quantity, samples)},
            absent=self.absent,
            kernels=tuple(Kernel(*kernel) for kernel in self.kernels),
            converged=self.converged,
            stopped="target" if self.converged else "budget",
            warnings=self.warnings,
            cold=cold,
            clock_hz=np.full(self.n, 1.98e9),
            throttled=np.arange(self.n) < self.throttled * self.n,
            bytes=None,
            flops=None,
            rates=(),
            environment={"gpu": self.gpu, "driver": self.driver, "power_limit_w": self.power_limit_w},
            seconds=0.5,
            value=value,
        )


def _measured(quantity: str, samples: NDArray[np.float64]) -> Measured:
    return Measured(quantity, samples, np.ones(len(samples), bool), stats.estimate(samples))


class Bench:
    """In place of `benchmark`: calls the function once and gives a canned result.

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

    def __call__(self, function: Callable[[], object], **options: Any) -> BenchmarkResult:
        self.asked.append(options)
        return self.of.get(options["name"], self.canned).result(function(), options["cold"])
