# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuscope import profile
from gpuscope.distributed import Rank, distributed_rank

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "16", "SLURM_LOCALID": "3"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, Rank(5, 8, 1, "torchrun")),
        (OPEN_MPI, Rank(2, 4, 0, "mpirun")),
        (HYDRA, Rank(1, 2, 1, "mpirun")),
        (SLURM, Rank(3, 16, 3, "srun")),
        ({**SLURM, **TORCHRUN}, Rank(5, 8, 1, "torchrun")),
        ({"RANK": "0", "WORLD_SIZE": "1"}, Rank(0, 1, None, "torchrun")),
        ({"RANK": "0"}, None),
        ({}, None),
    ],
)
def test_every_launcher_is_understood(variables: dict[str, str], expected: Rank | None):
    said: list[str] = []
    assert distributed_rank(variables, said.append) == expected
    assert said == []


@pytest.mark.parametrize("bad", ["", "-1", "first", "1.5", "²", "9" * 20])
def test_a_value_that_is_no_number_is_ignored_and_named(bad: str):
    said: list[str] = []
    assert distributed_rank({**SLURM, **TORCHRUN, "RANK": bad}, said.append) == Rank(3, 16, 3, "srun")
    assert said == [f"RANK is {bad!r}; ignored, for accepted is a whole number from 0"]
    assert distributed_rank({**TORCHRUN, "LOCAL_RANK": bad}) == Rank(5, 8, None, "torchrun")


def test_a_rank_beyond_the_world_is_ignored():
    said: list[str] = []
    assert distributed_rank({"RANK": "8", "WORLD_SIZE": "8"}, said.append) is None
    assert "RANK is 8 and WORLD_SIZE is 8" in said[0]


def test_recordings_know_their_rank(monkeypatch: pytest.MonkeyPatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    with profile() as profiler:
        pass
    info = profiler.trace.info
    assert {key: info[f"process.{key}"] for key in ("rank", "world_size", "local_rank", "launcher")} == {
        "rank": "5",
        "world_size": "8",
        "local_rank": "1",
        "launcher": "torchrun",
    }


def test_recordings_without_a_launcher_know_no_rank(monkeypatch: pytest.MonkeyPatch):
    for name in {**TORCHRUN, **OPEN_MPI, **HYDRA, **SLURM}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with profile() as profiler:
        pass
    assert "process.rank" not in profiler.trace.info
    assert "RANK is 'one'" in profiler.trace.info["session.notes"]
