# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

import gpuscope as gs
from fakes.gscope import NONE, make_store
from gpuscope.analysis import modules
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.trace import Trace

OP, MODULE = 1, 3
INFO = {"session.mode": "full"}


class Program:
    """Regions, their kernels of some us, and links from backward operators to forward ones, one call each."""

    def __init__(self):
        self.paths, self.path_rows = [], []
        self.regions, self.kernels, self.links = [], [], []

    def region(self, name, kind=0, inside=NONE, us=100):
        parent_path = self.path_rows[inside] if inside != NONE else NONE
        path = (name, parent_path, kind)
        if path not in self.paths:
            self.paths.append(path)
        self.path_rows.append(self.paths.index(path))
        self.regions.append((inside, us * 1000))
        return len(self.regions) - 1

    def op(self, name, inside, us=0, of=NONE):
        row = self.region(name, OP, inside)
        self.links.append((row, of))
        if us:
            self.kernel(row, us)
        return row

    def kernel(self, region, us, launched_us=0.001):
        self.kernels.append((region, us * 1000, int(launched_us * 1000)))

    def modules(self):
        names, parents, kinds = zip(*self.paths, strict=True)
        count = len(self.regions)
        tables = {
            "thread": {"system_id": [1]},
            "track": {"device": [0], "context": [1], "stream": [7]},
            "variant": {"name": ["k"]},
            "path": {"name": names, "parent": parents, "kind": kinds},
            "region": {
                "start_ns": list(range(count)),
                "duration_ns": [time for _, time in self.regions],
                "parent": [parent for parent, _ in self.regions],
                "path": self.path_rows,
                "thread": [0] * count,
            },
            "detail": {
                "sequence": [-1] * len(self.links),
                "region": [row for row, _ in self.links],
                "shapes": [NONE] * len(self.links),
                "forward": [of for _, of in self.links],
                "stack": [NONE] * len(self.links),
            },
            "kernel": {
                "start_ns": [launched for _, _, launched in self.kernels],
                "duration_ns": [time for _, time, _ in self.kernels],
                "correlation": list(range(len(self.kernels))),
                "variant": [0] * len(self.kernels),
                "track": [0] * len(self.kernels),
                "region": [region for region, _, _ in self.kernels],
            },
        }
        return modules(Trace(make_store(tables, info=INFO)))


@pytest.fixture
def program():
    return Program()


def times(row):
    return row.count, row.cpu_time_total, row.forward_device_time, row.backward_device_time


def test_backward_work_goes_to_the_module_of_the_forward_operator(program):
    step = program.region("step")
    net = program.region("Net", MODULE, step, us=90)
    first = program.region("Net.a", MODULE, net, us=40)
    mm = program.op("aten::mm", first, us=7)
    second = program.region("Net.b", MODULE, net, us=30)
    relu = program.op("aten::relu", second, us=2)
    backward = program.region("autograd::engine::evaluate_function: ReluBackward0", OP, step)
    program.op("ReluBackward0", backward, us=3, of=relu)
    grad = program.op("MmBackward0", step, us=0, of=mm)
    program.op("aten::mm", grad, us=11)
    program.kernel(step, 1000)  # of no module
    result = program.modules()
    assert [row.path for row in result] == ["Net", "Net.a", "Net.b"]
    assert times(result["Net"]) == (1, 90.0, 9.0, 14.0)
    assert times(result["Net.a"]) == (1, 40.0, 7.0, 11.0)
    assert times(result["Net.b"]) == (1, 30.0, 2.0, 3.0)
    assert result["Net"].device_time_total == 23.0
    with pytest.raises(KeyError):
        result["Net.c"]


def test_calls_of_one_path_are_one_row_wherever_they_were_made(program):
    for name in ("train", "evaluate", "train"):
        program.kernel(program.region("Net", MODULE, program.region(name), us=10), 5)
    (row,) = program.modules()
    assert times(row) == (3, 30.0, 15.0, 0.0)


