# SPDX-License-Identifier: Apache-2.0
"""The programs and commands of README.md and docs/ that need a GPU, and the examples where there is one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def _blocks_module():
    spec = importlib.util.spec_from_file_location("blocks_of_docs", REPOSITORY / "docs" / "blocks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    return module


docs = _blocks_module()
PROGRAMS = [(page, code) for page in docs.pages() for code in docs.blocks(page, "python") if docs.needs_of(code)]


@pytest.mark.parametrize(("page", "code"), PROGRAMS, ids=[f"{page.stem}-{docs.title(code)}" for page, code in PROGRAMS])
def test_a_program_runs(page, code, tmp_path):
    pytest.importorskip("torch")
    docs.prepare(page, tmp_path)
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    finished = docs.run([sys.executable, "example.py"], tmp_path, warnings="default")
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("page", docs.pages(), ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page, tmp_path):
    docs.prepare(page, tmp_path)
    found = [command for block in docs.blocks(page, "console") for command in docs.commands(block)]
    if not any(command.needs == "a GPU" for command in found):
        pytest.skip("none of them needs a GPU")
    for command in found:
        finished = docs.run_command(command, tmp_path)
        assert finished.returncode == 0, f"{command.line}\n{finished.stderr}"


@pytest.mark.parametrize("name", ["train.py", "leak.py", "which_is_faster.py", "slow_to_fast.py", "serve.py"])
def test_an_example_runs(name, tmp_path):
    if name in ("train.py", "leak.py"):
        pytest.importorskip("torch")
    finished = docs.run([sys.executable, str(REPOSITORY / "examples" / name)], tmp_path, warnings="default")
    assert finished.returncode == 0, finished.stderr
