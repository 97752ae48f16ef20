# SPDX-License-Identifier: Apache-2.0
"""Text on a terminal: no line is wider than it, whatever the command, and nothing is lost of what is wrapped."""

from __future__ import annotations

import io
import re
import sys

import pytest

from fakes.recordings import training
from gpuscope.cli import main
from gpuscope.cli.console import Console
from gpuscope.recording import Recording
from gpuscope.text import columns_of, wrapped

UNSEEN = re.compile(r"[^\n]*\r\x1b\[K|\x1b\[[0-9;?]*[A-Za-z]")  # what was erased, and colours
WIDTHS = (40, 60, 80, 120)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True

    @property
    def lines(self):
        return [line.rpartition("\r")[2] for line in UNSEEN.sub("", self.getvalue()).split("\n")]


@pytest.fixture(autouse=True)
def of_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def on_terminal(monkeypatch, tmp_path):
    """Runs a command on a terminal of so many columns; what it was given on both streams, and the exit code."""
    monkeypatch.chdir(tmp_path)

    def run(columns, *arguments):
        out = Terminal()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out)
        try:
            code = main([*map(str, arguments)])
        except SystemExit as end:  # of --help
            code = end.code
        return out.lines, code

    return run


@pytest.fixture
def recording(tmp_path):
    Recording(training().store).save(tmp_path / "training.gscope")
    return "training.gscope"


COMMANDS = {
    "report": ("report", "FILE", "--tree", "--steps"),
    "audit": ("report", "FILE", "--no-table", "--audit"),
    "export": ("export", "FILE", "-o", "a.json", "-o", "b.pftrace"),
    "diff": ("diff", "FILE", "FILE"),
    "diagnose": ("diagnose", "FILE"),
    "sql": ("sql", "FILE", "select * from kernels"),
    "schema": ("sql", "--schema"),
    "doctor": ("doctor",),
    "bench": ("bench", "1 + 1", "--budget", "30ms"),
    "bench compare": ("bench", "1 + 1", "--compare", "2 + 2", "--budget", "30ms"),
    "monitor": ("monitor", "--once"),
    "demo": ("demo", "--steps", "2"),
    "wrong option": ("report", "FILE", "--sort-by", "speed"),
    "wrong file": ("report", "a recording that is not there at all.gscope"),
    "help": ("--help",),
    "view help": ("view", "--help"),
    "monitor help": ("monitor", "--help"),
}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal(on_terminal, recording, name, columns):
    if name == "sql":
        pytest.importorskip("duckdb")
    lines, _ = on_terminal(columns, *(recording if each == "FILE" else each for each in COMMANDS[name]))
    assert lines
    assert [line for line in lines if columns_of(line) > columns] == []


@pytest.mark.parametrize("columns", [40, 80])
def test_functions_of_python_fit_and_columns_left_out_are_counted(gpuscope_samples, columns):
    lines = gpuscope_samples.render(width=columns).splitlines()
    assert max(map(columns_of, lines)) <= columns
    assert ("(3 more columns where lines are wider)" in lines) == (columns == 40)


@pytest.mark.parametrize("columns", ["1", "2", "10"])
@pytest.mark.parametrize("command", [("--help",), ("run", "--help"), ("doctor",)])
def test_no_terminal_is_too_narrow(on_terminal, columns, command):
    assert len(on_terminal(columns, *command)[0]) > 5


@pytest.fixture
def gpuscope_samples():
    from gpuscope.analysis.python_samples import SampledCall, Samples

    inner = SampledCall("inner_with_a_long_name", "/me/train.py", 3, 10, 400, 400, 300, (), ())
    outer = SampledCall("outer", "/me/train.py", 9, 10, 600, 1000, 300, (), (inner,))
    return Samples(recorded_ns=1000, interval_ns=10, count=20, roots=(outer,), functions=())


def written(monkeypatch, columns, *parts):
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Terminal()
    Console(out).sentence(*parts)
    return out


def test_a_wrapped_sentence_has_all_its_words_and_styles(monkeypatch):
    parts = (("gpuscope: ", "bold red"), "the first words are plain and ", ("the last ones are green", "green"))
    out = written(monkeypatch, 24, *parts)
    assert " ".join(" ".join(out.lines).split()) == "gpuscope: the first words are plain and the last ones are green"
    assert max(map(len, out.lines)) <= 24
    assert out.getvalue().count("\x1b[32m") == 2  # it stands in two lines


def test_wide_characters_are_wrapped_by_their_columns():
    for text in ("\u540d" * 60, "a " + "\u540d\u524d " * 20, "e\u0301" * 60):
        lines = wrapped(text, 39, 2)
        assert max(map(columns_of, lines)) <= 39
        assert max(map(columns_of, lines)) >= 36
        assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_text_goes_on_below_its_last_column(monkeypatch):
    lines = written(monkeypatch, 50, "    region    varchar  the region that it belongs to, with those around it").lines
    assert lines[1].index(lines[1].strip()) == lines[0].index("the region")


def test_paths_and_addresses_stay_whole_so_that_they_can_be_copied(monkeypatch):
    path = "/a/folder/" + 5 * "with-a-long-name/" + "run.gscope"
    assert written(monkeypatch, 40, "wrote ", (path, "bold")).lines == ["wrote", f"  {path}", ""]


@pytest.mark.parametrize("text", ["a\tb " * 20, "5\N{NO-BREAK SPACE}% of it " * 10, "x" * 100, " " * 100, "-" * 100])
def test_no_text_is_too_odd_to_be_wrapped(monkeypatch, text):
    assert "".join("".join(written(monkeypatch, 40, text).lines).split()) in ("".join(text.split()), "-" * 40)


def test_elsewhere_lines_are_as_long_as_they_are(monkeypatch):
    out = io.StringIO()
    monkeypatch.setenv("COLUMNS", "40")
    Console(out).sentence("word " * 50)
    assert out.getvalue().count("\n") == 1


def test_examples_that_are_wrapped_are_still_commands_for_a_shell(on_terminal):
    lines, _ = on_terminal(40, "run", "--help")
    examples = "\n".join(lines).partition("examples:")[2]
    commands = re.sub(r" \\\n +", " ", examples)
    assert "gpuscope run -o out.gscope -o out.pftrace -m package.train --lr 0.1\n" in commands
    assert "gpuscope run -c 'import torch; torch.ones(9).sum()'" in commands
