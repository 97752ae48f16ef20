# SPDX-License-Identifier: Apache-2.0
"""From the last launch to a table and a file: time, memory and size, for gpuscope and for other tools.

Each size of each tool is recorded in a process of its own, because memory is told by how much that process grew.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
from workload import Workload, torch_workload, workloads

SMALL = 100_000
LARGE = 1_000_000
OTHER_SMALL = 20_000  # with SMALL it gives the other tools' memory per launch
REGION_LAUNCHES = 100
REPEATS = 3
ROWS_SMALL = ("results_100k",)
ROWS_LARGE = ("results_1m", "memory_per_launch", "perfetto_1m", "perfetto_1m_size", "chrome_1m", "decode")


class Stopwatch:
    """Times named steps in ms."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def step(self, name: str, action: Callable[[], Any]) -> Any:
        began = time.perf_counter_ns()
        result = action()
        self.spent[name] = round((time.perf_counter_ns() - began) / 1e6, 3)
        return result


def launch_in_regions(workload: Workload, launches: int, region: Callable[[str], Any]) -> None:
    for _ in range(launches // REGION_LAUNCHES):
        with region("step"):
            workload.launch(REGION_LAUNCHES)
    workload.synchronize()


def record(workload: Workload, launches: int) -> tuple[Any, dict[str, Any]]:
    """One recording by gpuscope, and what it took to get its table."""
    import gpuscope

    before = measure.resident_bytes()
    watch = Stopwatch()
    prof = gpuscope.profile(activities=[gpuscope.ProfilerActivity.CUDA])  # kernels: the budgets are theirs
    prof.start()
    launch_in_regions(workload, launches, gpuscope.record_function)
    watch.step("stop_ms", prof.stop)
    grown = measure.resident_bytes() - before
    averages = watch.step("key_averages_ms", prof.key_averages)
    watch.step("table_ms", averages.table)
    total = round(sum(watch.spent.values()), 3)
    return prof, {**watch.spent, "total_ms": total, "grown_bytes": grown}


def size_mb(path: Path) -> float:
    return round(path.stat().st_size / 1e6, 3)


def our_child(launches: int, repeats: int) -> dict[str, Any]:
    (workload, *_) = workloads()
    record(workload, 1000)  # the clock, the pools and the decode thread exist from here on
    runs = []
    for number in range(repeats):
        prof, figures = record(workload, launches)
        runs.append(figures)
        if number + 1 < repeats:
            del prof
    info = prof.trace.info
    kernels = len(prof.trace.kernels)
    if kernels != launches:
        raise RuntimeError(
            f"{kernels} kernels were recorded of {launches} launches: no figure of it would mean anything"
        )
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        perfetto, chrome = Path(folder) / "a.pftrace", Path(folder) / "a.json"
        watch.step("perfetto_ms", lambda: prof.export_perfetto(str(perfetto)))
        watch.step("chrome_ms", lambda: prof.export_chrome_trace(str(chrome)))
        sizes = {"perfetto_mb": size_mb(perfetto), "chrome_mb": size_mb(chrome)}
    return {
        "workload": workload.name,
        "launches": launches,
        "kernels": kernels,
        "api_rows": len(prof.trace.api),
        "audit": {key: value for key, value in info.items() if key.startswith("audit.")},
        "decode_ns_per_launch": round(int(info["audit.decode_cpu_ns"]) / max(kernels, 1), 2),
        "total_ms": statistics.median(run["total_ms"] for run in runs),
        "grown_bytes": runs[0]["grown_bytes"],
        "runs": runs,
        **watch.spent,
        **sizes,
    }


def torch_child(launches: int) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile, record_function

    workload = torch_workload()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities):
        workload.run(1000)
    before = measure.resident_bytes()
    watch = Stopwatch()
    prof = profile(activities=activities)
    prof.start()
    launch_in_regions(workload, launches, record_function)
    watch.step("stop_ms", prof.stop)
    grown = measure.resident_bytes() - before
    if launches == OTHER_SMALL:
        return {"grown_bytes": grown}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        watch.step("chrome_ms", lambda: prof.export_chrome_trace(str(path)))
        size = size_mb(path)
    averages = watch.step("key_averages_ms", prof.key_averages)
    watch.step("table_ms", averages.table)
    total = sum(watch.spent[name] for name in ("stop_ms", "key_averages_ms", "table_ms"))
    return {"total_ms": round(total, 3), "grown_bytes": grown, "chrome_mb": size, **watch.spent}


