# SPDX-License-Identifier: Apache-2.0
"""What a row of a summary can be."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """A region, or the kind of work; the numbers are the core's, which has none of MEMORY."""

    REGION = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    CALL = 4
    SYNC = 5
    GRAPH_LAUNCH = 6
    MEMORY = 7

    @property
    def is_device(self) -> bool:
        """It runs on the GPU."""
        return self in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.GRAPH_LAUNCH)

    @property
    def label(self) -> str:
        """As people read it."""
        return self.name.lower().replace("_", " ")


class RegionKind(IntEnum):
    """What opened a region; the numbers are the core's."""

    REGION = 0
    OP = 1
    RANGE = 2
    MODULE = 3

    @property
    def label(self) -> str:
        """As people read it."""
        return self.name.lower()

    @classmethod
    def of(cls, number: int) -> RegionKind:
        """The kind of that number; a region where a newer or damaged file has another."""
        return cls(number) if number in _REGION_KINDS else cls.REGION

    @property
    def is_annotation(self) -> bool:
        """The program, or a library, named that stretch of it."""
        return self in (RegionKind.REGION, RegionKind.RANGE)


KINDS = {int(kind): kind for kind in Kind if kind != Kind.MEMORY}
"""By number; a damaged file may hold others."""

MEMORY = "[memory]"
"""The name of memory taken or given back outside every region, torch.profiler's."""

STEP, STEPS = "ProfilerStep#", "ProfilerStep*"
"""How the name of a step begins, and what stands for all of them, torch.profiler's."""

_REGION_KINDS = frozenset(map(int, RegionKind))

REGION_LABELS = frozenset(kind.label for kind in RegionKind)
"""The labels of what is open for a while and has others inside."""

DEVICE_KINDS = tuple(kind for kind in Kind if kind.is_device)
