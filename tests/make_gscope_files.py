# SPDX-License-Identifier: Apache-2.0
"""Writes the recordings that GscopeFuzz changes, tests/golden/gscope: ``python tests/make_gscope_files.py``.

They are made by the builders of tests/fakes. Files of earlier schemas open too, so they need not follow each change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fakes.gscope import NONE, gscope_bytes
from fakes.recordings import aggregate, training
from fakes.stores import INFO, START, training_tables
from gpuscope import _core
from gpuscope.exporters import save

FOLDER = Path(__file__).resolve().parent / "golden" / "gscope"

Tables = dict[str, dict[str, list[Any]]]


def memory() -> Tables:
    """Memory of a framework and of the driver, and a pool."""
    tables = training_tables()
    tables["allocation"] = {
        "start_ns": [START + 100, START + 900],
        "bytes": [512, -512],
        "address": [0x1000, 0x1000],
        "allocated_bytes": [512, 0],
        "reserved_bytes": [2048, 2048],
        "region": [1, NONE],
        "ordinal": [0, NONE],
    }
    tables["device_memory"] = {
        "start_ns": [START + 100, START + 400],
        "bytes": [1 << 21, -(1 << 21)],
        "address": [0x7000, 0x5000],
        "pool": [0, 0x9000],
        "region": [1, NONE],
        "library": ["/lib/libtorch_cuda.so", NONE],
        "kind": [3, 2],
    }
    tables["memory_pool"] = {"start_ns": [START + 350], "pool": [0x9000], "region": [1], "operation": [1]}
    return tables


def program() -> Tables:
    """A coroutine that was suspended once, Python functions, details of an operator, a payload, and call stacks."""
    tables = training_tables()
    tables["region"] = {
        "start_ns": [START, START + 1000, START + 5000],
        "duration_ns": [90_000, 2000, 3000],
        "parent": [NONE, 0, 0],
        "path": [0, 1, 1],
        "flags": [0, 0, 1 << 8],
    }
    tables["resumption"] = {"suspended_ns": [2000, 0], "region": [1, 2], "first": [1, 1]}
    tables["python_function"] = {
        "start_ns": [START, START + 10],
        "duration_ns": [9000, 8000],
        "name": ["train.py(3): <module>", "nn.Module: Linear_0"],
        "parent": [NONE, 0],
        "module": [NONE, 0],
        "kind": [0, 2],
    }
    tables["stack"] = {"parent": [NONE, 0], "function": ["main", "forward"], "file": ["a.py", "b.py"], "line": [3, 7]}
    tables["detail"] = {
        "sequence": [3, -1],
        "region": [0, 1],
        "shapes": ["[[2, 3]]", NONE],
        "types": ["['float']", NONE],
        "forward": [NONE, 0],
        "stack": [1, NONE],
    }
    tables["payload"] = {"value": [4096, 1], "region": [1, 1], "name": ["bytes", "text"], "type": [0, 3]}
    tables["call_stack"] = {"api": [0, 2], "stack": [1, NONE]}
    return tables


def devices() -> Tables:
    """What NVML told of a GPU: samples, counters with and without a tick, and what was not read."""
    tables = training_tables()
    tables["device_sample"] = {
        "start_ns": [START + 100, START + 50_000, START + 90_000],
        "memory_used_bytes": [1 << 30, 1 << 30, -1],
        "throttle_reasons": [1, 4, -1],
        "power_mw": [90_000, 650_000, -1],
        "power_limit_mw": [700_000, 700_000, -1],
        "power_limit_default_mw": [-1, -1, 700_000],
        "sm_mhz": [345, 1755, -1],
        "sm_max_mhz": [-1, -1, 1980],
        "memory_mhz": [2619, 2619, -1],
        "temperature_c": [35, 41, -1],
        "busy_percent": [0, 99, -1],
        "memory_busy_percent": [0, 25, -1],
        "device": [0, 0, 0],
    }
    tables["device_counter"] = {
        "start_ns": [START + 200, START + 60_000, START + 95_000],
        "energy_mj": [5_000_000, 5_060_000, -1],
        "tick_ns": [-1, START + 40_000, -1],
        "tick_error_ns": [-1, 5_000, -1],
        "sw_power_cap_ns": [-1, -1, 7_000],
        **{f"{reason}_ns": [-1, -1, 0] for reason in _core.THROTTLE_COUNTERS if reason != "sw_power_cap"},
        "device": [0, 0, 0],
    }
    return tables


def write(folder: Path) -> None:
    """Writes every file."""
    for make in (memory, program, devices):
        (folder / f"{make.__name__}.gscope").write_bytes(gscope_bytes(make(), info=INFO))
    recordings: tuple[Callable[[], Any], ...] = (training, aggregate)
    for record in recordings:  # of the product's own writer
        save(record().store, folder / f"{record.__name__}.gscope")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write(FOLDER)
