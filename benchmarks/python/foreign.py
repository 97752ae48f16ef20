# SPDX-License-Identifier: Apache-2.0
"""Traces of other tools: how fast their JSON becomes a recording, and the memory that takes.

The files are written here, as torch.profiler (indented, as Kineto does, and on one line), JAX and Proton write them.
Each is read in a process of its own, in turns with ``json.loads`` of the same text; times are CPU time of the process,
as all of the work is on one thread.
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure

LAUNCHES, QUICK = 200_000, 20_000
REPEATS = 5
ROWS = ("foreign_json", "foreign_json_loads", "foreign_memory")
KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float>, std::array<char*, "
    "2ul> >(int, at::native::CUDAFunctorOnSelf_add<float>, std::array<char*, 2ul>)"
)


def torch_events(launches: int) -> Iterator[dict[str, Any]]:
    """An operator with shapes, its launch, its kernel and the arrow between them."""
    for number in range(1, launches + 1):
        ts = 4615358215002.243 + 10 * number
        operator = {
            "External id": number,
            "Record function id": 0,
            "Concrete Inputs": ["", "", "1"],
            "Input type": ["float", "Scalar", "Scalar"],
            "Input Strides": [[1], [], []],
            "Input Dims": [[16, number % 64], [], []],
            "Ev Idx": number,
        }
        cpu, gpu = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}
        yield {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::add_",
            **cpu,
            "ts": round(ts, 3),
            "dur": 8.5,
            "args": operator,
        }
        launch = {"External id": number, "cbid": 211, "correlation": number}
        name = {"cat": "cuda_runtime", "name": "cudaLaunchKernel"}
        yield {"ph": "X", **name, **cpu, "ts": round(ts + 2, 3), "dur": 5.1, "args": launch}
        yield {"ph": "s", "id": number, **cpu, "ts": round(ts + 2, 3), "cat": "ac2g", "name": "ac2g"}
        work = {
            "External id": number,
            "queued": 0,
            "device": 0,
            "context": 1,
            "stream": 7,
            "correlation": number,
            "registers per thread": 22,
            "shared memory": 0,
            "blocks per SM": 0.007576,
            "warps per SM": 0.0303,
            "grid": [1, 1, 1],
            "block": [128, 1, 1],
            "est. achieved occupancy %": 0,
        }
        yield {"ph": "X", "cat": "kernel", "name": KERNEL, **gpu, "ts": round(ts + 5, 3), "dur": 3.4, "args": work}
        yield {"ph": "f", "id": number, **gpu, "ts": round(ts + 5, 3), "cat": "ac2g", "name": "ac2g", "bp": "e"}


def jax_events(launches: int) -> Iterator[dict[str, Any]]:
    named = (
        {"pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0 NVIDIA H100"}},
        {"pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "Stream #7(Compute)"}},
    )
    yield from ({"ph": "M", **each} for each in named)
    details = "regs:32 static_shared:1024 dynamic_shared:16 grid:8,2,1 block:128,1,1 occ_pct:50"
    for number in range(1, launches + 1):
        ts, host = 10.0 * number, {"ph": "X", "pid": 701, "tid": 3234588627}
        yield {**host, "ts": ts, "dur": 9.123, "name": "PjitFunction(f)"}
        yield {**host, "ts": ts + 1, "dur": 5, "name": "cuLaunchKernel", "args": {"correlation_id": str(number)}}
        work = {"correlation_id": str(number), "hlo_op": "loop_tanh_fusion", "hlo_module": "jit_f"}
        work |= {"kernel_details": details, "context_id": "$$1"}
        yield {"ph": "X", "pid": 1, "tid": 7, "ts": ts + 3, "dur": 6.5, "name": "loop_tanh_fusion", "args": work}


def proton_events(launches: int) -> Iterator[dict[str, Any]]:
    for number in range(1, launches + 1):
        ts = 10.0 * number
        scope = {"args": {"call_stack": ["ROOT", "step", "forward"]}, "cat": "scope", "dur": 9.5, "name": "forward"}
        yield {**scope, "ph": "X", "pid": 0, "tid": 0, "ts": ts}
        arrow = {"bp": "e", "cat": "flow", "id": number, "name": "launch->kernel", "pid": 0}
        yield {**arrow, "ph": "s", "tid": 0, "ts": ts}
        yield {**arrow, "ph": "f", "tid": 200007, "ts": ts + 2}
        stack = {"call_stack": ["ROOT", "step", "forward", "matmul_kernel"]}
        work = {"args": stack, "cat": "kernel", "dur": 6.25, "name": "matmul_kernel"}
        yield {**work, "ph": "X", "pid": 0, "tid": 200007, "ts": ts + 2}


TOOLS = {
    "torch.profiler": (torch_events, 2),
    "torch.profiler, one line": (torch_events, None),
    "JAX": (jax_events, None),
    "Proton": (proton_events, None),
}


def write(tool: str, launches: int, path: Path) -> None:
    make, indent = TOOLS[tool]
    with path.open("w", encoding="utf-8") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for number, event in enumerate(make(launches)):
            file.write((",\n" if number else "") + json.dumps(event, indent=indent))
        file.write("\n]}\n")


def high_water(reset: bool = False) -> int:
    """The most memory that the process had since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def column_bytes(recording: Any) -> int:
    from gpuscope import _core

    tables = [getattr(recording.trace, table.attribute) for table in _core.schema() if table.name != "info"]
    return sum(table[column].nbytes for table in tables for column in table.columns)


