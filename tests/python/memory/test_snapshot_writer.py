# SPDX-License-Identifier: Apache-2.0
"""The file for PyTorch's memory_viz, read by PyTorch's own reader."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
import pickletools
import random
import subprocess
import sys
import types

import pytest

from fakes.memory_events import HOST, START, events
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.memory.history import history as history_module
from gpuscope.memory.history import snapshot_writer as torch_pickle
from gpuscope.memory.history.categories import PARAMETER
from gpuscope.memory.history.events import AtEnd, Storage
from gpuscope.memory.history.history import record_memory_history
from gpuscope.memory.history.peak import peak_memory
from gpuscope.memory.history.snapshot_reader import load_memory_snapshot
from gpuscope.memory.history.snapshot_writer import dump_memory_snapshot, torch_snapshot

MIB = 1 << 20
STACKS = {
    1: [("step", "/home/train.py", 12), ("main", "/home/train.py", 40)],
    2: [("load", "/home/data.py", 7)],
}
BASE = 0x7F00_0000_0000


@pytest.fixture
def viz():
    pytest.importorskip("torch")
    from torch.cuda import _memory_viz

    return _memory_viz


@pytest.fixture
def given(monkeypatch):
    """Has the history be these events."""

    def give(*rows, **more):
        at_end = more.pop("at_end", AtEnd)
        recorded = dataclasses.replace(events(*rows, frames=STACKS, **more), at_end=at_end)
        monkeypatch.setattr(torch_pickle, "history_events", lambda: recorded)

    return give


@pytest.fixture
def no_history(monkeypatch):
    monkeypatch.setattr(history_module, "_last", None)


@pytest.fixture
def torch_with(monkeypatch):
    """A torch that uses a GPU and has these segments."""

    def make(*segments, **more):
        whole = {"segments": list(segments), "device_traces": [[]], "allocator_settings": {"a": 1}, **more}
        cuda = types.SimpleNamespace(
            is_initialized=lambda: True,
            memory=types.SimpleNamespace(_snapshot=lambda: whole),
            memory_snapshot=lambda: whole["segments"],
        )
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
        return cuda

    return make


def segment(address, *blocks, **more):
    """Blocks are (size, state)."""
    made, at = [], address
    for size, state in blocks:
        made.append({"address": at, "size": size, "requested_size": size, "state": state, "frames": []})
        at += size
    in_use = sum(size for size, state in blocks if state != "inactive")
    return {
        "device": 0,
        "address": address,
        "total_size": at - address,
        "allocated_size": in_use,
        "active_size": in_use,
        "requested_size": in_use,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": made,
        **more,
    }


def actions(snapshot, device=0):
    return [(entry["action"], entry["addr"]) for entry in snapshot["device_traces"][device]]


def load(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def named(frames):
    return [frame["name"] for frame in frames]


def test_entries_are_those_of_torch(given, torch_with):
    torch_with(segment(BASE, (2 * MIB, "inactive")))
    given(("alloc", BASE, 512, {"stack": 1}), ("free", BASE, 512))
    first, requested, completed = torch_snapshot()["device_traces"][0]
    assert first == {
        "action": "alloc",
        "addr": BASE,
        "size": 512,
        "stream": 0,
        "time_us": START // 1000,
        "frames": [
            {"name": "step", "filename": "/home/train.py", "line": 12},
            {"name": "main", "filename": "/home/train.py", "line": 40},
        ],
    }
    assert [requested["action"], completed["action"]] == ["free_requested", "free_completed"]
    assert completed["size"] == 512


def test_blocks_get_the_stacks_of_the_history_and_keep_their_own(given, torch_with):
    theirs = segment(BASE, (512, "active_allocated"), (512, "active_allocated"), (1024, "inactive"))
    theirs["blocks"][1]["frames"] = [{"name": "own", "filename": "a.py", "line": 1}]
    torch_with(theirs)
    given(("alloc", BASE, 512, {"stack": 2}), ("alloc", BASE + 512, 512, {"stack": 1}))
    (found,) = torch_snapshot()["segments"]
    assert [named(block["frames"]) for block in found["blocks"]] == [["load"], ["own"], []]


def test_what_torch_told_is_not_changed(given, torch_with):
    theirs = segment(BASE, (512, "active_allocated"))
    torch_with(theirs)
    given(("alloc", BASE, 512, {"stack": 2}))
    torch_snapshot()
    assert theirs["blocks"][0]["frames"] == []


def test_every_device_has_its_trace(given, torch_with):
    torch_with(segment(BASE, (512, "active_allocated")))
    given(("alloc", BASE, 512), ("alloc", BASE + 8 * MIB, 64, {"device": 2}), ("alloc", 0x1000, 32, {"device": -1}))
    assert [len(trace) for trace in torch_snapshot()["device_traces"]] == [1, 0, 1]


def test_settings_of_the_allocator_go_along(given, torch_with):
    torch_with(segment(BASE, (512, "inactive")))
    given(("alloc", BASE, 512))
    assert torch_snapshot()["allocator_settings"] == {"a": 1}


def test_what_others_took_from_the_driver_is_a_segment(given, torch_with):
    torch_with(segment(BASE, (2 * MIB, "inactive")))
    workspace = BASE + 64 * MIB
    given(("alloc", BASE, 2 * MIB, {"source": "driver"}), ("alloc", workspace, MIB, {"source": "driver", "stack": 2}))
    snapshot = torch_snapshot()
    assert actions(snapshot) == [("segment_alloc", BASE), ("segment_alloc", workspace), ("alloc", workspace)]
    assert snapshot["device_traces"][0][-1]["source"] == "driver"
    assert [found["address"] for found in snapshot["segments"]] == [BASE, workspace]
    (block,) = snapshot["segments"][1]["blocks"]
    assert (block["size"], block["state"], named(block["frames"])) == (MIB, "active_allocated", ["load"])


def test_a_pools_piece_from_the_driver_has_the_pools_blocks(given, torch_with):
    torch_with()
    chunk = BASE + 64 * MIB
    given(
        ("alloc", chunk, MIB, {"source": "driver"}),
        ("alloc", chunk + 512, 1024, {"source": "cupy"}),
        ("alloc", chunk + 4096, 512, {"source": "cupy"}),
        ("free", chunk + 4096, 512, {"source": "cupy"}),
    )
    (found,) = torch_snapshot()["segments"]
    assert [(block["size"], block["state"]) for block in found["blocks"]] == [
        (512, "inactive"),
        (1024, "active_allocated"),
        (MIB - 1536, "inactive"),
    ]


def test_a_piece_mapped_into_an_expandable_segment_is_a_mapping(given, torch_with):
    torch_with(segment(BASE, (40 * MIB, "inactive"), is_expandable=True))
    given(("alloc", BASE + 20 * MIB, 20 * MIB, {"source": "driver"}))
    assert actions(torch_snapshot()) == [("segment_map", BASE + 20 * MIB)]


def test_what_an_expandable_segment_gave_back_is_unmapped(given, torch_with):
    torch_with(segment(BASE, (40 * MIB, "inactive"), is_expandable=True))
    piece = (BASE + 20 * MIB, 20 * MIB, {"source": "driver"})
    given(("alloc", *piece), ("free", *piece), ("alloc", *piece))
    assert [action for action, _ in actions(torch_snapshot())] == ["segment_map", "segment_unmap", "segment_map"]


def test_a_segment_that_is_gone_untold_comes_and_goes_around_its_pieces(given, torch_with):
    torch_with(segment(BASE, (2 * MIB, "inactive")))
    gone = BASE + 100 * MIB
    given(("alloc", BASE, 512), ("alloc", gone, 512), ("free", gone, 512), ("free", BASE, 512))
    assert [action for action, address in actions(torch_snapshot()) if address == gone] == [
        *("segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"),
    ]


def test_what_is_implied_does_not_reach_over_a_segment_that_is_told(given, torch_with):
    torch_with(segment(BASE + MIB, (512, "inactive")))
    before, after = BASE, BASE + MIB + 512
    given(("alloc", before, 512), ("alloc", after, 512), ("free", before, 512), ("free", after, 512))
    assert [address for action, address in actions(torch_snapshot()) if action == "segment_alloc"] == [before, after]


def test_of_two_pieces_in_one_place_the_later_one_lives(given):
    given(("alloc", 0x1000, 512, {"device": -1}), ("alloc", 0x1100, 64, {"device": -1, "stack": 2}))
    (found,) = torch_snapshot()["segments"]
    assert [named(block["frames"]) for block in found["blocks"] if block["state"] == "active_allocated"] == [["load"]]


def test_without_a_gpu_the_host_is_device_0_and_the_file_says_so(given):
    given(("alloc", 0x1000, 512, {"device": -1}))
    snapshot = torch_snapshot()
    assert actions(snapshot) == [("alloc", 0x1000)]
    assert "device 0 is the host's" in snapshot["gpuscope"]["notes"][0]


def test_frames_of_one_stack_are_in_the_file_once(given, tmp_path):
    given(*[("alloc", 4096 * number, 8, {"device": -1, "stack": 1 + number % 2}) for number in range(1, 1000)])
    path = dump_memory_snapshot(tmp_path / "a.pickle")
    first, second, third, *_ = load(path)["device_traces"][0]
    assert first["frames"] is third["frames"]
    assert first["frames"] is not second["frames"]


def test_without_a_history_the_file_is_torchs_own(no_history, torch_with):
    theirs = [segment(BASE, (512, "active_allocated"))]
    torch_with(*theirs, device_traces=[[{"action": "alloc"}]])
    snapshot = torch_snapshot()
    assert snapshot["segments"] == theirs
    assert snapshot["device_traces"] == [[{"action": "alloc"}]]
    assert "gpuscope" not in snapshot  # torch's sizes are those that were asked for


def test_without_either_it_says_what_to_call(no_history, tmp_path):
    with pytest.raises(NotAvailable, match=r"record_memory_history\(\)"):
        dump_memory_snapshot(tmp_path / "a.pickle")
    assert list(tmp_path.iterdir()) == []


def test_an_allocator_without_snapshots_is_survived_with_a_note(given, torch_with):
    def refuse():
        raise RuntimeError("cudaMallocAsync does not yet support snapshots")

    torch_with().memory._snapshot = refuse
    given(("alloc", BASE, 512, {"stack": 1}))
    snapshot = torch_snapshot()
    assert "does not yet support" in snapshot["gpuscope"]["notes"][0]
    assert [found["address"] for found in snapshot["segments"]] == [BASE]


def test_an_allocator_without_snapshots_is_the_reason_where_nothing_was_recorded(no_history, torch_with, tmp_path):
    def refuse():
        raise RuntimeError("cudaMallocAsync does not yet support snapshots\nException raised from ...")

    torch_with().memory._snapshot = refuse
    said = r"no history was recorded, and torch does not tell of its segments: RuntimeError: cudaMallocAsync does not "
    with pytest.raises(NotAvailable, match=said + r"yet support snapshots; call gpuscope\.record_memory_history"):
        dump_memory_snapshot(tmp_path / "a.pickle")


def test_a_torch_without_the_whole_snapshot_tells_its_segments(given, torch_with):
    cuda = torch_with(segment(BASE, (512, "active_allocated")))
    del cuda.memory._snapshot
    given(("alloc", BASE, 512, {"stack": 2}))
    assert named(torch_snapshot()["segments"][0]["blocks"][0]["frames"]) == ["load"]


# -- PyTorch's own reader --------------------------------------------------------------------------------------------


def scene(given, torch_with):
    theirs = segment(BASE, (512, "active_allocated"), (21 * MIB - 512, "inactive"))
    torch_with(theirs, segment(BASE + 64 * MIB, (22 * MIB, "inactive")))
    gone, workspace = BASE + 100 * MIB, BASE + 200 * MIB
    given(
        ("free", BASE + 1024, 512),  # taken before the history began
        ("alloc", workspace, 30 * MIB, {"source": "driver", "stack": 2}),
        ("alloc", gone, 20 * MIB, {"source": "driver"}),
        ("alloc", gone, 512, {"stack": 1}),
        ("alloc", BASE, 512, {"stack": 1}),
        ("free", gone, 512),
        ("free", gone, 20 * MIB, {"source": "driver"}),
        ("alloc", BASE + 64 * MIB, 512),
        ("free", BASE + 64 * MIB, 512),
        lost=3,
    )


def test_the_reader_sums_the_segments_up(given, torch_with, viz):
    scene(given, torch_with)
    text = viz.segsum(torch_snapshot())
    assert "segments: 3" in text
    assert "total_reserved: 73.0MiB" in text


def test_the_reader_prints_the_trace(given, torch_with, viz):
    scene(given, torch_with)
    text = viz.trace(torch_snapshot())
    assert "Device 0" in text
    assert "cudaMalloc" in text
    assert text.count("cudaFree") == 1


def test_the_reader_pairs_what_was_taken_and_given_back(given, torch_with, viz):
    scene(given, torch_with)
    with contextlib.redirect_stdout(io.StringIO()) as complaints:
        page = viz.trace_plot(torch_snapshot(), filter_freed=True)
    assert "snapshot.pickle" in page
    assert complaints.getvalue() == ""


@pytest.mark.parametrize("view", ["trace_plot", "segment_plot"])
def test_the_reader_makes_a_page_of_a_file(view, tmp_path):
    torch = pytest.importorskip("torch")
    with record_memory_history(max_entries=20, numpy=False):
        kept = [torch.empty(100 + number) for number in range(100)]  # more than there is room for
        path = dump_memory_snapshot(tmp_path / "host.pickle")
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "torch.cuda._memory_viz", view, str(path), "-o", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "MemoryViz.js" in page.read_text()
    assert load(path)["gpuscope"]["lost"] == 80
    del kept


def test_what_torch_really_allocates_on_the_host_sums_up(viz):
    import torch

    model = torch.nn.Linear(300, 300)
    with record_memory_history():
        for _ in range(3):
            model(torch.ones(20, 300)).sum().backward()
            model.zero_grad()
        kept = torch.ones(1000)
        snapshot = torch_snapshot()
    assert "total_allocated: 0.0B" not in viz.segsum(snapshot)
    assert "entries" in viz.trace(snapshot)
    del kept


def walk_back(snapshot, device=0):
    """What the viewer does to draw the state at each event, from the last one on: every piece has to lie in a segment.

    Returns the bytes of segments and of pieces before the first event.
    """
    segments = {part["address"]: part["total_size"] for part in snapshot["segments"] if part["device"] == device}
    pieces = {
        block["address"]: block["size"]
        for part in snapshot["segments"]
        for block in part["blocks"]
        if part["device"] == device and block["state"] == "active_allocated"
    }
    for entry in reversed(snapshot["device_traces"][device]):
        action, address, size = entry["action"], entry["addr"], entry["size"]
        if action == "alloc":
            pieces.pop(address, None)
        elif action == "free_completed":
            pieces[address] = size
        elif action == "segment_alloc":
            assert segments.pop(address) == size
        elif action == "segment_free":
            assert address not in segments
            segments[address] = size
        for at in pieces:
            assert any(start <= at < start + length for start, length in segments.items()), (entry, hex(at))
    return sum(segments.values()), sum(pieces.values())


def run_of(seed, driver, torch_tells):
    """Events of a pool that takes chunks from the driver, and torch's segments at their end."""
    rng = random.Random(seed)
    chunks, pieces, rows = {}, {}, []
    for number in range(120):
        if number in (20, 60):  # a library's own
            rows += [("alloc", BASE + (100 + number) * MIB, 512, {"source": "driver"})] * driver
        if number == 80:
            rows += [("free", BASE + 160 * MIB, 512, {"source": "driver"})] * driver
        choice = rng.random()
        if choice < 0.15 or not chunks:
            chunk = BASE + rng.randrange(30) * MIB
            if all(chunk + 2 * MIB <= at or at + 2 * MIB <= chunk for at in chunks):
                chunks[chunk] = 2 * MIB
                rows += [("alloc", chunk, 2 * MIB, {"source": "driver"})] * driver
        elif choice < 0.6:
            address = rng.choice(list(chunks)) + 512 * rng.randrange(4096)
            if address not in pieces:
                pieces[address] = 512
                rows.append(("alloc", address, 512))
        elif choice < 0.92:
            if pieces:
                address = rng.choice(list(pieces))
                rows.append(("free", address, pieces.pop(address)))
        else:
            for chunk in [at for at in chunks if not any(at <= piece < at + 2 * MIB for piece in pieces)]:
                del chunks[chunk]
                rows += [("free", chunk, 2 * MIB, {"source": "driver"})] * driver
    told = []
    for chunk in chunks if torch_tells else ():
        blocks = [(512, "active_allocated" if chunk + 512 * at in pieces else "inactive") for at in range(4096)]
        told.append(segment(chunk, *blocks))
    kept = 512 * driver
    return rows, told, sum(pieces.values()) + kept, sum(chunks.values()) + kept


