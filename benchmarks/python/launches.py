# SPDX-License-Identifier: Apache-2.0
"""A launch-bound loop: alone, under bare CUPTI kernel records, under gpuscope; other tools in their own processes."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import measure
from floor import Floor, FloorMissing
from workload import Workload, torch_workload, workloads

LAUNCHES = 1000  # a round
OUTSIDE = 0xFFFFFFFF  # a kernel in no region
SETTLE = 100  # launches after a switch that are not timed: the first ones fill caches and fetch buffers
ROUNDS = 100
QUICK_ROUNDS = 20
# Tools that take long to start and stop: fewer and longer rounds, 100k launches each way.
OTHER_LAUNCHES = 10_000
OTHER_ROUNDS = 10
ROWS = ("launch_loop", "launch_loop_operators")

Mode = Callable[[], AbstractContextManager[Any]]


def time_rounds(
    workload: Workload, modes: dict[str, Mode], rounds: int, launches: int, settle: int = SETTLE
) -> dict[str, list[float]]:
    """ns per launch of each round; a mode is entered before its round and left after it, outside the clock."""
    names = list(modes)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            with modes[name]():
                workload.run(settle)
                began = time.perf_counter_ns()
                workload.run(launches)
                took = (time.perf_counter_ns() - began) / launches
            if number > 0:  # the first round starts every tool up
                spent[name].append(took)
    return spent


def against(spent: dict[str, list[float]], name: str, base: str) -> dict[str, float]:
    ratios = sorted(a / b for a, b in zip(spent[name], spent[base], strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"ratio": round(middle, 4), "lower_quartile": round(low, 4), "upper_quartile": round(high, 4)}


@contextlib.contextmanager
def under_floor(floor: Floor) -> Any:
    floor.start()
    try:
        yield
    finally:
        floor.stop()


@contextlib.contextmanager
def under_gpuscope(kept: list[Any], operators: bool = False) -> Any:
    import gpuscope

    activity = gpuscope.ProfilerActivity
    activities = [activity.CUDA, *([activity.CPU] if operators else [])]
    with gpuscope.profile(activities=activities) as prof, gpuscope.record_function("launches"):
        yield
    kept[:] = [prof]


def check_complete(prof: Any) -> None:
    """A loop that is fast because records are lost proves nothing."""
    region = prof.trace.kernels["region"]
    placed = int((region != OUTSIDE).sum())
    if len(region) != LAUNCHES + SETTLE or placed != len(region):
        raise RuntimeError(f"of {LAUNCHES + SETTLE} launches {len(region)} were recorded and {placed} had a region")


def check_operators(prof: Any, name: str, count: int) -> None:
    """Nor does one that is fast because operators are."""
    trace = prof.trace
    names = [trace.string(int(name)) for name in trace.paths["name"]]
    recorded = sum(names[path] == name for path in trace.regions["path"].tolist())
    if recorded != count:
        raise RuntimeError(f"of {count} operators {recorded} were recorded")


def predicted(prof: Any, spent: Mapping[str, list[float]], mode: str) -> dict[str, Any]:
    """What the audit of a recorded round says that a launch took longer, beside what it really took longer."""
    audit = prof.audit()
    launches = LAUNCHES + SETTLE
    really = statistics.median(on - off for on, off in zip(spent[mode], spent["nothing"], strict=True))
    return {
        "audit ns per launch": round(audit.overhead_ns / launches, 1),
        "of it CUPTI": round(audit.overhead_cupti_ns / launches, 1),
        "measured ns per launch": round(really, 1),
        "how": audit.overhead_source,
        "calibration ms": round(audit.calibration_ns / 1e6, 3),
    }


def ours(rounds: int) -> dict[str, measure.Row]:
    """Kernels alone, as the floor has them; and, where torch launches, with its operators."""
    floor = Floor()
    kept: list[Any] = []
    detail: dict[str, Any] = {}
    for workload in workloads():
        modes: dict[str, Mode] = {
            "nothing": contextlib.nullcontext,
            "floor": lambda: under_floor(floor),
            "gpuscope": lambda: under_gpuscope(kept),
        }
        spent = time_rounds(workload, modes, rounds, LAUNCHES)
        check_complete(kept[0])
        detail[workload.name] = {
            "ns per launch": measure.medians(spent),
            "gpuscope over floor": against(spent, "gpuscope", "floor"),
            "gpuscope over nothing": against(spent, "gpuscope", "nothing"),
            "floor over nothing": against(spent, "floor", "nothing"),
            "overhead": predicted(kept[0], spent, "gpuscope"),
        }
    if floor.refused():
        raise FloorMissing(f"the CUPTI floor ran out of buffers {floor.refused()} times and reads too low")
    detail["floor records"] = floor.records()
    worst = max(entry["gpuscope over floor"]["ratio"] for entry in detail.values() if isinstance(entry, dict))
    return {"launch_loop": {"value": worst, "detail": detail}, "launch_loop_operators": with_operators(floor, rounds)}


def with_operators(floor: Floor, rounds: int) -> measure.Row:
    """Rounds of their own, after those of kernels alone: torch's operator ranges are not in the process before."""
    try:
        workload = torch_workload()
    except ImportError as error:
        return {"skipped": str(error)}
    workload.run(SETTLE)
    kept: list[Any] = []
    modes: dict[str, Mode] = {
        "nothing": contextlib.nullcontext,
        "floor": lambda: under_floor(floor),
        "operators": lambda: under_gpuscope(kept, operators=True),
    }
    spent = time_rounds(workload, modes, rounds, LAUNCHES)
    check_complete(kept[0])
    check_operators(kept[0], "aten::add_", LAUNCHES + SETTLE)
    over_floor = against(spent, "operators", "floor")
    detail = {
        "ns per launch": measure.medians(spent),
        "operators over floor": over_floor,
        "operators over nothing": against(spent, "operators", "nothing"),
        "overhead": predicted(kept[0], spent, "operators"),
    }
    return {"value": over_floor["ratio"], "detail": detail}


