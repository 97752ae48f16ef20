# SPDX-License-Identifier: Apache-2.0
"""What a row of a summary can be."""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """A region, or the kind of work; the numbers are the core's."""

    REGION = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    CALL = 4
    SYNC = 5
    GRAPH_LAUNCH = 6

    @property
    def is_device(self) -> bool:
        """It runs on the GPU."""
        return self in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.GRAPH_LAUNCH)

    @property
    def label(self) -> str:
        """As people read it."""
        return self.name.lower().replace("_", " ")


KINDS = {int(kind): kind for kind in Kind}
"""By number; a damaged file may hold others."""

DEVICE_KINDS = tuple(kind for kind in Kind if kind.is_device)
