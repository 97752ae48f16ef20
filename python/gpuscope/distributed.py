# SPDX-License-Identifier: Apache-2.0
"""Which process of a distributed program this one is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuscope.text import brief

STARTED_BY = "started_by"
"""In the metadata of a process that a recorded program started: the number of the program's process."""

_MOST_DIGITS = 18  # of an integer of 64 bits

# Of each launcher: its name, and the variables of rank, world size and local rank. A launcher that may start another
# one comes after it, as the inner launcher starts the program's processes.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class Rank:
    """A process's place among those of its program.

    Attributes:
        rank: its number among all, from 0.
        world_size: how many there are.
        local_rank: its number among those of this machine, from 0; None when the launcher does not say.
        launcher: ``"torchrun"`` (or another launcher with its variables), ``"mpirun"`` or ``"srun"``; without them
            ``"torch.distributed"``, from its default process group.
    """

    rank: int
    world_size: int
    local_rank: int | None
    launcher: str

    def facts(self) -> dict[str, str]:
        """The same as rows of a recording's `info`."""
        facts = {"process.rank": str(self.rank), "process.world_size": str(self.world_size)}
        if self.local_rank is not None:
            facts["process.local_rank"] = str(self.local_rank)
        return {**facts, "process.launcher": self.launcher}


def recording_name(rank: int) -> str:
    """The file name of a rank's recording in the folder of a job; 0 is also the process without a launcher."""
    return f"rank-{rank:05d}.gscope"


def distributed_rank(
    variables: Mapping[str, str] = os.environ, note: Callable[[str], object] = lambda sentence: None
) -> Rank | None:
    """Reads the variables that torchrun, mpirun or srun has set in the environment.

    Args:
        variables: the environment.
        note: called with a sentence for each invalid value; the launcher, or the local rank, is then ignored.

    Returns:
        None when no launcher has started this process.
    """
    for launcher, rank_name, size_name, local_name in _LAUNCHERS:
        if rank_name not in variables or size_name not in variables:
            continue
        rank, size = _number(variables, rank_name, note), _number(variables, size_name, note)
        if rank is None or size is None:
            continue
        if rank >= size:
            note(f"{rank_name} is {rank} and {size_name} is {size}; ignored, for ranks are below the world size")
            continue
        local = _number(variables, local_name, note) if local_name in variables else None
        return Rank(rank, size, local, launcher)
    return None


def _number(variables: Mapping[str, str], name: str, note: Callable[[str], object]) -> int | None:
    text = variables[name].strip()
    if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    note(f"{name} is {brief(variables[name])}; ignored, for accepted is a whole number from 0")
    return None
