# SPDX-License-Identifier: Apache-2.0
"""One test's result as the plain values that go into pytest-benchmark's files, and that the gate compares."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.pytest_plugin.replay import thinned
from gpuscope.results import plain_values

if TYPE_CHECKING:
    from gpuscope.benchmarking.comparison import Comparison
    from gpuscope.benchmarking.result import BenchmarkResult
    from gpuscope.pytest_plugin.options import BenchmarkOptions
    from gpuscope.stats import Estimate

MOST_STORED = 2000  # samples; ten times what an estimate usually takes


@dataclass(frozen=True)
class Measured:
    """The measurement of one test.

    Attributes:
        facts: of JSON's types; times in seconds. Unknown facts are None.
        samples: seconds, in the order taken, without those whose record was incomplete.
        margin: how much slower than its baseline, as a fraction, the test may become.
        on_cpu: why there is no GPU time; empty if there is, or if the reason is unknown.
    """

    facts: dict[str, Any]
    samples: list[float]
    margin: float
    on_cpu: str = ""

    @staticmethod
    def of(result: BenchmarkResult, options: BenchmarkOptions) -> Measured:
        """The values of a result; ``options.quantity`` is None or one of ``result.quantities``."""
        quantity = options.quantity or result.quantity
        measured = result.quantities[quantity]
        # Measuring ended when the headline was precise; other quantities may not be.
        precise = result.converged if quantity == result.quantity else _precise(measured.estimate, options)
        environment = result.environment
        clock = [float(hz) for hz in result.clock_hz if math.isfinite(hz)]
        facts = {
            "quantity": quantity,
            "cold": result.cold,
            **_estimate(measured.estimate),
            "calls_per_sample": result.calls_per_sample if quantity == result.quantity else 1,
            "converged": precise,
            "stopped": result.stopped,
            "throttled": float(result.throttled.mean()) if len(result.throttled) else 0.0,
            "clock_hz": sorted(clock)[len(clock) // 2] if clock else None,
            "gpu": environment.get("gpu"),
            "driver": environment.get("driver"),
            "power_limit_w": environment.get("power_limit_w"),
            "conditions": plain_values(result.conditions),
            "kernels": [asdict(kernel) for kernel in result.kernels],
            "warnings": list(result.warnings),
        }
        on_cpu = "" if environment.get("gpu") else result.absent.get("kernel", "no GPU")
        return Measured(facts, [float(sample) for sample in measured.samples[measured.valid]], options.margin, on_cpu)

    @staticmethod
    def of_comparison(comparison: Comparison, options: BenchmarkOptions) -> Measured:
        """The values of the second function of a comparison, with those of the first."""
        from gpuscope import streams
        from gpuscope.stats import estimate
        from gpuscope.system import environment

        machine = environment()
        gpu = machine.devices[streams.resolve(options.stream).device].name if machine.devices else None
        found = estimate(comparison.b.samples)
        facts = {
            "quantity": comparison.quantity,
            "cold": options.cold,
            **_estimate(found),
            "calls_per_sample": comparison.calls_per_sample,
            "converged": comparison.stopped in ("verdict", "precision"),
            "stopped": comparison.stopped,
            "throttled": 0.0,  # warnings report throttling
            "clock_hz": None,
            "gpu": gpu,
            "driver": machine.driver_version if gpu else None,
            "power_limit_w": None,
            "conditions": plain_values(comparison.conditions),
            "kernels": [asdict(kernel) for kernel in comparison.kernels[1]] if len(comparison.kernels) == 2 else [],
            "warnings": list(comparison.warnings),
            "comparison": {
                "text": str(comparison),
                "names": list(comparison.names),
                "verdict": comparison.verdict,
                "ratio": comparison.ratio.value,
                "ci": [_finite(comparison.ratio.low), _finite(comparison.ratio.high)],
                "margin": comparison.margin,
                "samples": thinned([float(sample) for sample in comparison.a.samples], MOST_STORED),
            },
        }
        return Measured(facts, [float(sample) for sample in comparison.b.samples], options.margin)

    def stored(self) -> dict[str, Any]:
        """The facts together with samples, for a file."""
        return {**self.facts, "samples": thinned(self.samples, MOST_STORED)}


def _estimate(estimate: Estimate) -> dict[str, Any]:
    return {
        "estimate": estimate.value,
        "ci": [_finite(estimate.low), _finite(estimate.high)],
        "confidence": estimate.confidence,
        "method": estimate.method,
        "n": estimate.n,
        "n_eff": estimate.n_eff,
    }


def _precise(estimate: Estimate, options: BenchmarkOptions) -> bool:
    return estimate.relative_half_width <= options.precision


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
