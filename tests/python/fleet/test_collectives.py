# SPDX-License-Identifier: Apache-2.0
"""The collectives of one process: their communicators, sequences, kinds and bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gpuscope as gs
from fakes.rank_recordings import ALL_REDUCE, GEMM, SEND_RECV, RankRecording
from gpuscope.fleet.collectives import collective_kind
from gpuscope.fleet.reduce import reduce
from gpuscope.trace import Trace

ID, OTHER_ID = 0xF00D_F00D_F00D_F00D, 0xBEEF


def collectives(trace: Trace, *names: str) -> list[Any]:
    """The columns of the table; one alone as a plain list."""
    table = reduce(trace)["collective"]
    rows = list(zip(*(table[name].tolist() for name in names), strict=True))
    return [row[0] for row in rows] if len(names) == 1 else rows


def all_reduces(communicators: list[int], start: int = 0, **info: str) -> RankRecording:
    """An all-reduce of 4 KiB each 100 ns, in its call of NCCL."""
    rank = RankRecording(**info)
    for number, communicator in enumerate(communicators):
        at = start + 100 * number
        call = rank.call_of_nccl("ncclAllReduce", at + 10, communicator, 4096)
        rank.kernel(ALL_REDUCE, at + 50, at + 90, region=call, launched=at + 15)
    return rank


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_AllGather_RING_SIMPLE", "all_gather"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:recv 0<-1", "recv"),
        ("alltoall_base", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("void vllm::cross_device_reduce_1stage<__half, 2>(RankData*)", "all_reduce"),
        ("void deep_ep::internode_ll::dispatch<true, 7168>(void*)", "all_to_all"),
        ("nvshmemi_barrier_all_kernel", "barrier"),
        ("gloo:all_reduce", "all_reduce"),
        (SEND_RECV, "other"),
        ("gemm", "other"),
    ],
)
def test_the_kind_is_in_the_name(name: str, kind: str):
    assert collective_kind(name) == kind


def test_the_communicator_is_that_of_the_call_of_nccl():
    numbers = collectives(all_reduces([ID, OTHER_ID, ID]).trace(), "communicator")
    assert numbers[0] == numbers[2] != numbers[1]


def test_the_communicator_is_the_same_number_on_all_ranks():
    one, other = (all_reduces([ID], start=start).trace() for start in (0, 300))
    assert collectives(one, "communicator") == collectives(other, "communicator")


def test_the_sequence_counts_the_calls_of_each_communicator():
    assert collectives(all_reduces([ID, OTHER_ID, ID]).trace(), "sequence") == [0, 0, 1]


def test_the_sequence_is_the_number_of_the_call_of_nccl():
    rank = RankRecording()
    rank.call_of_nccl("ncclAllReduce", 10, ID, 4096)  # between windows, when kernels are not recorded
    rank.kernel(ALL_REDUCE, 50, 90, region=rank.call_of_nccl("ncclAllReduce", 30, ID, 4096))
    assert collectives(rank.trace(), "sequence") == [1]


def test_the_message_is_that_of_the_call_of_nccl():
    assert collectives(all_reduces([ID]).trace(), "bytes", "source") == [(4096, "nvtx")]


def test_a_message_of_unknown_size_has_no_bytes():
    rank = RankRecording()
    rank.kernel(ALL_REDUCE, 50, 90, region=rank.call_of_nccl("ncclAllReduce", 30, ID, 0))
    assert collectives(rank.trace(), "bytes") == [-1]


def test_the_size_is_known_from_the_creation():
    rank = RankRecording()
    rank.creation_of_nccl(0, ID, ranks=8, rank=3)
    call = rank.call_of_nccl("ncclAllReduce", 20, ID, 4096)
    rank.kernel(ALL_REDUCE, 50, 90, region=call)
    assert collectives(rank.trace(), "size") == [8]


def test_without_the_creation_the_size_is_not_known():
    assert collectives(all_reduces([ID]).trace(), "size") == [-1]


def test_a_communicator_that_is_created_again_is_another_one():
    rank = RankRecording()
    for at in (0, 500):
        rank.creation_of_nccl(at, ID, ranks=8, rank=3)
        rank.kernel(ALL_REDUCE, at + 50, at + 90, region=rank.call_of_nccl("ncclAllReduce", at + 20, ID, 4096))
    found = collectives(rank.trace(), "communicator", "sequence")
    assert found[0][0] != found[1][0]
    assert [sequence for _, sequence in found] == [0, 0]


def grouped(calls: list[tuple[str, int]], rank: int = 0, name: str = SEND_RECV) -> Trace:
    """One kernel that ncclGroupEnd launched, for calls with their peers."""
    recording = RankRecording()
    recording.creation_of_nccl(0, ID, ranks=4, rank=rank)
    for number, (call, peer) in enumerate(calls):
        recording.call_of_nccl(call, 20 + 10 * number, ID, 1000, Peer_rank=peer)
    end = recording.region("ncclGroupEnd", 300, 400)
    recording.kernel(name, 500, 600, region=end, launched=310)
    return recording.trace()


def test_a_group_has_the_bytes_of_all_its_calls():
    calls = [("ncclSend", 1), ("ncclSend", 2), ("ncclSend", 3)]
    assert collectives(grouped(calls), "kind", "bytes", "source") == [("send", 3000, "nvtx")]


def test_an_exchange_is_no_fence():
    assert collectives(grouped([("ncclSend", 1), ("ncclRecv", 1)]), "kind") == ["other"]


def test_sender_and_receiver_have_the_same_communicator():
    sent, received = grouped([("ncclSend", 1)], rank=0), grouped([("ncclRecv", 0)], rank=1)
    assert collectives(sent, "communicator", "size") == collectives(received, "communicator", "size")


def test_the_way_back_is_another_communicator():
    sent, back = grouped([("ncclSend", 1)], rank=0), grouped([("ncclSend", 0)], rank=1)
    assert collectives(sent, "communicator") != collectives(back, "communicator")


def test_messages_between_two_ranks_leave_the_sequence_of_the_communicator():
    rank = all_reduces([ID])
    rank.kernel(SEND_RECV, 150, 160, region=rank.call_of_nccl("ncclSend", 120, ID, 8))
    rank.kernel(ALL_REDUCE, 250, 290, region=rank.call_of_nccl("ncclAllReduce", 220, ID, 4096))
    assert collectives(rank.trace(), "kind", "sequence") == [("all_reduce", 0), ("send", 0), ("all_reduce", 1)]


def test_an_all_to_all_of_messages_is_named_by_the_range_around():
    rank = RankRecording()
    outer = rank.region("nccl:all_to_all", 0, 100)
    rank.kernel(SEND_RECV, 150, 250, region=outer)
    assert collectives(rank.trace(), "kind") == ["all_to_all"]


def test_the_programs_own_names_are_no_kinds():
    rank = RankRecording()
    rank.kernel(SEND_RECV, 150, 250, region=rank.region("reduce the loss", 0, 100))
    assert collectives(rank.trace(), "kind") == ["other"]


def test_each_replay_of_a_graph_is_an_instance():
    rank = RankRecording()
    captured = rank.call_of_nccl("ncclAllReduce", 10, ID, 4096)
    for at in (100, 300, 500):
        rank.replay([(GEMM, at, at + 50), (ALL_REDUCE, at + 50, at + 90)], path_of=captured)
    expected = [(0, 4096, "nvtx"), (1, 4096, "nvtx"), (2, 4096, "nvtx")]
    assert collectives(rank.trace(), "sequence", "bytes", "source") == expected


def test_a_replay_with_an_unclear_capture_is_known_by_its_order():
    rank = RankRecording()
    captured = [rank.call_of_nccl("ncclAllReduce", at, number, 4096) for at, number in ((10, ID), (30, OTHER_ID))]
    rank.replay([(ALL_REDUCE, 150, 190)], path_of=captured[0])
    assert collectives(rank.trace(), "bytes", "source") == [(-1, "order")]


def test_without_payloads_the_order_in_the_stream_counts():
    rank = RankRecording()
    for at, stream in ((100, 20), (200, 40), (300, 20)):
        rank.kernel(ALL_REDUCE, at, at + 50, stream=stream)
    found = collectives(rank.trace(), "communicator", "sequence", "source")
    assert [row[1:] for row in found] == [(0, "order"), (0, "order"), (1, "order")]
    assert found[0][0] == found[2][0] != found[1][0]


def test_the_numbers_of_streams_may_differ_between_ranks():
    ranks = [RankRecording(), RankRecording()]
    for rank, stream in zip(ranks, (20, 84), strict=True):
        rank.kernel(ALL_REDUCE, 100, 150, stream=stream)
    one, other = (collectives(rank.trace(), "communicator") for rank in ranks)
    assert one == other


def test_operators_of_gloo_are_collectives():
    rank = RankRecording(session_tier="cpu")
    rank.region("gloo:all_reduce", 100, 300)
    rank.region("gloo:barrier", 400, 450)
    found = collectives(rank.trace(), "kind", "sequence", "source")
    assert found == [("all_reduce", 0, "gloo"), ("barrier", 1, "gloo")]


def test_a_kernel_of_another_library_is_not_of_a_group_of_nccl():
    rank = RankRecording()
    rank.call_of_nccl("ncclSend", 10, ID, 1000)
    rank.kernel("deep_ep::intranode::dispatch", 200, 250)
    assert collectives(rank.trace(), "kind", "bytes", "source") == [("all_to_all", -1, "order")]


def test_values_of_other_operators_are_not_read():
    rank = all_reduces([ID])
    rank.region("aten::to", 200, 210, dtype=1 << 40)
    assert collectives(rank.trace(), "source") == ["nvtx"]


def torch_trace(folder: Path, collectives: list[dict[str, Any]]) -> Trace:
    """A trace of torch.profiler with operators that say what their collective was."""
    events: list[dict[str, Any]] = []
    for number, said in enumerate(collectives, 1):
        place = {"ph": "X", "pid": 1, "tid": 1, "ts": 100 * number}
        events += [
            {
                **place,
                "cat": "cpu_op",
                "name": "record_param_comms",
                "dur": 20,
                "args": {"External id": number, **said},
            },
            {**place, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5, "args": {"correlation": number}},
        ]
        where = {"device": 0, "context": 1, "stream": 7, "correlation": number, "External id": number}
        events.append({**place, "cat": "kernel", "name": SEND_RECV, "ts": 100 * number + 30, "dur": 50, "args": where})
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 1_700_000_000_000_000_000}))
    return gs.load(path).trace


SAID = {
    "Collective name": "_allgather_base",
    "In msg nelems": 10,
    "Out msg nelems": 40,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "tp",
    "Process Group Ranks": "[0, 1, 2, 3]",
}


def test_traces_of_torch_keep_what_operators_say(tmp_path: Path):
    trace = torch_trace(tmp_path, [SAID])
    expected = [("all_gather", 4, 20, 0, "arguments")]
    assert collectives(trace, "kind", "size", "bytes", "sequence", "source") == expected


def test_the_sequence_is_torchs_own_number(tmp_path: Path):
    trace = torch_trace(tmp_path, [{**SAID, "Seq": 41}, {**SAID, "Seq": 42}])
    assert collectives(trace, "sequence") == [41, 42]


def test_numbers_that_repeat_are_no_sequence(tmp_path: Path):
    trace = torch_trace(tmp_path, [{**SAID, "Seq": 41}, {**SAID, "Seq": 41}])
    assert collectives(trace, "sequence") == [0, 1]


def test_groups_of_one_name_with_other_ranks_are_apart(tmp_path: Path):
    trace = torch_trace(tmp_path, [SAID, {**SAID, "Process Group Ranks": "[4, 5, 6, 7]"}])
    assert len(set(collectives(trace, "communicator"))) == 2


def test_a_message_of_an_unknown_type_has_no_bytes(tmp_path: Path):
    trace = torch_trace(tmp_path, [{**SAID, "dtype": "Bits"}])
    assert collectives(trace, "bytes") == [-1]


def test_calls_in_a_capture_are_not_of_the_next_group():
    rank = RankRecording()
    captured = rank.call_of_nccl("ncclAllReduce", 10, OTHER_ID, 4096)
    rank.call_of_nccl("ncclSend", 120, ID, 1000)
    rank.kernel(SEND_RECV, 200, 250, region=rank.region("ncclGroupEnd", 140, 160), launched=150)
    rank.replay([(ALL_REDUCE, 350, 390)], path_of=captured)
    assert collectives(rank.trace(), "kind", "bytes") == [("send", 1000), ("all_reduce", 4096)]
