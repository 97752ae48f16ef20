# SPDX-License-Identifier: Apache-2.0
"""What a measurement of throughput returns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.results import json_text

SCHEMA = 1

_LIMITS = {
    "loader": "the loader limits",
    "gpu": "the GPU limits",
    "step": "the step limits",
}


@dataclass(frozen=True)
class Throughput:
    """What a loader and a step got through. ``float(throughput)`` is samples a second, and so are formats as ``:.2f``.

    Attributes:
        samples_per_second: samples over time, all batches together.
        samples_per_second_ci: its 95 % interval; None of fewer than 10 batches.
        batches_per_second: batches over time.
        seconds_per_batch: time over batches.
        seconds_per_batch_ci: its 95 % interval; None of fewer than 10 batches.
        batches: batches measured.
        samples: samples in them.
        seconds: time they took, the last one's GPU work included.
        wait_seconds: of it, time in which the host waited for the loader.
        wait_share: `wait_seconds` over `seconds`.
        gpu_idle_share: share of the time in which the GPU had no step to work on; None without a GPU.
        limit: "loader"; "gpu", which had work queued at most times; or "step", held up by the host or without a GPU.
        warnings: what a reader should know, a sentence each.
    """

    samples_per_second: float
    samples_per_second_ci: tuple[float, float] | None
    batches_per_second: float
    seconds_per_batch: float
    seconds_per_batch_ci: tuple[float, float] | None
    batches: int
    samples: int
    seconds: float
    wait_seconds: float
    wait_share: float
    gpu_idle_share: float | None
    limit: str
    warnings: tuple[str, ...]

    def __float__(self) -> float:
        return self.samples_per_second

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def __str__(self) -> str:
        interval = self.samples_per_second_ci
        rate = f"Throughput: {self.samples_per_second:.2f} samples/sec"
        rate += f" (95 %: {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        a_batch = f"time per batch: {1000 * self.seconds_per_batch:.2f} ms"
        wait = f"{1000 * self.wait_seconds / self.batches:.2f} ms of it waiting for data"
        idle = "" if self.gpu_idle_share is None else f", GPU idle {self.gpu_idle_share:.0%}"
        remarks = "".join(f"; {text}" for text in self.warnings)
        return f"{rate}, {a_batch}, {wait}{idle}: {_LIMITS[self.limit]} ({self.batches} batches{remarks})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; times in seconds."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"schema": SCHEMA} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def to_json(self, path: str | Path | None = None) -> str:
        """The text of ``to_dict``; also written to `path` when one is given."""
        return json_text(self.to_dict(), path)
