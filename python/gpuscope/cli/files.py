# SPDX-License-Identifier: Apache-2.0
"""Recordings as files: the suffix chooses the format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli.console import Console
from gpuscope.errors import GpuscopeError, InvalidArgument

if TYPE_CHECKING:
    from gpuscope.recording import Recording, Results

_WRITERS: dict[str, Callable[[Results, Path], None]] = {
    ".gscope": lambda results, path: results.save(path),
    ".json": lambda results, path: results.export_chrome_trace(path),
    ".json.gz": lambda results, path: results.export_chrome_trace(path),
    ".pftrace": lambda results, path: results.export_perfetto(path),
    ".perfetto-trace": lambda results, path: results.export_perfetto(path),
}


class Outputs:
    """Files to be written later, known to be writable now.

    Raises:
        InvalidArgument: a suffix is unknown, a file cannot be written, or one is named twice.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        from gpuscope.exporters import check_writable

        # Absolute from the start: the program that runs in between may change its folder.
        try:
            self._paths = [Path(os.path.abspath(check_writable(path, tuple(_WRITERS)))) for path in paths]
        except GpuscopeError as error:  # nothing has been lost yet: it is the argument that is wrong
            raise InvalidArgument(str(error)) from error
        for path, given in zip(self._paths, paths, strict=True):
            if self._paths.count(path) > 1:
                raise InvalidArgument(f"the output {given} is named twice")
        self._written: list[Path] = []
        self._turn = 0

    @property
    def written(self) -> tuple[Path, ...]:
        """The files written so far."""
        return tuple(self._written)

    def write(self, results: Results, out: Console | None = None) -> None:
        """Writes every file; from the second time on under numbered names, as ``run-2.gscope``.

        Args:
            results: what to write.
            out: where to show that it goes on.
        """
        self._turn += 1
        for path in self._paths:
            target = path if self._turn == 1 else _numbered(path, self._turn)
            with out.working(f"writing {display(target)}") if out else nullcontext():
                _WRITERS[_suffix(path)](results, target)
            self._written.append(target)


def open_recording(path: str, out: Console) -> Recording:
    """Reads a .gscope file.

    Raises:
        InvalidArgument: there is no such file, or it is of another kind.
        CorruptTrace: it is damaged.
    """
    from gpuscope.recording import load

    if not os.path.isfile(path):
        raise InvalidArgument(f"there is no file {path!r}")
    if not path.endswith(".gscope"):
        raise InvalidArgument(f"{path!r} is not a recording; accepted are .gscope files")
    with out.working(f"reading {path}"):
        return load(path)


def display(path: Path) -> str:
    """The path as short as it goes: relative when it lies in the current folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):
        return str(path)


def size(path: Path) -> str:
    """The size of a file in words."""
    amount = float(path.stat().st_size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


def _suffix(path: Path) -> str:
    return next(suffix for suffix in sorted(_WRITERS, key=len, reverse=True) if path.name.endswith(suffix))


def _numbered(path: Path, number: int) -> Path:
    suffix = _suffix(path)
    return path.with_name(f"{path.name.removesuffix(suffix)}-{number}{suffix}")
