# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of data loaders return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscope.results import Distribution, json_text

SCHEMA = 1


@dataclass(frozen=True, eq=False)
class DataLoaderResult(Mapping[str, float]):
    """Times of a loader's batches. As a mapping it has avg_batch_time_ms, batches_per_second and the like.

    Attributes:
        times: seconds of each batch, without those below.
        first_batch: seconds of the very first one, with the start of the workers.
        epoch_starts: seconds of the first batch of each later epoch; empty when one epoch sufficed.
        workers: worker processes; None when the loader does not say.
        warnings: what a reader should know, a sentence each.
    """

    times: Distribution
    first_batch: float
    epoch_starts: tuple[float, ...]
    workers: int | None
    warnings: tuple[str, ...]
    _figures: Mapping[str, float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        times = self.times
        figures = {
            "avg_batch_time_ms": times.mean * 1000,
            "batches_per_second": 1 / times.mean if times.mean else float("inf"),
            "slowest_batch_ms": times.max * 1000,
            "fastest_batch_ms": times.min * 1000,
            "p50_batch_ms": times.p50 * 1000,
            "p90_batch_ms": times.p90 * 1000,
            "p95_batch_ms": times.p95 * 1000,
            "p99_batch_ms": times.p99 * 1000,
            "first_batch_ms": self.first_batch * 1000,
        }
        object.__setattr__(self, "_figures", figures)

    def __getitem__(self, name: str) -> float:
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def idle_share(self, step_ms: float) -> float:
        """Share of the time in which a GPU whose step takes `step_ms` waits for this loader.

        The loader works while the GPU does: a step of 20 ms on batches of 45 ms leaves it idle for 25 of 45 ms.
        """
        return max(0.0, 1 - step_ms / self["avg_batch_time_ms"])

    @property
    def row(self) -> str:
        """One line, as "workers= 4:    9.3ms/batch, 107.5 batches/sec"."""
        label = "" if self.workers is None else f"workers={self.workers:2d}: "
        return f"{label}{self['avg_batch_time_ms']:6.1f}ms/batch, {self['batches_per_second']:.1f} batches/sec"

    def __str__(self) -> str:
        figures = self._figures
        spread = ", ".join(f"{name} {figures[f'{name}_batch_ms']:.2f}" for name in ("fastest", "p50", "p95", "slowest"))
        lines = [self.row, f"{len(self.times)} batches, ms: {spread}; first batch {figures['first_batch_ms']:.1f}"]
        return "\n".join([*lines, *self.warnings])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the mapping in milliseconds, `times` in seconds."""
        return {
            "schema": SCHEMA,
            **self._figures,
            "workers": self.workers,
            "times": self.times.to_dict(),
            "epoch_starts": list(self.epoch_starts),
            "warnings": list(self.warnings),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The text of ``to_dict``; also written to `path` when one is given."""
        return json_text(self.to_dict(), path)


@dataclass(frozen=True, eq=False)
class DataLoaderWorkers:
    """A loader with several counts of workers. ``str(...)`` is the table and the advice.

    Attributes:
        results: by worker count, in the order asked for.
        recommended: the smallest count that is fast enough.
        why: what makes it so.
        warnings: what a reader should know, a sentence each.
    """

    results: Mapping[int, DataLoaderResult]
    recommended: int
    why: str
    warnings: tuple[str, ...]

    def __getitem__(self, workers: int) -> DataLoaderResult:
        return self.results[workers]

    def __iter__(self) -> Iterator[DataLoaderResult]:
        return iter(self.results.values())

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        rows = [result.row for result in self]
        return "\n".join([*rows, f"recommended: num_workers={self.recommended}: {self.why}", *self.warnings])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "schema": SCHEMA,
            "results": [result.to_dict() for result in self],
            "recommended": self.recommended,
            "why": self.why,
            "warnings": list(self.warnings),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The text of ``to_dict``; also written to `path` when one is given."""
        return json_text(self.to_dict(), path)
