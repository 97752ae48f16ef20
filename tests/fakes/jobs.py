# SPDX-License-Identifier: Apache-2.0
"""Operations of made training jobs, as columns of StragglerAnalysis, whose step times can be reckoned by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MS = 1_000_000
FORWARD, BACKWARD, REDUCE = "forward-compute", "backward-compute", "grads-reduce-scatter"

Spent = Callable[[str, int, int, int], float]
"""ms of an operation, by its kind, rank, step and microbatch."""


def pipeline_job(
    spent: Spent, *, replicas: int = 4, stages: int = 1, steps: int = 3, microbatches: int = 4
) -> list[dict[str, Any]]:
    """The rows of a job whose ranks take all forward passes, then all backward passes, then reduce over replicas.

    Rank ``replica * stages + stage``. Sends and receives take no time after the last arrival.
    """
    rows: list[dict[str, Any]] = []

    def add(kind: str, replica: int, stage: int, step: int, start: float, end: float, number: int, of: int) -> None:
        rows.append(
            {
                "dp_rank": replica,
                "stage": stage,
                "rank": replica * stages + stage,
                "step": step,
                "optype": kind,
                "start_ts": start / 1e3,
                "duration": (end - start) / 1e3,
                "seq_id": number,
                "mc": 0,
                "mb_id": of,
            }
        )

    for step in range(steps):
        free = {(replica, stage): 0.0 for replica in range(replicas) for stage in range(stages)}
        for kind, name, order in (
            (FORWARD, "forward", range(stages)),
            (BACKWARD, "backward", range(stages - 1, -1, -1)),
        ):
            for replica in range(replicas):
                done = [0.0] * microbatches
                for place, stage in enumerate(order):
                    at = free[replica, stage]
                    for number in range(microbatches):
                        if place:
                            add(f"{name}-recv", replica, stage, step, at, max(at, done[number]), number, -1)
                            at = max(at, done[number])
                        end = at + spent(kind, replica * stages + stage, step, number)
                        add(kind, replica, stage, step, at, end, number, number)
                        at = done[number] = end
                        if place < stages - 1:
                            add(f"{name}-send", replica, stage, step, at, at, number, -1)
                    free[replica, stage] = at
        for stage in range(stages):
            last = max(free[replica, stage] for replica in range(replicas))
            for replica in range(replicas):
                reduce = spent(REDUCE, replica * stages + stage, step, -1)
                add(REDUCE, replica, stage, step, free[replica, stage], last + reduce, 0, -1)
    return rows
