# SPDX-License-Identifier: Apache-2.0
"""How many training steps it takes until a leak of one 1 MiB tensor a step is found, with the right line.

The same steps without the leak must yield none, however many of them are watched.
"""

from __future__ import annotations

import time
from typing import Any

import measure

MIB = 1 << 20
STEPS = (5, 6, 8, 10, 12, 16, 20)
CLEAN_STEPS = (5, 8, 20, 50)
QUICK_CLEAN_STEPS = (8, 20)
ROWS = ("memory_leaks",)


class Training:
    """A convolutional network with momentum; `leaky` keeps one tensor a step."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        layers = [torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Flatten()]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(32 * 30 * 30, 10)).cuda()
        self.images = torch.randn(16, 3, 32, 32, device="cuda")
        self.labels = torch.randint(0, 10, (16,), device="cuda")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.kept: list[Any] = []

    def clean(self) -> None:
        self.optimizer.zero_grad()
        self.torch.nn.functional.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()

    def leaky(self) -> None:
        self.clean()
        self.kept.append(self.torch.empty(MIB, dtype=self.torch.uint8, device="cuda"))


LEAKING_LINE = Training.leaky.__code__.co_firstlineno + 2


def found(report: Any) -> bool:
    """Whether the planted leak, and nothing else, is reported at its line."""
    places = [leak.place for leak in report]
    return len(places) == 1 and places[0] is not None and (places[0].file, places[0].line) == (__file__, LEAKING_LINE)


def row(torch: Any, clean_steps: tuple[int, ...]) -> measure.Row:
    """The fewest steps from which on the leak is always found; false alarms of clean loops count as never."""
    from gpuscope.memory.history.leaks import find_leaks

    outcomes = {}
    for steps in STEPS:
        training = Training(torch)  # anew, so that the warm-up is part of it
        outcomes[steps] = found(find_leaks(training.leaky, steps=steps))
        training.kept.clear()
    alarms = {steps: str(report) for steps in clean_steps if (report := find_leaks(Training(torch).clean, steps=steps))}
    began = time.perf_counter()
    find_leaks(Training(torch).clean, steps=STEPS[-1])
    detail = {
        "found, by steps": outcomes,
        "false alarms, by steps": alarms,
        "s for 20 clean steps": round(time.perf_counter() - began, 3),
    }
    missed = [steps for steps in STEPS if not outcomes[steps]]
    enough = [steps for steps in STEPS if not missed or steps > missed[-1]]
    return {"value": enough[0] if enough and not alarms else 1000, "detail": detail}


def main() -> None:
    options = measure.arguments(__doc__)
    why = measure.why_not_available(gpu=True)
    try:
        import torch
    except ImportError as error:
        why = why or f"PyTorch is not installed: {error}"
    if why:
        measure.answer({"rows": {name: {"skipped": why} for name in ROWS}})
        return
    measure.answer({"rows": {"memory_leaks": row(torch, QUICK_CLEAN_STEPS if options.quick else CLEAN_STEPS)}})


if __name__ == "__main__":
    main()