def floor_alone(rounds: int) -> dict[str, Any]:
    """The floor in a process that never had a profiler in it."""
    floor = Floor()
    (workload, *_) = workloads()
    spent = time_rounds(workload, {"off": contextlib.nullcontext, "on": lambda: under_floor(floor)}, rounds, LAUNCHES)
    return {
        "on over off": against(spent, "on", "off"),
        "ns per launch": measure.medians(spent),
        "workload": workload.name,
    }


def on_over_off(mode: Mode, rounds: int) -> dict[str, Any]:
    workload = torch_workload()
    workload.run(SETTLE)
    spent = time_rounds(workload, {"off": contextlib.nullcontext, "on": mode}, rounds, OTHER_LAUNCHES)
    return {
        "on over off": against(spent, "on", "off"),
        "ns per launch": measure.medians(spent),
        "workload": workload.name,
    }


def torch_loop(rounds: int) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    return on_over_off(lambda: profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]), rounds)


def proton_loop(rounds: int) -> dict[str, Any]:
    import triton.profiler as proton

    with tempfile.TemporaryDirectory() as folder:
        session = proton.start(str(Path(folder) / "launches"))
        proton.deactivate(session)

        @contextlib.contextmanager
        def active() -> Any:
            proton.activate(session)
            try:
                with proton.scope("launches"):
                    yield
            finally:
                proton.deactivate(session)

        result = on_over_off(active, rounds)
        proton.finalize()
    return result


OTHERS = {"floor alone": floor_alone, "torch.profiler": torch_loop, "Proton": proton_loop}


def main() -> None:
    options = measure.arguments(__doc__, tool="")
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    if options.tool:
        measure.answer(
            OTHERS[options.tool](rounds if options.tool == "floor alone" else max(3, OTHER_ROUNDS * rounds // ROUNDS))
        )
        return
    why = measure.why_not_available(gpu=True)
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    try:
        rows = ours(rounds)
    except FloorMissing as error:
        rows = {name: {"skipped": str(error)} for name in ROWS}
    others = {}
    for tool in OTHERS:
        theirs = measure.child("launches.py", "--tool", tool, *(["--quick"] if options.quick else []))
        # Their ratio is over nothing, not over the floor: a profiler that finds another's CUPTI misbehaves.
        others[tool] = (
            theirs if "error" in theirs else {"value": theirs["on over off"]["ratio"], "unit": "x nothing", **theirs}
        )
    rows["launch_loop"]["others"] = others
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
