# SPDX-License-Identifier: Apache-2.0
"""Recordings of a job's ranks, reduced to its tables."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.fleet import tables
from gpuscope.fleet.reduce import reduce
from gpuscope.fleet.tables import RANKS_PER_FILE, Columns
from gpuscope.paths import find_suffix
from gpuscope.readers.files import SUFFIXES, kind_of, load_store, recordings_in
from gpuscope.text import brief, one_line
from gpuscope.trace import Trace

_RANK_IN_NAME = re.compile(r"rank[-_]?0*(\d{1,9})(?!\d)", re.IGNORECASE)
_NOTES = "notes"

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Shard = tuple[int, int]


def merge_into(
    inputs: Paths,
    folder: str | os.PathLike[str],
    shard: Shard = (1, 1),
    told: Callable[[str], object] = lambda text: None,
) -> int:
    """Reduces recordings and writes a job's tables, 64 ranks a file. A repeated call writes the same files.

    Args:
        inputs: recordings, folders of them, or patterns.
        folder: where the tables go.
        shard: which part of the ranks, as (1, 4): each process of a larger machine can take another one.
        told: called with the path of each recording before it is read.

    Returns:
        The number of ranks.

    Raises:
        InvalidArgument: nothing can be read, two recordings have the same rank, or they are of two jobs.
        NotAvailable: pyarrow is not installed.
    """
    files = find_recordings(inputs)
    to, ranks = Path(folder), 0
    tables.import_arrow()
    for part, members in sorted(_parts(files).items()):
        if part % shard[1] == shard[0] - 1:
            merged, notes = merge_files(members, told)
            ranks += len(merged["rank"]["rank"])
            tables.write(to, merged, part)
            path = to / _NOTES / f"ranks-{part * RANKS_PER_FILE:05d}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
    return ranks


def read_notes(folder: Path) -> list[str]:
    """Which recordings could not be read, and why, a sentence each."""
    notes: list[str] = []
    for path in sorted((folder / _NOTES).glob("ranks-*.json")):
        notes += map(str, json.loads(path.read_text(encoding="utf-8")))
    return notes


def merge_files(
    files: Mapping[Path, int], told: Callable[[str], object] = lambda text: None
) -> tuple[dict[str, Columns], list[str]]:
    """The tables of these recordings, and which could not be read, a sentence each.

    Args:
        files: recordings, and the rank of those that do not say it.
        told: called with the path of each recording before it is read.

    Raises:
        InvalidArgument: nothing can be read, two recordings have the same rank, or they are of two jobs.
    """
    parts: list[dict[str, Columns]] = []
    notes: list[str] = []
    for path, position in files.items():
        told(str(path))
        try:
            trace = Trace(load_store(path))
            found = reduce(trace, str(path))
            if "process.rank" not in trace.info and len(found["rank"]["rank"]) == 1:
                for columns in found.values():
                    columns["rank"] = np.full_like(columns["rank"], position)
            parts.append(found)
        except (GpuscopeError, OSError) as error:
            notes.append(f"{path} is left out: {one_line(str(error))}")
    if not parts:
        raise InvalidArgument(f"none of {len(files):,} recordings can be read: {notes[0]}")
    merged = tables.join(parts)
    _check_one_job(merged["rank"])
    return merged, notes


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


def _check_one_job(ranks: Columns) -> None:
    sizes = sorted(set(ranks["world_size"].tolist()) - {0})
    if len(sizes) > 1:
        first, second = (ranks["source"][np.flatnonzero(ranks["world_size"] == size)[0]] for size in sizes[:2])
        raise InvalidArgument(
            f"the recordings are of two jobs: {first} has {sizes[0]} ranks and {second} {sizes[1]}; "
            "accepted are those of one job"
        )
    numbers, counts = np.unique(ranks["rank"], return_counts=True)
    if (twice := np.flatnonzero(counts > 1)).size:
        number = int(numbers[twice[0]])
        sources: Sequence[str] = ranks["source"][ranks["rank"] == number].tolist()
        raise InvalidArgument(
            f"rank {number} is there twice, in {sources[0]} and {sources[1]}; accepted is one recording for each rank"
        )
