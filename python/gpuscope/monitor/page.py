# SPDX-License-Identifier: Apache-2.0
"""The page of ``gpuscope monitor`` on a terminal, drawn by Textual, which is optional."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from types import FrameType
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gpuscope.errors import GpuscopeError
from gpuscope.monitor.gpu_monitor import GPUMonitor
from gpuscope.monitor.history import NO_GPU, History, Moment, moment
from gpuscope.monitor.layout import Look, ascii_line, body_lines, config_path, head_line, is_unicode
from gpuscope.monitor.log import Log
from gpuscope.monitor.panels import ALARM, DIM, GRAPHS, HELP, HOST_GRAPHS, TITLE, Line, cut
from gpuscope.monitor.processes import SORTS, ProcessReader, ProcessRow, as_tree, environment_of, runs, sorted_rows
from gpuscope.monitor.programs import Program, programs
from gpuscope.monitor.sample import GpuSample
from gpuscope.text import carried, one_line

_DRAWS_S = 0.25  # between checks for samples

KEYS = """\
q  Ctrl-C   end                          p        pause, and resume
? h         this                         Left Right  a sample back, forward (pauses)
a f c       automatic, full, compact     [ ]      ten seconds back, forward
1-9  0      one GPU, all                 g        the next graph
Up Down     select a process             PageUp PageDown  scroll
Space       tag it, for T K I
, .  /      sort by the next, turn       o + n p u g c m t  sort by gpu, pid, user, memory, cpu, host, time
t           as a tree                    e        its environment
T K I       end, kill, interrupt it (asks first)
r           record to a file, and stop   l        light or dark
F2          keep this look for the next time
"""


def _text(lines: Sequence[Line]) -> Text:
    text = Text(no_wrap=True, overflow="crop")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for part, style in line:
            text.append(part, style=style)
    return text


class _Words(ModalScreen[None]):
    """Text over the page, until a key."""

    CSS = """
    _Words { align: center middle; }
    _Words VerticalScroll { width: 100%; max-width: 124; height: auto; max-height: 100%; }
    _Words VerticalScroll { border: round $foreground; background: $surface; }
    _Words Static { height: auto; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(self._text))

    def on_key(self, event: events.Key) -> None:
        if event.key not in ("up", "down", "pageup", "pagedown"):
            event.stop()
            self.dismiss()


