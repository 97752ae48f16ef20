# SPDX-License-Identifier: Apache-2.0
"""The layout of the page's lines on a terminal of any size, and its first frame.

The first frame does not need Textual, whose import is slow.
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
    frame_lines,
    gpu_line,
    gpu_title,
    host_line,
    instance_lines,
    program_lines,
)
from gpuscope.monitor.processes import BY_CPU, SORTS, ProcessIdentity, ProcessKey, ProcessRow, process_lines
from gpuscope.monitor.programs import Program, programs
from gpuscope.monitor.sample import GpuSample
from gpuscope.text import carried, one_line, wrapped

_FULL_ROWS, _HOST_ROWS = 7, 5  # lines of a GPU, and of a host without one, frames included
_LEAST_FRAME = 12  # columns
_LEAST_WIDTH = 78  # of a GPU next to another
_MOST_WIDTH = 200  # fits a graph of a minute of samples every half second
_MOST_COLUMNS = 4
_LEAST_PROCESSES = 4  # lines under GPUs in full mode
_USUAL_PROCESSES = 8  # lines that graphs leave to processes
_MODES = ("auto", "full", "compact")
_NO_PROCESSES = "processes are not in the log"
_FIRST_SAMPLE_S = 0.1  # most that the first frame waits
_LOOKS_S = 0.002

# Control sequences of terminals (ECMA-48 and xterm).
_SGR = {PLAIN: "", TITLE: "\x1b[1m", DIM: "\x1b[2m", ALARM: "\x1b[1;31m", "reverse": "\x1b[7m"}
_TO_OTHER_SCREEN, _BACK = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_BEGIN, _NEXT_LINE, _REST = "\x1b[H", "\x1b[0m\x1b[K\r\n", "\x1b[0m\x1b[J"


@dataclass
class Look:
    """A user's choices of the view."""

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

    def sort_by(self, on_gpus: bool) -> int:
        """The index in `SORTS`: without a GPU by CPU, unless another was chosen."""
        return self.sort or (0 if on_gpus else BY_CPU)

    def save(self, path: Path) -> None:
        """Saves the choices; raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({name: getattr(self, name) for name in self._KEPT}))

    @classmethod
    def of_last_time(cls) -> Look:
        """Loads the saved choices."""
        look = cls()
        look.load(config_path())
        return look

    def load(self, path: Path) -> None:
        """Applies saved choices; unusable ones are ignored."""
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
    """The file of the saved choices."""
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
    why: str = "",
) -> list[Line]:
    """All lines between the first and the last line of the page.

    `rows` is None if processes are unknown. `why` is the reason why there is no GPU.
    """
    reason = f"no GPU: {one_line(why)}"
    above = wrapped(reason, width) if why else []
    above = above if len(above) <= max(1, height // 6) else [reason]
    lines = [cut([(line, ALARM)], width) for line in above]
    lines_of_programs = program_lines(running, width)
    gpus = [at for at in moments if at.gpu is not None]
    framed = gpus or moments[:1]  # the host's own frame
    instances = max((len(at.gpu.instances or ()) for at in gpus if at.gpu is not None), default=0)
    rows_of_frame = (_FULL_ROWS if gpus else _HOST_ROWS) + instances
    room = height - len(above) - len(lines_of_programs) - len(gpus[:1]) - _LEAST_PROCESSES
    columns = _columns(len(framed), rows_of_frame, width, room)
    needed = -(-len(framed) // columns) * rows_of_frame
    is_full = width // columns >= _LEAST_FRAME and (look.mode == "full" or (look.mode == "auto" and needed <= room))
    # The user's processes change each second, which must not move the graphs.
    listed = 1 if rows is None else max(_USUAL_PROCESSES, len(rows) + 1 if gpus else height // 4)
    spare = room + _LEAST_PROCESSES - listed - needed
    of_graphs = spare // max(1, needed // max(1, rows_of_frame))
    rows_of_frame += of_graphs if of_graphs >= LEAST_HIGH else 0
    for first in range(0, len(framed) if is_full else 0, columns):
        row = framed[first : first + columns]
        lines += _beside([_framed(at, width // columns, rows_of_frame, look.graph, unicode) for at in row])
    for at in () if is_full else gpus:
        lines += [gpu_line(at, width, look.graph, unicode), *instance_lines(at, width)]
    if moments and (gpus or not is_full) and moments[0].sample.host.machine_cpus is not None:
        lines.append(host_line(moments[0], width))
    lines += lines_of_programs
    if not moments:
        return lines
    if rows is None:
        reasons = (at.gpu.why.get("processes") for at in gpus if at.gpu is not None)
        why = next((f"processes are not known: {one_line(each)}" for each in reasons if each), _NO_PROCESSES)
        return [*lines, cut([(why, DIM)], width)]
    selected = next((at for at, (_, row) in enumerate(rows) if row.key == look.selected), None)
    sort, tagged = look.sort_by(bool(gpus)), frozenset(look.tagged)
    table = process_lines(rows, width, sort=sort, reverse=look.reverse, selected=selected, tagged=tagged)
    none = "no process computes on these GPUs" if gpus else "no process of yours runs Python or uses a CPU"
    return [*lines, *(table if rows or gpus else []), *([] if rows else [cut([(f"  {none}", DIM)], width)])]


def _columns(gpus: int, rows: int, width: int, room: int) -> int:
    """The number of GPUs next to each other: the fewest that fit, in columns no wider than graphs need."""
    most = max(1, min(_MOST_COLUMNS, gpus, width // _LEAST_WIDTH))
    least = min(most, -(-width // _MOST_WIDTH))
    return next((count for count in range(least, most) if -(-gpus // count) * rows <= room), most)


def _framed(at: Moment, width: int, height: int, graph: int, unicode: bool) -> list[Line]:
    across, down, corners = ("─", "│", "┌┐└┘") if unicode else ("-", "|", "++++")
    inner = width - 4
    title = cut([(f" {'host' if at.gpu is None else gpu_title(at.gpu)} ", TITLE)], inner)
    used = sum(len(text) for text, _ in title)
    lines: list[Line] = [[(corners[0] + across, DIM), *title, (across * (width - 3 - used) + corners[1], DIM)]]
    rows = frame_lines(at, inner, graph, unicode, height - 2)
    for row in [*rows, *[[]] * (height - 2 - len(rows))]:
        space = inner - sum(len(text) for text, _ in row)
        lines.append([(f"{down} ", DIM), *row, (" " * space, PLAIN), (f" {down}", DIM)])
    return [*lines, [(corners[2] + across * (width - 2) + corners[3], DIM)]]


def _beside(blocks: Sequence[list[Line]]) -> list[Line]:
    return [[part for block in blocks for part in block[row]] for row in range(len(blocks[0]))]


def head_line(shown_ns: int | None) -> Line:
    """The names of the page and the machine, and the shown time."""
    when = "" if shown_ns is None else datetime.fromtimestamp(shown_ns / 1e9).strftime("  %H:%M:%S")
    return [("gpuscope", TITLE), (f"  {socket.gethostname()}{when}", PLAIN)]


def is_unicode() -> bool:
    """Whether standard output can encode more than ASCII."""
    return (getattr(sys.stdout, "encoding", "") or "").lower().replace("-", "").startswith("utf")


def ascii_line(line: Line, width: int) -> Line:
    """The line with ASCII characters only."""
    told = cut([(carried(text.replace("…", "~"), "ascii"), style) for text, style in line], width)
    return [(text.replace("…", "~"), style) for text, style in told]


class FirstFrame:
    """Shows the page's first frame until Textual takes over the terminal.

    As a context manager it restores the terminal if Textual did not start.
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
        """Draws the first samples after a short wait, and returns them."""
        until = _core.monotonic_ns() + _FIRST_SAMPLE_S * 1e9
        while not (samples := monitor.take()) and _core.monotonic_ns() < until:
            threading.Event().wait(_LOOKS_S)
        history = History()
        history.append(samples)
        moments = [at for gpu in history.gpus if (at := moment(history, gpu)) is not None]
        width, height = shutil.get_terminal_size()
        unicode = is_unicode()
        body = body_lines(moments, [], look, width - 1, height - 2, unicode, programs(), monitor.why)
        # The last line would say that there are no processes, but they are unknown so far.
        lines = [cut(head_line(history.end_ns), width), *(body[:-1] if moments else body)][:height]
        self._draw(lines if unicode else [ascii_line(line, width) for line in lines])
        return samples

    def _draw(self, lines: Sequence[Line], before: str = "") -> None:
        texts = ["".join(f"{_SGR[style]}{text}\x1b[0m" for text, style in line) for line in lines]
        sys.stderr.write(before + _BEGIN + _NEXT_LINE.join(texts) + _REST)
        sys.stderr.flush()
