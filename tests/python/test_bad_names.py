# SPDX-License-Identifier: Apache-2.0
"""Names that are no UTF-8, or hold a NUL, are recorded and written; nothing fails for them."""

from __future__ import annotations

import json

import pytest

import gpuscope
from fakes.perfetto import unpacked

NAMES = {"lone \ud800 surrogate": "lone ? surrogate", "a NUL \x00 inside": "a NUL \x00 inside", "\x00": "\x00"}


@pytest.fixture(params=NAMES, ids=["surrogate", "NUL", "only a NUL"])
def name(request):
    return request.param


@pytest.fixture(params=["full", "ring", "aggregate"])
def prof(request, name):
    return record(name, request.param)


def record(name, mode="full"):
    named = gpuscope.record_function(name, name)
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], mode=mode) as prof, named:
        gpuscope.mark(name)
        sum(range(100_000))
    return prof


def test_tables_have_the_name(prof, name):
    averages = prof.key_averages()
    assert NAMES[name] in [row.key for row in averages]
    averages.table().encode()
    averages.to_json().encode()


def test_the_tree_has_the_name(prof, name):
    assert prof.tree().find(NAMES[name]) is not None
    str(prof.tree()).encode()


def test_chrome_traces_have_the_name(name, tmp_path):
    record(name).export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_bytes().decode())["traceEvents"]
    assert {event["ph"] for event in events if event["name"] == NAMES[name]} == {"X", "i"}


def test_perfetto_traces_have_the_name(name, tmp_path):
    record(name).export_perfetto(str(tmp_path / "trace.pftrace"))
    assert NAMES[name].encode() in unpacked((tmp_path / "trace.pftrace").read_bytes())


def test_stacks_are_written(name, tmp_path):
    record(name).export_stacks(str(tmp_path / "stacks.txt"), "self_cpu_time_total")
    assert (tmp_path / "stacks.txt").read_bytes().decode()


def test_files_keep_the_name(name, tmp_path):
    record(name).save(str(tmp_path / "run.gscope"))
    assert NAMES[name] in [row.key for row in gpuscope.load(str(tmp_path / "run.gscope")).key_averages()]


def test_frames_have_the_name(name):
    pytest.importorskip("pandas")
    assert NAMES[name] in record(name).trace.regions.to_pandas().to_string() or "\x00" in name


def test_arrow_has_the_name(name):
    arrow = pytest.importorskip("pyarrow")
    assert arrow.table(record(name).trace.regions).num_rows == 1


def test_operators_run_beside_the_name(name):
    torch = pytest.importorskip("torch")
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof, gpuscope.record_function(name):
        torch.ones(2) + 1
    assert {NAMES[name], "aten::add"} <= {row.key for row in prof.key_averages()}


def test_execution_traces_are_written(name, tmp_path):
    torch = pytest.importorskip("torch")
    observer = gpuscope.ExecutionTraceObserver().register_callback(str(tmp_path / "et.json"))
    with (
        gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], execution_trace_observer=observer) as prof,
        gpuscope.record_function(name),
    ):
        torch.ones(2) + 1
    assert NAMES[name] in [row.key for row in prof.key_averages()]
    assert json.loads((tmp_path / "et.json").read_bytes().decode("utf-8", "replace"))["nodes"]
