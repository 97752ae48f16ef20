# SPDX-License-Identifier: Apache-2.0
"""Tables of a job in which every rank computes, waits in an all_reduce and computes again, with known delays."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.fleet.tables import SCHEMA, Columns, checked

MS = 1_000_000
START = 1_700_000_000_000_000_000


def job_tables(
    ranks: int = 16,
    steps: int = 120,
    *,
    per_host: int = 8,
    world_size: int | None = None,
    slower: dict[int, float] | None = None,
    idle_ns: dict[int, int] | None = None,
    ahead_ns: dict[str, int] | None = None,
    noise: float = 0.01,
) -> dict[str, Columns]:
    """Steps of 10 ms compute and an all_reduce of 1 ms.

    Args:
        ranks: number of ranks with a recording.
        steps: number of steps.
        per_host: ranks of a host.
        world_size: number of ranks of the job; default `ranks`.
        slower: by rank, by how much its compute takes longer.
        idle_ns: by rank, idle time in each step.
        ahead_ns: by host, how far its clock is ahead.
        noise: standard deviation of the compute, relative to it.
    """
    random = np.random.default_rng(1)
    factor = np.array([1 + (slower or {}).get(rank, 0.0) for rank in range(ranks)])
    idle = np.array([(idle_ns or {}).get(rank, 0) for rank in range(ranks)])
    compute = np.rint(10 * MS * factor * (1 + noise * random.standard_normal((steps, ranks)))).astype(np.int64)
    begin = np.zeros((steps, ranks), np.int64)
    arrival, release = np.zeros_like(begin), np.zeros_like(begin)
    now = np.full(ranks, START)
    for step in range(steps):
        begin[step] = now
        arrival[step] = now + compute[step] + idle
        release[step] = arrival[step].max() + MS + random.integers(0, 2_000, ranks)
        now = release[step]
    hosts = np.array([f"host{rank // per_host}" for rank in range(ranks)], object)
    ahead = np.array([(ahead_ns or {}).get(host, 0) for host in hosts.tolist()])
    of_rank, of_step = np.tile(np.arange(ranks), steps), np.repeat(np.arange(steps), ranks)
    rows = len(of_rank)

    def flat(values: Any) -> Any:
        return np.broadcast_to(values, (steps, ranks)).reshape(-1)

    tables: dict[str, dict[str, Any]] = {
        "rank": {
            "rank": np.arange(ranks),
            "world_size": np.full(ranks, world_size or ranks),
            "local_rank": np.arange(ranks) % per_host,
            "host": hosts,
            "process": np.arange(ranks) + 100,
            "device": np.full(ranks, "GPU", object),
            "role": np.ones(ranks),
            "source": np.array([f"rank-{rank:05d}.gscope" for rank in range(ranks)], object),
            "start_ns": begin[0] + ahead,
            "end_ns": release[-1] + ahead,
            "steps": np.full(ranks, steps),
            "complete": np.ones(ranks, bool),
            "verdict": np.full(ranks, "complete", object),
            "overhead": np.full(ranks, 0.01),
        },
        "step": {
            "rank": of_rank,
            "step": of_step,
            "start_ns": flat(begin + ahead),
            "duration_ns": flat(release - begin),
            "compute_ns": flat(compute),
            "communication_ns": flat(release - arrival),
            "exposed_ns": flat(release - arrival),
            "copy_ns": np.zeros(rows),
            "idle_ns": flat(idle),
            "launches": np.full(rows, 10),
        },
        "collective": {
            "rank": of_rank,
            "communicator": np.full(rows, 7),
            "size": np.full(rows, world_size or ranks),
            "sequence": of_step,
            "step": of_step,
            "kind": np.full(rows, "all_reduce", object),
            "bytes": np.full(rows, 1 << 20),
            "called_ns": flat(begin + ahead),
            "start_ns": flat(arrival + ahead),
            "end_ns": flat(release + ahead),
            "before_compute_ns": flat(compute),
            "before_idle_ns": flat(idle),
            "source": np.full(rows, "nvtx", object),
        },
        "segment": {
            "rank": np.repeat(of_rank, 2),
            "step": np.repeat(of_step, 2),
            "position": np.tile([0, 1], rows),
            "compute_ns": np.column_stack([flat(compute), np.zeros(rows)]).reshape(-1),
            "copy_ns": np.zeros(2 * rows),
            "host_ns": np.column_stack([flat(idle), np.zeros(rows)]).reshape(-1),
        },
        "anchor": {
            "rank": np.arange(ranks),
            "time_ns": begin[0] + ahead,
            "realtime_ns": begin[0] + ahead,
        },
    }
    return {name: checked(name, columns) for name, columns in tables.items() if name in SCHEMA}
