# SPDX-License-Identifier: Apache-2.0
"""The kinds of rows of a recording, and details of each region from several tables."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import PayloadType, RegionKind
from gpuscope.threads import cached_property
from gpuscope.trace import AUTOGRAD_ENGINE, NONE, Trace

NS_PER_US = 1e3
Array = np.ndarray[Any, Any]


class Kind(IntEnum):
    """A region, or the kind of work. The numbers are the core's, except the last three."""

    REGION = 0
    KERNEL = _core.Work.KERNEL
    MEMCPY = _core.Work.MEMCPY
    MEMSET = _core.Work.MEMSET
    CALL = _core.Work.CALL
    SYNC = _core.Work.SYNC
    GRAPH_LAUNCH = _core.Work.GRAPH_LAUNCH
    MEMORY = max(_core.Work) + 1
    PYTHON_FUNCTION = MEMORY + 1
    OUTSIDE = PYTHON_FUNCTION + 1

    @property
    def is_device(self) -> bool:
        """It runs on the GPU."""
        return self in (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.GRAPH_LAUNCH)

    @property
    def label(self) -> str:
        """Its name in results."""
        return self.name.lower().replace("_", " ")


KINDS = {int(kind): kind for kind in Kind if kind < Kind.MEMORY}
"""By number; a damaged file may hold others."""

MEMORY = "[memory]"
"""The name of memory taken or given back outside every region, torch.profiler's."""

OUTSIDE = "[outside every region]"
"""The name of the sampled time that threads were in Python, but in no region or driver call."""

STEP, STEPS = _core.STEP_PREFIX, _core.ALL_STEPS
"""Prefix of a step's name, and the name of all steps, torch.profiler's."""

ANNOTATIONS = (RegionKind.REGION, RegionKind.RANGE)
"""Kinds that the program or a library named itself."""

REGION_LABELS = frozenset(kind.name.lower() for kind in RegionKind)
"""The labels of kinds that last and contain others."""

_REGION_KINDS = frozenset(map(int, RegionKind))

DEVICE_KINDS = tuple(kind for kind in Kind if kind.is_device)


def region_kind(number: int) -> RegionKind:
    """The kind of that number; REGION if a newer or damaged file has another."""
    return RegionKind(number) if number in _REGION_KINDS else RegionKind.REGION


Shapes = tuple[Any, ...]
"""One entry an input: a tuple of sizes, () for scalars and non-tensors, a tuple of shapes for a tensor list."""


@lru_cache(maxsize=1 << 14)
def parse_shapes(text: str) -> Shapes:
    """``"[[2, 3], []]"`` as ``((2, 3), ())``; () if the text is no list of shapes."""
    try:
        parsed = _frozen(json.loads(text))
    except (ValueError, RecursionError):
        return ()
    return parsed if isinstance(parsed, tuple) else ()


@lru_cache(maxsize=1 << 12)
def parse_types(text: str) -> tuple[str, ...]:
    """``"['float', '']"`` as ``("float", "")``; () if the text is no list of texts."""
    try:
        parsed = json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        return ()
    return tuple(map(str, parsed)) if isinstance(parsed, list) else ()


@lru_cache(maxsize=1 << 12)
def parse_concrete_inputs(text: str) -> tuple[Any, ...]:
    """``"['', '2.', '[4, 3]', 'True']"`` as ``(None, 2.0, (4, 3), True)``; None if an entry is no number."""
    return tuple(map(_parse_number, parse_types(text)))


def _parse_number(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("["):
        return tuple(_parse_number(number) for number in text[1:-1].split(", ") if number)
    with contextlib.suppress(ValueError):
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    return None


_WORDS = {"": None, "True": True, "False": False}


def flat_shapes(shapes: Shapes) -> list[list[int]]:
    """As torch.profiler's ``input_shapes``: tensor lists read as ``[]``."""
    return [list(sizes) if is_shape(sizes) else [] for sizes in shapes]


def nested_shapes(shapes: Shapes) -> list[Any]:
    """As torch.profiler's ``structured_input_shapes``: a tensor list is a list of shapes."""
    return [nested_shapes(entry) if isinstance(entry, tuple) else entry for entry in shapes]


def is_shape(entry: object) -> bool:
    """True for one tensor's shape; False for a list of shapes or no shape."""
    return isinstance(entry, tuple) and all(type(size) is int and size >= 0 for size in entry)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list) else value


# at::RecordScope's numbers (aten/src/ATen/record_function.h), as in torch.profiler.
SCOPE_FUNCTION, SCOPE_BACKWARD, SCOPE_USER = 0, 1, 7


