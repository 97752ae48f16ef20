# SPDX-License-Identifier: Apache-2.0
"""``gpuscope verify``: what it runs, asks and refuses; exit codes.

An interpreter stands in that "records" a program by copying a recording of the length that the script names.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from fakes.versions import program
from gpuscope.cli.recorder import add_recorded, recorded_words
from gpuscope.cli.rerun import FACT, Command
from gpuscope.recording import load

INTERPRETER = """\
#!/bin/sh
while [ "$1" != -o ]; do shift; done
[ "$(cat "$3")" = broken ] && { echo "it fails here" >&2; exit 4; }
count=$(cat "{folder}/count" 2>/dev/null || echo 0)
echo $((count + 1)) > "{folder}/count"
pwd >> "{folder}/places"
exec cp "{folder}/$(cat "$3")-$((count % 3)).gscope" "$2/rank-00000.gscope"
"""
LEVELS = {"same": 1.0, "slow": 1.3, "fast": 0.6}


@pytest.fixture(scope="module")
def premade(tmp_path_factory):
    """Recordings of three versions, and the interpreter that copies them."""
    folder = tmp_path_factory.mktemp("premade")
    for number, (name, level) in enumerate(LEVELS.items()):
        for seed in range(3):
            program({"load": 60 * level, "sum": 40 * level}, seed=10 * number + seed).save(
                folder / f"{name}-{seed}.gscope"
            )
    (folder / "python").write_text(INTERPRETER.replace("{folder}", str(folder)))
    (folder / "python").chmod(0o755)
    return folder


@pytest.fixture
def before(premade, tmp_path):
    """A recording of "same"; the script next to it decides what its command records now."""
    (tmp_path / "train.py").write_text("same\n")
    for name in ("count", "places"):
        (premade / name).unlink(missing_ok=True)

    def write(name="before.gscope", **changed):
        command = Command(str(premade / "python"), str(tmp_path), (), ("train.py",)).of_today()
        values = {**json.loads(command.fact()), **changed}
        made = program({"load": 60, "sum": 40}, seed=99, info={FACT: json.dumps(values)})
        made.save(tmp_path / name)
        return tmp_path / name

    write()
    return write


def git(folder, *words):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", folder, *settings, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(before, tmp_path):
    """A repository with the commits "same" and "slow" at the branch's end."""
    git(tmp_path, "init", "-q")
    for version in ("same", "slow"):
        (tmp_path / "train.py").write_text(version + "\n")
        git(tmp_path, "add", "train.py")
        git(tmp_path, "commit", "-qm", version)
    return tmp_path


@pytest.mark.parametrize(("version", "code"), [("fast", 0), ("slow", 1)])
def test_the_exit_code_is_the_verdict(gpuscope, before, tmp_path, version, code):
    (tmp_path / "train.py").write_text(version + "\n")
    ran = gpuscope("verify", "before.gscope", "--yes", "--json", "verdict.json")
    assert ran.returncode == code, ran.stderr
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == ("accept", "reject")[code]


def test_an_inconclusive_verdict_has_exit_code_3(gpuscope, before):
    assert gpuscope("verify", "before.gscope", "--yes", "--margin", "0.01%").returncode == 3


def test_the_command_is_shown_and_not_run_unless_someone_agrees(gpuscope, before, premade):
    ran = gpuscope("verify", "before.gscope")
    assert (ran.returncode, "accepted is --yes" in ran.stderr) == (2, True)
    assert f"{premade}/python -m gpuscope run train.py" in ran.stderr
    assert not (premade / "count").exists()


@pytest.mark.parametrize(("answer", "runs"), [("y", True), ("n", False), ("", False)])
def test_a_terminal_is_asked(before, premade, tmp_path, answer, runs):
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    command = [sys.executable, "-m", "gpuscope", "verify", "before.gscope"]
    ran = subprocess.run(command, cwd=tmp_path, stdin=theirs, capture_output=True, text=True, check=False)
    os.close(ours)
    os.close(theirs)
    assert (premade / "count").exists() == runs
    assert (ran.returncode == 2) != runs


def test_old_and_new_take_turns_and_leave_no_worktree(gpuscope, repository, premade):
    ran = gpuscope("verify", "before.gscope", "--yes", "--against", "HEAD~1", "--runs", "9")
    assert ran.returncode == 1, ran.stderr
    places = (premade / "places").read_text().split()
    assert "and the work tree, 9 pairs of runs" in ran.stdout
    is_old = [place != str(repository) for place in places]
    assert is_old == [True, False, False, True] * 5
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


