# SPDX-License-Identifier: Apache-2.0
"""The single events of a job's ranks as Parquet, for queries: ``JOB/events/kernels/rank-00341.parquet``.

The columns are those of `gpuscope sql` on a recording, with the rank and the step. Row numbers of other tables are left
out, and names are spelled out, so each file can be read without the others.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.exporters.sql import ViewColumn, ViewInfo, empty_database
from gpuscope.fleet.collectives import content_hash
from gpuscope.fleet.tables import Array, Columns, import_arrow, replace_parquet
from gpuscope.steps.steps import Steps
from gpuscope.trace import Trace

_FOLDER = "events"
_ADDED = {
    "rank": "rank; -1 for calls and regions of a recording with several ranks",
    "step": "step in which it began; -1 outside",
    "kernel": "hash of the name, as in kernel_stats",
}
"""Columns that a recording lacks, with their meaning. Only kernels have the last one."""

_TIMES = ("start_ns", "duration_ns")
_WORK = (*_TIMES, "correlation", "device", "stream", "region", "path")
EVENTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "kernels": ("kernels", ("name", *_WORK, "grid", "block", "registers", "shared_bytes")),
    "graph_launches": ("graph_launches", ("graph", *_WORK)),
    "memcpys": ("memcpy", ("name", "bytes", *_WORK)),
    "memsets": ("memset", ("bytes", *_WORK)),
    "api": ("api", ("name", *_TIMES, "correlation", "thread", "region", "path")),
    "regions": ("regions", ("name", *_TIMES, "thread", "path")),
}
"""By the name of the view: the table of the trace, and the columns that are kept."""

_ROWS = 245_760  # of a row group: about a step of a rank, which queries then read alone


def write_events(folder: Path, trace: Trace, found: Mapping[str, Columns]) -> None:
    """Writes the events of a recording; replaces an earlier version of its files.

    Args:
        folder: of the job.
        trace: the recording.
        found: its tables of the job.

    Raises:
        NotAvailable: pyarrow is not installed.
        OSError: a file cannot be written.
    """
    arrow, _ = import_arrow()
    rank, step = found["rank"], found["step"]
    own = step["rank"] == rank["rank"][0]
    starts, numbers = step["start_ns"][own], np.append(step["step"][own], np.int32(-1))
    steps = Steps(starts, starts + step["duration_ns"][own], "")
    for view, (attribute, columns) in EVENTS.items():
        table = getattr(trace, attribute)
        rows = arrow.table(table)
        values = {name: _signed(arrow, rows.column(name)) for name in columns}
        at = steps.at(table.start_ns) if len(steps) and len(table) else np.full(len(table), -1)
        added = {"rank": _ranks(rank, values.get("device"), len(table)), "step": numbers[at]}
        if view == "kernels":
            added["kernel"] = _hashes(values["name"])
        path = folder / _FOLDER / view / f"rank-{rank['rank'][0]:05d}.parquet"
        texts = [name for name, column in values.items() if arrow.types.is_dictionary(column.type)]
        replace_parquet(
            path,
            arrow.table(added | values),
            row_group_size=_ROWS,
            use_dictionary=texts,
            column_encoding={"start_ns": "DELTA_BINARY_PACKED"},
        )


def _signed(arrow: Any, column: Any) -> Any:
    """Numbers as signed ones, which all engines have, and texts as they are."""
    of = column.type.value_type if arrow.types.is_dictionary(column.type) else column.type
    return column.cast(of).cast(arrow.int64()) if arrow.types.is_unsigned_integer(of) else column


def _ranks(rank: Columns, device: Any, rows: int) -> Array:
    """The rank of each row. A recording of several ranks has one for each GPU, and none for its calls and regions."""
    if len(rank["rank"]) == 1:
        return np.full(rows, rank["rank"][0])
    found = np.full(rows, -1, rank["rank"].dtype)
    if device is not None:
        for number, of in zip(rank["rank"], rank["local_rank"], strict=True):
            found[device.to_numpy() == of] = number
    return found


def _hashes(names: Any) -> Array:
    """The hash of each name."""
    known = names.combine_chunks()
    texts = np.array([content_hash(text) for text in known.dictionary.to_pylist()], np.int64)
    hashes: Array = texts[known.indices.to_numpy(zero_copy_only=False)] if len(names) else texts[:0]
    return hashes


def event_folders(job: Path) -> dict[str, Path]:
    """The folders of the events that a job has, by the name of their view."""
    folders = {view: job / _FOLDER / view for view in EVENTS}
    return {view: folder for view, folder in folders.items() if any(folder.glob("rank-*.parquet"))}


def remove_events(job: Path) -> None:
    """Deletes the events of a job, which is merged again.

    Raises:
        OSError: a file cannot be deleted.
    """
    for folder in event_folders(job).values():
        for path in folder.glob("rank-*.parquet"):
            path.unlink()


def read_events(job: Path) -> dict[str, Any]:
    """The events of a job as datasets of pyarrow, from which a query reads what it needs."""
    folders = event_folders(job)
    if not folders:
        return {}
    datasets = importlib.import_module("pyarrow.dataset")
    return {view: datasets.dataset(folder, format="parquet") for view, folder in folders.items()}


def event_views() -> list[ViewInfo]:
    """The views of events, for people.

    Raises:
        NotAvailable: DuckDB is not installed.
    """
    found = []
    for view in empty_database().views():
        if view.name in EVENTS:
            docs = _ADDED | {column.name: column.doc for column in view.columns}
            names = [name for name in _ADDED if name != "kernel" or view.name == "kernels"] + [*EVENTS[view.name][1]]
            texts = {column.name for column in view.columns if "varchar" in column.type or "enum" in column.type}
            columns = (ViewColumn(name, "varchar" if name in texts else "bigint", docs[name]) for name in names)
            found.append(ViewInfo(view.name, f"{view.doc} Only after `gpuscope merge --events`.", tuple(columns)))
    return found
