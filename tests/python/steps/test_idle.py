# SPDX-License-Identifier: Apache-2.0
"""Gaps of a GPU that were made for one cause each. Times of the programs below are in us."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.recordings import make_trace
from gpuscope._core import CallKind, FunctionKind, OverheadKind, RegionKind, SyncKind
from gpuscope.diagnosis import IdleCause, Steps, break_down
from gpuscope.trace import NONE

US = 1000
INFO = {"session.tier": "cupti", "session.start_ns": "0", "session.stop_ns": "1000000"}
CALLS = {
    "cuLaunchKernel": CallKind.LAUNCH,
    "cuStreamSynchronize": CallKind.SYNC,
    "cuMemcpyHtoD": CallKind.MEMCPY,
    "cuMemAlloc": CallKind.ALLOC,
    "cuMemFree": CallKind.FREE,
}


class Program:
    """What one or two threads do, and a GPU with them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, int, int, int]] = []  # name, start, end, correlation, thread, region
        self.kernels: list[tuple[int, int, int]] = []
        self.regions: list[tuple[str, RegionKind, int, int, int]] = []
        self.collections: list[tuple[int, int, int]] = []
        self.lines: dict[int, tuple[str, int]] = {}
        self.cpu_waits: list[tuple[int, int, int, int]] = []  # start, end, waited, thread
        self.samples: list[tuple[int, int, int, int]] = []  # start, end, on a CPU, thread
        self.throttled: list[tuple[int, int, int]] = []
        self.overheads: list[tuple[int, int, OverheadKind, int]] = []  # start, end, kind, thread
        self.event_waits: list[tuple[int, int]] = []  # when, stream
        self.streams: dict[int, int] = {}  # of kernels that are not on the first
        self.devices = [0, 0]  # of the streams

    def call(self, name, start, end, *, thread=0, region=NONE, line=None):
        if line is not None:
            self.lines[len(self.calls)] = line
        self.calls.append((name, start, end, len(self.calls) + 1, thread, region))

    def launch(self, start, end, runs, until, *, thread=0):
        self.call("cuLaunchKernel", start, end, thread=thread)
        self.kernels.append((runs, until, len(self.calls)))

    def region(self, name, start, end, kind=RegionKind.REGION, *, thread=0):
        self.regions.append((name, kind, start, end, thread))

    def collect_garbage(self, start, end, thread=0):
        self.collections.append((start, end, thread))

    def wait_for_cpu(self, start, end, waited, thread=0):
        self.cpu_waits.append((start, end, waited, thread))

    def sample(self, start, end, on_cpu, thread=0):
        self.samples.append((start, end, on_cpu, thread))

    def throttle(self, start, end, stopped):
        self.throttled.append((start, end, stopped))

    def take(self, start, end, kind, thread=0):
        self.overheads.append((start, end, kind, thread))

    def wait_for_event(self, at, stream=0):
        self.event_waits.append((at, stream))

    def trace(self):
        names = list(CALLS)
        files = sorted(set(self.lines.values()))
        tables = {
            "thread": {"system_id": [1, 2]},
            "track": {"device": self.devices, "stream": [7, 8]},
            "variant": {"name": ["kernel"]},
            "call": {"name": names, "kind": [int(kind) for kind in CALLS.values()]},
            "path": {
                "name": [name for name, *_ in self.regions],
                "kind": [int(kind) for _, kind, *_ in self.regions],
            },
            "region": {
                "start_ns": [start * US for *_, start, _, _ in self.regions],
                "duration_ns": [(end - start) * US for *_, start, end, _ in self.regions],
                "path": list(range(len(self.regions))),
                "thread": [thread for *_, thread in self.regions],
            },
            "api": {
                "start_ns": [start * US for _, start, *_ in self.calls],
                "duration_ns": [(end - start) * US for _, start, end, *_ in self.calls],
                "correlation": [number for *_, number, _, _ in self.calls],
                "call": [names.index(name) for name, *_ in self.calls],
                "thread": [thread for *_, thread, _ in self.calls],
                "region": [region for *_, region in self.calls],
            },
            "kernel": {
                "start_ns": [start * US for start, *_ in self.kernels],
                "duration_ns": [(end - start) * US for start, end, _ in self.kernels],
                "correlation": [number for *_, number in self.kernels],
                "track": [self.streams.get(at, 0) for at in range(len(self.kernels))],
            },
            "overhead": {
                "start_ns": [start * US for start, *_ in self.overheads],
                "duration_ns": [(end - start) * US for start, end, *_ in self.overheads],
                "kind": [int(kind) for _, _, kind, _ in self.overheads],
                "system_id": [1 + thread for *_, thread in self.overheads],
            },
            "sync": {
                "start_ns": [at * US for at, _ in self.event_waits],
                "duration_ns": [0] * len(self.event_waits),
                "track": [stream for _, stream in self.event_waits],
                "kind": [int(SyncKind.STREAM_WAIT_EVENT)] * len(self.event_waits),
            },
            "python_function": {
                "start_ns": [start * US for start, *_ in self.collections],
                "duration_ns": [(end - start) * US for start, end, _ in self.collections],
                "name": ["Garbage collection"] * len(self.collections),
                "kind": [int(FunctionKind.GARBAGE)] * len(self.collections),
                "thread": [thread for *_, thread in self.collections],
            },
            "thread_wait": {
                "start_ns": [start * US for start, *_ in self.cpu_waits],
                "duration_ns": [(end - start) * US for start, end, *_ in self.cpu_waits],
                "wait_ns": [waited * US for *_, waited, _ in self.cpu_waits],
                "thread": [thread for *_, thread in self.cpu_waits],
            },
            "control_group_usage": {
                "start_ns": [start * US for start, *_ in self.throttled],
                "duration_ns": [(end - start) * US for start, end, _ in self.throttled],
                "throttled_ns": [stopped * US if stopped is not None else -1 for *_, stopped in self.throttled],
            },
            "python_sample": {
                "start_ns": [start * US for start, *_ in self.samples],
                "duration_ns": [(end - start) * US for start, end, *_ in self.samples],
                "cpu_ns": [on_cpu * US for *_, on_cpu, _ in self.samples],
                "thread": [thread for *_, thread in self.samples],
                "count": [1] * len(self.samples),
            },
            "stack": {"file": [file for file, _ in files], "line": [line for _, line in files]}
            if files or not self.samples
            else {"file": ["train.py"], "line": [1]},
            "call_stack": {
                "api": list(self.lines),
                "stack": [files.index(line) for line in self.lines.values()],
            },
        }
        return make_trace({name: columns for name, columns in tables.items() if any(columns.values())}, info=INFO)


