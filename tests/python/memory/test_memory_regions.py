# SPDX-License-Identifier: Apache-2.0
"""Regions of the program in the memory history, in what is alive, and in the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import threading

import pytest

from fakes.frameworks import MIB, segment
from fakes.memory_events import events as events_of
from gpuscope import _core, record_function
from gpuscope.memory.history import history as history_module
from gpuscope.memory.history.events import SOURCES
from gpuscope.memory.history.history import record_memory_history
from gpuscope.memory.history.snapshot_reader import load_memory_snapshot
from gpuscope.memory.history.snapshot_writer import dump_memory_snapshot
from gpuscope.memory.usage.ledger import memory_ledger

OTHER = SOURCES.index("other")


@pytest.fixture(autouse=True)
def _ended():
    yield
    record_memory_history(None)


def tell(address):
    _core.record_memory(OTHER, 3, address, 8)


def regions(events):
    """The region's name by address."""
    rows = events.source == OTHER
    names = [events.regions[number] for number in events.region[rows]]
    return dict(zip(events.address[rows].tolist(), names, strict=True))


def test_an_event_has_the_innermost_region():
    with record_memory_history() as history:
        tell(1)
        with record_function("step"):
            tell(2)
            with record_function("forward"):
                tell(3)
            tell(4)
        tell(5)
    assert regions(history.events()) == {1: "", 2: "step", 3: "forward", 4: "step", 5: ""}


def test_a_decorated_function_is_a_region():
    @record_function("load")
    def load():
        tell(1)

    with record_memory_history() as history:
        load()
    assert regions(history.events()) == {1: "load"}


def test_an_error_ends_the_region():
    with record_memory_history() as history:
        with contextlib.suppress(ZeroDivisionError), record_function("step"):
            tell(1 // 0)
        tell(1)
    assert regions(history.events()) == {1: ""}


def test_a_region_that_was_open_before_is_not_known_nor_closed_twice():
    with record_function("early"):
        history = record_memory_history()
        with record_function("step"):
            tell(1)
    tell(2)
    assert regions(history.events()) == {1: "step", 2: ""}


def test_a_region_left_open_is_not_that_of_a_later_history():
    region = record_function("first")
    with record_memory_history():
        region.__enter__()
    region.__exit__(None, None, None)
    with record_memory_history() as history:
        tell(1)
    assert regions(history.events()) == {1: ""}


def test_tasks_that_take_turns_keep_their_regions():
    async def task(name, address):
        with record_function(name):
            for turn in range(3):
                tell(address + turn)
                await asyncio.sleep(0)

    async def both():
        await asyncio.gather(task("one", 10), task("other", 20))

    with record_memory_history() as history:
        asyncio.run(both())
    found = regions(history.events())
    assert found == {10: "one", 11: "one", 12: "one", 20: "other", 21: "other", 22: "other"}


def test_a_variable_of_the_context_changes_no_region():
    with record_memory_history() as history:
        thread = threading.Thread(target=_with_a_context_variable)  # a thread's context is made when it is needed
        thread.start()
        thread.join()
    assert regions(history.events()) == {1: "step", 2: ""}


def _with_a_context_variable():
    with record_function("step"), decimal.localcontext():
        tell(1)
    tell(2)


def test_another_threads_regions_are_not_ours():
    with record_memory_history() as history, record_function("step"):
        thread = threading.Thread(target=tell, args=(1,))
        thread.start()
        thread.join()
    assert regions(history.events()) == {1: ""}


def test_a_file_keeps_the_regions(tmp_path):
    with record_memory_history():
        with record_function("step"):
            _core.record_memory(OTHER, 0, 0x1000, 512)
        _core.record_memory(OTHER, 0, 0x2000, 512)
    loaded = load_memory_snapshot(dump_memory_snapshot(tmp_path / "memory.pickle")).events
    names = [loaded.regions[number] for number in loaded.region]
    assert dict(zip(loaded.address.tolist(), names, strict=True)) == {0x1000: "step", 0x2000: ""}


def ledger_rows(*columns):
    return {tuple(getattr(row, column) for column in columns): row.bytes / MIB for row in memory_ledger().rows}


def test_the_ledger_tells_libraries_pieces_by_region(machine):
    machine.take(8 * MIB, "libcublas.so.13", region="forward", at=("forward", "train.py", 3))
    machine.take(4 * MIB, "libcublas.so.13", region="forward")
    machine.take(2 * MIB, "libcublas.so.13")
    assert ledger_rows("library", "region", "what", "where") == {
        ("libcublas.so.13", "forward", "device memory, 2 pieces", "train.py:3 forward"): 12,
        ("libcublas.so.13", "", "device memory, 1 piece", ""): 2,
    }


@pytest.fixture
def told(monkeypatch):
    """Has the history tell these events."""

    def tell_these(*rows, **more):
        monkeypatch.setattr(history_module, "recording", lambda: True)
        monkeypatch.setattr(history_module, "history_events", lambda: events_of(*rows, **more))

    return tell_these


BASE = 1 << 40
STACKS = {1: [("step", "train.py", 12)]}


def test_the_ledger_tells_what_torch_has_handed_out_by_region(machine, told):
    machine.use_torch(segment(BASE, 30 * MIB, 20 * MIB, 10 * MIB, -4 * MIB))
    told(
        ("alloc", BASE, 30 * MIB, {"region": "forward", "stack": 1}),
        ("alloc", BASE + 30 * MIB, 20 * MIB, {"region": "backward"}),
        ("alloc", BASE + 60 * MIB, 4 * MIB, {"region": "gone"}),
        ("free", BASE + 60 * MIB, 4 * MIB),
        frames=STACKS,
    )
    assert ledger_rows("library", "what", "region", "where") == {
        ("torch", "allocated", "forward", "train.py:12 step"): 30,
        ("torch", "allocated", "backward", ""): 20,
        ("torch", "allocated", "", ""): 10,
        ("torch", "cached", "", ""): 4,
    }


def test_what_lies_in_graph_pools_is_not_told_as_allocated_too(machine, told):
    machine.use_torch(segment(BASE, 30 * MIB), segment(1 << 33, 50 * MIB, pool=(1, 0)))
    told(
        ("alloc", BASE, 30 * MIB, {"region": "forward"}),
        ("alloc", 1 << 33, 50 * MIB, {"region": "capture"}),
    )
    assert ledger_rows("what", "region") == {("allocated", "forward"): 30, ("graph pools", ""): 50}


def test_regions_never_tell_more_than_the_library_holds(machine, told):
    machine.use_torch(segment(BASE, 30 * MIB))
    told(
        ("alloc", BASE, 30 * MIB, {"region": "forward"}),
        ("alloc", BASE + (1 << 33), 40 * MIB, {"region": "unseen release"}),
    )
    assert sum(ledger_rows("what", "region").values()) == 30


def test_other_devices_and_libraries_are_left_out(machine, told):
    machine.use_torch(segment(BASE, 30 * MIB))
    told(
        ("alloc", BASE, 10 * MIB, {"region": "cupy's", "source": "cupy"}),
        ("alloc", BASE, 10 * MIB, {"region": "elsewhere", "device": 1}),
    )
    assert ledger_rows("what", "region") == {("allocated", ""): 30}


def test_the_table_has_a_column_of_regions(machine):
    machine.take(8 * MIB, "libcublas.so.13", region="forward", at=("f", "train.py", 3))
    text = str(memory_ledger())
    assert "Region" in text.splitlines()[1]
    assert "forward" in text
    assert text.splitlines()[3].endswith("train.py:3 f")
