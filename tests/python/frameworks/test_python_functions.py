# SPDX-License-Identifier: Apache-2.0
"""Calls of Python functions and garbage collections with with_stack, beside the installed torch's."""

from __future__ import annotations

import gc
import json
import random
import re
import subprocess
import sys
import threading
import time

import pytest

import gpuscope as gs
from fakes.disturbances import least_disturbed
from gpuscope import _core
from gpuscope._core import Flag, FunctionKind
from gpuscope.trace import NONE

pytestmark = [
    pytest.mark.skipif(not _core.knows_stacks(), reason="frames cannot be read in this version of Python"),
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each cycle"),  # torch 2.11's own
]

CPU = [gs.ProfilerActivity.CPU]
MONITORS = sys.version_info >= (3, 12)


def leaf(value):
    return [value].count(value)


def tree(depth):
    return leaf(depth) + (tree(depth - 1) + tree(depth - 1) if depth else 0)


def numbers(count):
    yield from range(count)


class Row:
    """A row of the table of functions, and those it called."""

    def __init__(self, trace, row):
        functions = trace.python_functions
        self.name = trace.string(int(functions.name[row]))
        self.function = re.sub(r".*: | of .*", "", self.name)
        self.kind = FunctionKind(int(functions.kind[row]))
        self.start_ns = int(functions.start_ns[row])
        self.end_ns = self.start_ns + int(functions.duration_ns[row])
        self.flags = int(functions.flags[row])
        self.thread = int(functions.thread[row])
        self.module = int(functions.module[row])
        self.parent = int(functions.parent[row])
        self.called = []

    def shape(self):
        return self.function, tuple(row.shape() for row in self.called)


def rows_of(prof):
    rows = [Row(prof.trace, row) for row in range(len(prof.trace.python_functions))]
    for row in rows:
        if row.parent != NONE:
            rows[row.parent].called.append(row)
    return rows


def record(work, **options):
    with gs.profile(activities=CPU, with_stack=True, **options) as prof:
        work()
    return prof


def named(rows, function):
    """Those of this file: pytest has functions that run, too."""
    return [row for row in rows if row.function == function and "test_python_functions.py(" in row.name]


def test_what_the_profiler_itself_calls_is_not_recorded():
    names = {row.name for row in rows_of(record(lambda: leaf(1))) if not row.flags & Flag.CLIPPED}
    assert not [name for name in names if "gpuscope" in name.lower() or name.startswith("<string>")]


def files_in(prof):
    return {row.name.partition("(")[0] for row in rows_of(prof) if not row.flags & Flag.CLIPPED}


def test_what_the_end_of_a_recording_calls_is_not_recorded():
    assert "contextlib.py" not in files_in(record(lambda: leaf(1)))


def test_what_a_step_calls_is_not_recorded():
    with gs.profile(activities=CPU, with_stack=True, schedule=gs.schedule(wait=0, warmup=0, active=9)) as prof:
        prof.step()
        leaf(1)
        prof.step()
    assert "enum.py" not in files_in(prof)


def test_calls_nest_as_the_program_made_them():
    (top,) = named(rows_of(record(lambda: tree(1))), "<lambda>")
    leaf_shape = ("leaf", (("<built-in method count", ()),))
    inner = ("tree", (leaf_shape,))
    assert top.shape() == ("<lambda>", (("tree", (leaf_shape, inner, inner)),))


def test_times_of_calls_lie_in_those_of_their_callers():
    rows = rows_of(record(lambda: tree(3)))
    for row in rows:
        if row.parent != NONE:
            assert rows[row.parent].start_ns <= row.start_ns <= row.end_ns <= rows[row.parent].end_ns


class Hooked:
    """What sys.setprofile says of a program, as a tree of names."""

    def __init__(self):
        self.top = ("", [])
        self.open = [self.top]

    def __call__(self, frame, event, argument):
        if event in ("call", "c_call"):
            called = (frame.f_code.co_name if event == "call" else argument.__name__, [])
            self.open[-1][1].append(called)
            self.open.append(called)
        else:
            self.open.pop()

    def of(self, work):
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
        return self.top[1][0]