def child(tool: str, launches: int) -> dict[str, Any]:
    import gpuscope

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(tool, 100, path)
        gpuscope.load(path).table()  # what is imported at the first call is there from here on
        write(tool, launches, path)
        size = path.stat().st_size
        before = high_water(reset=True)
        recording = gpuscope.load(path)
        grown = high_water() - before
        columns = column_bytes(recording)
        kernels = len(recording.trace.kernels)
        del recording
        ours, theirs, zipped = [], [], []
        packed = Path(folder) / "trace.json.gz"
        packed.write_bytes(gzip.compress(path.read_bytes(), 1))
        for _ in range(REPEATS):
            for spent, action in (
                (ours, lambda: gpuscope.load(path)),
                (theirs, lambda: json.loads(path.read_bytes())),
                (zipped, lambda: gpuscope.load(packed)),
            ):
                began = time.process_time()
                action()
                spent.append(time.process_time() - began)
    if kernels != launches:
        raise RuntimeError(f"{kernels} kernels were read of {launches}: no figure of it would mean anything")
    return {
        "MB": round(size / 1e6, 1),
        "launches": launches,
        "s per 100 MB": round(statistics.median(ours) / size * 1e8, 3),
        "s per 100 MB, gzip": round(statistics.median(zipped) / size * 1e8, 3),
        "json.loads, s per 100 MB": round(statistics.median(theirs) / size * 1e8, 3),
        "ratio": round(measure.paired_ratio(ours, theirs), 3),
        "columns MB": round(columns / 1e6, 1),
        "grown MB": round(grown / 1e6, 1),
        "memory ratio": round(grown / columns, 2),
    }


def main() -> None:
    options = measure.arguments(__doc__, tool="", launches=0)
    if why := measure.why_not_available():
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    if options.tool:
        measure.answer(child(options.tool, options.launches))
        return
    launches = QUICK if options.quick else LAUNCHES
    found = {tool: measure.child("foreign.py", "--tool", tool, "--launches", str(launches)) for tool in TOOLS}
    wrong = [f"{tool}: {figures['error']}" for tool, figures in found.items() if "error" in figures]
    if wrong:
        measure.answer({"rows": {name: {"error": "; ".join(wrong)} for name in ROWS}})
        return
    worst = {key: max(figures[key] for figures in found.values()) for key in ("s per 100 MB", "ratio", "memory ratio")}
    rows: dict[str, measure.Row] = {
        "foreign_json": {"value": worst["s per 100 MB"], "detail": found},
        "foreign_json_loads": {"value": worst["ratio"]},
        "foreign_memory": {"value": worst["memory ratio"]},
    }
    if options.quick:
        rows["foreign_memory"] = {"skipped": "small files are no more than the parts they are read in"}
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
