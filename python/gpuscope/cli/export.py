# SPDX-License-Identifier: Apache-2.0
"""Output files in the format of their suffix, and ``gpuscope export``."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.cli.options import PAGE_SUFFIXES, check_apart, rank_list, step_range, writable_paths
from gpuscope.distributed import distributed_rank, recording_name
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.paths import (
    as_path,
    claim,
    drop_claim,
    find_suffix,
    free_number,
    has_content,
    is_stream,
    make_folder,
    numbered,
)

if TYPE_CHECKING:
    from gpuscope.analysis.call_tree import StackMetric
    from gpuscope.fleet.job import Fleet
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
_OF_STREAMS = ".json"  # the format for pipes

# The tables whose events each format contains, as rows or as details of rows. Other formats contain all.
_GPU_STACKS = frozenset({"kernel", "graph_node", "memcpy", "memset", "graph_launch", "region", "region_gpu"})
_CPU_STACKS = frozenset({"region", "api", "python_sample"})
_SPANS = frozenset({"kernel", "memcpy", "memset", "graph_launch", "python_function"}) | _CPU_STACKS
_TIMELINE = _SPANS | {"graph_node", "sync", "mark", "detail", "payload", "call_stack", "allocation"}
_TIMELINE |= {"failed_allocation", "device_memory", "memory_pool", "device_sample", "counter_sample", "counter_value"}
_TABLES: dict[str, frozenset[str]] = {
    **dict.fromkeys((".json", ".json.gz"), _TIMELINE | {"resumption"}),
    **dict.fromkeys((".pftrace", ".perfetto-trace"), _TIMELINE),
    ".speedscope.json": _SPANS,
    **dict.fromkeys((".pb.gz", ".pprof"), _GPU_STACKS | _CPU_STACKS | {"sync"}),
    ".folded": _CPU_STACKS,  # without GPU work
}


_IN_PART = 3  # the exit code
_SCRIPT = ".py"  # a script may begin like JSON


class Outputs:
    """Files to write later, checked to be writable; errors as of `writable_paths`.

    Args:
        paths: file names. Further recordings are numbered, as ``run-2.gscope``.
        replaces: False keeps existing recordings: all files get the first free number of the first file.

    Attributes:
        paths: the files, without a number.
        notes: what each file leaves out, a sentence a file.
    """

    def __init__(self, paths: Sequence[str], *, replaces: bool = True) -> None:
        self._replaces = replaces
        self.notes: list[str] = []
        self._written: list[Path] = []
        self._number = 1  # of the latest recording, or of the first that is to come
        self._first: int | None = None
        self._again = False
        if replaces:
            self.paths = writable_paths(paths, tuple(_WRITERS))
            return
        self.paths = [Path(os.path.abspath(path)) for path in paths]
        self._number = free_number(self.paths[0], _suffix(self.paths[0]))
        writable_paths([str(self._named(path)) for path in self.paths], tuple(_WRITERS))

    @property
    def written(self) -> tuple[Path, ...]:
        """The files written so far."""
        return tuple(self._written)

    @property
    def missing(self) -> tuple[Path, ...]:
        """The unwritten files of the latest recording, or of the first one to come."""
        return tuple(path for path in map(self._named, self.paths) if path not in self._written)

    def write(self, results: Analyses, out: Console | None = None) -> list[Exception]:
        """Writes every file; from the second call on as ``run-2.gscope`` and so on. `out` shows progress.

        Returns the errors; other files are written anyway.
        """
        try:
            self._take_number()
        except OSError as error:
            return [GpuscopeError(f"cannot write {self._named(self.paths[0])}: {error.strerror or error}")]
        errors: list[Exception] = []
        try:
            for path in self.paths:
                target = self._named(path)
                try:
                    with out.working(f"writing {console.display(target)}") if out else contextlib.nullcontext():
                        _WRITERS[_suffix(path)](results, target)
                    self._written.append(target)
                    if lost := left_out(results, target):
                        self.notes.append(f"{console.display(target)} leaves out {', '.join(lost)}")
                except Exception as error:
                    errors.append(error)
        finally:
            if not self._replaces:
                drop_claim(self._named(self.paths[0]))
        return errors

    def write_again(self) -> None:
        """Makes the next recording replace the latest."""
        self._again = self._first is not None
        self._written.clear()
        self.notes.clear()

    def keep(self, results: Analyses) -> Path | None:
        """Saves the latest recording in the temporary directory if it was not written as a .gscope file.

        Returns the path; None if the recording has a file or cannot be saved.
        """
        if any(_suffix(path) == _RECORDING and self._named(path) in self._written for path in self.paths):
            return None
        folder = None
        try:
            import shutil
            import tempfile

            folder = Path(tempfile.mkdtemp(prefix="gpuscope-"))
            target = folder / f"{self._named(self.paths[0]).name.partition('.')[0]}{_RECORDING}"
            results.save(target)
        except Exception:  # the requested files have their own error
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            return None
        return target

    def comparison(self) -> str:
        """The command that compares the latest recording with the previous one; empty without a previous one."""
        if self._replaces or self._first is None or self._first == 1:
            return ""
        first, suffix = self.paths[0], _suffix(self.paths[0])
        before, after = (numbered(first, number, suffix) for number in (self._first - 1, self._first))
        if after not in self._written or not has_content(before):
            return ""
        # A name that begins with a dash would be an option.
        sides = [f"./{name}" if name.startswith("-") else name for name in map(console.display, (before, after))]
        return shlex.join(["gpuscope", "diff", *sides])

    def _take_number(self) -> None:
        """Numbers the next recording. If it may not replace files, creates its file, so that no other run takes it."""
        if self._again:
            self._again = False
        elif self._replaces:
            self._number += self._first is not None
        else:
            self._number = claim(self.paths[0], _suffix(self.paths[0]), self._number)
        self._first = self._first or self._number

    def _named(self, path: Path) -> Path:
        return path if self._replaces and is_stream(path) else numbered(path, self._number, _suffix(path))


def left_out(results: Analyses, path: Path) -> list[str]:
    """Recorded tables that the format of a file cannot hold, in words."""
    from gpuscope import _core
    from gpuscope.analysis.call_tree import places_samples

    trace, tables = results.trace, _TABLES.get(_suffix(path))
    if tables is None:
        return []
    if _suffix(path) == ".folded" and trace.summary.has_device:
        tables = _GPU_STACKS
    if not places_samples(trace):
        tables -= {"python_sample"}
    tables |= {"anchor", "loss"}  # readings of the clock, and losses, are about all other tables
    lost = (table for table in _core.schema() if table.role == _core.Role.EVENT and table.name not in tables)
    return [table.attribute.replace("_", " ") for table in lost if trace.store.rows(table.name)]


def raise_last(errors: Sequence[Exception]) -> None:
    """Ends the command with the last error, after reporting the others."""
    for error in errors[:-1]:
        console.errors().complain(str(error))
    if errors:
        raise errors[-1]


def is_folder(path: str) -> bool:
    """Whether the path names a folder, which may not exist yet."""
    return path.endswith(os.sep) or os.path.isdir(path)


def in_folder(path: str, children: bool, parents_rank: int | None = None) -> str:
    """The path of a file; for a folder, which is created, the path of this process's recording in it.

    Args:
        path: of the file or folder.
        children: processes that the program starts write into the folder too. Only ranks are then named by their rank.
        parents_rank: a helper of a rank (a DataLoader worker) inherits this rank, which is not its own.
    """
    if not is_folder(path):
        return path
    rank = distributed_rank()
    is_named = not children if rank is None else rank.rank != parents_rank
    name = recording_name(rank.rank if rank else 0) if is_named else f"pid-{os.getpid()}.gscope"
    return os.path.join(make_folder(path), name)


def add_recording(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `open_recording` reads."""
    parser.add_argument(
        "recording",
        metavar="FILE",
        nargs="?",
        help="what gpuscope run or profile.save wrote, .gscope, or a trace of torch.profiler, JAX, Proton or nsys "
        "or a run's folder (default: the newest .gscope of this folder)",
    )
    parser.add_argument(
        "--salvage", action="store_true", help="read the intact part of a damaged file; the exit code then is 3"
    )


