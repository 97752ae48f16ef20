# SPDX-License-Identifier: Apache-2.0
"""What a report of an out-of-memory error says, from which evidence."""

from __future__ import annotations

import json
import sys

import pytest

from fakes.memory_events import START, events
from fakes.memory_parts import GiB, Ledger, parts, pool
from gpuscope import _core
from gpuscope.devices import HOST
from gpuscope.memory.history.events import Frame
from gpuscope.memory.limits import out_of_memory as evidence
from gpuscope.memory.limits.out_of_memory import HISTORY_HINT, gather
from gpuscope.memory.limits.out_of_memory_errors import Request

STACK = (Frame("forward", "/lib/site-packages/torch/nn.py", 7), Frame("step", "/home/me/train.py", 31))


@pytest.fixture
def report(monkeypatch):
    """Gathers a report where the parts say what the test says."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)

    def report(
        asked=2 * GiB, library="torch", device=0, stack=STACK, free=None, allowed=None, recording=True, **figures
    ):
        monkeypatch.setattr(evidence, "recording", lambda: recording)
        for name, answer in parts(**figures).items():
            monkeypatch.setattr(evidence, name, answer)
        return gather(Request(library, asked, device), "OutOfMemoryError: x", stack, free=free, allowed=allowed)

    return report


def only(report, *parts_of_texts):
    """The advice, of which each part is expected to be in one, in this order."""
    assert len(report.advice) == len(parts_of_texts), report.advice
    for text, part in zip(report.advice, parts_of_texts, strict=True):
        assert part in text


def test_the_summary_says_what_was_asked_for_and_where(report):
    pools = [pool(allocated=77 * GiB, reserved=77 * GiB)]
    found = report(used=78 * GiB, total=80 * GiB, process=78 * GiB, pools=pools)
    first, holders, at, advice = found.summary().splitlines()
    assert first == "gpuscope: out of GPU memory: torch asked for 2.00 GiB on GPU 0; 2.00 GiB of 80.0 GiB free"
    assert holders == "  this process holds 78.0 GiB; torch 77.0 GiB, of which 77.0 GiB in use"
    assert at == "  at train.py:31 step"
    assert advice.startswith("  1. the program itself holds 78.0 GiB of 80.0 GiB: a smaller batch needs less")


def test_memory_in_pieces_is_told_with_the_setting_against_it(report):
    found = report(total=80 * GiB, pools=[pool(allocated=60 * GiB, reserved=72 * GiB, largest_free=GiB)])
    assert (
        found.verdict
        == "fragmentation: 12.0 GiB cached by torch are not in use, but the largest free block is 1.00 GiB"
    )
    only(found, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")


def test_memory_of_cuda_graphs_is_no_fragmentation(report):
    graphs = pool(allocated=30 * GiB, reserved=70 * GiB, largest_free=0, free_bytes=0, graph_reserved_bytes=40 * GiB)
    found = report(used=79 * GiB, total=80 * GiB, process=79 * GiB, pools=[graphs])
    assert found.verdict == ""
    assert "of which 30.0 GiB in use and 40.0 GiB in private pools, as of CUDA graphs" in found.summary()
    only(found, "a smaller batch needs less")


def test_the_setting_is_not_advised_where_it_is_on(report, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    found = report(total=80 * GiB, pools=[pool(allocated=60 * GiB, reserved=72 * GiB)])
    only(found, "fragment less")


def test_a_block_that_is_large_enough_is_no_fragmentation(report):
    assert report(pools=[pool(allocated=0, reserved=8 * GiB, largest_free=4 * GiB)]).verdict == ""


def test_less_cached_than_asked_for_is_no_fragmentation(report):
    assert report(pools=[pool(allocated=8 * GiB, reserved=9 * GiB)]).verdict == ""


def test_other_processes_are_named_when_they_hold_much(report):
    found = report(used=79 * GiB, total=80 * GiB, process=19 * GiB)
    assert found.others_bytes == 60 * GiB
    only(found, "other processes hold 60.0 GiB of this GPU, this one 19.0 GiB")


def test_other_processes_that_hold_little_are_not_blamed(report):
    assert report(used=21 * GiB, total=80 * GiB, process=20 * GiB).advice == ()


def test_what_another_library_caches_is_named_with_the_way_to_give_it_back(report):
    found = report(total=80 * GiB, pools=[pool(), pool("cupy", GiB, 11 * GiB), pool("jax", 0, 3 * GiB)])
    only(found, "cupy holds 10.0 GiB that it does not use: cupy.get_default_memory_pool().free_all_blocks()")


def test_a_limit_of_torchs_own_is_named(report):
    found = report(free=70 * GiB, allowed=10 * GiB, used=10 * GiB, total=80 * GiB, process=10 * GiB)
    only(found, "torch itself is limited to 10.0 GiB")


def test_cudas_total_is_no_limit_although_below_nvmls(report):
    found = report(free=70 * GiB, allowed=int(79.5 * GiB), used=10 * GiB, total=80 * GiB, process=10 * GiB)
    assert found.allowed_bytes is None
    assert found.advice == ()


def test_more_than_the_gpu_has_points_at_the_shapes(report):
    only(
        report(asked=1024 * GiB, used=1, total=80 * GiB, process=1),
        "1.00 TiB in one piece is more than all of this GPU",
    )


def test_nothing_is_advised_without_evidence(report):
    assert report().advice == ()


def leak(count, spread):
    """A leak of `count` pieces at line 31, amid work of line 5 that is given back."""
    rows = [("alloc", 1, 4096, {"stack": 1})]
    for number in range(count):
        rows.append(("alloc", 100 + number, 4096, {"stack": 2}))
        rows += [("alloc", 7, 512, {"stack": 1}), ("free", 7, 512, {"stack": 1})] * spread
    rows += [] if spread else [("alloc", 7, 512, {"stack": 1}), ("free", 7, 512, {"stack": 1})] * 4 * count
    return events(*rows, frames={1: [("load", "/a/train.py", 5)], 2: [("step", "/a/train.py", 31)]})


def test_pieces_made_all_through_the_run_are_suspected(report):
    only(report(events=leak(40, 1)), "40 pieces from train.py:31 step live, 160 KiB, made all through the run")


def test_pieces_made_at_the_start_are_not(report):
    found = report(events=leak(40, 0))
    assert found.largest[0].count == 40
    assert found.advice == ()


def test_few_pieces_are_not(report):
    assert report(events=leak(8, 1)).advice == ()


def test_the_history_gives_newest_allocations_and_largest_lines(report):
    frames = {1: [("load", "/a/train.py", 5)], 2: [("step", "/a/train.py", 31)]}
    found = report(
        events=events(
            ("alloc", 1, 100, {"stack": 1}),
            ("alloc", 2, 700, {"stack": 2}),
            ("alloc", 3, 300, {"stack": 1}),
            ("alloc", 4, 999, {"device": 1}),
            ("alloc", 5, 9999, {"source": "driver"}),
            frames=frames,
        )
    )
    assert [(each.bytes, each.where) for each in found.last] == [
        (300, "train.py:5 load"),
        (700, "train.py:31 step"),
        (100, "train.py:5 load"),
    ]
    assert [(each.bytes, each.count, each.where) for each in found.largest] == [
        (700, 1, "train.py:31 step"),
        (400, 2, "train.py:5 load"),
    ]


def test_the_last_allocations_have_their_regions(report):
    rows = (("alloc", 1, 5 * GiB, {"stack": 1, "region": "forward"}), ("alloc", 2, GiB, {"stack": 1}))
    found = report(events=events(*rows, frames={1: [("step", "/a/train.py", 31)]}))
    assert [each.region for each in found.last] == ["", "forward"]
    lines = [line for line in str(found).splitlines() if "train.py:31 step" in line]
    assert sum(line.endswith("train.py:31 step in forward") for line in lines) == 1


def test_what_takes_from_the_driver_itself_is_shown_the_drivers_events(report):
    found = report(library="numba", events=events(("alloc", 1, 5), ("alloc", 2, 7, {"source": "driver"})))
    assert [each.bytes for each in found.last] == [7]


def test_without_a_history_it_says_what_would_give_one(report):
    assert report().notes == (HISTORY_HINT,)


def test_a_history_without_the_librarys_memory_is_told_from_none(report):
    found = report(events=events(("alloc", 4, 999, {"device": 1})))
    assert found.notes == ("the memory history has nothing of torch there",)


@pytest.mark.parametrize("recording", [True, False])
def test_a_history_that_had_ended_is_told_as_such(report, recording):
    found = report(events=events(("alloc", 4, 999)), recording=recording)
    assert any("had ended before" in note for note in found.notes) is not recording


def test_refusals_of_the_driver_give_the_size_that_an_error_does_not_tell(report, monkeypatch):
    now = START
    refused = {"bytes": 5 * GiB, "device": 1, "library": "libcuda", "kind": "device", "stack": 3, "live_bytes": 0}
    failed = [refused | {"time_ns": now - 10**10, "bytes": 1}, refused | {"time_ns": now}]
    monkeypatch.setattr(_core, "allocation_watch", lambda: {"failed": failed})
    monkeypatch.setattr(_core, "stack_frames", lambda stack: [("step", "/a/train.py", 31)])
    monkeypatch.setattr(_core, "now_ns", lambda: now)
    found = report(asked=None, device=None, library="CUDA")
    assert (found.requested_bytes, found.device) == (5 * GiB, 1)
    assert [each["where"] for each in found.refused] == ["train.py:31 step"] * 2
    assert "refused by the driver" in str(found)


def test_a_part_that_fails_leaves_the_others(report, monkeypatch):
    monkeypatch.setattr(_core, "allocation_watch", lambda: {}["failed"])
    found = report(used=1, total=2, process=1)
    assert found.total_bytes == 2
    assert found.notes[0] == "refused not known: KeyError: 'failed'"


def test_parts_that_all_fail_leave_what_there_is(monkeypatch):
    for name in parts():
        monkeypatch.setattr(evidence, name, None)
    found = gather(Request("torch", 7, 0), "x", STACK, free=3, allowed=9)
    assert (found.free_bytes, found.total_bytes, found.pools, found.ledger) == (3, 9, (), None)


def test_host_memory_is_told_of_the_host(report, monkeypatch):
    monkeypatch.setattr(evidence, "available_memory", lambda: (3 * GiB, 8 * GiB))
    found = report(asked=9 * GiB, library="host", device=HOST)
    assert found.summary().startswith(
        "gpuscope: out of host memory: the program asked for 9.00 GiB; 3.00 GiB of 8.00 GiB free"
    )
    only(found, "more than all of this host")
    assert found.ledger is None


def test_a_thread_without_python_has_the_main_threads_stack(report):
    found = report(stack=())
    assert found.stack
    assert "the stack is the main thread's" in found.notes[0]


def test_the_whole_text_has_every_part(report):
    text = str(report(total=80 * GiB, pools=[pool(allocated=1, reserved=2)], events=leak(30, 1)))
    for part in (
        "ledger of GPU 0",
        "what lives, by line",
        "newest allocations",
        "stack, innermost first",
        "train.py:31 step",
    ):
        assert part in text


def test_the_dict_is_ready_for_json(report):
    found = report(used=5, total=9, process=2, pools=[pool(allocated=1, reserved=2)], events=leak(3, 1))
    again = json.loads(json.dumps(found.to_dict()))
    assert again["others_bytes"] == 3
    assert again["ledger"] == Ledger().to_dict()
    assert again["pools"][0]["library"] == "torch"
    assert again["stack"][1] == {"function": "step", "file": "/home/me/train.py", "line": 31}


def test_no_framework_is_imported(report, monkeypatch):
    for name in ("torch", "cupy", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    report(device=None)
    assert not {"torch", "cupy", "jax"} & sys.modules.keys()


@pytest.mark.parametrize(("in_use", "expected"), [([3], 3), ([0, 1], None), ([], None)])
def test_the_only_gpu_in_use_is_the_one(report, monkeypatch, in_use, expected):
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(_core, "devices_in_use", lambda: in_use)
    assert report(device=None, library="numba").device == expected
