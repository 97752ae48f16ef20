# SPDX-License-Identifier: Apache-2.0
"""Programs that look at GPU memory run with gpuscope's functions in place of their own, on a machine without a GPU."""

from __future__ import annotations

import pytest

from fakes import seeds, seeds_memory
from gpuscope.memory.usage.tracking import memory_stages, reset_memory_stages

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a GPU here: tests/gpu runs them on it", allow_module_level=True)


@pytest.fixture
def run(tmp_path, monkeypatch):
    reset_memory_stages()
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    yield lambda program: seeds.run(program, "cpu", tmp_path, monkeypatch)
    reset_memory_stages()


def stages_of(text):
    return tuple(line.partition(" - ")[0].rstrip() for line in text.splitlines())


@pytest.mark.parametrize("change", [str, seeds_memory.tracked], ids=["as it stands", "with gpuscope"])
def test_every_phase_of_a_training_prints_its_line(run, change, capsys):
    run(change(seeds_memory.TRACK_MEMORY))
    assert stages_of(capsys.readouterr().out) == seeds_memory.STAGES


def test_every_phase_of_a_training_is_a_row_of_the_table(run):
    run(seeds_memory.tracked(seeds_memory.TRACK_MEMORY))
    assert tuple(stage.name for stage in memory_stages().stages) == seeds_memory.STAGES


def test_lines_begin_as_the_programs_own(run, capsys):
    run(seeds_memory.TRACK_MEMORY)
    theirs = capsys.readouterr().out.splitlines()
    run(seeds_memory.tracked(seeds_memory.TRACK_MEMORY))
    ours = capsys.readouterr().out.splitlines()
    assert [line.partition(" - ")[0] for line in ours] == [line.partition(" - ")[0] for line in theirs]
