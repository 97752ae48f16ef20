# SPDX-License-Identifier: Apache-2.0
"""Two processes on two GPUs: NCCL's kernels carry the collective, its size, and whose recording it is."""

from __future__ import annotations

import pytest
from child import run_ranks

torch = pytest.importorskip("torch")
if torch.cuda.device_count() < 2:
    pytest.skip(f"this needs 2 GPUs and there are {torch.cuda.device_count()}", allow_module_level=True)

WORLD = 2


@pytest.fixture(scope="module")
def ranks():
    """What each process saw."""
    return run_ranks(WORLD, "distributed.py")


def of(rank, step, kernel):
    return [each for each in rank["collectives"] if each["step"] == step and kernel in each["kernel"]]


def test_gradients_of_ddp_are_reduced_under_their_collective_with_its_bytes(ranks):
    for rank in ranks:
        reductions = of(rank, "ddp", "AllReduce")
        assert len(reductions) >= 3, rank["audit"]
        assert {each["range"] for each in reductions} == {"ncclAllReduce"}
        sizes = [value for each in reductions for name, value in each["payload"].items() if "size" in name.lower()]
        assert sum(sizes) == 3 * rank["parameter bytes"]


def test_shards_of_fsdp_are_gathered_and_scattered_under_their_collectives(ranks):
    for rank in ranks:
        for kernel, name in (("AllGather", "ncclAllGather"), ("ReduceScatter", "ncclReduceScatter")):
            found = of(rank, "fsdp", kernel)
            assert len(found) >= 3, rank["audit"]
            assert {each["range"] for each in found} == {name}
            assert all(each["payload"] for each in found)


def test_a_recording_says_whose_it_is(ranks):
    for number, rank in enumerate(ranks):
        told = {key.rpartition(".")[2]: value for key, value in rank["info"].items()}
        assert (told["rank"], told["world_size"]) == (str(number), str(WORLD))


def test_chrome_traces_of_two_ranks_lie_within_a_millisecond_of_each_other(ranks):
    first, second = (rank["ends of reductions"] for rank in ranks)
    assert len(first) == len(second) >= 3
    apart = [abs(one - other) for one, other in zip(first, second, strict=True)]
    print("us between the ends of a collective on two ranks:", sorted(apart))
    assert max(apart) < 1000


def test_nothing_is_lost_and_the_environment_stays(ranks):
    for rank in ranks:
        assert rank["complete"], rank["audit"]
        assert rank["nvls"] == "0"
