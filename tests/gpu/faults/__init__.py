# SPDX-License-Identifier: Apache-2.0
"""Programs with one fault each, and the same programs without it: what a diagnosis should find, and what not.

Each step computes for about `COMPUTE_MS` on the GPU, and the fault adds as much as it takes to be the given share of a
step. How much that is depends on the machine, on what the GPU hides and on what launching takes beside it, so that it
is found by measuring the step with the fault and without. What computes reads memory, which takes the same time at any
clock of the multiprocessors: a GPU that has a rest while it waits for the host, or that a fault warms up, would else do
the rest faster or slower.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import gpuscope as gs

STEPS, WARM_UP = 28, 4
COMPUTE_MS = 10.0
LATE_MS = COMPUTE_MS / 2  # launching what computes takes less
COLUMNS, ROWS = 2048, 32768  # of float32: far more than a cache holds
NEAR, ROUNDS, STEEPEST = 0.1, 12, 8.0  # of a search: how near is enough, its measurements, its longest stride
IN_VAIN = 3  # strides that bring no more, after which longer ones are not tried: they would take hours
CALLS = 6
Step = Callable[[], object]


@dataclass(frozen=True)
class Fault:
    """What a rule is about.

    Attributes:
        rule: the finding that it must be, as R09.
        slow: makes a step with so much of the fault.
        fast: makes the same step as the finding's advice has it.
        line: what the line holds that is to be named; "" where there is none.
        begin: the amount with which the search for that of a share begins.
        steps: how many of them are recorded.
        calls: how many of them are timed; all that differ in turn.
        known: which share of a step each amount was measured to be.
    """

    rule: str
    slow: Callable[[float], Step]
    fast: Callable[[float], Step]
    line: str = ""
    begin: float = 1.0
    steps: int = STEPS
    calls: int = CALLS
    known: dict[float, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Rule and function."""
        return f"{self.rule} {self.slow.__name__}"

    def faulty(self, share: float) -> Step:
        """A step of which the fault is that share of the time."""
        return self.slow(self.amount(share))

    def clean(self, share: float) -> Step:
        """The step that is left once that fault is mended."""
        return self.fast(self.amount(share))

    def amount(self, share: float) -> float:
        """Of the fault, for it to be that share of a step."""
        return amount_of(share, lambda amount: self.share(self.slow(amount), self.fast(amount)), self.begin, self.known)

    def learn(self, amount: float, share: float) -> None:
        """What was measured better of an amount: another is looked for where it is not the share that is asked for."""
        self.known[amount] = share

    def share(self, slow: Step, fast: Step) -> float:
        """What the mended step saves of the other."""
        return 1 - timed_ms(fast, self.calls) / timed_ms(slow, self.calls)


def faults() -> list[Fault]:
    """Those of all modules of this package, by rule."""
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    return sorted(
        (fault for module in modules for fault in getattr(module, "FAULTS", ())), key=lambda fault: fault.rule
    )


def amount_of(share: float, measure: Callable[[float], float], begin: float, known: dict[float, float]) -> float:
    """The amount of a fault that comes nearest to this share of a step, within a tenth of it as a rule.

    What a fault adds to a step is a line above some amount, and nothing below it where something hides the fault.

    Args:
        share: what is asked for.
        measure: of an amount, which share of its step it is.
        begin: the amount that is tried first.
        known: what was measured, which is kept for the next share.
    """
    wanted = share / (1 - share)  # of the step without the fault

    def distance(amount: float) -> float:
        return abs(known[amount] - share)

    for _ in range(ROUNDS):
        if known and distance(best := min(known, key=distance)) <= NEAR * share:
            return best
        amount = _next(wanted, {each: found / (1 - found) for each, found in known.items()}) if known else begin
        if amount in known or _in_vain(amount, known, NEAR * share):
            break
        known[amount] = measure(amount)
    return min(known, key=distance)


def _in_vain(amount: float, known: dict[float, float], near: float) -> bool:
    """Whether the amount is above all others, of which the largest few added nothing to what smaller ones had."""
    amounts = sorted(known)
    last, before = amounts[-IN_VAIN:], amounts[:-IN_VAIN]
    return (
        bool(before)
        and amount > amounts[-1]
        and max(known[each] for each in last) <= max(known[each] for each in before) + near
    )


