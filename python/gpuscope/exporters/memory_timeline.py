# SPDX-License-Identifier: Apache-2.0
"""Memory over time, in the forms of torch.profiler's ``export_memory_timeline``."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.exporters.memory_chart import memory_page
from gpuscope.exporters.memory_phases import categories
from gpuscope.paths import check_writable, replacing
from gpuscope.trace import NONE, Trace

Array = np.ndarray[Any, Any]

MEMORY_TIMELINE_SUFFIXES = (".html", ".json", ".json.gz")
RAW_SUFFIX = ".raw.json.gz"

# torch.profiler._memory_profiler: the order of its categories, the last for what has none, and its actions.
CATEGORIES = (
    *("PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT", "AUTOGRAD_DETAIL", "Unknown"),
)
UNKNOWN = CATEGORIES.index("Unknown")
PREEXISTING, CREATE, DESTROY = 1, 2, 4


@dataclass(frozen=True)
class MemoryTimeline:
    """What one device's allocator did.

    Attributes:
        device: "cuda:0", "cpu".
        times_ns: ns since the Unix epoch, ascending.
        changes: bytes taken, negative when given back.
        before: bytes that were in use when the recording began, as far as the allocator said.
        reserved: bytes that the allocator held at each time; 0 where it does not say.
        category: a number of CATEGORIES for what each change takes or gives back.
    """

    device: str
    times_ns: Array
    changes: Array
    before: int
    reserved: Array
    category: Array

    @property
    def in_use(self) -> Array:
        """Bytes in use behind each change."""
        return np.asarray(self.before + np.cumsum(self.changes))

    @property
    def by_category(self) -> dict[str, Array]:
        """The parts of `in_use`, in torch's order."""
        parts = {
            name: np.cumsum(np.where(self.category == number, self.changes, 0))
            for number, name in enumerate(CATEGORIES)
        }
        parts["Unknown"] = parts["Unknown"] + self.before
        return parts


def memory_timeline(trace: Trace, device: str | None = None) -> MemoryTimeline:
    """The allocations of one device, in order of time.

    Args:
        trace: the recording.
        device: "cuda:0", "cuda" (the first) or "cpu"; None takes the first GPU that has any, else the host.

    Raises:
        NotAvailable: the recording has no allocations.
        InvalidArgument: the device is none of those that have.
    """
    memory = trace.memory
    if not len(memory):
        raise NotAvailable(
            "export_memory_timeline is not available: the recording has no allocations; they are recorded with "
            "profile(profile_memory=True)"
        )
    ordinals = sorted(set(memory.ordinal.tolist()))
    names = {("cpu" if ordinal == NONE else f"cuda:{ordinal}"): ordinal for ordinal in ordinals}
    chosen = next(iter(names)) if device is None else f"{device}:0" if str(device) == "cuda" else str(device)
    if chosen not in names:
        raise InvalidArgument(f"device is {device!r}; the recording has allocations on {', '.join(names)}")
    rows = np.flatnonzero(memory.ordinal == names[chosen])
    rows = rows[np.argsort(memory.start_ns[rows], kind="stable")]
    first = rows[0]
    return MemoryTimeline(
        device=chosen,
        times_ns=memory.start_ns[rows],
        changes=memory.bytes[rows],
        before=max(0, int(memory.allocated_bytes[first]) - int(memory.bytes[first])),
        reserved=memory.reserved_bytes[rows].astype(np.int64),
        category=categories(trace, rows),
    )


def export_memory_timeline(trace: Trace, path: str | os.PathLike[str], device: str | None = None) -> None:
    """Writes the memory in use over time; the suffix says in which of torch.profiler's forms.

    Categories follow from the operators and regions in which memory was taken and given back; "Unknown" is what they do
    not tell, as everything taken before the recording. ``with_modules`` or ``with_stack`` tell more of the forward.

    ``.html`` is a page with a chart, ``.json`` and ``.json.gz`` hold ``[times in us, sizes by category]``, and
    ``.raw.json.gz`` one ``[time in ns, action, bytes, category]`` an allocation.

    Raises:
        InvalidArgument: another suffix, or a device that has no allocations.
        NotAvailable: the recording has no allocations.
        GpuscopeError: the file cannot be written.
    """
    checked = check_writable(path, MEMORY_TIMELINE_SUFFIXES)
    timeline = memory_timeline(trace, device)
    name = checked.name.lower()
    if name.endswith(".html"):
        content = memory_page(
            timeline.device, timeline.times_ns, timeline.in_use, timeline.reserved, timeline.by_category
        ).encode()
    else:
        made = _raw(timeline) if name.endswith(RAW_SUFFIX) else _by_category(timeline)
        content = json.dumps(made).encode()
    with replacing(checked) as file:
        file.write(gzip.compress(content, compresslevel=6, mtime=0) if name.endswith(".gz") else content)


def _by_category(timeline: MemoryTimeline) -> list[list[Any]]:
    """``[times, sizes]``: what is in use behind the last change of each us; the first size is torch's base line, 0."""
    times_us = timeline.times_ns // 1000
    last = np.flatnonzero(np.diff(times_us, append=times_us[-1] + 1))
    sizes = np.stack([np.zeros_like(last), *(part[last] for part in timeline.by_category.values())], axis=1)
    return [times_us[last].tolist(), sizes.tolist()]


def _raw(timeline: MemoryTimeline) -> list[list[int]]:
    rows = [[-1, PREEXISTING, timeline.before, UNKNOWN]] if timeline.before else []
    columns = (timeline.times_ns.tolist(), timeline.changes.tolist(), timeline.category.tolist())
    for time_ns, change, category in zip(*columns, strict=True):
        rows.append([time_ns, CREATE if change >= 0 else DESTROY, change, category])
    return rows
