# SPDX-License-Identifier: Apache-2.0
"""The commands beside ``run``, and what all commands share."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.gscope import NONE, gscope_bytes
from fakes.machines import WITH_GPU, WITHOUT_GPU, gpu
from fakes.recordings import aggregate, training
from gpuscope import _core, cli
from gpuscope.recording import Recording


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    tables = {
        "path": {"name": ["forward", "layer"], "parent": [NONE, 0]},
        "thread": {"system_id": [1]},
        "region": {"start_ns": [100, 110], "duration_ns": [900, 500], "path": [0, 1], "parent": [NONE, 0]},
    }
    info = {"process.argv": "train.py --epochs 1", "process.host": "box", "session.tier": "cpu", "session.notes": "hi"}
    path = tmp_path / "made.gscope"
    path.write_bytes(gscope_bytes(tables, info={**info, "session.start_ns": "1", "session.stop_ns": "2001"}))
    return path


@pytest.fixture
def operators(tmp_path: Path) -> Path:
    """Two operators of one name with different shapes and callers."""
    tables = {
        "path": {"name": ["aten::mm"], "parent": [NONE], "kind": [1]},
        "thread": {"system_id": [1]},
        "region": {"start_ns": [100, 2000], "duration_ns": [900, 500], "path": [0, 0], "parent": [NONE, NONE]},
        "stack": {"parent": [NONE, NONE], "function": ["train", "test"], "file": ["a.py", "a.py"], "line": [1, 2]},
        "detail": {"region": [0, 1], "shapes": [2, 3], "forward": [NONE, NONE], "stack": [0, 1]},
    }
    path = tmp_path / "operators.gscope"
    path.write_bytes(gscope_bytes(tables, strings=["", "aten::mm", "[[2, 3], [3, 4]]", "[[9, 3], [3, 4]]"]))
    return path


def test_a_report_says_what_was_recorded_of_operators(gpuscope, operators, recording):
    assert "with     shapes, stacks\n" in gpuscope("report", operators).stdout
    assert "with  " not in gpuscope("report", recording).stdout


@pytest.mark.parametrize("option", [("--group-by-input-shape",), ("--group-by-stack-n", "2")], ids=" ".join)
def test_a_report_groups_by_what_was_recorded(gpuscope, operators, recording, option):
    done = gpuscope("report", operators, *option)
    assert (done.returncode, done.stderr) == (0, "")
    assert "to group by" not in done.stdout
    assert "recorded to group by: gpuscope run --" in gpuscope("report", recording, *option).stdout


@pytest.mark.parametrize("command", [command.name for command in cli.COMMANDS])
def test_every_command_explains_itself_with_examples(gpuscope, command):
    done = gpuscope(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"examples:\n  gpuscope {command}" in done.stdout


@pytest.mark.parametrize("command", ["", *(command.name for command in cli.COMMANDS)])
def test_help_fits_eighty_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    help_ = capsys.readouterr().out
    assert [line for line in help_.splitlines() if len(line) > 80] == []
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    assert "".join(help_.split()) == "".join(capsys.readouterr().out.split()), "nothing is left out"


def test_without_a_command_help_is_shown(gpuscope):
    done = gpuscope()
    assert (done.returncode, done.stderr) == (0, "")
    assert all(command.name in done.stdout for command in cli.COMMANDS)


def test_the_help_lists_each_command_with_its_line(gpuscope):
    words = " ".join(gpuscope(COLUMNS="200").stdout.split())
    assert [command.name for command in cli.COMMANDS if f"{command.name} {command.summary}" not in words] == []


MODULES = """
import sys
from gpuscope import cli
try:
    cli.main({arguments!r})
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def modules_of(*arguments):
    command = [sys.executable, "-c", MODULES.format(arguments=[*arguments])]
    return {*subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()}


def test_the_module_of_the_chosen_command_alone_is_imported():
    homes = {f"gpuscope.cli.{command.home.partition('.')[0]}" for command in cli.COMMANDS}
    assert homes & modules_of("--help") == set()
    assert homes & modules_of("doctor", "--help") == {"gpuscope.cli.doctor"}


@pytest.mark.parametrize("arguments", [(), ("--version",), ("monitor", "--help"), ("monitor", "--once")], ids=" ".join)
def test_what_takes_long_to_import_is_not(arguments):
    assert {"numpy", "textual", "rich", "torch", "prometheus_client"} & modules_of(*arguments) <= {"rich"}


def test_a_wrong_column_is_told_before_anything_is_printed(gpuscope, recording):
    done = gpuscope("report", recording, "--sort-by", "beauty")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpuscope: --sort-by is 'beauty'; accepted are ")


def test_the_version_is_the_cores(gpuscope):
    assert gpuscope("--version").stdout == f"gpuscope {_core.__version__}\n"


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("reprt", "'report'"),
        ("xyz", ", ".join(command.name for command in cli.COMMANDS)),
        ("train.py", "'gpuscope run train.py'"),
    ],
)
def test_an_unknown_command_gets_a_suggestion(gpuscope, script, given, advice):
    script("", "train.py")
    done = gpuscope(given)
    assert (done.returncode, done.stdout) == (2, "")
    assert advice in done.stderr


