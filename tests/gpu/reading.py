# SPDX-License-Identifier: Apache-2.0
"""What the tests and their scripts read out of a trace of ours."""

from __future__ import annotations

import json
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuscope.trace import Table, Trace

NONE = 0xFFFFFFFF
REGION, OP, RANGE, MODULE = range(4)
"""The kinds of a path."""
KERNEL = 1
"""The kind of a graph's node that is a kernel."""


def flat(shapes: list[list[Any]]) -> list[list[int]]:
    """The sizes of tensors; an empty list for a list of tensors."""
    return [[] if any(isinstance(size, list) for size in sizes) else sizes for sizes in shapes]


class Reading:
    """A trace with its paths spelled out."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.names = [trace.string(int(name)) for name in trace.paths.name]
        self.kinds = trace.paths.kind.tolist()
        self.parents = trace.paths.parent.tolist()
        self.region_paths = trace.regions.path.tolist()

    def path(self, path: int) -> list[str]:
        """The names of a path, outermost first; nothing for none."""
        names: list[str] = []
        while path < len(self.names):
            names.append(self.names[path])
            path = self.parents[path]
        return names[::-1]

    def region(self, row: int) -> list[str]:
        """The path of a region's row; nothing for none."""
        return self.path(self.region_paths[row]) if row < len(self.region_paths) else []

    def rows(self, name: str) -> list[int]:
        """The regions of a name, of any kind."""
        return [row for row, path in enumerate(self.region_paths) if self.names[path] == name]

    def named(self, *kinds: int) -> Counter[str]:
        """How many regions of these kinds there are, by name."""
        return Counter(self.names[path] for path in self.region_paths if self.kinds[path] in kinds)

    @cached_property
    def shapes(self) -> dict[int, str]:
        """By region, the shapes of an operator's inputs, as JSON."""
        details = self.trace.details
        return {
            region: self.trace.string(shapes)
            for region, shapes in zip(details.region.tolist(), details.shapes.tolist(), strict=True)
            if shapes != NONE
        }

    def operators(self) -> Counter[tuple[str, str]]:
        """What torch ran: operators, and what was named with its record_function, by name and shapes.

        A list of tensors reads as ``[]``, as in torch.profiler's ``input_shapes``.
        """
        return Counter(
            (self.names[path], json.dumps(flat(json.loads(self.shapes.get(row) or "[]"))))
            for row, path in enumerate(self.region_paths)
            if self.kinds[path] in (OP, RANGE)
        )

    def gpu_work(self) -> list[Table]:
        return [self.trace.kernels, self.trace.memcpy, self.trace.memset]

    def work_by_region(self) -> Counter[str]:
        """Kernels, copies and fills, by the name of the innermost region they were launched in; "" outside."""
        names = [self.names[path] for path in self.region_paths]
        return Counter(
            names[row] if row < len(names) else "" for table in self.gpu_work() for row in table.region.tolist()
        )

    def device_us_by_region(self) -> dict[str, float]:
        """GPU time of the same in us, likewise."""
        spent: dict[str, float] = {}
        for table in self.gpu_work():
            for row, duration in zip(table.region.tolist(), table.duration_ns.tolist(), strict=True):
                name = self.names[self.region_paths[row]] if row < len(self.region_paths) else ""
                spent[name] = spent.get(name, 0.0) + duration / 1e3
        return spent

    def kernels_under(self, name: str) -> int:
        """Kernels launched in a region of that name or anywhere below one."""
        return sum(name in self.region(row) for row in self.trace.kernels.region.tolist())

    def work_rows(self, name: str) -> list[int]:
        """The kernels launched directly in a region of that name."""
        regions = set(self.rows(name))
        return [row for row, region in enumerate(self.trace.kernels.region.tolist()) if region in regions]

    def outside(self) -> int:
        """Kernels launched in no region."""
        return int((self.trace.kernels.region == NONE).sum())

    def kernel_names(self) -> list[str]:
        """The demangled name of each kernel."""
        names = self.trace.kernel_names()
        return [names[variant] for variant in self.trace.kernels.variant.tolist()]

    def graph_kernels(self) -> list[tuple[int, list[str]]]:
        """Kernels that ran as nodes of graphs: their row, and the path of their capture, nothing when before us."""
        nodes = self.trace.graph_nodes
        columns = (nodes.event.tolist(), nodes.path.tolist(), nodes.kind.tolist())
        return [(row, self.path(path)) for row, path, kind in zip(*columns, strict=True) if kind == KERNEL]

    def frames(self, stack: int) -> list[tuple[str, int, str]]:
        """A call stack as (file, line, function), innermost first."""
        stacks = self.trace.stacks
        found: list[tuple[str, int, str]] = []
        while stack < len(stacks):
            file, function = (self.trace.string(int(stacks[column][stack])) for column in ("file", "function"))
            found.append((file, int(stacks.line[stack]), function))
            stack = int(stacks.parent[stack])
        return found
