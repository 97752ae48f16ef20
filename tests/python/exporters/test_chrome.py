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
from fakes.stores import START, aggregate_store, training_store, training_tables
from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.exporters import export_chrome_trace, save


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
    assert trace["baseTimeNanoseconds"] == START
    assert trace["deviceProperties"][0]["name"] == "NVIDIA H100"
    assert trace["deviceProperties"][0]["numSms"] == 132
    assert trace["traceName"] == "train.py"
    assert trace["gpuscope"]["session.mode"] == "full"


def test_kernel_has_torchs_fields():
    (kernel,) = events(exported(training_store()), name="gemm(float const*, float const*, float*, int)")
    assert kernel == {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm(float const*, float const*, float*, int)",
        "pid": 0,
        "tid": 7,
        "ts": 3.001,
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
    assert b'"ts":4.001,"dur":0.499' in text


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
    (mark,) = events(exported(training_store()), ph="i")
    assert (mark["name"], mark["ts"], mark["s"]) == ("epoch", 7.0, "t")


def test_arrows_join_calls_with_their_work():
    trace = exported(training_store())
    starts = {e["id"]: e for e in events(trace, ph="s", cat="ac2g")}
    ends = {e["id"]: e for e in events(trace, ph="f", cat="ac2g")}
    assert set(starts) == set(ends) == {11, 12, 13}
    assert all(e["bp"] == "e" for e in ends.values())
    kernel = events(trace, cat="kernel")[0]
    assert (ends[12]["ts"], ends[12]["tid"]) == (kernel["ts"], kernel["tid"])


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


def test_slices_of_a_lane_nest_or_follow_each_other():
    lanes = {}
    for event in events(exported(training_store()), ph="X"):
        lanes.setdefault((event["pid"], event["tid"]), []).append(event)
    for slices in lanes.values():
        open_until = []
        for event in slices:
            start, end = event["ts"], event["ts"] + event["dur"]
            while open_until and open_until[-1] <= start + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


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
        from gpuscope.exporters import export_chrome_trace, load_store
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
            from gpuscope.exporters import export_chrome_trace, load_store
            export_chrome_trace(load_store({source!r}), {path!r})
        import numpy
        atexit.register(export)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    with gzip.open(path) as file:
        assert len(events(json.load(file), cat="kernel")) == 20_000
