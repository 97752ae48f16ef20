# SPDX-License-Identifier: Apache-2.0
"""The README's examples run as they stand, each in an interpreter of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# (\w+\.py)\n")


def blocks(language):
    return [code for found, code in BLOCK.findall(README.read_text(encoding="utf-8")) if found == language]


def title(code):
    name = NAME.match(code)
    return name[1] if name else next(line for line in code.splitlines() if line and "import" not in line)[:40]


def run(arguments, folder):
    # The commands of this interpreter's environment come first, as they do where it is activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("code", blocks("python"), ids=title)
def test_an_example_runs(code, tmp_path):
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    finished = run([sys.executable, "example.py"], tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""


def test_the_commands_run_in_order(tmp_path):
    for code in blocks("python"):
        if name := NAME.match(code):
            (tmp_path / name[1]).write_text(code, encoding="utf-8")
    commands = [shlex.split(line[2:]) for block in blocks("console") for line in block.splitlines() if line[:2] == "$ "]
    assert commands
    for command in commands:
        assert command[0] == "gpuscope"
        finished = run([sys.executable, "-m", *command], tmp_path)
        assert finished.returncode == 0, f"{' '.join(command)}\n{finished.stderr}"
    for written in ("run.gscope", "run.pftrace", "run.json.gz"):
        assert (tmp_path / written).stat().st_size > 0


def test_two_commands_set_everything_up():
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) == 2
    assert "pip install . && .venv/bin/gpuscope demo" in commands[0]
    assert "pip install '.[test]' && .venv/bin/pytest" in commands[1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("code", blocks("sh"))
def test_the_set_up_is_shell(code):
    assert run(["bash", "-n", "-c", code], ".").returncode == 0


def test_public_names_in_the_text_exist():
    import gpuscope

    names = set(re.findall(r"\b(?:gs|gpuscope)\.(\w+)", README.read_text(encoding="utf-8")))
    unknown = names - {"gscope"} - set(dir(gpuscope))
    assert unknown == set()
