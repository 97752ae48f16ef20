# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import gc
import inspect
import pickle
import sys
from enum import IntEnum, IntFlag
from types import SimpleNamespace

import numpy as np
import pytest

from fakes.gscope import NONE
from fakes.recordings import aggregate, make_trace, nested, training
from gpuscope import _core
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.trace import Trace, describe


def test_a_column_is_read_by_name_and_as_attribute():
    kernels = training().kernels
    assert kernels["duration_ns"].tolist() == [3_000, 7_000, 1_000, 1_500]
    assert kernels.duration_ns is kernels["duration_ns"]


def test_columns_are_in_the_schemas_order():
    assert training().kernels.columns[:3] == ["start_ns", "duration_ns", "correlation"]


def test_length_is_the_number_of_rows():
    assert len(training().kernels) == 4


def test_columns_share_the_stores_memory():
    trace = training()
    first = trace.store.columns("kernel")["start_ns"]
    second = trace.store.columns("kernel")["start_ns"]
    assert np.shares_memory(first, second)


def test_columns_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        training().kernels.start_ns[0] = 1


def test_a_column_keeps_the_recording_alive():
    column = training().kernels.start_ns
    gc.collect()
    assert column.tolist() == [1_005_000, 1_060_000, 1_070_000, 1_080_000]


def test_the_recording_is_freed_with_its_last_column():
    trace = training()
    store = trace.store
    before = sys.getrefcount(store)
    column = store.columns("kernel")["start_ns"]
    assert sys.getrefcount(store) == before + 1
    del column
    assert sys.getrefcount(store) == before


def test_facts_read_earlier_outlive_new_facts():
    store = training().store
    keys = store.columns("info")["key"]
    before = keys.tolist()
    for number in range(1000):
        store.set_info(f"new.{number}", "x")
    assert keys.tolist() == before


def test_every_table_of_the_store_opens():
    store = training().store
    for table in store.tables():
        assert {len(column) for column in store.columns(table).values()} == {store.rows(table)}


def test_an_unknown_column_names_those_there_are():
    with pytest.raises(InvalidArgument, match=r"'nope'.*start_ns, duration_ns"):
        training().kernels["nope"]
    with pytest.raises(AttributeError, match=r"'nope'.*start_ns"):
        _ = training().kernels.nope


def test_an_unknown_table_names_those_there_are():
    with pytest.raises(InvalidArgument, match=r'"nope".*kernel, graph_node'):
        training().store.columns("nope")


def test_a_table_is_not_iterated_by_accident():
    with pytest.raises(TypeError):
        iter(training().kernels)


def test_a_string_id_is_spelled():
    trace = training()
    assert [trace.string(name) for name in trace.paths.name] == ["train", "forward", "backward"]


@pytest.mark.parametrize("string_id", [-1, 4_000_000, 2**40])
def test_an_unknown_string_id_is_an_error(string_id):
    with pytest.raises(InvalidArgument, match=str(string_id)):
        training().string(string_id)


def test_set_info_sets_and_replaces_a_fact():
    trace = training()
    trace.store.set_info("user.note", "one")
    trace.store.set_info("user.note", "two")
    assert trace.info["user.note"] == "two"


def test_kernel_names_are_demangled_and_shortened():
    trace = training()
    assert trace.kernel_names() == ["void kernel<float>(float*, int)", "triton_mm"]
    assert trace.kernel_names(short=True) == ["kernel", "triton_mm"]


def test_repr_says_what_there_is():
    assert repr(training()) == "<Trace (full): 3 regions, 4 kernels, 1 copies, 3 driver calls>"
    assert repr(training().tracks) == "<Table track: 1 rows of device, context, stream>"


def test_long_paths_keep_their_outer_and_inner_names():
    names = [f"region_{number}" for number in range(3000)]
    paths = nested(names).store.path_texts()
    assert max(map(len, paths)) < 5000
    outer, inner = paths[-1].split("/.../")
    assert "/".join(names).startswith(outer + "/")
    assert "/".join(names).endswith("/" + inner)


def test_paths_of_long_names_are_cut_within_a_name():
    text = nested(["é" * 3000]).store.path_texts()[0]
    assert (text[0], text[-1], text.count("/.../")) == ("é", "é", 1)


def test_short_paths_are_whole():
    names = ["region"] * 500
    assert nested(names).store.path_texts()[-1] == "/".join(names)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda table: pickle.loads(pickle.dumps(table))])
def test_tables_can_be_copied(again):
    table = training().kernels
    assert again(table).start_ns.tolist() == table.start_ns.tolist()


def test_an_empty_recording_opens():
    trace = make_trace({})
    assert len(trace.kernels) == 0
    assert trace.kernels.start_ns.dtype == np.int64
    assert trace.summary.totals == []


