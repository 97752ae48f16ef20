# SPDX-License-Identifier: Apache-2.0
"""Results are printed on outputs of any encoding, and texts of drivers and files are shown whatever bytes they have."""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
import subprocess
import sys

import pytest

import gpuscope
from fakes.benchmark_results import Canned
from gpuscope import _core, text
from gpuscope.cli.console import Console
from gpuscope.errors import GpuscopeError
from gpuscope.monitor.programs import Program

NAME = "训练 µ …"
ESCAPED = {"ascii": r"\u8bad\u7ec3 u ...", "latin-1": r"\u8bad\u7ec3 µ ...", "utf-8": NAME}


@pytest.fixture(scope="module")
def recorded():
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof, gpuscope.record_function(NAME):
        for part in ("first", "second"):
            with gpuscope.record_function(part * 60):
                sum(range(20_000))
    return prof


@pytest.fixture(params=ESCAPED)
def printed(request, monkeypatch):
    """Prints a value on a standard output of that encoding; the text."""
    encoding = request.param

    def printed(value):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            print(value() if inspect.isroutine(value) else value)
        stream.flush()
        found = stream.buffer.getvalue().decode(encoding)
        assert encoding == "utf-8" or not {*found} & {*"…█▉▏├└│─"}
        return found.replace(ESCAPED[encoding], NAME)

    return printed


RESULTS = {
    "profile": lambda prof: prof,
    "table": lambda prof: prof.key_averages().table,
    "averages": lambda prof: prof.key_averages(),
    "tree": lambda prof: prof.tree(),
    "narrow tree": lambda prof: lambda: prof.tree().render(max_depth=3),
    "events": lambda prof: prof.events(),
    "event": lambda prof: next(event for event in prof.events() if event.name == NAME),
    "node": lambda prof: prof.tree().root.children[0],
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_a_recording_is_printed(recorded, printed, result):
    assert NAME in printed(result(recorded))


@pytest.mark.parametrize("result", ["diagnose", "audit", "step_breakdown", "modules"])
def test_what_is_found_in_a_recording_is_printed(recorded, printed, result):
    assert printed(getattr(recorded, result)())


def test_a_benchmark_is_printed(printed):
    result = dataclasses.replace(Canned(1e-3).result(None, cold=True), name=NAME, warnings=(NAME,))
    for shown in (result, result.report):
        assert NAME in printed(shown)


def test_timings_and_errors_are_printed(printed):
    with gpuscope.timed(NAME):
        pass
    assert NAME in printed(gpuscope.timings)
    assert NAME in printed(GpuscopeError(NAME))
    assert NAME in printed(Program(1, NAME, 0, None, None, "recording", ""))


def test_names_that_are_cut_short_keep_their_columns(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert text.shorten("a" * 50, 11) == "aaaa...aaaa"


def test_lines_of_a_command_are_written():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(stream).sentence(("├─ ", "dim"), NAME, " ±1 → 2 · ███▍")
    stream.flush()
    assert stream.buffer.getvalue() == rb"|- \u8bad\u7ec3 u ... +-1 > 2 . ### " + b"\n"


@pytest.mark.parametrize("command", [["report"], ["report", "--tree"], ["diagnose"], ["sql"]])
def test_commands_show_names_on_ascii(recorded, tmp_path, command):
    path = tmp_path / "训.gscope"
    recorded.save(path)
    query = ["select name from regions order by 1 desc"] if command == ["sql"] else []
    done = run(*command, path, *query)
    if "DuckDB" not in done.stderr:
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)
        assert done.stdout.isascii()


def test_errors_of_commands_show_names_on_ascii(tmp_path):
    done = run("report", tmp_path / "没有.gscope")
    assert done.returncode == 2
    assert r"\u6ca1\u6709.gscope" in done.stderr


def run(*command):
    variables = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = [sys.executable, "-m", "gpuscope", *map(str, command)]
    return subprocess.run(arguments, env=variables, capture_output=True, encoding="ascii", timeout=60, check=False)


def test_the_core_gives_texts_of_any_bytes():
    assert _core.demangle(b"k\xe9rnel \xff") == "k\ufffdrnel \ufffd"
    with pytest.raises(GpuscopeError, match="\ufffd"):
        _core.read_gscope(b"/nowhere/\xff.gscope")


def test_text_of_utf_8_stays():
    assert text.carried(NAME, "utf-8") == text.carried(NAME, None) == NAME
    assert text.carried("\udcff", "utf-8") == r"\udcff"
