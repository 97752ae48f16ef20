# SPDX-License-Identifier: Apache-2.0
"""Operations of a training job in the schema of ByteDance's StragglerAnalysis (OSDI '25): Parquet, and YAML with facts.

A row is an operation of a worker in a step. Workers are numbered by replica (data parallel) and pipeline stage; of the
GPUs of a tensor parallel group, the file has one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.errors import CorruptTrace, GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.paths import as_path, open_file, read_text
from gpuscope.text import brief
from gpuscope.units import first_line

_NUMBERS = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id")
_TIMES = ("start_ts", "duration")
_MOST_ROWS = 1 << 10  # per byte of the file; real traces have 0.1
_MOST_NUMBER = 1 << 40
_MOST_S = 1e9
_MOST_FACTS = 1 << 16  # bytes
_FORWARD, _BACKWARD = "forward-pp-comm", "backward-pp-comm"
_PAIRS = {"forward-send": _FORWARD, "forward-recv": _FORWARD, "backward-send": _BACKWARD, "backward-recv": _BACKWARD}
# Members of a transfer: the replicas of a stage, the first and last stage of a replica, the whole job, or one worker.
_OVER_REPLICAS = ("params-all-gather", "grads-reduce-scatter")
_OVER_STAGES = ("embedding-grads-all-reduce",)
_OVER_ALL = ("optimizer-clip-main-grad",)
_OVER_ONE = ("layernorm-grads-all-reduce",)
_TRANSFERS = (*_PAIRS, *_OVER_REPLICAS, *_OVER_STAGES, *_OVER_ALL, *_OVER_ONE)
_FACT = re.compile(r"([A-Za-z_]\w*)\s*:\s*(.*?)\s*(?:#.*)?")

Column = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StragglerTrace:
    """The operations of a job.

    Attributes:
        columns: int64 arrays of one length. ``rank``, ``step``, ``kind`` (index into `kinds`), ``start_ns`` and
            ``end_ns`` (from the begin of the step), ``group`` (number of the transfer, -1 for work of one rank; the
            members in one step have the same), ``replica``, ``stage``, ``microbatch`` (-1 for none).
        kinds: names of the kinds of operations; a send and its receive have one.
        facts: of the YAML file: ``world_size``, ``pp_size`` and others; integers where they are some.
    """

    columns: Mapping[str, Column]
    kinds: tuple[str, ...]
    facts: Mapping[str, int | str]


def read_straggler(path: str | os.PathLike[str]) -> StragglerTrace:
    """Reads ``trace-NAME.parquet``, and ``meta-NAME.yaml`` from the same folder if there is one.

    Raises:
        InvalidArgument: there is no such file, or it is Parquet of another schema.
        CorruptTrace: it is damaged.
        NotAvailable: pyarrow is not installed.
        GpuscopeError: the file cannot be read.
    """
    checked = as_path(path)
    name = str(checked)
    with open_file(checked):
        pass
    try:
        import pyarrow
    except ImportError as error:
        raise NotAvailable("Parquet files are not available: pyarrow is not installed; pip install pyarrow") from error
    try:
        numbers, seconds, kinds, kind = _read_columns(checked)
    except GpuscopeError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # of many kinds in damaged files
        raise CorruptTrace(f"{brief(name)} cannot be read: {brief(first_line(str(error)))}", name, 0) from error
    for each, values in numbers.items():
        if values.min() < -1 or values.max() > _MOST_NUMBER:
            raise CorruptTrace(f"{brief(name)} has {each} {values.min()} to {values.max()}: no job has", name, 0)
    for each, times in seconds.items():
        if not ((times >= 0) & (times < _MOST_S)).all():  # also of NaN
            raise CorruptTrace(f"{brief(name)} has values of {each} that are no times", name, 0)
    group = _groups(name, kinds, kind, numbers)
    merged = [_PAIRS.get(each, each) for each in kinds]
    names = tuple(dict.fromkeys(merged))
    start_ns, duration_ns = (np.rint(seconds[each] * 1e9).astype(np.int64) for each in _TIMES)
    return StragglerTrace(
        {
            "rank": numbers["rank"],
            "step": numbers["step"],
            "kind": np.array([names.index(each) for each in merged])[kind],
            "start_ns": start_ns,
            "end_ns": start_ns + duration_ns,
            "group": group,
            "replica": numbers["dp_rank"],
            "stage": numbers["stage"],
            "microbatch": numbers["mb_id"],
        },
        names,
        _read_facts(checked.with_name(re.sub(r"^trace-(.*)\.parquet$", r"meta-\1.yaml", checked.name))),
    )


def _read_columns(path: Path) -> tuple[dict[str, Column], dict[str, Column], list[str], Column]:
    """The columns of integers and of seconds, the types of operations, and the type of each row."""
    from pyarrow import parquet

    name = str(path)
    with parquet.ParquetFile(path) as file:
        if missing := {*_NUMBERS, *_TIMES, "optype"} - {*file.schema_arrow.names}:
            raise InvalidArgument(
                f"{brief(name)} lacks the columns {', '.join(sorted(missing))}; "
                "accepted are traces of StragglerAnalysis"
            )
        rows, size = file.metadata.num_rows, path.stat().st_size
        if not rows:
            raise CorruptTrace(f"{brief(name)} has no rows", name, 0)
        if rows > size * _MOST_ROWS:
            raise CorruptTrace(f"{brief(name)} has {rows:,} rows in {size:,} bytes: no trace has", name, 0)
        table = file.read([*_NUMBERS, *_TIMES, "optype"], use_threads=False)
    if any(column.null_count for column in table.columns):
        raise CorruptTrace(f"{brief(name)} has rows without a value", name, 0)
    types = table.column("optype").cast("string").combine_chunks().dictionary_encode()
    return (
        {each: _values(table.column(each).cast("int64").combine_chunks(), np.int64) for each in _NUMBERS},
        {each: _values(table.column(each).cast("double").combine_chunks(), np.float64) for each in _TIMES},
        types.dictionary.to_pylist(),
        _values(types.indices.cast("int64"), np.int64),
    )


def _values(array: Any, kind: type) -> Column:
    """The values of a primitive array without nulls. pyarrow's own conversion imports pandas."""
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * 8)


