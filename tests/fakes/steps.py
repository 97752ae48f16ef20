# SPDX-License-Identifier: Apache-2.0
"""A Store of a small training program with operators, as a framework's integration records them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fakes.gscope import NONE, make_store

START = 1_700_000_000_000_000_000
STEP_NS = 400_000
REGION, OP, RANGE, MODULE = range(4)
ASYNC = 1 << 8
INFO = {"session.mode": "full", "process.id": "4242", "process.argv": "train.py", "process.host": "here"}
NUMBER, SIGNED, FLOAT, TEXT = range(4)

PATHS = [
    # name, parent, kind
    ("ProfilerStep#0", NONE, REGION),
    ("ProfilerStep#1", NONE, REGION),
    ("ProfilerStep#2", NONE, REGION),
    ("nn.Module: Linear_0", 0, MODULE),
    ("aten::linear", 3, OP),
    ("aten::addmm", 4, OP),
    ("autograd::engine::evaluate_function: AddmmBackward0", NONE, OP),
    ("AddmmBackward0", 6, OP),
    ("Optimizer.step#AdamW.step", 0, RANGE),
    ("ncclAllReduce", 8, RANGE),
    ("prefetch", NONE, RANGE),
]
CALLS = ["cuLaunchKernel", "cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuStreamSynchronize"]


def _fill(tables: dict[str, dict[str, list[Any]]], table: str, **row: Any) -> int:
    columns = tables.setdefault(table, {})
    for name, value in row.items():
        columns.setdefault(name, []).append(value)
    return len(next(iter(columns.values()))) - 1


class _Program:
    """Writes rows step by step; the forward runs on thread 0, the backward on thread 1."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, list[Any]]] = {}
        self.correlation = 0
        self.gpu_ns = START

    def region(self, path: int, start: int, end: int, parent: int = NONE, thread: int = 0, flags: int = 0) -> int:
        start += START
        return _fill(
            self.tables,
            "region",
            start_ns=start,
            duration_ns=end + START - start,
            parent=parent,
            path=path,
            thread=thread,
            flags=flags,
        )

    def detail(self, region: int, sequence: int, shapes: Any = NONE, forward: int = NONE, stack: int = NONE) -> None:
        _fill(self.tables, "detail", region=region, sequence=sequence, shapes=shapes, forward=forward, stack=stack)

    def call(self, call: int, at: int, region: int, thread: int = 0) -> int:
        self.correlation += 1
        _fill(
            self.tables,
            "api",
            start_ns=START + at,
            duration_ns=3000,
            correlation=self.correlation,
            region=region,
            call=call,
            thread=thread,
        )
        return self.correlation

    def work(self, table: str, duration: int, at: int, region: int, **rest: Any) -> None:
        begin = max(self.gpu_ns + 1000, START + at + 6000)
        self.gpu_ns = begin + duration
        _fill(
            self.tables,
            table,
            start_ns=begin,
            duration_ns=duration,
            correlation=self.correlation,
            region=region,
            track=0,
            flags=0,
            **rest,
        )

    def step(self, number: int) -> None:
        at = number * STEP_NS
        step = self.region(number, at, at + 300_000)
        self.call(1, at + 5000, step)
        copied = {"bytes": 1 << 20, "kind": 1, "source": 2, "destination": 3, "peer": 255}
        self.work("memcpy", 40_000, at + 5000, step, **copied)
        module = self.region(3, at + 10_000, at + 60_000, step)
        linear = self.region(4, at + 11_000, at + 50_000, module)
        addmm = self.region(5, at + 12_000, at + 48_000, linear)
        self.detail(linear, 10 * number, "[[64, 32], [16, 32], [16]]")
        self.detail(addmm, 10 * number, "[[16], [64, 32], [32, 16], [], []]", stack=1)
        self.call(0, at + 20_000, addmm)
        self.work("kernel", 50_000, at + 20_000, addmm, variant=0)
        taken = {"address": 4096, "allocated_bytes": 8192, "reserved_bytes": 1 << 21, "thread": 0}
        _fill(self.tables, "allocation", start_ns=START + at + 13_000, bytes=4096, region=addmm, ordinal=0, **taken)
        engine = self.region(6, at + 70_000, at + 120_000, thread=1)
        backward = self.region(7, at + 71_000, at + 110_000, engine, thread=1)
        self.detail(engine, 10 * number)
        self.detail(backward, 10 * number, forward=addmm)
        self.call(0, at + 80_000, backward, thread=1)
        self.work("kernel", 60_000, at + 80_000, backward, variant=1)
        optimizer = self.region(8, at + 130_000, at + 200_000, step)
        self.call(2, at + 140_000, optimizer)
        self.work("memset", 2000, at + 140_000, optimizer, bytes=256, value=0)
        nccl = self.region(9, at + 150_000, at + 170_000, optimizer)
        _fill(self.tables, "payload", region=nccl, name="Message size [bytes]", value=4096, type=NUMBER)
        self.call(0, at + 160_000, nccl)
        self.work("kernel", 30_000, at + 160_000, nccl, variant=2)
        self.call(3, at + 210_000, step)


def steps_tables() -> dict[str, dict[str, list[Any]]]:
    """Three steps, 400 us apart, each with a copy, a fill and three kernels on stream 7."""
    program = _Program()
    program.region(10, 20_000, 700_000, flags=ASYNC)
    for number in range(3):
        program.step(number)
    tables = program.tables
    tables["path"] = {
        "name": [name for name, _, _ in PATHS],
        "parent": [parent for _, parent, _ in PATHS],
        "kind": [kind for _, _, kind in PATHS],
        "domain": ["NCCL" if name.startswith("nccl") else "" for name, _, _ in PATHS],
    }
    tables["stack"] = {
        "parent": [NONE, 0],
        "function": ["<module>", "forward"],
        "file": ["train.py", "net.py"],
        "line": [9, 33],
    }
    tables["call_stack"] = {"api": [1], "stack": [1]}
    tables["call"] = {"name": list(CALLS), "kind": [1, 3, 4, 5]}
    ones = {name: [1, 1, 1] for name in ("grid_y", "grid_z", "block_y", "block_z")}
    tables["variant"] = {
        "name": ["gemm", "gemm_backward", "ncclDevKernel_AllReduce"],
        "grid_x": [264, 132, 8],
        "block_x": [128, 256, 512],
        "registers": [64, 128, 96],
        "static_shared_bytes": [0, 0, 32768],
        "dynamic_shared_bytes": [0, 65536, 0],
        **ones,
    }
    tables["device"] = {
        "ordinal": [0],
        "name": ["NVIDIA H100"],
        "uuid": ["GPU-0"],
        "multiprocessors": [132],
        "capability_major": [9],
        "capability_minor": [0],
    }
    tables["thread"] = {"system_id": [4242, 4243], "name": ["MainThread", "autograd"]}
    tables["track"] = {"device": [0], "context": [1], "stream": [7]}
    return tables


def steps_store(
    change: Callable[[dict[str, dict[str, list[Any]]]], object] | None = None, info: dict[str, str] | None = None
) -> Any:
    """The store of `steps_tables`, changed as the test likes."""
    tables = steps_tables()
    if change is not None:
        change(tables)
    return make_store(tables, info={**INFO, **(info or {})})
