# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
import zlib

import pytest

from fakes.gscope import NONE, make_store
from fakes.stores import START, add_overlapping_functions, aggregate_store, training_store, training_tables
from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.exporters import export_chrome_trace, save

QUARTER_NS = 7_889_238 * 10**9  # Kineto's: times are relative to a multiple of it
BASE = START - START % QUARTER_NS


def us(after_start_ns):
    """A time of the recording as `ts` has it."""
    return (START - BASE + after_start_ns) / 1000


def exported(store):
    pieces = []
    _core.write_chrome(store, pieces.append)
    return json.loads(b"".join(pieces))


def events(trace, **wanted):
    return [event for event in trace["traceEvents"] if all(event.get(key) == value for key, value in wanted.items())]


def test_head_has_what_torch_writes():
    trace = exported(training_store())
    assert trace["schemaVersion"] == 1
    assert trace["displayTimeUnit"] == "ms"
    assert trace["baseTimeNanoseconds"] == BASE
    assert trace["deviceProperties"][0]["name"] == "NVIDIA H100"
    assert trace["deviceProperties"][0]["numSms"] == 132
    assert trace["traceName"] == "train.py"
    assert trace["gpuscope"]["session.mode"] == "full"


def test_times_count_from_the_quarter_even_of_a_recording_that_began_in_another():
    trace = exported(training_store(info={"session.start_ns": str(BASE - 1000)}))
    assert trace["baseTimeNanoseconds"] == BASE - QUARTER_NS


def test_the_window_and_its_marks_are_there_as_kineto_has_them():
    window = {"session.start_ns": str(START - 5000), "session.stop_ns": str(START + 900_000)}
    trace = exported(training_store(info=window))
    (span,) = events(trace, cat="Trace")
    assert (span["name"], span["pid"], span["tid"]) == ("PyTorch Profiler (0)", "Spans", "PyTorch Profiler")
    assert (span["ts"], span["dur"]) == (us(-5000), 905.0)
    (begin,) = events(trace, name="Iteration Start: PyTorch Profiler", ph="i", s="g")
    (end,) = events(trace, name="Record Window End", ph="i", s="g")
    assert (begin["ts"], end["ts"]) == (us(-5000), us(900_002))
    assert span["ts"] + span["dur"] <= end["ts"]  # as readers add them
    assert {e["ts"] for e in events(trace, ph="M")} == {us(-5000)}


def test_the_window_holds_all_events_whatever_the_recording_says_of_it():
    window = {"session.start_ns": str(START + 1), "session.stop_ns": "none"}
    trace = exported(training_store(info=window))
    (span,) = events(trace, cat="Trace")
    timed = [e for e in trace["traceEvents"] if e["ph"] in "XiC"]
    assert span["ts"] == min(e["ts"] for e in timed) == us(0)
    assert span["ts"] + span["dur"] == pytest.approx(max(e["ts"] + e.get("dur", 0) for e in timed))


def test_lanes_are_ordered_by_thread_and_stream_as_in_torchs_files():
    trace = exported(training_store())
    order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in events(trace, name="thread_sort_index")}
    overlapping = events(trace, cat="kernel")[1]["tid"]
    assert (order[4242, 4242], order[0, 7], order[0, overlapping]) == (4242, 7, 7)
    processes = {e["pid"]: e["args"]["sort_index"] for e in events(trace, name="process_sort_index")}
    assert processes == {4242: 4242, 0: 5_000_000, "Spans": 0x20000000}


def test_what_the_program_added_stands_at_the_top():
    added = {"metadata.model": '"large"', "metadata.shape": "[1, 2]", "trace.id": "a1"}
    trace = exported(training_store(info=added))
    assert (trace["model"], trace["shape"], trace["trace_id"]) == ("large", [1, 2], "a1")


def test_what_the_program_added_wins_over_what_is_found():
    mine = '{"rank": 2, "backend": "nccl"}'
    trace = exported(training_store(info={"process.rank": "3", "metadata.distributedInfo": mine}))
    assert trace["distributedInfo"] == {"rank": 2, "backend": "nccl"}


@pytest.mark.parametrize("key", ["traceEvents", "baseTimeNanoseconds", "schemaVersion"])
def test_what_readers_know_the_format_by_is_not_replaced(key):
    assert exported(training_store(info={f"metadata.{key}": "7"}))[key] == exported(training_store())[key]


def test_added_text_that_is_no_json_stays_out_of_the_top():
    trace = exported(training_store(info={"metadata.model": "{"}))
    assert "model" not in trace
    assert trace["gpuscope"]["metadata.model"] == "{"


def test_options_are_told_even_where_they_recorded_nothing():
    trace = exported(training_store(info={"metadata.record_shapes": "1", "metadata.with_flops": "1"}))
    assert (trace["record_shapes"], trace["with_flops"]) == (1, 1)
    assert "with_stack" not in trace


