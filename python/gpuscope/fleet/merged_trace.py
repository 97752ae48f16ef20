# SPDX-License-Identifier: Apache-2.0
"""The recordings of some ranks and steps as one timeline for Perfetto: a TAR with a trace for each recording.

The times in the traces are aligned before they are written, so that each version of Perfetto that opens archives shows
them on one axis. Version 58 and later also reads which host each trace is of from the archive's ``perfetto_manifest``.
Its format: https://perfetto.dev/docs/reference/perfetto-manifest.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gpuscope import _core
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.exporters.trace_files import write_perfetto
from gpuscope.fleet.clocks import Clock
from gpuscope.fleet.tables import Array, Columns
from gpuscope.paths import check_writable, replacing
from gpuscope.readers.files import load_store
from gpuscope.text import brief, one_line
from gpuscope.trace import NONE

SUFFIXES = (".tar",)
_WORK = ("kernel", "graph_launch", "memcpy", "memset")


def export_ranks(
    path: str | os.PathLike[str],
    rank: Columns,
    step: Columns,
    clock: Clock,
    ranks: Sequence[int],
    steps: tuple[int, int] | None = None,
) -> None:
    """Writes the archive, as `Fleet.export_perfetto` describes.

    Each recording is shifted by one offset, its clock's at the middle of the steps.
    """
    checked = check_writable(path, SUFFIXES)
    chosen = list(dict.fromkeys(ranks))
    known = rank["rank"].tolist()
    if not chosen or (unknown := [each for each in chosen if each not in known]):
        given = f"has {unknown[0]}" if chosen else "is empty"
        raise InvalidArgument(f"ranks {given}; accepted are numbers of the {len(known):,} ranks with a recording")
    row_of = {each: known.index(each) for each in chosen}
    by_source: dict[str, list[int]] = {}
    for each in chosen:
        by_source.setdefault(str(rank["source"][row_of[each]]), []).append(each)
    for source, members in by_source.items():
        if not source or not Path(source).exists():
            raise NotAvailable(
                f"the recording of rank {members[0]} is not at {brief(source)!r}; export where the recordings are, or "
                "merge them again"
            )
    # A recording has one clock, also with several ranks.
    shown = [
        clock.aligned(members[0], np.array(span))
        for members in by_source.values()
        for each in members
        if (span := _span(rank, step, row_of[each], each, steps)) is not None
    ]
    if not shown:
        first, last = steps or (0, 0)
        raise InvalidArgument(f"steps is {first}:{last}; accepted are steps that one of the ranks has")
    begin, end = min(int(each[0]) for each in shown), max(int(each[1]) for each in shown)
    with replacing(checked) as file, tarfile.open(fileobj=file, mode="w") as archive:
        names = {source: f"rank-{'-'.join(f'{each:05d}' for each in members)}"[:90] + ".pftrace"
                 for source, members in by_source.items()}  # fmt: skip
        hosts = {source: str(rank["host"][row_of[members[0]]]) or f"rank {members[0]}"
                 for source, members in by_source.items()}  # fmt: skip
        _add(archive, "perfetto_manifest.json", _manifest([(names[each], hosts[each]) for each in by_source]))
        for source, members in by_source.items():
            own = _own_time(clock, members[0], (begin + end) // 2)
            shift = (begin + end) // 2 - own
            store = cut(load_store(source), begin - shift, end - shift, shift)
            label = ", ".join(f"rank {each}" for each in members)
            store.set_info("process.argv", f"{label}: {store.info().get('process.argv', '')}".removesuffix(": "))
            found = io.BytesIO()
            write_perfetto(store, found.write)
            _add(archive, names[source], found.getvalue())


def _span(rank: Columns, step: Columns, row: int, number: int, steps: tuple[int, int] | None) -> tuple[int, int] | None:
    """Begin and end of the steps on the clock of a rank; None if it has none of them."""
    if steps is None:
        return int(rank["start_ns"][row]), int(rank["end_ns"][row])
    rows = np.flatnonzero((step["rank"] == number) & (step["step"] >= steps[0]) & (step["step"] <= steps[1]))
    if not len(rows):
        return None
    return int(step["start_ns"][rows].min()), int((step["start_ns"][rows] + step["duration_ns"][rows]).max())


def _own_time(clock: Clock, rank: int, aligned_ns: int) -> int:
    """The time on a rank's clock at an aligned time."""
    own = aligned_ns
    for _ in range(3):  # offsets change slowly with time
        own += aligned_ns - int(clock.aligned(rank, own))
    return own


def _manifest(files: Sequence[tuple[str, str]]) -> bytes:
    listed = [{"path": name, "machine": {"name": one_line(host)}} for name, host in files]
    return json.dumps({"perfetto_manifest": {"version": 1, "files": listed}}, indent=1).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def cut(store: _core.Store, begin_ns: int, end_ns: int, shift_ns: int = 0) -> _core.Store:
    """The events between two times, also those that reach into them, and the calls and regions that launched the work.

    Sums are left out.

    Args:
        store: the recording.
        begin_ns: on its clock.
        end_ns: likewise.
        shift_ns: is added to all times.
    """
    schema = [table for table in _core.schema() if table.role in (_core.Role.EVENT, _core.Role.DICTIONARY)]
    tables = {table.name: store.columns(table.name) for table in schema}
    events = {table.name for table in schema if table.role == _core.Role.EVENT}
    owner = {table.name: next((each for each in table.columns if each.target in events), None) for table in schema}
    kept: dict[str, Array] = {}
    for name, columns in tables.items():
        if "start_ns" in columns:
            start = columns["start_ns"]
            kept[name] = (start < end_ns) & (start + columns.get("duration_ns", 0) >= begin_ns)
    launched = np.concatenate([tables[name]["correlation"][kept[name]] for name in _WORK])
    kept["api"] |= np.isin(tables["api"]["correlation"], launched[launched > 0])
    wanted = [tables[name]["region"][rows] for name, rows in kept.items() if "region" in tables[name]]
    regions = np.concatenate([*wanted, np.flatnonzero(kept["region"])])
    while len(regions := np.unique(regions[regions != NONE])):
        kept["region"][regions] = True
        regions = tables["region"]["parent"][regions]
    for name, columns in tables.items():
        if name not in kept:  # events without a time belong to others
            column = owner[name] if name in events else None
            kept[name] = np.ones(store.rows(name), bool)
            if column is not None:
                of = np.append(kept[str(column.target)], False)
                kept[name] = of[np.minimum(columns[column.name], len(of) - 1)]
    places = {name: np.where(rows, np.cumsum(rows) - 1, NONE).astype(np.uint32) for name, rows in kept.items()}
    found: dict[str, dict[str, Array]] = {}
    for table in schema:
        columns = {name: values[kept[table.name]] for name, values in tables[table.name].items()}
        for column in table.columns:
            if column.target in events:
                columns[column.name] = _moved(columns[column.name], places[str(column.target)])
        if "start_ns" in columns:
            columns["start_ns"] = columns["start_ns"] + shift_ns
        if kept[table.name].any():
            found[table.name] = columns
    facts = store.info() | {"session.start_ns": str(begin_ns + shift_ns), "session.stop_ns": str(end_ns + shift_ns)}
    return _core.make_store(found, store.strings(), list(facts.items()))


def _moved(rows: Array, places: Array) -> Array:
    """References to rows after the cut; NONE where the row is not kept."""
    found: Array = np.append(places, np.uint32(NONE))[np.minimum(rows, len(places))]
    return found