class RegionRows:
    """The region table with details from other tables; each column is made when first needed.

    ``path`` and ``parent`` hold rows of their tables. An absent row reads as the index after the last.
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
        """The region around each."""
        parent: Array = np.minimum(self.trace.regions.parent, self._length).astype(np.int64)
        return parent

    @cached_property
    def path_texts(self) -> list[str]:
        """The name of each path, then "" for regions without a path."""
        return [*map(self.trace.string, self.trace.paths.name.tolist()), ""]

    @cached_property
    def path_kinds(self) -> list[RegionKind]:
        """The kind of each path, likewise."""
        return [*map(region_kind, self.trace.paths.kind.tolist()), RegionKind.REGION]

    @cached_property
    def path_scopes(self) -> list[int]:
        """The scope in torch of each path: SCOPE_FUNCTION, SCOPE_BACKWARD or SCOPE_USER."""
        names, kinds = self.path_texts, self.path_kinds
        scopes = []
        parents = [*self.trace.paths.parent.tolist(), NONE]
        for name, kind, parent in zip(names, kinds, parents, strict=True):
            if kind == RegionKind.OP:
                above = names[parent] if parent < len(names) else ""
                scopes.append(SCOPE_BACKWARD if above == AUTOGRAD_ENGINE + name else SCOPE_FUNCTION)
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
        """The region of the forward operator of each backward operator; NONE for others."""
        return self._detail("forward", NONE, np.uint32)

    def owner(self, row: int) -> int:
        """The innermost operator around a region, or the region itself if it is one or none is around."""
        at = row
        while at < self._length and self.path_kinds[self.path[at]] != RegionKind.OP:
            at = int(self.parent[at])
        return at if at < self._length else row

    def backward_flow(self, row: int) -> int:
        """The number of the arrow from a region to its backward operator; 0 for none."""
        return int(self._backward_flows[row]) if row < len(self._backward_flows) else 0

    @cached_property
    def _backward_flows(self) -> Array:
        return _core.backward_flows(self.trace.store)

    @cached_property
    def op(self) -> Array:
        """The number in torch of the operator; 0 for none."""
        return self._detail("op", 0, np.uint32)

    @cached_property
    def types(self) -> Array:
        """String ids of the types of each region's inputs; NONE if unknown."""
        return self._detail("types", NONE, np.uint32)

    @cached_property
    def strides(self) -> Array:
        """The same for their strides."""
        return self._detail("strides", NONE, np.uint32)

    @cached_property
    def concrete_inputs(self) -> Array:
        """The same for the numbers among its inputs."""
        return self._detail("concrete_inputs", NONE, np.uint32)

    @cached_property
    def overload(self) -> Array:
        """String ids of the operator's overload; NONE if unknown."""
        return self._detail("overload", NONE, np.uint32)

    def overload_of(self, row: int) -> str:
        """The overload of a region's operator; "" if unknown."""
        string_id = int(self.overload[row])
        return self.trace.string(string_id) if string_id != NONE else ""

    @cached_property
    def keywords(self) -> dict[int, dict[str, Any]]:
        """The keyword values recorded with each region."""
        given: dict[int, dict[str, Any]] = {}
        table = self.trace.payloads
        for region, name, kind, value in zip(
            *(table[column].tolist() for column in ("region", "name", "type", "value")), strict=True
        ):
            given.setdefault(region, {})[self.trace.string(name)] = self._keyword(kind, value)
        return given

    def _keyword(self, kind: int, bits: int) -> Any:
        if kind == PayloadType.SIGNED:
            return bits - (1 << 64) if bits >> 63 else bits
        if kind == PayloadType.FLOAT:
            return struct.unpack("=d", bits.to_bytes(8, sys.byteorder))[0]
        if kind == PayloadType.BOOL:
            return bool(bits)
        if kind == PayloadType.TEXT:
            return self.trace.string(bits)
        if kind == PayloadType.NONE:
            return None
        if kind == PayloadType.COMPLEX:
            return complex(*map(float, self.trace.string(bits).split()))
        if kind == PayloadType.LIST:
            text = self.trace.string(bits)
            return json.loads(text) if text.startswith('["') else list(_parse_number(text) or ())
        return bits

    def types_of(self, string_id: int) -> tuple[str, ...]:
        """The types that a string id of ``types`` stands for."""
        return parse_types(self.trace.string(string_id)) if string_id != NONE else ()

    @cached_property
    def results(self) -> Array:
        """String ids of the shapes of each region's results; NONE if unknown."""
        return self._detail("results", NONE, np.uint32)

    @cached_property
    def producer(self) -> Array:
        """The number in torch of the operator that made the first input; 0 for none."""
        return self._detail("producer", 0, np.uint32)

    def shapes_of(self, string_id: int) -> Shapes:
        """The shapes that a string id of ``shapes`` stands for."""
        return parse_shapes(self.trace.string(string_id)) if string_id != NONE else ()

    @cached_property
    def stack_texts(self) -> list[tuple[str, ...]]:
        """Each row of the stack table as "file.py(12): function", innermost first."""
        return stack_texts(self.trace)

    def _detail(self, column: str, absent: int, kind: Any) -> Array:
        details = self.trace.details
        values = np.full(self._length, absent, dtype=kind)
        if column not in details:  # an older recording
            return values
        known = details.region < self._length
        values[details.region[known]] = details[column][known]
        return values


def stack_texts(trace: Trace) -> list[tuple[str, ...]]:
    """The frames of each row of ``trace.stacks``, innermost first: ``("model.py(12): forward", "train.py(40): main")``.

    The line is the one that was being executed. ``trace.details.stack`` and ``trace.call_stacks.stack`` are indices
    into the list; `gpuscope.trace.NONE` means no Python frame.
    """
    stacks = trace.stacks
    strings: dict[int, str] = {}

    def text(string_id: int) -> str:
        if string_id not in strings:
            strings[string_id] = trace.string(string_id)
        return strings[string_id]

    texts: list[tuple[str, ...]] = []
    rows = zip(*(stacks[column].tolist() for column in ("parent", "function", "file", "line")), strict=True)
    for row, (parent, function, file, line) in enumerate(rows):
        callers = texts[parent] if parent < row else ()  # a caller's row is before its callees'
        texts.append((f"{text(file)}({line}): {text(function)}", *callers))
    return texts
