# SPDX-License-Identifier: Apache-2.0
"""Append-only files of GPU samples: CSV, JSON lines, Parquet and recordings."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuscope.errors import InvalidArgument
from gpuscope.monitor import gscope, parquet
from gpuscope.monitor.sample import COLUMNS, GpuSample, csv_line, json_line
from gpuscope.paths import append_text, check_writable, find_suffix, first_line_of, is_stream, locked
from gpuscope.text import brief

SUFFIXES = (".csv", ".parquet", ".jsonl", ".ndjson", ".gscope")
# Formats that are made at the end, from lines in a file next to them.
MADE_AT_THE_END = {".parquet": parquet, ".gscope": gscope}


def lines_beside(path: Path) -> Path:
    """The file with the lines from which another file is made at the end."""
    return path.with_name(f"{path.name}.part")


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
        self._format = MADE_AT_THE_END.get(suffix)
        self._lines = lines_beside(self.path) if self._format else self.path
        self._why: dict[int, Mapping[str, str]] = {}
        if self._is_csv:
            self._check_columns()
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

    def _check_columns(self) -> None:
        found = first_line_of(self.path)
        if found and found.split(",") != [*COLUMNS]:
            other = next((name for name in found.split(",") if name not in COLUMNS), "another order")
            raise InvalidArgument(
                f"log_path is {brief(str(self.path))}, a file with other columns ({brief(other)}); accepted are files "
                "that do not exist, empty ones and logs of this version"
            )
