# SPDX-License-Identifier: Apache-2.0
"""Programs with two faults at once."""

from __future__ import annotations

from dataclasses import dataclass

from . import Fault, Step, amount_of, beside_another, faults

FIRST, SECOND = 0.25, 0.12  # of a step

# The first is to be waited for, or keeps the GPU busy; the second keeps it busy. Neither keeps only the host busy:
# of such a fault and one on the GPU the longer is all that a step takes, and the other costs nothing.
_RULES = (
    ("R09", "R29"),
    ("R09", "R33"),
    ("R10", "R20"),
    ("R10", "R39"),
    ("R12", "R29"),
    ("R12", "R35"),
    ("R14", "R20"),
    ("R14", "R33"),
    ("R15", "R20"),
    ("R15", "R29"),
    ("R15", "R33"),
    ("R16", "R20"),
    ("R16", "R35"),
    ("R16", "R39"),
    ("R17", "R29"),
    ("R17", "R33"),
    ("R20", "R33"),
    ("R29", "R20"),
    ("R36", "R29"),
    ("R39", "R35"),
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
