# SPDX-License-Identifier: Apache-2.0
"""``gpuscope watch``: a watched job as it runs; and ``gpuscope run --watch`` and ``--listen``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.cli.ends import Ending, ended_by_signals
from gpuscope.cli.program import Program
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.watching.listening import Listener, listen
from gpuscope.watching.summary import JobSummary, read_job
from gpuscope.watching.watches import Watch

_INTERVAL_S = 1.0


class WatchCommand:
    """Shows the folder of a watch."""

    description = (
        "Shows the processes that `gpuscope run --watch DIR` or gpuscope.watch(DIR) watches: steps, times, windows,\n"
        "the measured cost of recording with its 95 % interval, dumps and losses. On a terminal it refreshes once a\n"
        "second until Ctrl-C; elsewhere it prints once."
    )
    examples = """\
  gpuscope watch watch/                   a job that `gpuscope run --watch watch/ train.py` runs
  gpuscope watch watch/ --once            the same, once
  gpuscope watch watch/ --json            for programs"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.add_argument("dir", metavar="DIR", help="the folder of the watch")
        parser.add_argument("--once", action="store_true", help="print once, and end")
        parser.add_argument("--json", action="store_true", help="print JSON once, and end")

    def run(self, options: argparse.Namespace) -> int:
        """Shows the job."""
        out = console.output()
        job = read_job(options.dir)
        if options.json:
            out.line(job.to_json())
        elif options.once or not out.on_terminal:
            out.report(str(job))
        else:
            with ended_by_signals(), _live(out) as show:
                while True:
                    show(job)
                    time.sleep(_INTERVAL_S)
                    job = read_job(options.dir)
        return 0


@contextmanager
def _live(out: Console) -> Iterator[Callable[[JobSummary], None]]:
    """Yields a function that shows a job on the terminal and replaces the previous text."""
    from rich.console import Console as RichConsole
    from rich.live import Live
    from rich.text import Text

    with Live(console=RichConsole(), auto_refresh=False) as live:
        yield lambda job: live.update(Text(str(job), no_wrap=True, overflow="ellipsis"), refresh=True)


class Watched:
    """Watches a program that the command runs, or listens in it, or both; `Finish` of its end."""

    def __init__(self, options: argparse.Namespace, out: Console) -> None:
        self._out = out
        self._folder, self._socket_folder = options.watch, options.listen
        self._watch: Watch | None = None
        self._listener: Listener | None = None
        self._begin()

    def run(self, program: Program) -> int:
        """Runs the program. Returns its exit code."""
        try:
            return program.run(self).code
        except InvalidArgument:  # never started
            self._end()
            raise

    def finish(self, ending: Ending) -> None:
        """Ends the watch, and prints its state."""
        if self._listener is not None:
            self._listener.close()
        if self._watch is not None:
            self._watch.end(ending.code, ending.by)
            with self._out.forgiving():
                self._out.line()
                self._out.report(str(self._watch.summary()))

    def resume(self) -> None:
        """Watches again, as os.exec* failed."""
        try:
            self._begin()
        except GpuscopeError as error:
            with self._out.forgiving():
                self._out.complain(f"the program is no longer watched: {error}", "bold yellow")

    def given_up(self) -> str:
        """The sentence printed if `finish` is interrupted."""
        if self._watch is None:
            return "a recording that `gpuscope attach` began is not complete"
        return f"the state of the watch in {self._folder} is not complete"

    def _begin(self) -> None:
        try:
            if self._socket_folder is not None:
                self._listener = listen(self._socket_folder)
            if self._folder is not None:
                self._watch = Watch(self._folder, ends_seen=True)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._watch is not None:
            self._watch.stop()
