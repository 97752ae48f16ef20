# SPDX-License-Identifier: Apache-2.0
"""How the page's lines stand on a terminal of any size, and its first frame.

That needs no Textual, which takes longer to import than people wait for.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from gpuscope import _core
from gpuscope.monitor.gpu_monitor import GPUMonitor
from gpuscope.monitor.history import History, Moment, moment
from gpuscope.monitor.panels import (
    ALARM,
    DIM,
    GRAPHS,
    LEAST_HIGH,
    PLAIN,
    TITLE,
    Line,
    cut,
    gpu_line,
    gpu_lines,
    gpu_title,
    host_line,
    instance_lines,
    program_lines,
)
from gpuscope.monitor.processes import SORTS, ProcessIdentity, ProcessKey, ProcessRow, process_lines
from gpuscope.monitor.programs import Program, programs
from gpuscope.monitor.sample import GpuSample
from gpuscope.text import one_line

_FULL_ROWS = 7  # of a GPU with its frame
_LEAST_WIDTH = 78  # of a GPU beside another
_MOST_WIDTH = 200  # a minute of samples each half second has its graph there
_MOST_COLUMNS = 4
_LEAST_PROCESSES = 4  # lines, under GPUs that are shown in full
_USUAL_PROCESSES = 8  # lines that graphs leave to them
_HIGHEST_GRAPHS = 10  # lines: drawing takes CPU time by their number
_MODES = ("auto", "full", "compact")
_NO_PROCESSES = "processes are not in the log"
_FIRST_SAMPLE_S = 0.1  # that the first frame waits for
_LOOKS_S = 0.002

# What a terminal is told (ECMA-48 and xterm's control sequences).
_SGR = {PLAIN: "", TITLE: "\x1b[1m", DIM: "\x1b[2m", ALARM: "\x1b[1;31m", "reverse": "\x1b[7m"}
_TO_OTHER_SCREEN, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_BEGIN, _NEXT_LINE, _REST = "\x1b[H", "\x1b[0m\x1b[K\r\n", "\x1b[0m\x1b[J"


@dataclass
class Look:
    """What a user chose to see."""

    mode: str = "auto"
    graph: int = 0
    sort: int = 0
    reverse: bool = False
    tree: bool = False
    light: bool = False
    only: int | None = None
    paused_ns: int | None = None
    selected: ProcessKey | None = None
    tagged: set[ProcessIdentity] = field(default_factory=set)

    _KEPT: ClassVar = ("mode", "graph", "sort", "reverse", "tree", "light")

    def save(self, path: Path) -> None:
        """Keeps it for the next time; raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({name: getattr(self, name) for name in self._KEPT}))

    @classmethod
    def of_last_time(cls) -> Look:
        """The one that was kept."""
        look = cls()
        look.load(config_path())
        return look

    def load(self, path: Path) -> None:
        """Takes what was kept; whatever is not usable stays as it is."""
        try:
            facts = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            return
        if not isinstance(facts, dict):
            return
        for name in self._KEPT:
            if type(facts.get(name)) is type(getattr(self, name)):
                setattr(self, name, facts[name])
        self.mode = self.mode if self.mode in _MODES else "auto"
        self.graph %= len(GRAPHS)
        self.sort %= len(SORTS)


