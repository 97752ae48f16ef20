# SPDX-License-Identifier: Apache-2.0
"""The collector of one profiler: a session of the core, and the window open in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.profiler.activities import ProfilerActivity
from gpuscope.units import parse_bytes

if TYPE_CHECKING:
    from gpuscope.profiler.schedules import ProfilerAction

_MODES = ("full", "ring", "aggregate")
_GRAPHS = ("node", "launch")
_LEAST_BYTES = 1 << 20

# What a forked child holds of its parent: ending it would touch threads and buffers that are the parent's.
_of_parents: list[_core.Session] = []


class Collector:
    """Starts a session when something is to be collected, and opens and closes its windows.

    Attributes:
        window_open: whether events are kept at the moment.
        notes: what was asked for and cannot be had.
    """

    def __init__(
        self,
        *,
        cuda: bool,
        mode: str,
        graphs: str,
        sync: bool,
        max_bytes: int | str,
        ring_seconds: float,
        stacks: bool = False,
        memory: bool = False,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        _check_choice("mode", mode, _MODES)
        _check_choice("graphs", graphs, _GRAPHS)
        self._cuda, self._mode, self._graphs, self._sync = cuda, mode, graphs, bool(sync)
        self._max_bytes = parse_bytes("max_bytes", max_bytes, _LEAST_BYTES)
        self._ring_ns = _nanoseconds("ring_seconds", ring_seconds)
        self._stacks = stacks and mode != "aggregate" and _core.knows_stacks()
        self._memory = memory
        self.notes: list[str] = []
        if stacks and not self._stacks:
            keeps_none = "mode='aggregate' keeps no events, and so none of their stacks"
            unknown = "call stacks cannot be read in this build of Python"
            self.notes.append(f"with_stack: {keeps_none if mode == 'aggregate' else unknown}")
        self._left_out = set(left_out)
        self._session: _core.Session | None = None
        self.window_open = False

    @property
    def collecting(self) -> bool:
        """Whether there is a session, recording or not."""
        return self._session is not None

    def begin(self, action: ProfilerAction) -> bool:
        """Does what a step needs that begins with `action`; returns whether a window was opened."""
        if not action.collects:
            return False
        if self._session is None:
            self._session = _core.Session(
                cuda=self._cuda,
                mode=self._mode,
                graphs=self._graphs,
                sync=self._sync,
                max_bytes=self._max_bytes,
                ring_ns=self._ring_ns,
                stacks=self._stacks,
                memory=self._memory,
                left_out=self._left_out,
            )
        opens = action.records and not self.window_open
        if opens:
            self._session.open()
            self.window_open = True
        return opens

    def switch(self, activities: frozenset[ProfilerActivity], on: bool) -> None:
        """Records these activities or leaves them out from now on, within the open window."""
        if self._session is not None:
            if ProfilerActivity.CUDA in activities:
                self._session.switch_gpu(on)
            if ProfilerActivity.CPU in activities:
                self._session.switch_regions(on)

    def cut(self) -> _core.Store | None:
        """Closes the window and hands it over; the session goes on."""
        self.window_open = False
        return self._session.cut() if self._session else None

    def stop(self) -> _core.Store | None:
        """Ends the session, handing over the window if one is open."""
        self.window_open = False
        session, self._session = self._session, None
        return session.stop() if session else None

    def release_cupti(self) -> bool:
        """Ends the recording of GPU work in this session, for another profiler; False when there was none."""
        return self._session is not None and self._session.release_cupti()

    def abandon(self) -> None:
        """Gives the session up without ending it, in a forked child."""
        self.window_open = False
        if self._session is not None:
            _of_parents.append(self._session)
            self._session = None


def _check_choice(argument: str, value: object, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise InvalidArgument(f"{argument} is {value!r}; accepted are {', '.join(map(repr, accepted))}")


def _nanoseconds(argument: str, seconds: float) -> int:
    number = not isinstance(seconds, bool) and isinstance(seconds, (int, float))
    if not number or not math.isfinite(seconds) or not 1e-3 <= seconds <= 1e9:
        raise InvalidArgument(f"{argument} is {seconds!r}; accepted are seconds from 0.001 to 1e9")
    return round(seconds * 1e9)
