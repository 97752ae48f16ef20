# SPDX-License-Identifier: Apache-2.0
"""The watch of the driver's allocations where there is no GPU, and the way that it makes for torch.profiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuscope import _core
from gpuscope.memory import allocation_watch

CUDA = SimpleNamespace(name="CUDA")
CPU = SimpleNamespace(name="CPU")


@pytest.fixture
def no_gpu() -> None:
    if _core.watch_allocations(False) == "":
        _core.unwatch_allocations()
        pytest.skip("this machine has a GPU")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_says_why() -> None:
    assert allocation_watch.watch_allocations() != ""
    state = _core.allocation_watch()
    assert state["watching"] is False
    assert state["why"] != ""


@pytest.mark.usefixtures("no_gpu")
def test_ending_what_never_began_does_nothing() -> None:
    _core.unwatch_allocations()
    allocation_watch.unwatch_allocations()
    assert _core.allocation_watch()["watching"] is False


@pytest.mark.usefixtures("no_gpu")
def test_without_a_watch_nothing_lives() -> None:
    columns = dict(_core.live_allocations())
    assert isinstance(columns.pop("libraries"), list)
    assert columns.pop("regions") == [""]
    assert {name: (column.size, column.dtype) for name, column in columns.items()} == {
        "address": (0, np.uint64),
        "bytes": (0, np.int64),
        "kind": (0, np.uint8),
        "device": (0, np.int32),
        "pool": (0, np.uint64),
        "library": (0, np.uint32),
        "stack": (0, np.uint32),
        "region": (0, np.uint32),
        "thread": (0, np.uint64),
        "time_ns": (0, np.int64),
    }


@pytest.mark.usefixtures("no_gpu")
def test_state_without_a_watch() -> None:
    state = dict(_core.allocation_watch())
    state.pop("why")
    assert isinstance(state.pop("cupti_path"), str)
    assert state == {
        "watching": False,
        "from_start": state["from_start"],
        "gaps": 0,
        "unknown_releases": 0,
        "missed": 0,
        "failed": [],
        "contexts": 0,
        "modules": 0,
        "code_bytes": 0,
        "services": [],
    }


def test_kinds_by_number() -> None:
    assert _core.ALLOCATION_KINDS == ("device", "pool", "managed", "pinned", "virtual", "array")


class Core:
    """A core whose watch can be had."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.why = ""

    def watch_allocations(self, stacks: bool) -> str:
        self.calls.append("watch")
        return self.why

    def unwatch_allocations(self) -> None:
        self.calls.append("unwatch")

    def pause_allocation_watch(self, why: str) -> None:
        assert "torch.profiler" in why
        self.calls.append("pause")

    def resume_allocation_watch(self) -> str:
        self.calls.append("resume")
        return ""


class Profiler(ModuleType):
    """torch.autograd.profiler, as far as it is asked."""

    def __init__(self) -> None:
        super().__init__("torch.autograd.profiler")
        self.begun: list[Any] = []
        self._prepare_profiler = self._enable_profiler = self.begin
        self._disable_profiler = self.end

    def begin(self, config: Any, activities: Any) -> str:
        self.begun.append(activities)
        return "begun"

    def end(self) -> str:
        return "results"


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    core = Core()
    monkeypatch.setattr(allocation_watch, "_core", core)
    monkeypatch.setattr(allocation_watch, "_pause", allocation_watch._TorchProfilerPause())
    monkeypatch.setattr(allocation_watch, "_users", 0)
    yield core
    while allocation_watch._users:
        allocation_watch.unwatch_allocations()
    allocation_watch._pause.subscriber.stop()


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Profiler:
    profiler = Profiler()
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", profiler)
    return profiler


def test_torch_profiler_gets_cupti_and_gives_it_back(core: Core, profiler: Profiler) -> None:
    allocation_watch.watch_allocations()
    assert profiler._prepare_profiler("config", [CPU, CUDA]) == "begun"
    assert profiler._disable_profiler() == "results"
    assert core.calls == ["watch", "pause", "resume"]
    assert profiler.begun == [[CPU, CUDA]]


def test_torch_profiler_of_the_cpu_disturbs_nothing(core: Core, profiler: Profiler) -> None:
    allocation_watch.watch_allocations()
    profiler._enable_profiler("config", [CPU])
    profiler._disable_profiler()
    assert core.calls == ["watch"]


def test_watch_goes_on_after_a_torch_profiler_that_fails(core: Core, profiler: Profiler) -> None:
    def fail() -> None:
        raise RuntimeError("theirs")

    profiler._disable_profiler = fail  # type: ignore[assignment]
    allocation_watch.watch_allocations()
    profiler._enable_profiler("config", [CUDA])
    with pytest.raises(RuntimeError, match="theirs"):
        profiler._disable_profiler()
    assert core.calls == ["watch", "pause", "resume"]


def test_watch_goes_on_after_a_torch_profiler_that_does_not_begin(core: Core, profiler: Profiler) -> None:
    def fail(config: Any, activities: Any) -> None:
        raise RuntimeError("theirs")

    profiler._enable_profiler = fail  # type: ignore[assignment]
    allocation_watch.watch_allocations()
    with pytest.raises(RuntimeError, match="theirs"):
        profiler._enable_profiler("config", [CUDA])
    assert core.calls == ["watch", "pause", "resume"]


def test_torch_is_as_it_was_after_the_last_user(core: Core, profiler: Profiler) -> None:
    before = profiler._prepare_profiler, profiler._enable_profiler, profiler._disable_profiler
    allocation_watch.watch_allocations()
    allocation_watch.watch_allocations()
    allocation_watch.unwatch_allocations()
    assert profiler._enable_profiler != before[1]
    allocation_watch.unwatch_allocations()
    assert (profiler._prepare_profiler, profiler._enable_profiler, profiler._disable_profiler) == before


def test_a_torch_profiler_that_outlasts_the_watch_is_waited_for(core: Core, profiler: Profiler) -> None:
    before = profiler._enable_profiler
    allocation_watch.watch_allocations()
    profiler._enable_profiler("config", [CUDA])
    allocation_watch.unwatch_allocations()
    profiler._disable_profiler()
    assert core.calls == ["watch", "pause", "unwatch", "resume"]
    assert profiler._enable_profiler == before
    allocation_watch.watch_allocations()
    profiler._enable_profiler("config", [CUDA])
    assert core.calls[4:] == ["watch", "pause"]


def test_torch_is_left_alone_where_nothing_is_watched(core: Core, profiler: Profiler) -> None:
    core.why = "no driver"
    assert allocation_watch.watch_allocations() == "no driver"
    assert profiler._enable_profiler == profiler.begin


def test_what_others_wrapped_stays_and_works_again(core: Core, profiler: Profiler) -> None:
    allocation_watch.watch_allocations()
    ours = profiler._enable_profiler
    profiler._enable_profiler = lambda config, activities: ours(config, activities)  # type: ignore[method-assign]
    theirs = profiler._enable_profiler
    allocation_watch.unwatch_allocations()
    assert profiler._enable_profiler is theirs
    profiler._enable_profiler("config", [CUDA])
    assert core.calls == ["watch", "unwatch"]
    allocation_watch.watch_allocations()
    profiler._enable_profiler("config", [CUDA])
    assert core.calls == ["watch", "unwatch", "watch", "pause"]


def test_torch_that_is_imported_later_gets_cupti(core: Core, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    profiler = Profiler()
    allocation_watch.watch_allocations()
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", profiler)
    __import__("torch")
    profiler._enable_profiler("config", [CUDA])
    assert core.calls == ["watch", "pause"]
    sys.modules.pop("torch")
