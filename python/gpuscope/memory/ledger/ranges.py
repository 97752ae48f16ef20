# SPDX-License-Identifier: Apache-2.0
"""Ranges of addresses, so that no byte is counted twice."""

from __future__ import annotations

from collections.abc import Sequence

Range = tuple[int, int]  # address and bytes


def uncovered(ranges: Sequence[Range], cover: Sequence[Range] = ()) -> list[int]:
    """How many bytes of each range lie neither in `cover` nor in a range that begins before it.

    Their sum and the bytes that `cover` unites are the bytes that all of them unite.
    """
    covering = _united(cover)
    left = [0] * len(ranges)
    at, passed = 0, 0
    for number in sorted(range(len(ranges)), key=lambda number: ranges[number]):
        begin, size = ranges[number]
        end = begin + size
        begin = max(begin, passed)
        passed = max(passed, end)
        while at < len(covering) and covering[at][1] <= begin:
            at += 1
        left[number] = max(0, end - begin)
        for following in range(at, len(covering)):
            low, high = covering[following]
            if low >= end:
                break
            left[number] -= max(0, min(high, end) - max(low, begin))
    return left


def _united(ranges: Sequence[Range]) -> list[Range]:
    """The same bytes as ranges that do not touch, as beginnings and ends."""
    united: list[Range] = []
    for begin, size in sorted(ranges):
        if united and begin <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], begin + size))
        elif size:
            united.append((begin, begin + size))
    return united
