# SPDX-License-Identifier: Apache-2.0
"""Ranges of addresses, so that no byte is counted twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuscope.spans import covered_ns, in_turn, union

Range = tuple[int, int]  # address and bytes


class AddressRange(NamedTuple):
    """A contiguous range of memory.

    Attributes:
        address: of the first byte.
        bytes: size.
    """

    address: int
    bytes: int


class AddressRanges:
    """Disjoint ranges of addresses, ascending."""

    def __init__(self, starts: NDArray[np.uint64], ends: NDArray[np.uint64]) -> None:
        self._starts = starts
        self._ends = ends

    @classmethod
    def merged(
        cls, address: NDArray[np.uint64], size: NDArray[np.uint64], gap: int = 0, between: AddressRanges | None = None
    ) -> AddressRanges:
        """The union of allocations. Gaps of up to `gap` bytes are closed, unless a range of `between` is there."""
        order = np.argsort(address, kind="stable")
        starts, ends = address[order], np.maximum.accumulate((address + size)[order])
        if not len(starts):
            return cls(starts, ends)
        apart = starts[1:] > ends[:-1] + np.uint64(gap)
        if between is not None:
            apart |= np.diff(between.index(starts)) != 0
        begins = np.flatnonzero(np.append(True, apart))
        return cls(starts[begins], ends[np.append(begins[1:], len(starts)) - 1])

    def joined(self, other: AddressRanges) -> AddressRanges:
        """The union of both."""
        starts, ends = np.append(self._starts, other._starts), np.append(self._ends, other._ends)
        return AddressRanges.merged(starts, ends - starts)

    def index(self, address: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Index of the last range that begins at or before each address, -1 for none."""
        return np.asarray(np.searchsorted(self._starts, address, side="right") - 1)

    def holds(self, address: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """A mask: which addresses are in a range."""
        at = self.index(address)
        if not len(self._ends):
            return np.zeros(len(address), dtype=bool)
        return np.asarray((at >= 0) & (address < self._ends[np.maximum(at, 0)]))

    def __iter__(self) -> Iterator[AddressRange]:
        for start, end in zip(self._starts.tolist(), self._ends.tolist(), strict=True):
            yield AddressRange(start, end - start)


def uncovered(ranges: Sequence[Range], cover: Sequence[Range] = ()) -> list[int]:
    """Bytes of each range that are neither in `cover` nor in a range that begins before it.

    The sum, plus the bytes of the union of `cover`, is the size of the union of all ranges.
    """
    (starts, sizes), (covering, lengths) = (np.array(each, np.int64).reshape(-1, 2).T for each in (ranges, cover))
    begins, until = in_turn(starts, starts + sizes)
    left = np.empty(len(starts), np.int64)
    left[np.argsort(starts, kind="stable")] = (
        until - begins - covered_ns(*union(covering, covering + lengths), begins, until)
    )
    found: list[int] = left.tolist()
    return found
