# SPDX-License-Identifier: Apache-2.0
"""Input of the rules: the columns of a recording, its steps and the GPU's work in them, computed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gpuscope._core import CallKind
from gpuscope.analysis.rows import STEP
from gpuscope.counters.sampled import SampledCounters
from gpuscope.diagnosis.replay import is_replayed
from gpuscope.memory.history.call_stacks import is_program
from gpuscope.spans import covered_ns, has_overlap, in_turn, union
from gpuscope.steps.breakdown import WORK_TABLES, DeviceBreakdown, StepBreakdown
from gpuscope.steps.host_waits import DEEPEST, own_stacks, program_frame, stacks_in
from gpuscope.steps.idle import IdlePieces, explain_steps
from gpuscope.steps.kernel_classes import KernelClass
from gpuscope.steps.steps import Array, Steps, is_one_of, sample_of, usual
from gpuscope.text import shown
from gpuscope.threads import cached_property
from gpuscope.trace import NONE, Trace, number_of

T = TypeVar("T")

KERNELS, GRAPHS, COPIES, FILLS = range(len(WORK_TABLES))

# A wait of the GPU for one launch takes some microseconds; longer ones have another cause.
_LAUNCHES_OF_A_PAUSE, _LEAST_PAUSE_NS, _LONGEST_LAUNCH_NS = 10, 100_000, 1_000_000


@dataclass(frozen=True)
class Where:
    """A place that a finding is about; unknown fields are None.

    Attributes:
        file: of the program, as Python has it.
        line: in the file.
        function: around that line.
        region: the regions around it, outermost first.
        kernel: a kernel's name.
    """

    file: str | None = None
    line: int | None = None
    function: str | None = None
    region: str | None = None
    kernel: str | None = None

    @property
    def module(self) -> str:
        """For display: the file's code outside of functions."""
        return "the cell" if (self.file or "").startswith("In [") else "the script"

    @shown
    def __str__(self) -> str:
        if self.file is not None:
            return f"{os.path.basename(self.file)}:{self.line}"
        if self.region is not None:
            return " > ".join(self.region.split(" > ")[-2:])
        return self.kernel or ""


