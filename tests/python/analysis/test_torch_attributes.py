# SPDX-License-Identifier: Apache-2.0
"""Every public attribute of torch.profiler's results is there by name, or stands here with the reason why not."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import profiler_util  # noqa: E402

from fakes.recordings import training  # noqa: E402
from gpuscope.analysis import events, key_averages  # noqa: E402

KINETO = "a number of kineto's, by which it joins its own records; ours are joined by region and correlation"
ONLY_SHAPES = "of the inputs only the shapes are recorded"
PYTHON_TRACER = "Python functions are not recorded one by one; stack names them"
SET_BY_TABLE = "torch's table writes it there while it prints; share of the whole is a column of ours"
IMMUTABLE = "torch builds its events with it; ours are read from the recording and do not change"

NOT_THERE = {
    "EventList": {},
    "FunctionEvent": {
        **dict.fromkeys(("external_id", "linked_correlation_id", "flow_id", "flow_start", "flow_type"), KINETO),
        **dict.fromkeys(("concrete_inputs", "kwinputs", "input_dtypes", "structured_input_strides"), ONLY_SHAPES),
        **dict.fromkeys(("python_id", "python_parent_id", "python_module_id"), PYTHON_TRACER),
        **dict.fromkeys(("self_cpu_percent", "total_cpu_percent", "total_device_percent"), SET_BY_TABLE),
        **dict.fromkeys(("append_kernel", "append_cpu_child", "set_cpu_parent"), IMMUTABLE),
        "event_metadata": "kineto's own fields; trace.kernels, trace.variants and trace.memcpy hold what there is",
        "metadata_json": "kineto's own text, which torch has deprecated",
    },
    "FunctionEventAvg": {
        "add": IMMUTABLE,
        "cpu_children": "of one of the events that were summed; events() has them all",
        "cpu_parent": "likewise",
    },
}

THEIRS = {
    "EventList": profiler_util.EventList,
    "FunctionEvent": lambda: profiler_util.FunctionEvent(1, "name", 1, 0, 1),
    "FunctionEventAvg": profiler_util.FunctionEventAvg,
}
OURS = {
    "EventList": lambda: events(training()),
    "FunctionEvent": lambda: events(training())[0],
    "FunctionEventAvg": lambda: key_averages(training())[0],
}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize("kind", list(THEIRS))
def test_every_attribute_is_there_or_listed(kind):
    ours, theirs = public(OURS[kind]()), public(THEIRS[kind]())
    assert theirs - ours == set(NOT_THERE[kind])


@pytest.mark.parametrize("name", ["table", "key_averages", "total_average", "export_chrome_trace", "export_stacks"])
def test_methods_take_torchs_arguments(name):
    theirs = inspect.signature(getattr(profiler_util.EventList, name)).parameters
    ours = inspect.signature(getattr(type(events(training())), name)).parameters
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


def test_key_averages_of_the_profiler_take_torchs_arguments():
    from gpuscope.recording import Analyses

    theirs = inspect.signature(torch.profiler.profile.key_averages).parameters
    ours = inspect.signature(Analyses.key_averages).parameters
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


@pytest.mark.parametrize("key", ["self_cuda_memory_usage", "cuda_time_total", "cpu_memory_usage", "count", "flops"])
def test_torchs_sort_keys_sort(key):
    for rows in (events(training()), key_averages(training())):
        values = [getattr(row, key) for row in rows.sorted_by(key)]
        assert values == sorted(values, reverse=True)