def _groups(name: str, kinds: list[str], kind: Column, numbers: Mapping[str, Column]) -> Column:
    """The number of each operation's transfer, -1 for work of one rank."""
    replica, stage, rank = numbers["dp_rank"] + 1, numbers["stage"] + 1, numbers["rank"] + 1
    chunk, piece = numbers["mc"] + 1, numbers["seq_id"] + 1
    stages, chunks, pieces = (int(each.max()) + 1 for each in (stage, chunk, piece))
    peers = max((int(replica.max()) + 1) * stages, int(rank.max()) + 1)
    if len(kinds) * peers * chunks * pieces >= 1 << 62:
        raise CorruptTrace(f"{brief(name)} has numbers of ranks and operations that no job has", name, 0)
    # The k-th send of a stage goes to the k-th receive of the next. With several chunks, the last sends to the first.
    pipeline = max(1, stages - 1)
    sender = {"forward-recv": (stage - 2) % pipeline + 1, "backward-recv": stage % pipeline + 1}
    group = np.full(len(kind), -1)
    for number, each in enumerate(kinds):
        if each not in _TRANSFERS:
            continue
        send = each.replace("recv", "send")
        first = kinds.index(send) if send in kinds else number
        if each in _PAIRS:
            peer = replica * stages + sender.get(each, stage)
        else:
            peer = next((of for names, of in ((_OVER_REPLICAS, stage), (_OVER_STAGES, replica)) if each in names), rank)
            peer = np.zeros_like(rank) if each in _OVER_ALL else peer
        place = peer * chunks + (chunk if each in _OVER_REPLICAS else 0)
        rows = kind == number
        group[rows] = ((first * peers * chunks + place) * pieces + piece)[rows]
    return group


def _read_facts(path: Path) -> dict[str, int | str]:
    """The lines ``key: value`` of a YAML file; empty if there is none."""
    if not path.is_file() or path.suffix != ".yaml":
        return {}
    facts: dict[str, int | str] = {}
    for line in read_text(path, _MOST_FACTS).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not (found := _FACT.fullmatch(line)):
            raise CorruptTrace(f"{brief(str(path))} has the line {brief(line)}; accepted is key: value", str(path), 0)
        value = found[2]
        facts[found[1]] = int(value) if re.fullmatch(r"[0-9]{1,18}", value) else value
    return facts
