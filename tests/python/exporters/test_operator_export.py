# SPDX-License-Identifier: Apache-2.0
"""What a Chrome trace tells of operators, annotations, modules, memory and ranges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.gscope import NONE
from fakes.perfetto import unpacked
from fakes.steps import FLOAT, MODULE, SIGNED, START, STEP_NS, TEXT, steps_store
from gpuscope import _core
from gpuscope.exporters import export_perfetto
from gpuscope.trace import Trace


def exported(store):
    pieces = []
    _core.write_chrome(store, pieces.append)
    return json.loads(b"".join(pieces))


def events(trace, **wanted):
    return [event for event in trace["traceEvents"] if all(event.get(key) == value for key, value in wanted.items())]


def us(after_start_ns):
    """A time of the recording as `ts` has it."""
    base = exported(steps_store())["baseTimeNanoseconds"]
    return (START - base + after_start_ns) / 1000


def names(found):
    return {event["name"] for event in found}


def test_each_kind_of_region_has_torchs_category():
    trace = exported(steps_store())
    steps = {f"ProfilerStep#{number}" for number in range(3)}
    assert names(events(trace, ph="X", cat="user_annotation")) == steps | {"Optimizer.step#AdamW.step", "ncclAllReduce"}
    assert names(events(trace, cat="cpu_op")) == {
        "aten::linear",
        "aten::addmm",
        "AddmmBackward0",
        "autograd::engine::evaluate_function: AddmmBackward0",
    }
    assert names(events(trace, cat="python_function")) == {"nn.Module: Linear_0"}


def test_operators_have_shapes_sequence_and_stack():
    addmm = events(exported(steps_store()), name="aten::addmm")[1]
    assert addmm["args"] == {
        "External id": 13,
        "Ev Idx": 12,
        "Record function id": 0,
        "Sequence number": 10,
        "Fwd thread id": 0,
        "Input Dims": [[16], [64, 32], [32, 16], [], []],
        "Call stack": "net.py(33): forward;train.py(9): <module>",
    }


@pytest.mark.parametrize("overload", ["Tensor", 'a"b', "a\\", "a\n\x01", "\u4f60", ""])
def test_overloads_stand_behind_the_names_whatever_is_in_them(overload):
    def add(tables):
        detail = tables["detail"]
        detail["overload"] = [overload if row == 1 else NONE for row in range(len(detail["region"]))]

    found = names(events(exported(steps_store(add)), cat="cpu_op"))
    assert f"aten::addmm.{overload}" in found


def test_backward_operators_name_their_forward_thread():
    backward = events(exported(steps_store()), name="AddmmBackward0")[0]
    assert (backward["tid"], backward["args"]["Fwd thread id"]) == (4243, 4242)


def test_external_ids_join_kernel_launch_and_operator():
    trace = exported(steps_store())
    ids = {e["args"]["External id"]: e["name"] for e in events(trace, cat="cpu_op")}
    gemms = events(trace, name="gemm") + events(trace, name="gemm_backward")
    assert [ids[e["args"]["External id"]] for e in gemms] == ["aten::addmm"] * 3 + ["AddmmBackward0"] * 3
    calls = {e["args"]["correlation"]: e["args"].get("External id") for e in events(trace, cat="cuda_runtime")}
    assert all(calls[e["args"]["correlation"]] == e["args"]["External id"] for e in gemms)


def test_launch_within_an_annotation_of_an_operator_belongs_to_the_operator():
    def annotate(tables):
        tables["path"]["kind"][5] = 0  # aten::addmm

    trace = exported(steps_store(annotate))
    ids = {e["args"]["External id"]: e["name"] for e in events(trace, cat="cpu_op")}
    assert ids[events(trace, name="gemm")[0]["args"]["External id"]] == "aten::linear"


def test_launch_outside_every_operator_belongs_to_its_region():
    trace = exported(steps_store())
    copy = events(trace, cat="gpu_memcpy")[0]
    (step,) = events(trace, cat="user_annotation", name="ProfilerStep#0")
    assert copy["args"]["External id"] == step["args"]["External id"]


def test_annotations_span_the_gpu_work_launched_within_them():
    trace = exported(steps_store())
    copy, fill = events(trace, cat="gpu_memcpy")[1], events(trace, cat="gpu_memset")[1]
    collective = events(trace, name="ncclDevKernel_AllReduce")[1]
    end = collective["ts"] + collective["dur"]
    spans = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events(trace, cat="gpu_user_annotation", tid=7)}
    assert spans["ProfilerStep#1"] == pytest.approx((copy["ts"], end))
    later = [e for e in events(trace, name="Optimizer.step#AdamW.step", pid=0) if e["ts"] > us(STEP_NS)]
    assert (later[0]["ts"], later[0]["ts"] + later[0]["dur"]) == pytest.approx((fill["ts"], end))
    assert "nn.Module: Linear_0" not in spans


def test_streams_with_annotations_nest():
    def overlap(tables):
        kernel = tables["kernel"]
        kernel["start_ns"][1] = kernel["start_ns"][0] + 10_000  # two kernels at a time
        tables["region"]["path"][3] = 8  # ... and annotations that overlap without nesting

    lanes = {}
    for event in events(exported(steps_store(overlap)), ph="X", pid=0):
        lanes.setdefault(event["tid"], []).append(event)
    assert len(lanes) > 1
    for slices in lanes.values():
        open_until = []
        for event in slices:
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_arrows_join_backward_with_forward():
    trace = exported(steps_store())
    starts = {e["id"]: (e["ts"], e["tid"]) for e in events(trace, ph="s", cat="fwdbwd")}
    ends = {e["id"]: (e["ts"], e["tid"]) for e in events(trace, ph="f", cat="fwdbwd")}
    assert set(starts) == set(ends)
    assert sorted(starts.values()) == [(e["ts"], e["tid"]) for e in events(trace, name="aten::addmm")]
    assert sorted(ends.values()) == [(e["ts"], e["tid"]) for e in events(trace, name="AddmmBackward0")]


def test_modules_know_the_module_around_them():
    def nest(tables):
        tables["path"]["kind"][4] = MODULE  # aten::linear

    outer, inner = events(exported(steps_store(nest)), cat="python_function")[:2]
    assert outer["args"]["Python parent id"] is None
    assert inner["args"]["Python parent id"] == outer["args"]["Python id"]


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("ResNet.layer1.0.conv1", "conv1 (ResNet.layer1.0.conv1)"),
        ("GPT.h.11", "h.11 (GPT.h.11)"),
        ("GPT.h.1.2", "h.1.2 (GPT.h.1.2)"),
        ("Linear", "Linear"),
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
        ("odd.", "odd."),
        ("1.2", "1.2"),
    ],
)
def test_slices_of_modules_say_their_last_part_first(tmp_path, path, title):
    def call(tables):
        tables["path"]["kind"][4] = MODULE
        tables["path"]["name"][4] = path

    store = steps_store(call)
    assert {e["name"] for e in events(exported(store), cat="python_function")} >= {title}
    export_perfetto(store, tmp_path / "x.pftrace")
    data = (tmp_path / "x.pftrace").read_bytes()
    assert title.encode() in data + unpacked(data)
    assert Trace(store).string(int(Trace(store).paths.name[4])) == path  # nothing else changes


def test_an_allocation_that_failed_is_torchs_event_of_it():
    failed = {"start_ns": [START + 5000], "bytes": [1 << 40], "allocated_bytes": [4096], "reserved_bytes": [8192]}
    failed |= {"region": [NONE], "ordinal": [1]}
    trace = exported(steps_store(lambda tables: tables.update(failed_allocation=failed)))
    (event,) = events(trace, name="[OutOfMemory]")
    assert (event["ph"], event["cat"], "dur" in event) == ("i", "cpu_instant_event", False)
    assert event["args"] == {
        "Total Reserved": 8192,
        "Total Allocated": 4096,
        "Bytes": 1 << 40,
        "Device Id": 1,
        "Device Type": 1,
    }


def test_allocations_are_torchs_memory_events():
    trace = exported(
        steps_store(lambda tables: tables["allocation"].update(ordinal=[0, NONE, 0], bytes=[4096, -64, 1]))
    )
    on_gpu, on_host, _ = events(trace, name="[memory]")
    assert (on_gpu["ph"], on_gpu["cat"], on_gpu["ts"], on_gpu["tid"]) == ("i", "cpu_instant_event", us(13_000), 4242)
    assert on_gpu["args"] == {
        "Total Reserved": 1 << 21,
        "Total Allocated": 8192,
        "Bytes": 4096,
        "Device Id": 0,
        "Device Type": 1,
        "Addr": 4096,
    }
    host = on_host["args"]
    assert (host["Device Type"], host["Device Id"], host["Bytes"]) == (0, -1, -64)


def test_payload_stands_at_the_range_and_at_its_kernels():
    trace = exported(steps_store())
    for found in (events(trace, name="ncclAllReduce", pid=4242), events(trace, name="ncclDevKernel_AllReduce")):
        assert len(found) == 3
        assert all(e["args"]["Message size [bytes]"] == 4096 for e in found)
        assert all(e["args"]["Collective name"] == "ncclAllReduce" for e in found)
    assert "Collective name" not in events(trace, name="gemm")[0]["args"]


def test_payloads_of_every_type_keep_their_value():
    def retype(tables):
        half = 0x3FE0000000000000
        tables["payload"].update(
            type=[SIGNED, FLOAT, TEXT], value=[(1 << 64) - 5, half, 1 << 40], name=["a", "b", "stream"]
        )

    trace = exported(steps_store(retype))
    arguments = [e["args"] for e in events(trace, name="ncclDevKernel_AllReduce")]
    assert (arguments[0]["a"], arguments[1]["b"]) == (-5, 0.5)
    assert (arguments[2]["stream"], arguments[2]["stream (payload)"]) == (7, "")


def test_ranges_that_nest_in_nothing_are_pairs_of_their_own():
    trace = exported(steps_store())
    (begin,) = events(trace, name="prefetch", ph="b")
    (end,) = events(trace, name="prefetch", ph="e")
    assert (begin["ts"], end["ts"]) == (us(20_000), us(700_000))
    assert (begin["id"], begin["cat"], begin["tid"]) == (end["id"], end["cat"], end["tid"])
    assert begin["tid"] not in {e["tid"] for e in events(trace, ph="X")}


def test_kernels_tell_how_they_fill_the_gpu():
    trace = exported(steps_store())
    gemm = events(trace, name="gemm")[0]["args"]
    assert (gemm["blocks per SM"], gemm["warps per SM"], gemm["est. achieved occupancy %"]) == (2.0, 8.0, 13)
    # 128 registers of 256 threads: 2 blocks fit, 1 is there; 64 KiB of shared memory each.
    assert events(trace, name="gemm_backward")[0]["args"]["est. achieved occupancy %"] == 13
    assert events(trace, name="ncclDevKernel_AllReduce")[0]["args"]["blocks per SM"] == 0.06


@pytest.mark.parametrize("column", ["multiprocessors", "capability_major"])
def test_occupancy_is_left_out_where_the_gpu_is_not_known(column):
    trace = exported(steps_store(lambda tables: tables["device"].update({column: [0]})))
    assert "est. achieved occupancy %" not in events(trace, name="gemm")[0]["args"]


def test_head_says_what_was_recorded_and_which_rank_it_was():
    rank = {"process.rank": "3", "process.world_size": "8", "process.local_rank": "1"}
    trace = exported(steps_store(info=rank))
    assert trace["distributedInfo"] == {"rank": 3, "world_size": 8, "local_rank": 1}
    flags = [trace[key] for key in ("record_shapes", "profile_memory", "with_stack", "with_modules")]
    assert flags == [1, 1, 1, 1]
    assert trace["host_name"] == "here"


@pytest.mark.parametrize("rank", ["", "three", "-1", '3"'])
def test_rank_that_is_no_number_is_left_out(rank):
    assert "distributedInfo" not in exported(steps_store(info={"process.rank": rank}))


@pytest.mark.parametrize("shapes", ["[[2, 3], []]", "[]", "[[[2, 3], [4]], [-1]]", "[[0]]"])
def test_shapes_become_lists(shapes):
    trace = exported(steps_store(lambda tables: tables["detail"]["shapes"].__setitem__(1, shapes)))
    assert events(trace, name="aten::addmm")[0]["args"]["Input Dims"] == json.loads(shapes)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=12), st.text("[]-,0123456789 ", max_size=12)))
def test_shapes_of_any_text_stay_valid_json(shapes):
    trace = exported(steps_store(lambda tables: tables["detail"]["shapes"].__setitem__(1, shapes)))
    found = events(trace, name="aten::addmm")[0]["args"]["Input Dims"]
    assert found == shapes or found == json.loads(shapes)
