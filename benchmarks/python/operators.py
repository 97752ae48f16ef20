# SPDX-License-Identifier: Apache-2.0
"""What recording torch's operators costs the CPU, beside torch.profiler's own; each option by itself; NVTX ranges.

``--device cpu`` measures on a machine without a GPU.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import measure
from launches import SETTLE, Mode, check_operators, time_rounds
from workload import WARM_UP, Workload, torch_wait, torch_workload

OPERATORS = 2000  # a round
ROUNDS = 60
QUICK_ROUNDS = 12
FLOOR_OPERATORS = 100
ROWS = ("operator", "operator_shapes", "python_functions", "nvtx")


def under_gpuscope(kept: list[Any], **options: bool) -> Mode:
    import gpuscope

    @contextlib.contextmanager
    def mode() -> Any:
        with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], **options) as prof:
            yield
        kept[:] = [prof]

    return mode


def under_torch(**options: bool) -> Mode:
    from torch.profiler import ProfilerActivity, profile

    return lambda: profile(activities=[ProfilerActivity.CPU], **options)


def costs(spent: dict[str, list[float]]) -> dict[str, float]:
    """What each way costs over nothing, in ns an operator: the median of the differences round by round."""
    return {
        name: round(statistics.median(a - b for a, b in zip(values, spent["nothing"], strict=True)), 1)
        for name, values in spent.items()
    }


def module_workload(device: str) -> Workload:
    """An operator inside a module."""
    import torch

    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    x, module = torch.zeros(16, device=device), Add()

    def launch(launches: int) -> None:
        for _ in range(launches):
            module(x)

    return Workload("torch module of x.add_(1)", launch, torch_wait(device))


def allocating_workload(device: str) -> Workload:
    """An operator that takes memory, which is given back at once."""
    import torch

    x = torch.zeros(16, device=device)

    def launch(launches: int) -> None:
        for _ in range(launches):
            x.add(1)

    return Workload("torch x.add(1)", launch, torch_wait(device))


def nvtx_workload() -> Workload:
    """A range of NVTX, pushed and popped; raises where torch has none."""
    import torch

    push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop

    def launch(launches: int) -> None:
        for _ in range(launches):
            push("x")
            pop()

    launch(1)
    return Workload("torch.cuda.nvtx push and pop", launch, lambda: None)


def compare(workload: Workload, operator: str, modes: dict[str, Mode], rounds: int) -> dict[str, Any]:
    """The modes in turns, with nothing and with gpuscope's plain operators beside them."""
    kept: list[Any] = []
    workload.run(WARM_UP)
    everyone: dict[str, Mode] = {"nothing": contextlib.nullcontext, "gpuscope": under_gpuscope(kept), **modes}
    spent = time_rounds(workload, everyone, rounds, OPERATORS)
    check_operators(kept[0], operator, OPERATORS + SETTLE)
    return {"workload": workload.name, "ns": measure.medians(spent), "cost_ns": costs(spent)}


def floors(workload: Workload) -> dict[str, int]:
    """What torch takes to call callbacks that do nothing, in ns an operator: no less is to be had."""
    from gpuscope._core import TorchCallbacks

    def forward() -> None:
        workload.run(FLOOR_OPERATORS)

    return {
        name: TorchCallbacks.measure(forward, forward, shapes=shapes)[0]
        for name, shapes in (("plain", False), ("record_shapes", True))
    }


def operators(device: str, rounds: int) -> dict[str, measure.Row]:
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "gpuscope, record_shapes": under_gpuscope([], record_shapes=True),
        "gpuscope, with_stack": under_gpuscope([], with_stack=True),
        "gpuscope, with_flops": under_gpuscope([], with_flops=True),
        "torch.profiler": under_torch(),
        "torch.profiler, record_shapes": under_torch(record_shapes=True),
    }
    plain = compare(torch_workload(device), "aten::add_", ways, rounds)
    inside = {
        "gpuscope, with_modules": under_gpuscope([], with_modules=True),
        "gpuscope, with_stack": under_gpuscope([], with_stack=True),
        "torch.profiler": under_torch(),
        "torch.profiler, with_stack": under_torch(with_stack=True),
    }
    modules = compare(module_workload(device), "aten::add_", inside, rounds)
    memory = {
        "gpuscope, profile_memory": under_gpuscope([], profile_memory=True),
        "torch.profiler": under_torch(),
        "torch.profiler, profile_memory": under_torch(profile_memory=True),
    }
    allocations = compare(allocating_workload(device), "aten::add", memory, rounds)
    called = modules["cost_ns"]
    functions = called["gpuscope, with_stack"] - called["gpuscope"]
    options_us = {
        option.removeprefix("gpuscope, "): round((run["cost_ns"][option] - run["cost_ns"]["gpuscope"]) / 1e3, 3)
        for run in (modules, plain, allocations)
        for option in run["cost_ns"]
        if option.startswith("gpuscope, ")
    }
    cost = plain["cost_ns"]
    shaped = cost["gpuscope, record_shapes"] / cost["torch.profiler, record_shapes"]
    return {
        "operator": {
            "value": round(cost["gpuscope"] / cost["torch.profiler"], 4),
            "detail": {
                "device": device,
                "options, us an operator": options_us,
                "plain": plain,
                "torch's part, ns each": floors(torch_workload(device)),
                "modules": modules,
                "allocations": allocations,
            },
        },
        "operator_shapes": {"value": round(shaped, 4)},
        "python_functions": {
            "value": round(functions / (called["torch.profiler, with_stack"] - called["torch.profiler"]), 4)
        },
    }


def nvtx(rounds: int) -> measure.Row:
    """NVTX asks for a tool at its first call, so that a profiler has to come before: this begins a process."""
    import gpuscope

    with gpuscope.profile():
        pass
    try:
        workload = nvtx_workload()
    except RuntimeError as error:
        return {"skipped": f"this torch has no NVTX: {error}"}
    kept: list[Any] = []
    modes: dict[str, Mode] = {"nothing": contextlib.nullcontext, "gpuscope": under_gpuscope(kept)}
    spent = time_rounds(workload, modes, rounds, OPERATORS)
    check_operators(kept[0], "x", OPERATORS + SETTLE)
    ratio = measure.paired_ratio(spent["gpuscope"], spent["nothing"])
    return {"value": round(ratio, 3), "detail": {"ns": measure.medians(spent), "cost_ns": costs(spent)}}


def main() -> None:
    options = measure.arguments(__doc__, tool="", device="cuda")
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    if options.tool == "nvtx":
        measure.answer(nvtx(rounds))
        return
    why = measure.why_not_available(gpu=options.device == "cuda")
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    try:
        rows = operators(options.device, rounds)
    except ImportError as error:
        measure.answer({"rows": {name: {"skipped": str(error)} for name in ROWS}})
        return
    rows["nvtx"] = measure.child("operators.py", "--tool", "nvtx", *(["--quick"] if options.quick else []))
    measure.answer({"rows": rows})


if __name__ == "__main__":
    main()
