# SPDX-License-Identifier: Apache-2.0
"""`LeakReport`: what grew, who holds it, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuscope.memory.events import Frame
from gpuscope.memory.findings.growth import FEWEST_STEPS, Growth
from gpuscope.memory.findings.holders import Holder
from gpuscope.memory.findings.leak_text import leak_text, report_text


@dataclass(frozen=True)
class Leak:
    """Memory that grows step after step, of one cause.

    Attributes:
        growths: the places that grow together, largest first.
        holder: who keeps it alive; None where that was not found.
        cycles: only reference cycles keep it: Python's garbage collector frees it when it runs, which bytes on a GPU
            do not make it do.
        steps_left: how many more steps the GPU's free memory lasts at this rate; None where that is not known.
        free: bytes of the GPU that are free, those included that allocators hold without using them; None: not known.
    """

    growths: tuple[Growth, ...]
    holder: Holder | None = None
    cycles: bool = False
    steps_left: int | None = None
    free: int | None = None

    @property
    def place(self) -> Frame | None:
        """The line that allocated most of it; None when no stack is known."""
        return self.growths[0].place

    @property
    def stack(self) -> tuple[Frame, ...]:
        """The call stack of most of it, innermost frame first."""
        return self.growths[0].stack

    @property
    def device(self) -> int:
        """Ordinal of the GPU, HOST for host memory."""
        return self.growths[0].device

    @property
    def bytes(self) -> int:
        """How much it grew over the steps that were judged."""
        return sum(growth.bytes for growth in self.growths)

    @property
    def pieces(self) -> int:
        """How many more pieces there are; 0 when pieces were replaced by larger ones."""
        return sum(growth.pieces for growth in self.growths)

    @property
    def bytes_per_step(self) -> float:
        """How much it grows in a step, on average."""
        return sum(growth.bytes_per_step for growth in self.growths)

    @property
    def grew(self) -> int:
        """In how many of the judged steps the place of most of it grew."""
        return self.growths[0].grew

    def __str__(self) -> str:
        return "\n".join(leak_text(self))


@dataclass(frozen=True)
class LeakReport:
    """What `find_leaks` found; true when there are leaks. ``print(report)`` tells all.

    Attributes:
        leaks: largest first.
        steps: that were seen from begin to end.
        warmup: the first of them, which were not judged.
        events: allocations and releases that were seen.
        interrupted: the program was interrupted before the last step.
        notes: what limits the findings.
    """

    leaks: tuple[Leak, ...]
    steps: int
    warmup: int
    events: int
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether the steps are enough to tell anything."""
        return self.steps >= FEWEST_STEPS and self.events > 0

    @property
    def bytes_per_step(self) -> float:
        """How much all leaks grow in a step, on average."""
        return sum(leak.bytes_per_step for leak in self.leaks)

    def __len__(self) -> int:
        return len(self.leaks)

    def __bool__(self) -> bool:
        return bool(self.leaks)

    def __iter__(self) -> Iterator[Leak]:
        return iter(self.leaks)

    def __str__(self) -> str:
        return report_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them; sizes are bytes."""
        return {
            "leaks": [_leak(leak) for leak in self.leaks],
            "steps": self.steps,
            "warmup": self.warmup,
            "events": self.events,
            "judged": self.judged,
            "interrupted": self.interrupted,
            "notes": list(self.notes),
        }


def _leak(leak: Leak) -> dict[str, Any]:
    holder = leak.holder
    return {
        "place": None if leak.place is None else leak.place._asdict(),
        "device": leak.device,
        "bytes": leak.bytes,
        "bytes_per_step": leak.bytes_per_step,
        "pieces": leak.pieces,
        "grew": leak.grew,
        "steps_left": leak.steps_left,
        "free": leak.free,
        "cycles": leak.cycles,
        "holder": None if holder is None else {**vars(holder), "text": str(holder), "advice": holder.advice},
        "growths": [_growth(growth) for growth in leak.growths],
    }


def _growth(growth: Growth) -> dict[str, Any]:
    return {
        "place": None if growth.place is None else growth.place._asdict(),
        "stack": [frame._asdict() for frame in growth.stack],
        "source": growth.source,
        "device": growth.device,
        "steps": growth.steps,
        "grew": growth.grew,
        "bytes": growth.bytes,
        "bytes_per_step": growth.bytes_per_step,
        "pieces": growth.pieces,
    }