class TestPandas:
    def test_kernels_get_names_launch_shape_stream_and_region(self):
        frame = training().kernels.to_pandas()
        assert frame.name.tolist() == [
            "void kernel<float>(float*, int)",
            "triton_mm",
            "triton_mm",
            "void kernel<float>(float*, int)",
        ]
        second = frame.iloc[1]
        assert (second.grid, second.block, second.registers, second.shared_bytes) == ("2, 2, 2", "2, 2, 2", 255, 1536)
        assert (second.device, second.context, second.stream) == (0, 1, 7)
        assert (second.region, second.path) == ("backward", "train/backward")

    def test_work_outside_every_region_has_no_region(self):
        assert training().memcpy.to_pandas().region.isna().all()

    def test_copies_get_their_name(self):
        assert training().memcpy.to_pandas().name.tolist() == ["Memcpy HtoD (Pageable -> Device)"]

    def test_regions_get_name_path_and_system_thread(self):
        frame = training().regions.to_pandas()
        assert frame.name.tolist() == ["train", "forward", "backward"]
        assert frame.path.tolist()[1] == "train/forward"
        assert frame.thread.tolist() == [100, 100, 100]

    def test_calls_get_their_name(self):
        assert training().api.to_pandas().name.tolist() == ["cuLaunchKernel", "cuLaunchKernel", "cuGraphLaunch"]

    @pytest.mark.parametrize("make", [training, aggregate, lambda: make_trace({})])
    def test_every_table_becomes_a_frame(self, make):
        trace = make()
        for name, table in vars(trace).items():
            if name != "store":
                assert len(table.to_pandas()) == len(table)

    def test_a_missing_pandas_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(NotAvailable, match="pip install pandas"):
            training().kernels.to_pandas()


class TestArrow:
    pa = pytest.importorskip("pyarrow")

    def test_number_columns_are_not_copied(self):
        trace = training()
        column = self.pa.table(trace.kernels).column("duration_ns").chunk(0)
        assert column.buffers()[1].address == trace.kernels.duration_ns.ctypes.data

    def test_every_table_arrives_whole(self):
        trace = training()
        for table in trace.store.tables():
            arrow = self.pa.RecordBatchReader._import_from_c_capsule(trace.store.arrow_stream(table)).read_all()
            arrow.validate(full=True)
            for name, values in trace.store.columns(table).items():
                if not self.pa.types.is_dictionary(arrow.schema.field(name).type):
                    assert arrow.column(name).to_numpy().tolist() == values.tolist()

    def test_names_are_spelled(self):
        trace = training()
        assert self.pa.table(trace.paths).column("name").to_pylist() == ["train", "forward", "backward"]
        assert self.pa.table(trace.kernels).column("name").to_pylist()[:2] == [
            "void kernel<float>(float*, int)",
            "triton_mm",
        ]
        assert self.pa.table(trace.api).column("name").to_pylist()[2] == "cuGraphLaunch"
        assert self.pa.table(trace.regions).column("name").to_pylist()[1] == "forward"

    def test_a_column_named_value_that_holds_numbers_stays_a_number(self):
        trace = make_trace({"track": {"stream": [7]}, "memset": {"value": [7], "region": [NONE]}})
        assert self.pa.table(trace.memset).column("value").to_pylist() == [7]

    def test_arrow_keeps_the_recording_alive(self):
        table = self.pa.table(training().kernels)
        gc.collect()
        assert table.column("duration_ns").to_pylist() == [3_000, 7_000, 1_000, 1_500]

    def test_a_child_outlives_its_table(self):
        column = self.pa.table(training().kernels).column("name")
        gc.collect()
        assert column.to_pylist()[1] == "triton_mm"

    def test_an_unread_stream_is_released(self):
        trace = training()
        for _ in range(100):
            trace.kernels.__arrow_c_stream__()
        gc.collect()
        assert len(trace.kernels) == 4

    def test_names_in_any_script_arrive(self):
        trace = make_trace({"path": {"name": ["café 訓練 🚀"]}})
        assert self.pa.table(trace.paths).column("name").to_pylist() == ["café 訓練 🚀"]

    def test_pandas_reads_the_stream(self):
        frame = self.pa.table(training().kernels).to_pandas()
        assert frame.groupby("name", observed=True).duration_ns.sum()["triton_mm"] == 8_000

    def test_an_empty_table_arrives(self):
        assert self.pa.table(make_trace({}).kernels).num_rows == 0

    def test_an_unknown_table_is_an_error(self):
        with pytest.raises(InvalidArgument, match="nope"):
            training().store.arrow_stream("nope")


def test_streams_do_not_leak():
    pa = pytest.importorskip("pyarrow")
    trace = make_trace(
        {"thread": {"system_id": [1]}, "mark": {"name": [f"mark {n}" for n in range(500)], "region": [NONE] * 500}}
    )

    def consume() -> None:
        for _ in range(300):
            pa.table(trace.marks)
            trace.marks.__arrow_c_stream__()

    consume()
    before = _resident_kib()
    consume()
    consume()
    assert _resident_kib() - before < 2_000  # each stream holds some 10 KB


