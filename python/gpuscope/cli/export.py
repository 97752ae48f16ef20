# SPDX-License-Identifier: Apache-2.0
"""Recordings as files, whose suffix chooses the format, and ``gpuscope export``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.cli.options import PAGE_SUFFIXES, check_apart, writable_paths
from gpuscope.errors import InvalidArgument
from gpuscope.paths import find_suffix, is_stream, open_file

if TYPE_CHECKING:
    from gpuscope.recording import Analyses, Recording

_RECORDING = ".gscope"
_WRITERS: dict[str, Callable[[Analyses, Path], None]] = {
    _RECORDING: lambda results, path: results.save(path),
    ".json": lambda results, path: results.export_chrome_trace(path),
    ".json.gz": lambda results, path: results.export_chrome_trace(path),
    ".pftrace": lambda results, path: results.export_perfetto(path),
    ".perfetto-trace": lambda results, path: results.export_perfetto(path),
    ".speedscope.json": lambda results, path: results.export_speedscope(path),
    ".pb.gz": lambda results, path: results.export_pprof(path),
    ".pprof": lambda results, path: results.export_pprof(path),
    ".folded": lambda results, path: results.export_stacks(path, _metric(results)),
    ".html": lambda results, path: results.report(path),
    ".htm": lambda results, path: results.report(path),
}
_OF_STREAMS = ".json"  # what pipes get, whose names say nothing


_IN_PART = 3  # the exit code
_SCRIPT = ".py"  # which may begin as JSON does


class Outputs:
    """Files to be written later, known to be writable now; errors as of `writable_paths`.

    Attributes:
        paths: those of the first recording.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = writable_paths(paths, tuple(_WRITERS))
        self._written: list[Path] = []
        self._turn = 0

    @property
    def written(self) -> tuple[Path, ...]:
        """The files written so far."""
        return tuple(self._written)

    @property
    def missing(self) -> tuple[Path, ...]:
        """Those of the latest recording, or of the first that is to come, that are not written."""
        named = (self._named(path, max(self._turn, 1)) for path in self.paths)
        return tuple(path for path in named if path not in self._written)

    def write(self, results: Analyses, out: Console | None = None) -> list[Exception]:
        """Writes every file; from the second time on as ``run-2.gscope`` and so on. `out` shows progress.

        Returns why files could not be written, which does not keep the others from being written.
        """
        self._turn += 1
        errors: list[Exception] = []
        for path in self.paths:
            target = self._named(path, self._turn)
            try:
                with out.working(f"writing {console.display(target)}") if out else nullcontext():
                    _WRITERS[_suffix(path)](results, target)
                self._written.append(target)
            except Exception as error:
                errors.append(error)
        return errors

    def write_again(self) -> None:
        """The next recording takes the place of the latest."""
        self._turn -= 1
        self._written.clear()

    def keep(self, results: Analyses) -> Path | None:
        """Saves the recording that `write` had, if it has no file, in the directory for temporary ones.

        Returns where; None where it has a file, or cannot have one there either.
        """
        if any(_suffix(path) == _RECORDING and self._named(path, self._turn) in self._written for path in self.paths):
            return None
        folder = None
        try:
            import shutil
            import tempfile

            folder = Path(tempfile.mkdtemp(prefix="gpuscope-"))
            target = folder / f"{self._named(self.paths[0], self._turn).name.partition('.')[0]}{_RECORDING}"
            results.save(target)
        except Exception:  # why is said of the files that were asked for
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            return None
        return target

    def _named(self, path: Path, turn: int) -> Path:
        return path if turn == 1 else _numbered(path, turn)


def raise_last(errors: Sequence[Exception]) -> None:
    """Ends the command with the last error, having told the others."""
    for error in errors[:-1]:
        console.errors().complain(str(error))
    if errors:
        raise errors[-1]