def breakdown(program, *borders):
    edges = np.array(borders) * US
    return break_down(program.trace(), Steps(edges[:-1], edges[1:], "given")).devices[0]


def idle(program, *borders):
    """us of each cause."""
    parts = [part for part in breakdown(program, *borders).parts if part.kind == "idle"]
    return {part.name: part.exclusive_ns / US for part in parts}


def two_kernels(next_launch=200):
    """The first ends at 100 and was waited for until 110; the second starts 5 after its call of 3."""
    program = Program()
    program.launch(0, 2, 0, 100)
    program.call("cuStreamSynchronize", 10, 110, line=("train.py", 77))
    program.launch(next_launch, next_launch + 3, next_launch + 8, next_launch + 50)
    return program


def test_after_a_wait_time_goes_to_waking_up_to_the_program_to_the_launch_and_to_its_latency():
    assert idle(two_kernels(), 0, 250) == {
        IdleCause.WAKE_UP.label: 10,
        IdleCause.HOST_CODE.label: 90,
        IdleCause.LAUNCH_CALL.label: 3,
        IdleCause.LAUNCH_LATENCY.label: 5,
    }


@pytest.mark.parametrize(
    ("waits_from", "waking_up"),
    [
        (10, {IdleCause.WAKE_UP.label: 5}),
        (110, {IdleCause.HOST_CODE.label: 10, IdleCause.DRIVER_CALL.label: 5}),  # which this GPU's end did not begin
    ],
)
def test_a_call_that_waits_for_another_gpu_does_so_until_that_is_done(waits_from, waking_up):
    program = Program()
    program.devices, program.streams = [0, 1], {1: 1, 2: 1}
    program.launch(0, 2, 2, 100)
    program.launch(3, 5, 7, 170)
    program.launch(5, 7, 175, 300)
    program.call("cuStreamSynchronize", waits_from, 175)
    program.launch(180, 183, 188, 300)
    found = idle(program, 2, 300)
    assert found.pop(IdleCause.OTHER_GPU.label) == 170 - max(waits_from, 100)
    host_code = waking_up.pop(IdleCause.HOST_CODE.label, 0) + 5
    assert found == {
        **waking_up,
        IdleCause.HOST_CODE.label: host_code,
        IdleCause.LAUNCH_CALL.label: 3,
        IdleCause.LAUNCH_LATENCY.label: 5,
    }


