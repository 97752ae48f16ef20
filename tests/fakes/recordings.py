# SPDX-License-Identifier: Apache-2.0
"""Small recordings whose every number is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fakes.gscope import NONE, make_store
from gpuscope.trace import Trace

INFO = {
    "session.mode": "full",
    "session.tier": "cupti",
    "session.start_ns": "1000000",
    "session.stop_ns": "2000000",
    "audit.launches": "3",
    "audit.kernels": "4",
    "audit.graph_launches": "1",
    "audit.graph_nodes": "2",
    "audit.overhead_ns": "18000",
}


def training() -> Trace:
    """A step with a forward and a backward region, a graph launch in backward, and a copy outside every region."""
    return make_trace(
        {
            "path": {"name": ["train", "forward", "backward"], "parent": [NONE, 0, 0]},
            "thread": {"system_id": [100]},
            "region": {
                "start_ns": [1_001_000, 1_002_000, 1_050_000],
                "duration_ns": [100_000, 30_000, 40_000],
                "parent": [NONE, 0, 0],
                "path": [0, 1, 2],
            },
            "variant": {
                "name": ["_Z6kernelIfEvPT_i", "triton_mm"],
                **{f"{what}_{axis}": [1, 2] for what in ("grid", "block") for axis in "xyz"},
                "static_shared_bytes": [0, 1024],
                "dynamic_shared_bytes": [0, 512],
                "registers": [16, 255],
            },
            "track": {"device": [0], "context": [1], "stream": [7]},
            "call": {"name": ["cuLaunchKernel", "cuGraphLaunch"], "kind": [1, 2]},
            "api": {
                "start_ns": [1_002_500, 1_051_000, 1_052_000],
                "duration_ns": [400, 600, 900],
                "correlation": [1, 2, 3],
                "region": [1, 2, 2],
                "call": [0, 0, 1],
            },
            "kernel": {
                "start_ns": [1_005_000, 1_060_000, 1_070_000, 1_080_000],
                "duration_ns": [3_000, 7_000, 1_000, 1_500],
                "correlation": [1, 2, 3, 3],
                "variant": [0, 1, 1, 0],
                "region": [1, 2, 2, 2],
            },
            "graph_node": {"event": [2, 3], "path": [1, NONE], "kind": [1, 1]},
            "memcpy": {
                "start_ns": [1_000_300],
                "duration_ns": [800],
                "bytes": [4096],
                "kind": [1],
                "source": [1],
                "destination": [3],
                "region": [NONE],
            },
        },
        info=INFO,
    )


def cpu_only() -> Trace:
    """One region on a machine without a GPU."""
    return make_trace(
        {
            "path": {"name": ["work"]},
            "thread": {"system_id": [1]},
            "region": {"start_ns": [10], "duration_ns": [2_500], "path": [0]},
        },
        info={"session.tier": "cpu", "session.tier_reason": "no NVIDIA driver was found", "session.stop_ns": "5000"},
    )


def aggregate() -> Trace:
    """The rows that aggregate mode keeps of 10 steps with one kernel each."""
    return make_trace(
        {
            "path": {"name": ["step"]},
            "region_total": {
                "path": [0],
                "histogram": [NONE],
                "count": [10],
                "total_ns": [1_000],
                "child_ns": [300],
                "min_ns": [100],
                "max_ns": [100],
            },
            "work_total": {
                "path": [0],
                "name": ["_Z1fv"],
                "histogram": [NONE],
                "kind": [1],
                "count": [10],
                "total_ns": [500],
                "min_ns": [50],
                "max_ns": [50],
            },
        },
        info={"session.mode": "aggregate", "session.tier": "cupti"},
    )


def nested(names: Sequence[str]) -> Trace:
    """Regions of these names, each in the one before."""
    rows = list(range(len(names)))
    above = [NONE, *rows[:-1]]
    lengths = [2 * (len(rows) - row) for row in rows]
    tables: dict[str, dict[str, Sequence[Any]]] = {
        "thread": {"system_id": [100]},
        "path": {"name": names, "parent": above},
        "region": {"path": rows, "parent": above, "start_ns": rows, "duration_ns": lengths},
    }
    return make_trace(tables)


def make_trace(
    tables: Mapping[str, Mapping[str, Sequence[Any]]],
    strings: Sequence[str] = (),
    info: Mapping[str, str] | None = None,
) -> Trace:
    return Trace(make_store(tables, strings, info))
