# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import tarfile

import pytest

from fakes.rank_recordings import ALL_REDUCE, GEMM, RankRecording
from gpuscope.exporters import save


@pytest.fixture
def job(tmp_path):
    """A folder with the recordings of two ranks of one host."""
    for rank in range(2):
        made = RankRecording(5000, process_rank=str(rank), process_world_size="2", process_host="n0")
        for number in range(4):
            made.step(1000 * number, 1000 * number + 1000, number)
            made.kernel(GEMM, 1000 * number + 100, 1000 * number + 300)
            made.kernel(ALL_REDUCE, 1000 * number + 400, 1000 * number + 600, stream=9)
        (tmp_path / "job").mkdir(exist_ok=True)
        save(made.trace().store, tmp_path / "job" / f"rank-{rank}.gscope")
    return tmp_path / "job"


def test_ranks_of_a_job_become_one_timeline(gpuscope, job, tmp_path):
    done = gpuscope("export", job, "--ranks", "0,1", "--steps", "1:2", "-o", "slow.tar")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("slow.tar ")
    with tarfile.open(tmp_path / "slow.tar") as archive:
        assert archive.getnames()[1:] == ["rank-00000.pftrace", "rank-00001.pftrace"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "1:2", "-o", "a.tar"], "--steps needs --ranks"),
        (["--ranks", "x", "-o", "a.tar"], "'x' is no list of ranks, as 0,7"),
        (["--ranks", "0", "--steps", "3:2", "-o", "a.tar"], "'3:2' is no range of steps, as 20:22"),
        (["--ranks", "0", "-o", "a.json"], "a.json"),
    ],
)
def test_wrong_ranks_and_steps_are_refused(gpuscope, job, arguments, words):
    done = gpuscope("export", job, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
