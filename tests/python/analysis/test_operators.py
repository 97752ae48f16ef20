# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from fakes.gscope import NONE
from fakes.operators import SPELLED, training_step
from fakes.recordings import make_trace
from gpuscope.analysis import audit, events, key_averages, tree
from gpuscope.errors import GpuscopeWarning


def row(key, trace=None, **options):
    (found,) = [average for average in key_averages(trace or training_step(), **options) if average.key == key]
    return found


def event(name, nth=0):
    return [found for found in events(training_step()) if found.trace_name == name][nth]


# -- kinds -----------------------------------------------------------------------------------------------------------


def test_kinds_are_told_apart():
    kinds = {average.key: average.kind for average in key_averages(training_step())}
    assert kinds["aten::addmm"] == "op"
    assert kinds["Linear"] == "module"
    assert kinds["Optimizer.step#SGD.step"] == "range"
    assert kinds["ProfilerStep*"] == "region"
    assert kinds["gemm"] == "kernel"
    assert kinds["[memory]"] == "memory"
    assert {found.kind for found in events(training_step())} == set(kinds.values())


def test_steps_share_one_row():
    assert row("ProfilerStep*").count == 2
    assert event("ProfilerStep#3").name == event("ProfilerStep#3").key == "ProfilerStep*"


def test_one_name_of_two_kinds_makes_two_rows():
    trace = make_trace(
        {
            "path": {"name": ["add", "add"], "parent": [NONE, 0], "kind": [0, 1]},
            "thread": {"system_id": [1]},
            "region": {"duration_ns": [9_000, 5_000], "path": [0, 1], "parent": [NONE, 0]},
        }
    )
    assert [(found.key, found.kind, found.cpu_time_total) for found in key_averages(trace)] == [
        ("add", "region", 9.0),
        ("add", "op", 5.0),
    ]


def test_what_was_named_by_hand_is_an_annotation():
    annotations = {average.key for average in key_averages(training_step()) if average.is_user_annotation}
    assert annotations == {"ProfilerStep*", "Optimizer.step#SGD.step", "prefetch"}
    assert {found.name for found in events(training_step()) if found.is_user_annotation} == annotations


def test_scopes_are_torchs_numbers():
    scopes = {found.name: found.scope for found in events(training_step())}
    assert scopes["aten::addmm"] == scopes["autograd::engine::evaluate_function: AddmmBackward0"] == 0
    assert scopes["AddmmBackward0"] == 1
    assert scopes["Optimizer.step#SGD.step"] == 7
    assert row("AddmmBackward0").scope == 1


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize(("inside", "count"), [([], 1), (["aten::empty"], 2)])
def test_what_only_hands_on_to_another_of_its_name_counts_once(inside, count, kind):
    names = ["aten::mean", "aten::mean", *inside]
    trace = make_trace(
        {
            "path": {"name": names, "parent": [NONE, 0, 0][: len(names)], "kind": [kind] * len(names)},
            "thread": {"system_id": [1]},
            "region": {
                "duration_ns": [9_000, 5_000, 1_000][: len(names)],
                "path": list(range(len(names))),
                "parent": [NONE, 0, 0][: len(names)],
            },
            "allocation": {"bytes": [4], "region": [1], "ordinal": [NONE]},
        }
    )
    mean = row("aten::mean", trace, group_by_input_shape=True)
    assert (mean.count, mean.cpu_time_total, mean.self_cpu_memory_usage) == (count, 9.0, 4)


# -- shapes, stacks, autograd ----------------------------------------------------------------------------------------


def test_shapes_split_rows():
    rows = [
        average for average in key_averages(training_step(), group_by_input_shape=True) if average.key == "aten::mm"
    ]
    assert [(found.input_shapes, found.count) for found in rows] == [
        ([[4, 2], [2, 3]], 1),
        ([[2, 4], [4, 3]], 1),
    ]
    assert row("aten::mm").count == 2


def test_shapes_are_blank_in_rows_that_they_do_not_split():
    assert row("aten::mm").input_shapes == ""
    assert row("ProfilerStep*", group_by_input_shape=True).input_shapes == []