def without_kind(shape):
    return re.sub(r"<built-in \w+ (\w+)>?", r"\1", shape[0]), [without_kind(called) for called in shape[1]]


@pytest.fixture
def without_collections():
    """Generators that others left in cycles are resumed to be closed, wherever a collection comes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collections")
@pytest.mark.parametrize("seed", range(10))
def test_random_programs_are_seen_as_pythons_own_hook_sees_them(seed):
    chance, suspended = random.Random(), []

    def generator():
        while True:
            act()
            yield

    def plain():
        act()
        act()

    def fails():
        act()
        raise LookupError

    def tries():
        try:
            fails()
        except LookupError:
            act()

    def fails_in_c():
        try:
            [].pop()
        except IndexError:
            act()

    def resumes():
        if suspended:
            mine = suspended.pop(chance.randrange(len(suspended)))
            next(mine)
            suspended.append(mine)
        else:
            suspended.append(generator())

    def closes():
        if suspended:
            suspended.pop().close()

    def sorts():
        sorted([2, 1], key=lambda value: act() or value)

    def act():
        left[0] -= 1
        if left[0] > 0:
            chance.choice([plain, tries, fails_in_c, resumes, resumes, closes, sorts])()

    def program():
        for _ in range(10):
            left[0] = 30
            act()

    left = [0]
    chance.seed(seed)
    expected = Hooked().of(program)
    suspended.clear()
    chance.seed(seed)
    rows = rows_of(record(program))
    assert without_kind(named(rows, "program")[0].shape()) == expected


def test_an_exception_ends_what_it_leaves():
    def raises():
        int("no number")

    def catches():
        try:
            raises()
        except ValueError:
            leaf(1)

    (row,) = named(rows_of(record(catches)), "catches")
    assert [called.function for called in row.called] == ["raises", "leaf"]


def test_a_generator_is_called_at_each_step():
    rows = rows_of(record(lambda: list(numbers(3))))
    assert len(named(rows, "numbers")) == 4  # and at its end


def test_functions_that_run_when_recording_begins_begin_with_it():
    rows = rows_of(record(lambda: leaf(1)))
    (row,) = named(rows, "record")
    assert row.flags == Flag.CLIPPED | Flag.OPEN
    assert row.start_ns == min(row.start_ns for row in rows)
    assert row.end_ns == max(row.end_ns for row in rows)


def test_functions_of_the_profiler_itself_are_left_out():
    rows = rows_of(record(lambda: leaf(1)))
    assert not [row.name for row in rows if "gpuscope/" in row.name and "tests/" not in row.name]
    assert "<lambda>" in [row.function for row in named(rows, "record")[0].called]


def test_threads_that_run_and_threads_that_begin_are_recorded():
    go, done = threading.Event(), threading.Event()

    def early():
        go.wait()
        leaf(1)
        done.set()

    def late():
        leaf(2)

    def work():
        go.set()
        done.wait()
        thread = threading.Thread(target=late)
        thread.start()
        thread.join()

    running = threading.Thread(target=early)
    running.start()
    try:
        rows = rows_of(record(work))
    finally:
        go.set()
        running.join()
    main = named(rows, "work")[0].thread
    for name, is_clipped in (("early", True), ("late", False)):
        (row,) = named(rows, name)
        assert "leaf" in [called.function for called in row.called]
        assert (row.thread != main, bool(row.flags & Flag.CLIPPED)) == (True, is_clipped)


def test_nothing_is_left_behind():
    record(lambda: leaf(1))
    assert sys.getprofile() is None
    assert threading._profile_hook is None
    assert not [callback for callback in gc.callbacks if "Python" in repr(callback)]


@pytest.mark.parametrize("options", [{"with_stack": False}, {"with_stack": True, "mode": "aggregate"}])
def test_no_functions_without_stacks(options):
    with gs.profile(activities=CPU, **options) as prof:
        leaf(1)
    assert len(prof.trace.python_functions) == 0


def read_in_turns(path, times):
    for _ in range(times):
        leaf(1)
        with path.open() as file:
            file.read()


@pytest.fixture
def _a_gpu(monkeypatch):
    """Calls that wait are recorded where there is a GPU."""
    monkeypatch.setattr("gpuscope.profiler.windows.Collector.sees_gpu", lambda self: True)


def record_operators(work):
    with gs.profile(activities=CPU, with_stack="operators") as prof:
        work()
    return prof


def test_without_a_gpu_no_calls_are_recorded_and_garbage_collections_are(tmp_path):
    (tmp_path / "x").write_text("x")

    def work():
        read_in_turns(tmp_path / "x", 20)
        gc.collect()

    assert {row.name for row in rows_of(record_operators(work))} == {"Python GC"}


@pytest.mark.usefixtures("_a_gpu")
def test_without_functions_those_that_wait_for_files_are_recorded(tmp_path):
    (tmp_path / "x").write_text("x")
    rows = rows_of(record_operators(lambda: read_in_turns(tmp_path / "x", 20)))
    assert sum("method read of _io.TextIOWrapper" in row.name for row in rows) == 20
    assert all(row.end_ns > row.start_ns and row.parent == NONE for row in rows if "method read" in row.name)
    assert not named(rows, "leaf")
    assert not named(rows, "read_in_turns")


def test_without_functions_the_stacks_of_operators_and_garbage_collections_are_recorded():
    def work():
        with gs.record_function("region"):
            gc.collect()

    prof = record_operators(work)
    (region,) = (row for row in prof.key_averages(group_by_stack_n=2) if row.key == "region")
    assert region.stack[0].endswith("work")
    assert [row.kind for row in rows_of(prof) if row.kind == FunctionKind.GARBAGE] == [FunctionKind.GARBAGE]


def test_functions_are_recorded_after_a_recording_without_them(tmp_path):
    (tmp_path / "x").write_text("x")
    record_operators(lambda: (tree(2), read_in_turns(tmp_path / "x", 2)))
    assert len(named(rows_of(record(lambda: tree(2))), "tree")) == 7
    record_operators(lambda: tree(2))
    assert len(named(rows_of(record(lambda: tree(2))), "tree")) == 7


@pytest.mark.usefixtures("_a_gpu")
def test_a_function_that_raises_while_the_others_are_left_out_is_recorded(tmp_path):
    def missing():
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                (tmp_path / "none").open()

    rows = [row for row in rows_of(record_operators(missing)) if "function open" in row.name]
    assert len(rows) == 3


def test_each_window_has_its_own_calls():
    windows = []
    with gs.profile(
        activities=CPU, with_stack=True, schedule=gs.schedule(wait=1, warmup=0, active=1), on_trace_ready=windows.append
    ) as prof:
        for depth in range(4):
            tree(depth)
            prof.step()
            if depth in (1, 3):
                windows[-1] = len(named(rows_of(prof), "tree"))
    assert windows == [3, 15]


def hook_of_another(frame: object, event: str, argument: object) -> None:
    """What a profiler written in Python gives to sys.setprofile, as cProfile did up to Python 3.11."""


def record_beside_another():
    sys.setprofile(hook_of_another)
    try:
        prof = record(lambda: leaf(1))
        assert sys.getprofile() is hook_of_another
    finally:
        sys.setprofile(None)
    return prof


@pytest.mark.skipif(MONITORS, reason="sys.monitoring leaves the hook to others")
def test_another_profiler_keeps_its_hook_and_the_audit_says_so():
    prof = record_beside_another()
    assert len(prof.trace.python_functions) == 0
    assert any("another profiler" in note for note in prof.audit().remarks)


@pytest.mark.skipif(not MONITORS, reason="this Python has no sys.monitoring")
def test_functions_are_recorded_beside_another_profiler():
    assert named(rows_of(record_beside_another()), "leaf")


@pytest.mark.skipif(not MONITORS, reason="this Python has no sys.monitoring")
def test_other_tools_keep_their_places_and_the_audit_says_so():
    for place in (3, 4):
        sys.monitoring.use_tool_id(place, "another")
    try:
        prof = record(lambda: leaf(1))
        assert [sys.monitoring.get_tool(place) for place in (3, 4)] == ["another", "another"]
    finally:
        for place in (3, 4):
            sys.monitoring.free_tool_id(place)
    assert len(prof.trace.python_functions) == 0
    assert any("sys.monitoring" in note for note in prof.audit().remarks)


@pytest.mark.skipif(not MONITORS, reason="this Python has no sys.monitoring")
def test_a_recording_gives_its_place_back():
    record(lambda: leaf(1))
    assert [sys.monitoring.get_tool(place) for place in (3, 4)] == [None, None]


@pytest.mark.skipif(MONITORS, reason="sys.monitoring leaves the hook to others")
def test_another_profiler_that_came_and_went_is_told_of():
    def work():
        sys.setprofile(hook_of_another)
        sys.setprofile(None)
        leaf(1)

    prof = record(work)
    assert not named(rows_of(prof), "leaf")
    assert any("calls of Python functions are missing" in note for note in prof.audit().remarks)
    assert not any("are missing" in note for note in record(lambda: leaf(1)).audit().remarks)


def test_a_profiler_that_the_program_starts_meanwhile_keeps_its_hook():
    try:
        with gs.profile(activities=CPU, with_stack=True):
            sys.setprofile(hook_of_another)
        assert sys.getprofile() is hook_of_another
    finally:
        sys.setprofile(None)


def test_a_profiler_of_another_thread_keeps_its_hook():
    hooked, recorded = threading.Event(), threading.Event()
    kept = []

    def other() -> None:
        sys.setprofile(hook_of_another)
        hooked.set()
        recorded.wait(60)
        kept.append(sys.getprofile())

    thread = threading.Thread(target=other)
    thread.start()
    hooked.wait(60)
    prof = record(lambda: leaf(1))
    recorded.set()
    thread.join(60)
    assert kept == [hook_of_another]
    assert named(rows_of(prof), "leaf")


def test_a_garbage_collection_is_a_row_where_it_happened():
    rows = rows_of(record(lambda: gc.collect()))
    (row,) = [row for row in rows if row.kind == FunctionKind.GARBAGE]
    assert row.name == "Python GC"
    assert rows[row.parent].name == "<built-in function collect>"
    assert rows[row.parent].start_ns <= row.start_ns < row.end_ns <= rows[row.parent].end_ns


def test_regions_are_the_same_with_functions():
    def work():
        with gs.record_function("outer"):
            tree(1)
            with gs.record_function("inner"):
                leaf(1)

    with gs.profile(activities=CPU) as plain:
        work()
    prof = record(work)
    for found in (prof, plain):
        paths = [found.trace.string(int(name)) for name in found.trace.paths.name]
        assert paths == ["outer", "inner"]
        assert found.trace.regions.parent.tolist() == [NONE, 0]
    assert [row.key for row in prof.key_averages()] == [row.key for row in plain.key_averages()]


@least_disturbed  # calls that nobody takes from the log in time are lost
def test_ring_keeps_functions_that_still_run():
    def work():
        end = time.perf_counter() + 0.6
        while time.perf_counter() < end:
            leaf(1)

    rows = rows_of(record(work, mode="ring", ring_seconds=0.1))
    (row,) = named(rows, "work")
    assert row.flags & Flag.CLIPPED
    assert row.end_ns - row.start_ns < 0.5e9
    assert all(rows[called.parent] is row for called in named(rows, "leaf"))


def test_a_saved_recording_has_its_functions(tmp_path):
    prof = record(lambda: tree(2))
    prof.save(tmp_path / "run.gscope")
    loaded = gs.load(tmp_path / "run.gscope")
    assert [row.shape() for row in rows_of(loaded)] == [row.shape() for row in rows_of(prof)]


# -- events and tables -------------------------------------------------------------------------------------------------


def test_events_lie_in_functions_and_functions_in_regions():
    def work():
        with gs.record_function("outer"):
            inside()

    def inside():
        with gs.record_function("inner"):
            pass

    events = {event.name.rpartition(": ")[2]: event for event in record(work).events()}
    assert events["outer"].cpu_parent.name == events["work"].name
    assert events["outer"].is_top_level  # of regions
    assert events["work"].cpu_children == [events["outer"]]
    assert events["outer"].cpu_children == [events["inside"]]
    assert events["inside"].cpu_parent is events["outer"]
    assert events["inside"].cpu_children == [events["inner"]]
    assert events["inner"].cpu_parent is events["inside"]


def test_self_time_of_functions_leaves_out_what_is_inside():
    def work():
        with gs.record_function("region"):
            time.sleep(0.02)
        leaf(1)

    events = record(work).events()
    (event,) = [event for event in events if event.name.endswith(": work")]
    inside = sum(child.cpu_time_total for child in event.cpu_children)
    assert inside > 20_000
    assert event.self_cpu_time_total == pytest.approx(event.cpu_time_total - inside)


def test_averages_have_functions_when_asked_for():
    prof = record(lambda: tree(2))
    assert not [row for row in prof.key_averages() if row.is_python_function]
    rows = {row.key.rpartition(": ")[2]: row for row in prof.key_averages(include_python_functions=True)}
    assert (rows["tree"].count, rows["leaf"].count) == (7, 7)
    assert rows["tree"].is_python_function
    outermost = max(event.cpu_time_total for event in prof.events() if event.name.endswith(": tree"))
    assert rows["tree"].cpu_time_total == pytest.approx(outermost)  # recursion counts nothing twice


# -- beside torch ------------------------------------------------------------------------------------------------------


def traced(tmp_path, profiler, work, **options):
    """The python_function events of a program's functions, without those of the profilers."""
    gc.disable()  # callbacks of the collector that others have registered are functions, too
    try:
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU], with_stack=True, **options) as prof:
            work()
    finally:
        gc.enable()
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    events = [event for event in events if event.get("cat") == "python_function"]
    by_id = {event["args"].get("Python id"): event for event in events}

    def is_inside(event):
        while event is not None and not event["name"].endswith(": program"):
            event = by_id.get(event["args"].get("Python parent id"))
        return event is not None

    return [event for event in events if is_inside(event)], prof


