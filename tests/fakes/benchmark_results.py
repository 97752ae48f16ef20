# SPDX-License-Identifier: Apache-2.0
"""Results of benchmarks that nobody ran, and a `benchmark()` that gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscope import stats
from gpuscope.benchmarking.comparison import Comparison
from gpuscope.benchmarking.kernel_times import Kernel
from gpuscope.benchmarking.result import BenchmarkResult, Measured
from gpuscope.figures import Distribution

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
        interrupted: by Ctrl-C.
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
    calls_per_sample: int = 1
    interrupted: bool = False

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
            stopped="interrupted" if self.interrupted else "precision" if self.converged else "budget",
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
            calls_per_sample=self.calls_per_sample,
        )

    def comparison(self, slower: float, names: tuple[str, str] | None, margin: float) -> Comparison:
        """Of a function with `seconds` and of another that takes `slower` times as long."""
        a = self.result(None, True).samples
        ratio = stats.Ratio(slower, slower * 0.999, slower * 1.001, 50, 0.01)
        kernels = tuple(Kernel(*kernel) for kernel in self.kernels)
        return Comparison(
            verdict="slower" if slower > 1 + margin else "same",
            ratio=ratio,
            margin=margin,
            null=stats.Ratio(1.0, 0.999, 1.001, 50, 0.9),
            quantity=self.quantity,
            a=Distribution(a),
            b=Distribution(a * slower),
            blocks=50,
            names=names or ("a", "b"),
            kernels=(kernels, kernels),
            warnings=self.warnings,
            stopped="interrupted" if self.interrupted else "verdict",
            seconds=0.5,
            calls_per_sample=self.calls_per_sample,
        )


def _measured(quantity: str, samples: NDArray[np.float64]) -> Measured:
    return Measured(quantity, samples, np.ones(len(samples), bool), stats.estimate(samples))


class Bench:
    """In place of `benchmark`: calls the function once and gives a canned result.

    Attributes:
        canned: what the next results say; an entry in `of` goes before it.
        of: by the test's name.
        asked: the options of each call.
        slower: how much slower the second function of a comparison is.
    """

    def __init__(self) -> None:
        self.canned = Canned()
        self.of: dict[str, Canned] = {}
        self.asked: list[dict[str, Any]] = []
        self.slower = 1.0

    def now(self, **changes: Any) -> None:
        """Changes what the next results say."""
        self.canned = replace(self.canned, **changes)

    def __call__(self, function: Callable[[], object], **options: Any) -> BenchmarkResult:
        self.asked.append(options)
        return self.of.get(options["name"], self.canned).result(function(), options["cold"])

    def compare(self, a: Callable[[], object], b: Callable[[], object], **options: Any) -> Comparison:
        """In place of `compare`."""
        self.asked.append(options)
        a()
        b()
        return self.canned.comparison(self.slower, options["names"], options["margin"])
