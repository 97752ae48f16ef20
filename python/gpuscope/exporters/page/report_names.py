# SPDX-License-Identifier: Apache-2.0
"""The texts of a report, each once, and the things that events are of: a kernel with its launch, a region, a call."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope.analysis import Averages
from gpuscope.analysis.rows import STEP, STEPS, Kind, region_kind
from gpuscope.page.planes import Array
from gpuscope.text import one_line
from gpuscope.trace import NONE, Table, Trace
from gpuscope.units import format_bytes

LONGEST_NAME = 2_000  # characters of a name on the page; kernels of templates have more
_MOST_SIZES = 10_000  # of copies; of more, sizes are left out
_SCOPE = re.compile(r"(?<![\w)>}])(?:(?:\w+|\(anonymous namespace\)|<unnamed>)::)+(?=[\w{(])")
_RETURNS = re.compile(r"^(?:void|int|bool|float|auto)\s+")
_UNKNOWN = -1

COLORS = 12
"""Of the palette."""


def brief_name(name: str) -> str:
    """A kernel's name without return type, namespaces and parameters; its template arguments stay."""
    text = _RETURNS.sub("", name)
    if text.endswith(")"):
        depth = 0
        for place in range(len(text) - 1, 0, -1):
            depth += (text[place] == ")") - (text[place] == "(")
            if depth == 0:
                if text[place - 1] not in "<, (" and not text[place:].startswith("(anonymous"):
                    text = text[:place]
                break
    return _SCOPE.sub("", text).replace("> >", ">>") or name