@pytest.fixture
def program():
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    net, data = Net(), torch.ones(2, 4)

    def program():
        for _ in range(2):
            net(data).sum().backward()
        return sorted([3, 1, 2], key=lambda value: -value)

    # What torch.profiler imports at its first start pushes what the program uses out of the caches of typing, which the
    # program then fills again: calls that only its first run beside torch.profiler makes.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        program()
    program()
    return program


def without_addresses(name):
    return re.sub(r" at 0x[0-9a-f]+|_abi_\w+", "", name)


def test_names_and_order_are_torchs(tmp_path, program):
    torch_profiler = pytest.importorskip("torch.profiler")
    theirs, _ = traced(tmp_path, torch_profiler, program)
    ours, _ = traced(tmp_path, gs, program)
    assert [without_addresses(event["name"]) for event in ours] == [without_addresses(e["name"]) for e in theirs]


def test_arguments_and_modules_are_torchs(tmp_path, program):
    torch_profiler = pytest.importorskip("torch.profiler")
    theirs, ours = (traced(tmp_path, profiler, program)[0] for profiler in (torch_profiler, gs))
    assert [sorted(event["args"]) for event in ours] == [sorted(event["args"]) for event in theirs]

    def modules(events):
        return [(e["name"], e["args"]["Python module id"]) for e in events if "Python module id" in e["args"]]

    assert modules(ours) == modules(theirs)
    assert {name for name, _ in modules(ours)} == {"nn.Module: Net_0", "nn.Module: Linear_0", "nn.Module: Linear_1"}


