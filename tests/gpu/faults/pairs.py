# SPDX-License-Identifier: Apache-2.0
"""Programs with two faults at once."""

from __future__ import annotations

from dataclasses import dataclass

from . import Fault, Step, amount_of, beside_another, faults

FIRST, SECOND = 0.25, 0.12  # of a step

# What the first does is to keep the GPU waiting, or to be waited for; the second keeps it busy.
_RULES = (
    ("R02", "R12"),
    ("R02", "R29"),
    ("R10", "R39"),
    ("R11", "R20"),
    ("R11", "R33"),
    ("R15", "R12"),
    ("R15", "R29"),
    ("R15", "R33"),
    ("R16", "R20"),
    ("R16", "R35"),
    ("R19", "R12"),
    ("R19", "R35"),
    ("R21", "R39"),
    ("R23", "R29"),
    ("R24", "R20"),
    ("R24", "R29"),
    ("R24", "R33"),
    ("R25", "R33"),
    ("R26", "R35"),
    ("R26", "R39"),
)


@dataclass(frozen=True)
class Pair:
    """Two faults in one step."""

    first: Fault
    second: Fault

    @property
    def name(self) -> str:
        """Of both."""
        return f"{self.first.name} and {self.second.name}"

    def steps(self) -> tuple[Step, Step, Step]:
        """One with both faults, one with the first mended, one with the second mended."""
        first, second = self.first, self.second
        alone = second.amount(SECOND)  # what computes is there as well
        with beside_another():
            slow, fast = second.slow(alone), second.fast(alone)

        def share(amount: float) -> float:
            return first.share(_together(first.slow(amount), slow), _together(first.fast(amount), slow))

        amount = amount_of(FIRST, share, first.amount(FIRST), {})
        faulty, mended = first.slow(amount), first.fast(amount)
        return _together(faulty, slow), _together(mended, slow), _together(faulty, fast)


def pairs() -> list[Pair]:
    """All of them."""
    by_rule = {fault.rule: fault for fault in faults()}
    return [Pair(by_rule[first], by_rule[second]) for first, second in _RULES]


def _together(one: Step, other: Step) -> Step:
    return lambda: (one(), other())
