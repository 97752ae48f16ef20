# SPDX-License-Identifier: Apache-2.0
"""``gpuscope memory``: the program runs as it is, and its memory is told however it ends."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.cli import memory as memory_command

FAKES = Path(__file__).resolve().parents[2]
STEPS = "import gpuscope\nfor _ in range({}):\n    gpuscope.step()\n"


FORKS = """\
import os, sys
child = os.fork()
if not child:
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


FAILURES = {  # with the code that python would exit with
    "raise ValueError('mine')": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGINT)": 130,
    "raise MemoryError('out of memory')": 1,
}


@pytest.fixture
def environment(tmp_path_factory):
    """Where the command's process finds stand-ins for all that it asks."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text("from fakes import memory_command\nmemory_command.install()\n")
    paths = [str(folder), str(FAKES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def memory(gpuscope, environment):
    def run(*arguments, **variables):
        return gpuscope("memory", *arguments, **environment, **variables)

    return run


def test_the_program_keeps_its_output_and_exit_code(memory, script):
    script("import sys; print('out', sys.argv[1:]); print('err', file=sys.stderr); sys.exit(7)")
    done = memory("script.py", "a", "--top")
    assert (done.stdout, done.returncode) == ("out ['a', '--top']\n", 7)
    assert "err\n" in done.stderr


@pytest.mark.parametrize("arguments", [("-c", "print('here')"), ("-m", "script"), ("--", "script.py")])
def test_modules_and_code_run_too(memory, script, arguments):
    script("print('here')")
    assert memory(*arguments).stdout == "here\n"


def test_everything_is_told_on_standard_error(memory, script):
    script("pass")
    said = memory("script.py", STAGES="1").stderr
    parts = (
        "the ledger of GPU 0",
        "peak of GPU 0: 10.0 KiB",
        "optimizer state 4096",
        "m1.py:1 f1",
        "from before the history",
        "the stages",
    )
    places = [said.index(part) for part in parts]
    assert places == sorted(places)
    assert "a note of the history" in said
    assert "leaks" not in said


def test_what_autograds_threads_took_is_told_as_such(memory, script):
    script("pass")
    assert "backward (autograd's thread, no Python stack)" in memory("script.py").stderr


@pytest.mark.parametrize("ending", ["pass", *FAILURES])
def test_the_ledger_is_taken_while_the_driver_is_watched(memory, script, ending):
    script(ending)
    assert "the ledger of GPU 0, watched" in memory("script.py").stderr


def test_stages_are_left_out_where_there_are_none(memory, script):
    script("pass")
    assert "the stages" not in memory("script.py").stderr


@pytest.mark.parametrize(("steps", "told"), [(8, True), (7, False)])
def test_leaks_are_told_of_programs_with_steps(memory, script, steps, told):
    script(STEPS.format(steps))
    done = memory("script.py")
    assert done.returncode == 0
    assert (f"leaks in {steps} steps" in done.stderr) is told
    assert f", in step {steps}" in done.stderr


@pytest.mark.parametrize(("source", "code"), FAILURES.items())
def test_a_program_that_fails_is_told_of_all_the_same(memory, script, source, code):
    script(source)
    done = memory("script.py")
    assert done.returncode == code
    assert "the ledger of GPU 0" in done.stderr
    assert "reports end" in done.stderr
    assert "gpuscope/cli" not in done.stderr  # no frame of ours in the traceback


def test_top_limits_the_lines(memory, script):
    script("pass")
    said = memory("--top", "1", "script.py").stderr
    assert "m1.py:1 f1" in said
    assert "m2.py:2 f2" not in said
    assert "3 more lines" in said


def test_the_history_is_as_long_as_asked(memory, script):
    script("pass")
    assert "history of 77 stacks False" in memory("--max-entries", "77", "--no-stacks", "script.py").stderr


@pytest.mark.parametrize(("options", "recorded"), [((), True), (("--no-numpy",), False)])
def test_arrays_of_numpy_are_recorded_unless_left_out(memory, script, options, recorded):
    script("pass")
    assert f"numpy {recorded}" in memory(*options, "script.py").stderr


def test_lost_events_are_told_with_what_keeps_more(memory, script):
    script("pass")
    assert "12 older events are no longer kept: raise --max-entries" in memory("script.py", LOST_EVENTS="12").stderr


def test_a_history_that_the_program_ends_is_told_to_be_cut_short(memory, script):
    script("from fakes import memory_command; memory_command.recording.clear()")
    assert "the program began or ended a memory history itself" in memory("script.py").stderr


def test_files_are_written_by_their_suffix(memory, script, tmp_path):
    script("import os; os.chdir('/')")
    done = memory("-o", "a.html", "-o", "a.json", "-o", "a.pickle", "script.py")
    assert (done.returncode, done.stderr.count("wrote ")) == (0, 3)
    assert "Memory of script" in (tmp_path / "a.html").read_text()
    told = json.loads((tmp_path / "a.json").read_text())
    assert (told["program"], told["history"]) == ("script", {"events": 3, "lost": 0})
    assert told["ledgers"] == [{"text": "the ledger of GPU 0, watched"}]
    assert told["peak_by_category"] == {"optimizer_state": 4096, "unknown": 1024}
    assert told["snapshot"]["text"] == "the snapshot, watched"
    assert (tmp_path / "a.pickle").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "x.txt", "script.py"), "path must end with"),
        (("-o", "none/x.html", "script.py"), "does not exist"),
        (("-o", "x.html", "-o", "./x.html", "script.py"), "named twice"),
        (("missing.py",), "there is no script 'missing.py'"),
        ((), "there is nothing to run"),
        (("--top", "0", "script.py"), "--top"),
        (("--max-entries", "100000001", "script.py"), "'100000001' is not an integer from 1 to 100,000,000"),
    ],
)
def test_what_cannot_be_used_is_told_before_the_program_runs(memory, script, arguments, words):
    script("print('ran')")
    done = memory(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    "part",
    [
        "history",
        "out_of_memory_reports",
        "leaks",
        "peak",
        "snapshot",
        "ledger",
        "tracking",
    ],
)
def test_a_part_that_fails_is_a_note(memory, script, part):
    script(STEPS.format(9) + "print('ran')")
    done = memory("script.py", BROKEN_PART=part)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "could not be had: OSError: broken" in done.stderr


def test_a_file_that_cannot_be_written_is_told(memory, script):
    script("pass")
    done = memory("-o", "a.pickle", "-o", "a.json", "script.py", BROKEN_PART="snapshot_writer")
    assert done.returncode == 1
    assert "a.pickle could not be written: OSError: broken" in done.stderr
    assert "wrote a.json" in done.stderr


def test_a_forked_child_tells_nothing(memory, script):
    script(FORKS)
    done = memory("script.py")
    assert (done.stdout, done.returncode) == ("3\n", 0)
    assert done.stderr.count("the ledger of GPU 0") == 1


def test_ctrl_c_ends_the_program_and_tells(environment, script, tmp_path):
    # A signal that comes just before a sleep begins is seen after it: so many short ones.
    script("import time\nprint('begun', flush=True)\nfor _ in range(600):\n    time.sleep(0.1)")
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "memory", "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the ledger of GPU 0" in said


def test_a_program_that_closes_its_streams_is_no_failure(memory, script):
    script("import sys; sys.stderr.close()")
    assert memory("script.py").returncode == 0


def test_every_module_that_findings_come_from_is_there():
    source = inspect.getsource(memory_command)
    names = re.findall(r"from gpuscope\.memory\.([\w.]+) import (?:[A-Z_]+, )?([a-z]\w+)", source)
    assert len(names) > 5
    for module, function in names:
        assert callable(getattr(importlib.import_module(f"gpuscope.memory.{module}"), function))
