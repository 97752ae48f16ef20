# SPDX-License-Identifier: Apache-2.0
"""torch's own profiler, switched on for us on a thread, and shared by all of gpuscope that needs it there.

torch takes one profiler a thread. Ours is on in the state in which it hands ranges and reports of allocations to the
place that ``TorchRanges`` registered; it steps aside where torch.profiler is started, and comes back when that ends.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from weakref import WeakSet

from gpuscope._core import TorchRanges
from gpuscope.memory.reports import torch_entrances, torch_probe

_NO_GRAPH_TASK = -1


@dataclass(frozen=True)
class Need:
    """What somebody needs torch's profiler for.

    Attributes:
        ranges: operators.
        shapes: those of the operators' inputs.
        memory: reports of allocations.
    """

    ranges: bool = False
    shapes: bool = False
    memory: bool = False


class Use:
    """One need, on the thread that makes it, until `end`.

    Args:
        need: what for.
        stepped_aside: called when torch.profiler takes the place, on its thread.
        coming_back: called before ours takes it again.
    """

    def __init__(self, need: Need, stepped_aside: Callable[[], None], coming_back: Callable[[], None]) -> None:
        self.need = need
        self.stepped_aside = stepped_aside
        self.coming_back = coming_back
        self._thread = _threads.here
        with _lock:
            self._thread.uses.append(self)
            try:
                self._thread.adjust()
            except BaseException:
                self._thread.uses.remove(self)
                raise
            torch_entrances.add(_listener)

    def end(self) -> bool:
        """Ends it, on any thread.

        Returns:
            False when torch's profiler stays on in the thread that began it, as nobody else can end it. There it
            still makes room for torch.profiler.
        """
        with _lock:
            if self in self._thread.uses:
                self._thread.uses.remove(self)
            own = self._thread is _threads.here
            if own:
                self._thread.adjust()
            _listen_no_more()
            return own or self._thread.on is None


def why_not() -> str:
    """Why torch's profiler cannot be used on this thread; "" when it can."""
    if "torch" not in sys.modules:
        return "torch has not been imported"
    here = _threads.here
    here.end_leftover()
    if here.on is None and torch_probe.torch_profiles():
        return "torch.profiler runs on this thread already"
    return torch_probe.shortfall()


class _Thread:
    """One thread's profiler of torch, as far as it is ours."""

    def __init__(self) -> None:
        self.uses: list[Use] = []
        self.on: Need | None = None  # what it is on for
        self.aside = False  # one of torch's own runs in its place
        self.leftover = False  # a backward pass brings back what was ended within it

    def adjust(self) -> None:
        """Brings torch's profiler to what is needed now. On the thread itself."""
        needs = [] if self.aside else [astuple(use.need) for use in self.uses]
        wanted = Need(*(any(asked) for asked in zip(*needs, strict=True))) if needs else None
        if self.on == wanted:
            return
        if self.on is not None and (
            wanted is None or (wanted.ranges, wanted.shapes) != (self.on.ranges, self.on.shapes)
        ):
            self._switch_off()
        if wanted is not None:
            if self.on is None:
                self._switch_on(wanted)
            if wanted.memory and torch_probe.memory_arrives():
                TorchRanges.watch_memory(keep_ranges=wanted.ranges)
            self.on = wanted

    def end_leftover(self) -> None:
        """Ends what autograd brought back: it restores what was on when a backward pass began, at its end."""
        if self.leftover and self.on is None:
            self.leftover = False
            if torch_probe.torch_profiles():
                torch_probe.disable(told=False)

    def step_aside(self) -> None:
        """A profiler of torch's own begins."""
        self.end_leftover()
        if self.on is not None:
            self.aside = True
            self.adjust()
            for use in self.uses:
                use.stepped_aside()

    def come_back(self) -> None:
        """It has ended."""
        if self.aside:
            self.aside = False
            for use in self.uses:
                use.coming_back()
            self.adjust()

    def _switch_on(self, wanted: Need) -> None:
        self.end_leftover()
        TorchRanges.use(True)
        torch_probe.enable(wanted.shapes, told=wanted.ranges)
        _on.add(self)

    def _switch_off(self) -> None:
        told = self.on is not None and self.on.ranges and not self.aside
        self.on = None
        task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", lambda: _NO_GRAPH_TASK)
        self.leftover = task() != _NO_GRAPH_TASK
        _on.discard(self)
        if torch_probe.torch_profiles():  # not when it was switched on within a backward pass that has ended
            torch_probe.disable(told)
        TorchRanges.use(bool(_on))


class _Threads(threading.local):
    def __init__(self) -> None:
        self.here = _Thread()
        with _lock:
            _known.add(self.here)


# Whatever fails here must not fail torch.profiler.
def _begins() -> None:
    with _lock, contextlib.suppress(Exception):
        _threads.here.step_aside()


def _ended() -> None:
    with _lock, contextlib.suppress(Exception):
        _threads.here.come_back()
        _listen_no_more()


def _listen_no_more() -> None:
    # A profiler of torch's that starts has to end ours first, wherever that is still on.
    if not any(thread.uses or thread.on or thread.aside or thread.leftover for thread in _known):
        torch_entrances.remove(_listener)


_lock = threading.RLock()
_known: WeakSet[_Thread] = WeakSet()
_on: WeakSet[_Thread] = WeakSet()
_threads = _Threads()
_listener = torch_entrances.Listener(begins=_begins, ended=_ended)
