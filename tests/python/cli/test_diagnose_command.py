# SPDX-License-Identifier: Apache-2.0
"""``gpuscope diagnose``: of a script as under ``gpuscope run``, of a recording as it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

import gpuscope as gs
from fakes.disturbances import least_disturbed
from fakes.loops import Loop
from gpuscope._core import RegionKind
from gpuscope.recording import Recording

PROGRAM = """\
import sys, time, gpuscope
for _ in range(8):
    with gpuscope.record_function("load"):
        time.sleep(0.03)
    with gpuscope.record_function("train"):
        time.sleep(0.002)
    gpuscope.step()
print("trained", sys.argv[1:])
"""


@pytest.fixture
def recording(tmp_path):
    """A program whose GPU waits for data half of the time."""
    loop = Loop()
    for _ in loop.steps(12):
        with loop.at("train.py", 48), loop.region("load", RegionKind.REGION):
            loop.work(1000)
        with loop.at("train.py", 20):
            for _ in range(10):
                loop.launch()
        loop.wait()
    path = tmp_path / "run.gscope"
    Recording(loop.trace().store).save(path)
    return path


@least_disturbed
def test_a_script_runs_as_it_is_and_its_page_goes_to_standard_error(gpuscope, script):
    ran = gpuscope("diagnose", script(PROGRAM), "--epochs", "1")
    assert (ran.returncode, ran.stdout) == (0, "trained ['--epochs', '1']\n")
    assert "R01" in ran.stderr
    assert "input-bound: the program waits for data" in ran.stderr
    assert "step()" in ran.stderr
    assert "script.py:3" in ran.stderr
    assert "no GPU work; time: " in ran.stderr


@least_disturbed
def test_a_module_and_code_are_diagnosed_too(gpuscope, script):
    script(PROGRAM, "training.py")
    assert "R01" in gpuscope("diagnose", "-m", "training").stderr
    assert "R01" in gpuscope("diagnose", "-c", PROGRAM).stderr


def test_a_recording_is_read_and_its_page_printed(gpuscope, recording):
    ran = gpuscope("diagnose", recording)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "train.py: fixing this would cut a step from " in ran.stdout
    assert "8 steps (4 excluded: warm-up and the last)" in ran.stdout
    assert "1 CRITICAL R01 saves 4" in ran.stdout
    assert "at train.py:48 (step)" in ran.stdout


@least_disturbed
def test_the_recording_of_a_script_is_kept_where_it_is_asked_for(gpuscope, script, tmp_path):
    ran = gpuscope("diagnose", "-o", "kept.gscope", script(PROGRAM))
    assert "wrote kept.gscope" in ran.stderr
    # On a busy machine a wait for a CPU may cost more.
    assert "R01" in {finding.id for finding in gs.load(tmp_path / "kept.gscope").diagnose().findings}
    assert not (tmp_path / "script.gscope").exists()


def test_json_goes_to_a_file_or_to_standard_output(gpuscope, recording, tmp_path):
    assert gpuscope("diagnose", recording, "--json", "found.json").returncode == 0
    in_file = json.loads((tmp_path / "found.json").read_text())
    ran = gpuscope("diagnose", "--json", "-", recording)
    assert json.loads(ran.stdout) == in_file
    assert in_file["findings"][0]["id"] == "R01"
    assert "R01" in ran.stderr


@pytest.mark.parametrize(("wanted", "code"), [("R01", 1), ("critical", 1), ("R09,R50", 0), ("R09,r01", 1), ("R49", 0)])
def test_findings_that_are_asked_for_fail_the_command(gpuscope, recording, wanted, code):
    assert gpuscope("diagnose", "--fail-on", wanted, recording).returncode == code
    assert gpuscope("diagnose", recording, "--fail-on", wanted).returncode == code


@least_disturbed
def test_a_script_that_fails_keeps_its_exit_code_and_what_it_did_is_diagnosed(gpuscope, script):
    ran = gpuscope("diagnose", "--fail-on", "R01", script(PROGRAM + "sys.exit(7)\n"))
    assert ran.returncode == 7
    assert "R01" in ran.stderr
    ran = gpuscope("diagnose", script(PROGRAM + "raise ValueError('no')\n"))
    assert ran.returncode == 1
    assert "ValueError: no" in ran.stderr
    assert "R01" in ran.stderr


@least_disturbed
def test_a_script_with_a_finding_that_is_asked_for_fails(gpuscope, script):
    assert gpuscope("diagnose", "--fail-on", "R01", script(PROGRAM)).returncode == 1


@least_disturbed
def test_ctrl_c_ends_the_script_and_what_it_did_is_diagnosed(script, tmp_path):
    path = script(PROGRAM.replace('print("trained", sys.argv[1:])', 'print("ready", flush=True)\ntime.sleep(60)'))
    command = [sys.executable, "-m", "gpuscope", "diagnose", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.count("KeyboardInterrupt") == 1
    assert "R01" in errors


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("missing.py",), "there is no script 'missing.py'"),
        (("missing.gscope",), "there is no such file"),
        (("--fail-on", "R9x", "{recording}"), "--fail-on contains 'R9x'; did you mean R"),
        (("--fail-on", "critcal", "{recording}"), "did you mean critical?"),
        (("{recording}", "more"), "a recording takes no arguments, and 'more' follows"),
        (("--profile-memory", "{recording}"), "--profile-memory is for what is recorded"),
        (("--counters", "why", "{recording}"), "--counters is for what is recorded"),
        (("-o", "x.gscope", "{recording}"), "-o is for what is recorded"),
        (("--salvage", "-c", "pass"), "--salvage is for recordings; a script is run"),
        (("--schedule", "x", "-c", "pass"), "--schedule contains 'x'"),
        (("--json", "no/such/folder.json", "{recording}"), "no/such"),
    ],
)
def test_wrong_arguments_get_one_sentence(gpuscope, recording, arguments, sentence):
    ran = gpuscope("diagnose", *(each.format(recording=recording) for each in arguments))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert sentence in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_what_is_no_recording_is_told(gpuscope, tmp_path):
    (tmp_path / "other.gscope").write_text("no recording")
    ran = gpuscope("diagnose", "other.gscope")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "other.gscope" in ran.stderr


def test_part_of_a_damaged_recording_is_diagnosed_on_demand(gpuscope, recording):
    recording.write_bytes(recording.read_bytes()[:-200])
    ran = gpuscope("diagnose", "--salvage", recording)
    assert ran.returncode == 3
    assert "doubt: " in ran.stdout


def test_steps_of_a_schedule_are_diagnosed(gpuscope, script):
    ran = gpuscope("diagnose", "--schedule", "wait=1,active=6", script(PROGRAM))
    assert ": ProfilerStep#N" in ran.stderr


def test_a_script_that_does_nothing_has_not_enough_evidence(gpuscope):
    ran = gpuscope("diagnose", "-c", "pass")
    assert ran.returncode == 0
    assert "not enough evidence" in ran.stderr


def test_counters_that_cannot_be_had_are_told(gpuscope, script):
    ran = gpuscope("diagnose", "--counters", "why", script(PROGRAM), CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 0
    assert "hardware counters: the GPU is not available" in " ".join(ran.stderr.split())
    assert "R01" in ran.stderr
