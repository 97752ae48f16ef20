# SPDX-License-Identifier: Apache-2.0
"""What an exploration found: points, crossovers, and everything that a reader must know to believe them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpuscope.benchmarking.explore import table
from gpuscope.benchmarking.explore.operations import Operation
from gpuscope.benchmarking.sweeps.crossings import Answer
from gpuscope.results import json_text
from gpuscope.stats import Estimate, Ratio

Side = Literal["cpu", "gpu", "gpu+transfers"]

SCHEMA = 1


@dataclass(frozen=True)
class Point:
    """One operation at one size on one side.

    Attributes:
        operation: its name.
        n: rows and columns of the matrices.
        side: the CPU; the GPU with the data in its memory; or the GPU with the data in the host's memory before and
            after.
        wall: seconds from the call to its completion.
        rate: work per second, in the unit of the operation; of the estimate.
        speedup: the CPU's time over this one, at the same size; None on the CPU.
        converged: whether `wall` is as narrow as was wanted.
    """

    operation: str
    n: int
    side: Side
    wall: Estimate
    rate: float
    speedup: Ratio | None
    converged: bool


@dataclass(frozen=True)
class Crossover:
    """From which size on the GPU is faster than the CPU.

    Attributes:
        operation: the operation's name.
        transfers: whether moving the data counts.
        answer: where the two curves cross, and how certain that is.
    """

    operation: str
    transfers: bool
    answer: Answer

    @property
    def verdict(self) -> str:
        """The answer in words."""
        return f"{'with transfers' if self.transfers else 'data on the GPU'}: {self.answer}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"operation": self.operation, "transfers": self.transfers, **self.answer.to_dict()}


@dataclass(frozen=True)
class Exploration:
    """CPU against GPU over kinds of work and sizes.

    Attributes:
        operations: what was measured, in order.
        points: one per operation, size and side, sorted.
        crossovers: per operation, with the data on the GPU and with transfers; empty without a GPU.
        dtype: of the matrices' numbers.
        cpu: library and processor that computed on the CPU.
        gpu: those of the GPU; None without one.
        why_no_gpu: the reason for that; empty with a GPU.
        remarks: what was left out, and why.
        warnings: what makes figures less certain.
        environment: machine and versions.
        started: when, in seconds since the epoch.
        seconds: how long it took.
        interrupted: whether it was stopped before all was measured.
    """

    operations: tuple[Operation, ...]
    points: tuple[Point, ...]
    crossovers: tuple[Crossover, ...]
    dtype: str
    cpu: str
    gpu: str | None
    why_no_gpu: str
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)
    started: float
    seconds: float
    interrupted: bool

    def curve(self, operation: str, side: Side) -> tuple[Point, ...]:
        """The points of one operation on one side, by size."""
        return tuple(point for point in self.points if (point.operation, point.side) == (operation, side))

    def table(self) -> str:
        """Text: per operation the sizes with times and speed-ups, and the crossover under them."""
        return table.render(self)

    def write_html(self, path: str | os.PathLike[str]) -> None:
        """Writes one page that shows everything and needs nothing but a browser.

        Raises:
            NotAvailable: Plotly is not installed, whose JavaScript becomes a part of the page.
            OSError: the file cannot be written.
        """
        from gpuscope.benchmarking.explore import page

        text = page.render(self)
        Path(path).write_text(text, encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; times are seconds, and what is not known is None."""
        return {
            "schema": SCHEMA,
            "kind": "gpuscope exploration",
            "operations": [_operation(operation) for operation in self.operations],
            "points": [_finite(asdict(point)) for point in self.points],
            "crossovers": [crossover.to_dict() for crossover in self.crossovers],
            **{name: getattr(self, name) for name in ("dtype", "cpu", "gpu", "why_no_gpu", "started", "seconds")},
            "remarks": list(self.remarks),
            "warnings": list(self.warnings),
            "environment": dict(self.environment),
            "interrupted": self.interrupted,
        }

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The same as JSON, also written to `path` if there is one."""
        return json_text(self.to_dict(), path)

    def __str__(self) -> str:
        return self.table()


def _operation(operation: Operation) -> dict[str, Any]:
    return {"name": operation.name, "title": operation.title, "unit": operation.unit}


def _finite(value: Any) -> Any:
    """The value with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
