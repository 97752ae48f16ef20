# SPDX-License-Identifier: Apache-2.0
"""Which findings of a diagnosis before are gone after, and what was promised for that."""

from __future__ import annotations

import re

from gpuscope.diagnosis.findings import Diagnosis, Finding
from gpuscope.diffing.changes import Promise

_NUMBERS = re.compile(r"\d+")


def promises_of(before: Diagnosis, after: Diagnosis) -> tuple[Promise, ...]:
    """The findings before. Of those that say the same, as many are still there as after says it."""
    left = [each for finding in after.findings for each in (finding, *finding.parts)]
    there = set()
    for alike in (_at_same_place, _same):
        for number, finding in enumerate(before.findings):
            other = None if number in there else next((each for each in left if alike(finding, each)), None)
            if other is not None:
                there.add(number)
                left.remove(other)
    return tuple(
        Promise(each.id, each.title, each.saving, number not in there) for number, each in enumerate(before.findings)
    )


def _same(one: Finding, other: Finding) -> bool:
    """Whether they are of one cause: a rule may know several, which have their titles."""
    return one.id == other.id and _NUMBERS.sub("#", one.title) == _NUMBERS.sub("#", other.title)


def _at_same_place(one: Finding, other: Finding) -> bool:
    """Whether they are of one cause, and of one function or kernel."""
    return _same(one, other) and _place(one) == _place(other)


def _place(finding: Finding) -> list[tuple[str | None, ...]]:
    """Where most of it is, without the line: lines move with what is changed above them."""
    return [(at.file, at.function, at.region, at.kernel) for at in finding.where[:1]]