def test_stacks_split_rows_down_to_the_depth_asked_for():
    assert row("aten::addmm", group_by_stack_n=1).stack == [SPELLED[0]]
    assert row("aten::addmm", group_by_stack_n=5).stack == list(SPELLED)
    assert row("aten::addmm").stack == []


def test_backward_operators_have_the_stack_of_their_forward_one():
    assert event("aten::mm").stack == event("aten::addmm").stack == list(SPELLED)
    assert event("Linear").stack == []


def test_backward_operators_lead_to_their_forward_one():
    backward = event("AddmmBackward0")
    assert backward.forward.name == "aten::addmm"
    assert (backward.sequence_nr, backward.fwd_thread) == (8, 100)
    assert event("aten::mm").forward is None
    assert (event("aten::mm").sequence_nr, event("aten::mm").fwd_thread) == (-1, 0)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_is_of_the_operator_that_took_it_and_of_those_around():
    linear = row("aten::linear")
    assert (linear.device_memory_usage, linear.self_device_memory_usage) == (64, 0)
    assert (row("aten::addmm").device_memory_usage, row("aten::addmm").self_cuda_memory_usage) == (64, 64)
    step = row("ProfilerStep*")
    assert (step.device_memory_usage, step.cpu_memory_usage, step.self_cpu_memory_usage) == (96, 4, 0)


def test_events_have_the_same_memory_as_their_rows():
    assert event("ProfilerStep#3").cuda_memory_usage == 96
    assert event("aten::addmm").self_device_memory_usage == 64
    assert event("Optimizer.step#SGD.step").self_cpu_memory_usage == 4


def test_memory_outside_every_region_has_rows_of_its_own():
    outside = row("[memory]")
    assert (outside.count, outside.device_memory_usage, outside.cpu_memory_usage) == (2, -96, -4)
    assert [found.device_memory_usage for found in events(training_step()) if found.kind == "memory"] == [-96, 0]


# -- ranges from start to end ----------------------------------------------------------------------------------------


def test_a_start_end_range_has_no_time_of_its_own():
    prefetch = row("prefetch")
    assert (prefetch.cpu_time_total, prefetch.self_cpu_time_total, prefetch.is_async) == (500.0, 0.0, True)
    assert event("prefetch").self_cpu_time_total == 0.0
    assert event("prefetch").is_async


def test_a_start_end_range_takes_no_time_from_others():
    rows = key_averages(training_step())
    assert rows.self_cpu_time_total == pytest.approx(150.0)
    assert tree(training_step()).root.cpu_ns == 150_000


# -- the table -------------------------------------------------------------------------------------------------------


def headings(table):
    return [cell for cell in table.splitlines()[1].split("  ") if cell]


def cells(table, name):
    return next(line for line in table.splitlines() if name in line).split()


def test_memory_columns_are_torchs():
    titles = [title.strip() for title in headings(key_averages(training_step()).table())]
    first = titles.index("CPU Mem")
    assert titles[first : first + 5] == ["CPU Mem", "Self CPU Mem", "CUDA Mem", "Self CUDA Mem", "# of Calls"]


WITH_FLOPS = {"metadata.with_flops": "1"}


def test_shapes_and_flops_stand_behind():
    table = key_averages(training_step(**WITH_FLOPS), group_by_input_shape=True).table(sort_by="flops", row_limit=1)
    assert [title.strip() for title in headings(table)][-2:] == ["Input Shapes", "Total FLOPs"]
    assert "[[4], [2, 3], [3, 4], [], []]" in table
    assert table.splitlines()[3].split()[-1] == "48.000"


def test_rows_without_flops_show_none():
    assert cells(key_averages(training_step(**WITH_FLOPS)).table(), "aten::linear")[-1] == "--"


def test_flops_that_were_not_asked_for_have_no_column():
    assert "FLOPs" not in key_averages(training_step()).table()


def test_shapes_are_cut_to_their_width():
    table = key_averages(training_step(), group_by_input_shape=True).table(max_shapes_column_width=14)
    assert "[[4], [2, 3], " in table
    assert "[3, 4]" not in table


def test_stacks_go_on_below_their_row():
    lines = key_averages(training_step(), group_by_stack_n=2).table(max_src_column_width=15).splitlines()
    at = next(number for number, line in enumerate(lines) if "aten::addmm" in line)
    assert "Source Location" in lines[1]
    assert "...12): forward" in lines[at]
    assert lines[at + 1].split() == ["...py(40):", "main"]


