# SPDX-License-Identifier: Apache-2.0
"""Names that would move a terminal's cursor, paint it, or end an element of a page are shown as they are written."""

from __future__ import annotations

import dataclasses
import os
import pty
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest

import gpuscope
from fakes.benchmark_results import Canned
from fakes.explorations import exploration
from fakes.gscope import NONE, gscope_bytes
from gpuscope import units
from gpuscope.benchmarking.rounds import SweepPoint
from gpuscope.benchmarking.sweeps import Sweep
from gpuscope.errors import CorruptTrace, GpuscopeError, GpuscopeWarning, InvalidArgument
from gpuscope.exporters.page import report
from gpuscope.exporters.page.memory import render
from gpuscope.memory.history.events import Frame, MemoryEvents
from gpuscope.pytest_plugin.gate import Verdict
from gpuscope.pytest_plugin.measured import Measured
from gpuscope.pytest_plugin.session import State
from gpuscope.text import one_line, printable

EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\u202e[red]x[/] </script><b>"
SHOWN = r"\x1b[31mred\x1b]0;title\x07\x9b2J\r\u202e[red]x[/]"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def check(text):
    assert SHOWN in text
    assert not CONTROL.search(text)


@pytest.fixture
def recording(tmp_path):
    """A region, an operator, a module, a kernel, a thread and notes of that name, in a file of such a one."""
    strings = ["", EVIL, "[[2, 3]]"]
    tables = {
        "path": {"name": [1, 1, 1], "parent": [NONE, 0, 1], "kind": [0, 3, 1]},
        "thread": {"system_id": [1], "name": [1]},
        "region": {
            "start_ns": [100, 110, 120],
            "duration_ns": [9000, 500, 300],
            "path": [0, 1, 2],
            "parent": [NONE, 0, 1],
        },
        "stack": {"parent": [NONE], "function": [1], "file": [1], "line": [3]},
        "detail": {"region": [2], "shapes": [2], "forward": [NONE], "stack": [0]},
        "device": {"ordinal": [0], "name": [1]},
        "device_sample": {"start_ns": [150], "power_mw": [90_000]},
        "track": {"device": [0], "context": [1], "stream": [7]},
        "variant": {"name": [1]},
        "kernel": {
            "start_ns": [200],
            "duration_ns": [50],
            "variant": [0],
            "track": [0],
            "region": [2],
            "correlation": [1],
        },
    }
    info = {"process.argv": EVIL, "process.host": EVIL, "session.notes": EVIL, "session.unfinished": EVIL}
    path = tmp_path / f"{EVIL.replace('/', '|')}.gscope"
    path.write_bytes(gscope_bytes(tables, strings, {**info, "session.start_ns": "1", "session.stop_ns": "20000"}))
    return path


@pytest.mark.parametrize("text", [one_line, printable])
def test_control_characters_are_spelled_out(text):
    assert text(EVIL).startswith(SHOWN)
    assert text("plain, naïve, 日本, 👩‍🔬") == "plain, naïve, 日本, 👩‍🔬"


def test_lines_end_where_they_did():
    assert (one_line("a\n\tb"), printable("a\n\tb")) == (r"a\n\tb", "a\n\tb")


@pytest.mark.parametrize(
    "text",
    [
        lambda results: results.key_averages().table(),
        lambda results: results.key_averages(group_by_stack_n=3).table(max_src_column_width=None),
        lambda results: results.events().table(max_name_column_width=None),
        lambda results: str(results.tree()),
        lambda results: results.tree().render(max_depth=2),
        lambda results: str(results.modules()),
        lambda results: repr(results.modules()),
        lambda results: str(results.step_breakdown()),
        lambda results: results.step_breakdown().table(),
        lambda results: str(results.audit()),
        lambda results: str(results.energy()),
        lambda results: str(results.energy()[0]),
    ],
)
def test_tables_and_trees_show_names(recording, text):
    check(text(gpuscope.load(recording)))


def test_the_page_shows_names(recording):
    text = report.render(gpuscope.load(recording).trace)
    shown = SHOWN.replace("]x[/]", "]x[/] &lt;/script&gt;&lt;b&gt;")
    assert f"<h1>{shown}</h1>" in text
    assert not CONTROL.search(text)
    assert "</script><b>" not in text


def test_columns_of_a_table_stay_aligned(recording):
    rows = gpuscope.load(recording).key_averages().table(max_name_column_width=None).splitlines()
    assert {len(line) for line in rows if SHOWN in line and "audit" not in line} == {len(rows[0])}


@pytest.mark.parametrize(
    "error", [GpuscopeError(EVIL), InvalidArgument(EVIL), CorruptTrace(EVIL, EVIL, 0), GpuscopeWarning(EVIL)]
)
def test_errors_and_warnings_show_names(error):
    check(str(error))


