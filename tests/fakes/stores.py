# SPDX-License-Identifier: Apache-2.0
"""Small Stores for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakes.gscope import NONE, Tables, make_store

START = 1_700_000_000_000_000_000
INFO = {"session.mode": "full", "process.id": "4242", "process.argv": "train.py"}


def training_tables() -> dict[str, dict[str, list[Any]]]:
    """One step with two launches, a copy and a mark; the two kernels overlap on stream 7."""
    return {
        "device": {"ordinal": [0], "name": ["NVIDIA H100"], "uuid": ["GPU-0"], "multiprocessors": [132]},
        "thread": {"system_id": [4242], "name": ["MainThread"]},
        "track": {"device": [0], "context": [1], "stream": [7]},
        "path": {"name": ["step", "forward"], "parent": [NONE, 0]},
        "variant": {
            "name": ["_Z4gemmPKfS0_Pfi", "triton_add"],
            "grid_x": [4, 1],
            "grid_y": [2, 1],
            "grid_z": [1, 1],
            "block_x": [128, 64],
            "block_y": [1, 1],
            "block_z": [1, 1],
            "static_shared_bytes": [1024, 0],
            "dynamic_shared_bytes": [512, 0],
            "registers": [32, 16],
        },
        "call": {"name": ["cuLaunchKernel", "cuMemcpyHtoDAsync"], "kind": [1, 3]},
        "region": {
            "start_ns": [START, START + 1000],
            "duration_ns": [90_000, 80_000],
            "parent": [NONE, 0],
            "path": [0, 1],
            "thread": [0, 0],
        },
        "api": {
            "start_ns": [START + 1100, START + 2000, START + 4001],
            "duration_ns": [800, 500, 499],
            "correlation": [11, 12, 13],
            "region": [1, 1, 1],
            "call": [1, 0, 0],
            "thread": [0, 0, 0],
        },
        "kernel": {
            "start_ns": [START + 3001, START + 4500],
            "duration_ns": [2002, 5000],
            "correlation": [12, 13],
            "variant": [0, 1],
            "region": [1, 1],
            "track": [0, 0],
        },
        "memcpy": {
            "start_ns": [START + 1500],
            "duration_ns": [1000],
            "bytes": [4096],
            "correlation": [11],
            "region": [1],
            "track": [0],
            "kind": [1],
            "source": [2],
            "destination": [3],
            "peer": [255],
        },
        "mark": {"start_ns": [START + 7000], "name": ["epoch"], "region": [1], "thread": [0]},
    }


def training_store(
    change: Callable[[dict[str, dict[str, list[Any]]]], object] | None = None, info: dict[str, str] | None = None
) -> Any:
    """The store of `training_tables`, changed as the test likes, with further facts."""
    tables = training_tables()
    if change is not None:
        change(tables)
    return make_store(tables, info={**INFO, **(info or {})})


def add_overlapping_functions(tables: Tables) -> None:
    """Python functions of one thread, each of which outlasts the one in which it began."""
    tables["python_function"] = {
        "start_ns": [START + 1000, START + 6000, START + 7000],
        "duration_ns": [10_000, 10_000, 20_000],
        "name": ["f", "g", "h"],
        "parent": [NONE] * 3,
        "module": [NONE] * 3,
    }


def aggregate_store() -> Any:
    """One path's totals and no events."""
    tables: Tables = {
        "path": {"name": ["step"], "parent": [NONE]},
        "region_total": {"path": [0], "count": [3], "total_ns": [300], "min_ns": [90], "max_ns": [110]},
    }
    return make_store(tables, info={"session.mode": "aggregate"})