class _Question(ModalScreen[bool]):
    """A sentence that y says yes to, and any other key no."""

    CSS = """
    _Question { align: center middle; }
    _Question Static { width: auto; max-width: 90%; height: auto; padding: 0 1; }
    _Question Static { border: heavy $foreground; background: $surface; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._question}  y: yes, any other key: no"))

    def on_key(self, event: events.Key) -> None:
        event.stop()
        self.dismiss(event.key == "y")


class MonitorPage(App[None]):
    """The page.

    Args:
        monitor: the running monitor; None to show a recording.
        samples: the recording, or samples already taken from the monitor.
        look: the user's saved choices.
    """

    CSS = """
    Screen { layers: base; }
    #head, #foot { height: 1; width: 100%; }
    #head, #body, #foot { text-wrap: nowrap; }
    #head { dock: top; } #foot { dock: bottom; }
    #scroll { height: 1fr; scrollbar-size-vertical: 1; }
    #body { height: auto; width: 100%; }
    .ascii #scroll, .ascii VerticalScroll { scrollbar-size-vertical: 0; }
    .ascii _Words VerticalScroll, .ascii _Question Static { border: ascii $foreground; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("q,ctrl+c", "quit", priority=True),
        Binding("question_mark,h", "help"),
        Binding("p", "pause"),
        Binding("left", "step(-1)", priority=True),
        Binding("right", "step(1)", priority=True),
        Binding("left_square_bracket", "seconds(-10)"),
        Binding("right_square_bracket", "seconds(10)"),
        Binding("a", "mode('auto')"),
        Binding("f", "mode('full')"),
        Binding("c", "mode('compact')"),
        *(Binding(str(number), f"only({number})") for number in range(10)),
        Binding("g", "graph"),
        Binding("up", "select(-1)", priority=True),
        Binding("down", "select(1)", priority=True),
        Binding("pageup", "scroll(-1)"),
        Binding("pagedown", "scroll(1)"),
        Binding("space", "tag"),
        Binding("escape", "unselect"),
        Binding("comma", "sort(-1)"),
        Binding("full_stop", "sort(1)"),
        Binding("slash", "reverse"),
        Binding("t", "tree"),
        Binding("e", "environment"),
        Binding("T", "send('SIGTERM')"),
        Binding("K", "send('SIGKILL')"),
        Binding("I", "send('SIGINT')"),
        Binding("r", "record"),
        Binding("l", "light"),
        Binding("f2", "keep"),
    ]

    def __init__(self, monitor: GPUMonitor | None, samples: Sequence[GpuSample] = (), look: Look | None = None) -> None:
        # Textual replaces standard output while it runs.
        self._unicode = is_unicode()
        self._drawn = 0  # lines
        super().__init__()
        self.look = look or Look()
        self.history = History(None if monitor is None else 600.0)
        self._monitor = monitor
        self._processes = ProcessReader()
        self._rows: list[tuple[int, ProcessRow]] | None = []
        self._found: list[ProcessRow] = []
        self._recorder: Log | None = None
        self._said = ""
        self._sorts = False  # the key o was pressed
        self.history.append(samples)
        if monitor is None:
            self.look.paused_ns = self.history.end_ns

    def compose(self) -> ComposeResult:
        """The first line, the scrolled part, and the last line."""
        yield Static(id="head")
        with VerticalScroll(id="scroll", can_focus=False):
            yield Static(id="body")
        yield Static(id="foot")

    def on_mount(self) -> None:
        """Draws the page, and starts looking for samples."""
        self.set_class(not self._unicode, "ascii")
        self._dress()
        self._look_for_samples()
        self.draw()
        if self._monitor is not None:
            self.set_interval(_DRAWS_S, self._look_for_samples)

    def on_resize(self) -> None:
        """Redraws once the new size is known."""
        self.call_later(self.draw)

    def on_unmount(self) -> None:
        """Ends recording."""
        self._stop_recording()

    def on_key(self, event: events.Key) -> None:
        """Handles the key after o."""
        if self._sorts:
            self._sorts = False
            chosen = [at for at, (letter, _, _) in enumerate(SORTS) if letter == event.character]
            if chosen:
                self.look.sort, self.look.reverse = chosen[0], False
            event.stop()
            event.prevent_default()
            self.draw()
        elif event.character == "o":
            self._sorts = True

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Letters after o are not actions of their own; nor are keys under a question."""
        if action == "quit":
            return True
        return not self._sorts and len(self.screen_stack) == 1

    def draw(self) -> None:
        """Draws the shown moment."""
        if not self.is_running or not self.screen_stack:
            return
        width, height = self.size
        if width < 2:
            return
        end_ns = self.look.paused_ns
        moments = [
            at
            for gpu in self.history.gpus
            if (gpu == NO_GPU or self.look.only in (None, gpu))
            and (at := moment(self.history, gpu, end_ns)) is not None
        ]
        self._find_processes(moments)
        screen = self.screen_stack[0]
        why = "" if self._monitor is None else self._monitor.why
        lines = body_lines(moments, self._rows, self.look, width - 1, height - 2, self._unicode, self._programs(), why)
        lines = lines or [[("waiting for the first sample", DIM)]]
        is_higher_or_lower = len(lines) != self._drawn  # only then a new layout is needed, which takes longer
        self._drawn = len(lines)
        for name, part in (("head", [self._head(width)]), ("body", lines), ("foot", [self._foot(width)])):
            part = part if self._unicode else [ascii_line(line, width) for line in part]
            screen.query_one(f"#{name}", Static).update(_text(part), layout=name == "body" and is_higher_or_lower)

    def action_help(self) -> None:
        """Shows the keys and the meaning of the figures."""
        self.push_screen(_Words(f"{KEYS}\n{HELP}"))

    def action_pause(self) -> None:
        """Pauses at this moment, or resumes."""
        self.look.paused_ns = self.history.end_ns if self.look.paused_ns is None else None
        if self._monitor is None and self.look.paused_ns is None:
            self.look.paused_ns = self.history.begin_ns  # a recording restarts
        self.draw()

    def action_step(self, steps: int) -> None:
        """Moves back or forward by samples."""
        self.look.paused_ns = self.history.step(self.look.paused_ns, steps)
        self.draw()

    def action_seconds(self, seconds: int) -> None:
        """Moves back or forward by time."""
        begin, end = self.history.begin_ns, self.history.end_ns
        if begin is not None and end is not None:
            moved = (self.look.paused_ns or end) + seconds * 1_000_000_000
            self.look.paused_ns = min(max(moved, begin), end)
        self.draw()

    def action_mode(self, mode: str) -> None:
        """Sets how much of each GPU is shown."""
        self.look.mode = mode
        self.draw()

    def action_only(self, number: int) -> None:
        """Shows one GPU, by its place from 1 on; 0 shows all."""
        gpus = self.history.gpus
        self.look.only = gpus[number - 1] if 1 <= number <= len(gpus) else None
        self.draw()

    def action_graph(self) -> None:
        """Plots the next figure over time."""
        self.look.graph += 1
        self.draw()

    def action_select(self, steps: int) -> None:
        """Selects another process."""
        if not self._rows:
            return
        keys = [row.key for _, row in self._rows]
        first = 0 if steps > 0 else len(keys) - 1
        at = keys.index(self.look.selected) + steps if self.look.selected in keys else first
        at = min(max(at, 0), len(keys) - 1)
        self.look.selected = keys[at]
        self.draw()
        scroll = self.query_one("#scroll")
        line = self._drawn - len(keys) + at  # they are the last lines
        scroll.scroll_to(y=min(max(scroll.scroll_y, line + 1 - scroll.size.height), line), animate=False)

    def action_scroll(self, pages: int) -> None:
        """Scrolls down or up."""
        self.query_one("#scroll").scroll_relative(y=pages * (self.size.height - 2), animate=False)

    def action_unselect(self) -> None:
        """Clears the selection."""
        self.look.selected = None
        self.look.tagged.clear()
        self.draw()

    def action_tag(self) -> None:
        """Tags or untags the selected process."""
        if (row := self._selected()) is not None:
            self.look.tagged ^= {row.identity}
        self.action_select(1)

    def action_sort(self, steps: int) -> None:
        """Sorts by the next column."""
        self.look.sort = (self.look.sort + steps) % len(SORTS)
        self.draw()

    def action_reverse(self) -> None:
        """Reverses the order."""
        self.look.reverse = not self.look.reverse
        self.draw()

    def action_tree(self) -> None:
        """Shows processes under their parents."""
        self.look.tree = not self.look.tree
        self.draw()

    def action_environment(self) -> None:
        """Shows the environment variables of the selected process."""
        if (row := self._selected()) is None:
            self._say("no process is selected: Up and Down select one")
        elif row.process.command is None:
            self._say(f"process {row.process.pid} cannot be seen from here")
        else:
            told = "\n".join(environment_of(row.process.pid))
            self.push_screen(_Words(told if self._unicode else carried(told, "ascii")))

    def action_send(self, name: str) -> None:
        """Asks, and sends a signal to the tagged processes, or else to the selected one."""
        if self._monitor is None or self.look.paused_ns is not None:
            self._say("signals reach only running processes: p resumes")
            return
        row = self._selected()
        wanted = self.look.tagged or ({row.identity} if row is not None else set())
        known = {each.identity: each.process.command for _, each in self._rows or ()}
        seen = sorted(process for process in wanted if known.get(process) is not None)
        if not seen:
            self._say("no process that can be seen from here is selected: Up and Down select one")
            return
        named = ", ".join(f"{process[0]} ({one_line(known[process] or '')[:40]})" for process in seen)

        def send(agreed: bool | None) -> None:
            if not agreed:
                return
            for process in seen:
                pid, _ = process
                if not runs(process):  # it may have ended meanwhile, and its number may be another's
                    self._say(f"process {pid} has ended")
                    continue
                try:
                    os.kill(pid, signal.Signals[name])
                except OSError as error:
                    self._say(f"cannot send {name} to {pid}: {error.strerror}")
            self.look.tagged.clear()

        self.push_screen(_Question(f"Send {name} to {named if self._unicode else carried(named, 'ascii')}?"), send)

    def action_record(self) -> None:
        """Starts or ends writing samples to a file."""
        if self._recorder is not None:
            self._stop_recording()
        elif self._monitor is None:
            self._say("this is a recording already")
        else:
            name = f"gpu-{datetime.now():%Y%m%d-%H%M%S}.jsonl"
            try:
                self._recorder = Log(name)
            except GpuscopeError as error:
                self._say(str(error))
            else:
                self._say(f"records to {name}")
        self.draw()

    def action_light(self) -> None:
        """Switches between light and dark."""
        self.look.light = not self.look.light
        self._dress()

    def action_keep(self) -> None:
        """Saves this look."""
        try:
            self.look.save(config_path())
        except OSError as error:
            self._say(f"cannot write {config_path()}: {error.strerror}")
        else:
            self._say(f"kept in {config_path()}")

    def _dress(self) -> None:
        self.theme = "textual-light" if self.look.light else "textual-dark"

    def _look_for_samples(self) -> None:
        taken = self._monitor.take() if self._monitor is not None else []
        if not taken:
            return
        self.history.append(taken)
        if self._recorder is not None:
            try:
                self._recorder.append(taken)
            except GpuscopeError as error:
                self._recorder = None
                self._say(f"no longer recorded: {error}")
        if self.look.paused_ns is None or self.history.begin_ns is None:
            self.draw()
        else:  # the paused moment may be too old by now
            self.look.paused_ns = max(self.look.paused_ns, self.history.begin_ns)

    def _find_processes(self, moments: Sequence[Moment]) -> None:
        listed = [(at.gpu.index, at.gpu.processes) for at in moments if at.gpu is not None and "all" not in at.gpu.why]
        if self._monitor is None or (listed and all(processes is None for _, processes in listed)):
            self._rows = None
            return
        if self._has_gpus:
            self._found = self._processes.rows((gpu, each) for gpu, processes in listed for each in processes or ())
        elif self.look.paused_ns is None:
            self._found = self._processes.of_user()
        ordered = sorted_rows(self._found, self.look.sort_by(self._has_gpus), reverse=self.look.reverse)
        self._rows = as_tree(ordered) if self.look.tree else [(0, row) for row in ordered]

    @property
    def _has_gpus(self) -> bool:
        return self.history.gpus != [NO_GPU]

    def _programs(self) -> list[Program]:
        """The current programs: their past is not kept."""
        return [] if self._monitor is None or self.look.paused_ns is not None else programs()

    def _selected(self) -> ProcessRow | None:
        return next((row for _, row in self._rows or () if row.key == self.look.selected), None)

    def _say(self, sentence: str) -> None:
        self._said = sentence
        self.draw()

    def _stop_recording(self) -> None:
        if self._recorder is not None:
            self._said = f"recorded to {self._recorder.path}"
            self._recorder = None

    def _head(self, width: int) -> Line:
        line = head_line(self.look.paused_ns or self.history.end_ns)
        if self._monitor is None:
            line.append(("  RECORDING", TITLE))
        else:
            if self._monitor.error:
                line.append((f"  LOG: {self._monitor.error}", ALARM))
            if self.look.paused_ns is not None and self.history.end_ns is not None:
                line.append((f"  PAUSED {(self.history.end_ns - self.look.paused_ns) / 1e9:.1f} s ago", TITLE))
            cost = self._monitor.cost
            line.append((f"  each {self._monitor.interval:g} s, for {100 * cost.cpu_ratio:.2f} % of a CPU", DIM))
        if self._recorder is not None:
            line.append((f"  records to {self._recorder.path}", TITLE))
        return cut(line, width)

    def _foot(self, width: int) -> Line:
        if self._said:
            said, self._said = self._said, ""
            return cut([(said, TITLE)], width)
        graphs = GRAPHS if self._has_gpus else HOST_GRAPHS
        mode = f"{self.look.mode}, graph: {graphs[self.look.graph % len(graphs)][0]}"
        return cut([("q end  ? help  p pause  Left back  g graph  . sort  ", DIM), (mode, DIM)], width)


def show(
    monitor: GPUMonitor | None,
    samples: Sequence[GpuSample] = (),
    look: Look | None = None,
    ending: Sequence[signal.Signals] = (),
) -> None:
    """Shows the page until the user ends it; `look` defaults to the saved one.

    Signals of `ending` that have handlers end the page too. Their handlers run after the terminal is restored: an
    exception inside Textual would leave a lock of its output locked, and its end would wait forever.
    """
    page = MonitorPage(monitor, samples, look or Look.of_last_time())
    received: list[int] = []
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
    if threading.current_thread() is threading.main_thread():  # only the main thread has handlers
        known = {number: signal.getsignal(number) for number in ending}
        handlers = {number: handler for number, handler in known.items() if callable(handler)}

    def end(number: int) -> None:
        received.append(number)
        page.exit()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in handlers:
            loop.add_signal_handler(number, end, number)
        try:
            await page.run_async(mouse=False)
        finally:
            for number, handler in handlers.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    asyncio.run(run())
    for number in received:
        handlers[number](number, None)
