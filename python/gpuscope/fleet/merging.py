# SPDX-License-Identifier: Apache-2.0
"""Recordings of a job's ranks, reduced to its tables."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gpuscope.analysis.completeness import audit, is_in_part
from gpuscope.errors import CorruptTrace, GpuscopeError, InvalidArgument
from gpuscope.fleet import tables
from gpuscope.fleet.events import remove_events, write_events
from gpuscope.fleet.reduce import reduce
from gpuscope.fleet.tables import RANKS_PER_FILE, Array, Columns
from gpuscope.paths import find_suffix, write_text
from gpuscope.readers.files import SUFFIXES, kind_of, load_store, recordings_in
from gpuscope.text import brief, one_line
from gpuscope.trace import Trace

_RANK_IN_NAME = re.compile(r"rank[-_]?0*(\d{1,9})(?!\d)", re.IGNORECASE)
_FOLDERS = re.compile(r"(?:[^\s/'\"]*/)+")
_LEFT_OUT = " is left out: "
_MOST_RANKS = 1 << 22
_NOTES = "notes"

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Shard = tuple[int, int]


def merge_into(
    inputs: Paths,
    folder: str | os.PathLike[str],
    shard: Shard = (1, 1),
    told: Callable[[str], object] = lambda text: None,
    *,
    anonymous: bool = False,
    events: bool = False,
) -> tuple[Columns, list[str]]:
    """Reduces recordings and writes a job's tables, 64 ranks a file. A repeated call writes the same files.

    Args:
        inputs: recordings, folders of them, or patterns.
        folder: where the tables go.
        shard: which part of the ranks, as (1, 4): each process of a larger machine can take another one.
        told: called with the path of each recording before it is read.
        anonymous: write no names of hosts and no paths.
        events: write the single kernels, copies, calls and regions too.

    Returns:
        The table `rank`, and the recordings that cannot be read, a sentence each. A part may have no ranks.

    Raises:
        InvalidArgument: nothing can be read, two recordings have the same rank, they are of two jobs, or `anonymous` is
            asked for a part of the ranks or with `events`.
        NotAvailable: pyarrow is not installed.
        GpuscopeError: the folder cannot be written.
    """
    number, count = shard
    if not 1 <= number <= count:
        raise InvalidArgument(f"shard is {number}/{count}; accepted are 1/N to N/N")
    if anonymous and count > 1:
        raise InvalidArgument(
            f"shard is {number}/{count}, but anonymous hosts are numbered over all ranks; accepted is 1/1"
        )
    if anonymous and events:
        raise InvalidArgument("events have the names of regions, which may be paths; accepted are events or anonymous")
    to = Path(folder)
    if os.path.lexists(to) and not to.is_dir():
        raise InvalidArgument(f"{brief(str(to))} is a file; accepted is a folder for the tables")
    tables.import_arrow()
    hosts: dict[str, str] = {}
    ranks, notes = tables.empty("rank"), list[str]()
    if count == 1:
        with _writing(to):
            remove_events(to)
    for part, members in sorted(_parts(find_recordings(inputs)).items()):
        if part % count != number - 1:
            continue
        merged, left_out = _read_files(members, told, to if events else None)
        if anonymous:
            merged, left_out = without_names(merged, left_out, hosts)
        notes += left_out
        ranks = tables.join({"rank": each} for each in (ranks, merged["rank"]))["rank"]
        check_one_job(ranks)
        with _writing(to):
            tables.write(to, merged, part)
            path = to / _NOTES / f"ranks-{part * RANKS_PER_FILE:05d}.json"
            path.parent.mkdir(exist_ok=True)
            write_text(path, json.dumps(left_out, indent=1) + "\n")
    if notes and not len(ranks["rank"]):
        raise InvalidArgument(f"none of {len(notes):,} recordings can be read: {notes[0]}")
    return ranks, notes


@contextlib.contextmanager
def _writing(to: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GpuscopeError(f"cannot write the tables to {brief(str(to))}: {error.strerror or error}") from error


def without_names(
    columns: Mapping[str, Columns], notes: Sequence[str], hosts: dict[str, str] | None = None
) -> tuple[dict[str, Columns], list[str]]:
    """The tables and notes without names of hosts and paths: host-1, host-2, and rank-00000 with its suffix.

    Args:
        columns: the tables.
        notes: as `read_notes`.
        hosts: the new names of hosts, by name. Filled here, for the next part of the job.
    """
    hosts = {} if hosts is None else hosts
    found = {table: dict(values) for table, values in columns.items()}
    rank = found["rank"]
    for row in np.argsort(rank["rank"], kind="stable").tolist():
        if host := rank["host"][row]:
            hosts.setdefault(host, f"host-{len(hosts) + 1}")
    sources = zip(rank["rank"].tolist(), rank["source"].tolist(), strict=True)
    names = [f"rank-{number:05d}{find_suffix(Path(source), SUFFIXES) or ''}" for number, source in sources]
    rank["host"] = _texts([hosts.get(host, "") for host in rank["host"]])
    rank["source"] = _texts(names)
    for values, column in ((rank, "verdict"), (found["reason"], "reason")):
        values[column] = _texts([_FOLDERS.sub("", text) for text in values[column]])
    return found, [_note_without_names(note) for note in notes]


def _note_without_names(note: str) -> str:
    path, words, why = note.partition(_LEFT_OUT)
    if not words:
        return _FOLDERS.sub("", note)
    for name in (path, Path(path).name):
        why = why.replace(name, "the file")
    return f"a recording{words}{_FOLDERS.sub('', why)}"


def _texts(values: Sequence[str]) -> Array:
    texts: Array = np.empty(len(values), object)
    texts[:] = values
    return texts


def read_notes(folder: Path) -> list[str]:
    """Which recordings could not be read, and why, a sentence each.

    Raises:
        CorruptTrace: a file is damaged.
    """
    notes: list[str] = []
    for path in sorted((folder / _NOTES).glob("ranks-*.json")):
        try:
            notes += map(str, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise CorruptTrace(f"{path} is damaged: {one_line(str(error))}", str(path), 0) from None
    return notes


def merge_files(
    files: Mapping[Path, int], told: Callable[[str], object] = lambda text: None
) -> tuple[dict[str, Columns], list[str]]:
    """The tables of these recordings, and the recordings that cannot be read, a sentence each.

    A recording is left out too if the file has only part of it: its times would be too short.

    Args:
        files: recordings, and the rank of those that do not say it.
        told: called with the path of each recording before it is read.

    Raises:
        InvalidArgument: nothing can be read, two recordings have the same rank, or they are of two jobs.
    """
    merged, notes = _read_files(files, told)
    if not len(merged["rank"]["rank"]):
        raise InvalidArgument(f"none of {len(files):,} recordings can be read: {notes[0]}")
    check_one_job(merged["rank"])
    return merged, notes


def _read_files(
    files: Mapping[Path, int], told: Callable[[str], object], events: Path | None = None
) -> tuple[dict[str, Columns], list[str]]:
    """As `merge_files`, and without ranks if nothing can be read; writes the events into the folder of the job."""
    parts: list[dict[str, Columns]] = []
    notes: list[str] = []
    for path, position in files.items():
        told(str(path))
        try:
            trace = Trace(load_store(path))
            if "file.unfinished" in trace.info:  # of a process that died, up to its death
                notes.append(f"{brief(str(path))}: {audit(trace).reasons[0]}")
            elif is_in_part(trace):
                raise CorruptTrace(audit(trace).verdict.removeprefix("audit: "), str(path), 0)
            found = reduce(trace, str(path))
            if "process.world_size" not in trace.info:
                found["rank"]["world_size"][:] = 0
            if "process.rank" not in trace.info and len(found["rank"]["rank"]) == 1:
                for columns in found.values():
                    columns["rank"] = np.full_like(columns["rank"], position)
            check_one_job(found["rank"])
        except (GpuscopeError, OSError) as error:
            notes.append(f"{path}{_LEFT_OUT}{one_line(str(error))}")
            continue
        if events is not None:
            with _writing(events):
                write_events(events, trace, found)
        parts.append(found)
    return tables.join(parts), notes


def find_recordings(inputs: Paths) -> dict[Path, int]:
    """The recordings that `inputs` name, in order of their ranks, each with its rank by name or position.

    Raises:
        InvalidArgument: a path does not exist, or nothing was found.
    """
    given = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    found: list[Path] = []
    for each in given:
        path = Path(each)
        if path.is_dir() and not kind_of(path):
            found += recordings_in(path) or [inside for inside in path.iterdir() if find_suffix(inside, SUFFIXES)]
        elif path.exists():
            found.append(path)
        else:
            matched = [Path(match) for match in glob.glob(str(each))]
            if not matched:
                raise InvalidArgument(f"no recording is at {brief(str(each))}")
            found += matched
    if not found:
        raise InvalidArgument(f"no recording is in {brief(', '.join(map(str, given)))}")
    numbers = [_rank_in_name(path) for path in dict.fromkeys(found)]
    unique = list(dict.fromkeys(found))
    if None in numbers or len(set(numbers)) < len(numbers):
        unique.sort(key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)])
        return {path: position for position, path in enumerate(unique)}
    return dict(sorted(((path, int(number or 0)) for path, number in zip(unique, numbers, strict=True)), key=_second))


def _second(pair: tuple[Path, int]) -> int:
    return pair[1]


def _rank_in_name(path: Path) -> int | None:
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None


def _parts(files: Mapping[Path, int]) -> dict[int, dict[Path, int]]:
    """The recordings of each file of tables."""
    parts: dict[int, dict[Path, int]] = {}
    for path, rank in files.items():
        parts.setdefault(rank // RANKS_PER_FILE, {})[path] = rank
    return parts


def check_one_job(ranks: Columns) -> None:
    """Raises InvalidArgument if ranks are of two jobs, there twice, or no ranks of a job."""
    sizes = sorted(set(ranks["world_size"].tolist()) - {0})
    if len(sizes) > 1:
        first, second = (ranks["source"][np.flatnonzero(ranks["world_size"] == size)[0]] for size in sizes[:2])
        raise InvalidArgument(
            f"the recordings are of two jobs: {first} has {sizes[0]} ranks and {second} {sizes[1]}; "
            "accepted are those of one job"
        )
    numbers, counts = np.unique(ranks["rank"], return_counts=True)
    if len(numbers) and not 0 <= numbers[0] <= max(0, numbers[-1], *sizes) < _MOST_RANKS:
        raise InvalidArgument(
            f"the ranks are {numbers[0]} to {numbers[-1]} of {max(sizes, default=0)}; "
            f"accepted are 0 to {_MOST_RANKS - 1}"
        )
    if (twice := np.flatnonzero(counts > 1)).size:
        number = int(numbers[twice[0]])
        sources: Sequence[str] = ranks["source"][ranks["rank"] == number].tolist()
        raise InvalidArgument(
            f"rank {number} is there twice, in {sources[0]} and {sources[1]}; accepted is one recording for each rank"
        )
