# SPDX-License-Identifier: Apache-2.0
"""Exports of Nsight Systems read as recordings."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpuscope as gs
from fakes import nsys
from gpuscope._core import CopyKind, Flag, MemoryKind, OverheadKind, RegionKind, SyncKind, Work
from gpuscope.errors import CorruptTrace, GpuscopeError, NotAvailable
from gpuscope.recording import Recording

FORMS = ("sqlite", "parquet")


def export(tables: nsys.Tables, folder: Path, form: str = "sqlite") -> Path:
    if form == "parquet":
        pytest.importorskip("pyarrow")
        return nsys.write_parquet(tables, folder / "export")
    return nsys.write_sqlite(tables, folder / "export.sqlite")


def load(tables: nsys.Tables, folder: Path, form: str = "sqlite") -> Recording:
    return gs.load(export(tables, folder, form))


def refusal(path: Path) -> str:
    """Why a file cannot be read; empty where it can, and has a table."""
    try:
        gs.load(path).table()
    except GpuscopeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("form", FORMS)
def test_work_of_graphs_is_in_the_table_of_nodes(tmp_path: Path, form: str) -> None:
    tables = nsys.training()
    for table, row in (("KERNEL", 1), ("MEMCPY", 2)):
        tables[f"CUPTI_ACTIVITY_KIND_{table}"][row]["graphNodeId"] = 40 + row
    for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row["graphId"] = 3 if row["graphNodeId"] else None
    recording = load(tables, tmp_path, form)
    nodes = recording.trace.graph_nodes
    assert list(
        zip(nodes.kind.tolist(), nodes.event.tolist(), nodes.graph.tolist(), nodes.node.tolist(), strict=True)
    ) == [
        (Work.KERNEL, 1, 3, 41),
        (Work.MEMCPY, 2, 0, 42),
    ]
    assert recording.trace.kernels.flags[1] == Flag.IN_GRAPH
    assert recording.audit().graph_nodes == 2


@pytest.mark.parametrize("form", FORMS)
def test_tables_have_what_the_export_has(tmp_path: Path, form: str) -> None:
    trace = load(nsys.training(), tmp_path, form).trace
    steps = nsys.STEPS
    assert [len(each) for each in (trace.kernels, trace.memcpy, trace.memset, trace.sync)] == [
        2 * steps,
        steps,
        steps,
        steps,
    ]
    frame = trace.kernels.to_pandas()
    gemm = frame[frame.name == "void gemm<float>(float*, int)"].iloc[0]
    assert (gemm.start_ns, gemm.duration_ns) == (nsys.UTC_EPOCH_NS + 1_070_000, 400_000)
    assert (gemm.grid, gemm.block, gemm.registers, gemm.shared_bytes) == ("8, 2, 1", "128, 1, 1", 32, 1040)
    assert (gemm.device, gemm.stream, gemm.path) == (0, 7, "step/forward")
    assert set(frame[frame.name.str.contains("relu")].path) == {"step"}
    assert set(trace.memcpy.kind.tolist()) == {CopyKind.HOST_TO_DEVICE}
    assert (trace.memcpy.source[0], trace.memcpy.destination[0]) == (MemoryKind.PINNED, MemoryKind.DEVICE)
    assert trace.memset.bytes.tolist() == [512] * steps
    assert trace.sync.kind[0] == SyncKind.STREAM
    names = {trace.string(int(name)) for name in trace.calls.name}
    assert "cudaLaunchKernel" in names
    assert not any("_v" in name for name in names)
    assert trace.marks.to_pandas()[["name", "path"]].values.tolist() == [["here", "step"]]


@pytest.mark.parametrize("version", nsys.FIRST_TEXTS)
@pytest.mark.parametrize("form", FORMS)
def test_every_version_is_the_same_recording(tmp_path: Path, form: str, version: str) -> None:
    trace = load(nsys.of_version(version), tmp_path, form).trace
    frame = trace.kernels.to_pandas()
    assert sorted(frame.groupby("name", observed=True).duration_ns.agg(["count", "sum"]).itertuples(name=None)) == [
        ("void gemm<float>(float*, int)", nsys.STEPS, nsys.STEPS * 400_000),
        ("void relu<float>(float*, int)", nsys.STEPS, nsys.STEPS * 20_000),
    ]
    assert set(frame.path) == {"step", "step/forward"}
    assert (set(trace.memcpy.source), set(trace.memcpy.destination)) == ({MemoryKind.PINNED}, {MemoryKind.DEVICE})
    assert trace.devices.to_pandas()[["ordinal", "name", "multiprocessors", "capability_major"]].values.tolist() == [
        [0, "NVIDIA H100", 132, 9]
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_range_without_a_text_has_no_name(tmp_path: Path, form: str) -> None:
    tables = nsys.of_version("2024.5.4.34")
    for row in tables["NVTX_EVENTS"]:
        row["text"] = row["textId"] = None
    tables["NVTX_EVENTS"][0]["textId"] = tables["StringIds"][0]["id"]
    names = set(load(tables, tmp_path, form).trace.regions.to_pandas().name)
    assert names == {"", tables["StringIds"][0]["value"]}


@pytest.mark.parametrize("form", FORMS)
def test_gpus_of_processes_that_see_one_each_are_told_apart(tmp_path: Path, form: str) -> None:
    tables = nsys.training()
    kernels, (gpu,) = tables["CUPTI_ACTIVITY_KIND_KERNEL"], tables["TARGET_INFO_GPU"]
    other = nsys.PID + 1
    kernels += [row | {"globalPid": nsys.MACHINE | other << 24} for row in kernels]
    tables["TARGET_INFO_GPU"] = [gpu | {"id": 10, "cuDevice": 0}, gpu | {"id": 11, "cuDevice": 1}]
    tables["TARGET_INFO_CUDA_DEVICE"] = [
        {"pid": nsys.PID, "cudaId": 0, "gpuId": 10},
        {"pid": other, "cudaId": 0, "gpuId": 11},
    ]
    devices = load(tables, tmp_path, form).trace.kernels.to_pandas().device
    assert devices.value_counts().to_dict() == {0: len(kernels) // 2, 1: len(kernels) // 2}


def test_gpus_keep_their_numbers_where_those_among_all_are_not_told(tmp_path: Path) -> None:
    tables = nsys.training()
    (gpu,) = tables["TARGET_INFO_GPU"]
    for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"][::2]:
        row["deviceId"] = 1
    tables["TARGET_INFO_GPU"] = [gpu | {"id": 10}, gpu | {"id": 11}]  # both have the number 0
    tables["TARGET_INFO_CUDA_DEVICE"] = [{"pid": nsys.PID, "cudaId": each, "gpuId": 10 + each} for each in (0, 1)]
    assert set(load(tables, tmp_path).trace.kernels.to_pandas().device) == {0, 1}


def test_threads_of_parquet_have_their_names_whatever_their_machine(tmp_path: Path) -> None:
    tables = nsys.training()
    for rows in tables.values():
        for row in rows:
            row |= {name: row[name] | 1 << 63 for name in ("globalTid", "globalPid") if row.get(name)}
    trace = load(tables, tmp_path, "parquet").trace
    assert trace.threads.to_pandas().name.tolist() == ["main"]


def test_launches_into_a_graph_are_not_missing(tmp_path: Path) -> None:
    tables = nsys.training()
    calls = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    numbers = {row["value"]: row["id"] for row in tables["StringIds"]}
    for name in ("cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000"):
        numbers[name] = max(numbers.values()) + 1
        tables["StringIds"].append({"id": numbers[name], "value": name})
    for at, name in enumerate(
        ("cudaStreamBeginCapture_v10000", "cudaLaunchKernel_v7000", "cudaStreamEndCapture_v10000")
    ):
        row = {"start": 100 * at, "end": 100 * at + 50, "nameId": numbers[name], "correlationId": 1000 + at}
        calls.append(calls[0] | row)
    audit = load(tables, tmp_path).audit()
    assert (audit.missing, audit.launches) == (0, 2 * nsys.STEPS)


def test_launches_that_failed_are_not_missing(tmp_path: Path) -> None:
    tables = nsys.training()
    kernels, calls = tables["CUPTI_ACTIVITY_KIND_KERNEL"], tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    failed = kernels.pop()["correlationId"]
    next(row for row in calls if row["correlationId"] == failed)["returnValue"] = 700
    assert load(tables, tmp_path).audit().missing == 0


def test_graphs_that_were_traced_as_a_whole_are_work_of_a_gpu(tmp_path: Path) -> None:
    tables = nsys.training()
    kernels = tables.pop("CUPTI_ACTIVITY_KIND_KERNEL")
    tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = [row | {"graphId": 3} for row in kernels]
    for table in ("MEMCPY", "MEMSET", "RUNTIME"):
        del tables[f"CUPTI_ACTIVITY_KIND_{table}"]
    assert load(tables, tmp_path).audit().gpu_traced


@pytest.mark.parametrize("form", FORMS)
def test_calls_with_a_call_stack_count_once(tmp_path: Path, form: str) -> None:
    tables = nsys.training()
    calls = tables["CUPTI_ACTIVITY_KIND_RUNTIME"]
    launch = max(row["id"] for row in tables["StringIds"]) + 1
    tables["StringIds"].append({"id": launch, "value": "cudaLaunchKernel"})
    for row in list(calls):
        calls.append(row | {"start": row["start"] - 40, "end": row["end"] + 40, "eventClass": 67, "nameId": launch})
    calls.append(calls[0] | {"correlationId": 999, "eventClass": 67})  # the only row of its call
    recording = load(tables, tmp_path, form)
    assert recording.audit().launches == 2 * nsys.STEPS
    assert len(recording.trace.api) == 5 * nsys.STEPS + 1


@pytest.mark.parametrize("form", FORMS)
def test_memory_of_the_driver_is_a_table(tmp_path: Path, form: str) -> None:
    tables = nsys.training()
    allocation = {"globalPid": nsys.GLOBAL_PID, "deviceId": 0, "contextId": 1, "address": 4096, "bytes": 640}
    tables["CUDA_GPU_MEMORY_USAGE_EVENTS"] = [
        allocation | {"start": 1_020_000, "memKind": 2, "memoryOperationType": 0, "correlationId": 1},
        allocation | {"start": 1_090_000, "memKind": 2, "memoryOperationType": 1, "correlationId": 0},
        allocation | {"start": -5, "memKind": 1, "memoryOperationType": 0, "correlationId": 0},
    ]
    trace = load(tables, tmp_path, form).trace
    frame = trace.device_memory.to_pandas()
    assert frame[["bytes", "address", "kind", "device"]].values.tolist() == [
        [640, 4096, MemoryKind.DEVICE, 0],
        [-640, 4096, MemoryKind.DEVICE, 0],
    ]
    assert frame.start_ns.tolist() == [nsys.UTC_EPOCH_NS + 1_020_000, nsys.UTC_EPOCH_NS + 1_090_000]
    assert (frame.path[0], frame.path.isna().tolist()) == ("step/forward", [False, True])


@pytest.mark.parametrize("form", FORMS)
def test_what_the_driver_takes_for_itself_is_a_table(tmp_path: Path, form: str) -> None:
    tables = nsys.training()
    tables["ENUM_CUPTI_OVERHEAD_TYPE"] = [
        {"id": 7, "name": "OVERHEAD_LAZY_FUNCTION_LOADING"},
        {"id": 8, "name": "OVERHEAD_COMMAND_BUFFER_FULL"},
        {"id": 9, "name": "OVERHEAD_OF_A_LATER_VERSION"},
    ]
    tables["CUPTI_ACTIVITY_KIND_OVERHEAD"] = [
        {"start": 1_000_000 + kind, "end": 1_000_500, "globalTid": nsys.GLOBAL_TID, "overheadType": kind}
        for kind in (7, 8, 9)
    ]
    found = load(tables, tmp_path, form).trace.overheads
    assert found.kind.tolist() == [OverheadKind.LAZY_FUNCTION_LOADING, OverheadKind.COMMAND_BUFFER_FULL, 0]
    assert found.duration_ns.tolist() == [493, 492, 491]
    assert set(found.system_id.tolist()) == {nsys.THREAD}


def test_adapters_that_cuda_does_not_know_are_no_gpus(tmp_path: Path) -> None:
    tables = nsys.training()
    other = {"id": 1, "name": "Basic Render Driver", "totalMemory": 0, "smCount": 0, "cuDevice": 0}
    tables["TARGET_INFO_GPU"].append(other)
    assert load(tables, tmp_path).trace.devices.to_pandas().name.tolist() == ["NVIDIA H100"]


def test_threads_of_a_machine_with_a_high_number_are_the_same_in_both_forms(tmp_path: Path) -> None:
    tables = nsys.training()
    for rows in tables.values():
        for row in rows:
            for name in ("globalTid", "globalPid"):
                if row.get(name) is not None:
                    row[name] |= 0x8F << 56
    folder = export(tables, tmp_path, "parquet")
    for rows in tables.values():  # as SQLite has no unsigned numbers
        for row in rows:
            for name in ("globalTid", "globalPid"):
                if row.get(name) is not None:
                    row[name] -= 1 << 64
    threads = [gs.load(path).trace.threads for path in (folder, export(tables, tmp_path))]
    assert threads[0].system_id.tolist() == threads[1].system_id.tolist() == [nsys.THREAD]


def test_tables_that_are_not_read_are_named(tmp_path: Path) -> None:
    tables = nsys.training()
    tables["OSRT_API"] = [{"start": 1, "end": 2, "globalTid": nsys.GLOBAL_TID, "nameId": 1}]
    tables["MPI_P2P_EVENTS"] = [{"start": 1, "end": 2, "globalTid": nsys.GLOBAL_TID, "textId": 1}]
    remarks = load(tables, tmp_path).audit().remarks
    assert "in the export and not read: calls of the operating system, messages of MPI" in remarks


def test_rows_whose_times_make_no_sense_are_counted(tmp_path: Path) -> None:
    tables = nsys.training()
    for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"][:2]:
        row["end"] = row["start"] - 1
    recording = load(tables, tmp_path)
    assert len(recording.trace.kernels) == 2 * nsys.STEPS
    assert "INCOMPLETE - 2 records have an end before the start" in recording.audit().verdict


def test_an_export_without_cuda_and_ranges_says_what_to_trace(tmp_path: Path) -> None:
    tables = {name: nsys.training()[name] for name in ("StringIds", "ThreadNames", "PROCESSES")}
    with pytest.raises(CorruptTrace, match="has nothing of CUDA and no NVTX ranges: `nsys profile --trace cuda,nvtx`"):
        load(tables, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_rows_in_any_order_are_the_same_recording(tmp_path: Path, form: str) -> None:
    (tmp_path / "other").mkdir()
    ordered = load(nsys.training(), tmp_path, form)
    mixed = load(nsys.shuffled(nsys.training()), tmp_path / "other", form)
    assert mixed.table() == ordered.table()
    assert str(mixed.tree()) == str(ordered.tree())


def test_names_are_those_of_their_ranges_also_where_an_index_has_them_in_another_order(tmp_path: Path) -> None:
    path = export(nsys.training(), tmp_path)
    plain = gs.load(path).trace.regions.to_pandas()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create index by_text on NVTX_EVENTS(text)")
    indexed = gs.load(path).trace.regions.to_pandas()
    columns = ["name", "start_ns", "duration_ns"]
    assert indexed[columns].values.tolist() == plain[columns].values.tolist()


@pytest.mark.parametrize("form", FORMS)
def test_tables_with_a_version_are_read_as_those_without(tmp_path: Path, form: str) -> None:
    (tmp_path / "other").mkdir()
    plain = load(nsys.training(), tmp_path, form)
    versioned = load(nsys.renamed(nsys.training(), 3), tmp_path / "other", form)
    assert versioned.table() == plain.table()
    assert str(versioned.tree()) == str(plain.tree())
    assert versioned.audit() == plain.audit()


@pytest.mark.parametrize("form", FORMS)
def test_of_two_versions_of_a_table_the_later_is_read_and_the_other_named(tmp_path: Path, form: str) -> None:
    tables = nsys.training()
    tables |= {"CUPTI_ACTIVITY_KIND_KERNEL_V10": tables["CUPTI_ACTIVITY_KIND_KERNEL"][:4]}
    tables |= {"CUPTI_ACTIVITY_KIND_KERNEL_V9": tables["CUPTI_ACTIVITY_KIND_KERNEL"][:2]}
    recording = load(tables, tmp_path, form)
    assert len(recording.trace.kernels) == 4
    assert any(
        "CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_KERNEL_V9" in each for each in recording.audit().remarks
    )


def test_a_later_version_of_a_table_without_rows_hides_nothing(tmp_path: Path) -> None:
    path = export(nsys.training(), tmp_path)
    change(path, "create table NVTX_EVENTS_V2 as select * from NVTX_EVENTS where 0")
    assert "forward" in gs.load(path).table()


@pytest.mark.parametrize("form", FORMS)
def test_operators_of_torch_have_their_numbers_and_shapes_in_columns(tmp_path: Path, form: str) -> None:
    trace = load(nsys.with_operators(nsys.training()), tmp_path, form).trace
    regions = trace.regions.to_pandas()
    assert set(regions.name) == {"step", "forward", "aten::linear", "aten::mm", "MulBackward0", "my layer"}
    kinds = dict(zip(regions.name, trace.paths.kind[trace.regions.path], strict=True))
    assert {name for name, kind in kinds.items() if kind == RegionKind.OP} == {
        *("aten::linear", "aten::mm", "MulBackward0")
    }
    assert "step/forward/aten::linear/aten::mm" in set(regions.path)
    details = trace.details.to_pandas()
    columns = ["region", "sequence", "shapes", "op", "producer"]
    assert details[columns].astype(object).fillna("").values.tolist()[:4] == [
        ["aten::linear", -1, "[[8, 4], [2, 4]]", 1, 0],
        ["aten::mm", 8, "[[8, 4], [4, 2]]", 2, 1],
        ["MulBackward0", 8, "", 3, 0],
        ["my layer", -1, "", 4, 0],
    ]


def test_ranges_that_torch_did_not_write_keep_their_names(tmp_path: Path) -> None:
    tables = nsys.training(1)
    names = ["epoch, seq = 3", "load, op_id = a", "x, sizes = [[1]]", "namespace::function"]
    tables["NVTX_EVENTS"] = [tables["NVTX_EVENTS"][1] | {"text": name} for name in names]
    trace = load(tables, tmp_path).trace
    assert sorted(trace.regions.to_pandas().name) == sorted(names)
    assert not len(trace.details)


def test_operators_of_versions_of_torch_that_do_not_number_them_are_operators(tmp_path: Path) -> None:
    tables = nsys.training(1)
    names = ["aten::view", "aten::mm, seq = 3", "MmBackward, seq = 3"]
    tables["NVTX_EVENTS"] = [tables["NVTX_EVENTS"][1] | {"text": name} for name in names]
    trace = load(tables, tmp_path).trace
    assert set(trace.regions.to_pandas().name) == {"aten::view", "aten::mm", "MmBackward"}
    assert set(trace.paths.kind.tolist()) == {RegionKind.OP}


def test_operators_are_no_steps(tmp_path: Path) -> None:
    tables = nsys.with_operators(nsys.training())
    tables["NVTX_EVENTS"] = [row for row in tables["NVTX_EVENTS"] if "aten::mm" in str(row["text"])]
    assert "aten::mm" not in load(tables, tmp_path).step_breakdown().steps.source


def test_operators_of_two_runs_are_compared_with_each_other(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    before = load(nsys.with_operators(nsys.training(), 1), tmp_path)
    after = load(nsys.with_operators(nsys.training(), 100_000), tmp_path / "other")
    found = gs.diff(before, after, findings=False)
    assert (found.matched, found.changes) == (1.0, ())


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


ENDLESS = "with recursive rows(n) as (select 1 union all select n + 1 from rows) select n as start, n as end from rows"
FORGED = "update sqlite_master set type = 'table', sql = 'create/**/view more as select 1' where name = 'more'"


@pytest.mark.parametrize(
    "statements",
    [
        ["drop table NVTX_EVENTS", f"create view NVTX_EVENTS as {ENDLESS}"],
        [f"create view more as {ENDLESS}"],
        ["create view more as select 1", "pragma writable_schema = on", FORGED],
        ["create trigger more after insert on StringIds begin delete from StringIds; end"],
        ["drop table NVTX_EVENTS", "create virtual table NVTX_EVENTS using fts5(start, eventType)"],
        ["alter table NVTX_EVENTS add column more generated always as (hex(zeroblob(start)))"],
    ],
    ids=["view", "view_beside", "forged", "trigger", "virtual_table", "generated_column"],
)
def test_what_a_file_would_have_computed_is_refused(tmp_path: Path, statements: list[str]) -> None:
    path = export(nsys.training(1), tmp_path)
    change(path, *statements)
    with pytest.raises(CorruptTrace, match=r"^'.*export.sqlite' cannot be read: .*\Z"):
        gs.load(path)


def fold(path: Path, table: str) -> None:
    """Has the root of a table of three levels lead to its first branch 71 times, so that the rows there come again."""
    page = 512
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute("select rootpage from sqlite_master where name = ?", (table,)).fetchall()
    data = bytearray(path.read_bytes())
    old = data[(root - 1) * page : root * page]
    branch = old[int.from_bytes(old[12:14], "big") :][:4]
    assert (old[0], data[(int.from_bytes(branch, "big") - 1) * page]) == (5, 5), "pages of a tree that are no leaves"
    cells = b"".join(branch + bytes([number]) for number in range(70))
    begin = page - len(cells)
    places = b"".join((begin + 5 * number).to_bytes(2, "big") for number in range(70))
    head = bytes([5, 0, 0, 0, 70]) + begin.to_bytes(2, "big") + b"\0" + branch
    data[(root - 1) * page : root * page] = (head + places).ljust(begin, b"\0") + cells
    path.write_bytes(data)


@pytest.mark.parametrize(("text", "said"), [("", "more rows"), ("x" * 60, "more text")])
def test_a_file_whose_pages_are_read_over_and_over_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "folded.sqlite"
    rows = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < 6000) select i, '{text}' from n"
    change(path, "pragma page_size = 512", "create table StringIds(id integer primary key, value)")
    change(path, f"insert into StringIds {rows}")
    fold(path, "StringIds")
    with pytest.raises(CorruptTrace, match=f"has {said} than its .* bytes can hold"):
        gs.load(path)


def test_reading_ends_when_it_takes_longer_than_the_file_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(nsys.training(500), tmp_path)
    monkeypatch.setattr("gpuscope.readers.nsys._LEAST_S", -1)
    with pytest.raises(CorruptTrace, match="cannot be read: it takes longer than a file of its size can"):
        gs.load(path)


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_file_is_opened_or_gets_one_sentence(tmp_path: Path, seed: int) -> None:
    whole = export(nsys.with_operators(nsys.training(2)), tmp_path).read_bytes()
    draw, path, opened = random.Random(seed), tmp_path / "mutated.sqlite", 0
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 2, 16])):
            at, other = (draw.randrange(len(data) - 64) for _ in range(2))
            data[at : at + 64] = draw.choice([draw.randbytes(1) + data[at + 1 : at + 64], data[other : other + 64]])
        path.write_bytes(data)
        sentence = refusal(path)
        assert "\n" not in sentence
        opened += not sentence
    assert 0 < opened < 60


def test_a_file_that_is_being_written_is_read_with_what_was_written(tmp_path: Path) -> None:
    path = export(nsys.training(2), tmp_path)
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("pragma journal_mode = wal")
        writer.execute("update StringIds set value = 'changed' where value = 'step'")
        writer.commit()
        assert "changed" in gs.load(path).table()


def test_a_file_of_a_program_that_writes_ahead_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = export(nsys.training(2), tmp_path)
    change(path, "pragma journal_mode = wal")
    gs.load(path)
    assert [each.name for each in tmp_path.iterdir()] == ["export.sqlite"]


def test_a_file_that_is_locked_gets_one_sentence(tmp_path: Path) -> None:
    path = export(nsys.training(2), tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("pragma journal_mode = persist")
        writer.execute("begin exclusive")
        writer.execute("update StringIds set value = 'changed'")
        with pytest.raises(CorruptTrace, match=r"locked.*; a program has not finished writing it"):
            gs.load(path)


def test_a_damaged_index_is_not_asked(tmp_path: Path) -> None:
    path = export(nsys.training(2), tmp_path)
    plain = gs.load(path).table()
    change(path, "create index by_start on CUPTI_ACTIVITY_KIND_KERNEL(start)")
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute("select rootpage from sqlite_master where name = 'by_start'").fetchall()
        ((size,),) = connection.execute("pragma page_size").fetchall()
    data = bytearray(path.read_bytes())
    data[(root - 1) * size : root * size] = b"\xff" * size
    path.write_bytes(data)
    assert gs.load(path).table() == plain


def test_rows_without_a_begin_are_named(tmp_path: Path) -> None:
    tables = nsys.training()
    tables["CUPTI_ACTIVITY_KIND_KERNEL"][0]["start"] = None
    tables["CUPTI_ACTIVITY_KIND_KERNEL"][1]["start"] = "soon"
    tables["NVTX_EVENTS"][0]["start"] = None
    recording = load(tables, tmp_path)
    assert len(recording.trace.kernels) == 2 * nsys.STEPS
    assert "INCOMPLETE - 2 records have no timestamps" in recording.audit().verdict
    assert len(recording.trace.regions) == 2 * nsys.STEPS - 1
    assert "left out: 1 region; the file has no usable time for them" in recording.audit().remarks


def test_ranges_without_an_end_or_a_type_are_left_out_and_named(tmp_path: Path) -> None:
    tables = nsys.training()
    tables["NVTX_EVENTS"][0]["end"] = None
    tables["NVTX_EVENTS"][1]["eventType"] = None
    recording = load(tables, tmp_path)
    assert len(recording.trace.regions) == 2 * nsys.STEPS - 2
    assert "of 2 NVTX ranges, which are left out" in "\n".join(recording.audit().remarks)


def test_a_file_of_parquet_with_more_rows_than_any_export_has_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = export(nsys.training(1), tmp_path, "parquet")
    many = pyarrow.table({name: pyarrow.repeat(7, 1_000_000) for name in ("start", "end")})
    __import__("pyarrow.parquet").parquet.write_table(many, path / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    with pytest.raises(CorruptTrace, match=r"has 1,000,000 rows in .* bytes: no export has so many"):
        gs.load(path)


def test_texts_in_place_of_numbers_are_counted(tmp_path: Path) -> None:
    tables = nsys.training()
    tables["CUPTI_ACTIVITY_KIND_MEMCPY"][0]["bytes"] = "many"
    recording = load(tables, tmp_path)
    assert recording.trace.memcpy.bytes[0] == 0
    remarks = "\n".join(recording.audit().remarks)
    assert "texts and blobs in numbers of CUPTI_ACTIVITY_KIND_MEMCPY.bytes, read as none: 1" in remarks


def test_work_that_names_no_gpu_makes_none_up(tmp_path: Path) -> None:
    tables = nsys.training()
    for name in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION"):
        for row in tables[f"CUPTI_ACTIVITY_KIND_{name}"]:
            row["deviceId"] = 3
    tables["CUPTI_ACTIVITY_KIND_KERNEL"][0]["deviceId"] = None
    for row in tables["CUPTI_ACTIVITY_KIND_MEMCPY"]:
        row["deviceId"] = None
    recording = load(tables, tmp_path)
    assert set(recording.trace.tracks.device.tolist()) == {3}
    remarks = "\n".join(recording.audit().remarks)
    assert f"GPU work that names no GPU, and counts for GPU 3: {nsys.STEPS} rows" in remarks


def test_a_listed_gpu_without_a_number_is_none(tmp_path: Path) -> None:
    tables = nsys.training()
    tables["TARGET_INFO_GPU"].append(tables["TARGET_INFO_GPU"][0] | {"cuDevice": None})
    assert load(tables, tmp_path).trace.devices.ordinal.tolist() == [0]


@pytest.mark.parametrize("form", FORMS)
def test_everything_can_be_asked_of_it(tmp_path: Path, form: str) -> None:
    recording = load(nsys.training(), tmp_path, form)
    audit = recording.audit()
    assert audit.complete
    assert (audit.launches, audit.kernels, audit.missing) == (2 * nsys.STEPS,) * 2 + (0,)
    assert "overhead not recorded by Nsight Systems" in audit.verdict
    assert "gemm" in recording.table()
    assert len(recording.step_breakdown().steps) > 0
    assert "step" in str(recording.diagnose())
    assert not gs.diff(recording, recording, findings=False).changes
    recording.report(tmp_path / "page.html")
    recording.save(tmp_path / "run.gscope")
    assert gs.load(tmp_path / "run.gscope").table() == recording.table()


@pytest.mark.parametrize("table", [name for name in nsys.training() if name != "StringIds"])
def test_a_table_that_is_not_there_is_listed(tmp_path: Path, table: str) -> None:
    tables = nsys.training()
    del tables[table]
    recording = load(tables, tmp_path)
    recording.table()
    notes = "\n".join(recording.audit().remarks)
    said = {
        "CUPTI_ACTIVITY_KIND_KERNEL": "kernels",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "driver calls",
        "CUPTI_ACTIVITY_KIND_MEMCPY": "copies",
        "CUPTI_ACTIVITY_KIND_MEMSET": "fills",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "waits",
        "NVTX_EVENTS": "NVTX ranges",
        "TARGET_INFO_GPU": "GPUs",
        "TARGET_INFO_SESSION_START_TIME": "the time of day",
    }
    assert "not recorded by Nsight Systems: " in notes
    if table in said:
        assert said[table] in notes


def test_a_column_that_is_not_there_is_listed(tmp_path: Path) -> None:
    tables = nsys.training()
    for row in tables["CUPTI_ACTIVITY_KIND_KERNEL"]:
        del row["correlationId"], row["gridX"]
    recording = load(tables, tmp_path)
    assert any("CUPTI_ACTIVITY_KIND_KERNEL.correlationId" in each for each in recording.audit().remarks)
    assert len(recording.trace.kernels) == 2 * nsys.STEPS


def test_launches_without_a_kernel_are_missing(tmp_path: Path) -> None:
    tables = nsys.training()
    del tables["CUPTI_ACTIVITY_KIND_KERNEL"][3]
    audit = load(tables, tmp_path).audit()
    assert (audit.complete, audit.missing) == (False, 1)


def test_correlation_ids_and_streams_of_two_processes_are_told_apart(tmp_path: Path) -> None:
    tables = nsys.training()
    other = nsys.MACHINE | 5555 << 24
    for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
        copies = [dict(row) for row in tables[name]]
        for row in copies:
            if "globalPid" in row:
                row["globalPid"] = other
            if "globalTid" in row:
                row["globalTid"] = other | 9
            if name == "NVTX_EVENTS" and row["eventType"] == 59:
                row["text"], row["textId"] = "other", None
        tables[name] += copies
    frame = load(tables, tmp_path).trace.kernels.to_pandas()
    assert frame.groupby("context").size().tolist() == [2 * nsys.STEPS, 2 * nsys.STEPS]
    assert sorted(frame.path.value_counts().items()) == [
        ("other", nsys.STEPS),
        ("other/other", nsys.STEPS),
        ("step", nsys.STEPS),
        ("step/forward", nsys.STEPS),
    ]


def test_a_database_of_something_else_gets_one_sentence(tmp_path: Path) -> None:
    path = nsys.write_sqlite({"notes": [{"id": 1}]}, tmp_path / "notes.sqlite")
    with pytest.raises(CorruptTrace, match="is no export of Nsight Systems: it has none of the tables CUPTI"):
        gs.load(path)


def test_a_report_that_was_not_exported_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run.nsys-rep").write_bytes(b"\x01\x02" * 1000)
    with pytest.raises(CorruptTrace, match=r"convert it with `nsys export --type sqlite`"):
        gs.load(tmp_path / "run.nsys-rep")


def test_without_pyarrow_a_folder_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(nsys.training(), tmp_path, "parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(NotAvailable, match=r"pip install pyarrow"):
        gs.load(path)


def test_damaged_files_get_one_sentence(tmp_path: Path) -> None:
    whole = export(nsys.training(), tmp_path).read_bytes()
    path = tmp_path / "cut.sqlite"
    for length in range(16, len(whole), 997):
        path.write_bytes(whole[:length])
        if sentence := refusal(path):
            assert "\n" not in sentence


VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 50) | st.text(max_size=4) | st.floats()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_values_that_make_no_sense_are_left_out(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    tables = nsys.training(2)
    for _ in range(data.draw(st.integers(1, 6))):
        table = data.draw(st.sampled_from(sorted(tables)))
        row = data.draw(st.sampled_from(tables[table]))
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(VALUES)
    path = export(tables, tmp_path_factory.mktemp("exports"))
    if sentence := refusal(path):
        assert "\n" not in sentence
        return
    read = gs.load(path)
    assert (read.trace.kernels.duration_ns >= 0).all()


def test_the_file_is_not_changed(tmp_path: Path) -> None:
    path = export(nsys.training(), tmp_path)
    before = path.read_bytes()
    gs.load(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["export.sqlite"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()