def choose_recording(options: argparse.Namespace, missing: str = "FILE is missing") -> None:
    """Chooses the newest recording of the current folder if none was given, and says so on standard error.

    Raises:
        InvalidArgument: no recording was given, and the folder has none.
    """
    if options.recording is not None:
        return
    options.recording = newest_recording()
    if options.recording is None:
        raise InvalidArgument(f"{missing}, and this folder has no .gscope file to take instead")
    out = console.errors()
    with out.forgiving():
        out.sentence("reading ", (options.recording, "bold"), ", the newest recording in this folder")


def newest_recording() -> str | None:
    """The most recently written .gscope file of the current folder."""
    found = []
    with os.scandir() as entries:
        for entry in entries:
            if entry.name.lower().endswith(_RECORDING) and has_content(entry):
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.stat().st_mtime_ns, entry.name))
    return max(found)[1] if found else None


def open_recording(options: argparse.Namespace, out: Console) -> Recording:
    """Reads a recording; raises InvalidArgument for any other file."""
    from gpuscope.recording import load

    path = options.recording
    check_recording(path)
    with out.working(f"reading {path}"):
        return load(path, salvage=options.salvage)


def is_recording(path: str) -> bool:
    """Whether the file is a recording of gpuscope or another tool, by its name or content."""
    if path.endswith(_SCRIPT) and not os.path.isdir(path):
        return False  # without `kind_of`, which imports NumPy: a script must import it first
    from gpuscope.readers.files import SUFFIXES, kind_of

    if find_suffix(Path(path), SUFFIXES) is not None:
        return True
    return (os.path.isfile(path) or os.path.isdir(path)) and kind_of(Path(path)) != ""


