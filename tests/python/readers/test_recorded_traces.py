# SPDX-License-Identifier: Apache-2.0
"""Files that Proton 3.6.0 and torch.profiler 2.11 wrote on an H100: what is read is what a plain look at them finds.

The program ran 20 steps of two scopes: "forward" launched 3 kernels, one of Triton's among them, and "loss" 4.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuscope as gs
from gpuscope import _core

TRACES = Path(__file__).parents[2] / "golden" / "traces"
PROTON, TREE, TORCH = (TRACES / name for name in ("proton-3.6.0.json.gz", "proton-3.6.0.hatchet", "torch-2.11.json.gz"))


def events(path: Path, category: str) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress(path.read_bytes()))
    return [event for event in document["traceEvents"] if event.get("cat") == category]


def leaves(node: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The frames of a tree that have none inside, each with the names of those around it."""
    for child in node["children"]:
        yield from leaves(child, (*above, node["frame"]["name"]))
    if not node["children"]:
        yield above, node


def nanoseconds(event: dict[str, Any]) -> int:
    return round(event["dur"] * 1000)


@pytest.mark.parametrize("path", [PROTON, TORCH], ids=["proton", "torch"])
def test_kernels_have_the_names_and_durations_of_the_file(path: Path) -> None:
    given = Counter((_core.demangle(each["name"]), nanoseconds(each)) for each in events(path, "kernel"))
    frame = gs.load(path).trace.kernels.to_pandas()
    assert len(frame) == 140
    assert Counter(zip(frame.name, frame.duration_ns, strict=True)) == given


def test_scopes_of_proton_are_those_of_the_call_stacks() -> None:
    recording = gs.load(PROTON)
    given: Counter[str] = Counter()
    for event in events(PROTON, "kernel"):
        given["/".join(event["args"]["call_stack"][1:-1])] += nanoseconds(event)
    frame = recording.trace.kernels.to_pandas()
    assert frame.groupby("path", observed=True).duration_ns.sum().to_dict() == given
    assert set(given) == {"step/forward", "step/loss"}
    tree = {node.name: node.device_ns for node in recording.tree().root if node.kind == "region"}
    assert tree == {
        "step": sum(given.values()),
        "forward": given["step/forward"],
        "loss": given["step/loss"],
    }
    assert any("appears once, at its first kernel, without a duration" in each for each in recording.audit().remarks)


def test_what_proton_does_not_record_gets_no_figure() -> None:
    recording = gs.load(PROTON)
    assert all(row.cpu_time_total == 0 for row in recording.key_averages())
    assert "outside every region" not in recording.table()
    audit = recording.audit()
    assert "launches and overhead not recorded by Proton" in audit.brief
    assert "overhead 0.0 %" not in audit.brief


def test_totals_of_a_tree_are_those_of_its_frames() -> None:
    recording = gs.load(TREE)
    given: Counter[str] = Counter()
    scopes: Counter[str] = Counter()
    for above, node in leaves(json.loads(TREE.read_bytes())[0]):
        given[_core.demangle(node["frame"]["name"])] += node["metrics"]["time (ns)"]
        scopes[above[-1]] += node["metrics"]["time (ns)"]
    rows = {row.key: round(row.device_time_total * 1000) for row in recording.key_averages() if row.kind == "kernel"}
    assert rows == given
    tree = {node.name: node.device_ns for node in recording.tree().root if node.kind == "region"}
    assert tree == {**scopes, "step": sum(scopes.values())}


def test_a_trace_of_torch_has_as_many_rows_as_events() -> None:
    trace = gs.load(TORCH).trace
    tables = {
        "cpu_op": trace.regions,
        "python_function": trace.python_functions,
        "gpu_memcpy": trace.memcpy,
        "gpu_memset": trace.memset,
    }
    found = {category: len(table) for category, table in tables.items()}
    assert found == {category: len(events(TORCH, category)) for category in tables}
    assert len(trace.api) == len(events(TORCH, "cuda_runtime")) + len(events(TORCH, "cuda_driver"))


def test_kernels_of_torch_are_in_the_operators_that_launched_them() -> None:
    frame = gs.load(TORCH).trace.kernels.to_pandas()
    operators = {each["args"]["External id"]: each["name"] for each in events(TORCH, "cpu_op")}
    given = Counter(operators.get(each["args"].get("External id"), "") for each in events(TORCH, "kernel"))
    assert Counter(str(path).rpartition("/")[2] for path in frame.path.astype(object).fillna("")) == given
    assert given[""] == 20  # Triton's kernel, which no operator launches


def test_memory_of_torch_is_in_the_operators_that_took_it() -> None:
    recording = gs.load(TORCH)
    memory = recording.trace.memory.to_pandas()
    given = [each["args"] for each in events(TORCH, "cpu_instant_event")]
    assert len(memory) == len(given) == 360
    for ours, theirs in {"bytes": "Bytes", "address": "Addr", "allocated_bytes": "Total Allocated"}.items():
        assert Counter(memory[ours]) == Counter(each[theirs] for each in given)
    assert set(memory.ordinal) == {0}
    rows = {row.key: row for row in recording.key_averages()}
    assert rows["aten::mm"].self_device_memory_usage == 20 << 20
    assert rows["aten::matmul"].device_memory_usage == 20 << 20
    assert rows["aten::matmul"].self_device_memory_usage == 0


@pytest.mark.parametrize("path", [PROTON, TORCH, TREE], ids=["proton", "torch", "tree"])
def test_it_can_be_diagnosed_and_reported(path: Path, tmp_path: Path) -> None:
    recording = gs.load(path)
    assert str(recording.diagnose())
    recording.report(tmp_path / "page.html")
    recording.save(tmp_path / "run.gscope")
    assert gs.load(tmp_path / "run.gscope").table() == recording.table()


def test_the_wait_for_a_value_is_found_in_a_trace_of_torch() -> None:
    assert "R15" in {each.id for each in gs.load(TORCH).diagnose().findings}
