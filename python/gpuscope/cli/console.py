# SPDX-License-Identifier: Apache-2.0
"""Text on a terminal; elsewhere the same text without colour and progress."""

from __future__ import annotations

import _thread
import contextlib
import io
import itertools
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gpuscope.paths import STANDARD_OUTPUT, is_stream, open_descriptor
from gpuscope.text import carried, columns_of, one_line, printable, wrapped
from gpuscope.units import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE_S = 0.3  # shorter work shows no progress
_LEAST_COLUMN = 24  # least width of a wrapped text
_GAP = re.compile(r"(?<=\S)  +(?=\S)")

_STANDARD_ERROR = 2

_started_in: Path | None = None

# A part of a line: plain text, or text with a rich style such as "bold" or "green".
Part = str | tuple[str, str]


class Console:
    """Writes lines to one stream; coloured only on a terminal, and not when NO_COLOR is set."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.on_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._coloured = self.on_terminal and not os.environ.get("NO_COLOR")
        self.unicode = (stream.encoding or "").lower().replace("-", "").startswith("utf")

    @property
    def width(self) -> int | None:
        """Columns of the terminal, None where lines may have any length."""
        return shutil.get_terminal_size().columns if self.on_terminal else None

    def line(self, *parts: Part) -> None:
        """Writes the parts as one line; control characters in them are made visible."""
        safe = [self._carried(part) if isinstance(part, str) else (self._carried(part[0]), part[1]) for part in parts]
        if not (self._coloured and self._print_coloured(safe)):
            print("".join(part if isinstance(part, str) else part[0] for part in safe), file=self._stream)

    def _carried(self, text: str) -> str:
        return carried(printable(text), self._stream.encoding)

    def sentence(self, *parts: Part) -> None:
        """Writes the parts like `line`; a terminal wraps a line that is too wide.

        Further lines begin below the last column of the text (set off by two blanks) if there is room, else slightly
        indented.
        """
        styled = [
            (character, "" if isinstance(part, str) else part[1])
            for part in parts
            for character in printable(part if isinstance(part, str) else part[0]).expandtabs(1)
        ]
        text, width = "".join(character for character, _ in styled), self.width
        if width is None or columns_of(text) <= width or "\n" in text:
            self.line(*parts)
            return
        if not text.strip(" -─"):  # a rule
            self.line((text[:width], styled[0][1]))
            return
        room = min(width - _LEAST_COLUMN, width // 2)
        indents = [gap.end() for gap in _GAP.finditer(text) if gap.end() <= room]
        indent = max(indents, default=min(len(text) - len(text.lstrip()) + 2, width // 2))
        at = 0
        for number, line in enumerate(wrapped(text, width, indent, whole_words=True)):
            while number and text[at] == " ":
                at += 1
            end = at + len(line) - (indent if number else 0)
            runs = itertools.groupby(styled[at:end], key=lambda each: each[1])
            shown = [("".join(character for character, _ in run), style) for style, run in runs]
            self.line(" " * indent if number else "", *shown)
            at = end

    def _print_coloured(self, parts: Sequence[Part]) -> bool:
        """Whether the terminal can show styles: rich may be missing."""
        try:
            from rich.console import Console as RichConsole
            from rich.text import Text
        except ImportError:
            return False
        rich = RichConsole(file=self._stream, highlight=False, force_terminal=True)
        rich.print(Text.assemble(*parts), soft_wrap=True)
        return True

    def report(self, text: str) -> None:
        """Writes a report line by line; the first line of a paragraph and warnings are highlighted."""
        first = True
        for line in text.splitlines():
            words = line.lstrip()
            style = "bold" if first else ""
            if words.startswith(("warning:", "--")):
                style = "yellow" if words.startswith("warning:") else "dim"
            self.sentence((line, style))
            first = not words

    def wrote(self, path: Path) -> None:
        """Reports a written file and its size."""
        self.sentence("wrote ", (display(path), "bold"), (size_of(path), "dim"))

    def complain(self, sentence: str, style: str = "bold red") -> None:
        """Reports an error."""
        self.sentence(("gpuscope: ", style), sentence)

    def note(self, text: str, style: str = "") -> None:
        """Writes a remark under a result."""
        self.sentence(("note: ", "bold"), (text, style))

    @contextlib.contextmanager
    def forgiving(self) -> Iterator[None]:
        """Drops the rest if the reader is gone, the disk is full or the program closed the stream.

        The exit code of a recorded program must not change.
        """
        try:
            yield
        except (OSError, ValueError):
            discard_unwritten(self._stream)

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Shows `what` on a terminal while the work lasts, if it takes a while; leaves nothing behind."""
        if not self.on_terminal:
            yield
            return
        shown: list[Progress] = []
        over, ended = threading.Lock(), threading.Lock()
        over.acquire()
        ended.acquire()

        def show() -> None:
            try:
                if not over.acquire(timeout=_PATIENCE_S):
                    shown.extend(self._spinning(what))
            finally:
                ended.release()

        # On a thread of its own, and late: the work may be the end of a recording, which must not contain the import of
        # rich. threading.Thread is avoided too, as its start makes calls.
        try:
            _thread.start_new_thread(show, ())
        except RuntimeError:  # no thread can start
            yield
            return
        try:
            yield
        finally:
            over.release()
            ended.acquire()
            for progress in shown:
                progress.stop()

    def _spinning(self, what: str) -> list[Progress]:
        try:
            from rich.console import Console as RichConsole
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        except ImportError:
            return []
        look = (
            SpinnerColumn("dots" if self.unicode else "line", style="dim"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        progress = Progress(*look, console=RichConsole(file=self._stream, no_color=not self._coloured), transient=True)
        progress.add_task(self._carried(one_line(what)), total=None)
        progress.start()
        return [progress]

    @contextlib.contextmanager
    def status(self) -> Iterator[Callable[[str], None]]:
        """Yields a function that shows a line on a terminal and replaces the previous one; leaves nothing behind.

        No animation and no thread: a measurement may run meanwhile.
        """
        if not self.on_terminal:
            yield lambda text: None
            return
        erase = "\r\x1b[K"

        def say(text: str) -> None:
            self._stream.write(erase + self._carried(one_line(text))[: (self.width or 80) - 1])
            self._stream.flush()

        try:
            yield say
        finally:
            self._stream.write(erase)
            self._stream.flush()


def output(files: Iterable[Path] = ()) -> Console:
    """The console of requested results: standard output, or standard error if a file is written to standard output."""
    return errors() if are_standard_output(files) else Console(sys.stdout or io.StringIO())


def are_standard_output(files: Iterable[Path]) -> bool:
    """Whether one of the files is standard output."""
    return any(open_descriptor(path) == STANDARD_OUTPUT for path in files)


def errors() -> Console:
    """The console of messages next to another program's output: standard error."""
    return Console(sys.stderr or io.StringIO())


@contextlib.contextmanager
def output_to_errors() -> Iterator[None]:
    """While open, standard output of this process, its C code and its children goes to standard error."""
    with contextlib.ExitStack() as ends:
        if sys.stdout is not None:  # if closed, its number may be another file's
            sys.stdout.flush()
            ends.enter_context(_redirected_descriptor())
        ends.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def _redirected_descriptor() -> Iterator[None]:
    import ctypes

    kept = os.dup(STANDARD_OUTPUT)
    target = os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else os.dup(_STANDARD_ERROR)
    os.dup2(target, STANDARD_OUTPUT)
    os.close(target)
    try:
        yield
    finally:
        discard_unwritten(sys.__stdout__)
        ctypes.CDLL(None).fflush(None)  # C buffers output to a pipe or file
        os.dup2(kept, STANDARD_OUTPUT)
        os.close(kept)


def discard_unwritten(stream: TextIO | None) -> None:
    """Drops output that a full or broken stream refused: the interpreter would retry at its end and report errors."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except ValueError:  # it is closed
        return


def remember_folder() -> None:
    """Makes `display` show paths relative to the current folder even if a program changes it later."""
    global _started_in
    with contextlib.suppress(FileNotFoundError):
        _started_in = Path.cwd()


def size_of(path: Path) -> str:
    """A file's size, to follow its name; empty for a pipe."""
    return "" if is_stream(path) else f"  {format_bytes(path.stat().st_size)}"


def display(path: Path) -> str:
    """The shortest form of a path: relative if it is in the folder in which the command was started."""
    try:
        return str(path.relative_to(_started_in or Path.cwd()))
    except (ValueError, FileNotFoundError):
        return str(path)