class Names:
    """Texts and things, numbered in the order in which they are asked for.

    Attributes:
        strings: each text once, without control characters.
        slots: the color of those things that have one of their own, whatever their name.
    """

    def __init__(self, trace: Trace, averages: Averages | tuple[()]) -> None:
        self._trace = trace
        self._ids: dict[str, int] = {}
        self.strings: list[str] = []
        self._rows = {(row.kind, row.key): number for number, row in reversed(list(enumerate(averages)))}
        self._things: dict[tuple[int, int, int], int] = {}
        self.names: list[int] = []
        self.rows: list[int] = []
        self.notes: list[int] = []
        self.slots: dict[int, int] = {}

    def beside(self, trace: Trace) -> Names:
        """The names of another recording, numbered together with these."""
        other = copy.copy(self)
        other._trace, other._rows = trace, {}
        return other

    def id(self, text: str) -> int:
        """The number of a text."""
        if text not in self._ids:
            self._ids[text] = len(self.strings)
            shown = one_line(text)
            self.strings.append(shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}…")
        return self._ids[text]

    def thing(self, name: str, row: int = _UNKNOWN, note: str = "") -> int:
        """The number of a thing: its name, the row of the tables that it is in, and what else is known of it."""
        key = (self.id(name), row, self.id(note) if note else _UNKNOWN)
        if key not in self._things:
            self._things[key] = len(self.names)
            for values, value in zip((self.names, self.rows, self.notes), key, strict=True):
                values.append(value)
        return self._things[key]

    def row_of(self, kind: str, name: str) -> int:
        """The row of ``key_averages`` of this kind and name; -1 without."""
        return self._rows.get((kind, name), _UNKNOWN)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"names": self.names, "rows": self.rows, "notes": self.notes, "slots": self.slots}

    # -- by the columns of tables --------------------------------------------------------------------------------------

    def of_variants(self, column: Array) -> Array:
        """Kernels by their launch configuration."""
        variants, kernel = self._trace.variants, Kind.KERNEL.label
        found = []
        for row, full in enumerate(self._trace.kernel_names()):
            grid, block = (
                "x".join(f"{variants[f'{what}_{axis}'][row]}" for axis in "xyz") for what in ("grid", "block")
            )
            shared = int(variants.static_shared_bytes[row]) + int(variants.dynamic_shared_bytes[row])
            note = f"grid {grid}, block {block}, {int(variants.registers[row])} registers"
            note += f", {format_bytes(shared)} shared memory" if shared else ""
            found.append(self.thing(brief_name(full), self.row_of(kernel, full), note))
        return self._looked_up(found, column, "kernel")

    def of_graphs(self, table: Table) -> Array:
        """CUDA graphs that were traced as a whole."""
        numbers, place = np.unique(table.graph, return_inverse=True)
        kind = Kind.GRAPH_LAUNCH.label
        row = next((row for (each, _), row in self._rows.items() if each == kind), _UNKNOWN)
        found = [self.thing("CUDA graph", row, f"graph {number}") for number in numbers.tolist()]
        return np.array([*found, 0])[place.reshape(-1)]

    def of_copies(self, table: Table) -> Array:
        """Copies by what they read and write, and by size."""
        sizes = table.bytes.astype(np.int64)
        if len(np.unique(sizes)) > _MOST_SIZES:
            sizes = np.zeros(len(sizes), np.int64)
        kinds = table.kind.astype(np.int64) << 16 | table.source.astype(np.int64) << 8 | table.destination
        pairs, place = np.unique(np.stack([kinds, sizes]), axis=1, return_inverse=True)
        found = []
        for kind, size in pairs.T.tolist():
            name = _core.copy_name(kind >> 16, kind >> 8 & 0xFF, kind & 0xFF)
            found.append(self.thing(name, self.row_of(Kind.MEMCPY.label, name), format_bytes(size) if size else ""))
        return np.array([*found, 0])[place.reshape(-1)]

    def of_fills(self, table: Table) -> Array:
        """Fills of memory."""
        if len(table) == 0:
            return np.zeros(0, np.int64)
        thing = self.thing(_core.MEMSET_NAME, self.row_of(Kind.MEMSET.label, _core.MEMSET_NAME))
        return np.full(len(table), thing)

    def of_paths(self, column: Array) -> Array:
        """Regions by their call path."""
        paths, found = self._trace.paths, []
        for name, kind in zip(paths.name.tolist(), paths.kind.tolist(), strict=True):
            text, label = self._trace.string(name), region_kind(kind).name.lower()
            row = self.row_of(label, text)
            if row == _UNKNOWN and text.startswith(STEP):
                row = self.row_of(label, STEPS)
            found.append(self.thing(text, row))
        return self._looked_up(found, column, "region")

    def of_calls(self, column: Array) -> Array:
        """Driver calls, which rows have under the runtime's names."""
        found = []
        for name in self._trace.calls.name.tolist():
            text = self._trace.string(name)
            wanted = (text, _runtime_like(text))
            rows = [self.row_of(kind.label, each) for each in wanted for kind in (Kind.CALL, Kind.SYNC)]
            found.append(self.thing(text, next((row for row in rows if row != _UNKNOWN), _UNKNOWN)))
        return self._looked_up(found, column, "driver call")

    def of_strings(self, column: Array) -> Array:
        """What string ids name: Python functions, with the folder of their file left out."""
        ids, place = np.unique(column, return_inverse=True)
        found = []
        for each in ids.tolist():
            text = self._trace.string(each)
            file, bracket, rest = text.partition("(")
            brief = f"{os.path.basename(file)}{bracket}{rest}" if "/" in file else text
            found.append(self.thing(brief, _UNKNOWN, text if brief != text else ""))
        return np.array([*found, 0])[place.reshape(-1)]

    def of_frames(self, stacks: Sequence[int]) -> list[int]:
        """Frames of Python by function, whatever line was running."""
        table, found = self._trace.stacks, []
        for stack in stacks:
            function, file = (self._trace.string(int(table[name][stack])) for name in ("function", "file"))
            found.append(self.thing(f"{function} ({os.path.basename(file)})", _UNKNOWN, file))
        return found

    def of_causes(self, causes: Array, labels: Sequence[str]) -> Array:
        """Causes of idle time, in the colors that they have everywhere."""
        found = [self.thing(label) for label in labels]
        self.slots.update({thing: number % COLORS for number, thing in enumerate(found)})
        return np.array(found)[causes]

    def _looked_up(self, found: Sequence[int], column: Array, unknown: str) -> Array:
        """The thing of each row; damaged files name rows that are not there."""
        if len(column) == 0:
            return np.zeros(0, np.int64)
        known = [*found, self.thing(unknown) if (column >= len(found)).any() else 0]
        at: Array = np.array(known)[np.minimum(column, len(known) - 1)]
        return at


def _runtime_like(call: str) -> str:
    """The runtime's function that most programs call a driver's by: "cudaMemcpyAsync"."""
    text = re.sub(r"(_v\d+|_ptsz|_ptds)$", "", call)
    text = re.sub(r"(HtoD|DtoH|DtoD|HtoA|AtoH)", "", text)
    text = re.sub(r"(?<=Memset)D\d+", "", text)
    text = re.sub(r"Ex$", "ExC", text) if text.startswith("cuLaunchKernel") else text
    text = {"cuCtxSynchronize": "cuDeviceSynchronize"}.get(text, text)
    return f"cuda{text[2:]}" if text.startswith("cu") else text


def path_texts(trace: Trace) -> list[str]:
    """Each row of ``trace.paths`` in words, without the steps, whose names all differ."""
    texts: list[str] = []
    for row, (name, parent) in enumerate(zip(trace.paths.name.tolist(), trace.paths.parent.tolist(), strict=True)):
        text = trace.string(name)
        above = texts[parent] if parent != NONE and parent < row else ""
        texts.append(above if text.startswith(STEP) else f"{above} > {text}" if above else text)
    return texts
