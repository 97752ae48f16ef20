# SPDX-License-Identifier: Apache-2.0
"""What the collector itself leaves out on request and puts together, on any machine."""

from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
import threading

import pytest

import gpuscope as gs
from gpuscope import _core
from gpuscope.frameworks.observers import Observers
from gpuscope.profiler.options import RecordingOptions
from gpuscope.profiler.windows import Collector

CPU, CUDA = gs.ProfilerActivity.CPU, gs.ProfilerActivity.CUDA


def work(name):
    with gs.record_function(name):
        sum(range(100))


def names(prof):
    return [row.key for row in prof.key_averages()]


def test_regions_are_left_out_while_they_are_toggled_off():
    with gs.profile() as prof:
        for turn in range(3):
            work(f"on {turn}")
            prof.toggle_collection_dynamic(False, [CPU])
            work("off")
            gs.mark("off")
            prof.toggle_collection_dynamic(True, [CPU])
    assert names(prof) == ["on 0", "on 1", "on 2"]
    assert len(prof.trace.marks) == 0
    audit = prof.audit()
    assert audit.complete
    assert audit.regions_off == 3
    assert 0 < audit.regions_off_ns < audit.recorded_ns
    assert any(remark.startswith("regions and operators were left out on request 3 times") for remark in audit.remarks)


def test_a_region_that_was_open_when_they_were_toggled_off_is_whole():
    with gs.profile() as prof, gs.record_function("outer"):
        prof.toggle_collection_dynamic(False, [CPU])
        with gs.record_function("hidden"):
            prof.toggle_collection_dynamic(True, [CPU])
            work("inner")
    assert names(prof) == ["outer", "inner"]
    regions = prof.trace.regions
    assert list(regions.parent) == [0xFFFFFFFF, 0]
    assert regions.duration_ns[0] > regions.duration_ns[1]


def test_each_window_begins_with_everything():
    windows = []
    with gs.profile(
        schedule=gs.schedule(wait=0, warmup=0, active=1, repeat=2), on_trace_ready=lambda p: windows.append(names(p))
    ) as prof:
        prof.toggle_collection_dynamic(False, [CPU])
        work("a")
        prof.step()
        work("b")
        prof.step()
    assert windows[0] == ["ProfilerStep*"]
    assert set(windows[1]) == {"ProfilerStep*", "b"}


def test_toggling_the_gpu_off_leaves_regions_alone():
    with gs.profile() as prof:
        prof.toggle_collection_dynamic(False, [CUDA])
        work("a")
    assert names(prof) == ["a"]
    assert prof.audit().gpu_off == 1


def test_nothing_is_remarked_when_nothing_was_toggled():
    with gs.profile() as prof:
        work("a")
    assert prof.audit().gpu_off == prof.audit().regions_off == 0
    assert not any("on request" in remark for remark in prof.audit().remarks)


@pytest.mark.parametrize("mode", ["full", "aggregate", "ring"])
def test_windows_that_accumulate_hold_what_each_of_them_held(mode):
    counts = []
    with gs.profile(
        mode=mode,
        acc_events=True,
        schedule=gs.schedule(wait=1, warmup=0, active=1, repeat=3),
        on_trace_ready=lambda p: counts.append({row.key: row.count for row in p.key_averages()}),
    ) as prof:
        for step in range(6):
            for _ in range(step):
                work("work")
            work(f"only {step}")
            prof.step()
    assert [count["work"] for count in counts] == [1, 4, 9]
    assert [name for name in counts[-1] if name.startswith("only")] == ["only 1", "only 3", "only 5"]
    row = next(row for row in prof.key_averages() if row.key == "work")
    assert row.p50 > 0
    assert row.cpu_time_total >= row.max >= row.min > 0


def test_steps_of_totals_are_one_path():
    with gs.profile(mode="aggregate", schedule=gs.schedule(wait=0, warmup=0, active=5)) as prof:
        for _ in range(4):
            work("work")
            prof.step()
    assert [(node.name, node.count) for node in prof.tree()] == [("ProfilerStep*", 5), ("work", 4)]


@pytest.mark.parametrize("mode", ["full", "ring"])
def test_a_step_that_another_thread_begins_ends_the_one_before(mode):
    windows = []
    with gs.profile(
        mode=mode,
        schedule=gs.schedule(wait=0, warmup=0, active=2),
        on_trace_ready=lambda p: windows.append([event.trace_name for event in p.events()]),
    ) as prof:
        worker = threading.Thread(target=lambda: [prof.step() for _ in range(4)])
        worker.start()
        worker.join()
    assert windows[:2] == [["ProfilerStep#0", "ProfilerStep#1"], ["ProfilerStep#2", "ProfilerStep#3"]]


