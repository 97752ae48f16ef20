# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory.history.fragments import fragmentation, fragmentation_of

MIB = 1 << 20


@dataclass(frozen=True)
class Block:
    bytes: int
    state: str


@dataclass(frozen=True)
class Segment:
    blocks: tuple
    pool: str = "default"
    expandable: bool = False
    small: bool = False

    @property
    def bytes(self):
        return sum(block.bytes for block in self.blocks)

    @property
    def allocated_bytes(self):
        return sum(block.bytes for block in self.blocks if block.state == "active_allocated")


STATES = {"+": "active_allocated", "-": "inactive", "~": "active_awaiting_free"}


def segment(*blocks, **more):
    """Blocks as "+4 -2": 4 MiB in use, 2 MiB free; "~" awaits its release."""
    return Segment(tuple(Block(int(one[1:]) * MIB, STATES[one[0]]) for one in " ".join(blocks).split()), **more)


CHEQUERED = [segment("+30 -20 +20 -30") for _ in range(10)]
UNUSED = [segment("+20"), segment("-80"), segment("-60")]
TIDY = [segment("+100"), segment("+99 -1")]


def settings(segments):
    return [one.setting for one in fragmentation_of(segments).advice]


def test_free_memory_is_counted_in_bytes_and_pieces():
    found = fragmentation_of(CHEQUERED)
    assert (found.reserved_bytes, found.allocated_bytes, found.free_bytes) == (1000 * MIB, 500 * MIB, 500 * MIB)
    assert (found.free_blocks, found.largest_free_bytes) == (20, 30 * MIB)


def test_what_lies_between_blocks_in_use_is_stuck():
    found = fragmentation_of([*CHEQUERED, segment("-40")])
    assert (found.stuck_bytes, found.stuck_blocks, found.stuck_segments, found.releasable_bytes) == (
        500 * MIB,
        20,
        10,
        40 * MIB,
    )


def test_the_request_that_fails_though_enough_is_free_is_told():
    assert fragmentation_of(CHEQUERED).fails_above_bytes == 30 * MIB


def test_one_free_piece_fails_nothing_that_it_holds():
    assert fragmentation_of(TIDY).fails_above_bytes is None


def test_small_segments_cannot_serve_large_requests():
    small = segment("+1 -200", small=True, expandable=True)
    found = fragmentation_of([small, segment("+10 -5"), segment("+10 -4")])
    assert (found.largest_free_bytes, found.fails_above_bytes, found.free_bytes) == (200 * MIB, 5 * MIB, 209 * MIB)


def test_what_awaits_its_release_is_not_free():
    found = fragmentation_of([segment("+10 ~5 -5")])
    assert (found.free_bytes, found.awaiting_bytes) == (5 * MIB, 5 * MIB)


def test_what_graphs_keep_is_not_free():
    found = fragmentation_of([segment("+10 -5"), segment("+10 -50", pool="graph (1, 0)")])
    assert (found.free_bytes, found.graph_free_bytes) == (5 * MIB, 50 * MIB)


def test_the_ratio_is_the_share_outside_of_the_largest_piece():
    assert fragmentation_of(CHEQUERED).ratio == pytest.approx(1 - 30 / 500)
    assert fragmentation_of([segment("+20")]).ratio == 0


def test_gaps_call_for_segments_that_grow():
    assert settings(CHEQUERED)[0] == "expandable_segments:True"


def test_gaps_left_of_large_blocks_call_for_a_limit_of_splitting():
    segments = [segment("+8 -192") for _ in range(4)]
    assert settings(segments) == ["expandable_segments:True", "max_split_size_mb:21"]


def test_segments_that_grow_already_need_nothing():
    segments = [segment("+30 -20 +20 -30", expandable=True) for _ in range(10)]
    (advice,) = fragmentation_of(segments).advice
    assert advice.setting == "none needed"
    assert "expandable already" in advice.why


def test_unused_segments_after_a_peak_call_for_emptying_the_cache():
    assert settings(UNUSED) == ["torch.cuda.empty_cache()", "garbage_collection_threshold:0.8"]


