# SPDX-License-Identifier: Apache-2.0
"""Dumps: a folder for each event, with links to the last recordings and a page of text about the moment."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import functools
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuscope import _core
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.monitor.programs import programs
from gpuscope.paths import as_path, write_text
from gpuscope.results import json_text
from gpuscope.text import brief, one_line, shorten
from gpuscope.units import first_line, format_date
from gpuscope.watching.triggers import Event

COOL_DOWN_S = 600.0
"""After a dump, further events of its trigger are only counted for this time, unless one is three times as bad."""

MOST_DUMPS = 20
"""Dumps of a process."""

MOST_BYTES = 5_000_000_000
"""Of the recordings that the dumps of a process contain."""

_MOST_IN_FOLDER = 200  # dumps of all ranks
_LINKED = 4  # recordings, the newest
_LINES, _WIDTH = 80, 160
_STACK_LINES, _DETAIL_LINES, _SECTION_LINES = 28, 20, 30
_COMMAND_S = 60.0
_WORSE = 3.0
_ROWS = 8  # of the last window
_NUMBER = re.compile(r"(\d+)-")
_OF_TEXT = {"details", "is_asked", "size"}  # of an event, not in why.json
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")

OnDump = Callable[[Path], object] | str | None


@dataclass(frozen=True)
class Dump:
    """A dump that was written.

    Attributes:
        path: its folder.
        event: what happened.
        time_ns: when, since the Unix epoch.
        recordings: number of recordings in it.
    """

    path: str
    event: Event
    time_ns: int
    recordings: int


@dataclass
class Moment:
    """What is known of a process when an event is dumped.

    Attributes:
        time_ns: since the Unix epoch.
        facts: of the process, for ``why.json``: rank, host, versions.
        sections: title and lines of parts of ``why.txt``. Each is made when it is written, as it may fail.
        recordings: files and folders of segments to link, the oldest first.
        write_more: called last with the dump's folder. It may write further files.
    """

    time_ns: int
    facts: Mapping[str, Any]
    sections: Sequence[tuple[str, Callable[[], Sequence[str]]]] = ()
    recordings: Sequence[Path] = ()
    write_more: Callable[[Path], object] | None = None


class Dumps:
    """Writes dumps within their limits. One thread at a time.

    Attributes:
        written: the dumps.
        counted: events that were not dumped, by trigger.
        failures: why a dump is not complete or its callback failed, the latest 20.
    """

    def __init__(self, folder: Path, on_dump: OnDump = None) -> None:
        if on_dump is not None and not callable(on_dump) and not (isinstance(on_dump, str) and on_dump.strip()):
            raise InvalidArgument(
                f"on_dump is {brief(on_dump)}; accepted are a function of the path and a command, as 'cmd {{path}}'"
            )
        if isinstance(on_dump, str):
            try:
                shlex.split(on_dump)
            except ValueError as error:
                raise InvalidArgument(f"on_dump is {brief(on_dump)}, no command: {error}") from None
        self.written: list[Dump] = []
        self.counted: dict[str, int] = {}
        self.failures: list[str] = []
        self._folder = folder
        self._on_dump = on_dump
        self._causes: set[tuple[str, str]] = set()
        self._cool_until: dict[str, float] = {}
        self._worst: dict[str, float] = {}  # size of the events that were dumped
        self._bytes = 0

    def take(self, event: Event, now_s: float, moment: Callable[[], Moment]) -> Dump | None:
        """Dumps an event, or counts it if a limit says so. Never raises.

        Args:
            event: what happened.
            now_s: seconds of a clock that does not jump.
            moment: called only if the event is dumped.
        """
        cause = (event.trigger, event.cause)
        is_worse = event.size > _WORSE * self._worst.get(event.trigger, event.size)
        is_new = cause not in self._causes and (is_worse or now_s >= self._cool_until.get(event.trigger, now_s))
        if not (is_new or event.is_asked) or len(self.written) >= MOST_DUMPS or self._bytes >= MOST_BYTES:
            self.counted[event.trigger] = self.counted.get(event.trigger, 0) + 1
            return None
        self._causes.add(cause)
        self._cool_until[event.trigger] = now_s + COOL_DOWN_S
        self._worst[event.trigger] = max(event.size, self._worst.get(event.trigger, 0.0))
        try:
            path = self._claim(event.trigger)
        except (OSError, GpuscopeError) as error:
            self.note(f"{event.trigger}: {_reason(error)}")
            self.counted[event.trigger] = self.counted.get(event.trigger, 0) + 1
            return None
        found = moment()
        links: list[str] = self._attempt("recordings", lambda: self._link(found.recordings, path), [])
        dump = Dump(str(path), event, found.time_ns, len(links))
        self.written.append(dump)
        self._attempt("why.json", lambda: json_text(_facts(dump, found, links), path / "why.json"), None)
        self._write_text(dump, found, links)
        if (write_more := found.write_more) is not None:
            self._attempt("further files", lambda: write_more(path), None)
        return dump

    def tell(self, dump: Dump) -> None:
        """Calls `on_dump`. Never raises; waits at most a minute for a command."""
        call = self._on_dump
        if call is None:
            return
        try:
            if callable(call):
                call(Path(dump.path))
                return
            words = [word.replace("{path}", dump.path) for word in shlex.split(call)]
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_S, check=False)
            if done.returncode:
                said = first_line(done.stderr.decode(errors="replace"))
                self.note(f"on_dump: {words[0]} ended with {done.returncode}" + (f": {said}" if said else ""))
        except Exception as error:  # of the user
            self.note(f"on_dump: {first_line(error)}")

    def note(self, failure: str) -> None:
        """Keeps a failure."""
        self.failures = [*self.failures, one_line(failure)][-20:]

    def _claim(self, trigger: str) -> Path:
        """Makes the folder of the next dump; the ranks of a job share the numbers."""
        make_own_folder(self._folder)
        numbers = [int(match[1]) for match in map(_NUMBER.match, os.listdir(self._folder)) if match]
        if len(numbers) >= _MOST_IN_FOLDER:
            raise GpuscopeError(f"{self._folder} has {len(numbers)} dumps, and no more are written there")
        number = max(numbers, default=0) + 1
        while True:
            path = self._folder / f"{number:04d}-{trigger}"
            try:
                path.mkdir(mode=0o700)
                return path
            except FileExistsError:
                number += 1

    def _link(self, recordings: Sequence[Path], path: Path) -> list[str]:
        linked = []
        for recording in recordings[-_LINKED:]:
            with contextlib.suppress(FileNotFoundError):  # deleted since
                files = [recording]
                if recording.is_dir():  # segments of a recording that goes on; the first has its facts
                    (path / recording.name).mkdir(mode=0o700)
                    first, *later = sorted(recording.iterdir())
                    files = [first, *later[-_LINKED:]]
                for file in files:
                    self._link_file(file, path / file.relative_to(recording.parent))
                linked.append(recording.name)
        return linked

    def _link_file(self, file: Path, path: Path) -> None:
        try:
            os.link(file, path, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            shutil.copyfile(file, path, follow_symlinks=False)  # no hard links there
        self._bytes += file.stat().st_size

    def _write_text(self, dump: Dump, moment: Moment, links: Sequence[str]) -> None:
        """Writes ``why.txt`` after each part: a part may wait for a device that does not answer."""
        parts = [_title(dump.event.sentence), [f"{key}: {value}" for key, value in _head(dump, moment).items()]]
        if dump.event.details:
            parts.append(["", *_few(dump.event.details, _DETAIL_LINES)])
        path = Path(dump.path) / "why.txt"
        stacks: Callable[[], Sequence[str]] = functools.partial(_stacks, path.parent)
        later = f", after that {dump.event.trigger.rpartition('_')[2]}" if dump.event.is_past else ""
        for title, make in ((f"stacks of all threads{later}", stacks), *moment.sections):
            try:
                lines = make()
            except Exception as error:
                lines = [f"not known: {first_line(error)}"]
            if lines:
                parts.append(["", title, *(f"  {line}" for line in _few(lines, _SECTION_LINES))])
            self._attempt("why.txt", functools.partial(write_text, path, _page(parts, links)), None)

    def _attempt(self, what: str, call: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return call()
        except (OSError, GpuscopeError) as error:
            self.note(f"{what} of a dump: {_reason(error)}")
            return otherwise


def make_own_folder(path: Path, name: str = "dir") -> Path:
    """Makes a folder that only this user can read, or takes an existing one that is safe to write to.

    Raises:
        InvalidArgument: it is a link or a file, another user's, or everyone may replace its files.
        GpuscopeError: the system refuses.
    """
    checked = as_path(path)
    try:
        if not os.path.lexists(checked):
            checked.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # of another rank
                checked.mkdir(mode=0o700)
        found = os.lstat(checked)
    except OSError as error:
        raise GpuscopeError(f"the folder {str(checked)!r} cannot be made: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no folder"
    elif found.st_uid != os.geteuid():
        what = f"a folder of the user {found.st_uid}"
    elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        what = "a folder in which every user may replace files"
    elif not os.access(checked, os.W_OK | os.X_OK):
        what = "a folder that cannot be written to"
    else:
        return checked
    raise InvalidArgument(f"{name} is {str(checked)!r}, {what}; accepted is a folder of your own")


def _reason(error: BaseException) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _facts(dump: Dump, moment: Moment, links: Sequence[str]) -> dict[str, Any]:
    """The content of ``why.json``."""
    return {
        **{name: value for name, value in asdict(dump.event).items() if name not in _OF_TEXT},
        "time_ns": dump.time_ns,
        **moment.facts,
        "recordings": [*links],
    }


def _head(dump: Dump, moment: Moment) -> dict[str, str]:
    facts = moment.facts
    head = {"when": format_date(dump.time_ns), "trigger": dump.event.trigger}
    if dump.event.step is not None:
        head["step"] = f"{dump.event.step:,}"
    head["process"] = f"rank {facts.get('rank', 0)}, pid {facts.get('pid')} on {facts.get('host')}"
    head["program"] = str(facts.get("program", ""))
    return head


def _title(sentence: str) -> list[str]:
    line = one_line(sentence)
    return [line[:1].upper() + line[1:] + "."]


def _few(lines: Sequence[str], most: int) -> list[str]:
    """The first and last lines, if there are more than `most`."""
    if len(lines) <= most:
        return [*lines]
    head = most // 2
    left_out = f"... {len(lines) - most + 1} lines are left out"
    return [*lines[:head], left_out, *lines[len(lines) - (most - head - 1) :]]


def _page(parts: Sequence[Sequence[str]], links: Sequence[str]) -> str:
    end = ["", f"recordings: {', '.join(links) or 'none yet'} (gpuscope report FILE)"]
    lines = _few([line for part in parts for line in part], _LINES - len(end))
    return "".join(f"{shorten(one_line(line), _WIDTH, '...')}\n" for line in [*lines, *end])


def _stacks(folder: Path) -> list[str]:
    """Writes the Python stacks of all threads to ``stacks.txt``, and returns their first lines."""
    path = folder / "stacks.txt"
    with open(path, "w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    threads = {f"0x{thread.ident or 0:016x}": thread for thread in threading.enumerate()}
    own = f"0x{threading.get_ident():016x}"
    blocks: list[list[str]] = []
    for block in text.strip().split("\n\n"):
        head, *frames = block.splitlines()
        key = next((key for key in threads if key in head), "")
        if key == own and threads[key] is not threading.main_thread():  # this one writes the dump
            continue
        name = threads[key].name if key in threads else head.partition(" (")[0]
        own_part = [frame.strip() for frame in frames if f'File "{_PACKAGE}' not in frame]
        blocks.append([f"{name}:", *(own_part or ["in gpuscope, or at its end"])])
    blocks.sort(key=lambda block: block[0] != "MainThread:")
    each = max(4, _STACK_LINES // max(1, len(blocks)))
    lines = [line for block in blocks for line in (block if len(block) <= each else [*block[: each - 1], "..."])]
    return [*lines[:_STACK_LINES], *(["... see stacks.txt"] if len(lines) > _STACK_LINES else [])]


def region_of(pid: int) -> list[str]:
    """The region of a process's main thread, which its status page has while it records."""
    page = next((each for each in programs() if each.pid == pid), None)
    return [page.region] if page is not None and page.region else ["not known outside of windows"]


def top_rows(path: Path | None) -> list[str]:
    """The first rows of a recording's table."""
    if path is None:
        return ["none was written"]
    from gpuscope.recording import load

    table = load(path).key_averages().table(row_limit=_ROWS, max_name_column_width=40)
    return [path.name, *(line.rstrip() for line in table.splitlines() if line.strip("- "))]


def versions() -> dict[str, str]:
    """The versions of Python, gpuscope and the frameworks that the program has imported."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in ("torch", "jax", "cupy", "numpy")}
    imported = {name: str(version) for name, version in found.items() if version is not None}
    return {"gpuscope": _core.__version__, "python": platform.python_version(), **imported}
