# SPDX-License-Identifier: Apache-2.0
"""Programs on a simulated machine whose every delay is known: how long they take, also with something changed.

>>> program = QueueProgram()
>>> kernel = program.launch(50_000)
>>> wait = program.sync()
>>> program.step()
>>> program.run().wall_ns
62500
>>> program.run(Changed(unwaited={wait})).trace()

An operation is known by the number that adding it returns. Times in ns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fakes.recordings import make_trace
from gpuscope._core import CallKind
from gpuscope.diagnosis import Edit, Steps
from gpuscope.trace import NONE, Trace

START = 1_700_000_000_000_000_000
LAUNCH = 4_000  # a call that launches
LATENCY = 2_500  # from its end to the start on an idle stream
GAP = 1_200  # from work to work
SYNC = 3_000  # a call that waits and need not
WAKE = 5_000  # from the end of work to that of the call that waited for it
COPY_CALL = 4_000  # a copy that returns at once; one that waits, if it need not
COPY_OFFSET = 9_000  # from the beginning of a copying call that waits to that of the copy
COPY_WAKE = 3_500
HAND_OVER = 6_000  # from one thread to another that waits for it
QUEUE = 1_024  # so many launches may be queued

NAMES = {
    "cuLaunchKernel": CallKind.LAUNCH,
    "cuStreamSynchronize": CallKind.SYNC,
    "cuCtxSynchronize": CallKind.SYNC,
    "cuMemcpyHtoDAsync": CallKind.MEMCPY,
    "cuMemcpyDtoHAsync": CallKind.MEMCPY,
    "cuStreamWaitEvent": CallKind.SYNC,
}
PAGEABLE, PINNED, DEVICE = 1, 2, 3


class Operation(NamedTuple):
    what: str
    time: int = 0
    stream: int = 0
    other: int = 0
    thread: int = 0


@dataclass(frozen=True)
class Changed:
    """What is different from the program as it was written."""

    unwaited: Collection[int] = ()
    removed: Collection[int] = ()  # calls
    hidden: Collection[int] = ()  # host work
    factors: Mapping[int, float] = field(default_factory=dict)  # of kernels and copies


class QueueProgram:
    """Operations of threads that run one after the other, unless they are added with `beside`."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.thread = 0

    def _add(self, what: str, time: int = 0, stream: int = 0, other: int = 0) -> int:
        self.operations.append(Operation(what, time, stream, other, self.thread))
        return len(self.operations) - 1

    def host(self, time: int) -> int:
        """The thread computes."""
        return self._add("host", time)

    def launch(self, time: int, stream: int = 0) -> int:
        """A kernel of so long."""
        return self._add("launch", time, stream)

    def copy(self, time: int, stream: int = 0) -> int:
        """From pageable memory: the call returns when it is done."""
        return self._add("copy", time, stream)

    def fetch(self, time: int, stream: int = 0) -> int:
        """To pinned memory: the call returns at once."""
        return self._add("fetch", time, stream)

    def sync(self) -> int:
        """Waits for the stream that the thread used last."""
        return self._add("sync")

    def sync_device(self) -> int:
        return self._add("sync_device")

    def hold(self, stream: int, other: int) -> int:
        """What comes next on a stream waits for what is on the other."""
        return self._add("hold", 0, stream, other)

    def hand_over(self, thread: int) -> int:
        """The thread waits, and another does what follows."""
        number = self._add("hand_over", HAND_OVER, thread)
        self.thread = thread
        return number

    def step(self) -> int:
        return self._add("step")

    def run(self, changed: Changed | None = None) -> Run:
        return Run(self.operations, changed or Changed())

    def edit(self, changed: Changed) -> Edit:
        """The same as rows of the recording of the program as it was written."""
        run = self.run()

        def calls(of: Collection[int]) -> Any:
            return np.array([run.call_of[each] for each in sorted(of) if each in run.call_of], np.int64)

        kernels = [each for each in sorted(changed.factors) if each in run.kernel_of]
        copies = [each for each in sorted(changed.factors) if each in run.copy_of]
        return Edit(
            unwaited=calls(changed.unwaited),
            removed_calls=calls(changed.removed),
            host_spans=np.array([run.spans[each] for each in sorted(changed.hidden)], np.int64).reshape(-1, 3),
            kernels=np.array([run.kernel_of[each] for each in kernels], np.int64),
            kernel_factors=np.array([changed.factors[each] for each in kernels], float),
            copies=np.array([run.copy_of[each] for each in copies], np.int64),
            copy_factors=np.array([changed.factors[each] for each in copies], float),
        )


