# SPDX-License-Identifier: Apache-2.0
"""Traces of JAX's profiler and of Proton read as recordings, each known by its content."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpuscope as gs
from fakes import nsys, other_traces
from fakes.versions import version
from gpuscope._core import CallKind, CopyKind, MemoryKind
from gpuscope.errors import CorruptTrace, InvalidArgument
from gpuscope.recording import Recording

STEPS = other_traces.STEPS


def load(document: Any, folder: Path, name: str = "trace.json") -> Recording:
    text = json.dumps(document).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return gs.load(folder / name)


def test_a_trace_of_jax_has_its_streams_calls_and_regions(tmp_path: Path) -> None:
    recording = load(other_traces.jax(), tmp_path, "vm.trace.json.gz")
    trace = recording.trace
    assert [len(each) for each in (trace.kernels, trace.memcpy, trace.memset)] == [2 * STEPS, STEPS, STEPS]
    frame = trace.kernels.to_pandas()
    gemm = frame[frame.name == "gemm_fusion_dot_3"].iloc[0]
    assert (gemm.start_ns, gemm.duration_ns) == (200_000, 400_250)
    assert (gemm.grid, gemm.block, gemm.registers, gemm.shared_bytes) == ("8, 2, 1", "128, 1, 1", 32, 1040)
    assert (gemm.device, gemm.stream, gemm.path) == (0, 7, "train/PjitFunction(f)")
    copies = trace.memcpy
    assert (copies.kind[0], copies.bytes[0]) == (CopyKind.HOST_TO_DEVICE, 4096)
    assert (copies.source[0], copies.destination[0]) == (MemoryKind.PINNED, MemoryKind.DEVICE)
    assert trace.memset.bytes.tolist() == [512] * STEPS
    kinds = [int(trace.calls.kind[call]) for call in trace.api.call]
    assert kinds.count(CallKind.LAUNCH) == 2 * STEPS
    functions = [trace.string(int(name)) for name in trace.python_functions.name]
    body = functions.index("loop.py(30): body")
    assert functions[trace.python_functions.parent[body]] == "loop.py(12): run"
    audit = recording.audit()
    assert (audit.complete, audit.launches, audit.missing) == (True, 2 * STEPS, 0)
    assert any(each.startswith("not recorded by JAX: shapes") for each in audit.remarks)


def test_a_trace_that_jax_writes_is_read(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    f = jax.jit(lambda x: (x @ x).sum())
    x = jax.numpy.ones((64, 64))
    f(x).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        for number in range(6):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                f(x).block_until_ready()
    (path,) = tmp_path.rglob("*.trace.json.gz")
    recording = gs.load(path)
    rows = {row.key: row.count for row in recording.key_averages()}
    assert rows["train"] == 6
    found = recording.step_breakdown()
    assert len(found.steps) + found.left_out == 6


def test_a_trace_of_proton_has_its_kernels_in_the_scopes_of_its_arrows(tmp_path: Path) -> None:
    recording = load(other_traces.proton(), tmp_path)
    frame = recording.trace.kernels.to_pandas()
    assert {name: set(rows.path) for name, rows in frame.groupby("name", observed=True)} == {
        "matmul_kernel": {"step/forward"},
        "add_kernel": {"step"},
    }
    assert set(frame.stream) == {7}
    assert frame[frame.name == "matmul_kernel"].duration_ns.iloc[0] == 400_250
    audit = recording.audit()
    assert audit.verdict == (
        f"audit: complete as far as can be told - {2 * STEPS} kernels; launches and overhead not recorded by Proton"
    )
    assert any("not recorded by Proton: driver calls, copies" in each for each in audit.remarks)


def test_kernels_without_an_arrow_are_in_no_region(tmp_path: Path) -> None:
    document = other_traces.proton()
    document["traceEvents"] = [event for event in document["traceEvents"] if event["ph"] in "XM"]
    frame = load(document, tmp_path).trace.kernels.to_pandas()
    assert len(frame) == 2 * STEPS
    assert frame.region.isna().all()


def test_streams_of_proton_are_known_by_lane_name_or_number(tmp_path: Path) -> None:
    def kernel(lane: Any) -> dict[str, Any]:
        arguments = {"call_stack": ["ROOT", "k"]}
        return {"args": arguments, "cat": "kernel", "name": "k", "ph": "X", "pid": 0, "tid": lane, "ts": 1, "dur": 1}

    named = {"args": {"name": "Device 3 Stream 4"}, "name": "thread_name", "ph": "M", "pid": 0, "tid": 77}
    events = [kernel(200_000 + 2_000_000 + 5), kernel("Stream: 9"), named, kernel(77)]
    tracks = load({"traceEvents": events}, tmp_path).trace.tracks
    assert sorted(zip(tracks.device.tolist(), tracks.stream.tolist(), strict=True)) == [(0, 9), (2, 5), (3, 4)]


def test_a_tree_of_proton_has_its_totals(tmp_path: Path) -> None:
    recording = load(other_traces.proton_tree(), tmp_path, "matmul.hatchet")
    rows = {row.key: (row.count, row.device_time_total) for row in recording.key_averages() if row.kind == "kernel"}
    assert rows == {"matmul": (10, 4000.0), "add": (15, 300.0)}
    paths = {node.name: node.device_ns for node in recording.tree().root if node.kind == "region"}
    assert paths == {"step": 4_300_000, "forward": 4_200_000}
    assert recording.audit().mode == "aggregate"
    assert recording.trace.devices.multiprocessors.tolist() == [132]
    assert any("single kernels and regions" in each for each in recording.audit().remarks)


FOREIGN = {
    "jax": (other_traces.jax, "vm.trace.json.gz"),
    "proton": (other_traces.proton, "trace.json"),
}


@pytest.mark.parametrize("tool", FOREIGN)
def test_everything_can_be_asked_of_it(tmp_path: Path, tool: str) -> None:
    make, name = FOREIGN[tool]
    recording = load(make(), tmp_path, name)
    assert len(recording.step_breakdown().steps) > 0
    assert str(recording.diagnose())
    assert not gs.diff(recording, recording, findings=False).changes
    recording.report(tmp_path / "page.html")
    recording.save(tmp_path / "run.gscope")
    again = gs.load(tmp_path / "run.gscope")
    assert again.table() == recording.table()
    assert str(again.audit()) == str(recording.audit())


def test_a_tree_can_be_printed_saved_and_reported(tmp_path: Path) -> None:
    recording = load(other_traces.proton_tree(), tmp_path, "matmul.hatchet")
    assert "matmul" in recording.table()
    recording.report(tmp_path / "page.html")
    recording.save(tmp_path / "run.gscope")
    assert gs.load(tmp_path / "run.gscope").table() == recording.table()


def read_or_refused(path: Path) -> Recording | str:
    """A recording, or why it is none."""
    try:
        return gs.load(path)
    except CorruptTrace as error:
        return str(error)


@pytest.mark.parametrize("make", [other_traces.jax, other_traces.proton])
def test_it_may_be_cut_off_at_any_byte(tmp_path: Path, make: Callable[[int], dict[str, Any]]) -> None:
    text = json.dumps(make(1)).encode()
    path = tmp_path / "cut.json"
    most = 0
    for length in range(0, len(text), 11):  # at every byte the C++ tests cut
        path.write_bytes(text[:length])
        recording = read_or_refused(path)
        if isinstance(recording, str):
            assert "\n" not in recording
            continue
        found = len(recording.trace.kernels) + len(recording.trace.regions)
        assert found >= most
        most = found
        assert not recording.audit().complete
        assert "the file was cut off at byte" in recording.audit().verdict
    assert most > 0


def unsuffixed(folder: Path) -> dict[str, Path]:
    """A file of each kind under a name that says nothing."""
    paths = {name: folder / f"{name}-file" for name in ("gscope", "torch", "jax", "proton", "tree", "sqlite")}
    before = version({"gemm": 2e6}, steps=5)
    before.save(folder / "x.gscope")
    paths["gscope"].write_bytes((folder / "x.gscope").read_bytes())
    before.export_chrome_trace(paths["torch"])
    paths["jax"].write_bytes(gzip.compress(json.dumps(other_traces.jax()).encode()))
    paths["proton"].write_text(json.dumps(other_traces.proton()))
    paths["tree"].write_text(json.dumps(other_traces.proton_tree(), indent=1))
    nsys.write_sqlite(nsys.training(), paths["sqlite"])
    return paths


def test_the_content_tells_what_a_file_is(tmp_path: Path) -> None:
    names = {"jax": "PjitFunction", "proton": "matmul_kernel", "tree": "matmul"}
    for name, path in unsuffixed(tmp_path).items():
        table = gs.load(path).table()
        assert names.get(name, "gemm") in table, name


@pytest.mark.parametrize("content", [b"hello", b"PK\x03\x04" + bytes(100), b"\x7fELF", b"", bytes(100)])
def test_what_is_none_of_them_gets_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thing.dat"
    path.write_bytes(content)
    with pytest.raises(CorruptTrace, match=r"is no recording; accepted are .gscope files and traces of torch.profiler"):
        gs.load(path)


def test_a_folder_of_something_else_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"has no \.gscope file"):
        gs.load(tmp_path)


def test_salvage_is_a_bool_for_other_tools_too(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(other_traces.proton()))
    with pytest.raises(InvalidArgument, match="salvage is 'no'; accepted are True and False"):
        gs.load(tmp_path / "a.json", salvage="no")  # type: ignore[arg-type]


def test_what_stands_before_damage_is_salvaged(tmp_path: Path) -> None:
    text = json.dumps(other_traces.proton(), indent=1)
    middle = len(text) // 2
    (tmp_path / "bad.json").write_text(text[:middle] + "\x00garbage" + text[middle:])
    with pytest.raises(CorruptTrace, match=r"is no JSON, or cut off: .* at byte"):
        gs.load(tmp_path / "bad.json")
    recording = gs.load(tmp_path / "bad.json", salvage=True)
    assert 0 < len(recording.trace.regions) <= 2 * STEPS
    assert not recording.audit().complete


def test_a_copy_of_more_than_4_gib_has_its_bytes(tmp_path: Path) -> None:
    document = other_traces.jax(1)
    for event in document["traceEvents"]:
        if details := event.get("args", {}).get("memcpy_details"):
            event["args"]["memcpy_details"] = details.replace("size:4096", f"size:{5 << 30}")
    assert load(document, tmp_path).trace.memcpy.bytes.tolist() == [5 << 30]


@pytest.mark.parametrize("document", [5, None, True, "text", {}, []])
def test_a_tree_that_is_no_list_of_frames_gets_one_sentence(tmp_path: Path, document: Any) -> None:
    with pytest.raises(CorruptTrace, match="is no tree of Proton"):
        load(document, tmp_path, "tree.hatchet")