def test_the_call_that_left_the_gpu_without_work_is_named_with_its_line():
    (drain,) = breakdown(two_kernels(), 0, 250).drains
    assert (drain.call, drain.where, drain.count, drain.idle_ns) == ("cuStreamSynchronize", "train.py:77", 1, 90 * US)


def test_a_pickle_names_that_call_and_leaves_the_recording_behind():
    device = breakdown(two_kernels(), 0, 250)
    sent = pickle.loads(pickle.dumps(device))
    assert (sent.drains, sent.idle.trace) == (device.drains, None)


def test_idle_time_after_the_last_step_is_nobodys():
    (drain,) = breakdown(two_kernels(), 0, 150).drains
    assert drain.idle_ns == 40 * US


def test_without_stacks_the_call_is_named_by_its_regions():
    program = two_kernels()
    program.lines.clear()
    name, start, end, number, thread, _ = program.calls[1]
    program.region("validate", 5, 120)
    program.calls[1] = (name, start, end, number, thread, 0)
    (drain,) = breakdown(program, 0, 250).drains
    assert drain.where == "validate"


def test_calls_that_left_it_without_work_are_grouped_by_function_and_line():
    program = Program()
    for number, line in enumerate([("train.py", 77), ("train.py", 80), ("train.py", 77), None]):
        at = 100 * number
        program.launch(at, at + 3, at + 5, at + 20)
        program.call("cuStreamSynchronize", at + 10, at + 30 + number, line=line)
    program.launch(400, 403, 405, 420)
    drains = breakdown(program, 0, 500).drains
    assert [(drain.where, drain.count, drain.idle_ns) for drain in drains] == [
        ("train.py:77", 2, (70 + 68) * US),
        ("train.py:80", 1, 69 * US),
        ("", 1, 67 * US),
    ]


def test_a_wait_that_ended_while_the_gpu_worked_costs_nothing():
    program = two_kernels()
    program.calls[1] = ("cuStreamSynchronize", 10, 60, 2, 0, NONE)
    device = breakdown(program, 0, 250)
    assert device.drains == ()
    assert IdleCause.WAKE_UP.label not in [part.name for part in device.parts]


@pytest.mark.parametrize(
    ("name", "kind", "cause"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", RegionKind.RANGE, IdleCause.DATA_WAIT),
        ("load data", RegionKind.REGION, IdleCause.DATA_WAIT),
        ("fetch_batch", RegionKind.REGION, IdleCause.DATA_WAIT),
        ("aten::batch_norm", RegionKind.OP, IdleCause.FRAMEWORK),
        ("input_projection", RegionKind.REGION, IdleCause.HOST_CODE),
        ("_compile.compile_inner (dynamo_timed)", RegionKind.RANGE, IdleCause.COMPILING),
        ("## Call CompiledFxGraph abc ##", RegionKind.RANGE, IdleCause.HOST_CODE),
    ],
)
def test_a_region_of_the_launching_thread_says_what_it_did(name, kind, cause):
    program = two_kernels()
    program.region(name, 130, 180, kind)
    found = idle(program, 0, 250)
    assert found[cause.label] == (50 if cause is not IdleCause.HOST_CODE else 90)