def test_callers_are_torchs(tmp_path, program):
    torch_profiler = pytest.importorskip("torch.profiler")

    def callers(events):
        names = {event["args"]["Python id"]: without_addresses(event["name"]) for event in events}
        return [names.get(event["args"]["Python parent id"]) for event in events]

    theirs, ours = (traced(tmp_path, profiler, program)[0] for profiler in (torch_profiler, gs))
    assert callers(ours) == callers(theirs)


@pytest.fixture
def torch_profiler():
    """The installed torch's, where its events() has Python functions; up to 2.11 only its traces do."""
    profiler = pytest.importorskip("torch.profiler")
    if not hasattr(sys.modules["torch.autograd.profiler_util"].FunctionEvent(0, "", 0, 0, 0), "python_id"):
        pytest.skip("no Python functions among the events of this torch")
    return profiler


def test_events_have_torchs_numbers(tmp_path, program, torch_profiler):

    def fields(prof):
        events = [event for event in prof.events() if event.name.startswith("nn.Module")]
        assert all(event.is_python_function and event.activity_type == "python_function" for event in events)
        return [
            (e.name, e.python_module_id, e.python_id > e.python_parent_id > 0, e.scope, e.external_id) for e in events
        ]

    theirs, ours = (traced(tmp_path, profiler, program)[1] for profiler in (torch_profiler, gs))
    assert fields(ours) == fields(theirs)


