# SPDX-License-Identifier: Apache-2.0
"""Traces in Chrome's JSON: read part by part, and handed to the one that knows the tool that wrote them."""

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
_PART = 1 << 20  # bytes that are read at once: columns of events take about as much again
_COMPRESSED = 1 << 16  # bytes of gzip's that are read at once
_MOST_EXPANDED = 100  # times the size of a compressed file; traces reach 22
_LEAST_ROOM = 1 << 20  # bytes that any compressed file may have
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
# Of Kineto's first versions.
_ALIASES = [("external id", "External id"), ("Input dims", "Input Dims")]
_PHASES = "XMsfibeBC"
_NOT_READ = {ord("B"): "events with separate ends", ord("C"): "counters"}


class EventMapper(ABC):
    """Makes rows of a recording of one tool's events."""

    tool: str
    wanted: str
    """What its traces have to have, as the end of a sentence."""

    def __init__(self, events: _core.TraceEvents) -> None:
        self.events = events
        self.tables = Tables()
        self.names: dict[int, str] = {}  # of threads and streams, by place
        self.processes: dict[int, str] = {}
        self.process_names: dict[int | str | None, str] = {}  # the same, by what the trace calls the process
        self._no_name = events.intern(NO_NAME)

    def take(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Maps a part of the events; `word` is the id of a text, NONE where none has come yet."""
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
        """Counts the rows among `which`, by category, as such that are not read."""
        categories, counts = np.unique(batch["category"][which], return_counts=True)
        for category, rows in zip(categories.tolist(), counts.tolist(), strict=True):
            self.tables.checks.skip("no category" if category == NONE else brief(self.events.string(category)), rows)

    def rows(self, table: str, batch: Batch, which: Column) -> Column:
        """The numbers of the rows among `which` that the table can hold, repaired in the batch where they need it."""
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
        """Whether there was anything of the tool's."""
        return bool(len(self.tables))

    @abstractmethod
    def map(self, batch: Batch, word: Callable[[str], int]) -> None:
        """Adds what a part of the events says to the tables."""

    @abstractmethod
    def finish(self, strings: Strings, facts: dict[str, str], document: Mapping[str, Any]) -> _core.Store:
        """The recording.

        Args:
            strings: all texts so far.
            facts: of the file.
            document: the values beside the events.
        """


def read_parts(file: BinaryIO, path: str) -> Iterator[bytes]:
    """The file's bytes, decompressed where it is gzip's; its end, cut off or not, is the end.

    Raises:
        CorruptTrace: what is compressed is damaged, or has more than 100 times the size of the file.
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
            if stream.eof:  # a file may have several streams, one behind the other, and zeros behind the last
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
    """A recording of a trace in Chrome's JSON, compressed or not.

    Args:
        path: the file.
        choose: whose events a part of them are; None where that does not tell.
        default: whose they are where no part tells.
        salvage: read what stands before the place from which on it is no JSON.

    Raises:
        CorruptTrace: it is no JSON, or no trace of a tool that is known.
        GpuscopeError: it cannot be read at all.
    """
    name = os.fspath(path)
    events = _core.TraceEvents(_PHASES, list(_INTEGERS), list(_TEXTS), _ALIASES)
    known: dict[str, int] = {}

    def word(text: str) -> int:
        if text not in known:
            found = events.find(text)
            if found == NONE:
                return NONE
            known[text] = found
        return known[text]

    mapper: EventMapper | None = None
    held: list[Batch] = []  # until it is known whose they are
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
        mapper.tables.checks.notes.append("nan, inf and N/A in place of numbers in the file were read as no numbers")
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
    """What texts say, as numbers; each text is read once.

    Args:
        events: whose texts they are.
        read: the numbers of a text, always as many.
    """

    def __init__(self, events: _core.TraceEvents, read: Callable[[str], tuple[int, ...]]) -> None:
        self._events = events
        self._read = read
        self._known: dict[int, tuple[int, ...]] = {}
        self._none = read("")

    def __call__(self, ids: Column) -> list[Column]:
        """The numbers of each id, a column each; those of the empty text for NONE."""
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
    """The id of the first arrow that begins, or ends, with each row; -1 where there is none."""
    if not arrows:
        return np.full(len(rows["start_ns"]), -1, np.int64)
    times = np.unique(arrows["start_ns"])

    def key(of: Mapping[str, Column]) -> Column:
        """A number of each place and time at which an arrow is; -1 of others."""
        at = np.minimum(np.searchsorted(times, of["start_ns"]), len(times) - 1)
        return np.where(times[at] == of["start_ns"], of["place"].astype(np.int64) * len(times) + at, -1)

    row, is_found = Lookup(key(arrows), np.arange(len(arrows["id"]), dtype=np.uint32), least=0).find(key(rows))
    return np.where(is_found, arrows["id"][np.where(is_found, row, 0)], -1)


def names_of_threads(mapper: EventMapper, strings: Strings) -> dict[str, list[int]]:
    """``system_id`` and ``name`` of the threads, whose keys are places."""
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
