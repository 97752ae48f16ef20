# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import types

import pytest

from fakes.memory_events import START, STEP, events
from gpuscope import _core
from gpuscope.memory.history.history import times_at
from gpuscope.memory.history.leaks import free_memory

ROWS = (("alloc", 1, 512), ("alloc", 2, 512), ("free", 1, 512))


def test_a_position_lies_before_the_event_that_follows():
    assert times_at(events(*ROWS), [0, 2, 3]) == [START, START + 2 * STEP, START + 2 * STEP + 1]


def test_a_position_that_is_no_longer_kept_lies_before_all():
    assert times_at(events(*ROWS, lost=5), [4, 5]) == [-1, START]


def test_without_events_no_time_is_known():
    assert times_at(events(), [0, 0]) == [-1, -1]


@pytest.fixture
def nvml(monkeypatch):
    facts = {"free": 50 << 30}
    monkeypatch.setattr(_core, "process_memory", lambda device: facts)
    return facts


def test_free_memory_is_what_the_driver_has_and_what_allocators_hold_unused(nvml):
    held = {"allocated_bytes": 2 << 30, "reserved_bytes": 5 << 30}
    assert free_memory(0, events(("alloc", 1, 512, held))) == 53 << 30


def test_without_nvml_pytorch_is_asked(nvml, monkeypatch):
    nvml["free"] = None
    cuda = types.SimpleNamespace(is_initialized=lambda: True, mem_get_info=lambda device: (7 << 30, 80 << 30))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert free_memory(0, events()) == 7 << 30


def test_what_nobody_tells_is_not_known(nvml, monkeypatch):
    nvml["free"] = None
    monkeypatch.setitem(sys.modules, "torch", None)
    assert free_memory(0, events()) is None


def test_the_host_has_no_figure(nvml):
    assert free_memory(-1, events()) is None