def add_recording(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `open_recording` reads."""
    parser.add_argument(
        "recording",
        metavar="FILE",
        help="what gpuscope run or profile.save wrote, .gscope, or a trace of torch.profiler, JAX, Proton or nsys",
    )
    parser.add_argument(
        "--salvage", action="store_true", help="of a damaged file too, read what is whole; the exit code then is 3"
    )


def open_recording(options: argparse.Namespace, out: Console) -> Recording:
    """Reads a recording; raises InvalidArgument for any other file."""
    from gpuscope.recording import load

    path = options.recording
    check_recording(path)
    with out.working(f"reading {path}"):
        return load(path, salvage=options.salvage)


def is_recording(path: str) -> bool:
    """Whether it is a recording, of ours or of another tool: by its name, or else by what is in it."""
    if path.endswith(_SCRIPT) and not os.path.isdir(path):
        return False
    from gpuscope.readers.files import SUFFIXES, kind_of  # and NumPy, which is a script's to import first
    from gpuscope.readers.nsys import is_export

    if find_suffix(Path(path), SUFFIXES) is not None:
        return True
    if os.path.isdir(path):
        return is_export(Path(path))
    return os.path.isfile(path) and kind_of(Path(path)) != ""


def check_recording(path: str) -> None:
    """Raises InvalidArgument for any other file."""
    from gpuscope.readers.files import ACCEPTED, SUFFIXES, kind_of

    if not os.path.isdir(path):
        with open_file(path):  # which refuses what is no file, before its name is judged
            pass
    if find_suffix(Path(path), SUFFIXES) is None and kind_of(Path(path)) == "":
        raise InvalidArgument(f"{path!r} is not a recording; accepted are {ACCEPTED}")


def exit_code(recording: Recording) -> int:
    """0, or 3 when the file held only part of the recording."""
    from gpuscope.analysis.completeness import is_in_part

    return _IN_PART if is_in_part(recording.trace) else 0


def open_pages(paths: Iterable[Path]) -> None:
    """Shows the pages among these files in the browser; a machine may have none."""
    for path in paths:
        if find_suffix(path, PAGE_SUFFIXES):
            import webbrowser

            webbrowser.open(path.resolve().as_uri())


def _metric(results: Analyses) -> str:
    """What collapsed stacks tell of: GPU time, where there is any."""
    return "self_device_time_total" if results.trace.summary.has_device else "self_cpu_time_total"


def _suffix(path: Path) -> str:
    return find_suffix(path, tuple(_WRITERS)) or _OF_STREAMS


def _numbered(path: Path, number: int) -> Path:
    if is_stream(path):
        return path
    stem = len(path.name) - len(_suffix(path))
    return path.with_name(f"{path.name[:stem]}-{number}{path.name[stem:]}")


class Export:
    """Reads a recording and writes others; the suffix chooses the format."""

    description = (
        "Writes a recording in other formats, chosen by the suffix: .pftrace and .perfetto-trace for\n"
        "https://ui.perfetto.dev (small, fast), .json and .json.gz for every tool that reads Chrome's traces,\n"
        ".speedscope.json for https://www.speedscope.app, .pb.gz and .pprof for `go tool pprof`, .folded for flame\n"
        "graphs (GPU time, or CPU time where there is none), .html for the page of `gpuscope report -o`.\n"
        "Standard output, as -, and pipes get JSON."
    )
    examples = """\
  gpuscope export train.gscope -o train.pftrace
  gpuscope export train.gscope -o train.json.gz -o train.pftrace
  gpuscope export train.gscope -o train.speedscope.json -o train.pb.gz
  gpuscope export train.gscope --salvage -o train.pftrace   what is whole of a damaged file"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        add_recording(parser)
        parser.add_argument(
            "-o", "--output", metavar="FILE", action="append", required=True, help="where to; may be given repeatedly"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Reads, writes, and names what it wrote on standard output; the exit code is 3 when part was lost."""
        progress = console.errors()
        outputs = Outputs(options.output)
        check_apart(outputs.paths, [options.recording])
        recording = open_recording(options, progress)
        errors = outputs.write(recording, progress)
        out = console.output(outputs.written)
        for path in outputs.written:
            out.sentence(console.display(path), (console.size_of(path), "dim"))
        raise_last(errors)
        code = exit_code(recording)
        if code:
            progress.note(recording.audit().verdict)
        return code
