# SPDX-License-Identifier: Apache-2.0
"""The texts of a report, each once, and the things that events refer to: a kernel with its launch, a region, a call."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gpuscope import _core
from gpuscope._core import CallKind
from gpuscope.analysis import Averages
from gpuscope.analysis.rows import STEP, STEPS, Kind, region_kind
from gpuscope.memory.history.call_stacks import is_program, is_standard
from gpuscope.page.planes import Array
from gpuscope.steps.idle import IdleCause
from gpuscope.steps.kernel_classes import KernelClass, kernel_class
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

YOUR_CODE, LIBRARIES, IMPORTS, WAITS = "your code", "libraries", "imports", "waits"
"""Categories of Python functions."""

CATEGORIES: dict[str, dict[str, int]] = {
    "GPU": {
        KernelClass.TENSOR_PRODUCT.label: 7,
        KernelClass.PRODUCT.label: 5,
        KernelClass.ATTENTION.label: 8,
        KernelClass.REDUCTION.label: 10,
        KernelClass.ELEMENTWISE.label: 4,
        KernelClass.OTHER.label: 3,
        KernelClass.COMMUNICATION.label: 11,
        "copies": 0,
        "fills": 2,
        "CUDA graphs": 6,
    },
    "GPU idle": {cause.label: cause.value % COLORS for cause in IdleCause},
    "CPU": {"regions": 1, "modules": 6, "operators": 8, "driver calls": 9, "waits for the GPU": 0},
    "Python": {YOUR_CODE: 1, LIBRARIES: 8, IMPORTS: 10, WAITS: 0},
}
"""Categories of events, by where they run, and the color of each in the palette."""

OF_KINDS = {
    "memcpy": ("GPU", "copies"),
    "memset": ("GPU", "fills"),
    "graph launch": ("GPU", "CUDA graphs"),
    "region": ("CPU", "regions"),
    "range": ("CPU", "regions"),
    "module": ("CPU", "modules"),
    "op": ("CPU", "operators"),
    "call": ("CPU", "driver calls"),
    "sync": ("CPU", "waits for the GPU"),
}
"""Categories of kinds of rows."""

_IMPORT_SYSTEM = "<frozen importlib"
_WAITING = re.compile(r"(?:^|\.)(?:wait|join|select|poll|acquire|_wait_for_tstate_lock)$")


def category_of_function(function: str, file: str) -> str:
    """The category of a Python function."""
    if is_program(file) and not function.startswith("__create_fn__"):  # which dataclasses make
        return YOUR_CODE
    return WAITS if _WAITING.search(function) and is_standard(file) else LIBRARIES


def is_import(function: str, file: str, caller_file: str) -> bool:
    """Whether a call runs the code of an imported module that is not the program's own."""
    return function == "<module>" and "runpy" not in caller_file and not is_program(file)


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
    """Texts and things, numbered in the order of first use.

    Attributes:
        strings: each text once, without control characters.
        legend: categories: where they run, their name and their color.
    """

    def __init__(self, trace: Trace, averages: Averages | tuple[()]) -> None:
        self._trace = trace
        self._ids: dict[str, int] = {}
        self.strings: list[str] = []
        self._rows = {(row.kind, row.key): number for number, row in reversed(list(enumerate(averages)))}
        self._things: dict[tuple[int, int, int, int], int] = {}
        self._categories: dict[tuple[str, str], int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self.names: list[int] = []
        self.rows: list[int] = []
        self.notes: list[int] = []
        self.categories: list[int] = []
        self.legend: list[tuple[str, str, int]] = []

    def beside(self, trace: Trace) -> Names:
        """The names of another recording, numbered together with these."""
        other = copy.copy(self)
        other._trace, other._rows, other._functions = trace, {}, {}
        return other

    def id(self, text: str) -> int:
        """The number of a text."""
        if text not in self._ids:
            self._ids[text] = len(self.strings)
            shown = one_line(text)
            self.strings.append(shown if len(shown) <= LONGEST_NAME else f"{shown[:LONGEST_NAME]}…")
        return self._ids[text]

    def thing(self, name: str, row: int = _UNKNOWN, note: str = "", category: int = _UNKNOWN) -> int:
        """The number of a thing: its name, its row of the tables, a note and its category."""
        key = (self.id(name), row, self.id(note) if note else _UNKNOWN, category)
        if key not in self._things:
            self._things[key] = len(self.names)
            for values, value in zip((self.names, self.rows, self.notes, self.categories), key, strict=True):
                values.append(value)
        return self._things[key]

    def category(self, where: str, label: str) -> int:
        """The number of a category of CATEGORIES."""
        if (where, label) not in self._categories:
            self._categories[where, label] = len(self.legend)
            self.legend.append((where, label, CATEGORIES[where][label]))
        return self._categories[where, label]

    def category_of(self, kind: str, name: str = "") -> int:
        """The number of the category of a kind of row, for a kernel also by its full name; -1 without one."""
        if kind == Kind.KERNEL.label:
            return self.category("GPU", kernel_class(name).label)
        return self.category(*OF_KINDS[kind]) if kind in OF_KINDS else _UNKNOWN

    def is_own(self, thing: int) -> bool:
        """Whether a thing is the program's own code."""
        return self.categories[thing] == self._categories.get(("Python", YOUR_CODE))

    def number_functions(self, functions: Iterable[tuple[str, str]], first: int) -> None:
        """Gives Python functions (name and file) the rows of the tables from `first` on."""
        self._functions = {function: first + number for number, function in enumerate(functions)}

    def row_of(self, kind: str, name: str) -> int:
        """The row of ``key_averages`` of this kind and name; -1 without."""
        return self._rows.get((kind, name), _UNKNOWN)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        columns = {"names": self.names, "rows": self.rows, "notes": self.notes, "categories": self.categories}
        return {**columns, "legend": self.legend}

    # -- by the columns of tables --------------------------------------------------------------------------------------

    def of_variants(self, column: Array) -> Array:
        """Kernels by their launch configuration."""
        variants, kernel, kernels = self._trace.variants, Kind.KERNEL.label, self._trace.kernel_names()

        def thing(row: int) -> int:
            full = kernels[row]
            grid, block = (
                "x".join(f"{variants[f'{what}_{axis}'][row]}" for axis in "xyz") for what in ("grid", "block")
            )
            shared = int(variants.static_shared_bytes[row]) + int(variants.dynamic_shared_bytes[row])
            note = f"grid {grid}, block {block}, {int(variants.registers[row])} registers"
            note += f", {format_bytes(shared)} shared memory" if shared else ""
            return self.thing(brief_name(full), self.row_of(kernel, full), note, self.category_of(kernel, full))

        return self._looked_up(thing, len(kernels), column, "kernel")

    def of_graphs(self, table: Table) -> Array:
        """CUDA graphs that were traced as a whole."""
        numbers, place = np.unique(table.graph, return_inverse=True)
        kind = Kind.GRAPH_LAUNCH.label
        row = next((row for (each, _), row in self._rows.items() if each == kind), _UNKNOWN)
        category = self.category_of(kind) if len(numbers) else _UNKNOWN
        found = [self.thing("CUDA graph", row, f"graph {number}", category) for number in numbers.tolist()]
        return np.array([*found, 0])[place.reshape(-1)]

    def of_copies(self, table: Table) -> Array:
        """Copies by source and destination, and by size."""
        sizes = table.bytes.astype(np.int64)
        if len(np.unique(sizes)) > _MOST_SIZES:
            sizes = np.zeros(len(sizes), np.int64)
        kinds = table.kind.astype(np.int64) << 16 | table.source.astype(np.int64) << 8 | table.destination
        pairs, place = np.unique(np.stack([kinds, sizes]), axis=1, return_inverse=True)
        found = []
        for ends, size in pairs.T.tolist():
            name = _core.copy_name(ends >> 16, ends >> 8 & 0xFF, ends & 0xFF)
            kind, note = Kind.MEMCPY.label, format_bytes(size) if size else ""
            found.append(self.thing(name, self.row_of(kind, name), note, self.category_of(kind)))
        return np.array([*found, 0])[place.reshape(-1)]

    def of_fills(self, table: Table) -> Array:
        """Fills of memory."""
        if len(table) == 0:
            return np.zeros(0, np.int64)
        kind, name = Kind.MEMSET.label, _core.MEMSET_NAME
        thing = self.thing(name, self.row_of(kind, name), category=self.category_of(kind))
        return np.full(len(table), thing)

    def of_paths(self, column: Array) -> Array:
        """Regions by their call path."""
        paths = self._trace.paths

        def thing(path: int) -> int:
            text, label = self._trace.string(int(paths.name[path])), region_kind(int(paths.kind[path])).name.lower()
            row = self.row_of(label, text)
            if row == _UNKNOWN and text.startswith(STEP):
                row = self.row_of(label, STEPS)
            return self.thing(text, row, category=self.category_of(label))

        return self._looked_up(thing, len(paths), column, "region")

    def of_calls(self, column: Array) -> Array:
        """Driver calls, under the runtime's names."""
        calls = self._trace.calls

        def thing(call: int) -> int:
            text = self._trace.string(int(calls.name[call]))
            wanted = (text, _runtime_like(text))
            rows = [self.row_of(kind.label, name) for name in wanted for kind in (Kind.CALL, Kind.SYNC)]
            category = self.category_of((Kind.SYNC if calls.kind[call] == CallKind.SYNC else Kind.CALL).label)
            return self.thing(text, next((row for row in rows if row != _UNKNOWN), _UNKNOWN), category=category)

        return self._looked_up(thing, len(calls), column, "driver call")

    def of_strings(self, column: Array) -> Array:
        """Python functions by string id, without the folder of their file."""
        ids, place = np.unique(column, return_inverse=True)
        found = []
        for each in ids.tolist():
            text = self._trace.string(each)
            file, bracket, rest = text.partition("(")
            brief = f"{os.path.basename(file)}{bracket}{rest}" if "/" in file else text
            category = self.category("Python", category_of_function(rest.partition(": ")[2], file))
            found.append(self.thing(brief, _UNKNOWN, text if brief != text else "", category))
        return np.array([*found, 0])[place.reshape(-1)]

    def of_frames(self, stacks: Sequence[int]) -> list[int]:
        """Frames of Python by function, outermost first, without lines; an import is one frame."""
        table, caller = self._trace.stacks, ""
        found: list[int] = []
        for stack in stacks:
            function, file = (self._trace.string(int(table[name][stack])) for name in ("function", "file"))
            if found and file.startswith(_IMPORT_SYSTEM):
                continue
            if found and is_import(function, file, caller):
                row = self._functions.get((IMPORTS, ""), _UNKNOWN)
                return [*found, self.thing(IMPORTS, row, file, self.category("Python", IMPORTS))]
            category = self.category("Python", category_of_function(function, file))
            row, caller = self._functions.get((function, file), _UNKNOWN), file
            found.append(self.thing(f"{function} ({os.path.basename(file)})", row, file, category))
        return found

    def of_causes(self, causes: Array) -> Array:
        """Causes of idle time."""

        def thing(cause: int) -> int:
            label = IdleCause(cause).label
            return self.thing(label, category=self.category("GPU idle", label))

        return self._looked_up(thing, len(IdleCause), causes, "idle")

    def _looked_up(self, thing: Callable[[int], int], count: int, column: Array, unknown: str) -> Array:
        """The thing of each row; damaged files may refer to rows that do not exist."""
        rows = np.minimum(column, count).astype(np.int64)
        found = np.zeros(count + 1, np.int64)
        for row in np.flatnonzero(np.bincount(rows, minlength=1)).tolist():
            found[row] = thing(row) if row < count else self.thing(unknown)
        return found[rows]


def _runtime_like(call: str) -> str:
    """The runtime's function for a driver call: "cudaMemcpyAsync"."""
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