def _resident_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def annotated() -> Trace:
    """A region with details, a stack, a mark and an NVTX domain."""
    return make_trace(
        {
            "path": {"name": ["conv"], "domain": ["torch"]},
            "thread": {"system_id": [100]},
            "stack": {
                "function": ["main", "forward"],
                "file": ["run.py", "net.py"],
                "line": [3, 7],
                "parent": [NONE, 0],
            },
            "region": {"start_ns": [10, 20], "duration_ns": [5, 5], "path": [0, 0]},
            "detail": {
                "region": [0, 1],
                "types": ["['float']", NONE],
                "shapes": ["[[2, 3]]", NONE],
                "results": [NONE, "[[4]]"],
                "forward": [NONE, 0],
                "stack": [1, NONE],
            },
            "mark": {"start_ns": [12], "name": ["epoch"], "region": [0]},
        }
    )


class TestFrames:
    """What pandas and Arrow show of a table is one thing."""

    pa = pytest.importorskip("pyarrow")
    pd = pytest.importorskip("pandas")

    @pytest.mark.parametrize("make", [training, aggregate, annotated, lambda: make_trace({})])
    def test_pandas_and_arrow_agree(self, make):
        trace = make()
        for table in _core.schema():
            if table.role == _core.Role.INFO:
                continue
            rows = getattr(trace, table.attribute)
            frame, arrow = rows.to_pandas(), self.pa.table(rows)
            assert arrow.column_names == list(frame.columns)
            for name in frame.columns:
                values = frame[name].astype(object)
                assert arrow.column(name).to_pylist() == values.where(values.notna(), "").tolist()

    def test_every_string_id_is_spelled(self):
        trace = annotated()
        assert trace.stacks.to_pandas().function.tolist() == ["main", "forward"]
        assert trace.stacks.to_pandas().file.tolist() == ["run.py", "net.py"]
        assert trace.paths.to_pandas().domain.tolist() == ["torch"]
        assert trace.marks.to_pandas().name.tolist() == ["epoch"]
        details = trace.details.to_pandas()
        assert details.types.tolist()[0] == "['float']"
        assert details.shapes.isna().tolist() == [False, True]
        assert details.results.tolist()[1] == "[[4]]"
        assert self.pa.table(trace.details).column("shapes").to_pylist() == ["[[2, 3]]", ""]

    def test_a_row_number_whose_name_would_not_tell_the_row_stays_a_number(self):
        details = annotated().details.to_pandas()
        assert details.forward.tolist() == [NONE, 0]
        assert details["stack"].tolist() == [1, NONE]
        assert details.region.tolist() == ["conv", "conv"]

    @pytest.mark.parametrize("table", _core.schema(), ids=lambda table: table.name)
    def test_no_string_id_is_shown_as_a_number(self, table):
        shown = {name: codes for name, _, codes in make_trace({}).store.frame(table.name)}
        assert all(shown[column.name] is not None for column in table.columns if column.target == "string")


class TestSchema:
    def test_each_table_is_an_attribute(self):
        trace = training()
        for table in _core.schema():
            if table.role != _core.Role.INFO:
                assert getattr(trace, table.attribute).columns == [column.name for column in table.columns]

    def test_columns_have_the_types_that_it_tells(self):
        store = training().store
        for table in _core.schema():
            dtypes = {name: str(column.dtype) for name, column in store.columns(table.name).items()}
            assert dtypes == {column.name: column.dtype for column in table.columns}

    def test_values_are_enumerations_of_the_core(self):
        named = {column.values for table in _core.schema() for column in table.columns if column.values}
        assert {
            "MemoryKind",
            "PoolOperation",
            "CopyKind",
            "SyncKind",
            "CallKind",
            "Work",
            "RegionKind",
            "Flag",
        } <= named
        assert all(issubclass(getattr(_core, name), IntEnum | IntFlag) for name in named)

    def test_every_table_and_column_is_documented(self):
        documented = inspect.getdoc(Trace)
        for table in _core.schema():
            assert table.doc
            assert all(column.doc for column in table.columns)
            if table.role != _core.Role.INFO:
                assert describe(table) in documented

    def test_a_new_table_is_found_without_a_change_here(self, monkeypatch):
        column = SimpleNamespace(
            name="shelf", dtype="uint16", target="shelf", optional=True, values="MemoryKind", doc="where it is kept"
        )
        table = SimpleNamespace(name="note", attribute="notes", doc="Notes that were written.", columns=[column])
        monkeypatch.setattr("gpuscope.trace._TABLES", [table])
        store = SimpleNamespace(
            rows=lambda name: {"note": 2}[name],
            columns=lambda name: {"note": {"shelf": np.array([1, 0], np.uint16)}}[name],
            frame=lambda name: {"note": [("shelf", ["top", "middle"], np.array([1, -1], np.int32))]}[name],
            arrow_stream=lambda name: {"note": "a capsule"}[name],
        )
        notes = Trace(store).notes
        assert len(notes) == 2
        assert notes.shelf.tolist() == [1, 0]
        assert notes.__arrow_c_stream__() == "a capsule"
        pytest.importorskip("pandas")
        assert notes.to_pandas().shelf.isna().tolist() == [False, True]
        assert describe(table) == (
            "notes: Notes that were written.\n    shelf (uint16, MemoryKind, a row of shelf, or NONE): where it is kept"
        )


def test_traces_of_one_store_agree():
    trace = training()
    assert Trace(trace.store).kernels.start_ns.tolist() == trace.kernels.start_ns.tolist()