def test_what_a_checkpoint_computes_anew_is_backward_work_and_counted_once(program):
    net = program.region("Net", MODULE, us=50)
    saved = program.op("CheckpointFunction", net)
    program.op("aten::mm", saved, us=4)
    grad = program.op("CheckpointFunctionBackward", NONE, of=saved)
    again = program.region("Net", MODULE, grad, us=20)  # its root is named like the module that it is inside of
    block = program.region("Net.block", MODULE, again, us=15)
    program.op("aten::mm", block, us=6)
    result = program.modules()
    assert times(result["Net"]) == (2, 50.0, 4.0, 6.0)
    assert times(result["Net.block"]) == (1, 15.0, 0.0, 6.0)


def test_what_outlasts_a_module_launches_nothing_of_it_later(program):
    net = program.region("Net", MODULE, program.region("step"), us=50)
    outlasts = program.region("prefetch", inside=net, us=70)
    program.kernel(outlasts, 5)
    program.kernel(outlasts, 6, launched_us=60)
    assert times(program.modules()["Net"]) == (1, 50.0, 5.0, 0.0)


def test_a_recording_without_modules_has_no_rows(program):
    program.op("aten::mm", program.region("step"), us=4)
    result = program.modules()
    assert len(result) == 0
    assert result.table().splitlines() == [
        "Module  # of Calls  CPU total  CUDA forward  CUDA backward",
        "No modules were recorded: with_modules=True",
    ]


def test_without_gpu_work_gpu_times_are_unknown_and_the_table_says_why(program):
    program.region("Net", MODULE, us=1500)
    result = program.modules()
    assert str(result).splitlines()[1:] == [
        "Net              1    1.500ms             -              -",
        "No GPU work was recorded",
    ]
    assert result.to_dict()["modules"][0]["backward_device_time"] is None
    assert result["Net"].device_time_total is None


def test_an_empty_recording_has_no_rows():
    assert len(modules(Trace(make_store({}, info=INFO)))) == 0


def test_an_aggregated_recording_says_that_it_has_no_events():
    with pytest.raises(NotAvailable, match="aggregate"):
        modules(Trace(make_store({}, info={"session.mode": "aggregate"})))


def test_the_table_has_one_line_a_module(program):
    net = program.region("Net", MODULE, us=1500)
    program.kernel(program.region("Net.layer", MODULE, net, us=40), 7)
    result = program.modules()
    assert str(result) == (
        "Module     # of Calls  CPU total  CUDA forward  CUDA backward\n"
        "Net                 1    1.500ms       7.000us        0.000us\n"
        "Net.layer           1   40.000us       7.000us        0.000us\n"
    )
    assert result.table(row_limit=1).count("\n") == 2


@pytest.mark.parametrize("row_limit", [None, "5", 2.5, -7])
def test_a_row_limit_that_is_none_is_an_error(program, row_limit):
    program.region("Net", MODULE)
    with pytest.raises(InvalidArgument, match=f"row_limit is {row_limit!r}; accepted are integers from -1"):
        program.modules().table(row_limit)


def test_links_that_lead_back_to_their_module_end(program):
    net = program.region("Net", MODULE)
    program.links.append((net, program.op("aten::mm", net, us=4)))
    assert [row.path for row in program.modules()] == ["Net"]


def test_modules_of_a_profile_are_asked_of_the_profile():
    from gpuscope import _core

    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as profiler, _core.region_of_kind("Net", MODULE):
        pass
    (row,) = profiler.modules()
    assert (row.path, row.count, row.forward_device_time) == ("Net", 1, None)


def test_details_of_lost_regions_belong_to_no_module():
    tables = {
        "thread": {"system_id": [1]},
        "path": {"name": ["Net"], "kind": [MODULE]},
        "region": {"start_ns": [0], "duration_ns": [5000], "path": [0]},
        "detail": {"region": [NONE]},
    }
    assert [(row.path, row.count) for row in modules(Trace(make_store(tables, info=INFO)))] == [("Net", 1)]
