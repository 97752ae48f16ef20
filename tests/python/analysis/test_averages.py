# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fakes.gscope import NONE
from fakes.recordings import aggregate, cpu_only, make_trace, training
from gpuscope.analysis import DeviceType, FunctionEventAvg, events, key_averages
from gpuscope.errors import InvalidArgument


def row(trace, key):
    (found,) = [average for average in key_averages(trace) if average.key == key]
    return found


def test_there_is_one_row_for_each_name():
    assert sorted(average.key for average in key_averages(training())) == [
        "Memcpy HtoD (Pageable -> Device)",
        "backward",
        "cudaGraphLaunch",
        "cudaLaunchKernel",
        "forward",
        "train",
        "triton_mm",
        "void kernel<float>(float*, int)",
    ]


def test_a_region_has_cpu_and_device_times_in_us():
    train = row(training(), "train")
    assert (train.count, train.cpu_time_total, train.self_cpu_time_total) == (1, 100.0, 30.0)
    assert (train.device_time_total, train.self_device_time_total) == (12.5, 0.0)


def test_a_kernel_has_device_time_only():
    kernel = row(training(), "triton_mm")
    assert (kernel.cpu_time_total, kernel.device_time_total, kernel.self_device_time_total) == (0.0, 8.0, 8.0)
    assert kernel.device_type == DeviceType.CUDA


def test_averages_are_per_event():
    assert row(training(), "triton_mm").device_time == 4.0
    assert row(training(), "cudaLaunchKernel").cpu_time == 0.5


def test_quantiles_and_extremes_are_durations():
    call = row(training(), "cudaLaunchKernel")
    assert (call.p50, call.p95, call.p99, call.min, call.max) == (0.4, 0.6, 0.6, 0.4, 0.6)


def test_old_names_mean_the_same():
    train = row(training(), "train")
    assert train.cuda_time_total == train.device_time_total
    assert train.self_cuda_time_total == train.self_device_time_total
    assert train.cuda_time == train.device_time


def test_copies_carry_their_bytes():
    assert row(training(), "Memcpy HtoD (Pageable -> Device)").bytes == 4096


def test_only_regions_are_user_annotations():
    rows = key_averages(training())
    assert {average.key for average in rows if average.is_user_annotation} == {"train", "forward", "backward"}


def test_totals_are_of_the_recording():
    rows = key_averages(training())
    assert rows.self_cpu_time_total == pytest.approx(100.0)
    assert rows.self_device_time_total == pytest.approx(13.3)


def test_total_average_sums_the_rows():
    total = key_averages(training()).total_average()
    assert total.self_cpu_time_total == pytest.approx(100.0)
    assert total.self_device_time_total == pytest.approx(13.3)
    assert total.count == 3 + 3 + 4 + 1


def test_recursion_counts_the_outermost_once():
    trace = make_trace(
        {
            "path": {"name": ["walk", "walk", "sit"], "parent": [NONE, 0, 0]},
            "thread": {"system_id": [1]},
            "region": {
                "start_ns": [0, 10, 4_000],
                "duration_ns": [5_000, 2_000, 0],
                "parent": [NONE, 0, 0],
                "path": [0, 1, 2],
            },
        }
    )
    walk = row(trace, "walk")
    assert (walk.count, walk.cpu_time_total, walk.self_cpu_time_total) == (2, 5.0, 5.0)


def test_aggregate_mode_gives_the_same_rows():
    step = row(aggregate(), "step")
    assert (step.count, step.cpu_time_total, step.self_cpu_time_total, step.device_time_total) == (10, 1.0, 0.7, 0.5)
    assert row(aggregate(), "f()").p50 == 0.05


def test_an_empty_recording_has_no_rows():
    assert key_averages(make_trace({})) == []
    assert key_averages(make_trace({})).total_average().count == 0


def test_device_is_named_only_where_there_is_one():
    assert row(training(), "train").use_device == "cuda"
    assert row(cpu_only(), "work").use_device is None


@pytest.mark.parametrize("value", [-1, 1.5, "2", None])
def test_a_bad_stack_depth_is_an_error(value):
    with pytest.raises(InvalidArgument, match="group_by_stack_n"):
        key_averages(training(), group_by_stack_n=value)


def test_rows_of_several_recordings_add_up():
    ranks = [row(training(), "forward") for _ in range(2)]
    total = FunctionEventAvg()
    for rank in ranks:
        total += rank
    assert (total.key, total.kind, total.count) == ("forward", "region", 2 * ranks[0].count)
    assert total.cpu_time_total == 2 * ranks[0].cpu_time_total
    assert total.self_device_time_total == 2 * ranks[0].self_device_time_total
    assert total.cpu_time == ranks[0].cpu_time
    assert (total.min, total.max, total.p50) == (ranks[0].min, ranks[0].max, 0.0)
    assert ranks[0] == ranks[1]
    assert ranks[0].add(ranks[1]) is ranks[0]
    assert ranks[0].count == total.count


def test_own_times_of_regions_and_of_python_functions_in_them_add_up():
    functions = {"start_ns": [0, 20_000], "duration_ns": [100_000, 50_000], "name": ["main", "work"]}
    trace = make_trace(
        {
            "path": {"name": ["phase"]},
            "thread": {"system_id": [1]},
            "region": {"start_ns": [10_000], "duration_ns": [80_000], "path": [0]},
            "python_function": {**functions, "parent": [NONE, 0], "module": [NONE] * 2},
        }
    )
    rows = key_averages(trace, include_python_functions=True)
    assert {row.key: row.self_cpu_time_total for row in rows} == {"phase": 30.0, "main": 20.0, "work": 50.0}
    assert {row.key: row.self_cpu_percent for row in rows} == {"phase": "30.00%", "main": "20.00%", "work": "50.00%"}
    assert rows.self_cpu_time_total == 100.0


def test_an_event_adds_to_a_row():
    kernels = [event for event in events(training()) if event.name == "triton_mm"]
    total = FunctionEventAvg()
    for kernel in kernels:
        total.add(kernel)
    mine = row(training(), "triton_mm")
    assert (total.count, total.device_time_total) == (mine.count, mine.device_time_total)
    assert (total.min, total.max) == (mine.min, mine.max)


def test_an_event_adds_the_bytes_that_it_moved():
    (copy,) = [event for event in events(training()) if event.name == "Memcpy HtoD (Pageable -> Device)"]
    assert FunctionEventAvg().add(copy).bytes == row(training(), copy.name).bytes > 0


def test_what_is_no_row_of_the_same_key_does_not_add():
    forward = row(training(), "forward")
    with pytest.raises(InvalidArgument, match="other is a row of 'backward'; accepted are those of 'forward'"):
        forward += row(training(), "backward")
    with pytest.raises(InvalidArgument, match="other is a int"):
        forward.add(1)
