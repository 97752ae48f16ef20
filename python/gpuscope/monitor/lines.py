# SPDX-License-Identifier: Apache-2.0
"""Logs of GPUs as text: CSV and JSON lines."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gpuscope.errors import InvalidArgument
from gpuscope.monitor.sample import GpuSample
from gpuscope.monitor.schema import COLUMNS, WHY, Row
from gpuscope.paths import open_file

_LONGEST_LINE = 1 << 20  # characters
_TOO_LONG = "\0\n"  # not a line of a log
_EMPTY = ("", "N/A", "[N/A]", "[Not Supported]")  # nvidia-smi's words for unknown values


def json_line(sample: GpuSample, told: dict[int, Mapping[str, str]]) -> str:
    """A sample as a JSON line. `told`: reasons of missing figures already written, by GPU; new ones are added."""
    row, gpu = sample.to_dict(), sample.gpu
    if gpu is not None and told.get(gpu.index) != gpu.why:
        told[gpu.index] = gpu.why
        row[WHY] = dict(gpu.why)
    return json.dumps(row) + "\n"


def csv_line(sample: GpuSample) -> str:
    """A sample as a CSV line of `COLUMNS`."""
    row, line = sample.to_dict(), io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(_cell(row.get(name, "")) for name in COLUMNS)
    return line.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.12g}"
    return str(value)


def read_json(path: Path) -> Iterator[Row]:
    """The rows of JSON lines; an empty one for each invalid line.

    Raises:
        GpuscopeError: the file cannot be read.
    """
    with open_file(path) as file:
        for line in filter(str.strip, _lines(file)):
            try:
                row = json.loads(line)
                if "\\ud" in line.lower():  # lone surrogates, which cannot be encoded
                    json.dumps(row, ensure_ascii=False).encode()
            except (ValueError, RecursionError):
                row = {}
            yield row if isinstance(row, dict) else {}


def read_csv(path: Path) -> Iterator[Row]:
    """The rows of a .csv; an empty one for each cut line. Errors as of `csv_cells`."""
    rows = csv_cells(path)
    names = next(rows)
    for cells in rows:
        yield {name: cell for name, cell in zip(names, cells, strict=False) if cell not in _EMPTY}


def csv_cells(path: Path) -> Iterator[list[str]]:
    """The cells of each line of a .csv log, first the columns' names; none for each cut line.

    Raises:
        InvalidArgument: the first line does not name the columns of a log.
        GpuscopeError: it cannot be read.
    """
    with open_file(path) as file:
        lines = _lines(file)
        names = _cells(next(lines, ""))
        if not {"timestamp", "gpu_idx"} <= {*names}:
            raise InvalidArgument(f"path is {str(path)!r}, whose first line does not name timestamp and gpu_idx")
        yield names
        for line in lines:
            cells = _cells(line)
            if cells != names:  # a restarted log repeats the header
                # A line without its end was cut, perhaps in the middle of a number.
                yield cells if len(cells) == len(names) and line.endswith("\n") else []


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


def _lines(file: BinaryIO) -> Iterator[str]:
    """The lines of a text in UTF-8, or UTF-16 with a byte order mark; too long a line becomes an invalid one."""
    is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    file.seek(0)
    with io.TextIOWrapper(file, "utf-16" if is_utf16 else "utf-8", "replace", newline="\n") as text:
        while line := text.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE and not line.endswith("\n"):
                while (line := text.readline(_LONGEST_LINE)) and not line.endswith("\n"):
                    pass
                line = _TOO_LONG
            yield line.lstrip("\ufeff").replace("\r\n", "\n")  # joined logs have marks in between