@pytest.fixture(params=range(8))
def seed(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["driver watched", "driver unwatched"])
def driver(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["segments told", "segments untold"])
def torch_tells(request):
    return request.param


@pytest.mark.parametrize("lost", [0, 50])
def test_the_viewer_can_walk_back_through_every_event(seed, driver, torch_tells, lost, given, torch_with):
    rows, told, _, _ = run_of(seed, driver, torch_tells)
    torch_with(*told)
    given(*rows[lost:], lost=lost)
    held, taken = walk_back(torch_snapshot())
    if lost == 0:
        assert taken == 0
    if lost == 0 and driver:
        assert held == 0


def test_the_readers_sums_are_those_of_the_run(seed, driver, torch_tells, given, torch_with, viz):
    rows, told, in_use, reserved = run_of(seed, driver, torch_tells)
    torch_with(*told)
    given(*rows)
    text = viz.segsum(torch_snapshot())
    if torch_tells or not driver:  # what no allocator is known to divide counts as a whole
        assert f"total_allocated: {viz.Bytes(in_use)}" in text
    if driver:
        assert f"total_reserved: {viz.Bytes(reserved)}" in text


# What the viewer's own unpickler knows, as of its source (torch/utils/viz/MemoryViz.js).
VIEWER = {
    *("APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1"),
    *("LONG_BINGET", "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND"),
    *("NEWFALSE", "BINPUT", "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT", "TUPLE", "TUPLE1"),
    *("TUPLE3", "LONG_BINPUT", "LIST", "DICT", "SETITEM"),
}