def test_time_between_windows_is_not_recorded_time():
    alone = []
    with gs.profile(acc_events=True, schedule=gs.schedule(wait=1, warmup=0, active=1, repeat=2)) as prof:
        for _ in range(4):
            sum(range(200_000))
            prof.step()
            latest = prof._windows.latest
            if latest is not None and latest not in alone:
                alone.append(latest)
    assert prof.audit().recorded_ns == sum(each.audit().recorded_ns for each in alone)
    assert prof.audit().complete


def test_a_table_taken_before_the_next_window_stays_as_it_was():
    prof = gs.profile(acc_events=True)
    with prof:
        work("first")
    starts = prof.trace.regions.start_ns
    before = starts.copy()
    for _ in range(3):
        with prof:
            for _ in range(5000):
                work("more")
    assert len(prof.trace.regions) == 15001
    gc.collect()
    assert (starts == before).all()


def test_what_accumulated_can_be_saved_and_loaded(tmp_path):
    prof = gs.profile(acc_events=True)
    for name in ("first", "second"):
        with prof:
            work(name)
    prof.save(tmp_path / "all.gscope")
    assert names(gs.load(tmp_path / "all.gscope")) == ["first", "second"]


# -- the set-up of a window --------------------------------------------------------------------------------------------

knows_stacks = pytest.mark.skipif(not _core.knows_stacks(), reason="frames are not known in this version of Python")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

PROGRAM = """\
import json
import sys
{before}
import gpuscope as gs

def body():
    {inside}
    return sum([1, 2, 3])

options = dict(with_stack=True, record_shapes=True, profile_memory=True, with_modules=True, python_samples=0.0001)
with gs.profile(activities=["CPU"], **options) as prof:
    body()
trace = prof.trace
sampled = prof.samples()
print(json.dumps({{
    "functions": sorted({{trace.string(name) for name in trace.python_functions.name.tolist()}}),
    "sampled": sorted({{f"{{each.function}} {{each.file}}" for each in sampled.functions}}),
    "threads": len(set(trace.python_samples.thread.tolist())),
    "rows": [len(trace.regions), len(trace.memory)],
}}))
"""


def run_program(folder, before="", inside=""):
    path = folder / "program.py"
    path.write_text(PROGRAM.format(before=before, inside=inside))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@knows_stacks
@pytest.mark.parametrize("before", ["", pytest.param("import torch", marks=needs_torch)], ids=["Python", "torch"])
def test_a_recording_has_nothing_of_its_own_set_up(tmp_path, before):
    found = run_program(tmp_path, before)
    theirs = [name for name in found["functions"] if "program.py" not in name and name != "<built-in function sum>"]
    assert theirs == []
    assert [name for name in found["sampled"] if "program.py" not in name] == []
    assert (found["threads"], found["rows"]) == (1, [0, 0])


@knows_stacks
@needs_torch
def test_what_is_tried_of_torch_as_the_program_imports_it_is_not_recorded(tmp_path):
    found = run_program(tmp_path, inside="import torch")
    tried = ("autograd/__init__.py", "autograd/graph.py", "grad_mode.py", "threading.py")
    called = [name for name in found["functions"] if name.startswith(tuple(f"torch/{each}" for each in tried))]
    assert [name for name in called if name.endswith((": grad", ": _engine_run_backward", ": __enter__"))] == []
    assert [name for name in found["sampled"] if name.startswith(("grad ", "_engine_run_backward ", "Thread."))] == []


@knows_stacks
def test_a_window_opens_when_what_watches_it_has_begun(monkeypatch):
    begun = []

    def noted(original):
        def call(self):
            result = original(self)
            begun.append(_core.now_ns())
            return result

        return call

    monkeypatch.setattr(Observers, "start", noted(Observers.start))
    monkeypatch.setattr(Collector, "_start_sampling", noted(Collector._start_sampling))
    with gs.profile(python_samples=True) as prof:
        pass
    assert len(begun) == 2
    assert int(prof.trace.info["session.start_ns"]) > max(begun)


def test_a_start_that_is_interrupted_before_the_window_opens_leaves_nothing(monkeypatch):
    def interrupted(self, facts):
        raise KeyboardInterrupt

    prof = gs.profile(python_samples=True, with_stack=True)
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prof.start()
    assert not _core.Session.active()
    with prof:
        work("a")
    assert "a" in names(prof)


def test_the_core_names_an_option_that_it_does_not_have():
    with pytest.raises(TypeError, match="Session has no option 'stacks'"):
        _core.Session(cuda=False, stacks=True)


def test_the_core_reads_the_default_of_every_option():
    default = RecordingOptions(cuda=False)
    session = _core.Session(**{name: getattr(default, name) for name in _core.SESSION_OPTIONS})
    assert session.tier == "cpu"
    session.stop()
