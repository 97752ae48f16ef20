# SPDX-License-Identifier: Apache-2.0
"""Traces in Chrome's JSON, read in parts and passed to the mapper of the tool that wrote them."""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from gpuscope import _core
from gpuscope.errors import CorruptTrace
from gpuscope.paths import open_file
from gpuscope.readers.checks import NO_NAME, Column
from gpuscope.readers.tables import NONE, Lookup, Strings, Tables, json_of
from gpuscope.text import brief

Batch = Mapping[str, Column]

_GZIP = b"\x1f\x8b"
_PART = 1 << 20  # bytes read at once; columns of events need about the same again
_COMPRESSED = 1 << 16  # compressed bytes read at once
_MOST_EXPANDED = 100  # times the size of a compressed file; traces reach 22
_LEAST_ROOM = 1 << 20  # decompressed bytes that any file may have
_MOST_HELD = 16  # parts
_INTEGERS = (
    "correlation",
    "External id",
    "device",
    "context",
    "stream",
    "registers per thread",
    "shared memory",
    "bytes",
    "graph id",
    "graph node id",
    "Sequence number",
    "Python id",
    "Python parent id",
    "correlation_id",
    "device_ordinal",
    "context_id",
    "Device Type",
    "Device Id",
    "Addr",
    "Bytes",
    "Total Allocated",
    "Total Reserved",
    "Ev Idx",
    "sort_index",
)
COLLECTIVE_INTEGERS = ("In msg nelems", "Out msg nelems", "Group size", "Seq", "Src Rank", "Dst Rank")
COLLECTIVE_TEXTS = ("Collective name", "Process Group Name", "Process Group Ranks", "dtype")
"""What torch's operators of collectives have, with the numbers above."""
_TEXTS = (
    "name",
    "grid",
    "block",
    "Input Dims",
    "Input type",
    "call_stack",
    "hlo_op",
    "hlo_module",
    "kernel_details",
    "memcpy_details",
    "memset_details",
    "step_name",
)
# Names in Kineto's first versions.
_ALIASES = [("external id", "External id"), ("Input dims", "Input Dims")]
_PHASES = "XMsfibeBC"
_NOT_READ = {ord("B"): "events with separate ends", ord("C"): "counters"}