def _next(wanted: float, added: dict[float, float]) -> float:
    """The amount to try next, from what was added by others."""
    above = sorted(amount for amount, each in added.items() if each >= wanted)
    below = max((amount for amount, each in added.items() if each < wanted), default=0.0)
    if not above:
        return below * min(max(wanted / max(added[below], wanted / STEEPEST), 1.3), STEEPEST)
    least = above[0]
    if below >= least:  # it was measured badly, and is once more
        return least * 1.01
    if len(above) > 1 and added[above[1]] > added[least]:
        guess = least - (added[least] - wanted) * (above[1] - least) / (added[above[1]] - added[least])
    elif below:
        guess = least - (added[least] - wanted) * (least - below) / (added[least] - added[below])
    else:
        guess = least * (1 + wanted) / (1 + added[least])  # as if the rest of the step were hidden behind the fault
    margin = (least - below) / 10
    return min(max(guess, below + margin), least - margin)


class Compute:
    """Sums of large matrices that keep the GPU busy for so long; they are queued at once.

    Those of fewer rows are more and shorter.
    """

    def __init__(self, ms: float = COMPUTE_MS, rows: int = ROWS) -> None:
        self.numbers, self.out = _matrix(rows)
        self.count = 0 if _beside else max(1, round(ms / _sum_ms(rows)))

    def one(self) -> None:
        torch.sum(self.numbers, dim=1, out=self.out)

    def __call__(self) -> torch.Tensor:
        for _ in range(self.count):
            self.one()
        return self.out


_beside: list[None] = []  # not empty while steps are made that compute nothing themselves


@contextlib.contextmanager
def beside_another() -> Iterator[None]:
    """Steps that are made here only have their fault: another one computes."""
    _beside.append(None)
    try:
        yield
    finally:
        _beside.pop()


@functools.cache
def _matrix(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(rows, COLUMNS, device="cuda"), torch.zeros(rows, device="cuda")


def clear_shared() -> None:
    """Gives back the memory that the steps of all programs share."""
    _matrix.cache_clear()


@functools.cache
def _sum_ms(rows: int) -> float:
    numbers, out = _matrix(rows)
    return timed_ms(lambda: torch.sum(numbers, dim=1, out=out), calls=400)


def recorded(step: Step, steps: int = STEPS, **options: Any) -> gs.profile:
    """A recording of some steps, as `gpuscope diagnose` makes it with these options of profile()."""
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    with gs.profile(with_stack="operators", record_shapes="operators", python_samples=True, **options) as prof:
        for _ in range(steps):
            step()
            prof.step()
        torch.cuda.synchronize()
    return prof


def timed_ms(step: Step, calls: int = CALLS) -> float:
    """Of a call, with the work that it launches, of many one after the other.

    Before the first the GPU has nothing to do, and nothing is launched any more while it does the last: calls of which
    there are more are compared with a few.
    """
    few = 2

    def lasted(count: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    lasted(few + calls)  # what begins, as each of several workers, and what a pause has put to sleep is late at first
    before = lasted(few)
    return (lasted(few + calls) - before) / calls * 1e3


class Pace:
    """When the host may go on, so that it does a thing as often as each takes so long.

    What else it does meanwhile counts as well, a recording's own part too, so that it takes the share of a step that is
    asked for whatever the machine does besides. After a pause it begins anew: a host that caught up would be ahead of
    the GPU, and nothing would wait for it for many steps.

    Args:
        ms: how long each takes.
        late_ms: what is later than that had a pause before it.
    """

    def __init__(self, ms: float, late_ms: float) -> None:
        self.seconds, self.late = ms / 1e3, late_ms / 1e3
        self.due = 0.0

    def next(self) -> float:
        """When that is, as time.perf_counter() tells it."""
        now = time.perf_counter()
        self.due = (self.due if now - self.due <= self.late else now) + self.seconds
        return self.due


def whole(amount: float) -> int:
    """That many, and one at least."""
    return max(1, round(amount))


def wait(ms: float) -> None:
    """Python that runs for so long, without many calls, each of which would be recorded."""
    wait_until(time.perf_counter() + ms / 1e3)


def wait_until(until: float) -> None:
    """The same, up to a moment of time.perf_counter()."""
    while time.perf_counter() < until:
        for _ in range(500):
            pass
