# SPDX-License-Identifier: Apache-2.0
"""``gpuscope bench``: expressions, options, results, and the explorer."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuscope.cli import options
from gpuscope.cli.bench import Namespace, own_traceback
from gpuscope.errors import InvalidArgument

QUICK = ("--budget", "50ms")


def test_a_line_of_python_is_measured_and_reported(gpuscope):
    done = gpuscope("bench", "-s", "x = list(range(100))", "sum(x)", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sum(x): wall ")
    assert " not measured: " in done.stdout


def test_a_target_is_judged_against_an_earlier_result(gpuscope):
    assert gpuscope("bench", "1 + 1", "--target", "1s", "--json", "before.json", *QUICK).returncode == 0
    done = gpuscope("bench", "sum(range(50))", "--baseline", "before.json", "--target", "+30%", *QUICK)
    assert done.returncode == 1
    assert "target +30%: not met (" in done.stdout


def test_a_comparison_has_no_target(gpuscope):
    done = gpuscope("bench", "1", "--compare", "2", "--target", "1s", *QUICK)
    assert (done.returncode, done.stderr) == (
        2,
        "gpuscope: --target cannot go with --compare; measure one expression at a time for it\n",
    )


def test_processes_run_the_setup_themselves(gpuscope):
    done = gpuscope("bench", "-s", "import os; print(os.getpid())", "1 + 1", "--processes", "2", *QUICK)
    assert (done.returncode, len(set(done.stderr.split()))) == (0, 2)
    assert "2 processes differ by" in done.stdout


def test_an_error_in_a_process_is_shown_with_its_own_traceback_alone(gpuscope):
    done = gpuscope("bench", "1 / 0", "--processes", "1", *QUICK)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith('Traceback (most recent call last):\n  File "<gpuscope expression>", line 1')
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize(
    ("arguments", "how"),
    [
        (("import sys; sys.exit(0)",), "SystemExit: 0"),
        (("n += 1\nif n == 500: exit()", "-s", "n = 0"), "SystemExit: None"),
        (("1", "-s", "quit()"), "SystemExit: None"),
        (("1", "--compare", "exit()"), "SystemExit: None"),
        (("1", "--flops", "exit()"), "SystemExit: None"),
        (("raise GeneratorExit",), "GeneratorExit"),
        (("exit()", "--processes", "2"), "SystemExit: None"),
    ],
)
def test_code_that_leaves_the_program_measures_nothing_and_gets_one_sentence(gpuscope, tmp_path, arguments, how):
    done = gpuscope("bench", *arguments, "--json", "x.json", *QUICK)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"gpuscope: the code to measure leaves the program ({how}); accepted is code that returns, or raises an "
        "Exception\n"
    )
    assert not (tmp_path / "x.json").exists()


def test_a_process_that_leaves_at_once_with_status_0_has_failed(gpuscope):
    done = gpuscope("bench", "import os; os._exit(0)", "--processes", "2", *QUICK)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "gpuscope: a process ended with status 0 while it measured\n"


@pytest.mark.parametrize("source", ["(" * 300 + "1" + ")" * 300, "+".join("1" * 20000), "9" * 5000])
def test_python_that_is_too_much_for_the_compiler_is_refused(source):
    with pytest.raises(InvalidArgument, match="expression is not valid Python"):
        Namespace("").function(source, "expression")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1", "--processes", "2000"), "--processes is 2000; accepted are integers from 1 to 1000"),
        (("1", "--processes", "2", "--compare", "2"), "--processes cannot go with --compare"),
        (("1", "--processes", "2", "--stream", "7"), "--stream is 7; accepted with processes= is None"),
        (("a +", "--processes", "2"), "expression is not valid Python"),
    ],
)
def test_processes_that_cannot_be_had_get_one_sentence(gpuscope, arguments, message):
    done = gpuscope("bench", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpuscope: {message}")


def test_a_name_can_be_given(gpuscope):
    assert gpuscope("bench", "1 + 1", "--name", "adding", *QUICK).stdout.startswith("adding: wall ")


def test_the_value_of_the_last_expression_is_what_the_function_returns():
    assert Namespace("x = 2").function("y = x + 1\ny * 10", "expression")() == 30


def test_any_name_may_be_the_setups_own():
    names = Namespace("measured = 5")
    assert [names.function("measured + 1", "expression")() for _ in range(2)] == [6, 6]


def test_what_setup_made_may_be_assigned_and_goes_on_from_call_to_call():
    names = Namespace("x = 0")
    count = names.function("x += 1\nx", "expression")
    assert [count() for _ in range(2)] == [1, 2]
    names.function("x += 1", "expression").gpuscope_repeat(3)
    assert names.value("x", "x") == 5


def test_what_setup_made_goes_on_too_where_an_inner_function_uses_it():
    names = Namespace("x = 0")
    count = names.function("x += 1\n(lambda: x)()", "expression")
    assert [count() for _ in range(2)] == [1, 2]


def test_an_expression_may_be_indented_and_span_lines():
    assert Namespace("").function("\n    sum(\n        [1, 2]\n    )\n", "expression")() == 3


def test_a_text_can_run_in_a_loop_of_its_own():
    names = Namespace("seen = []")
    function = names.function("x = len(seen)\nseen.append(x)", "expression")
    assert function.gpuscope_repeat(3) is None
    assert names.value("seen", "seen") == [0, 1, 2]


def test_a_text_that_returns_runs_by_calls_alone():
    assert not hasattr(Namespace("").function("if True:\n    return 1\n2", "expression"), "gpuscope_repeat")


def test_setups_are_one_program_and_run_once(gpuscope, script):
    script("calls = []", "counted.py")
    done = gpuscope(
        "bench", "-s", "import counted", "-s", "counted.calls.append(1)\nn = len(counted.calls)", "print(n)", *QUICK
    )
    assert done.returncode == 0
    assert set(done.stdout.splitlines()) >= {"1"}
    assert "2" not in done.stdout.splitlines()


def test_modules_of_the_current_folder_can_be_imported(gpuscope, script):
    script("def work():\n    return 1", "nearby.py")
    assert gpuscope("bench", "-s", "import nearby", "nearby.work()", *QUICK).returncode == 0


def test_names_of_gpuscope_are_not_the_expressions(gpuscope):
    done = gpuscope("bench", "options", *QUICK)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("NameError: name 'options' is not defined\n")


def test_an_expression_of_any_letters_is_measured_in_the_c_locale(gpuscope, monkeypatch):
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    done = gpuscope("bench", "'\u524d'.encode()", *QUICK)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "label"), [(("a +",), "expression"), (("1", "-s", "for"), "--setup")])
def test_what_is_not_python_is_shown_with_a_caret(gpuscope, arguments, label):
    done = gpuscope("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gpuscope: {label} is not valid Python:\n")
    assert re.search(r"\n +\^\nSyntaxError: invalid syntax\n$", done.stderr)


def test_an_exception_is_shown_with_its_own_traceback_alone(gpuscope):
    done = gpuscope("bench", "-s", "def divide():\n    return 1 / 0", "divide()", *QUICK)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith('Traceback (most recent call last):\n  File "<gpuscope expression>", line 1')
    assert done.stderr.count("File ") == 2
    assert "    return 1 / 0\n" in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_an_exception_of_the_setup_is_shown_too(gpuscope):
    done = gpuscope("bench", "-s", "import absent_module", "1")
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'absent_module'\n")


def test_an_error_of_gpuscope_is_not_taken_for_one_of_the_expression():
    with pytest.raises(InvalidArgument) as caught:
        Namespace("").function("", "expression")
    assert own_traceback(caught.value) is None


@pytest.mark.parametrize("source", ["(yield)", ""])
def test_what_would_measure_nothing_is_refused(source):
    with pytest.raises(InvalidArgument, match=r"^expression (contains yield or await|is empty)"):
        Namespace("").function(source, "expression")


def test_json_alone_is_all_of_standard_output(gpuscope):
    done = gpuscope("bench", "print('noise')", "--json", *QUICK)
    assert json.loads(done.stdout)["name"] == "print('noise')"
    assert "noise" in done.stderr


@pytest.mark.parametrize(
    "noise",
    [
        "__import__('os').system('echo noise')",
        "__import__('os').write(1, b'noise')",
        "__import__('ctypes').CDLL(None).puts(b'noise')",
        "__import__('sys').__stdout__.write('noise')",
    ],
)
def test_what_goes_around_pythons_output_is_not_among_the_json(gpuscope, noise):
    done = gpuscope("bench", "-s", noise, "1", "--json", *QUICK)
    assert json.loads(done.stdout)["name"] == "1"
    assert "noise" in done.stderr


def test_what_the_code_prints_is_not_in_a_file_that_is_standard_output(gpuscope):
    done = gpuscope("bench", "-s", "print('noise')", "1", "--json", "/dev/stdout", *QUICK)
    assert json.loads(done.stdout)["name"] == "1"


def test_an_error_leaves_standard_output_as_it_was(gpuscope):
    """What the exit handlers print is for standard output."""
    handler = "import atexit, os; atexit.register(os.system, 'echo end')"
    done = gpuscope("bench", "-s", handler, "1 / 0", "--json", *QUICK)
    assert (done.returncode, done.stdout) == (1, "end\n")


def test_json_goes_to_a_file_beside_the_report(gpuscope, tmp_path):
    done = gpuscope("bench", "1", "--json", "x.json", *QUICK)
    assert done.stdout.endswith("wrote x.json\n")
    assert json.loads((tmp_path / "x.json").read_text())["quantity"] == "wall"


def test_work_is_given_in_terms_of_the_setups_names(gpuscope):
    setup = "import numpy as np; x = np.zeros(1000)"
    done = gpuscope("bench", "-s", setup, "x.copy()", "--json", "--bytes", "np.int64(2 * x.nbytes)", *QUICK)
    assert json.loads(done.stdout)["bytes"] == 16000


def test_two_expressions_are_judged(gpuscope):
    done = gpuscope("bench", "-s", "x = list(range(20000))", "sum(x)", "--compare", "len(x)", "--budget", "1s")
    assert (done.returncode, done.stderr) == (0, "")
    verdict, first, second, *_ = done.stdout.splitlines()
    assert verdict.startswith("len(x) is ")
    assert "x faster than sum(x) " in verdict
    assert first.startswith("  sum(x)  wall ")
    assert second.startswith("  len(x)  wall ")


def test_a_comparison_is_json_too(gpuscope):
    done = gpuscope("bench", "1", "--compare", "2", "--json", "--budget", "100ms")
    assert json.loads(done.stdout)["names"] == ["1", "2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is nothing to measure: give an expression"),
        (("--json", "1"), "there is nothing to measure: give an expression; put --json after the expression"),
        (("1", "--target", "0"), "target is '0'; accepted are '20 ms' (at most)"),
        (("1", "--budget", "2x"), "'2x' is not a time above 0 with its unit, as 5ms, 2s or 1min"),
        (("1", "--compare", "2", "--graph"), "--graph cannot go with --compare"),
        (("1", "--bytes", "-4"), "--bytes is -4; accepted are numbers above 0"),
        (("explore", "--sizes", "9:1"), "'9:1' ends before it begins"),
        (("explore", "--operations", "gemm"), "--operations contains 'gemm'; accepted are matmul"),
        (("explore", "-o", "page.pdf"), "page.pdf"),
        (("explore", "-o", "absent/page.html"), "the folder"),
    ],
)
def test_arguments_that_cannot_be_used_are_named(gpuscope, arguments, message):
    done = gpuscope("bench", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def interrupted(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs until the process says that it works, then presses Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "bench", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    marker = Path(options["cwd"]) / "running"
    while not marker.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_an_interruption_prints_what_there_is(tmp_path):
    work = "calls += 1\nif calls == 3000: open('running', 'w').close()\ntime.sleep(0.0005)"
    setup = "import time; calls = 0"
    done = interrupted(
        ["-s", setup, f"global calls\n{work}", "--budget", "1min", "--precision", "0.0001%"], cwd=tmp_path
    )
    assert done.returncode == 130
    assert "NOT converged: interrupted" in done.stdout
    assert done.stderr == ""


def test_an_interruption_before_anything_was_measured_is_silent(tmp_path):
    done = interrupted(["-s", "import time; open('running', 'w').close(); time.sleep(60)", "1"], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def on_terminal(*arguments: object) -> str:
    """What a terminal of 80 columns is sent."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "gpuscope", "bench", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    text = b""
    while True:
        try:
            text += os.read(ours, 1 << 16)
        except OSError:  # all read, and nobody left to write
            break
    os.close(ours)
    assert process.wait() == 0
    return text.decode()