def test_a_commit_is_judged_instead_of_the_files(gpuscope, repository, premade):
    (repository / "train.py").write_text("broken\n")
    ran = gpuscope("verify", "before.gscope", "--yes", "--commit", "HEAD")
    assert ran.returncode == 1, ran.stderr
    assert str(repository) not in (premade / "places").read_text().split()
    assert "changes in the work tree are not part of the commit" in ran.stdout


def test_a_commit_needs_no_script_in_the_work_tree(gpuscope, repository):
    (repository / "train.py").unlink()
    assert gpuscope("verify", "before.gscope", "--yes", "--commit", "HEAD").returncode == 1


def test_sigterm_leaves_no_worktree(repository, premade):
    (premade / "python").rename(premade / "fast")
    (premade / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    (premade / "python").chmod(0o755)
    try:
        words = ["verify", "before.gscope", "--yes", "--commit", "HEAD"]
        process = subprocess.Popen([sys.executable, "-m", "gpuscope", *words], cwd=repository, start_new_session=True)
        while git(repository, "worktree", "list").count("\n") < 2:
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        (premade / "fast").replace(premade / "python")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert git(repository, "worktree", "list").count("\n") == 1


def test_the_error_of_a_program_is_told_without_the_report_after_it(gpuscope, before, premade, tmp_path):
    printed = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: no\n37 samples\n'
    (tmp_path / "failing").write_text(f"#!/bin/sh\ncat <<'END'\n{printed}END\nexit 1\n")
    (tmp_path / "failing").chmod(0o755)
    before(python=str(tmp_path / "failing"))
    assert 'it printed: File "a.py", line 1 | ValueError: no\n' in gpuscope("verify", "before.gscope", "--yes").stderr


def test_a_commit_that_does_not_build_has_no_verdict(gpuscope, repository):
    ran = gpuscope("verify", "before.gscope", "--yes", "--commit", "HEAD", "--build", "echo no compiler; exit 3")
    assert ran.returncode == 2
    assert "does not build: 'echo no compiler; exit 3' ended with 3: no compiler" in ran.stderr


def test_recordings_before_a_failure_are_kept(gpuscope, repository):
    (repository / "train.py").write_text("broken\n")
    ran = gpuscope("verify", "before.gscope", "--yes", "--against", "HEAD", "-o", "runs")
    assert ran.returncode == 2
    assert "exit code 4; it printed: it fails here; the recordings so far are in" in ran.stderr
    assert load(repository / "runs" / "before-1" / "rank-00000.gscope").trace.info


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"folder": "/not/there"}, "no folder '/not/there'"),
        ({"python": "/not/there"}, "no interpreter '/not/there'"),
        ({"program": ["gone.py"]}, "no script"),
        ({"program": []}, "a damaged command"),
        ({"program": "train.py"}, "a damaged command"),
        ({"surprise": 1}, "a damaged command"),
        ({"recorder": "sql"}, "a damaged command"),
    ],
)
def test_a_command_that_cannot_run_is_refused(gpuscope, before, changed, says):
    before(**changed)
    ran = gpuscope("verify", "before.gscope", "--yes")
    assert (ran.returncode, says in ran.stderr) == (2, True), ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--runs", "2"], "--runs is 2; accepted are 3 runs or more"),
        (["--against", "HEAD", "--runs", "5"], "--runs is 5; accepted are 9 pairs of runs or more"),
        (["--against", "--help"], "expected one argument"),
        (["--against=--help"], "'--help' is no commit"),
        (["--commit", "nothing"], "'nothing' is no commit"),
        (["--claim", "R99"], "--claim is 'R99'; accepted is a finding of the recording"),
        (["--build", "make"], "--build is for commits"),
        (["-o", "."], "accepted is a new folder"),
    ],
)
def test_options_that_cannot_be_used_are_refused(gpuscope, repository, premade, words, says):
    ran = gpuscope("verify", "before.gscope", "--yes", *words)
    assert (ran.returncode, says in ran.stderr) == (2, True), ran.stderr
    assert not (premade / "count").exists()


