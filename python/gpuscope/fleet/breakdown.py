# SPDX-License-Identifier: Apache-2.0
"""What the steps of all ranks of a job consist of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.errors import NotAvailable
from gpuscope.fleet.tables import Columns, of_ranks
from gpuscope.results import Result
from gpuscope.tables import align_columns
from gpuscope.units import format_seconds, format_share

_NS = 1e9
PARTS = {
    "compute": "compute_ns",
    "exposed communication": "exposed_ns",
    "exposed copies": "copy_ns",
    "idle": "idle_ns",
}


@dataclass(frozen=True, repr=False)
class JobBreakdown(Result):
    """What the steps of all ranks consist of; printing it shows a table.

    Attributes:
        ranks: number of ranks with steps.
        expected: number of ranks of the job.
        steps: number of steps.
        step_s: mean duration of a step.
        shares: of the time of steps, by "compute", "exposed communication", "exposed copies" and "idle".
        communication: share of the time with communication, exposed or not.
        overlap: share of the communication that runs beside compute; None without communication.
        extremes: by part, the ranks with the smallest and with the largest share, and these shares.
    """

    ranks: int
    expected: int
    steps: int
    step_s: float
    shares: Mapping[str, float]
    communication: float
    overlap: float | None
    extremes: Mapping[str, tuple[int, float, int, float]]

    def to_dict(self) -> dict[str, Any]:
        """Seconds and shares."""
        return {
            "ranks": self.ranks,
            "expected": self.expected,
            "steps": self.steps,
            "step_s": self.step_s,
            "shares": dict(self.shares),
            "communication": self.communication,
            "overlap": self.overlap,
            "extremes": {
                part: {"least_rank": least, "least": low, "most_rank": most, "most": high}
                for part, (least, low, most, high) in self.extremes.items()
            },
        }

    def _frame_rows(self) -> list[Mapping[str, Any]]:
        """One row per part."""
        return [{"part": part, "share": share} for part, share in self.shares.items()]

    @property
    def has_gpu_work(self) -> bool:
        """Whether any GPU was busy in the steps."""
        return self.shares["idle"] < 1

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("a step", "of the time", "least", "most")]
        for part, share in self.shares.items():
            least, low, most, high = self.extremes[part]
            ends = (f"{format_share(each)} (rank {rank})" for rank, each in ((least, low), (most, high)))
            rows.append((part, format_share(share), *ends))
        of = f"{of_ranks(self.ranks, self.expected)}, " if self.ranks < self.expected else ""
        head = f"{of}{self.steps:,} steps of {format_seconds(self.step_s)}"
        if not self.has_gpu_work:
            return f"{head}; no GPU work was recorded"
        lines = [head, *align_columns(rows, left=1, rule=True)]
        if self.overlap is not None:
            lines.append(f"{format_share(self.overlap)} of the communication runs beside compute")
        return "\n".join(lines)


def break_down(step: Columns, expected: int = 0) -> JobBreakdown:
    """The breakdown of the table ``step`` of a job that has this many ranks.

    Raises:
        NotAvailable: no rank has a step.
    """
    total = float(step["duration_ns"].sum())
    if not total:
        raise NotAvailable("the breakdown is not available: no rank has a step; call prof.step() once per step")
    ranks, row = np.unique(step["rank"], return_inverse=True)
    of_rank = np.maximum(np.bincount(row, step["duration_ns"]), 1)
    extremes = {}
    for part, column in PARTS.items():
        shares = np.bincount(row, step[column]) / of_rank
        least, most = int(shares.argmin()), int(shares.argmax())
        extremes[part] = int(ranks[least]), float(shares[least]), int(ranks[most]), float(shares[most])
    communication = float(step["communication_ns"].sum())
    return JobBreakdown(
        ranks=len(ranks),
        expected=max(expected, len(ranks)),
        steps=len(np.unique(step["step"])),
        step_s=float(step["duration_ns"].mean()) / _NS,
        shares={part: float(step[column].sum()) / total for part, column in PARTS.items()},
        communication=communication / total,
        overlap=1 - float(step["exposed_ns"].sum()) / communication if communication else None,
        extremes=extremes,
    )