def test_of_regions_in_each_other_the_more_telling_one_counts():
    program = two_kernels()
    program.region("aten::empty", 140, 150, RegionKind.OP)
    program.region("load", 130, 180)
    found = idle(program, 0, 250)
    assert found[IdleCause.DATA_WAIT.label] == 50
    assert IdleCause.FRAMEWORK.label not in found


def test_what_another_thread_did_is_no_cause():
    program = two_kernels()
    program.region("load", 130, 180, thread=1)
    program.call("cuMemAlloc", 130, 150, thread=1)
    assert idle(program, 0, 250)[IdleCause.HOST_CODE.label] == 90


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        ("cuMemAlloc", IdleCause.ALLOCATION),
        ("cuMemFree", IdleCause.ALLOCATION),
        ("cuMemcpyHtoD", IdleCause.COPY_CALL),
        ("cuStreamSynchronize", IdleCause.DRIVER_CALL),
    ],
)
def test_a_call_while_the_gpu_is_idle_has_its_own_time(call, cause):
    program = two_kernels()
    program.call(call, 120, 160)
    found = idle(program, 0, 250)
    assert found[cause.label] == 40
    assert found[IdleCause.HOST_CODE.label] == 50


def test_a_pause_of_the_garbage_collector_is_told():
    program = two_kernels()
    program.collect_garbage(150, 170)
    assert idle(program, 0, 250)[IdleCause.GARBAGE.label] == 20


def test_a_wait_for_a_cpu_is_told_and_lies_at_the_end_of_its_row():
    program = two_kernels()
    program.wait_for_cpu(90, 160, 30)
    found = idle(program, 0, 250)
    assert found[IdleCause.CPU_WAIT.label] == 30
    assert found[IdleCause.HOST_CODE.label] == 60
    program.region("load", 125, 140)
    assert idle(program, 0, 250)[IdleCause.CPU_WAIT.label] == 20, "who waits for data needs no CPU"


def test_the_wait_of_another_thread_is_no_cause():
    program = two_kernels()
    program.wait_for_cpu(90, 160, 30, thread=1)
    assert IdleCause.CPU_WAIT.label not in idle(program, 0, 250)


@pytest.mark.parametrize(("stopped", "limited"), [(0, 0), (15, 15), (30, 30), (500, 30), (None, 0)])
def test_of_a_wait_the_share_that_the_limit_has_is_the_limits(stopped, limited):
    program = two_kernels()
    program.wait_for_cpu(90, 160, 30)
    program.throttle(0, 250, stopped)
    found = idle(program, 0, 250)
    assert found.get(IdleCause.CPU_LIMIT.label, 0) == limited
    assert found.get(IdleCause.CPU_WAIT.label, 0) == 30 - limited


def test_a_thread_that_stands_still_while_another_one_runs_waits_for_it():
    program = two_kernels(2000)
    program.sample(500, 1500, 0)
    program.sample(400, 1600, 1200, thread=1)
    assert idle(program, 0, 2100)[IdleCause.LOCK.label] == 1000


@pytest.mark.parametrize(("own", "other"), [(1000, 1000), (500, 1000), (0, 300), (0, 0)])
def test_a_thread_that_is_not_the_others_turn_waits_for_no_lock(own, other):
    """It runs itself, both run at once, or the other one does little."""
    program = two_kernels(2000)
    program.sample(500, 1500, own)
    program.sample(500, 1500, other, thread=1)
    assert IdleCause.LOCK.label not in idle(program, 0, 2100)


def test_a_thread_that_waits_for_the_gpu_waits_for_no_lock():
    """It does so off the CPU, twice while it is seen in one place; its own code follows each time."""
    program = Program()
    for begins in (0, 2000, 4000):
        program.launch(begins, begins + 10, begins + 12, begins + 1500)
        program.call("cuStreamSynchronize", begins + 20, begins + 1505)
    program.sample(20, 3900, 3880 - 2 * 1485)
    program.sample(20, 3900, 2 * 1485, thread=1)
    assert IdleCause.LOCK.label not in idle(program, 0, 5500)