class Context:
    """One recording for the rules, which do not change it.

    Several threads may use it at once: a value that two of them need first is computed twice, with the same result.

    Attributes:
        trace: the recording.
        steps: the steps without warm-up and a cut last one; each until its work is done.
        host_steps: the same on the host, which may be long before.
        breakdown: each GPU's time in them.
        device: the GPU with the most work, which findings are about; None without any.
    """

    def __init__(self, trace: Trace, host_steps: Steps, breakdown: StepBreakdown) -> None:
        self.trace = trace
        self.steps = breakdown.steps
        self.host_steps = host_steps
        self.breakdown = breakdown
        self.device: DeviceBreakdown | None = max(breakdown.devices, key=lambda each: -each.idle_ns, default=None)
        self._frames: dict[int, Where] = {}
        self._launches: dict[int, Array] = {}
        self._told: dict[Callable[[Context], Any], Any] = {}

    def once(self, function: Callable[[Context], T]) -> T:
        """The result of a function of this context, computed once for all rules."""
        if function not in self._told:
            self._told[function] = function(self)
        told: T = self._told[function]
        return told

    @property
    def wall_ns(self) -> int:
        """The time of all steps."""
        return self.breakdown.wall_ns

    @cached_property
    def pieces(self) -> IdlePieces:
        """The idle time of the device; without one, the time of the thread that takes the steps."""
        if self.device is not None:
            return self.device.pieces
        return explain_steps(self.trace, self.steps, self.main_thread)

    def threads_of(self, pieces: Array) -> set[int]:
        """The threads, rows of ``trace.threads``, whose launches end these idle pieces."""
        threads = np.append(self.trace.api.thread.astype(np.int64), self.main_thread)
        return set(threads[self.pieces.launch[pieces]].tolist())

    @cached_property
    def main_thread(self) -> int:
        """The row of ``trace.threads`` of the thread that takes the steps, or else has the most regions or calls."""
        if self.steps.thread is not None:
            return self.steps.thread
        for table in (self.trace.regions, self.trace.api, self.trace.python_functions):
            if len(table):
                return int(np.bincount(table.thread).argmax())
        first = np.flatnonzero(self.trace.threads.system_id == number_of(self.trace.info, "process.id"))
        return int(first[0]) if len(first) else 0

    # -- work ----------------------------------------------------------------------------------------------------------

    @cached_property
    def start_ns(self) -> Array:
        """Start of each piece of the device's work."""
        return self.device.work.start_ns if self.device else np.zeros(0, np.int64)

    @cached_property
    def duration_ns(self) -> Array:
        """Duration of each piece."""
        found: Array = self.device.work.end_ns - self.start_ns if self.device else np.zeros(0, np.int64)
        return found

    @cached_property
    def work_step(self) -> Array:
        """The step in which each piece begins; -1 outside."""
        return self.steps.at(self.start_ns)

    @cached_property
    def work_launch(self) -> Array:
        """The row of ``trace.api`` of the call that launched each piece; -1 if it was not recorded."""
        return self.device.work.launch if self.device else np.zeros(0, np.int64)

    def work_of(self, table: int) -> Array:
        """The device's work in the steps that is in this table of `WORK_TABLES`."""
        if self.device is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero((self.device.work.tables == table) & (self.work_step >= 0))

    @cached_property
    def kernels(self) -> Array:
        """The work that is a kernel of the steps."""
        return self.work_of(KERNELS)

    @cached_property
    def copies(self) -> Array:
        """The work that is a copy of the steps."""
        return self.work_of(COPIES)

    def column(self, table: str, column: str, work: Array) -> Array:
        """A column of the table of `work`."""
        assert self.device is not None
        found: Array = getattr(self.trace, table)[column][self.device.work.rows[work]]
        return found

    def kernels_of_class(self, *wanted: KernelClass) -> Array:
        """The work that is a kernel of one of the `wanted` classes."""
        assert self.device is not None
        return self.kernels[is_one_of(self.device.work.classes[self.kernels], wanted)]

    @cached_property
    def kernel_names(self) -> list[str]:
        """The demangled name of each row of ``trace.variants``."""
        return self.trace.kernel_names()

    @cached_property
    def kernel_variant(self) -> Array:
        """The row of ``trace.variants`` of each kernel of `kernels`."""
        variants: Array = np.minimum(self.column("kernels", "variant", self.kernels), len(self.trace.variants) - 1)
        return variants

    @cached_property
    def multiprocessors(self) -> int:
        """Number of multiprocessors of the device; 0 if unknown."""
        return int(self._of_device("multiprocessors"))

    @cached_property
    def capability(self) -> tuple[int, int]:
        """The device's compute capability; (0, 0) if unknown."""
        return int(self._of_device("capability_major")), int(self._of_device("capability_minor"))

    def _of_device(self, column: str) -> int:
        if self.device is None:
            return 0
        rows = np.flatnonzero(self.trace.devices.ordinal == self.device.device)
        return int(self.trace.devices[column][rows[0]]) if len(rows) else 0

    @cached_property
    def counters(self) -> SampledCounters | None:
        """The sampled hardware counters; None without samples of the device."""
        found = SampledCounters(self.trace)
        return found if self.device is not None and self.device.device in found.devices else None

    def time_ns(self, work: Array) -> Array:
        """Time of each piece of `work` without overlap with pieces that began earlier; the sum is the covered time."""
        lasted = self.duration_ns[work]
        if not self._overlaps:
            return lasted
        starts = self.start_ns[work]
        begins, until = in_turn(starts, starts + lasted)
        found = np.empty(len(work), np.int64)
        found[np.argsort(starts, kind="stable")] = until - begins
        return found

    @cached_property
    def _overlaps(self) -> bool:
        """Whether any work of the device overlaps other work."""
        return has_overlap(self.start_ns, self.start_ns + self.duration_ns)

    def share_of(self, work: Array) -> float:
        """The share of the time of the steps in which some of this work ran."""
        return min(float(self.time_ns(work).sum()) / max(self.wall_ns, 1), 1.0)

    def exposed_ns(self, work: Array, beside: Array | None = None) -> Array:
        """Time of each piece of `work` in which none of the work `beside`, by default `computing`, runs too."""
        if len(work) == 0:
            return np.zeros(0, np.int64)
        spans = self._computing_spans if beside is None else self._spans(beside)
        starts, lasted = self.start_ns[work], self.duration_ns[work]
        found: Array = lasted - covered_ns(*spans, starts, starts + lasted)
        return found

    def _spans(self, work: Array) -> tuple[Array, Array]:
        return union(self.start_ns[work], self.start_ns[work] + self.duration_ns[work])

    @cached_property
    def _computing_spans(self) -> tuple[Array, Array]:
        return self._spans(self.computing)

    @cached_property
    def computing(self) -> Array:
        """The kernels and graphs, in the steps or not, without communication."""
        if self.device is None:
            return np.zeros(0, np.int64)
        work = self.device.work
        return np.flatnonzero((work.tables <= GRAPHS) & (work.classes != int(KernelClass.COMMUNICATION)))

    # -- the pace of launches ------------------------------------------------------------------------------------------

    @cached_property
    def launch_interval_ns(self) -> int:
        """The median time from one launch of a thread to its next, in the steps; 0 without launches."""
        before, after = self._launches_in_turn
        chosen = sample_of(len(after))
        return usual(self.trace.api.start_ns[after[chosen]] - self.trace.api.start_ns[before[chosen]])

    @cached_property
    def _launches_in_turn(self) -> tuple[Array, Array]:
        """The rows of ``trace.api`` of pairs of consecutive launches of one thread in the steps."""
        api = self.trace.api
        rows = np.flatnonzero(self.launches & (self.call_step >= 0))
        if self._is_in_turn:
            return rows[:-1], rows[1:]
        rows = rows[np.lexsort((api.start_ns[rows], api.thread[rows]))]
        same = np.diff(api.thread[rows].astype(np.int64)) == 0
        return rows[:-1][same], rows[1:][same]

    @cached_property
    def _is_in_turn(self) -> bool:
        """Whether all calls are of one thread, and recorded in order."""
        threads, starts = self.trace.api.thread, self.trace.api.start_ns
        return bool((threads[1:] == threads[:-1]).all() and (starts[1:] >= starts[:-1]).all())

    @cached_property
    def has_single_launches(self) -> bool:
        """Whether a thread usually launches one kernel per step: then the whole program runs between two launches."""
        before, after = self._launches_in_turn
        is_first = self.call_step[before] != self.call_step[after]
        is_kernel = self.trace.call_kinds[after] == int(CallKind.LAUNCH)
        return bool(2 * np.count_nonzero(is_first & is_kernel) > len(after))

    @cached_property
    def longest_launch_ns(self) -> int:
        """Longest idle time that is attributed to launching: ten launch intervals, from 100 us to 1 ms."""
        if self.has_single_launches:
            return _LEAST_PAUSE_NS
        return min(max(_LAUNCHES_OF_A_PAUSE * self.launch_interval_ns, _LEAST_PAUSE_NS), _LONGEST_LAUNCH_NS)

    @cached_property
    def long_pieces(self) -> Array:
        """Whether each idle piece is part of a gap that is longer than `longest_launch_ns`."""
        pieces = self.pieces
        lasted = pieces.end_ns - pieces.start_ns
        goes_on = (pieces.start_ns[1:] == pieces.end_ns[:-1]) & (pieces.next[1:] == pieces.next[:-1])
        if goes_on.any():
            gap = np.cumsum(np.append(True, ~goes_on)[: len(pieces)]) - 1
            lasted = np.bincount(gap, lasted)[gap]
        found: Array = lasted > self.longest_launch_ns
        return found

    # -- calls of the driver -------------------------------------------------------------------------------------------

    @cached_property
    def launches(self) -> Array:
        """Whether each row of ``trace.api`` launches a kernel or a graph."""
        return is_one_of(self.trace.call_kinds, (CallKind.LAUNCH, CallKind.GRAPH_LAUNCH))

    def launches_of(self, thread: int) -> Array:
        """Start of each launch of a thread, in order."""
        if thread not in self._launches:
            starts = self.trace.api.start_ns[np.flatnonzero(self.launches & (self.trace.api.thread == thread))]
            self._launches[thread] = np.sort(starts) if (starts[1:] < starts[:-1]).any() else starts
        return self._launches[thread]

    @cached_property
    def call_step(self) -> Array:
        """The step that the host is in when each row of ``trace.api`` begins; -1 outside."""
        return self.host_steps.at(self.trace.api.start_ns)

    @cached_property
    def _is_replayed(self) -> Array:
        steps = is_replayed(self.trace, self.host_steps)
        found: Array = np.append(steps[self.call_step], True)
        return found

    def in_replay(self, calls: Array) -> Array:
        """Whether an edit of each row of ``trace.api`` in `calls`, or -1, affects a replay."""
        found: Array = self._is_replayed[calls]
        return found

    @cached_property
    def call_before(self) -> Array:
        """The row of ``trace.api`` of the call that the same thread made before each; -1 for its first."""
        api = self.trace.api
        if self._is_in_turn:
            return np.arange(-1, len(api) - 1)
        order = np.lexsort((api.start_ns, api.thread))
        before = np.full(len(order), -1)
        threads: Array = api.thread[order]
        same = threads[1:] == threads[:-1]
        before[order[1:]] = np.where(same, order[:-1], -1)
        return before

    @cached_property
    def copy_of_call(self) -> Array:
        """For each row of ``trace.api`` the copy that it launched on the device, a piece of work; -1 for none."""
        found = np.full(len(self.trace.api) + 1, -1)
        launches = self.work_launch[self.copies]
        found[launches[launches >= 0]] = self.copies[launches >= 0]
        return found[:-1]

    # -- regions -------------------------------------------------------------------------------------------------------

    @cached_property
    def path_names(self) -> list[str]:
        """The name of each row of ``trace.paths``."""
        return [self.trace.string(name) for name in self.trace.paths.name.tolist()]

    @cached_property
    def path_parents(self) -> list[int]:
        """The parent of each row of ``trace.paths``."""
        found: list[int] = self.trace.paths.parent.tolist()
        return found

    def paths_inside(self, is_meant: Callable[[str], Any]) -> Array:
        """For each row of ``trace.paths``, and one more for none, whether its name or one around it matches."""
        inside = np.zeros(len(self.path_names) + 1, bool)
        for path, (name, parent) in enumerate(zip(self.path_names, self.path_parents, strict=True)):
            inside[path] = (parent < path and inside[parent]) or bool(is_meant(name))
        return inside

    @cached_property
    def _path_of_region(self) -> Array:
        """The path of each row of ``trace.regions``, and of one more for none: the number of paths."""
        found: Array = np.minimum(np.append(self.trace.regions.path, np.uint32(NONE)), len(self.path_names))
        return found

    def path_of_regions(self, regions: Array) -> Array:
        """The path of each row of ``trace.regions`` in `regions`; the number of paths for `NONE`."""
        found: Array = self._path_of_region[np.minimum(regions, len(self.trace.regions))]
        return found

    @cached_property
    def region_of_call(self) -> Array:
        """The row of ``trace.regions`` around each row of ``trace.api``, and of one more for -1."""
        return np.append(self.trace.api.region, np.uint32(NONE))

    @cached_property
    def path_of_call(self) -> Array:
        """The path of each entry of `region_of_call`, as by `path_of_regions`."""
        return self.path_of_regions(self.region_of_call)

    def work_inside(self, is_meant: Callable[[str], Any], work: Array) -> Array:
        """Whether each piece of `work` was launched inside a region with a matching name."""
        return self.calls_inside(is_meant, self.work_launch[work])

    def calls_inside(self, is_meant: Callable[[str], Any], calls: Array) -> Array:
        """Whether each row of ``trace.api`` in `calls`, or -1, is inside a region with a matching name."""
        inside = self.paths_inside(is_meant)
        if not inside.any():
            return np.zeros(len(calls), bool)
        found: Array = inside[self.path_of_regions(self.region_of_call[calls])]
        return found

    def outermost_regions(self, is_meant: Callable[[str], Any], calls: Array) -> Array:
        """The outermost region with a matching name around each row of ``trace.api`` in `calls`, a row; -1 for none."""
        table, count = self.trace.regions, len(self.trace.regions)
        meant = np.array([bool(is_meant(name)) for name in self.path_names] + [False])
        found, current = np.full(len(calls), -1), self.trace.api.region[calls].astype(np.int64)
        if not meant.any():
            return found
        for _ in range(DEEPEST):
            inside = np.flatnonzero(current < count)
            if len(inside) == 0:
                break
            regions = current[inside]
            named = meant[self.path_of_regions(regions)]
            found[inside[named]] = regions[named]
            current[inside] = table.parent[regions]
        return found

    @cached_property
    def library_calls(self) -> Array:
        """The rows of ``trace.python_functions`` that are calls of libraries by functions of the program."""
        functions = self.trace.python_functions
        names, place = np.unique(functions.name, return_inverse=True)
        own = np.array([is_program(_file_of(self.trace.string(name))) for name in names.tolist()] + [False])
        is_own = np.append(own[place.reshape(-1)], True)
        found: Array = np.flatnonzero(~is_own[:-1] & is_own[np.minimum(functions.parent, len(functions))])
        return found

    @cached_property
    def detail_of_region(self) -> Array:
        """The row of ``trace.details`` of each row of ``trace.regions``; -1 without."""
        found = np.full(len(self.trace.regions) + 1, -1)
        rows = np.flatnonzero(self.trace.details.region < len(self.trace.regions))
        found[self.trace.details.region[rows]] = rows
        return found[:-1]

    # -- places --------------------------------------------------------------------------------------------------------

    def stacks_of_calls(self, calls: Array) -> Array:
        """The row of ``trace.stacks`` of each row of ``trace.api`` in `calls`; `NONE` without.

        A call without a stack has that of the operator around it; a backward operator has that of its forward one.
        """
        found = self._own_stacks[calls].astype(np.int64)
        without = np.flatnonzero(found == NONE)
        if len(without):
            found[without] = self.stacks_of_regions(self.region_of_call[calls[without]])
        return found

    @cached_property
    def _own_stacks(self) -> Array:
        """The row of ``trace.stacks`` that each row of ``trace.api``, and one more for -1, has of its own."""
        return own_stacks(self.trace)

    def stacks_of_regions(self, regions: Array) -> Array:
        """The row of ``trace.stacks`` of each row of ``trace.regions`` in `regions`, or of the next one around."""
        table, details, count = self.trace.regions, self.trace.details, len(self.trace.regions)
        found, current = np.full(len(regions), NONE, np.int64), regions.astype(np.int64)
        for _ in range(DEEPEST):
            left = np.flatnonzero((found == NONE) & (current < count))
            if len(left) == 0:
                break
            rows = self.detail_of_region[current[left]]
            known = rows >= 0
            found[left[known]] = details.stack[rows[known]]
            forward = np.where(known, np.append(details.forward, NONE)[rows], NONE).astype(np.int64)
            current[left] = np.where(forward < count, forward, table.parent[current[left]])
        return found

    def where_of_stack(self, stack: int) -> Where | None:
        """The innermost frame of a stack that is the program's own, or else its innermost one; None for `NONE`."""
        stacks = self.trace.stacks
        if not 0 <= stack < len(stacks):
            return None
        if stack not in self._frames:
            frame = program_frame(self.trace, stack)
            file, function = (self.trace.string(int(stacks[name][frame])) for name in ("file", "function"))
            self._frames[stack] = Where(file, int(stacks.line[frame]), function)
        return self._frames[stack]

    def where_of_region(self, region: int) -> Where | None:
        """The line that entered a row of ``trace.regions``, or else the regions around it."""
        if not 0 <= region < len(self.trace.regions):
            return None
        stack = int(self.stacks_of_regions(np.array([region]))[0])
        return self.where_of_stack(stack) or self.where_of_path(int(self.trace.regions.path[region]))

    def where_of_path(self, path: int) -> Where | None:
        """The regions of a row of ``trace.paths``."""
        names: list[str] = []
        while 0 <= path < len(self.path_names) and len(names) < DEEPEST:
            if not self.path_names[path].startswith(STEP):  # each has another number
                names.append(self.path_names[path])
            parent = self.path_parents[path]
            path = parent if parent < path else -1
        return Where(region=" > ".join(reversed(names))) if names else None

    def sampled_places(
        self, threads: Iterable[int], starts: Array, ends: Array, column: str = "duration_ns"
    ) -> list[tuple[Where, float]]:
        """The sampled places of threads in spans that are in order and apart, with the time in ns, the longest first.

        `column` is ``duration_ns``, or ``cpu_ns`` for only the time on a CPU.
        """
        totals: dict[Where, float] = {}
        for stack, time in stacks_in(self.trace, threads, starts, ends, column).items():
            where = self.where_of_stack(stack)
            if where is not None:
                totals[where] = totals.get(where, 0.0) + time
        return sorted(totals.items(), key=lambda each: -each[1])

    def lines(self, calls: Array, weights: Array) -> list[tuple[Where | None, Array]]:
        """These rows of ``trace.api``, or -1, by their place in the program, the heaviest first.

        Returns for each place its entries of `calls`.
        """
        found, group, order = self._by_place(calls, weights)
        entries = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=len(found)))[:-1])
        return [(found[at], entries[at]) for at in order]

    def places_of(self, calls: Array, weights: Array) -> list[Where | None]:
        """The places of `lines` without the entries, which takes less time."""
        found, _, order = self._by_place(calls, weights)
        return [found[at] for at in order]

    def _by_place(self, calls: Array, weights: Array) -> tuple[list[Where | None], Array, list[int]]:
        """The places, the place of each call, and the order of the places by weight."""
        keys = self.stacks_of_calls(calls)
        frames = len(self.trace.stacks)
        without = np.flatnonzero(keys >= frames)
        if len(without):
            keys[without] = frames + self.path_of_call[calls[without]]
        known: dict[Where | None, int] = {}
        group_of = np.zeros(frames + len(self.path_names) + 1, int)
        for key in np.flatnonzero(np.bincount(keys, minlength=1)).tolist():
            where = self.where_of_stack(key) if key < frames else self.where_of_path(key - frames)
            group_of[key] = known.setdefault(where, len(known))
        if len(known) <= 1 << 16:
            group_of = group_of.astype(np.uint16)  # NumPy sorts 16 bits by radix
        group = group_of[keys]
        totals = np.bincount(group, weights, len(known))
        return list(known), group, np.argsort(-totals, kind="stable").tolist()


def _file_of(function: str) -> str:
    """The file of a Python function as torch writes it, "train.py(12): step"; "" for functions in C."""
    file, _, rest = function.partition("(")
    return file if rest.partition("): ")[0].isdecimal() and not file.startswith("<built-in") else ""
