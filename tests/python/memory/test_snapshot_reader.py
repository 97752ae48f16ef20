# SPDX-License-Identifier: Apache-2.0
"""Files of memory snapshots: what is read from them, and that nothing in them can do harm."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
import random
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.snapshot_files import BASE, FORWARD, LOAD, MIB, snapshot
from gpuscope.errors import CorruptTrace, InvalidArgument
from gpuscope.memory.history.categories import PARAMETER
from gpuscope.memory.history.events import Frame, Storage
from gpuscope.memory.history.plain_pickle import load_plain_pickle
from gpuscope.memory.history.snapshot_reader import OF_LIBRARIES, MemoryFile, load_memory_snapshot


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


def test_tensors_that_live_at_the_end_are_read(load):
    content = snapshot()
    content["gpuscope"] = {"notes": [], "lost": 0, "tensors": [(BASE, 3 * MIB, 0, "PARAMETER"), (BASE + 1, 4, 0, "")]}
    tensors = load(content).events.at_end().tensors
    assert tensors == {BASE: Storage(PARAMETER, 3 * MIB, 0), BASE + 1: Storage(None, 4, 0)}


def test_torchs_own_files_have_no_tensors(load):
    at_end = load(snapshot()).events.at_end()
    assert (at_end.tensors, len(at_end.graph_pools)) == (None, 1)


@pytest.mark.parametrize("tensor", [3, (1, 2, 3), (-1, 4, 0, ""), (1, "4", 0, ""), (1, 4, -1, ""), [1, 4, 0, ""]])
def test_tensors_that_are_none_are_refused(load, tensor):
    with pytest.raises(CorruptTrace):
        load(snapshot() | {"gpuscope": {"tensors": [tensor]}})


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


def test_without_requests_memory_is_given_back_when_that_is_completed(load):
    content = snapshot()
    trace = content["device_traces"][0]
    trace[:] = [entry for entry in trace if entry["action"] != "free_requested"]
    del content["segments"][1:]
    content["segments"][0]["active_size"] = 5 * MIB
    events = load(content).events
    assert events.bytes.tolist() == [3 * MIB, 2 * MIB, -2 * MIB]
    assert events.allocated_bytes.tolist() == [5 * MIB, 7 * MIB, 5 * MIB]


def with_blocks(content, *blocks):
    """Those of the first segment, each (state, stack), of a MiB and behind what the trace has."""
    content["segments"][0]["blocks"] = [
        {"address": BASE + (10 + number) * MIB, "size": MIB, "state": state, "frames": stack}
        for number, (state, stack) in enumerate(blocks)
    ]
    return content


def test_what_lives_at_the_end_was_allocated_before_a_history_without_it(load):
    events = load(with_blocks(snapshot(), ("active_allocated", LOAD))).events
    assert (events.bytes[0], events.address[0], events.time_ns[0]) == (MIB, BASE + 10 * MIB, 10_000)
    assert events.allocated_bytes.tolist() == [m * MIB for m in (1, 4, 6, 4)]
    assert events.frames(int(events.stack[0])) == (Frame("load", "/home/me/train.py", 5),)


@pytest.mark.parametrize("block", [("inactive", LOAD), ("active_pending_free", LOAD), ("active_allocated", [])])
def test_blocks_that_are_given_back_or_have_no_stack_are_no_events(load, block):
    assert len(load(with_blocks(snapshot(), block)).events) == 3


def test_a_block_that_the_history_has_is_no_event_of_its_own(load):
    content = snapshot()
    content["segments"][0]["blocks"][0]["frames"] = LOAD
    assert len(load(content).events) == 3


def test_what_lives_at_the_end_has_its_lines_without_any_history(load):
    events = load(with_blocks({**snapshot(), "device_traces": []}, ("active_allocated", LOAD))).events
    assert (events.bytes.tolist(), events.lifetimes().alive.tolist()) == ([MIB], [True])


def test_blocks_of_old_files_have_their_lines_in_a_history(load):
    content = with_blocks({**snapshot(), "device_traces": []}, ("active_allocated", None))
    block = content["segments"][0]["blocks"][0]
    del block["frames"], block["address"]
    block["history"] = [{"addr": BASE, "real_size": MIB, "frames": LOAD}, {"addr": BASE, "real_size": MIB}]
    events = load(content).events
    assert events.frames(int(events.stack[0])) == (Frame("load", "/home/me/train.py", 5),)


def test_a_list_of_segments_alone_is_read(load):
    found = load(snapshot()["segments"])
    assert ([piece.bytes for piece in found.segments], len(found.events)) == ([20 * MIB, 2 * MIB], 0)


@pytest.mark.parametrize(
    ("number", "name"), [((0, 0), "default"), ((1, 0), "graph (1, 0)"), ((0, 1), "private (0, 1)")]
)
def test_pools_are_named_by_who_made_them(load, number, name):
    content = snapshot()
    content["segments"][1]["segment_pool_id"] = number
    found = load(content)
    assert (found.segments[1].pool, len(found.graph_pools(0))) == (name, number != (0, 0))


def test_refusals_are_in_the_order_of_time_with_their_devices(load):
    content = snapshot()
    content["device_traces"][1] = [{"action": "oom", "size": 7 * MIB, "time_us": 3}]
    found = load(content)
    assert (found.refused_bytes, found.refused_devices) == ((7 * MIB, 900 * MIB), (1, 0))


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


HUGE_SEGMENT = {"device": 0, "address": 1, "total_size": 1, "allocated_size": 1 << 62}
HUGE_FREE = {"action": "free_requested", "addr": 1, "size": 1 << 62}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("memory", "the file is no dict"),
        ([1, 2], "a segment is no dict"),
        ({"device_traces": []}, "it has no segments"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": -4}]]}, "size of an entry"),
        ({"segments": [], "device_traces": [["alloc"]]}, "an event is no dict"),
        ({"segments": [{"device": 0}]}, "address of an entry"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 62}] * 3]}, "add up to more"),
        ({"segments": [HUGE_SEGMENT], "device_traces": [[{**HUGE_FREE}]]}, "add up to more"),
        ({"segments": [{**HUGE_SEGMENT, "blocks": [{}] * 999}] * 99, "device_traces": []}, "one list of blocks"),
    ],
)
def test_plain_data_of_another_kind_is_no_snapshot(load, content, words):
    with pytest.raises(CorruptTrace, match=words):
        load(content)


def test_a_missing_file_is_the_arguments_fault(tmp_path):
    with pytest.raises(InvalidArgument, match=r"path is .*; there is no such file"):
        load_memory_snapshot(tmp_path / "none.pickle")


PICKLE_OF = b"\x80\x04}"  # protocol 4, a dict
NUMBER = pickle.dumps(10**5000)[2:-1]

# Each would have the standard library's reader, or what looks at its result, allocate gigabytes or never end.
HUGE = {
    "lists of the same list twice": b"\x80\x04]\x94" + b"".join(b"]\x94(h%ch%ce" % (n, n) for n in range(40)) + b".",
    "a number of 5,000 digits": PICKLE_OF + b"\x8c\x01a" + NUMBER + b"s.",
    "a number of 2 GB": PICKLE_OF + b"\x8b\xff\xff\xff\x7f.",
    "a number of digits": b"\x80\x02L" + b"9" * 5000 + b"L\n.",
    "marks of marks": b"\x80\x04" + b"(" * 1_000_000,
    "lists that nothing takes": b"\x80\x04" + b"]" * 2_000_000,
    "a tuple of tuples": b"\x80\x04)" + b"\x85" * 1_000_000 + b".",
    "a list of lists": b"\x80\x04" + b"]" * 900_000 + b"a" * 899_999 + b".",
    "keys whose hashes collide": PICKLE_OF
    + b"("
    + b"".join(b"\x8a\x0c" + (key * (2**61 - 1)).to_bytes(12, "little") + b"N" for key in range(1, 50_000))
    + b"u.",
    "a list that holds itself": b"\x80\x04]\x94h\x00a.",
    "a memo entry far away": b"\x80\x04}r\xff\xff\xff\x7f",
    "a string that the file has no room for": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x0f.",
    "bytes that the file has no room for": b"\x80\x04B\xff\xff\xff\xff.",
    # Each tuple holds the one before twice.
    "keys of keys of keys": b"\x80\x04}K\x01\x85"
    + b"".join(b"\x94h" + bytes([level]) + b"\x86" for level in range(20))
    + b"K\x01s.",
}


@contextlib.contextmanager
def at_most(seconds):
    """Fails a test that would otherwise hang: by its CPU time, of which a busy machine gives less."""

    def ring(*_):
        raise AssertionError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("data", HUGE.values(), ids=HUGE.keys())
def test_a_few_bytes_neither_fill_the_memory_nor_take_long(load, data):
    with at_most(20), pytest.raises(CorruptTrace, match=r"is no (whole )?memory snapshot: ") as caught:
        load(data)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


EVENT = {"action": "alloc", "addr": 1, "size": 512, "time_us": 1, "frames": []}


def test_one_list_of_events_for_many_devices_is_refused(load):
    trace = [EVENT] * 10_000
    with at_most(20), pytest.raises(CorruptTrace, match="it has one list of events for several devices"):
        load({"segments": [], "device_traces": [trace] * 1000})


def test_many_segments_and_many_devices_are_read_in_time(load):
    segment = {"device": 0, "address": BASE, "total_size": 512, "allocated_size": 0}
    with at_most(60):
        found = load({"segments": [segment] * 100_000, "device_traces": [[EVENT] for _ in range(1000)]})
    assert (len(found.segments), len(found.events)) == (100_000, 1000)


def test_settings_that_hold_one_another_are_left_out(load):
    nested = []
    for _ in range(40):
        nested = [nested, nested]
    found = load({"segments": [], "device_traces": [], "allocator_settings": {"good": True, "bad": nested}})
    assert found.settings == {"good": True}
    assert len(repr(found)) < 2000


def test_a_graph_pool_of_a_huge_number_is_refused(load):
    content = snapshot()
    content["segments"][0]["segment_pool_id"] = (10**36, 1)
    with pytest.raises(CorruptTrace, match="the pool of a segment"):
        load(content)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path, make):
    make(tmp_path / "memory.pickle")
    with at_most(20), pytest.raises(InvalidArgument, match=r"which is a (named pipe|directory); accepted are regular"):
        load_memory_snapshot(tmp_path / "memory.pickle")


def test_a_device_is_refused():
    with at_most(20), pytest.raises(InvalidArgument, match=r"path is '/dev/zero', which is a device; accepted are"):
        load_memory_snapshot("/dev/zero")


def test_a_file_of_a_terabyte_of_nothing_is_refused(tmp_path):
    with open(tmp_path / "memory.pickle", "wb") as file:
        file.truncate(1 << 40)
    with at_most(20), pytest.raises(CorruptTrace, match="something else than plain data, at byte 1"):
        load_memory_snapshot(tmp_path / "memory.pickle")


REAL = (pickle.dumps(snapshot(), 4), pickle.dumps(snapshot(), 2))


@st.composite
def mutated(draw):
    """A snapshot's file with bytes changed, taken out, put in, or written twice."""
    data = bytearray(draw(st.sampled_from(REAL)))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(data) - 1))
        end = min(len(data), start + draw(st.integers(0, 40)))
        data[start:end] = draw(st.one_of(st.binary(max_size=12), st.just(bytes(data[start:end]) * 3)))
        if not data:
            break
    return bytes(data)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated())
def test_any_mutation_is_a_sound_result_or_one_sentence(load, data):
    found = None
    with contextlib.suppress(CorruptTrace):
        found = load(data)
    if found is None:
        with pytest.raises(CorruptTrace, match=r"\A.{1,400}\Z"):  # one line
            load(data)
        return
    assert len(found.events.lifetimes()) <= len(found.events)
    repr(found)


def test_shared_and_recursive_data_are_read():
    inner = [1]
    inner.append(inner)
    found = load_plain_pickle(io.BytesIO(pickle.dumps({"a": inner, "b": inner})))
    assert found["a"] is found["b"]
    assert found["a"][1] is found["a"]


@pytest.mark.parametrize(
    "value", [None, True, -1, 255, 65535, 1 << 40, -(1 << 70), 0.5, "ü\udc80", "x" * 300, b"y" * 300]
)
def test_every_kind_of_value_is_read(value):
    assert load_plain_pickle(io.BytesIO(pickle.dumps({"v": [value, (value,), (value,) * 4]}))) == {
        "v": [value, (value,), (value,) * 4]
    }


def test_a_path_that_is_none_is_named():
    with pytest.raises(InvalidArgument, match=r"path must be a str or an os\.PathLike of str, got int"):
        load_memory_snapshot(3)
