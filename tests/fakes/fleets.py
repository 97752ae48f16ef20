# SPDX-License-Identifier: Apache-2.0
"""Tables of made jobs, in which every step ends with all-reduces of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.fleet.job import Fleet
from gpuscope.fleet.tables import SCHEMA

START = 1_790_000_000_000_000_000
MS = 1_000_000


def job_tables(
    ranks: int,
    steps: int = 20,
    calls: int = 2,
    *,
    slow: dict[int, float] | None = None,
    per_host: int = 8,
    transfer_ms: float = 1.0,
    noise: float = 0.0,
    offsets_ms: dict[int, float] | None = None,
    seed: int = 1,
) -> dict[str, dict[str, Any]]:
    """The tables of a job. Before each of its `calls`, a rank computes for 4 ms and idles for 1 ms.

    Args:
        ranks: number of ranks.
        steps: of each rank.
        calls: all-reduces in a step.
        slow: by rank, the factor of its compute.
        per_host: ranks of a host.
        transfer_ms: duration of an all-reduce after the last arrival.
        noise: standard deviation of the factor of each piece of compute.
        offsets_ms: by host, its clock minus aligned time.
        seed: of the noise.
    """
    random = np.random.default_rng(seed)
    factor = np.array([(slow or {}).get(rank, 1.0) for rank in range(ranks)])
    shape = (steps * calls, ranks)
    compute = (4 * MS * factor * (1 + noise * random.standard_normal(shape))).astype(np.int64)
    idle = np.full(shape, MS)
    arrives_after = compute + idle
    transfer = int(transfer_ms * MS)
    release = START + np.cumsum(arrives_after.max(axis=1) + transfer)
    before = np.append(START, release[:-1])
    host = np.arange(ranks) // per_host
    offset = np.array([(offsets_ms or {}).get(each, 0.0) * MS for each in host.tolist()], np.int64)
    arrival = (before[:, None] + arrives_after + offset).T.reshape(-1)
    ends = np.broadcast_to(release[:, None] + offset, shape).T.reshape(-1)
    rank, call = np.repeat(np.arange(ranks), steps * calls), np.tile(np.arange(steps * calls), ranks)
    of_steps = lambda values: values.reshape(steps, calls, ranks).sum(axis=1).T.reshape(-1)  # noqa: E731
    edges = np.append(START, release)[::calls]
    exposed = (ends - arrival).reshape(ranks, steps * calls).T
    tables: dict[str, dict[str, Any]] = {
        "rank": {
            "rank": np.arange(ranks),
            "world_size": ranks,
            "local_rank": np.arange(ranks) % per_host,
            "host": np.array([f"n{each}" for each in host], object),
            "process": 1000 + np.arange(ranks),
            "device": "NVIDIA H100",
            "role": 7,
            "source": "",
            "start_ns": START + offset,
            "end_ns": int(release[-1]) + offset,
            "steps": steps,
            "complete": True,
            "verdict": "complete",
            "overhead": 0.001,
        },
        "step": {
            "rank": np.repeat(np.arange(ranks), steps),
            "step": np.tile(np.arange(steps), ranks),
            "start_ns": (edges[:-1] + offset[:, None]).reshape(-1),
            "duration_ns": np.tile(np.diff(edges), ranks),
            "compute_ns": of_steps(compute),
            "communication_ns": of_steps(exposed),
            "exposed_ns": of_steps(exposed),
            "copy_ns": 0,
            "idle_ns": of_steps(idle),
            "launches": 10,
        },
        "kernel_stat": {
            "rank": np.arange(ranks),
            "kernel": 11,
            "name": "gemm",
            "count": steps * calls,
            "total_ns": compute.sum(axis=0),
            "min_ns": compute.min(axis=0),
            "max_ns": compute.max(axis=0),
        },
        "collective": {
            "rank": rank,
            "communicator": 5,
            "size": ranks,
            "sequence": call,
            "step": call // calls,
            "kind": "all_reduce",
            "bytes": 1 << 20,
            "start_ns": arrival,
            "end_ns": ends,
            "called_ns": -1,
            "before_compute_ns": compute.T.reshape(-1),
            "before_idle_ns": idle.T.reshape(-1),
            "source": "nvtx",
        },
        "segment": {
            "rank": np.repeat(np.arange(ranks), steps * (calls + 1)),
            "step": np.tile(np.repeat(np.arange(steps), calls + 1), ranks),
            "position": np.tile(np.arange(calls + 1), ranks * steps),
            "compute_ns": _with_last(compute, steps, calls),
            "copy_ns": 0,
            "host_ns": _with_last(idle, steps, calls),
        },
        "anchor": {"rank": np.arange(ranks), "time_ns": START + offset, "realtime_ns": START + offset},
    }
    return {table: _whole(table, columns) for table, columns in tables.items()}


def _with_last(pieces: Any, steps: int, calls: int) -> Any:
    """The pieces before calls, and an empty one behind the last call of each step."""
    ranks = pieces.shape[1]
    return np.pad(pieces.T.reshape(ranks, steps, calls), ((0, 0), (0, 0), (0, 1))).reshape(-1)


def _whole(table: str, columns: dict[str, Any]) -> dict[str, Any]:
    rows = len(columns["rank"])
    kinds = {name: kind for name, (kind, _) in SCHEMA[table].items()}
    return {
        name: np.asarray(values, kinds[name]) if np.ndim(values) else np.full(rows, values, kinds[name])
        for name, values in columns.items()
    }


def make_fleet(ranks: int, **options: Any) -> Fleet:
    """A job; options as of `job_tables`."""
    return Fleet(job_tables(ranks, **options))