def test_a_wait_for_another_thread_lasts_until_the_call_that_ends_it():
    """Rows end with looks: the first begins while the thread still launches, the second while it still waits."""
    program = Program()
    program.launch(0, 10, 12, 4000)
    program.launch(500, 510, 4001, 9800)
    program.launch(10_000, 10_010, 10_012, 12_000)
    program.sample(0, 9700, 510)
    program.sample(9700, 10_700, 700)
    program.sample(510, 10_000, 9490, thread=1)
    assert idle(program, 0, 12_000)[IdleCause.LOCK.label] == 200


def test_work_that_was_queued_follows_back_to_back():
    program = Program()
    program.launch(0, 2, 5, 100)
    program.launch(3, 5, 101, 200)
    program.launch(6, 8, 201, 300)
    assert idle(program, 5, 300) == {IdleCause.BACK_TO_BACK.label: 2}


def test_queued_work_that_starts_late_was_held_back_on_the_gpu():
    program = Program()
    program.launch(0, 2, 5, 100)
    for turn in range(5):
        program.launch(3 + turn, 4 + turn, 101 + 10 * turn, 110 + 10 * turn)
    program.launch(9, 10, 250, 300)
    found = idle(program, 5, 300)
    assert found == {IdleCause.BACK_TO_BACK.label: 5, IdleCause.DEVICE_WAIT.label: 100}


def test_work_whose_launch_was_not_recorded_has_no_other_cause():
    program = two_kernels()
    program.kernels[1] = (208, 250, 999)
    assert idle(program, 0, 250) == {IdleCause.UNSEEN.label: 108}


def test_time_after_the_last_work_is_told_apart():
    assert idle(two_kernels(), 0, 400)[IdleCause.NO_WORK_AFTER.label] == 150


def first_launch_of_a_kernel():
    """Which takes 90 and not 3."""
    program = Program()
    program.launch(0, 2, 0, 100)
    program.call("cuStreamSynchronize", 10, 110)
    program.launch(120, 210, 215, 250)
    return program


def test_code_that_is_loaded_in_a_launching_call_is_not_the_launch():
    program = first_launch_of_a_kernel()
    program.take(130, 200, OverheadKind.LAZY_FUNCTION_LOADING)
    found = idle(program, 0, 250)
    assert (found[IdleCause.LOADING.label], found[IdleCause.LAUNCH_CALL.label]) == (70, 20)


def test_code_that_is_compiled_between_calls_has_its_time():
    program = two_kernels()
    program.take(120, 180, OverheadKind.DRIVER_COMPILER)
    found = idle(program, 0, 250)
    assert (found[IdleCause.LOADING.label], found[IdleCause.HOST_CODE.label]) == (60, 30)


def test_what_cupti_takes_for_itself_is_told_apart():
    program = first_launch_of_a_kernel()
    program.take(112, 118, OverheadKind.CUPTI_BUFFER_FLUSH)
    program.take(130, 200, OverheadKind.CUPTI_RESOURCE)
    found = idle(program, 0, 250)
    assert found[IdleCause.PROFILER.label] == 76
    assert IdleCause.LOADING.label not in found


def test_overheads_of_another_thread_and_full_command_buffers_explain_no_gap():
    program = first_launch_of_a_kernel()
    without = idle(program, 0, 250)
    program.take(130, 200, OverheadKind.LAZY_FUNCTION_LOADING, thread=1)
    program.take(130, 200, OverheadKind.COMMAND_BUFFER_FULL)
    assert idle(program, 0, 250) == without