def test_a_report_says_what_ran_when_and_where(gpuscope, recording):
    done = gpuscope("report", recording)
    assert done.returncode == 0
    for text in ("train.py --epochs 1", "box", "for 2 us", "forward", "audit: ", ", 1 note: --audit"):
        assert text in done.stdout


def test_the_audit_is_one_line_and_its_details_come_on_demand(gpuscope, recording):
    assert [
        line for line in gpuscope("report", recording).stdout.splitlines() if "note" in line or "missing" in line
    ] == ["audit: complete on the CPU - GPU work was not traced; overhead 0.0 % (estimated), 1 note: --audit"]
    details = gpuscope("report", "--audit", recording).stdout
    assert "note: hi" in details
    assert "missing" in details


def test_a_report_is_plain_when_it_is_piped(gpuscope, recording):
    done = gpuscope("report", "--tree", recording, FORCE_COLOR="1")
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_a_report_shows_only_what_was_asked_for(gpuscope, recording):
    done = gpuscope("report", "--no-table", "--tree", "--max-depth", 1, recording)
    assert "forward" in done.stdout
    assert "layer" not in done.stdout
    assert "Self CPU" not in done.stdout
    assert done.stdout.count("audit: ") == 1


def on_terminal(*arguments: object, **variables: str) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", **variables}
    if "NO_COLOR" not in variables:
        del environment["NO_COLOR"]  # which the tests have
    command = [sys.executable, "-m", "gpuscope", *map(str, arguments)]
    subprocess.run(command, stdout=theirs, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    text = b""
    while True:
        try:
            text += os.read(ours, 1 << 16)
        except OSError:  # all read, and nobody left to write
            os.close(ours)
            return text.decode()


COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_a_terminal_gets_colour_and_tables_that_fit(tmp_path, columns):
    path = tmp_path / "training.gscope"
    Recording(training().store).save(path)
    text = on_terminal("report", "--tree", path, COLUMNS=str(columns))
    assert "\x1b[1;31m" in text  # what takes most is hot
    tables = COLOURS.sub("", text).partition("Name")[2].partition("audit: ")[0]
    assert max(map(len, tables.splitlines())) <= columns
    assert tables.count("share") == 2


def test_every_column_is_there_for_the_asking(gpuscope, recording):
    assert "Self CPU %" not in gpuscope("report", recording).stdout
    assert "Self CPU %" in gpuscope("report", "--wide", recording).stdout


def test_without_rich_the_same_is_plain(recording, tmp_path):
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ImportError('no rich')")
    hidden = on_terminal(
        "report", recording, PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    assert "\x1b" not in hidden
    assert hidden == on_terminal("report", recording, NO_COLOR="1")


def test_no_color_is_respected(recording):
    assert "\x1b" not in on_terminal("report", recording, NO_COLOR="1")


def test_a_reader_that_leaves_early_is_no_error(recording):
    command = f"{shlex.quote(sys.executable)} -m gpuscope report --tree {shlex.quote(str(recording))} | true"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert done.stderr == ""


def test_export_writes_and_names_every_file(gpuscope, recording, tmp_path):
    done = gpuscope("export", recording, "-o", "a.json", "-o", "b.pftrace", "-o", "c.json.gz")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["a.json", "b.pftrace", "c.json.gz"]
    assert "forward" in (tmp_path / "a.json").read_text()


@pytest.mark.parametrize("command", [("report",), ("export", "-o", "x.json")])
@pytest.mark.parametrize(
    ("name", "content", "code"),
    [("absent.gscope", None, 2), ("other.txt", b"text", 2), ("damaged.gscope", b"no such format", 1)],
)
def test_a_recording_that_cannot_be_read_is_one_sentence(gpuscope, tmp_path, command, name, content, code):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = gpuscope(command[0], name, *command[1:])
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("gpuscope: ")
    assert done.stderr.count("\n") == 1
    assert name in done.stderr


@pytest.fixture
def damaged(recording: Path) -> Path:
    """The recording with a bit of its regions flipped."""
    data = bytearray(recording.read_bytes())
    data[data.rindex(b"\x06region", 0, data.rindex(b"GBLK")) + 20] ^= 1
    recording.write_bytes(data)
    return recording


@pytest.mark.parametrize("command", [("report",), ("export", "-o", "x.pftrace")])
def test_a_damaged_recording_is_refused_with_the_way_to_salvage_it(gpuscope, damaged, command):
    done = gpuscope(command[0], damaged, *command[1:])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the option --salvage open what is whole" in done.stderr


def test_a_salvaged_report_says_what_is_lost_and_has_a_status_of_its_own(gpuscope, damaged):
    done = gpuscope("report", damaged, "--salvage")
    assert (done.returncode, done.stderr) == (3, "")
    assert "INCOMPLETE - 1 block of the file was damaged; lost with it are 2 of 2 rows of region" in done.stdout


def test_a_salvaged_export_says_what_is_lost_and_has_a_status_of_its_own(gpuscope, damaged, tmp_path):
    done = gpuscope("export", damaged, "--salvage", "-o", "x.json", "-o", "again.gscope")
    assert done.returncode == 3
    assert "2 of 2 rows of region" in done.stderr
    assert (tmp_path / "x.json").stat().st_size
    assert gpuscope("report", "again.gscope").returncode == 3


def test_a_whole_recording_is_salvaged_with_status_0(gpuscope, recording):
    assert gpuscope("report", recording, "--salvage").returncode == 0


def test_a_report_of_a_recording_that_was_cut_off_has_the_status_of_a_part(gpuscope, recording):
    recording.write_bytes(recording.read_bytes()[:-8])
    assert gpuscope("report", recording).returncode == 3


def test_facts_of_any_text_are_harmless_to_a_report(gpuscope, tmp_path):
    path = tmp_path / "odd.gscope"
    path.write_bytes(gscope_bytes({}, info={"session.start_ns": "soon", "session.stop_ns": "9" * 5000}))
    done = gpuscope("report", path)
    assert (done.returncode, done.stderr) == (0, "")


def test_export_needs_an_output(gpuscope, recording):
    done = gpuscope("export", recording)
    assert done.returncode == 2
    assert "-o" in done.stderr


def test_the_demo_shows_table_tree_and_verdict_and_writes_both_files(gpuscope, tmp_path):
    done = gpuscope("demo", "--steps", 2)
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("data_loading", "├─ forward", "optimizer", "audit: ", "https://ui.perfetto.dev"):
        assert text in done.stdout
    assert all((tmp_path / "gpuscope-demo" / name).stat().st_size for name in ("demo.gscope", "demo.pftrace"))


def test_the_demo_refuses_a_folder_that_is_not_there(gpuscope):
    done = gpuscope("demo", "-o", "absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert "absent" in done.stderr


def doctor(monkeypatch, core, *arguments: str) -> int:
    monkeypatch.setattr(_core, "environment", lambda: core, raising=False)
    return cli.main(["doctor", *arguments])


def test_the_doctor_is_content_where_cupti_is_live(monkeypatch, capsys):
    assert doctor(monkeypatch, WITH_GPU) == 0
    assert "→ CUPTI tracing" in capsys.readouterr().out


def test_the_doctor_is_content_without_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(sys.modules["gpuscope.system"], "_gpu_on_machine", lambda root: False)
    assert doctor(monkeypatch, WITHOUT_GPU) == 0


def test_the_doctor_complains_when_a_gpu_cannot_be_traced(monkeypatch, capsys):
    core = {**WITH_GPU, "cupti_path": None, "cupti_error": "libcupti was not found"}
    assert doctor(monkeypatch, core) == 1
    text = capsys.readouterr().out
    assert "→ CUDA events" in text
    assert "fix: pip install 'nvidia-cuda-cupti>=13,<14'" in text


def test_the_doctor_names_what_holds_a_gpu_back_and_who_else_uses_it(monkeypatch, capsys):
    states = {"driver_version": "580.1", "gpus": [gpu(power_limit_w=400.0, processes=[(2**22 + 1, None)])], "why": ""}
    monkeypatch.setattr(_core, "gpu_states", lambda: states)
    doctor(monkeypatch, WITH_GPU)
    printed = " ".join(capsys.readouterr().out.split())
    assert "GPU 0 (NVML) its power limit is 400 W, its default 700 W" in printed
    assert "1 process uses it: 4194305 (not to be seen from here)" in printed


def test_the_doctors_findings_are_json_for_programs(monkeypatch, capsys):
    doctor(monkeypatch, WITH_GPU, "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["tier"], found["devices"][0]["capability"]) == ("cupti", "9.0")
    assert {"name", "ok", "found", "why", "fix"} == set(found["checks"][0])


@pytest.mark.parametrize("command", [(name,) for name in ("run", "memory", "report", "export", "bench", "demo")])
def test_an_unknown_option_is_answered_with_the_help_of_its_command(gpuscope, command):
    done = gpuscope(*command, "--wrong")
    assert done.returncode == 2
    assert done.stderr.strip().endswith(f"see gpuscope {' '.join(command)} --help")


def test_report_says_what_each_gpu_did_in_a_step(gpuscope, tmp_path):
    path = tmp_path / "training.gscope"
    Recording(training().store).save(path)
    done = gpuscope("report", "--no-table", "--steps", path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    steps = lines[lines.index(next(line for line in lines if line.startswith("GPU 0"))) :]
    assert any(line.startswith("  idle") for line in steps)
    assert max(map(len, steps[:6])) <= 80


def test_report_of_totals_alone_says_why_there_are_no_steps(gpuscope, tmp_path):
    path = tmp_path / "totals.gscope"
    Recording(aggregate().store).save(path)
    done = gpuscope("report", "--steps", path)
    assert done.returncode == 0
    assert 'aggregate mode keeps totals alone; record with mode="full" or "ring"' in done.stdout
