# SPDX-License-Identifier: Apache-2.0
"""``gpuscope diff``: files, folders and patterns as sides; exit codes; forms."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest

from fakes.loops import Loop
from fakes.versions import program, version
from gpuscope.recording import Recording

MS = 1e6


@pytest.fixture
def sides(tmp_path):
    """Three recordings of each version, the second 10 % slower."""
    for side, factor in (("before", 1.0), ("after", 1.1)):
        (tmp_path / side).mkdir()
        for run in range(3):
            kernels = {"gemm": 4 * MS * factor, "relu": 1 * MS * factor}
            version(kernels, seed=10 * run + (side == "after")).save(tmp_path / side / f"{run}.gscope")
    return tmp_path


def test_two_recordings_are_compared(gpuscope, sides):
    ran = gpuscope("diff", "before/0.gscope", "after/0.gscope")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "train.py: 26 steps before and 26 steps after; steps are ProfilerStep#N" in ran.stdout
    assert "forward/gemm" in ran.stdout
    assert ": slower" in ran.stdout
    assert "give 3 recordings or more a side" in ran.stdout


@pytest.mark.parametrize(("before", "after"), [("before", "after"), ("before/*.gscope", "after/?.gscope")])
def test_folders_and_patterns_are_sets_of_runs(gpuscope, sides, before, after):
    ran = gpuscope("diff", before, after)
    assert ran.returncode == 0
    assert "78 steps of 3 runs before" in ran.stdout
    assert "give 3 recordings" not in ran.stdout


def test_the_exit_code_is_1_over_the_limit_alone(gpuscope, sides):
    assert gpuscope("diff", "before", "after", "--fail-over", "5%").returncode == 1
    assert gpuscope("diff", "before", "after", "--fail-over", "20%").returncode == 0
    assert gpuscope("diff", "after", "before", "--fail-over", "0.05").returncode == 0


def test_a_target_that_is_surely_not_met_has_exit_code_1(gpuscope, sides):
    assert gpuscope("diff", "before", "after", "--target", "+30%").returncode == 1
    ran = gpuscope("diff", "before", "after", "--target", "1s")
    assert (ran.returncode, "target 1s: met (" in ran.stdout) == (0, True)


def test_a_page_is_written_and_opened(gpuscope, sides):
    ran = gpuscope("diff", "before/0.gscope", "after/0.gscope", "-o", "page.html")
    assert ran.returncode == 0
    assert ran.stdout.rstrip().endswith("wrote page.html")
    assert (sides / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    ran = gpuscope("diff", "before/0.gscope", "after/0.gscope", "--open", BROWSER="echo %s")  # which says what
    assert (sides / "diff.html").as_uri() in ran.stdout
    assert gpuscope("diff", "before/0.gscope", "after/0.gscope", "-o", "page.pdf").returncode == 2


def test_json_and_markdown_are_written(gpuscope, sides):
    ran = gpuscope("diff", "before", "after", "--json", "diff.json", "--markdown", "comment.md")
    assert ran.returncode == 0
    assert json.loads((sides / "diff.json").read_text())["verdict"] == "slower"
    assert "| slower |" in (sides / "comment.md").read_text()
    ran = gpuscope("diff", "before", "after", "--markdown", "-")
    assert ran.stdout.startswith("**a step")  # the page goes to standard error then
    assert "forward/gemm" in ran.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_files_are_written_when_standard_output_is_full(sides):
    files = {"--json": "diff.json", "--markdown": "comment.md", "-o": "page.html"}
    command = [sys.executable, "-m", "gpuscope", "diff", "before/0.gscope", "after/0.gscope"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        ran = subprocess.run([*command, *itertools.chain(*files.items())], stdout=full, cwd=sides, check=False)
    assert ran.returncode == 1
    assert all((sides / name).stat().st_size for name in files.values())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["before", "missing.gscope"], "missing.gscope"),
        (["before", "no/*.gscope"], "no file matches 'no/*.gscope'"),
        (["before", "empty"], "the folder 'empty' holds no recording"),
        (["before", "after", "--fail-over", "5"], "is not a share"),
        (["before", "train.py"], "'train.py' is not a recording; accepted are .gscope files and traces"),
        (["before", "after", "--margin", "0"], "is not a share"),
    ],
)
def test_wrong_arguments_get_one_sentence(gpuscope, sides, arguments, sentence):
    (sides / "empty").mkdir()
    (sides / "train.py").write_text("")
    ran = gpuscope("diff", *arguments)
    assert ran.returncode == 2
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def test_another_gpu_fails_no_gate(gpuscope, sides):
    version({"gemm": 8 * MS}, device="NVIDIA A100").save(sides / "other.gscope")
    ran = gpuscope("diff", "before/0.gscope", "other.gscope", "--fail-over", "5%")
    assert ran.returncode == 2
    assert "like GPUs" in ran.stderr
    assert "NVIDIA A100 after" in ran.stdout


def test_runs_without_steps_are_gated_by_their_time(gpuscope, tmp_path):
    for name, ms in (("slow", 900), ("fast", 100)):
        program({"load": 100, "work": ms}).save(tmp_path / f"{name}.gscope")
    ran = gpuscope("diff", "slow.gscope", "fast.gscope", "--fail-over", "5%")
    assert ran.returncode == 0
    assert "times faster: " in ran.stdout.splitlines()[0]
    assert "work (etl.py:20) changed most" in ran.stdout
    assert gpuscope("diff", "fast.gscope", "slow.gscope", "--fail-over", "5%").returncode == 1


@pytest.mark.parametrize("gate", [[], ["--fail-over", "5%"]])
def test_recordings_that_share_little_end_with_2(gpuscope, tmp_path, gate):
    for name in ("gemm", "sort"):
        loop = Loop()
        for turn in range(12):
            with loop.region(name):
                loop.launch(name=name, gpu=1000 + turn)
                loop.wait()
            loop.work(10)
        Recording(loop.trace().store).save(tmp_path / f"{name}.gscope")
    ran = gpuscope("diff", "gemm.gscope", "sort.gscope", *gate)
    assert ran.returncode == 2
    assert ran.stdout.startswith("not comparable: ")
    assert ("fail_over is for versions of one program" in ran.stderr) == bool(gate)
