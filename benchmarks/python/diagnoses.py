# SPDX-License-Identifier: Apache-2.0
"""How long diagnose() takes for a recording of 1M kernels. No GPU is needed.

A recording of some steps is laid end to end until it has as many kernels: programs that were played on a small machine,
or with ``--recording run.gscope`` a real one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
KERNELS = 1_000_000
REPEATS = 3
STEPS, LAUNCHES = 20, 250
_EVENTS = ("kernel", "graph_node", "graph_launch", "memcpy", "memset", "sync", "api", "call_stack", "region", "detail")
TILED = (*_EVENTS, "python_function", "allocation", "mark")
_NONE = np.uint32(0xFFFFFFFF)


def gpu_bound() -> Any:
    """The host is ahead of the GPU."""
    from fakes.loops import Loop

    loop = Loop()
    for _ in loop.steps(STEPS):
        for _ in range(LAUNCHES):
            loop.launch(gpu=20)
    return loop.trace()


def launch_bound() -> Any:
    """Each kernel is launched after the one before has ended, by an operator on a line of the program."""
    from fakes.loops import Loop

    loop = Loop()
    for _ in loop.steps(STEPS):
        for number in range(LAUNCHES):
            with loop.at("train.py", 10 + number % 7), loop.region("aten::add"):
                loop.launch(gpu=2, host=8)
                loop.work(2)
    return loop.trace()


def waiting() -> Any:
    """The program waits for every kernel."""
    from fakes.loops import Loop

    loop = Loop()
    for _ in loop.steps(STEPS):
        for number in range(LAUNCHES):
            with loop.at("train.py", 10 + number % 7), loop.region("aten::item"):
                loop.launch(gpu=20)
                loop.wait()
    return loop.trace()


PROGRAMS: dict[str, Callable[[], Any]] = {"GPU-bound": gpu_bound, "launch-bound": launch_bound, "waiting": waiting}


def end_to_end(trace: Any, kernels: int) -> Any:
    """The recording again and again, as one, until it has so many kernels."""
    from fakes.gscope import file_of, strings_block, table_block
    from gpuscope import _core

    store = trace.store
    times = -(-kernels // store.rows("kernel"))
    columns = {name: store.columns(name) for name in store.tables() if store.rows(name)}
    length = max(int((each["start_ns"] + each.get("duration_ns", 0)).max()) for each in _timed(columns))
    length -= min(int(each["start_ns"].min()) for each in _timed(columns))
    correlations = int(columns["api"]["correlation"].max()) + 1
    turn = np.arange(times)[:, None]
    blocks = [strings_block(store.strings())]
    for table in _core.schema():
        if table.name not in columns:
            continue
        values = {name: np.asarray(each) for name, each in columns[table.name].items()}
        if table.name in TILED:
            for column in table.columns:
                each, step = values[column.name], 0
                if column.name == "start_ns":
                    step = length + 5_000
                elif column.name == "correlation":
                    step = correlations
                elif column.target in TILED:
                    step = store.rows(column.target)
                moved = each[None, :] + (turn * step).astype(each.dtype)
                if column.optional:
                    moved[:, each == _NONE] = _NONE
                values[column.name] = moved.reshape(-1)
        blocks.append(table_block(table.name, values))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.gscope"
        path.write_bytes(file_of(*blocks))
        return _core.read_gscope(str(path))


def _timed(columns: dict[str, Any]) -> list[Any]:
    return [each for name, each in columns.items() if name in TILED and "start_ns" in each]


def seconds(store: Any) -> list[float]:
    """What it takes to diagnose it, each time anew."""
    from gpuscope.diagnosis.diagnose import diagnose
    from gpuscope.trace import Trace

    spent = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        str(diagnose(Trace(store)))
        spent.append(round(time.perf_counter() - began, 3))
    return spent


def main() -> None:
    options = measure.arguments(__doc__, recording="", kernels=KERNELS)
    why = measure.why_not_available() or ("recordings of 1M launches are left out" if options.quick else "")
    if why:
        measure.answer({"rows": {"diagnose_1m": {"skipped": why}}})
        return
    sys.path.insert(0, str(ROOT / "tests"))
    import gpuscope

    programs = {options.recording: lambda: gpuscope.load(options.recording)} if options.recording else PROGRAMS
    spent = {name: seconds(end_to_end(make(), options.kernels)) for name, make in programs.items()}
    worst = max(statistics.median(each) for each in spent.values())
    measure.answer({"rows": {"diagnose_1m": {"value": worst, "detail": spent}}})


if __name__ == "__main__":
    main()