@pytest.mark.parametrize(
    ("asked", "stream", "cause"),
    [
        (7, 1, IdleCause.EVENT_WAIT),  # of its stream, before its launch
        (7, 0, IdleCause.DEVICE_WAIT),  # of another stream
        (4, 1, IdleCause.DEVICE_WAIT),  # before what the stream has before it, which waited
        (20, 1, IdleCause.DEVICE_WAIT),  # after its launch
    ],
)
def test_queued_work_that_starts_late_waits_for_an_event_where_its_stream_was_told_to(asked, stream, cause):
    program = Program()
    program.launch(0, 2, 5, 100)
    program.launch(5, 6, 10, 60)
    program.launch(8, 9, 200, 250)
    program.streams = {1: 1, 2: 1}
    program.wait_for_event(asked, stream)
    assert idle(program, 0, 250)[cause.label] == 100


def test_a_gap_is_shared_by_the_steps_that_it_lies_in():
    device = breakdown(two_kernels(), 0, 150, 250)
    steps = {part.name: (part.per_step_ns / US).tolist() for part in device.parts if part.kind == "idle"}
    assert steps[IdleCause.WAKE_UP.label] == [10, 0]
    assert steps[IdleCause.HOST_CODE.label] == [40, 50]


def test_the_text_has_the_causes_and_the_call_under_idle():
    program = two_kernels()
    edges = np.array([0, 250]) * US
    lines = str(break_down(program.trace(), Steps(edges[:-1], edges[1:], "given"))).splitlines()
    assert any(line.startswith("    other program code") and "36 %" in line for line in lines)
    assert "  cuStreamSynchronize in train.py:77 left it without work 1 time, for 90.000us a step (36 %)" in lines


TIMES = st.integers(0, 300)


@given(
    launches=st.lists(st.tuples(TIMES, st.integers(0, 9), st.integers(-20, 60), st.integers(0, 40)), max_size=10),
    calls=st.lists(st.tuples(st.sampled_from(list(CALLS)), TIMES, st.integers(0, 80), st.integers(0, 1)), max_size=8),
    regions=st.lists(st.tuples(st.sampled_from(["load", "compile", "x"]), TIMES, st.integers(0, 90)), max_size=5),
    waits=st.lists(st.tuples(TIMES, st.integers(0, 80), st.integers(0, 99), st.integers(0, 1)), max_size=5),
    samples=st.lists(st.tuples(TIMES, st.integers(0, 900), st.integers(0, 900), st.integers(0, 1)), max_size=5),
    throttled=st.lists(st.tuples(TIMES, st.one_of(st.none(), st.integers(0, 200))), max_size=3),
    overheads=st.lists(st.tuples(TIMES, st.integers(0, 80), st.sampled_from(OverheadKind)), max_size=4),
    event_waits=st.lists(st.tuples(TIMES, st.integers(0, 1)), max_size=3),
    borders=st.lists(TIMES, min_size=2, max_size=5, unique=True).map(sorted),
)
def test_causes_add_up_to_the_time_in_which_nothing_ran(
    launches, calls, regions, waits, samples, throttled, overheads, event_waits, borders
):
    program = Program()
    for start, length, kind in overheads:
        program.take(start, start + length, kind)
    program.event_waits = event_waits
    for start, length, waited, thread in waits:
        program.wait_for_cpu(start, start + length, waited, thread)
    for start, length, on_cpu, thread in samples:
        program.sample(start, start + length, on_cpu, thread)
    for start, stopped in throttled:
        program.throttle(start, start + 100, stopped)
    for start, call, delay, length in launches:
        runs = max(0, start + call + delay)
        program.launch(start, start + call, runs, runs + length, thread=start % 2)
    for name, start, length, thread in calls:
        program.call(name, start, start + length, thread=thread)
    for name, start, length in regions:
        program.region(name, start, start + length)
    if not launches:
        program.launch(0, 1, 2, 3)
    busy = np.zeros(500, bool)
    for start, end, _ in program.kernels:
        busy[start:end] = True
    device = breakdown(program, *borders)
    expected = [(~busy[start:end]).sum() for start, end in itertools.pairwise(borders)]
    got = sum((part.per_step_ns for part in device.parts if part.kind == "idle"), np.zeros(len(expected)))
    assert (got / US).tolist() == expected
    assert all((part.per_step_ns >= 0).all() for part in device.parts)
