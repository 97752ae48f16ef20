# SPDX-License-Identifier: Apache-2.0
"""The same training steps under torch.profiler and under gpuscope, in turns; prints what each of them saw.

``compare_training.py MODEL [DEVICE]``, where DEVICE is cuda or, to try the script without a GPU, cpu.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import models
import theirs
import torch
from reading import MODULE, Reading
from torch.profiler import ProfilerActivity, profile

import gpuscope as gs

STEPS = 2
WARM_UP = 5
ROUNDS = 3
# What they take holds tensors or nothing: torch.profiler then gives no shapes of that list, its own ranges do.
OPTIONAL_TENSORS = ("aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index")
# Operators whose shapes a user looks up in the table.
IN_TABLE = (
    "aten::conv2d",
    "aten::convolution_backward",
    "aten::cudnn_batch_norm",
    "aten::mm",
    "aten::addmm",
    "aten::native_layer_norm",
    "aten::embedding",
    "AddmmBackward0",
)

Operators = Counter[tuple[str, str]]


def activities(device: str) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]


def under_torch(steps: models.Steps, device: str, **options: bool) -> Any:
    with profile(activities=activities(device), **options) as prof:
        steps(STEPS)
    return prof


def under_gpuscope(steps: models.Steps, device: str, **options: bool) -> gs.profile:
    with gs.profile(activities=activities(device), **options) as prof:
        steps(STEPS)
    return prof


def without_optional_tensors(operators: Operators) -> Operators:
    found: Operators = Counter()
    for (name, shapes), count in operators.items():
        found[name, "" if name in OPTIONAL_TENSORS else shapes] += count
    return found


def rows(operators: Operators) -> list[list[Any]]:
    return [[name, shapes, count] for (name, shapes), count in operators.most_common(20)]


def operators(steps: models.Steps, device: str) -> dict[str, Any]:
    """Operators, where GPU work lies and for how long, in rounds that take turns."""
    totals: dict[str, list[float]] = {"theirs": [], "ours": []}
    by_operator: dict[str, list[dict[str, float]]] = {"theirs": [], "ours": []}
    for _ in range(ROUNDS):
        their_prof = under_torch(steps, device, record_shapes=True)
        our_prof = under_gpuscope(steps, device, record_shapes=True)
        reading = Reading(our_prof.trace)
        totals["theirs"].append(theirs.device_us(their_prof))
        totals["ours"].append(sum(reading.device_us_by_region().values()))
        by_operator["theirs"].append(theirs.device_us_by_operator(their_prof))
        by_operator["ours"].append(reading.device_us_by_region())
    expected = without_optional_tensors(theirs.operators(their_prof))
    found = without_optional_tensors(reading.operators())
    audit = our_prof.audit()
    return {
        "operators": {"theirs": expected.total(), "ours": found.total()},
        "missing": rows(expected - found),
        "extra": rows(found - expected),
        "table": {"theirs": table(their_prof), "ours": table(our_prof)},
        "ranges": dict(reading.named(2)),
        "work by operator": {"theirs": theirs.work_by_operator(their_prof), "ours": reading.work_by_region()},
        "device us": totals,
        "device us by operator": by_operator,
        "outside": reading.outside(),
        "audit": {"complete": audit.complete, "text": str(audit)},
    }


def table(prof: Any) -> list[Any]:
    """The rows that a user sees for some operators: name, shapes, count."""
    averages = prof.key_averages(group_by_input_shape=True)
    return sorted([row.key, json.dumps(row.input_shapes), row.count] for row in averages if row.key in IN_TABLE)


def by_key(prof: Any, value: Callable[[Any], int]) -> dict[str, int]:
    """A figure of each row of the table, where it is not nothing."""
    found: Counter[str] = Counter()
    for row in prof.key_averages():
        if not row.key.startswith("["):  # "[memory]" is no operator
            found[row.key] += value(row)
    return {name: amount for name, amount in found.items() if amount}


def both(steps: models.Steps, device: str, names: tuple[str, ...], **options: bool) -> dict[str, Any]:
    """Figures of the table, by their names, of one recording each."""
    profs = {"theirs": under_torch(steps, device, **options), "ours": under_gpuscope(steps, device, **options)}
    return {name: {who: by_key(prof, attrgetter(name)) for who, prof in profs.items()} for name in names}


def modules(steps: models.Steps, device: str) -> dict[str, Any]:
    """The modules that were seen, and those that launched kernels."""
    reading = Reading(under_gpuscope(steps, device, with_modules=True).trace)
    launching = {name for row in set(reading.trace.kernels.region.tolist()) for name in reading.region(row)}
    seen = set(reading.named(MODULE))
    return {"seen": sorted(seen), "launching": sorted(seen & launching)}


def main() -> None:
    model, device = sys.argv[1], (sys.argv[2:] or ["cuda"])[0]
    torch.manual_seed(0)
    try:
        steps = models.MODELS[model](device)
    except ImportError as error:
        print(json.dumps({"skip": str(error)}))
        return
    steps(WARM_UP)
    facts = operators(steps, device)
    if model != "mixed":
        facts |= both(steps, device, ("self_device_memory_usage", "self_cpu_memory_usage"), profile_memory=True)
        facts |= both(steps, device, ("flops",), with_flops=True)
        facts["modules"] = modules(steps, device)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
