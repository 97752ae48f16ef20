# SPDX-License-Identifier: Apache-2.0
"""Append-only files of GPU samples: CSV, JSON lines, Parquet and recordings; they are read again as samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope.errors import InvalidArgument
from gpuscope.monitor import gscope, parquet
from gpuscope.monitor.lines import csv_line, json_line, read_csv, read_json
from gpuscope.monitor.sample import GpuSample, sample_of
from gpuscope.monitor.schema import COLUMNS, NOT_A_CELL, Row, refuse_columns
from gpuscope.paths import append_text, as_path, check_writable, find_suffix, first_line_of, is_stream, locked
from gpuscope.text import brief

# Formats that are made at the end, from JSON lines in a file next to them.
_MADE_AT_THE_END = {".parquet": parquet, ".gscope": gscope}
_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": read_csv,
    ".parquet": parquet.read_rows,
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".gscope": gscope.read_rows,
}
SUFFIXES = tuple(_READERS)


class Log:
    """A file that samples are appended to, in the format of its suffix.

    Each append writes whole lines, after a line feed if an earlier line was cut. A killed process loses only its own
    unwritten lines. One thread at a time; several processes may append to one file.

    Args:
        path: ends with one of `SUFFIXES`.

    Raises:
        InvalidArgument: the path has another suffix, or the file has other columns.
        NotAvailable: pyarrow is not installed, for a Parquet file.
        GpuscopeError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_writable(path, SUFFIXES)
        suffix = find_suffix(self.path, SUFFIXES)
        if suffix is None or is_stream(self.path):
            raise InvalidArgument(f"log_path is {brief(str(self.path))}; accepted are files: {', '.join(SUFFIXES)}")
        self._is_csv = suffix == ".csv"
        self._format = _MADE_AT_THE_END.get(suffix)
        self._lines = _lines_beside(self.path) if self._format else self.path
        self._why: dict[int, Mapping[str, str]] = {}
        if self._is_csv and (found := first_line_of(self.path)) and found.split(",") != [*COLUMNS]:
            refuse_columns(self.path, found.split(","))
        if self._format:
            self._format.check_file(self.path)

    def append(self, samples: Sequence[GpuSample]) -> None:
        """Appends lines.

        Raises:
            GpuscopeError: the file cannot be written now, and contains none of the lines.
        """
        if self._is_csv:
            append_text(self.path, "".join(map(csv_line, samples)), header=",".join(COLUMNS) + "\n")
        else:
            told = dict(self._why)
            append_text(self._lines, "".join(json_line(sample, told) for sample in samples))
            self._why = told

    def close(self) -> None:
        """Makes the .parquet or .gscope from the waiting lines; no effect on other formats. Appending may continue.

        Raises:
            GpuscopeError: the file cannot be written; the lines are kept.
        """
        if self._format and self._lines.exists():
            with locked(self._lines):
                self._format.take_lines(self._lines, self.path)
                self._lines.unlink(missing_ok=True)


def _lines_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def files_of(path: Path) -> list[Path]:
    """The file of a log, and lines next to it that wait for the end of a run or were left by one."""
    if find_suffix(path, SUFFIXES) not in _MADE_AT_THE_END:
        return [path]
    return [file for file in (path, _lines_beside(path)) if file.exists()] or [path]


@dataclass(frozen=True)
class Recording:
    """The content of a log.

    Attributes:
        samples: in the order of their times.
        damaged: number of lines that were cut or cannot be read, and are left out.
    """

    samples: Sequence[GpuSample]
    damaged: int


def read_log(path: str | Path) -> Recording:
    """The samples of a log by a `GPUMonitor`, of a script's log with its columns, or of a recorded program.

    A .gscope of a program has samples if it was recorded with ``profile(device_samples=True)``.

    Raises:
        InvalidArgument: it is no such file, or has no samples.
        NotAvailable: pyarrow is not installed, for a .parquet.
        GpuscopeError: it cannot be read.
    """
    checked = as_path(path)
    if find_suffix(checked, SUFFIXES) is None:
        raise InvalidArgument(f"path is {str(checked)!r}; accepted are logs: {', '.join(SUFFIXES)}")
    samples: list[GpuSample] = []
    damaged = 0
    why: dict[int, Mapping[str, str]] = {}
    for file in files_of(checked):
        for row in _READERS.get(find_suffix(file, SUFFIXES) or "", read_json)(file):
            try:
                samples.append(sample_of(row, why))
            except NOT_A_CELL:
                damaged += 1
    if not samples:
        raise InvalidArgument(f"path is {str(checked)!r}, which has no sample that can be read")
    samples.sort(key=lambda sample: sample.time_ns)  # stable: clocks of hosts step, and logs are joined
    return Recording(samples, damaged)
