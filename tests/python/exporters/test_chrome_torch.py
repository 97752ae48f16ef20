# SPDX-License-Identifier: Apache-2.0
"""Our Chrome traces beside those of the installed torch, of one program."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
import time

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = """
    import sys, time, torch
    if sys.argv[1] == "torch":
        import torch.profiler as profiler
    else:
        import gpuscope as profiler
    activities = [profiler.ProfilerActivity.CPU]
    with profiler.profile(activities=activities, record_shapes=True, profile_memory=True, with_flops=True) as prof:
        prof.add_metadata("model", "two layers")
        prof.add_metadata_json("sizes", "[1, 2]")
        before_ns = time.time_ns()
        with profiler.record_function("forward"):
            print(before_ns, time.time_ns())
            rows = torch.ones(2, 4, requires_grad=True)
            joined = torch.cat([rows.mm(torch.ones(4, 3)), rows.double()], dim=1).transpose(0, 1)
            torch.add(joined, 2.5, alpha=2).sum(dim=[0], keepdim=True).sum().backward()
    prof.export_chrome_trace(sys.argv[2])
"""

OPTIONS = ("record_shapes", "profile_memory", "with_flops")
ADDED = ("host_name", "model", "sizes")


def run(profiler, path):
    """Runs the program under a profiler; returns its trace and times, in ns, just before and after `forward` began."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), profiler, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    text = path.read_bytes()
    return json.loads(gzip.decompress(text) if path.suffix == ".gz" else text), *map(int, done.stdout.split()[:2])


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The program's traces: torch's and ours."""
    folder = tmp_path_factory.mktemp("pair")
    return run("torch", folder / "torch.json")[0], run("gpuscope", folder / "gpuscope.json")[0]


def start(event):
    return event["ts"]


def find(trace, name):
    return next(event for event in trace["traceEvents"] if event["name"] == name)


def test_every_key_of_torchs_file_is_in_ours(pair):
    theirs, ours = pair
    assert set(theirs) <= set(ours)


@pytest.mark.parametrize("key", ["baseTimeNanoseconds", "schemaVersion", "displayTimeUnit", *OPTIONS, *ADDED])
def test_what_stands_at_the_top_is_what_torch_has_there(pair, key):
    theirs, ours = pair
    assert ours[key] == theirs[key]


@pytest.mark.parametrize("key", ["ph", "cat"])
def test_events_are_of_the_kinds_that_torch_writes(pair, key):
    theirs, ours = ({event.get(key) for event in trace["traceEvents"]} for trace in pair)
    assert theirs <= ours


@pytest.mark.parametrize(
    "name", ["PyTorch Profiler (0)", "Iteration Start: PyTorch Profiler", "Record Window End", "process_labels"]
)
def test_marks_have_the_fields_of_torchs(pair, name):
    theirs, ours = ({k: v for k, v in find(t, name).items() if k not in ("ts", "dur", "pid")} for t in pair)
    assert ours == theirs


@pytest.mark.parametrize("name", ["process_sort_index", "thread_sort_index"])
def test_processes_and_threads_are_ordered_as_in_torchs(pair, name):
    for trace in pair:
        event = find(trace, name)
        assert event["args"]["sort_index"] == (event["pid"] if name.startswith("process") else event["tid"])


def test_threads_are_named_as_in_torchs(pair):
    theirs, ours = (find(trace, "thread_name") for trace in pair)
    assert ours["args"]["name"].replace(str(ours["tid"]), "N") == theirs["args"]["name"].replace(
        str(theirs["tid"]), "N"
    )


@pytest.mark.parametrize("argument", ["Input Dims", "Input Strides", "Input type", "Sequence number"])
def test_operators_have_the_arguments_of_torchs(pair, argument):
    theirs, ours = (
        [(e["name"], e["args"].get(argument)) for e in sorted(t["traceEvents"], key=start) if e.get("cat") == "cpu_op"]
        for t in pair
    )
    assert ours == theirs


@pytest.mark.parametrize("profiler", ["torch", "gpuscope"])
def test_base_and_ts_are_the_time_of_day(profiler, tmp_path):
    trace, before_ns, after_ns = run(profiler, tmp_path / "a.json")
    start_ns = trace["baseTimeNanoseconds"] + find(trace, "forward")["ts"] * 1000
    assert before_ns - 1e6 <= start_ns <= after_ns + 1e6


def test_traces_of_two_processes_are_as_far_apart_as_they_ran(tmp_path):
    first, *of_first_ns = run("gpuscope", tmp_path / "0.json.gz")
    time.sleep(1)
    second, *of_second_ns = run("gpuscope", tmp_path / "1.json.gz")
    assert first["baseTimeNanoseconds"] == second["baseTimeNanoseconds"]
    apart_us = find(second, "forward")["ts"] - find(first, "forward")["ts"]
    least_us, most_us = ((of_second_ns[at] - of_first_ns[1 - at]) / 1000 for at in (0, 1))
    assert least_us - 20_000 <= apart_us <= most_us + 20_000