@pytest.mark.parametrize("key", ["self_cuda_memory_usage", "cpu_memory_usage", "flops"])
def test_memory_and_flops_sort(key):
    values = [getattr(average, key) for average in key_averages(training_step()).sorted_by(key)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0


def test_the_total_sums_memory_and_flops():
    total = key_averages(training_step()).total_average()
    assert total.self_device_memory_usage == 64 + 96 - 64 - 96
    assert total.flops == 48 * 3


# -- tree, audit and files -------------------------------------------------------------------------------------------


def test_the_tree_shows_operators_and_marks_modules_and_ranges():
    kinds = {node.name: node.kind for node in tree(training_step())}
    assert kinds["aten::addmm"] == "op"
    text = str(tree(training_step()))
    assert "module Linear" in text
    assert "range prefetch" in text


def test_the_audit_remarks_on_ranges_without_an_end():
    assert "1 range had not ended when the recording did" in audit(training_step()).remarks


def test_the_audit_remarks_on_backward_operators_without_a_forward_one():
    engine = "autograd::engine::evaluate_function: "
    trace = make_trace(
        {
            "path": {"name": [engine + "MulBackward0", "MulBackward0"], "parent": [NONE, 0], "kind": [1, 1]},
            "thread": {"system_id": [1]},
            "region": {"duration_ns": [9, 5], "path": [0, 1], "parent": [NONE, 0]},
            "detail": {"region": [0, 1], "sequence": [5, 5], "shapes": [NONE] * 2, "forward": [NONE] * 2},
        }
    )
    (remark,) = audit(trace).remarks
    assert remark.startswith("1 backward operator could not be joined to the forward one")
    assert audit(trace).complete
    assert len(audit(training_step()).remarks) == 1


def test_a_list_of_events_writes_stacks_with_their_own_time(tmp_path):
    events(training_step()).export_stacks(tmp_path / "stacks.txt", "self_cpu_time_total")
    assert "train.py(40):_main;model.py(12):_forward 10" in (tmp_path / "stacks.txt").read_text().splitlines()


@pytest.mark.parametrize("kind", ["cuda", "xpu", "privateuse1", "device"])
def test_a_list_of_events_writes_stacks_by_every_metric_that_it_says_it_has(tmp_path, kind):
    listed = events(training_step())
    assert f"self_{kind}_time_total" in listed.supported_export_stacks_metrics()
    listed.export_stacks(tmp_path / "stacks.txt", f"self_{kind}_time_total")
    listed.export_stacks(tmp_path / "same.txt", "self_device_time_total")
    assert (tmp_path / "stacks.txt").read_text() == (tmp_path / "same.txt").read_text()


def test_a_list_of_events_without_gpu_work_writes_stacks_of_cpu_time_with_a_warning(tmp_path):
    listed = events(
        make_trace(
            {
                "path": {"name": ["aten::mm"], "parent": [NONE], "kind": [1]},
                "thread": {"system_id": [100]},
                "region": {"start_ns": [1_000], "duration_ns": [10_000], "path": [0]},
                "detail": {"region": [0], "sequence": [0], "shapes": [NONE], "forward": [NONE], "stack": [0]},
                "stack": {"parent": [NONE], "function": ["main"], "file": ["train.py"], "line": [40]},
            }
        )
    )
    listed.export_stacks(tmp_path / "cpu.txt", "self_cpu_time_total")
    with pytest.warns(GpuscopeWarning, match="CPU time, self_cpu_time_total, instead of self_cuda") as warned:
        listed.export_stacks(tmp_path / "stacks.txt", "self_cuda_time_total")
    assert (tmp_path / "stacks.txt").read_text() == (tmp_path / "cpu.txt").read_text() != ""
    assert warned[0].filename == __file__


def test_a_list_of_events_writes_a_chrome_trace(tmp_path):
    import json

    events(training_step()).export_chrome_trace(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())
    assert {"name": "ProfilerStep#3", "ph": "X", "ts": 0.0, "dur": 100.0}.items() <= written[0].items()