class EventMapper(ABC):
    """Maps one tool's events to rows of a recording."""

    tool: str
    wanted: str
    """The requirement for its traces, as the end of an error message."""

    def __init__(self, events: _core.TraceEvents) -> None:
        self.events = events
        self.tables = Tables()
        self.names: dict[int, str] = {}  # of threads and streams, by place
        self.processes: dict[int, str] = {}
        self.process_names: dict[int | str | None, str] = {}  # by the trace's own process id
        self._no_name = events.intern(NO_NAME)

    def take(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Maps a part of the events. `word` returns the id of a text, NONE if it has not occurred yet."""
        batch = {**batch, "flags": np.zeros(len(batch["phase"]), np.uint16)}
        self.tables.checks.see(batch["start_ns"][batch["phase"] == ord("X")])
        for phase, what in _NOT_READ.items():
            self.tables.checks.skip(what, int(np.count_nonzero(batch["phase"] == phase)))
        named = np.flatnonzero((batch["phase"] == ord("M")) & (batch["args.name"] != NONE))
        if len(named):
            columns = (batch[name][named].tolist() for name in ("place", "args.name", "name"))
            for place, text, what in zip(*columns, strict=True):
                if what == word("thread_name"):
                    self.names[place] = self.events.string(text)
                elif what == word("process_name") and place not in self.processes:
                    name = self.processes[place] = self.events.string(text)
                    self.process_names[self.events.place(place)[0]] = name
        self.map(batch, word)

    def skip(self, batch: Batch, which: Column) -> None:
        """Counts the rows of `which`, by category, as not read."""
        categories, counts = np.unique(batch["category"][which], return_counts=True)
        for category, rows in zip(categories.tolist(), counts.tolist(), strict=True):
            self.tables.checks.skip("no category" if category == NONE else brief(self.events.string(category)), rows)

    def rows(self, table: str, batch: Batch, which: Column) -> Column:
        """Indices of the rows of `which` that are valid for the table. Repairs them in the batch if needed."""
        rows = np.flatnonzero(which)
        if not len(rows):
            return rows
        checks = self.tables.checks
        spans = checks.spans(table, batch["start_ns"][rows], batch["duration_ns"][rows])
        rows = rows[spans.rows]
        for column in ("start_ns", "duration_ns", "flags"):
            batch[column][rows] = getattr(spans, column)
        name = batch["name"][rows]
        batch["name"][rows] = checks.names(table, name, (name == NONE) | (name == 0), self._no_name)
        return rows

    @property
    def found(self) -> bool:
        """Whether the trace contained events of the tool."""
        return bool(len(self.tables))

    @abstractmethod
    def map(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Adds a part of the events to the tables."""

    @abstractmethod
    def finish(self, strings: Strings, facts: dict[str, str], document: Mapping[str, Any]) -> _core.Store:
        """The recording.

        Args:
            strings: all texts so far.
            facts: of the file.
            document: the values of the file other than the events.
        """


def read_parts(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Yields the file's bytes, decompressed if it is gzip. A file that is cut off ends without an error.

    Raises:
        CorruptTrace: the compressed data is damaged, or expands to more than 100 times the size of the file.
    """
    part = file.read(_COMPRESSED)
    if not part.startswith(_GZIP):
        while part:
            yield part
            part = file.read(_PART)
        return
    stream = zlib.decompressobj(wbits=31)
    room = max(_MOST_EXPANDED * os.fstat(file.fileno()).st_size, _LEAST_ROOM)
    try:
        while part:
            text = stream.decompress(part, _PART)
            room -= len(text)
            if room < 0:
                why = f"it has more than {_MOST_EXPANDED} times the size of the file, and is no trace"
                raise CorruptTrace(f"{path!r} cannot be decompressed: {why}", path, 0)
            if text:
                yield text
            part = stream.unconsumed_tail
            if stream.eof:  # a file may contain several consecutive streams, and zeros after the last
                part = stream.unused_data.lstrip(b"\0")
                stream = zlib.decompressobj(wbits=31)
            if len(part) < _COMPRESSED:
                part += file.read(_COMPRESSED)
    except zlib.error as error:
        raise CorruptTrace(f"{path!r} cannot be decompressed: {error}", path, 0) from error


def read_chrome_trace(
    path: str | os.PathLike[str],
    choose: Callable[[Batch, _core.TraceEvents], type[EventMapper] | None],
    default: type[EventMapper],
    salvage: bool = False,
) -> _core.Store:
    """Reads a trace in Chrome's JSON, compressed or not.

    Args:
        path: the file.
        choose: returns the mapper for a part of the events; None if the part does not show the tool.
        default: the mapper if no part shows the tool.
        salvage: whether to read a damaged file up to the first invalid JSON.

    Raises:
        CorruptTrace: it is no JSON, or no trace of a known tool.
        GpuscopeError: the file cannot be read.
    """
    name = os.fspath(path)
    events = _core.TraceEvents(_PHASES, [*_INTEGERS, *COLLECTIVE_INTEGERS], [*_TEXTS, *COLLECTIVE_TEXTS], _ALIASES)
    known: dict[str, int] = {}

    def word(text: str) -> int:
        if text not in known:
            found = events.find(text)
            if found == NONE:
                return NONE
            known[text] = found
        return known[text]

    mapper: EventMapper | None = None
    held: list[Batch] = []  # until the mapper is known
    damage: CorruptTrace | None = None

    def hand_over() -> None:
        nonlocal mapper
        batch = events.take()
        if mapper is None:
            held.append(batch)
            chosen = choose(batch, events)
            if chosen is None and len(held) < _MOST_HELD:
                return
            mapper = (chosen or default)(events)
            for each in held:
                mapper.take(each, word)
            held.clear()
        else:
            mapper.take(batch, word)

    with open_file(name) as file:
        try:
            for part in read_parts(file, name):
                events.feed(part)
                hand_over()
            events.finish()
        except CorruptTrace as error:
            damage = error
        hand_over()
    if mapper is None:
        mapper = default(events)
        for each in held:
            mapper.take(each, word)
    if damage is not None and not (salvage and mapper.found):
        raise _as_seen(name, damage) from damage
    if not mapper.found:
        if damage is None and not events.is_whole:
            why = "cannot be decompressed: it was cut off" if _is_compressed(name) else "is no JSON, or cut off"
            raise CorruptTrace(f"{name!r} {why} at byte {events.offset}", name, events.offset)
        if not events.has_list:
            raise CorruptTrace(f"{name!r} is no trace: it has no list of traceEvents", name, 0)
        raise CorruptTrace(f"{name!r} is no trace of {mapper.tool}: {mapper.wanted}", name, 0)
    facts = {} if events.is_whole else {"file.truncated_at": str(events.offset)}
    if events.bare_backslashes:
        mapper.tables.checks.notes.append("backslashes are not escaped in the file, and were read as they are")
    if events.odd_numbers:
        mapper.tables.checks.notes.append("nan, inf and N/A in the file were read as missing numbers")
    document = {key: json_of(text) for key, text in events.facts}
    return mapper.finish(Strings(events.strings()), facts, document)


def _as_seen(path: str, error: CorruptTrace) -> CorruptTrace:
    message = str(error)
    if "decompressed" in message:
        return error
    return CorruptTrace(f"{path!r} is no JSON, or cut off{message}", path, error.offset)


def _is_compressed(path: str) -> bool:
    with open_file(path) as file:
        return bool(file.read(2) == _GZIP)


class Meanings:
    """Converts texts to numbers; each text is converted once.

    Args:
        events: the source of the texts.
        read: converts a text to numbers, always the same count.
    """

    def __init__(self, events: _core.TraceEvents, read: Callable[[str], tuple[int, ...]]) -> None:
        self._events = events
        self._read = read
        self._known: dict[int, tuple[int, ...]] = {}
        self._none = read("")

    def __call__(self, ids: Column) -> list[Column]:
        """The numbers of each id, one column per number; for NONE those of the empty text."""
        distinct, inverse = np.unique(ids, return_inverse=True)
        found = np.array([self._of(each) for each in distinct.tolist()], np.int64).reshape(-1, len(self._none))
        return list(found[inverse].T)

    def _of(self, text: int) -> tuple[int, ...]:
        if text == NONE:
            return self._none
        if text not in self._known:
            self._known[text] = self._read(self._events.string(text))
        return self._known[text]


def arrows_of(rows: Mapping[str, Column], arrows: Mapping[str, Column]) -> Column:
    """The id of the first arrow at the start of each row; -1 for none."""
    if not arrows:
        return np.full(len(rows["start_ns"]), -1, np.int64)
    times = np.unique(arrows["start_ns"])

    def key(of: Mapping[str, Column]) -> Column:
        """A number for each place and time with an arrow; -1 for others."""
        at = np.minimum(np.searchsorted(times, of["start_ns"]), len(times) - 1)
        return np.where(times[at] == of["start_ns"], of["place"].astype(np.int64) * len(times) + at, -1)

    row, is_found = Lookup(key(arrows), np.arange(len(arrows["id"]), dtype=np.uint32), least=0).find(key(rows))
    return np.where(is_found, arrows["id"][np.where(is_found, row, 0)], -1)


def names_of_threads(mapper: EventMapper, strings: Strings) -> dict[str, list[int]]:
    """``system_id`` and ``name`` of the threads, with places as keys."""
    found = mapper.events.places()
    places = [int(place) for place in mapper.tables.threads.columns()[0]]
    ids = [found[place][1] for place in places]
    return {
        "system_id": [each if isinstance(each, int) and 0 <= each < 1 << 63 else 0 for each in ids],
        "name": [strings(_plain(mapper.names.get(place, ""))) for place in places],
    }


def _plain(name: str) -> str:
    """Kineto's `thread 123 (python)` as `python`."""
    if name.startswith("thread ") and name.endswith(")"):
        _, opening, rest = name.partition(" (")
        return rest[:-1] if opening else name
    return name
