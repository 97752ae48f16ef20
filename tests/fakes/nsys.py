# SPDX-License-Identifier: Apache-2.0
"""Exports of Nsight Systems, with the tables and columns that its versions were seen to write: SQLite, or Parquet."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

UTC_EPOCH_NS = 1_700_000_000_000_000_000
PID, THREAD = 4242, 4243
MACHINE = 1 << 56
GLOBAL_PID = MACHINE | PID << 24
GLOBAL_TID = GLOBAL_PID | THREAD
US = 1000
STEPS = 12

Tables = dict[str, list[dict[str, Any]]]

FIRST_TEXTS = {  # the text whose number is 0, by versions of which files were seen; those before 2022 do not say theirs
    "2021": "[Unknown]",
    "2022.1.1.61": "QnxKernelTrace",
    "2022.2.1.31": "[Unknown]",
    "2022.4.2.1": "[Unknown]",
    "2023.3.1.92": "[Unknown]",
    "2023.4.4.54": "[Unknown]",
    "2024.5.4.34": "GpuMetrics",
    "2025.5.2.266": "[Unknown]",
    "2026.2.1.210": "GpuMetrics",
}
_UNSIGNED = (  # in Parquet
    *("globalTid", "globalPid", "contextId", "streamId", "graphNodeId", "bytes"),
    *("demangledName", "shortName", "mangledName", "nameId"),
)
_WORK = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")


def training(steps: int = STEPS) -> Tables:
    """A program in NVTX ranges "step" and "forward": a copy, two kernels and a wait in each step."""
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts) + 1)

    tables: Tables = {
        name: []
        for name in (
            "CUPTI_ACTIVITY_KIND_KERNEL",
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "CUPTI_ACTIVITY_KIND_MEMSET",
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            "NVTX_EVENTS",
        )
    }
    correlation = 0

    def call(name: str, start: int, end: int) -> int:
        nonlocal correlation
        correlation += 1
        tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            {
                "start": start,
                "end": end,
                "eventClass": 0,
                "globalTid": GLOBAL_TID,
                "correlationId": correlation,
                "nameId": text(name),
                "returnValue": 0,
                "callchainId": None,
            }
        )
        return correlation

    def place(start: int, end: int, number: int) -> dict[str, Any]:
        return {
            "start": start,
            "end": end,
            "deviceId": 0,
            "contextId": 1,
            "streamId": 7,
            "correlationId": number,
            "globalPid": GLOBAL_PID,
        }

    def kernel(name: str, start: int, end: int, number: int) -> None:
        row = place(start, end, number) | {
            "demangledName": text(f"void {name}<float>(float*, int)"),
            "shortName": text(name),
            "mangledName": None,
            "launchType": 0,
            "registersPerThread": 32,
            "gridX": 8,
            "gridY": 2,
            "gridZ": 1,
            "blockX": 128,
            "blockY": 1,
            "blockZ": 1,
            "staticSharedMemory": 1024,
            "dynamicSharedMemory": 16,
            "localMemoryPerThread": 0,
            "graphNodeId": None,
        }
        tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(row)

    def push_pop(name: str, start: int, end: int, registered: bool) -> None:
        tables["NVTX_EVENTS"].append(
            {
                "start": start,
                "end": end,
                "eventType": 59,
                "rangeId": None,
                "text": None if registered else name,
                "textId": text(name) if registered else None,
                "globalTid": GLOBAL_TID,
                "endGlobalTid": None,
                "domainId": 0,
            }
        )

    for step in range(steps):
        t = 1_000_000 + step * 1_000 * US
        push_pop("step", t, t + 900 * US, registered=True)
        push_pop("forward", t + 10 * US, t + 300 * US, registered=False)
        number = call("cudaMemcpyAsync_v3020", t + 20 * US, t + 30 * US)
        tables["CUPTI_ACTIVITY_KIND_MEMCPY"].append(
            place(t + 35 * US, t + 45 * US, number)
            | {"bytes": 4096, "copyKind": 1, "srcKind": 1, "dstKind": 2, "graphNodeId": None}
        )
        number = call("cudaMemsetAsync_v3020", t + 46 * US, t + 48 * US)
        tables["CUPTI_ACTIVITY_KIND_MEMSET"].append(
            place(t + 50 * US, t + 52 * US, number) | {"value": 0, "bytes": 512, "memKind": 2}
        )
        number = call("cudaLaunchKernel_v7000", t + 60 * US, t + 65 * US)
        kernel("gemm", t + 70 * US, t + 470 * US, number)
        number = call("cudaLaunchKernel_v7000", t + 310 * US, t + 315 * US)
        kernel("relu", t + 480 * US, t + 500 * US, number)
        number = call("cudaStreamSynchronize_v3020", t + 320 * US, t + 505 * US)
        tables["CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"].append(
            place(t + 321 * US, t + 504 * US, number) | {"syncType": 3, "eventId": None}
        )
    tables["NVTX_EVENTS"].append(
        {"start": 2_000_000, "end": None, "eventType": 34, "text": "here", "textId": None, "globalTid": GLOBAL_TID}
    )
    memory = ("PAGEABLE", "PINNED", "DEVICE", "ARRAY", "MANAGED", "DEVICE_STATIC", "MANAGED_STATIC")
    tables["ENUM_CUDA_MEM_KIND"] = [
        {"id": number, "name": f"CUDA_MEMOPR_MEMORY_KIND_{name}", "label": name.title()}
        for number, name in enumerate(memory)
    ]
    tables["TARGET_INFO_GPU"] = [
        {
            "id": 0,
            "name": "NVIDIA H100",
            "totalMemory": 80 << 30,
            "smCount": 132,
            "computeMajor": 9,
            "computeMinor": 0,
            "cuDevice": 0,
        }
    ]
    tables["TARGET_INFO_SESSION_START_TIME"] = [
        {"utcEpochNs": UTC_EPOCH_NS, "utcTime": "2023-11-14T22:13:20", "localTime": "2023-11-14T22:13:20"}
    ]
    tables["PROCESSES"] = [{"globalPid": GLOBAL_PID, "pid": PID, "name": "python train.py"}]
    tables["ThreadNames"] = [{"nameId": text("main"), "priority": 0, "globalTid": GLOBAL_TID}]
    tables["StringIds"] = [{"id": number, "value": value} for value, number in texts.items()]
    return tables


def of_version(version: str, steps: int = STEPS) -> Tables:
    """What a version of Nsight Systems writes of `training`."""
    tables = training(steps)
    number = tuple(int(each) for each in version.split("."))
    tables["StringIds"].append({"id": 0, "value": FIRST_TEXTS[version]})
    kernels = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    for row in kernels:
        row["mangledName"] = row["demangledName"]
        row |= {"localMemoryTotal": 0, "gridId": 1, "sharedMemoryExecuted": 0, "sharedMemoryLimitConfig": None}
    if number >= (2022, 1):
        name = "EXPORT_META_DATA" if number < (2023, 3) else "META_DATA_EXPORT"
        tables[name] = [{"name": "EXPORT_PRODUCT_VERSION", "value": version}]
    else:
        for row in kernels:
            del row["mangledName"]
        del tables["TARGET_INFO_GPU"], tables["TARGET_INFO_SESSION_START_TIME"], tables["PROCESSES"]
        tables["TARGET_INFO_CUDA_GPU"] = [
            {
                "name": "NVIDIA H100",
                "globalMemorySize": 80 << 30,
                "numMultiprocessors": 132,
                "computeCapabilityMajor": 9,
                "computeCapabilityMinor": 0,
                "deviceId": 0,
                "pid": PID,
            }
        ]
    if number < (2022, 4):
        del tables["ENUM_CUDA_MEM_KIND"]
    if number >= (2023, 4):
        for table in _WORK:
            for row in tables[table]:
                row["greenContextId"] = None
    if number >= (2025, 5):
        for row in kernels:
            row |= {"graphId": None, "clusterX": 0, "clusterY": 0, "clusterZ": 0, "maxActiveClusters": None}
    if number >= (2026, 2):
        return shuffled(tables)
    return tables


def shuffled(tables: Tables, seed: int = 1) -> Tables:
    """The same rows in another order."""
    order = random.Random(seed)
    return {name: order.sample(rows, len(rows)) for name, rows in tables.items()}


def renamed(tables: Tables, version: int) -> Tables:
    """The same tables, with a version behind their names."""
    return {f"{name}_V{version}": rows for name, rows in tables.items()}


def with_operators(tables: Tables, first: int = 1) -> Tables:
    """The same with operators as ``--pytorch=autograd-shapes-nvtx`` has them, numbered from `first` on."""
    number = first
    for start in [row["start"] for row in tables["NVTX_EVENTS"] if row["textId"]]:
        inside = {"eventType": 59, "textId": None, "globalTid": GLOBAL_TID}
        for text, begin, end in (
            (f"aten::linear, op_id = {number}, sizes = [[8, 4], [2, 4]]", 12, 80),
            (
                f"aten::mm, seq = {number + 7}, op_id = {number + 1}, sizes = [[8, 4], [4, 2]], "
                f"input_op_ids = [({number},0), (0,-1)]",
                *(14, 70),
            ),
            (f"MulBackward0, seq = {number + 7}, op_id = {number + 2}", 82, 90),
            (f"my layer, op_id = {number + 3}", 92, 95),
        ):
            tables["NVTX_EVENTS"].append(inside | {"start": start + begin * US, "end": start + end * US, "text": text})
        number += 4
    return tables


def _names(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def write_sqlite(tables: Tables, path: Path) -> Path:
    connection = sqlite3.connect(path)
    for table, rows in tables.items():
        if not rows:
            continue
        names = _names(rows)
        columns = ", ".join(f'"{name}"' for name in names)
        connection.execute(f'create table "{table}" ({columns})')
        marks = ", ".join("?" * len(names))
        values = [[row.get(name) for name in names] for row in rows]
        connection.executemany(f'insert into "{table}" values ({marks})', values)
    connection.commit()
    connection.close()
    return path


def write_parquet(tables: Tables, folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for table, rows in tables.items():
        if rows:
            columns = {
                name: pyarrow.array([row.get(name) for row in rows], pyarrow.uint64() if name in _UNSIGNED else None)
                for name in _names(rows)
            }
            pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{table}.parquet")
    return folder
