# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fakes.gscope import NONE
from fakes.recordings import cpu_only, make_trace, training
from gpuscope.analysis import events, key_averages
from gpuscope.analysis.event_list import EventList, format_share
from gpuscope.errors import InvalidArgument
from gpuscope.units import format_time

HEADINGS = [
    *("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "Self CUDA", "Self CUDA %"),
    *("CUDA total", "CUDA time avg", "# of Calls", "p50", "p95", "p99"),
]


def headings(table):
    heading, rule = table.splitlines()[1], table.splitlines()[0]
    cells, at = [], 0
    for width in map(len, rule.split()):
        cells.append(heading[at : at + width].strip())
        at += width + 2
    return cells


def names(table):
    lines = table.splitlines()
    width = len(lines[0].split()[0])
    first, last = (at for at, line in enumerate(lines[1:], 1) if line == lines[0])
    return [line[:width].strip() for line in lines[first + 1 : last]]


def test_columns_are_torchs_and_quantiles():
    assert headings(key_averages(training()).table()) == HEADINGS


def test_cuda_columns_are_left_out_without_a_gpu():
    table = key_averages(cpu_only()).table()
    assert headings(table) == [heading for heading in HEADINGS if "CUDA" not in heading]
    assert "CUDA time total" not in table


def test_lines_are_as_long_as_the_rule():
    lines = key_averages(training()).table().splitlines()
    assert {len(line) for line in lines[:-4]} == {len(lines[0])}


def test_a_row_reads_as_torch_writes_it():
    table = key_averages(training()).table(sort_by="cpu_time_total")
    assert table.splitlines()[3].split() == [
        *("train", "30.00%", "30.000us", "100.00%", "100.000us", "100.000us"),
        *("0.000us", "0.00%", "12.500us", "12.500us", "1", "100.000us", "100.000us", "100.000us"),
    ]


def test_the_footer_has_totals_and_the_audit():
    lines = key_averages(training()).table().splitlines()
    assert lines[-3:-1] == ["Self CPU time total: 100.000us", "Self CUDA time total: 13.300us"]
    assert lines[-1].startswith("audit: complete - 3 of 3 launches have their kernel record")


@pytest.mark.parametrize("key", ["cuda_time_total", "device_time_total", "xpu_time_total", "privateuse1_time_total"])
def test_rows_are_sorted_by_the_key_largest_first(key):
    assert names(key_averages(training()).table(sort_by=key))[:3] == ["train", "backward", "triton_mm"]


@pytest.mark.parametrize(
    "key",
    [
        *("cpu_time", "cuda_time", "device_time", "cpu_time_total", "cuda_time_total", "self_cpu_time_total"),
        *("self_cuda_time_total", "self_device_time_total", "cpu_memory_usage", "cuda_memory_usage"),
        *("self_cpu_memory_usage", "self_cuda_memory_usage", "count", "p50", "p95", "p99"),
    ],
)
def test_every_key_of_torch_and_ours_sorts(key):
    rows = key_averages(training())
    values = [getattr(row, key) for row in rows.sorted_by(key)]
    assert values == sorted((getattr(row, key) for row in rows), reverse=True)


def with_host_memory():
    """Two regions without GPU work: ``small`` took longer, ``large`` took more memory."""
    return make_trace(
        {
            "path": {"name": ["large", "small"], "parent": [NONE, NONE]},
            "thread": {"system_id": [1]},
            "region": {"start_ns": [10, 5000], "duration_ns": [1_000, 2_500], "path": [0, 1]},
            "allocation": {
                "start_ns": [20, 5010],
                "bytes": [4096, 64],
                "address": [1, 2],
                "region": [0, 1],
                "ordinal": [NONE, NONE],
                "allocated_bytes": [4096, 4160],
                "reserved_bytes": [0, 0],
            },
        }
    )


@pytest.mark.parametrize(
    ("key", "sorts", "first"),
    [
        ("cuda_time_total", "cpu_time_total", "small"),
        ("self_cuda_time_total", "self_cpu_time_total", "small"),
        ("device_time_total", "cpu_time_total", "small"),
    ],
)
def test_without_gpu_work_a_table_is_sorted_by_cpu_time_and_says_so(key, sorts, first):
    table = key_averages(with_host_memory()).table(sort_by=key)
    assert names(table)[0] == first
    assert f"No GPU work was recorded: sorted by {sorts}" in table.splitlines()


def test_without_gpu_memory_a_table_is_sorted_by_cpu_memory_and_says_so():
    table = key_averages(with_host_memory()).table(sort_by="self_cuda_memory_usage")
    assert names(table)[0] == "large"
    assert "No GPU memory was recorded: sorted by self_cpu_memory_usage" in table.splitlines()


def test_without_memory_a_table_says_that_its_rows_are_not_sorted():
    table = key_averages(cpu_only()).table(sort_by="cpu_memory_usage")
    assert "No memory was recorded (profile_memory=True): the rows are not sorted" in table.splitlines()


@pytest.mark.parametrize(
    ("grouping", "missing"),
    [
        ({"group_by_input_shape": True}, "No shapes were recorded: record_shapes=True"),
        ({"group_by_stack_n": 2}, "No stacks were recorded: with_stack=True"),
    ],
)
def test_a_table_grouped_by_what_was_not_recorded_says_so(grouping, missing):
    assert missing in key_averages(cpu_only(), **grouping).table().splitlines()
    assert missing not in key_averages(cpu_only()).table()


@pytest.mark.parametrize("key", ["cuda_time_total", "cpu_time_total", "count"])
def test_a_table_that_is_sorted_as_asked_says_nothing_of_it(key):
    assert "recorded:" not in key_averages(training()).table(sort_by=key)


def test_rows_taken_out_of_a_list_are_sorted_by_their_gpu_time():
    regions = EventList(row for row in key_averages(training()) if row.kind == "region")
    assert "No GPU work" not in regions.table(sort_by="cuda_time_total")


@pytest.mark.parametrize("key", ["nope", "", "__class__", 3])
def test_an_unknown_key_names_those_accepted(key):
    with pytest.raises(InvalidArgument, match=r"sort_by is .*cpu_time_total.*p99"):
        key_averages(training()).table(sort_by=key)


def test_row_limit_cuts_rows_but_not_totals():
    table = key_averages(training()).table(sort_by="count", row_limit=2)
    assert len(names(table)) == 2
    assert "Self CPU time total: 100.000us" in table


def test_row_limit_minus_one_prints_all():
    assert len(names(key_averages(training()).table(row_limit=-1))) == 8


def test_long_names_are_cut_to_the_width():
    table = key_averages(training()).table(max_name_column_width=12)
    assert "void kern..." in names(table)
    assert len(table.splitlines()[0].split()[0]) == 12


def test_names_stay_whole_without_a_width():
    name = "x" * 300
    trace = make_trace(
        {"path": {"name": [name]}, "thread": {"system_id": [1]}, "region": {"duration_ns": [5], "path": [0]}}
    )
    assert name in names(key_averages(trace).table(max_name_column_width=None))


def test_top_level_leaves_out_what_ran_only_inside_regions():
    table = key_averages(training()).table(top_level_events_only=True)
    assert [line.split()[0] for line in table.splitlines()[5:7]] == ["train", "Memcpy"]


def test_a_header_stands_above():
    assert key_averages(training()).table(header="epoch 3").splitlines()[1] == "epoch 3"


def test_one_time_unit_for_all():
    table = key_averages(training()).table(time_unit="ms")
    assert "0.100ms" in table
    assert "us" not in table.split("audit:")[0]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("row_limit", -2),
        ("row_limit", "5"),
        ("max_name_column_width", 3),
        ("max_name_column_width", 5.5),
        ("max_src_column_width", 0),
        ("time_unit", "ns"),
    ],
)
def test_a_bad_argument_is_named(argument, value):
    with pytest.raises(InvalidArgument, match=argument):
        key_averages(training()).table(**{argument: value})


def test_printing_a_list_prints_its_table():
    rows = key_averages(training())
    assert str(rows) == rows.table()


def test_an_empty_recording_prints_headings_and_the_audit():
    table = key_averages(make_trace({})).table()
    assert "Self CPU %" in table
    assert "audit: " in table


def test_single_events_print_too():
    table = events(training()).table(sort_by="device_time_total")
    assert names(table)[0] == "train"
    assert "p50" not in table


def test_sorting_single_events_by_a_quantile_is_an_error():
    with pytest.raises(InvalidArgument, match="p50"):
        events(training()).table(sort_by="p50")


@pytest.mark.parametrize(
    ("time_us", "text"), [(0, "0.000us"), (999.9994, "999.999us"), (1000, "1.000ms"), (2_500_000, "2.500s")]
)
def test_times_are_written_as_torch_does(time_us, text):
    assert format_time(time_us) == text


def test_a_share_of_nothing_is_not_a_number():
    assert format_share(0, 0) == "NaN"