def test_first_line_of_an_error_of_others_shows_names():
    check(units.first_line(ValueError(EVIL)))


def test_warning_is_printed_so():
    check(warnings.formatwarning(GpuscopeWarning(EVIL), GpuscopeWarning, "file", 1, ""))


def test_benchmarks_show_names():
    canned = Canned(1e-3, kernels=((EVIL, 1, 1e-4),)).result(None, cold=True)
    result = dataclasses.replace(canned, name=EVIL, warnings=(EVIL,))
    for text in (str(result), repr(result), result.report()):
        check(text)


def test_sweeps_show_names():
    point = SweepPoint({"axis": EVIL}, None, None, np.zeros(0), False, EVIL, ())
    check(str(point))
    check(Sweep({"axis": (EVIL,)}, (point,), "budget", 0.02).table())


def test_timings_show_names():
    with gpuscope.timed(EVIL):
        pass
    check(str(gpuscope.timings()))


def test_memory_shows_names():
    check(str(Frame(EVIL, "a.py", 1)))
    with gpuscope.track_memory(EVIL, "cpu"):
        pass
    check(str(gpuscope.memory_stages()))


def test_printed_stage_shows_its_name(capsys):
    gpuscope.track_memory(EVIL, "cpu")
    check(capsys.readouterr().out)


def test_explorations_show_names():
    check(exploration(cpu=EVIL).table())


# -- the command line -------------------------------------------------------------------------------------------------


def said_by_gpuscope(*arguments):
    done = subprocess.run([sys.executable, "-m", "gpuscope", *arguments], capture_output=True)
    return (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("options", [("--tree",), ("--no-table",), ("--group-by-stack-n", "3")])
def test_report_shows_names(recording, options):
    check(said_by_gpuscope("report", recording, *options))


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", f"{EVIL}.gscope"),
        ("export", "x.gscope", "-o", f"{EVIL}.json"),
        ("run", EVIL),
        (EVIL,),
        ("report", f"--{EVIL}"),
        ("memory", "show", EVIL),
        ("bench", "1", "--budget", EVIL),
        ("bench", f"raise ValueError({EVIL!r})"),
    ],
)
def test_messages_show_arguments(arguments):
    check(said_by_gpuscope(*arguments))


def test_terminal_is_not_painted_by_names_or_markup(recording):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "300", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "gpuscope", "report", "--tree", recording]
    subprocess.run(command, stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    text = b""
    while chunk := read(ours):
        text += chunk
    os.close(ours)
    check(text.decode().replace("\r\n", "\n"))


def read(descriptor):
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # all read, and nobody left to write
        return b""


# -- pages ------------------------------------------------------------------------------------------------------------


def test_page_of_memory_is_not_ended_by_names():
    frame = Frame(EVIL, EVIL, 1)
    events = MemoryEvents(
        time_ns=np.array([1000, 2000]),
        address=np.array([1, 2], dtype=np.uint64),
        bytes=np.array([100, 200]),
        allocated_bytes=np.array([100, 300]),
        reserved_bytes=np.array([512, 512]),
        device=np.zeros(2, dtype=np.int32),
        stack=np.ones(2, dtype=np.uint32),
        region=np.ones(2, dtype=np.uint32),
        thread=np.ones(2, dtype=np.uint64),
        source=np.zeros(2, dtype=np.uint8),
        frames=lambda stack: (frame,),
        regions=("", EVIL),
    )
    page = render(events, title=EVIL, notes=[EVIL])
    assert page.count("</script>") == page.count("<script")
    assert "<b>" not in page


def test_page_of_an_exploration_is_not_ended_by_names():
    plain, evil = (exploration(cpu=name, warnings=(name,), remarks=(name,)).to_html() for name in ("plain", EVIL))
    assert evil.count("</script>") == plain.count("</script>")
    assert evil.count("<b>") == plain.count("<b>")


# -- pytest -----------------------------------------------------------------------------------------------------------


class Terminal:
    """Stands in for pytest's TerminalReporter."""

    def __init__(self):
        self.lines = []

    def section(self, title, *_, **__):
        self.lines.append(title)

    def write_line(self, line, **_):
        self.lines.append(line)


def test_section_of_the_pytest_plugin_shows_names():
    facts = {
        "estimate": 1e-3,
        "ci": (1e-3, 1e-3),
        "n": 9,
        "quantity": "kernel",
        "cold": True,
        "gpu": EVIL,
        "warnings": [EVIL],
    }
    state, terminal = State(), Terminal()
    state.measured[EVIL] = Measured(facts, [1e-3], 0.05)
    state.verdicts[EVIL] = Verdict("slower", 1.2, 1.1, 1.3, 1, reasons=(EVIL,), culprit=EVIL)
    state.gated = True
    state.write(terminal)
    lines = "\n".join(terminal.lines)
    check(lines)
    assert lines.count(SHOWN) == 7
