# SPDX-License-Identifier: Apache-2.0
"""Training steps with the memory history over the same without: ours with Python stacks, and torch's own likewise.

``--device cpu`` measures on a machine without a GPU, where torch's own records nothing.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import measure
from launches import against, time_rounds
from workload import Workload, torch_wait

LAYERS, WIDTH, HEADS = 4, 256, 4
BATCH, WORDS = 8, 64
STEPS = 10  # a round
SETTLE = 2
ROUNDS = 30
QUICK_ROUNDS = 8
MAX_ENTRIES = 100_000
ROWS = ("memory_history", "memory_history_event")


def transformer_step(device: str) -> Callable[[], None]:
    import torch

    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randn(BATCH, WORDS, WIDTH, device=device)

    def step() -> None:
        model(words).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def workload(device: str) -> Workload:
    step = transformer_step(device)

    def launch(steps: int) -> None:
        for _ in range(steps):
            step()

    made = Workload("transformer step", launch, torch_wait(device))
    made.run(SETTLE * 2)
    return made


@contextlib.contextmanager
def under_ours(counted: list[int], stacks: bool = True) -> Iterator[None]:
    """`counted`: the events of each round."""
    from gpuscope import _core
    from gpuscope.memory.history.history import record_memory_history

    with record_memory_history(max_entries=MAX_ENTRIES, stacks=stacks) as history:
        yield
    if history.notes:
        raise RuntimeError(f"a history that lacks something proves nothing: {'; '.join(history.notes)}")
    counted.append(_core.memory_history()["recorded"])


@contextlib.contextmanager
def under_torch() -> Iterator[None]:
    import torch

    record = torch.cuda.memory._record_memory_history
    record("all", context="all", stacks="python", max_entries=MAX_ENTRIES)
    try:
        yield
    finally:
        record(None)


def compared(device: str, rounds: int) -> dict[str, Any]:
    counted: list[int] = []
    modes: dict[str, Callable[[], Any]] = {
        "nothing": contextlib.nullcontext,
        "gpuscope": lambda: under_ours(counted),
        "gpuscope, no stacks": lambda: under_ours([], stacks=False),
    }
    if device == "cuda":
        modes["torch's own"] = under_torch
    spent = time_rounds(workload(device), modes, rounds, STEPS, SETTLE)
    events = statistics.median(counted) / (STEPS + SETTLE)
    cost_ns = {
        name: statistics.median(a - b for a, b in zip(spent[name], spent["nothing"], strict=True)) for name in spent
    }
    return {
        "ns a step": measure.medians(spent),
        "events a step": round(events, 1),
        "over nothing": {name: against(spent, name, "nothing") for name in spent if name != "nothing"},
        "us an event": {name: round(cost / events / 1e3, 3) for name, cost in cost_ns.items() if name != "nothing"},
    }


def rows(found: dict[str, Any]) -> dict[str, measure.Row]:
    def row(values: dict[str, Any], detail: dict[str, Any]) -> measure.Row:
        others = {name: {"value": value} for name, value in values.items() if name != "gpuscope"}
        return {"value": values["gpuscope"], "others": others, "detail": detail}

    ratios = {name: against["ratio"] for name, against in found["over nothing"].items()}
    return {"memory_history": row(ratios, found), "memory_history_event": row(found["us an event"], {})}


def main() -> None:
    options = measure.arguments(__doc__, device="cuda")
    why = measure.why_not_available(gpu=options.device == "cuda")
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    try:
        found = compared(options.device, QUICK_ROUNDS if options.quick else ROUNDS)
    except ImportError as error:
        measure.answer({"rows": {name: {"skipped": str(error)} for name in ROWS}})
        return
    measure.answer({"rows": rows(found)})


if __name__ == "__main__":
    main()