def test_kernel_has_torchs_fields():
    (kernel,) = events(exported(training_store()), name="gemm(float const*, float const*, float*, int)")
    assert kernel == {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm(float const*, float const*, float*, int)",
        "pid": 0,
        "tid": 7,
        "ts": us(3001),
        "dur": 2.002,
        "args": {
            "device": 0,
            "context": 1,
            "stream": 7,
            "correlation": 12,
            "External id": 2,
            "grid": [4, 2, 1],
            "block": [128, 1, 1],
            "registers per thread": 32,
            "shared memory": 1536,
            "region": "forward",
        },
    }


def test_times_keep_every_nanosecond():
    text = b""

    def keep(piece):
        nonlocal text
        text += piece

    _core.write_chrome(training_store(), keep)
    assert f'"ts":{(START - BASE + 4000) // 1000}.001,"dur":0.499'.encode() in text


def test_copy_has_bytes_and_bandwidth():
    (copy,) = events(exported(training_store()), cat="gpu_memcpy")
    assert copy["name"] == "Memcpy HtoD (Pinned -> Device)"
    assert copy["args"]["bytes"] == 4096
    assert copy["args"]["memory bandwidth (GB/s)"] == 4.096


def test_regions_and_calls_stand_on_their_thread():
    trace = exported(training_store())
    assert [(e["name"], e["pid"], e["tid"]) for e in events(trace, cat="user_annotation")] == [
        ("step", 4242, 4242),
        ("forward", 4242, 4242),
    ]
    assert [(e["name"], e["args"]["driver call"]) for e in events(trace, cat="cuda_runtime")] == [
        ("cudaMemcpyAsync", "cuMemcpyHtoDAsync"),
        ("cudaLaunchKernel", "cuLaunchKernel"),
        ("cudaLaunchKernel", "cuLaunchKernel"),
    ]


def test_calls_keep_their_names_where_the_runtime_has_none_for_them():
    names = ["cudaLaunchKernel", "cuMemCreate"]
    trace = exported(training_store(lambda tables: tables["call"].update(name=names)))
    assert [e["name"] for e in events(trace, cat="cuda_runtime")] == ["cudaLaunchKernel"] * 2
    assert [e["name"] for e in events(trace, cat="cuda_driver")] == ["cuMemCreate"]
    assert all("driver call" not in e["args"] for e in events(trace, ph="X") if e["cat"].startswith("cuda_"))


def test_mark_is_an_instant():
    (mark,) = events(exported(training_store()), ph="i", cat="mark")
    assert (mark["name"], mark["ts"], mark["s"]) == ("epoch", us(7000), "t")


def test_arrows_join_calls_with_their_work():
    trace = exported(training_store())
    starts = {e["id"]: e for e in events(trace, ph="s", cat="ac2g")}
    ends = {e["id"]: e for e in events(trace, ph="f", cat="ac2g")}
    assert set(starts) == set(ends) == {11, 12, 13}
    assert all(e["bp"] == "e" for e in ends.values())
    kernel = events(trace, cat="kernel")[0]
    assert (ends[12]["ts"], ends[12]["tid"]) == (kernel["ts"], kernel["tid"])


def test_calls_and_work_have_no_external_ids_where_they_were_not_wanted():
    def numbered(info):
        rows = exported(training_store(info=info))["traceEvents"]
        return {row["cat"] for row in rows if "External id" in row.get("args", {})}

    of_regions = numbered({_core.EXTERNAL_IDS: "off"})
    assert numbered({}) - of_regions == {"cuda_runtime", "kernel", "gpu_memcpy"}
    assert "user_annotation" in of_regions


def test_work_without_its_call_has_no_arrow():
    trace = exported(training_store(lambda tables: tables.pop("api")))
    assert events(trace, cat="ac2g") == []


def test_every_kernel_of_a_graph_gets_an_arrow_and_its_capture_path():
    def make_graph(tables):
        tables["kernel"]["correlation"] = [12, 12]
        tables["graph_node"] = {"event": [0, 1], "graph": [5, 5], "node": [70, 71], "path": [1, NONE], "kind": [1, 1]}

    trace = exported(training_store(make_graph))
    assert len(events(trace, ph="s", id=12)) == 1
    assert len(events(trace, ph="f", id=12)) == 2
    first, second = events(trace, cat="kernel")
    assert first["args"]["captured in"] == "step/forward"
    assert first["args"]["graph node id"] == 70
    assert "captured in" not in second["args"]


def test_overlapping_kernels_get_lanes_with_names():
    trace = exported(training_store())
    lanes = [e["tid"] for e in events(trace, cat="kernel")]
    assert lanes[0] == 7
    assert lanes[1] != 7
    assert all(e["args"]["stream"] == 7 for e in events(trace, cat="kernel"))
    names = {e["tid"]: e["args"]["name"] for e in events(trace, ph="M", name="thread_name", pid=0)}
    assert names == {7: "stream 7", lanes[1]: "stream 7 (lane 2)"}


@pytest.mark.parametrize("change", [None, add_overlapping_functions])
def test_slices_of_a_lane_nest_or_follow_each_other(change):
    lanes = {}
    for event in events(exported(training_store(change)), ph="X"):
        lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    for slices in lanes.values():
        open_until = []
        for event in slices:
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


