# SPDX-License-Identifier: Apache-2.0
"""What the audit says that recording took of the program's thread, beside what it really took. No GPU is needed.

Programs of regions, of Python functions and of torch's operators run in turns, alone and under ``profile()``, in time
of the CPU.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import measure

ROUNDS, QUICK_ROUNDS = 21, 7
LEAST_NS = 100.0  # of a call: less is too close to nothing for a ratio
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "flops": {"with_flops": True},
    "stacks": {"with_stack": "operators"},
    "stacks, shapes": {"with_stack": "operators", "record_shapes": True},
    "functions": {"with_stack": True},
}
Body = Callable[[int], None]


def programs() -> dict[str, tuple[Body, int]]:
    """What calls something so often, and how often it is asked to in a round."""
    import gpuscope

    def regions(count: int) -> None:
        for _ in range(count):
            with gpuscope.record_function("region"):
                pass

    def called(values: dict[str, Any]) -> int:
        return len(values)

    def functions(count: int) -> None:
        for _ in range(count):
            called(called.__annotations__)

    def generators(count: int) -> None:
        for _ in itertools.zip_longest((each for each in range(count)), (each for each in range(count))):
            pass

    found: dict[str, tuple[Body, int]] = {
        "regions": (regions, 20_000),
        "functions": (functions, 20_000),
        "generators": (generators, 20_000),
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    x, batch = torch.zeros(16), torch.zeros(8, 8)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    images, network = torch.zeros(2, 3, 8, 8), torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    optimizer = torch.optim.AdamW(model.parameters())

    def add(count: int) -> None:
        for _ in range(count):
            x.add_(1)

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

    def infer(count: int) -> None:
        with torch.no_grad():
            for _ in range(count):
                network(images)

    return {**found, "add_": (add, 10_000), "training": (train, 100), "convolution": (infer, 400)}


def cpu_ns(body: Body, count: int) -> float:
    """Of a call."""
    body(count // 20 + 1)
    began = time.thread_time_ns()
    body(count)
    return (time.thread_time_ns() - began) / count


def told_and_real(body: Body, count: int, options: dict[str, Any], rounds: int) -> tuple[float, float]:
    """What a call takes longer when recorded, in ns: by the audit, and really."""
    import gpuscope

    told, real = [], []
    for _ in range(rounds):
        alone = cpu_ns(body, count)
        with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], **options) as prof:
            recorded = cpu_ns(body, count)
        told.append(prof.audit().overhead_ns / (count + count // 20 + 1))
        real.append(recorded - alone)
    return statistics.median(told), statistics.median(real)


def main() -> None:
    options = measure.arguments(__doc__)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    detail: dict[str, dict[str, Any]] = {}
    off = []
    for name, (body, count) in programs().items():
        for option, given in OPTIONS.items():
            told, real = told_and_real(body, count, given, rounds)
            detail.setdefault(name, {})[option] = {"told ns": round(told, 1), "real ns": round(real, 1)}
            if real >= LEAST_NS:
                off.append(max(told / real, real / told) if told > 0 else float("inf"))
    measure.answer({"rows": {"overhead_told": {"value": round(max(off, default=1.0), 3), "detail": detail}}})


if __name__ == "__main__":
    main()
