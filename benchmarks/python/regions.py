# SPDX-License-Identifier: Apache-2.0
"""A region's enter + exit, off and on, over `with contextlib.nullcontext():`; torch's and Proton's beside it."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

ITERATIONS = 20_000
OTHER_ITERATIONS = 2_000  # tools whose regions cost microseconds, and kilobytes
ROUNDS = 60
QUICK_ROUNDS = 15

Body = Callable[[int], None]


def empty_loop(iterations: int) -> None:
    for _ in range(iterations):
        pass


def null_context(iterations: int) -> None:
    nullcontext = contextlib.nullcontext
    for _ in range(iterations):
        with nullcontext():
            pass


def lock(iterations: int) -> None:
    held = threading.Lock()
    for _ in range(iterations):
        with held:
            pass


def named(region: Callable[[str], contextlib.AbstractContextManager[Any]]) -> Body:
    """A loop that makes and enters a region each time, as programs do."""

    def body(iterations: int) -> None:
        for _ in range(iterations):
            with region("x"):
                pass

    return body


def kept(region: contextlib.AbstractContextManager[Any]) -> Body:
    def body(iterations: int) -> None:
        for _ in range(iterations):
            with region:
                pass

    return body


def compare(bodies: dict[str, Body], iterations: int, rounds: int) -> dict[str, Any]:
    """Each body against nullcontext in the same rounds."""
    everyone = {"empty loop": empty_loop, "nullcontext": null_context, "lock": lock, **bodies}
    counts = {name: iterations if name in bodies else ITERATIONS for name in everyone}
    measure.take_turns(everyone, counts, 2)
    spent = measure.take_turns(everyone, counts, rounds)
    ratios = {name: round(measure.paired_ratio(spent[name], spent["nullcontext"]), 3) for name in bodies}
    return {"ratios": ratios, "ns": measure.medians(spent)}


def ours(rounds: int) -> dict[str, measure.Row]:
    import gpuscope

    bodies = {"made": named(gpuscope.record_function), "kept": kept(gpuscope.record_function("x"))}
    off = compare(bodies, ITERATIONS, rounds)
    with gpuscope.profile():
        on = compare(bodies, ITERATIONS, rounds)
    return {
        "region_off": {"value": off["ratios"]["made"], "detail": off},
        "region_on": {"value": on["ratios"]["made"], "detail": on},
    }


def torch_regions(rounds: int) -> dict[str, Any]:
    import torch

    bodies = {"made": named(torch.profiler.record_function)}
    off = compare(bodies, OTHER_ITERATIONS, rounds)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        on = compare(bodies, OTHER_ITERATIONS, rounds)
    return {"region_off": off, "region_on": on}


def proton_regions(rounds: int) -> dict[str, Any]:
    import triton.profiler as proton

    bodies = {"made": named(proton.scope)}
    off = compare(bodies, OTHER_ITERATIONS, rounds)
    with tempfile.TemporaryDirectory() as folder:
        proton.start(str(Path(folder) / "regions"))
        on = compare(bodies, OTHER_ITERATIONS, rounds)
        proton.finalize()
    return {"region_off": off, "region_on": on}


OTHERS = {"torch.profiler": torch_regions, "Proton": proton_regions}


def main() -> None:
    options = measure.arguments(__doc__, tool="")
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    if options.tool:
        measure.answer(OTHERS[options.tool](rounds // 3))
        return
    why = measure.why_not_available()
    if why:
        rows: dict[str, measure.Row] = {name: {"skipped": why} for name in ("region_on", "region_off")}
    else:
        rows = ours(rounds)
    for tool in OTHERS:
        theirs = measure.child("regions.py", "--tool", tool, *(["--quick"] if options.quick else []))
        for name, row in rows.items():
            other = (
                {"error": theirs["error"]}
                if "error" in theirs
                else {"value": theirs[name]["ratios"]["made"], **theirs[name]}
            )
            row.setdefault("others", {})[tool] = other
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