def test_a_program_outside_of_a_repository_has_no_commits(gpuscope, before):
    ran = gpuscope("verify", "before.gscope", "--yes", "--against", "HEAD", GIT_CEILING_DIRECTORIES="/")
    assert (ran.returncode, "is in no git repository" in ran.stderr) == (2, True), ran.stderr


def test_recordings_without_a_command_are_refused(gpuscope, tmp_path):
    program({"load": 50}).save(tmp_path / "profile.gscope")
    program({"load": 50}, info={"process.rank": "3"}).save(tmp_path / "rank.gscope")
    (tmp_path / "trace.json").write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2, "cat": "cpu_op"}]}'
    )
    for name, says in (
        ("profile.gscope", "not of `gpuscope run`"),
        ("rank.gscope", "one rank of a job"),
        ("trace.json", ""),
    ):
        ran = gpuscope("verify", name, "--yes")
        assert (ran.returncode, says in ran.stderr) == (2, True), ran.stderr


def test_a_recording_of_another_gpu_is_refused(gpuscope, before, tmp_path):
    from fakes.versions import version

    version({"gemm": 1e6}, info=load(before()).trace.info, device="NVIDIA Imaginary").save(tmp_path / "gpu.gscope")
    ran = gpuscope("verify", "gpu.gscope", "--yes")
    assert (ran.returncode, "the recording is of the GPU NVIDIA Imaginary" in ran.stderr) == (2, True), ran.stderr


def test_what_differs_is_noted(gpuscope, repository, before):
    git(repository, "checkout", "-q", "HEAD~1")
    before()
    assert "the code did not change: commit" in gpuscope("verify", "before.gscope", "--yes").stdout
    (repository / "train.py").write_text("fast\n")
    ran = gpuscope("verify", "before.gscope", "--yes", OMP_NUM_THREADS="1")
    assert "with changes after" in ran.stdout
    assert "the environment variable OMP_NUM_THREADS: not set before, set now" in ran.stdout


def test_a_recording_of_run_knows_its_command(gpuscope, script, tmp_path):
    script("import sys\nassert sys.argv[1:] == ['--lr', '0.1']\n")
    ran = gpuscope(
        "run", "-o", "a.gscope", "--python-samples", "5ms", "--sync", "script.py", "--lr", "0.1", OMP_X="secret"
    )
    assert ran.returncode == 0
    fact = load(tmp_path / "a.gscope").trace.info[FACT]
    command = Command.of({FACT: fact}, "a.gscope")
    assert (command.program, command.options) == (("script.py", "--lr", "0.1"), ("--python-samples=0.005s", "--sync"))
    assert ("OMP_X" in command.variables, "secret" in fact) == (True, False)
    assert gpuscope("verify", "a.gscope", "--yes", "--runs", "3").returncode in (0, 1, 3)


def test_a_recording_of_diagnose_is_compared_with_recordings_of_diagnose(gpuscope, script, tmp_path):
    script("import time\nfor _ in range(40):\n    time.sleep(0.002)\n")
    assert gpuscope("diagnose", "-o", "a.gscope", "script.py").returncode == 0
    ran = gpuscope("verify", "a.gscope", "--yes", "--runs", "3")
    assert ran.returncode in (0, 1, 3), ran.stderr
    assert " -m gpuscope diagnose script.py" in ran.stderr
    assert "before, not after" not in ran.stdout  # of an option


def test_standard_input_cannot_run_again(tmp_path):
    command = [sys.executable, "-m", "gpuscope", "run", "-o", "a.gscope", "-"]
    subprocess.run(command, cwd=tmp_path, input="x = 1", text=True, capture_output=True, check=True)
    assert FACT not in load(tmp_path / "a.gscope").trace.info


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--no-python-samples", "--mode=ring", "--ring-seconds=2.5"],
        ["--python-samples=1s"],
        ["--counters=why", "--counter-interval=0.001s", "--device-samples=0.5s"],
        ["--counters=dram__read,dram__write", "--schedule=wait=1,active=2", "--max-memory=1GiB", "--with-stack"],
    ],
)
def test_options_become_words_again(words):
    import argparse

    parser = argparse.ArgumentParser()
    add_recorded(parser)
    given = parser.parse_args(words)
    assert parser.parse_args(recorded_words(given)) == given
    assert len(recorded_words(given)) == len(words)
