# SPDX-License-Identifier: Apache-2.0
"""Files of memory snapshots: what is read from them, and that nothing in them can do harm."""

from __future__ import annotations

import copy
import os
import pickle
import random

import pytest

from fakes.snapshot_files import BASE, FORWARD, MIB, snapshot
from gpuscope.errors import CorruptTrace, InvalidArgument
from gpuscope.memory.events import Frame
from gpuscope.memory.snapshot_reader import OF_LIBRARIES, MemoryFile, load_memory_snapshot, load_plain_pickle


@pytest.fixture
def load(tmp_path):
    def read(content):
        path = tmp_path / "memory.pickle"
        path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
        return load_memory_snapshot(path)

    return read


def test_allocations_and_requests_to_free_become_events(load):
    events = load(snapshot()).events
    assert events.bytes.tolist() == [3 * MIB, 2 * MIB, -2 * MIB]
    assert events.time_ns.tolist() == [11_000, 12_000, 13_000]
    assert events.address.tolist() == [BASE, BASE + 4 * MIB, BASE + 4 * MIB]
    assert events.lifetimes().alive.tolist() == [True, False]


def test_the_running_sums_end_at_what_the_segments_hold(load):
    events = load(snapshot()).events
    assert events.allocated_bytes.tolist() == [4 * MIB, 6 * MIB, 4 * MIB]
    assert set(events.reserved_bytes.tolist()) == {22 * MIB}


def test_call_stacks_are_kept_innermost_first(load):
    events = load(snapshot()).events
    assert events.frames(int(events.stack[1])) == (
        Frame("forward", "/site-packages/torch/nn/modules/linear.py", 134),
        Frame("step", "/home/me/train.py", 12),
    )
    assert events.frames(int(events.stack[2])) == ()


def test_equal_stacks_have_one_number(load):
    content = snapshot()
    content["device_traces"][0][1]["frames"] = copy.deepcopy(FORWARD)
    events = load(content).events
    assert events.stack[0] == events.stack[1] != 0


def test_segments_settings_and_refusals_are_told(load):
    found = load(snapshot())
    assert [piece.bytes for piece in found.segments] == [20 * MIB, 2 * MIB]
    assert found.graph_pools(0) == ((BASE + 64 * MIB, BASE + 66 * MIB),)
    assert found.settings["max_split_size"] == -1
    assert found.refused_bytes == (900 * MIB,)


def test_events_of_several_devices_are_in_order_of_time(load):
    content = snapshot()
    content["device_traces"][1] = [{"action": "alloc", "addr": BASE, "size": 512, "time_us": 12, "frames": []}]
    events = load(content).events
    assert events.device.tolist() == [0, 0, 1, 0]


def test_a_snapshot_without_history_has_no_events(load):
    found = load({"segments": [], "device_traces": []})
    assert (len(found.events), found.segments) == (0, ())
    assert len(found.events.lifetimes()) == 0


ODD = [{"action": "alloc", "addr": 4096, "size": 513, "time_us": 1}]


def test_torchs_sizes_are_of_whole_blocks(load):
    assert load({"segments": [], "device_traces": [ODD]}).events.bytes.tolist() == [1024]


def test_gpuscopes_sizes_stay_as_they_are(load):
    found = load({"segments": [], "device_traces": [ODD], "gpuscope": {"notes": [], "lost": 0}})
    assert found.events.bytes.tolist() == [513]


def test_what_a_library_took_from_the_driver_is_not_torchs(load):
    content = snapshot()
    size = content["segments"][0]["total_size"]
    library = {**content["segments"][0], "address": 1 << 40, "allocated_size": size}
    before = load(content).events
    content["segments"].append(library)
    for action in ("segment_alloc", "alloc"):
        entry = {"action": action, "addr": 1 << 40, "size": size, "time_us": 20, "source": "driver"}
        content["device_traces"][0].append(entry)
    found = load(content).events
    assert found.source.tolist() == [*before.source.tolist(), OF_LIBRARIES]
    assert found.allocated_bytes.tolist() == [*before.allocated_bytes.tolist(), 0]


def test_what_gpuscope_lost_and_noted_is_told(load):
    found = load({**snapshot(), "gpuscope": {"lost": 12, "notes": ["one GPU was busy"]}})
    assert (found.events.lost, found.notes) == (12, ("one GPU was busy",))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_binary_protocol_is_read(load, protocol):
    assert len(load(pickle.dumps(snapshot(), protocol)).events) == 3


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
def test_code_in_a_file_does_not_run(load, tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorruptTrace, match="something else than plain data"):
        load(pickle.dumps({**snapshot(), "x": Harm()}, protocol))
    assert not (tmp_path / "harm").exists()


def test_a_file_cut_off_at_any_byte_is_told_as_such(load):
    data = pickle.dumps(snapshot())
    for length in range(len(data)):
        with pytest.raises(CorruptTrace, match="no whole memory snapshot") as caught:
            load(data[:length])
        assert caught.value.offset <= length


def test_a_damaged_file_gives_a_sound_result_or_an_error(load):
    data = pickle.dumps(snapshot())
    chance = random.Random(7)
    for _ in range(1200):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        try:
            found = load(bytes(damaged))
        except CorruptTrace:
            continue
        assert isinstance(found, MemoryFile)
        assert len(found.events.lifetimes()) <= len(found.events)
        assert all(len(found.events.frames(int(stack))) >= 0 for stack in found.events.stack)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "the file is no dict"),
        ({"device_traces": []}, "it has no segments"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": -4}]]}, "size of an entry"),
        ({"segments": [], "device_traces": [["alloc"]]}, "an event is no dict"),
        ({"segments": [{"device": 0}]}, "address of an entry"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 62}] * 3]}, "add up to more"),
    ],
)
def test_plain_data_of_another_kind_is_no_snapshot(load, content, words):
    with pytest.raises(CorruptTrace, match=words):
        load(content)


def test_a_missing_file_is_the_arguments_fault(tmp_path):
    with pytest.raises(InvalidArgument, match=r"path is .*; there is no such file"):
        load_memory_snapshot(tmp_path / "none.pickle")


# Each would have the standard library's reader allocate gigabytes or never end.
HUGE = {
    "a memo entry far away": b"\x80\x04}r\xff\xff\xff\x7f",
    "a string that the file has no room for": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "bytes that the file has no room for": b"\x80\x04B\xff\xff\xff\xff.",
    # Each tuple holds the one before twice.
    "keys of keys of keys": b"\x80\x04}K\x01\x85"
    + b"".join(b"\x94h" + bytes([level]) + b"\x86" for level in range(20))
    + b"K\x01s.",
}


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE.keys())
def test_a_few_bytes_do_not_fill_the_memory(load, data):
    with pytest.raises(CorruptTrace, match="no whole memory snapshot"):
        load(data)


def test_shared_and_recursive_data_are_read():
    inner = [1]
    inner.append(inner)
    found = load_plain_pickle(pickle.dumps({"a": inner, "b": inner}))
    assert found["a"] is found["b"]
    assert found["a"][1] is found["a"]


@pytest.mark.parametrize(
    "value", [None, True, -1, 255, 65535, 1 << 40, -(1 << 70), 0.5, "ü\udc80", "x" * 300, b"y" * 300]
)
def test_every_kind_of_value_is_read(value):
    assert load_plain_pickle(pickle.dumps({"v": [value, (value,), (value,) * 4]})) == {
        "v": [value, (value,), (value,) * 4]
    }


def test_a_path_that_is_none_is_named():
    with pytest.raises(InvalidArgument, match=r"path must be a str or an os\.PathLike of str, got int"):
        load_memory_snapshot(3)
