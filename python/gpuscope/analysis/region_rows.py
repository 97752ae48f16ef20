# SPDX-License-Identifier: Apache-2.0
"""What is known of each region, as arrays with one entry a row of the region table."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from gpuscope.analysis.kinds import RegionKind
from gpuscope.analysis.shapes import Shapes, parse_shapes
from gpuscope.trace import NONE, Trace

Array = np.ndarray[Any, Any]

ENGINE = "autograd::engine::evaluate_function: "
"""What torch calls the range around each backward operator, before the operator's name."""

# at::RecordScope's numbers (aten/src/ATen/record_function.h), as torch.profiler gives them.
SCOPE_FUNCTION, SCOPE_BACKWARD, SCOPE_USER = 0, 1, 7


class RegionRows:
    """The region table with what other tables say of its rows; each column is made when first needed.

    ``path`` and ``parent`` hold rows of their tables; what is not there reads as one behind the last.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._length = len(trace.regions)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def path(self) -> Array:
        """Rows of the path table."""
        path: Array = np.minimum(self.trace.regions.path, len(self.trace.paths)).astype(np.int64)
        return path

    @cached_property
    def parent(self) -> Array:
        """The region that each lies in."""
        parent: Array = np.minimum(self.trace.regions.parent, self._length).astype(np.int64)
        return parent

    @cached_property
    def path_texts(self) -> list[str]:
        """The name of each path; one more, "", for regions without."""
        return [*map(self.trace.string, self.trace.paths.name.tolist()), ""]

    @cached_property
    def path_kinds(self) -> list[RegionKind]:
        """The kind of each path, likewise."""
        return [*map(RegionKind.of, self.trace.paths.kind.tolist()), RegionKind.REGION]

    @cached_property
    def path_scopes(self) -> list[int]:
        """Of each path, where torch would say that it runs: SCOPE_FUNCTION, SCOPE_BACKWARD or SCOPE_USER."""
        names, kinds = self.path_texts, self.path_kinds
        scopes = []
        parents = [*self.trace.paths.parent.tolist(), NONE]
        for name, kind, parent in zip(names, kinds, parents, strict=True):
            if kind == RegionKind.OP:
                above = names[parent] if parent < len(names) else ""
                scopes.append(SCOPE_BACKWARD if above == ENGINE + name else SCOPE_FUNCTION)
            else:
                scopes.append(SCOPE_FUNCTION if kind == RegionKind.MODULE else SCOPE_USER)
        return scopes

    @cached_property
    def sequence(self) -> Array:
        """Autograd's number; -1 for none."""
        return self._detail("sequence", -1, np.int64)

    @cached_property
    def shapes(self) -> Array:
        """String ids; NONE for none."""
        return self._detail("shapes", NONE, np.uint32)

    @cached_property
    def has_shapes(self) -> Array:
        """Whether the shapes of its inputs are known."""
        return np.asarray(self.shapes != NONE)

    @cached_property
    def forward(self) -> Array:
        """Of backward operators, the region of the forward one; NONE for none."""
        return self._detail("forward", NONE, np.uint32)

    @cached_property
    def op(self) -> Array:
        """The number in torch of the operator; 0 for none."""
        return self._detail("op", 0, np.uint32)

    @cached_property
    def results(self) -> Array:
        """The string of the shapes of each one's results; NONE where they are not known."""
        return self._detail("results", NONE, np.uint32)

    @cached_property
    def producer(self) -> Array:
        """The number in torch of the operator that made the first input; 0 for none."""
        return self._detail("producer", 0, np.uint32)

    @cached_property
    def origin(self) -> Array:
        """The forward operator of the innermost backward operator that each lies in, or is; NONE for none."""
        origin = self.forward.copy()
        if not (origin != NONE).any():
            return origin
        above = self.parent.copy()
        climbing = np.flatnonzero((origin == NONE) & (above < self._length))
        while len(climbing):
            origin[climbing] = self.forward[above[climbing]]
            above[climbing] = self.parent[above[climbing]]
            climbing = climbing[(origin[climbing] == NONE) & (above[climbing] < self._length)]
        return origin

    @cached_property
    def counted_as(self) -> Array:
        """The region that each counts as: itself, or for an operator one of its name that has nothing else inside.

        So torch.profiler counts an operator that only hands on to another of its overloads: once.
        """
        length = self._length
        names = np.array([*self.trace.summary.path_names, -1])[self.path]
        children = np.bincount(self.parent, minlength=length + 1)
        children[:length] += np.bincount(np.minimum(self.trace.api.region, length), minlength=length + 1)[:length]
        is_op = np.array([kind == RegionKind.OP for kind in self.path_kinds])[self.path]
        only = is_op & (children[self.parent] == 1) & (np.append(names, -2)[self.parent] == names)
        counted = np.where(only, self.parent, np.arange(length))
        while (counted != counted[counted]).any():
            counted = counted[counted]
        return counted

    @cached_property
    def stack(self) -> Array:
        """Rows of the stack table; NONE for none. Backward operators have those of the forward one, as in torch."""
        own = self._detail("stack", NONE, np.uint32)
        forward = np.append(own, np.uint32(NONE))[np.minimum(self.origin, self._length)]
        return np.where(self.origin < self._length, forward, own)

    def shapes_of(self, string_id: int) -> Shapes:
        """What a string id of ``shapes`` says."""
        return parse_shapes(self.trace.string(string_id)) if string_id != NONE else ()

    @cached_property
    def stack_texts(self) -> list[tuple[str, ...]]:
        """Each row of the stack table as "file.py(12): function", innermost first."""
        if not len(self.trace.stacks):
            return []
        from gpuscope.analysis.call_stacks import stack_texts  # type: ignore[import-not-found,unused-ignore]

        texts: list[tuple[str, ...]] = stack_texts(self.trace)
        return texts

    @cached_property
    def flops(self) -> Array:
        """Floating-point operations; 0 for what has none, -1 where they cannot be told."""
        from gpuscope.analysis.flop_counts import count_flops

        return count_flops(self)

    def _detail(self, column: str, absent: int, kind: Any) -> Array:
        details = self.trace.details
        values = np.full(self._length, absent, dtype=kind)
        known = details.region < self._length
        values[details.region[known]] = details[column][known]
        return values