@pytest.mark.parametrize("listed", [(1, 2), (1, 0)])
def test_work_is_of_the_device_of_its_stream_in_whatever_order_devices_are_listed(listed):
    def change(tables):
        tables["device"] = {"ordinal": listed, "name": [f"number {ordinal}" for ordinal in listed]}
        tables["track"] = {"device": listed, "context": [1, 1], "stream": [7, 7]}
        tables["kernel"]["track"] = [0, 1]
        del tables["memcpy"]

    trace = exported(training_store(change))
    assert [(e["pid"], e["args"]["device"]) for e in events(trace, cat="kernel")] == [(one, one) for one in listed]
    names = {e["pid"]: e["args"]["name"] for e in events(trace, name="process_name")}
    assert [names[ordinal] for ordinal in listed] == [f"number {ordinal}" for ordinal in listed]


def test_process_with_a_devices_number_stays_apart_from_it():
    trace = exported(make_store(training_tables(), info={"process.id": "0"}))
    assert {e["pid"] for e in events(trace, cat="kernel")} == {0}
    assert 0 not in {e["pid"] for e in events(trace, cat="user_annotation")}


def test_names_of_any_content_are_escaped():
    name = 'a"b\\c\n\t\x01 \u4f60 \U0001f600 </script>'
    trace = exported(training_store(lambda tables: tables["path"].update(name=["step", name])))
    assert events(trace, cat="user_annotation")[1]["name"] == name


def test_flags_are_told_in_words():
    trace = exported(training_store(lambda tables: tables["kernel"].update(flags=[1 << 2, 0])))
    first, second = events(trace, cat="kernel")
    assert first["args"]["notes"] == "incomplete"
    assert "notes" not in second["args"]


def test_empty_recording_is_valid_json():
    trace = exported(make_store({}))
    assert events(trace, ph="X") == []


def test_aggregate_recording_is_refused_in_words(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(InvalidArgument, match="has totals, no events; record with mode='full'"):
        export_chrome_trace(aggregate_store(), path)
    assert list(tmp_path.iterdir()) == []


def test_error_of_the_writer_passes_through():
    def fail(piece):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        _core.write_chrome(training_store(), fail)


def test_json_file_holds_the_trace(tmp_path):
    path = tmp_path / "a.json"
    export_chrome_trace(training_store(), path)
    assert json.loads(path.read_text()) == exported(training_store())


@pytest.mark.parametrize("name", ["trace", "a.pt.trace", "a.txt", "a.json"])
def test_any_name_is_written(tmp_path, name):
    export_chrome_trace(training_store(), tmp_path / name)
    assert json.loads((tmp_path / name).read_text()) == exported(training_store())


@pytest.mark.parametrize("name", ["a.gz", "a.pt.trace.json.gz"])
def test_any_name_of_gz_is_compressed(tmp_path, name):
    export_chrome_trace(training_store(), tmp_path / name)
    assert json.loads(gzip.decompress((tmp_path / name).read_bytes())) == exported(training_store())


def test_gz_file_holds_the_trace(tmp_path):
    path = tmp_path / "a.json.gz"
    export_chrome_trace(training_store(), str(path))
    assert json.loads(gzip.decompress(path.read_bytes())) == exported(training_store())


def many_kernels(tables):
    rows = 20_000
    tables["kernel"] = {
        "start_ns": [START + 100 * row for row in range(rows)],
        "duration_ns": [50] * rows,
        "variant": [0] * rows,
        "track": [0] * rows,
    }


def test_gz_of_many_pieces_is_one_member_in_order(tmp_path):
    store = training_store(many_kernels)
    path = tmp_path / "a.json.gz"
    export_chrome_trace(store, path)
    data = path.read_bytes()
    pieces = []
    _core.write_chrome(store, pieces.append)
    assert len(pieces) > 3
    assert gzip.decompress(data) == b"".join(pieces)
    member = zlib.decompressobj(wbits=31)
    member.decompress(data)
    assert member.eof
    assert member.unused_data == b""


def test_gz_can_be_written_while_the_interpreter_shuts_down(tmp_path):
    source, path = str(tmp_path / "a.gscope"), str(tmp_path / "a.json.gz")
    save(training_store(many_kernels), source)
    script = f"""
        import atexit
        from gpuscope.exporters import export_chrome_trace
        from gpuscope.readers.files import load_store
        atexit.register(export_chrome_trace, load_store({source!r}), {path!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    with gzip.open(path) as file:
        assert len(events(json.load(file), cat="kernel")) == 20_000


def test_a_recording_is_written_by_what_is_first_imported_while_the_interpreter_shuts_down(tmp_path):
    source, path = str(tmp_path / "a.gscope"), str(tmp_path / "a.json.gz")
    save(training_store(many_kernels), source)
    script = f"""
        import atexit
        def export():
            from gpuscope.exporters import export_chrome_trace
            from gpuscope.readers.files import load_store
            export_chrome_trace(load_store({source!r}), {path!r})
        import numpy
        atexit.register(export)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    with gzip.open(path) as file:
        assert len(events(json.load(file), cat="kernel")) == 20_000