def test_a_terminal_shows_what_is_measured_and_keeps_no_trace_of_it():
    text = on_terminal("1 + 1", *QUICK)
    shown, _, left = text.rpartition("\r\x1b[K")
    assert "\r\x1b[Kmeasuring 1 + 1" in shown
    assert left.startswith("1 + 1: wall ")


def test_a_terminal_shows_how_far_the_explorer_is():
    text = on_terminal("explore", "--backend", "numpy", "--operations", "copy", "--sizes", 8, "--budget", "100ms")
    assert "\r\x1b[Kcopy, n = 8, on the CPU; about 0 s left" in text


def test_the_explorer_prints_a_table_and_writes_both_files(gpuscope, tmp_path):
    arguments = ("--backend", "numpy", "--operations", "copy,sort", "--sizes", "8:32", "--budget", "100ms")
    done = gpuscope("bench", "explore", *arguments, "-o", "page.html", "--json", "found.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "GPU  none: NumPy computes on the CPU only\n" in done.stdout
    assert "Sort of every row (sort), n x n float32\n" in done.stdout
    assert done.stdout.endswith("wrote page.html\nwrote found.json\n")
    assert {point["n"] for point in json.loads((tmp_path / "found.json").read_text())["points"]} == {8, 16, 32}
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_explorers_json_alone_is_all_of_standard_output(gpuscope):
    arguments = ("--backend", "numpy", "--operations", "copy", "--sizes", "8", "--budget", "50ms", "--json")
    assert json.loads(gpuscope("bench", "explore", *arguments).stdout)["points"][0]["operation"] == "copy"


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), ("0.01", 0.01), (" 2.5 % ", 0.025)])
def test_shares_are_read(text, value):
    assert options.share(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("2s", 2), ("500ms", 0.5), ("1.5min", 90), ("100 us", 1e-4)])
def test_times_are_read(text, value):
    assert options.seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((options.share, text) for text in ("", "1", "100%", "-1%", "1%%", "nan", "x")),
        *((options.seconds, text) for text in ("", "s", "-1s", "0", "inf", "nan", "2 h")),
        *((options.sizes, text) for text in ("", "0", "a:b", "1,", "1.5", "4:2", "1:2:3")),
    ],
)
def test_what_is_no_share_time_or_size_is_refused(read, text):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("read", [options.positive, options.ordinal, options.sizes])
def test_numbers_of_thousands_of_digits_are_refused_and_cut_short(read):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read("9" * 5000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("64:512", [64, 128, 256, 512]), ("3:10", [3, 6, 10]), ("5:5", [5]), ("7, 100,9", [7, 100, 9]), ("8", [8])],
)
def test_sizes_are_read(text, sizes):
    assert options.sizes(text) == sizes