def test_a_tidy_pool_needs_nothing():
    (advice,) = fragmentation_of(TIDY).advice
    assert (advice.setting, advice.bytes) == ("none needed", 0)


def test_a_few_free_megabytes_need_nothing():
    assert settings([segment("+10 -30")]) == ["none needed"]


def test_advice_rests_on_its_number():
    advice = fragmentation_of(CHEQUERED).advice[0]
    assert advice.bytes == 500 * MIB
    assert "500 MiB are free in 20 pieces of 10 segments" in advice.why


def test_no_segments_are_no_fragmentation():
    assert (fragmentation_of([]).reserved_bytes, settings([])) == (0, ["none needed"])


def test_the_text():
    assert str(fragmentation_of([segment("+30 -2 ~8"), segment("-4", pool="graph (1, 0)")], 1)) == "\n".join(
        [
            "fragmentation of GPU 1: 30.0 MiB of 44.0 MiB reserved are in use, 14.0 MiB (32 %) are not",
            "free: 2.00 MiB in 1 piece, the largest 2.00 MiB; 2.00 MiB of it in 1 segment with blocks in use",
            "also: 8.00 MiB wait for other streams",
            "also: 4.00 MiB are kept in private pools, as of CUDA graphs",
            "advice: none needed: 2.00 MiB (5 % of the reserved memory) are free, the usual cost of caching",
        ]
    )


def test_lines_fit_a_terminal():
    text = str(fragmentation_of([*CHEQUERED, *UNUSED, segment("+8 -192")]))
    assert max(map(len, text.splitlines())) <= 100


def test_it_is_plain_values_too():
    found = json.loads(json.dumps(fragmentation_of(CHEQUERED).to_dict()))
    assert found["advice"][0]["setting"] == "expandable_segments:True"


def source(monkeypatch, segments):
    monkeypatch.setattr("gpuscope.memory.history.fragments.segments", segments)


def test_the_segments_of_the_device_are_asked_for(monkeypatch):
    source(monkeypatch, lambda device: CHEQUERED if device == 2 else [])
    assert fragmentation(2).device == 2


@pytest.mark.parametrize(("gpu", "said"), [("", "PyTorch holds no memory on GPU 0"), ("no driver", "no driver")])
def test_without_memory_there_is_none_and_it_says_why(monkeypatch, gpu, said):
    monkeypatch.setattr("gpuscope.memory.history.fragments.why_no_gpu", lambda: gpu)
    source(monkeypatch, lambda device: ())
    with pytest.raises(NotAvailable, match=f"^fragmentation is not available: {said}$"):
        fragmentation(0)


def test_an_allocator_that_cannot_tell_is_said_to(monkeypatch):
    def refuse(device):
        raise RuntimeError("cudaMallocAsync does not yet support")

    source(monkeypatch, refuse)
    with pytest.raises(NotAvailable, match="cudaMallocAsync does not yet support"):
        fragmentation(0)


def test_an_error_of_the_allocator_is_one_sentence(monkeypatch):
    def refuse(device):
        raise RuntimeError("no segments here\nException raised from snapshot at ...")

    source(monkeypatch, refuse)
    with pytest.raises(NotAvailable, match=r"^fragmentation is not available: .*no segments here\)$"):
        fragmentation(0)


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_an_allocator_of_another_kind_is_named_though_it_tells_of_no_memory(monkeypatch, backend):
    torch = SimpleNamespace(cuda=SimpleNamespace(get_allocator_backend=lambda: backend))
    monkeypatch.setitem(sys.modules, "torch", torch)
    source(monkeypatch, lambda device: ())
    said = f"PyTorch cannot say, as its allocator is {backend}, which reports neither allocations nor segments"
    with pytest.raises(NotAvailable, match=f"^fragmentation is not available: {said}$"):
        fragmentation(0)


@pytest.mark.parametrize("device", ["cpu", "cuda:x", -1, True])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(InvalidArgument, match=r"^device is .*; accepted are an ordinal"):
        fragmentation(device)