def test_an_operator_lies_in_the_function_that_called_it(tmp_path, program, torch_profiler):

    def parents(prof):
        events = [event for event in prof.events() if event.name == "aten::linear"]
        return [without_addresses(event.cpu_parent.name) for event in events]

    theirs, ours = (traced(tmp_path, profiler, program)[1] for profiler in (torch_profiler, gs))
    assert parents(ours) == parents(theirs) == ["<built-in function linear>"] * 4


def test_garbage_collections_are_torchs(tmp_path):
    torch_profiler = pytest.importorskip("torch.profiler")
    config = pytest.importorskip("torch._C._profiler")._ExperimentalConfig(record_python_gc_info=True)

    def collected(profiler, **options):
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU], with_stack=True, **options) as prof:
            gc.collect()
        prof.export_chrome_trace(str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        return [(e["cat"], sorted(e["args"]), e["dur"] > 0) for e in events if e["name"] == "Python GC"]

    assert collected(gs) == collected(torch_profiler, experimental_config=config)


def test_a_measurement_of_what_calls_cost_that_ctrl_c_ends_leaves_no_hook():
    code = """
import sys
from gpuscope._core import PythonFunctions

def work():
    calls.append(0)
    if len(calls) == ends_at:
        raise KeyboardInterrupt

def hooks():
    return [sys.monitoring.get_tool(id) for id in (3, 4)] if sys.version_info >= (3, 12) else [sys.getprofile()]

before = hooks()
for ends_at in range(1, 31):  # as many calls as it makes
    calls = []
    try:
        PythonFunctions.measure(work, work, work, 2)
    except KeyboardInterrupt:
        pass
    else:
        raise SystemExit(f"{ends_at}: {len(calls)} calls")
    assert hooks() == before, ends_at
calls, ends_at = [], 0
PythonFunctions.measure(work, work, work, 2)
assert len(calls) == 30
assert hooks() == before
PythonFunctions.measure(work, work, work, 2)
assert len(calls) == 30  # it is known
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