def test_the_file_holds_nothing_that_the_viewer_cannot_read(given, torch_with, tmp_path):
    scene(given, torch_with)
    found = {code.name for code, _, _ in pickletools.genops(dump_memory_snapshot(tmp_path / "a.pkl").read_bytes())}
    assert found <= VIEWER


# -- the path --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.pickle", "a.pkl", "a"])
def test_the_path_comes_back_and_a_file_of_that_name_is_replaced(name, given, tmp_path):
    given(("alloc", 0x1000, 512, {"device": -1}))
    (tmp_path / name).write_text("old")
    assert dump_memory_snapshot(str(tmp_path / name)) == tmp_path / name
    assert "segments" in load(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_another_suffix_is_refused(given, tmp_path):
    given()
    with pytest.raises(InvalidArgument, match=r"^path is '.*a\.json'; accepted are"):
        dump_memory_snapshot(tmp_path / "a.json")


def test_a_folder_that_is_missing_is_told(given, tmp_path):
    given()
    with pytest.raises(GpuscopeError, match="does not exist"):
        dump_memory_snapshot(tmp_path / "none" / "a.pickle")


def test_a_write_that_fails_leaves_the_old_file(given, tmp_path, monkeypatch):
    given(("alloc", 0x1000, 512, {"device": -1}))
    path = tmp_path / "a.pickle"
    path.write_text("old")

    def fail(*args, **kwargs):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(pickle, "dump", fail)
    with pytest.raises(GpuscopeError, match="No space left"):
        dump_memory_snapshot(path)
    assert path.read_text() == "old"
    assert [left.name for left in tmp_path.iterdir()] == ["a.pickle"]


@pytest.mark.parametrize(("device", "stands_as"), [(1, 1), (HOST, 0)])
def test_a_file_has_the_categories_that_the_history_has(given, tmp_path, device, stands_as):
    tensors = {BASE: Storage(PARAMETER, MIB, device)}
    given(("alloc", BASE, MIB, {"stack": 1, "device": device}), at_end=lambda: AtEnd(tensors))
    found = load_memory_snapshot(dump_memory_snapshot(tmp_path / "memory.pickle")).events
    assert found.at_end().tensors == {BASE: Storage(PARAMETER, MIB, stands_as)}
    assert [one.name for one in peak_memory(found).categories] == ["parameter"]


def test_a_file_without_known_tensors_says_so(given, tmp_path):
    given(("alloc", BASE, MIB, {"stack": 1}))
    assert torch_snapshot()["gpuscope"]["tensors"] is None
    assert load_memory_snapshot(dump_memory_snapshot(tmp_path / "memory.pickle")).events.at_end().tensors is None
