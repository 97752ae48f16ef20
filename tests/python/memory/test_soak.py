# SPDX-License-Identifier: Apache-2.0
"""What runs for days takes no more memory than what runs for a minute."""

from __future__ import annotations

import gc
import threading

import pytest

from gpuscope import _core
from gpuscope.memory.history.events import SOURCES
from gpuscope.memory.history.history import record_memory_history
from gpuscope.memory.host import resident_bytes
from gpuscope.memory.usage import tracking
from gpuscope.memory.usage.peak_counters import reset_peak
from gpuscope.memory.usage.tracking import memory_stages, reset_memory_stages, track_memory

OTHER = SOURCES.index("other")
ROUNDS = 2_000
KEPT = 500_000  # bytes: 250 a round


@pytest.fixture(autouse=True)
def fresh():
    reset_memory_stages()
    yield
    record_memory_history(None)
    reset_memory_stages()


def block(number):
    with track_memory("block", quiet=True) as stage:
        pass
    assert stage.peak_bytes


def statement(number):
    track_memory("statement", quiet=True)


@track_memory("decorator")
def decorated():
    pass


def decorator(number):
    decorated()


def restart(number):
    reset_peak()
    reset_memory_stages()


def history(number):
    with record_memory_history(max_entries=(100, 100_000)[number % 2]) as kept:
        _core.record_memory(OTHER, 3, 0x1000 + number, 512)
    assert len(kept.events()) >= 1


def thread(number):
    def work():
        with record_memory_history(max_entries=100):
            statement(number)

    made = threading.Thread(target=work)
    made.start()
    made.join()


def names(number):
    with track_memory(f"step {number} of a program that makes up names", quiet=True):
        pass


@pytest.mark.parametrize("run", [block, statement, decorator, restart, history, thread, names])
def test_resident_memory_stays_flat(run, monkeypatch):
    monkeypatch.setattr(tracking, "MOST_STAGES", 100)
    for number in range(ROUNDS // 4):
        run(number)
    gc.collect()
    before = resident_bytes()
    for number in range(ROUNDS):
        run(number)
    gc.collect()
    assert resident_bytes() - before < KEPT


def test_a_history_that_goes_on_takes_no_more_than_its_ring():
    with record_memory_history(max_entries=1_000):
        for number in range(2_000):
            _core.record_memory(OTHER, 3, 0x1000 + number, 512)
        before = resident_bytes()
        for number in range(100_000):
            _core.record_memory(OTHER, 3, 0x1000 + number, 512)
        assert resident_bytes() - before < KEPT


def test_further_names_than_are_kept_are_counted_together(monkeypatch):
    monkeypatch.setattr(tracking, "MOST_STAGES", 2)
    for name in ("a", "b", "c", "d", "a", "c"):
        with track_memory(name, "cpu", quiet=True):
            pass
    assert [(stage.name, stage.count) for stage in memory_stages().stages] == [("a", 2), ("b", 1), ("(other names)", 3)]
