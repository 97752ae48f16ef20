# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle

import pytest

from fakes.gscope import NONE
from fakes.recordings import aggregate, make_trace, training
from gpuscope.analysis import DeviceType, events
from gpuscope.analysis.event_index import OutsideMemory


def one(name, kind=None):
    return next(event for event in events(training()) if event.name == name and kind in (None, event.kind))


def test_events_come_in_order_of_time():
    starts = [event.time_range.start for event in events(training())]
    assert starts == sorted(starts)
    assert len(starts) == 3 + 3 + 4 + 1


def test_ids_are_places_in_the_list():
    assert [event.id for event in events(training())] == list(range(11))


def test_times_are_us_from_the_start_of_the_recording():
    forward = one("forward")
    assert forward.time_range == (2.0, 32.0)
    assert forward.time_range.elapsed_us() == 30.0


def test_a_region_runs_on_its_thread():
    forward = one("forward")
    assert (forward.device_type, forward.thread, forward.device_index) == (DeviceType.CPU, 100, -1)


def test_a_kernel_runs_on_its_device_and_stream():
    kernel = one("triton_mm")
    assert (kernel.device_type, kernel.device_index, kernel.device_resource_id) == (DeviceType.CUDA, 0, 7)


def test_parents_and_children_find_each_other():
    train = one("train")
    assert [child.name for child in train.cpu_children] == ["forward", "backward"]
    assert train.cpu_children[0].cpu_parent is train
    assert [child.name for child in train.cpu_children[1].cpu_children] == ["cudaLaunchKernel", "cudaGraphLaunch"]


def test_what_lies_in_no_region_has_no_parent():
    assert one("train").cpu_parent is None
    assert one("Memcpy HtoD (Pageable -> Device)").is_top_level


def test_a_call_lists_all_it_launched():
    assert one("cudaGraphLaunch").kernels == [("triton_mm", 0, 1.0), ("void kernel<float>(float*, int)", 0, 1.5)]


def test_a_region_lists_what_it_launched_itself():
    assert [kernel.name for kernel in one("forward").kernels] == ["void kernel<float>(float*, int)"]
    assert one("train").kernels == []


def test_device_time_is_inclusive_for_regions():
    train = one("train")
    assert (train.device_time_total, train.self_device_time_total) == (12.5, 0.0)


def test_self_cpu_time_leaves_out_what_is_inside():
    assert one("train").self_cpu_time_total == pytest.approx(30.0)
    assert one("forward").self_cpu_time_total == pytest.approx(29.6)


def test_device_time_of_regions_measured_by_events_is_theirs():
    trace = make_trace(
        {
            "path": {"name": ["outer", "inner"], "parent": [NONE, 0]},
            "thread": {"system_id": [1]},
            "region": {"start_ns": [0, 1], "duration_ns": [9_000, 5_000], "parent": [NONE, 0], "path": [0, 1]},
            "region_gpu": {"region": [1], "path": [1], "duration_ns": [4_000]},
        }
    )
    assert [event.device_time_total for event in events(trace)] == [4.0, 4.0]


@pytest.mark.parametrize("make", [aggregate, lambda: make_trace({})])
def test_a_recording_without_single_events_has_none(make):
    assert events(make()) == []


def test_columns_of_memory_outside_regions_are_made_once():
    memory = {"start_ns": [5, 9], "bytes": [64, -64], "region": [NONE] * 2}
    outside = OutsideMemory(make_trace({"thread": {"system_id": [1]}, "allocation": memory}))
    assert outside.bytes is outside.bytes
    assert outside.bytes.tolist() == [64, -64]


def test_repr_names_the_event():
    assert repr(one("forward")) == "<FunctionEvent region 'forward' at 2.000us for 30.000us>"


COPIES = [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))]


@pytest.mark.parametrize("copied", COPIES)
def test_events_can_be_copied_and_pickled(copied):
    original = events(training())
    again = copied(original)
    assert again.table() == original.table()
    assert [repr(event) for event in again] == [repr(event) for event in original]
    assert [event.stack for event in again] == [event.stack for event in original]
    assert again.key_averages() == original.key_averages()
    assert [event.name for event in copied(list(original))] == [event.name for event in original]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copied_event_keeps_what_is_around_it(copied):
    forward = copied(one("forward"))
    assert forward.time_range == one("forward").time_range
    assert forward.cpu_parent.name == "train"
    again = copied(events(training()))
    assert {id(event.cpu_parent) for event in again if event.cpu_parent} <= {id(event) for event in again}
