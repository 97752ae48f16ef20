# SPDX-License-Identifier: Apache-2.0
"""Execution traces of torch's beside a recording: the same nodes as beside torch.profiler's, and rows that link."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope.frameworks.torch_regions import regions_for_torch

torch = pytest.importorskip("torch")

FRAME = "[pytorch|profiler|execution_trace|"  # how names of the trace's own nodes begin


def record(module, work, tmp_path, **options):
    """What `work` leaves in the execution trace and the Chrome trace of torch.profiler or gpuscope."""
    path, chrome = tmp_path / f"{module.__name__}.et.json", tmp_path / f"{module.__name__}.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    options.setdefault("activities", [module.ProfilerActivity.CPU])
    with module.profile(execution_trace_observer=observer, **options) as prof:
        work(module.record_function if module is gs else torch.profiler.record_function)
    observer.unregister_callback()
    prof.export_chrome_trace(str(chrome))
    return SimpleNamespace(
        prof=prof,
        nodes=[node for node in json.loads(path.read_text())["nodes"] if not node["name"].startswith(FRAME)],
        rows=[row for row in json.loads(chrome.read_text())["traceEvents"] if row.get("ph") == "X"],
    )


def attribute(node, name):
    return next(attr["value"] for attr in node["attrs"] if attr["name"] == name)


def tree(nodes):
    """Names, scopes and the names around them."""
    names = {node["id"]: node["name"] for node in nodes}
    return sorted((node["name"], attribute(node, "scope"), names.get(node["ctrl_deps"])) for node in nodes)


def nested(region):
    with region("outer"):
        torch.ones(2) * 2
        with region("inner"):
            torch.ones(3)
    torch.zeros(1)


def test_nodes_are_those_beside_torch_profiler(tmp_path):
    ours, theirs = (record(module, nested, tmp_path) for module in (gs, torch.profiler))
    assert any(name == "inner" and around == "outer" for name, _, around in tree(theirs.nodes))
    assert tree(ours.nodes) == tree(theirs.nodes)


def test_what_stands_beside_the_name_of_a_region_is_an_input_of_its_node(tmp_path):
    def work(region):
        with region("outer", "x=3"):
            pass

    ours, theirs = (record(module, work, tmp_path).nodes[0]["inputs"] for module in (gs, torch.profiler))
    assert ours["values"] == ["x=3"]
    assert ours == theirs


def test_steps_of_a_schedule_are_nodes(tmp_path):
    path = tmp_path / "trace.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    with gs.profile(schedule=gs.schedule(wait=1, warmup=0, active=1), execution_trace_observer=observer) as prof:
        for _ in range(2):
            torch.ones(2)
            prof.step()
    observer.unregister_callback()
    assert "ProfilerStep#1" in {node["name"] for node in json.loads(path.read_text())["nodes"]}


def test_the_operators_by_which_torch_is_learned_are_no_nodes():
    code = """
        import json, os, tempfile, torch, gpuscope as gs
        path = tempfile.mktemp(suffix=".json")
        observer = torch.profiler.ExecutionTraceObserver().register_callback(path)
        with gs.profile(profile_memory=True, execution_trace_observer=observer):
            torch.zeros(1)
        observer.unregister_callback()
        nodes = json.load(open(path))["nodes"]
        os.unlink(path)
        names = {node["name"] for node in nodes if not node["name"].startswith("[pytorch")}
        assert names == {"aten::zeros", "aten::empty", "aten::zero_"}, names
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_every_row_of_the_chrome_trace_names_its_node(tmp_path):
    ours = record(gs, nested, tmp_path)
    rows = {row["args"]["Record function id"]: row["name"] for row in ours.rows if "External id" in row["args"]}
    assert rows == {attribute(node, "rf_id"): node["name"] for node in ours.nodes}


def test_a_region_is_one_row_of_the_recording(tmp_path):
    names = [row["name"] for row in record(gs, nested, tmp_path).rows]
    assert (names.count("outer"), names.count("inner")) == (1, 1)


def test_shapes_and_flops_are_kept_beside_numbers(tmp_path):
    ours = record(gs, lambda region: torch.ones(2, 3) @ torch.ones(3, 4), tmp_path, with_flops=True)
    assert {average.key: average.flops for average in ours.prof.key_averages()}["aten::mm"] == 2 * 2 * 3 * 4


def test_regions_of_modules_are_no_nodes(tmp_path):
    ours = record(gs, lambda region: torch.nn.Linear(2, 2)(torch.ones(1, 2)), tmp_path, with_modules=True)
    assert all(attribute(node, "scope") == 0 for node in ours.nodes)


def test_regions_of_several_threads_lie_in_their_own(tmp_path):
    def work(region):
        shared = region("shared")

        def run():
            with shared:
                torch.ones(2)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    nodes = record(gs, work, tmp_path).nodes
    shared = {node["id"] for node in nodes if node["name"] == "shared"}
    assert {node["ctrl_deps"] for node in nodes if node["name"] == "aten::ones"} == shared
    assert len(shared) == 4


def test_an_exception_passes_and_ends_the_node(tmp_path):
    def work(region):
        with pytest.raises(ZeroDivisionError), region("fails"):
            raise ZeroDivisionError
        torch.zeros(1)

    assert ("aten::zeros", 0, None) in tree(record(gs, work, tmp_path).nodes)


def test_regions_of_a_recording_without_an_execution_trace_are_left_alone(tmp_path):
    record(gs, nested, tmp_path)
    with gs.profile(), gs.record_function("outer"):
        assert not regions_for_torch._open


def test_a_torch_whose_callbacks_cannot_be_used_has_no_regions_there_and_the_audit_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr("gpuscope.frameworks.torch_operators.why_no_callbacks", lambda: "another layout")
    ours = record(gs, nested, tmp_path)
    assert [row["name"] for row in ours.rows].count("outer") == 1
    assert any("missing from the execution trace: another layout" in remark for remark in ours.prof.audit().remarks)