def recordings_of(path: str) -> list[Path]:
    """The recordings in a run's folder; none for a file or folder that is one recording, or for a program."""
    if not os.path.isdir(path) or os.path.lexists(os.path.join(path, "__main__.py")):
        return []
    from gpuscope.readers.files import has_segments, recordings_in

    return [] if has_segments(Path(path)) else recordings_in(Path(path))


def check_recording(path: str) -> None:
    """Raises InvalidArgument for any other file."""
    from gpuscope.readers.files import ACCEPTED, kind_of, recording_of

    found = recording_of(as_path(path))
    if kind_of(found) == "":
        raise InvalidArgument(f"{str(found)!r} is not a recording; accepted are {ACCEPTED}")


def exit_code(recording: Recording) -> int:
    """0, or 3 if the file held only part of the recording."""
    from gpuscope.analysis.completeness import is_in_part

    return _IN_PART if is_in_part(recording.trace) else 0


def open_pages(paths: Iterable[Path]) -> None:
    """Shows the pages among these files in the browser, if the machine has one."""
    for path in paths:
        if find_suffix(path, PAGE_SUFFIXES):
            import webbrowser

            webbrowser.open(path.resolve().as_uri())


def _metric(results: Analyses) -> StackMetric:
    """The metric of collapsed stacks: GPU time if there is any, else CPU time."""
    return "self_device_time_total" if results.trace.summary.has_device else "self_cpu_time_total"


def _suffix(path: Path) -> str:
    return find_suffix(path, tuple(_WRITERS)) or _OF_STREAMS


class Export:
    """Reads a recording and writes others; the suffix chooses the format."""

    description = (
        "Writes a recording in other formats, chosen by the suffix: .pftrace and .perfetto-trace for\n"
        "https://ui.perfetto.dev (small, fast), .json and .json.gz for every tool that reads Chrome's traces,\n"
        ".speedscope.json for https://www.speedscope.app, .pb.gz and .pprof for `go tool pprof`, .folded for flame\n"
        "graphs (GPU time, or CPU time where there is none), .html for the page of `gpuscope report -o`.\n"
        "Standard output, as -, and pipes get JSON. With --ranks, the recordings of some ranks of a job become one\n"
        "timeline for https://ui.perfetto.dev, with aligned clocks: a .tar."
    )
    examples = """\
  gpuscope export -o train.pftrace                          the newest recording of this folder
  gpuscope export train.gscope -o train.pftrace
  gpuscope export train.gscope -o train.json.gz -o train.pftrace
  gpuscope export train.gscope -o train.speedscope.json -o train.pb.gz
  gpuscope export train.gscope --salvage -o train.pftrace   the intact part of a damaged file
  gpuscope export job --ranks 0,7 -o slow.tar               two ranks of a job on one timeline"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        add_recording(parser)
        parser.add_argument(
            "-o", "--output", metavar="FILE", action="append", required=True, help="where to; may be given repeatedly"
        )
        parser.add_argument(
            "--ranks",
            metavar="LIST",
            type=rank_list,
            help="ranks of a job, as 0,7; FILE then is the folder of gpuscope merge, a folder of recordings, or a "
            "pattern in quotes",
        )
        parser.add_argument(
            "--steps", metavar="FIRST:LAST", type=step_range, help="with --ranks, these steps only, as 20:22"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Reads, writes, and prints the names of the files; the exit code is 3 if part of the recording was lost."""
        progress = console.errors()
        if options.ranks is not None:
            return _export_ranks(options, progress)
        if options.steps is not None:
            raise InvalidArgument("--steps needs --ranks, the ranks of a job")
        choose_recording(options)
        outputs = Outputs(options.output)
        check_apart(outputs.paths, [options.recording])
        recording = open_recording(options, progress)
        errors = outputs.write(recording, progress)
        out = console.output(outputs.written)
        for path in outputs.written:
            out.sentence(console.display(path), (console.size_of(path), "dim"))
        for note in outputs.notes:
            progress.note(note)
        raise_last(errors)
        code = exit_code(recording)
        if code:
            progress.note(recording.audit().verdict)
        return code


def _export_ranks(options: argparse.Namespace, progress: Console) -> int:
    """Writes one timeline of some ranks of a job."""
    from gpuscope.fleet.merged_trace import SUFFIXES

    if options.recording is None:
        raise InvalidArgument("FILE is missing; --ranks needs a job's folder, or its recordings")
    paths = writable_paths(options.output, SUFFIXES)
    check_apart(paths, [options.recording])
    with progress.working(f"reading {options.recording}"):
        job = open_job(options.recording)
    out = console.output(paths)
    for path in paths:
        with progress.working(f"writing {console.display(path)}"):
            job.export_perfetto(path, options.ranks, options.steps)
        out.sentence(console.display(path), (console.size_of(path), "dim"))
    for note in (*job.notes, *([f"clocks: {job.clock.why}"] if job.clock.why else [])):
        progress.note(note)
    return 0


def open_job(path: str) -> Fleet:
    """The job whose tables, or whose recordings, are at a path."""
    from gpuscope.fleet.job import Fleet, merge
    from gpuscope.fleet.tables import is_job

    return Fleet.open(path) if is_job(path) else merge(path)
