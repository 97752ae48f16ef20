# SPDX-License-Identifier: Apache-2.0
"""Where commands write: several files, pipes, and what is full or closed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.stores import training_store
from gpuscope.cli.export import Outputs
from gpuscope.exporters import save
from gpuscope.recording import Recording, load

COMMAND = f"{shlex.quote(sys.executable)} -m gpuscope"

needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@pytest.fixture
def recording(tmp_path):
    save(training_store(), tmp_path / "made.gscope")
    return tmp_path / "made.gscope"


def quoted(path):
    return shlex.quote(os.fspath(path))


def shell(command):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["bash", "-c", command]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)


# -- several files ----------------------------------------------------------------------------------------------------


@needs_full_device
@pytest.mark.parametrize("order", [("/dev/full", "b.pftrace"), ("b.pftrace", "/dev/full")])
def test_export_writes_the_others_when_one_fails(gpuscope, recording, tmp_path, order):
    done = gpuscope("export", recording, "-o", order[0], "-o", order[1])
    assert done.returncode == 1
    assert done.stderr == "gpuscope: cannot write /dev/full: No space left on device\n"
    assert done.stdout.startswith("b.pftrace  ")
    assert (tmp_path / "b.pftrace").stat().st_size


@needs_full_device
def test_export_tells_of_every_file_that_fails(gpuscope, recording, tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    done = gpuscope("export", recording, "-o", "/dev/full", "-o", "full")
    assert (done.returncode, done.stderr.count("No space left on device\n")) == (1, 2)


@needs_full_device
def test_run_writes_the_others_when_one_fails(gpuscope, script, tmp_path):
    done = gpuscope("run", "-o", "/dev/full", "-o", "b.gscope", script("print('ran')"))
    assert (done.returncode, done.stdout) == (1, "ran\n")
    assert "gpuscope: the recording could not be written: cannot write /dev/full: No space left" in done.stderr
    assert load(tmp_path / "b.gscope").trace is not None


@needs_full_device
def test_a_recording_that_cannot_be_written_is_kept_among_temporary_files(gpuscope, script, tmp_path):
    (tmp_path / "kept").mkdir()
    named = script("print('ran')")
    done = gpuscope("run", "-o", "/dev/full", "-o", "b.html", named, TMPDIR=str(tmp_path / "kept"))
    assert (done.returncode, done.stdout) == (1, "ran\n")
    (file,) = (tmp_path / "kept").glob("*/*")
    assert f"gpuscope: the recording is kept in {file}" in done.stderr.replace("\n", " ")
    assert load(file).trace is not None


@needs_full_device
def test_memory_writes_the_others_when_one_fails(gpuscope, script, tmp_path):
    done = gpuscope("memory", "-o", "/dev/full", "-o", "b.json", script("print('ran')"))
    assert (done.returncode, done.stdout) == (1, "ran\n")
    assert "/dev/full could not be written: " in done.stderr
    assert json.loads((tmp_path / "b.json").read_text())["program"] == "script"


@pytest.mark.parametrize(
    "command",
    [
        "diagnose -o a.json --json a.json script.py",
        "diagnose -o a.json --json link.json script.py",
        "diagnose -o - --json - script.py",
        "diff made.gscope made.gscope -o x.html --json x.html",
        "diff made.gscope made.gscope --open --markdown diff.html",
        "bench explore --sizes 8 --budget 1ms -o x.html --json ./x.html",
        "export made.gscope -o a.json -o link.json",
    ],
)
def test_two_outputs_in_one_file_are_refused(gpuscope, recording, script, tmp_path, command):
    script("print('ran')")
    (tmp_path / "link.json").symlink_to("a.json")
    before = sorted(tmp_path.iterdir())
    done = gpuscope(*command.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is named twice" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "command",
    [
        "diagnose {} --json {}",
        "diagnose --json script.py script.py",
        "diff {} other.gscope --json {}",
        "diff other.gscope {} --markdown ./{}",
        "diff other.gscope {} -o link.html",
        "export {} -o {}",
        "report {} -o link.html",
        "memory show {} --html link.html",
    ],
)
def test_an_input_is_not_replaced(gpuscope, recording, script, tmp_path, command):
    script("print('ran')")
    (tmp_path / "link.html").symlink_to("made.gscope")
    (tmp_path / "other.gscope").write_bytes(recording.read_bytes())
    before = recording.read_bytes()
    done = gpuscope(*command.format(recording.name, recording.name).split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is read too" in done.stderr
    assert recording.read_bytes() == before


@pytest.mark.parametrize("command", ["run -o a.gscope", "diagnose -o a.gscope", "memory -o a.json"])
def test_files_are_told_as_seen_from_where_the_command_was_started(gpuscope, script, tmp_path, command):
    done = gpuscope(*command.split(), script("import os; os.chdir('/')"))
    assert f"wrote {command.split()[-1]}  " in done.stderr
    done = gpuscope(*command.split(), script(f"import os; os.chdir({str(tmp_path.parent)!r})"))
    assert f"wrote {command.split()[-1]}  " in done.stderr


# -- suffixes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["T.JSON", "x.GSCOPE", "a.Json.GZ", "b.PfTrace"])
def test_suffix_in_capitals_is_known(gpuscope, recording, tmp_path, name):
    done = gpuscope("export", recording, "-o", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / name).stat().st_size


def test_compressed_whatever_the_case_of_the_suffix(recording, tmp_path):
    load(recording).export_chrome_trace(tmp_path / "a.Json.GZ")
    assert (tmp_path / "a.Json.GZ").read_bytes()[:2] == b"\x1f\x8b"


def test_recording_in_capitals_is_read(gpuscope, recording):
    recording.rename(recording.with_name("MADE.GSCOPE"))
    assert "forward" in gpuscope("report", "MADE.GSCOPE").stdout
    assert "did you mean 'gpuscope report MADE.GSCOPE'?" in gpuscope("MADE.GSCOPE").stderr


def test_later_windows_keep_the_suffix_as_it_was_given(tmp_path):
    outputs = Outputs([str(tmp_path / "T.Json.GZ")])
    for _ in range(2):
        assert outputs.write(Recording(training_store())) == []
    assert [path.name for path in outputs.written] == ["T.Json.GZ", "T-2.Json.GZ"]


# -- standard output and pipes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_standard_output_gets_the_trace_and_nothing_else(gpuscope, recording, name):
    done = gpuscope("export", recording, "-o", name)
    assert done.returncode == 0
    assert json.loads(done.stdout)["traceEvents"]
    assert done.stderr == "/dev/stdout\n"


def test_standard_output_is_appended_to(recording, tmp_path):
    done = shell(f"cd {quoted(tmp_path)}; echo before > log; {COMMAND} export {quoted(recording)} -o - >> log")
    assert done.returncode == 0
    assert (tmp_path / "log").read_text().startswith("before\n{")


def test_substituted_process_reads_the_trace(recording, tmp_path):
    done = shell(f"cd {quoted(tmp_path)}; {COMMAND} export {quoted(recording)} -o >(cat > copy.json); wait $!")
    assert done.returncode == 0
    assert json.loads((tmp_path / "copy.json").read_text())["traceEvents"]


def test_null_device_takes_the_recording(gpuscope, script, tmp_path):
    done = gpuscope("run", "-o", "/dev/null", script("print('ran')"))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_trace_follows_the_programs_own_output(gpuscope, script):
    done = gpuscope("run", "-o", "-", script("print('ran')"))
    assert done.stdout.startswith("ran\n{")


def test_benchmark_writes_json_to_standard_output_as_a_file(gpuscope):
    done = gpuscope("bench", "1 + 1", "--budget", "50ms", "--json", "/dev/stdout")
    assert json.loads(done.stdout)["name"] == "1 + 1"


# -- what is full or closed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", ["report --tree {}", "export {} -o -", "report --help", "--version", "doctor --json"]
)
def test_reader_that_leaves_early_is_no_error(recording, command):
    done = shell(f"{COMMAND} {command.format(quoted(recording))} | true")
    assert (done.returncode, done.stderr.removesuffix("/dev/stdout\n")) == (0, "")


@needs_full_device
@pytest.mark.parametrize("command", ["report {}", "report --help", "--version", "doctor --json", "export {} -o x.json"])
def test_full_standard_output_is_one_sentence(recording, tmp_path, command):
    done = shell(f"cd {quoted(tmp_path)}; {COMMAND} {command.format(quoted(recording))} > /dev/full")
    assert (done.returncode, done.stderr) == (1, "gpuscope: cannot write the output: No space left on device\n")


@pytest.mark.parametrize("command", ["report {}", "doctor --json", "export {} -o x.json"])
def test_closed_standard_output_is_no_error(recording, tmp_path, command):
    done = shell(f"cd {quoted(tmp_path)}; {COMMAND} {command.format(quoted(recording))} >&-")
    assert done.stderr == ""
    assert done.returncode == 0


def test_closed_standard_output_cannot_be_exported_to(recording):
    done = shell(f"{COMMAND} export {quoted(recording)} -o - >&-")
    assert done.returncode in (1, 2)
    assert done.stderr == "gpuscope: cannot write /dev/stdout: Bad file descriptor\n"


@needs_full_device
@pytest.mark.parametrize("end", ["2> /dev/full", "2>&-"])
def test_error_that_cannot_be_told_is_in_the_exit_code(end):
    assert shell(f"{COMMAND} report absent.gscope {end}").returncode == 2


@needs_full_device
@pytest.mark.parametrize("command", ["run", "memory"])
@pytest.mark.parametrize("end", ["2> /dev/full", "2>&-", "2> >(true)"])
def test_report_that_cannot_be_printed_leaves_the_programs_exit_code(script, tmp_path, command, end):
    path = script("raise SystemExit(7)")
    done = shell(f"cd {quoted(tmp_path)}; {COMMAND} {command} {quoted(path)} {end}")
    assert (done.returncode, done.stdout) == (7, "")


@needs_full_device
@pytest.mark.parametrize("end", ["> /dev/full", ">&-", "| true"])
def test_a_program_whose_output_is_full_or_closed_ends_as_it_does_under_python(script, tmp_path, end):
    path = script("print('x')")
    pythons = (quoted(sys.executable), f"{COMMAND} run")
    plain, run = (shell(f"cd {quoted(tmp_path)}; {words} {quoted(path)} {end}") for words in pythons)
    assert run.returncode == plain.returncode
    assert plain.stderr in run.stderr
    assert "wrote script.gscope" in run.stderr


@pytest.mark.parametrize("command", ["report", "export"])
def test_pipe_is_not_read_as_a_recording(gpuscope, tmp_path, command):
    os.mkfifo(tmp_path / "pipe.gscope")
    done = gpuscope(command, tmp_path / "pipe.gscope", *(["-o", "x.json"] if command == "export" else []))
    assert done.returncode == 2
    assert "which is a named pipe; accepted are regular files" in done.stderr
