# SPDX-License-Identifier: Apache-2.0
"""CuPy's pool in the memory history, by a stand-in that calls hooks as CuPy does."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from gpuscope.memory.history.events import SOURCES
from gpuscope.memory.history.history import record_memory_history


class MemoryHook:
    """As cupy.cuda.MemoryHook: a thread's hooks, by name."""

    local = threading.local()

    @classmethod
    def hooks(cls):
        if not hasattr(cls.local, "hooks"):
            cls.local.hooks = {}
        return cls.local.hooks

    def __enter__(self):
        if self.name in self.hooks():
            raise KeyError(self.name)
        self.hooks()[self.name] = self
        return self

    def __exit__(self, *_):
        del self.hooks()[self.name]


def malloc(address, size, rounded):
    for hook in MemoryHook.hooks().values():
        hook.malloc_postprocess(device_id=1, size=size, mem_size=rounded, mem_ptr=address, pmem_id=7)


def free(address, size):
    for hook in MemoryHook.hooks().values():
        hook.free_postprocess(device_id=1, mem_size=size, mem_ptr=address, pmem_id=7)


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.setattr(MemoryHook, "local", threading.local())
    module = types.SimpleNamespace(cuda=types.SimpleNamespace(MemoryHook=MemoryHook))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_pieces_are_told_with_their_rounded_size(cupy):
    with record_memory_history(numpy=False) as history:
        malloc(0x1000, 100, 512)
        free(0x1000, 512)
    events = history.events()
    assert events.address.tolist() == [0x1000, 0x1000]
    assert events.bytes.tolist() == [512, -512]
    assert events.device.tolist() == [1, 1]
    assert {SOURCES[number] for number in events.source.tolist()} == {"cupy"}
    assert events.stack[0] != 0


def test_an_allocation_that_failed_is_none(cupy):
    with record_memory_history(numpy=False) as history:
        malloc(0, 100, 512)
    assert len(history.events()) == 0


def test_the_hook_is_gone_when_the_history_has_ended(cupy):
    with record_memory_history():
        assert len(MemoryHook.hooks()) == 1
    assert MemoryHook.hooks() == {}


def test_hooks_of_the_program_may_come_and_go_meanwhile(cupy):
    theirs = MemoryHook()
    theirs.name = "theirs"
    theirs.malloc_postprocess = lambda **what: None
    history = record_memory_history(numpy=False)
    with theirs:
        malloc(0x1000, 100, 512)
        history.stop()
    assert MemoryHook.hooks() == {}
    assert len(history.events()) == 1


def test_a_history_ended_by_another_thread_is_not_told_any_more(cupy):
    record_memory_history()
    thread = threading.Thread(target=lambda: record_memory_history(None))
    thread.start()
    thread.join()
    with record_memory_history(numpy=False) as history:
        malloc(0x1000, 100, 512)
    assert len(history.events()) == 1


def test_a_cupy_without_hooks_is_a_note(cupy):
    del cupy.cuda.MemoryHook
    with record_memory_history(numpy=False) as history:
        pass
    assert any(note.startswith("CuPy's allocations are not recorded") for note in history.notes)


def test_cupy_imported_later_begins_then(tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text(
        "from test_cupy_reports import MemoryHook\nimport types\ncuda = types.SimpleNamespace(MemoryHook=MemoryHook)\n"
    )
    monkeypatch.setitem(sys.modules, "test_cupy_reports", sys.modules[__name__])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with record_memory_history(numpy=False) as history:
        import cupy  # noqa: F401

        malloc(0x1000, 100, 512)
    sys.modules.pop("cupy")
    assert len(history.events()) == 1