def proton_child(launches: int) -> dict[str, Any]:
    import triton.profiler as proton

    workload = torch_workload()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        workload.run(1000)
        before = measure.resident_bytes()
        watch = Stopwatch()
        session = proton.start(str(path), data="trace")
        launch_in_regions(workload, launches, proton.scope)
        watch.step("deactivate_ms", lambda: proton.deactivate(session))
        figures["grown_bytes"] = measure.resident_bytes() - before
        watch.step("finalize_ms", lambda: proton.finalize(session))  # writes the file
        figures["chrome_mb"] = round(sum(size_mb(written) for written in Path(folder).iterdir()), 3)
    figures["total_ms"] = round(sum(watch.spent.values()), 3)
    return {**figures, **watch.spent, "chrome_ms": watch.spent["finalize_ms"]}


OTHERS = {"torch.profiler": torch_child, "Proton": proton_child}


def other_rows() -> dict[str, dict[str, Any]]:
    """By tool, the figures of SMALL launches in the units of our rows."""
    rows: dict[str, dict[str, Any]] = {}
    for tool in OTHERS:
        small = measure.child("results.py", "--tool", tool, "--launches", str(OTHER_SMALL))
        large = measure.child("results.py", "--tool", tool, "--launches", str(SMALL))
        if "error" in large:
            rows[tool] = {"error": large["error"]}
            continue
        rows[tool] = {"results_100k": large["total_ms"], "figures": large}
        if "error" not in small:
            grown = large["grown_bytes"] - small["grown_bytes"]
            rows[tool]["memory_per_launch"] = round(grown / (SMALL - OTHER_SMALL), 1)
    return rows


def main() -> None:
    options = measure.arguments(__doc__, tool="", launches=0)
    if options.tool == "gpuscope":
        measure.answer(our_child(options.launches, REPEATS if options.launches <= SMALL else 1))
        return
    if options.tool:
        measure.answer(OTHERS[options.tool](options.launches))
        return
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS_SMALL + ROWS_LARGE}})
        return
    rows: dict[str, measure.Row] = {}
    small = measure.child("results.py", "--tool", "gpuscope", "--launches", str(SMALL))
    if "error" in small:
        measure.answer({"rows": {name: {"error": small["error"]} for name in ROWS_SMALL + ROWS_LARGE}})
        return
    rows["results_100k"] = {"value": small["total_ms"], "detail": small}
    large = (
        {"error": ""} if options.quick else measure.child("results.py", "--tool", "gpuscope", "--launches", str(LARGE))
    )
    if options.quick:
        rows.update({name: {"skipped": "needs 1M launches, which --quick leaves out"} for name in ROWS_LARGE})
    elif "error" in large:
        rows.update({name: {"error": large["error"]} for name in ROWS_LARGE})
    else:
        slope = (large["grown_bytes"] - small["grown_bytes"]) / (LARGE - SMALL)
        values = {
            "results_1m": large["total_ms"],
            "memory_per_launch": round(slope, 1),
            "perfetto_1m": round(large["perfetto_ms"] / 1e3, 3),
            "perfetto_1m_size": large["perfetto_mb"],
            "chrome_1m": round(large["chrome_ms"] / 1e3, 3),
            "decode": large["decode_ns_per_launch"],
        }
        rows.update({name: {"value": value} for name, value in values.items()})
        rows["results_1m"]["detail"] = large
    for tool, theirs in other_rows().items():
        for name, row in rows.items():
            if "error" in theirs or name in theirs:
                other = {"error": theirs["error"]} if "error" in theirs else {"value": theirs[name]}
                row.setdefault("others", {})[tool] = other
        if "figures" in theirs:
            rows["results_100k"]["others"][tool]["figures"] = theirs["figures"]
            if "value" in rows["chrome_1m"]:
                # A million launches take these tools over ten seconds: stated at 100k, as the note says.
                spent = {"value": round(theirs["figures"]["chrome_ms"] / 1e3, 3), "note": "for 100k"}
                rows["chrome_1m"].setdefault("others", {})[tool] = spent
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