def config_path() -> Path:
    """Where a look is kept."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "gpuscope" / "monitor.json"


def body_lines(
    moments: Sequence[Moment],
    rows: Sequence[tuple[int, ProcessRow]] | None,
    look: Look,
    width: int,
    height: int,
    unicode: bool = True,
    running: Sequence[Program] = (),
) -> list[Line]:
    """All between the first and the last line of the page; `rows` is None where processes are not known."""
    lines_of_programs = program_lines(running, width)
    gpus = [at for at in moments if at.gpu is not None]
    rows_of_gpu = _FULL_ROWS + max((len(at.gpu.instances or ()) for at in gpus if at.gpu is not None), default=0)
    room = height - len(lines_of_programs) - 1 - _LEAST_PROCESSES
    columns = _columns(len(gpus), rows_of_gpu, width, room)
    needed = -(-len(gpus) // columns) * rows_of_gpu
    is_full = look.mode == "full" or (look.mode == "auto" and needed <= room)
    spare = room + _LEAST_PROCESSES - max(_USUAL_PROCESSES, len(rows or ()) + 1) - needed
    of_graphs = min(spare // max(1, needed // rows_of_gpu), _HIGHEST_GRAPHS)
    rows_of_gpu += of_graphs if of_graphs >= LEAST_HIGH else 0
    lines: list[Line] = []
    if is_full:
        for first in range(0, len(gpus), columns):
            lines += _beside(
                [
                    _framed(at, width // columns, rows_of_gpu, look.graph, unicode)
                    for at in gpus[first : first + columns]
                ]
            )
    else:
        for at in gpus:
            lines += [gpu_line(at, width, look.graph, unicode), *instance_lines(at, width)]
    if moments:
        lines.append(host_line(moments[0], width))
    lines += lines_of_programs
    if not gpus:
        return lines
    if rows is None:
        reasons = (at.gpu.why.get("processes") for at in gpus if at.gpu is not None)
        why = next((f"processes are not known: {one_line(each)}" for each in reasons if each), _NO_PROCESSES)
        return [*lines, cut([(why, DIM)], width)]
    selected = next((at for at, (_, row) in enumerate(rows) if row.key == look.selected), None)
    table = process_lines(
        rows, width, sort=look.sort, reverse=look.reverse, selected=selected, tagged=frozenset(look.tagged)
    )
    return [*lines, *table, *([] if rows else [cut([("  no process computes on these GPUs", DIM)], width)])]


def _columns(gpus: int, rows: int, width: int, room: int) -> int:
    """How many GPUs stand beside each other: the fewest that fit the room, in columns no wider than graphs need."""
    most = max(1, min(_MOST_COLUMNS, gpus, width // _LEAST_WIDTH))
    least = min(most, -(-width // _MOST_WIDTH))
    return next((count for count in range(least, most) if -(-gpus // count) * rows <= room), most)


def _framed(at: Moment, width: int, height: int, graph: int, unicode: bool) -> list[Line]:
    gpu = at.gpu
    assert gpu is not None
    across, down, corners = ("─", "│", "┌┐└┘") if unicode else ("-", "|", "++++")
    inner = width - 4
    title = cut([(f" {gpu_title(gpu)} ", TITLE)], inner)
    used = sum(len(text) for text, _ in title)
    lines: list[Line] = [[(corners[0] + across, DIM), *title, (across * (width - 3 - used) + corners[1], DIM)]]
    rows = gpu_lines(at, inner, graph, unicode, height - 2)
    for row in [*rows, *[[]] * (height - 2 - len(rows))]:
        space = inner - sum(len(text) for text, _ in row)
        lines.append([(f"{down} ", DIM), *row, (" " * space, PLAIN), (f" {down}", DIM)])
    return [*lines, [(corners[2] + across * (width - 2) + corners[3], DIM)]]


def _beside(blocks: Sequence[list[Line]]) -> list[Line]:
    return [[part for block in blocks for part in block[row]] for row in range(len(blocks[0]))]


def head_line(shown_ns: int | None) -> Line:
    """The page's name, the machine's and the time that is shown."""
    when = "" if shown_ns is None else datetime.fromtimestamp(shown_ns / 1e9).strftime("  %H:%M:%S")
    return [("gpuscope", TITLE), (f"  {socket.gethostname()}{when}", PLAIN)]


def is_unicode() -> bool:
    """Whether standard output takes more than ASCII."""
    return (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "").startswith("utf")


class FirstFrame:
    """The page's place on the terminal with what is known before Textual is there, which takes the place over.

    As a context manager it gives the place back where that did not come to pass.
    """

    def __enter__(self) -> FirstFrame:
        self._draw([head_line(time.time_ns()), [("looking for GPUs", DIM)]], _TO_OTHER_SCREEN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stderr.write(_BACK)
            sys.stderr.flush()

    def draw(self, monitor: GPUMonitor, look: Look) -> list[GpuSample]:
        """Draws the first samples, which it waits for for a moment, and gives them back."""
        until = _core.monotonic_ns() + _FIRST_SAMPLE_S * 1e9
        while not (samples := monitor.take()) and _core.monotonic_ns() < until:
            threading.Event().wait(_LOOKS_S)
        history = History()
        history.append(samples)
        moments = [at for gpu in history.gpus if (at := moment(history, gpu)) is not None]
        width, height = shutil.get_terminal_size()
        head = head_line(history.end_ns)
        if monitor.why:
            head.append((f"  no GPU: {monitor.why}", ALARM))
        lines = body_lines(moments, [], look, width - 1, height - 2, is_unicode(), programs())
        self._draw([cut(head, width), *lines][:height])
        return samples

    def _draw(self, lines: Sequence[Line], before: str = "") -> None:
        texts = ["".join(f"{_SGR[style]}{text}\x1b[0m" for text, style in line) for line in lines]
        sys.stderr.write(before + _BEGIN + _NEXT_LINE.join(texts) + _REST)
        sys.stderr.flush()
