# SPDX-License-Identifier: Apache-2.0
"""Programs with one fault each, and the same programs without it: what a diagnosis should find, and what not.

Each step computes for about `COMPUTE_MS` on the GPU, and the fault adds so much that it is the given share of a step. A
program and its mended one do the same: what is calibrated is so once, and what computes multiplies zeros, so that the
GPU draws little power and its clock is the same whether it is idle in between or not.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

import gpuscope as gs

STEPS, WARM_UP = 12, 4
COMPUTE_MS = 10.0
Step = Callable[[], object]


@dataclass(frozen=True)
class Fault:
    """What a rule is about.

    Attributes:
        rule: the finding that it must be, as R09.
        faulty: makes a step of which the fault is that share of the time.
        clean: makes the same step as the finding's advice has it.
        line: what the line holds that is to be named; "" where there is none.
    """

    rule: str
    faulty: Callable[[float], Step]
    clean: Callable[[float], Step]
    line: str = ""

    @property
    def name(self) -> str:
        """Rule and function."""
        return f"{self.rule} {self.faulty.__name__}"


def faults() -> list[Fault]:
    """Those of all modules of this package, by rule."""
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    return sorted((fault for module in modules for fault in module.FAULTS), key=lambda fault: fault.rule)


def milliseconds(share: float) -> float:
    """What a fault takes that is this share of a step."""
    return COMPUTE_MS * share / (1 - share)


def outlasting(share: float) -> float:
    """The milliseconds of the host in a step without which the GPU, which it keeps waiting, would save this share."""
    return COMPUTE_MS + milliseconds(share)


class Compute:
    """Products of matrices that keep the GPU busy for so long; they are queued at once."""

    def __init__(self, ms: float = COMPUTE_MS) -> None:
        self.a = torch.zeros(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty_like(self.a)
        self.count = scaled("compute", self._some, ms)

    def _some(self, count: int) -> Step:
        def products() -> None:
            for _ in range(count):
                torch.mm(self.a, self.a, out=self.out)

        return products

    def __call__(self) -> torch.Tensor:
        self._some(self.count)()
        return self.out


def recorded(step: Step) -> gs.profile:
    """A recording of some steps, as `gpuscope diagnose` makes it."""
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    with gs.profile(with_stack="operators", record_shapes=True, python_samples=True) as prof:
        for _ in range(STEPS):
            step()
            prof.step()
        torch.cuda.synchronize()
    return prof


def timed_ms(step: Step, calls: int = 10) -> float:
    """Of a call, with the work that it launches."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / calls * 1e3


_counts: dict[tuple[str, float], int] = {}


def scaled(what: str, slow: Callable[[int], Step], ms: float, fast: Callable[[int], Step] | None = None) -> int:
    """The count for which a call of ``slow(count)`` takes so long, or so much longer than ``fast(count)``.

    It is found once for each `what`, from calls of a hundred, and then of about so many.
    """
    if (what, ms) not in _counts:
        count = 100
        for _ in range(2):
            taken = timed_ms(slow(count), calls=5) - (timed_ms(fast(count), calls=5) if fast is not None else 0.0)
            assert taken > 0, f"{what}: what is to be slower is not"
            count = min(max(1, round(count * ms / taken)), 100 * count)
        _counts[what, ms] = count
    return _counts[what, ms]


def wait(ms: float) -> None:
    """Python that runs for so long, without many calls, each of which would be recorded."""
    until = time.perf_counter() + ms / 1e3
    while time.perf_counter() < until:
        for _ in range(500):
            pass