class Run:
    """One run of a program: when it did what."""

    def __init__(self, operations: list[Operation], changed: Changed) -> None:
        self.calls: list[tuple[str, int, int, int]] = []  # name, start, end, thread
        self.kernels: list[tuple[int, int, int, int]] = []  # start, end, call, stream
        self.copies: list[tuple[int, int, int, int, bool]] = []  # and whether to the device
        self.call_of: dict[int, int] = {}
        self.kernel_of: dict[int, int] = {}
        self.copy_of: dict[int, int] = {}
        self.spans: dict[int, tuple[int, int, int]] = {}
        self.borders = [0]
        self._stream_ends: dict[int, int] = {}
        self._begun: dict[int, list[int]] = {}
        self._held: dict[int, int] = {}
        self._clock, self._stream = 0, 0
        for number, operation in enumerate(operations):
            self._do(number, operation, changed)
        self.borders.append(self._clock)

    @property
    def wall_ns(self) -> int:
        """Until the host was through and the GPU."""
        return max([self._clock, *self._stream_ends.values()])

    @property
    def steps(self) -> Steps:
        """Between the borders that `step` set."""
        borders = np.array(sorted(set(self.borders))) + START
        return Steps(borders[:-1], borders[1:], "given", 0)

    def _do(self, number: int, operation: Operation, changed: Changed) -> None:
        what, time, stream, other, thread = operation
        if what in ("host", "hand_over"):
            after = self._clock + (0 if number in changed.hidden else time)
            self.spans[number] = (thread, START + self._clock, START + after)
            self._clock = after
        elif what == "step":
            self.borders.append(self._clock)
        elif number in changed.removed:
            self._stream = stream if what in ("launch", "copy", "fetch") else self._stream
        else:
            self._call(number, operation, changed, number not in changed.unwaited)
        if what == "hold":
            self._held[stream] = self._stream_ends.get(other, 0)

    def _call(self, number: int, operation: Operation, changed: Changed, waits: bool) -> None:
        what, time, stream, _, thread = operation
        start, factor = self._clock, changed.factors.get(number, 1.0)
        length = round(time * factor)
        self.call_of[number] = len(self.calls)
        if what == "launch":
            name, end = "cuLaunchKernel", start + LAUNCH
            begun = self._begun.setdefault(stream, [])
            if len(begun) >= QUEUE and waits:
                end = max(end, begun[-QUEUE])
            self.kernel_of[number] = len(self.kernels)
            begins = self._begin(stream, end + LATENCY, length, factor)
            begun.append(begins)
            self.kernels.append((begins, begins + length, len(self.calls), stream))
        elif what in ("copy", "fetch"):
            blocks = what == "copy"
            name, end = "cuMemcpyHtoDAsync" if blocks else "cuMemcpyDtoHAsync", start + COPY_CALL
            self.copy_of[number] = len(self.copies)
            begins = self._begin(stream, start + COPY_OFFSET if blocks else end + LATENCY, length, factor)
            if blocks and waits:
                end = max(end, begins + length + COPY_WAKE)
            self.copies.append((begins, begins + length, len(self.calls), stream, blocks))
        elif what == "hold":
            name, end = "cuStreamWaitEvent", start + 700
        else:
            name, end = "cuStreamSynchronize" if what == "sync" else "cuCtxSynchronize", start + SYNC
            ends = self._stream_ends.values() if what == "sync_device" else [self._stream_ends.get(self._stream, 0)]
            if waits:
                end = max([end, *(each + WAKE for each in ends if each)])
        self.calls.append((name, start, end, thread))
        self._clock = end

    def _begin(self, stream: int, earliest: int, length: int, factor: float) -> int:
        self._stream = stream
        before = self._stream_ends.get(stream)
        if factor == 0:  # it takes no place on its stream
            return before if before is not None else earliest
        begins = earliest if before is None else max(earliest, before + GAP)
        if stream in self._held:
            begins = max(begins, self._held.pop(stream) + GAP)
        self._stream_ends[stream] = begins + length
        return begins

    def tables(self) -> dict[str, dict[str, list[Any]]]:
        names = list(NAMES)

        def times(rows: list[Any]) -> dict[str, list[Any]]:
            return {
                "start_ns": [START + start for start, *_ in rows],
                "duration_ns": [end - start for start, end, *_ in rows],
                "correlation": [call + 1 for _, _, call, *_ in rows],
                "track": [stream for _, _, _, stream, *_ in rows],
                "region": [NONE for _ in rows],
            }

        to_device = [each for *_, each in self.copies]
        tables = {
            "thread": {"system_id": [1, 2, 3]},
            "track": {"device": [0, 0, 0], "stream": [7, 8, 9]},
            "variant": {"name": ["kernel"]},
            "call": {"name": names, "kind": [int(kind) for kind in NAMES.values()]},
            "api": {
                "start_ns": [START + start for _, start, _, _ in self.calls],
                "duration_ns": [end - start for _, start, end, _ in self.calls],
                "correlation": [number + 1 for number in range(len(self.calls))],
                "call": [names.index(name) for name, *_ in self.calls],
                "thread": [thread for *_, thread in self.calls],
                "region": [NONE for _ in self.calls],
            },
            "kernel": times(self.kernels),
            "memcpy": {
                **times(self.copies),
                "bytes": [1 << 20 for _ in self.copies],
                "kind": [1 if each else 2 for each in to_device],
                "source": [PAGEABLE if each else DEVICE for each in to_device],
                "destination": [DEVICE if each else PINNED for each in to_device],
            },
        }
        return {name: columns for name, columns in tables.items() if any(columns.values())}

    def trace(self, **info: str) -> Trace:
        return make_trace(self.tables(), info={"session.mode": "full", "session.tier": "cupti"} | info)
