# SPDX-License-Identifier: Apache-2.0
"""The tree of events under torch's names: by itself, and beside that of the installed torch."""

from __future__ import annotations

import re
import threading

import pytest

import gpuscope as gs
from fakes.gscope import NONE
from fakes.recordings import make_trace, training
from gpuscope.analysis import events
from gpuscope.profiler.event_tree import PyFrameState, build_tree


def tree_of(trace):
    return build_tree(trace, events(trace), 1)


def shape(nodes):
    names = [re.sub("0x[0-9a-f]+", "0x", node.name) for node in nodes]
    return [(name, shape(node.children)) if node.children else name for name, node in zip(names, nodes, strict=True)]


def walk(nodes):
    for node in nodes:
        yield node
        yield from walk(node.children)


# -- by itself ---------------------------------------------------------------------------------------------------------


def test_gpu_work_lies_in_the_call_that_launched_it():
    (train,) = [node for node in tree_of(training()) if node.name == "train"]
    forward, backward = train.children
    assert shape([forward]) == [("forward", [("cudaLaunchKernel", ["void kernel<float>(float*, int)"])])]
    assert shape([backward]) == [
        (
            "backward",
            [
                ("cudaLaunchKernel", ["triton_mm"]),
                ("cudaGraphLaunch", ["triton_mm", "void kernel<float>(float*, int)"]),
            ],
        )
    ]


def test_numbers_are_those_of_the_events():
    trace = training()
    by_number = {event.id + 1: event for event in events(trace)}
    for node in walk(tree_of(trace)):
        event = by_number[node.correlation_id]
        assert (node.name, node.start_tid, node.duration_time_ns) == (
            event.trace_name,
            event.thread,
            round(event.time_range.elapsed_us() * 1000),
        )
        assert node.end_time_ns - node.start_time_ns == node.duration_time_ns


def test_an_event_knows_what_is_around_it():
    roots = tree_of(training())
    assert all(node.parent is None for node in roots)
    assert all(child.parent is node for node in walk(roots) for child in node.children)


def test_an_allocation_that_failed_is_in_the_tree():
    trace = make_trace(
        {
            "path": {"name": ["work"]},
            "thread": {"system_id": [7]},
            "region": {"start_ns": [10], "duration_ns": [100], "path": [0]},
            "failed_allocation": {"start_ns": [50], "bytes": [4096], "region": [0], "ordinal": [NONE], "thread": [0]},
        },
        info={"session.start_ns": "10"},
    )
    ((work,),) = [tree_of(trace)]
    (failed,) = work.children
    assert (failed.name, failed.start_tid, failed.extra_fields.alloc_size) == ("[OutOfMemory]", 7, 4096)


def test_a_region_that_is_left_open_ends_with_the_one_around_it():
    with gs.profile(activities=[gs.ProfilerActivity.CPU]) as prof:
        with gs.record_function("outer"):
            left_open = gs.record_function("left open").__enter__()
            with gs.record_function("inner"):
                pass
        with gs.record_function("next"):
            pass
    left_open.__exit__(None, None, None)
    (outer, _) = tree = tree_of(prof.trace)
    assert shape(tree) == [("outer", [("left open", ["inner"])]), "next"]
    assert outer.children[0].end_time_ns == outer.end_time_ns


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a/b.py(12): f", PyFrameState("a/b.py", 12, "f")),
        ("<string>(1): <module>", PyFrameState("<string>", 1, "<module>")),
        ("nn.Module: Linear_0", PyFrameState(function_name="nn.Module: Linear_0")),
    ],
)
def test_the_name_of_a_function_says_where_it_is(name, read):
    assert PyFrameState.parse(name) == read


# -- beside torch's ----------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def theirs(torch):
    return pytest.importorskip("torch.profiler")


def record(module, work, **options):
    with module.profile(activities=[module.ProfilerActivity.CPU], **options) as prof:
        work()
    return prof, prof.profiler.kineto_results.experimental_event_tree()


def work_of(torch):
    x = torch.ones(2, 3, requires_grad=True)
    y = torch.ones(3, 4)

    def work():
        joined = torch.cat([x.mm(y), x.double()], dim=1)
        torch.add(joined, 2.5, alpha=2).sum(dim=[0], keepdim=True)

    return work


def test_operators_lie_in_one_another_as_in_torch(torch, theirs):
    found = [shape(record(module, work_of(torch))[1]) for module in (theirs, gs)]
    assert found[1] == found[0]


def test_kinds_are_torchs(torch, theirs):
    from torch._C._profiler import _EventType, _ExtraFields_TorchOp

    for module in (theirs, gs):
        node = record(module, work_of(torch))[1][0]
        assert node.typed[0] == node.tag == _EventType.TorchOp
        assert isinstance(node.extra_fields, _ExtraFields_TorchOp)


def test_inputs_are_torchs(torch, theirs):
    def described(value):
        if isinstance(value, list) and value and hasattr(value[0], "sizes"):
            return [(each.sizes, each.strides) for each in value]
        return (value.sizes, value.strides, value.dtype) if hasattr(value, "sizes") else value

    found = [
        [
            (node.name, node.extra_fields.scope, [described(value) for value in node.extra_fields.inputs])
            for node in walk(record(module, work_of(torch), record_shapes=True)[1])
        ]
        for module in (theirs, gs)
    ]
    assert found[1] == found[0]


def test_allocations_are_torchs(torch, theirs):
    found = []
    for module in (theirs, gs):
        tree = record(module, lambda: torch.empty(1000), profile_memory=True)[1]
        found.append(
            [
                (node.name, node.parent.name, node.extra_fields.alloc_size, node.extra_fields.device)
                for node in walk(tree)
                if node.name == "[memory]" and node.parent is not None
            ]
        )
    assert found[1] == found[0] == [("[memory]", "aten::empty", 4000, torch.device("cpu"))]


def outer(torch):
    torch.ones(2).add_(1)


def test_functions_lie_around_operators_as_in_torch(torch, theirs):
    found = []
    for module in (theirs, gs):
        tree = record(module, lambda: outer(torch), with_stack=True)[1]
        (node,) = [node for node in walk(tree) if node.name.endswith(": outer")]
        called = node.extra_fields
        found.append(
            (shape([node]), called.callsite.function_name, called.caller.function_name, called.module, node.tag)
        )
    assert found[1] == found[0]


def test_modules_that_are_called_are_named_as_in_torch(torch, theirs):
    model = torch.nn.Linear(2, 2)
    found = []
    for module in (theirs, gs):
        tree = record(module, lambda: model(torch.ones(2)), with_stack=True)[1]
        (node,) = [node for node in walk(tree) if node.name.startswith("nn.Module: ")]
        found.append((node.name, node.extra_fields.module.cls_name))
    assert found[1] == found[0]


def test_functions_are_those_of_threads_that_ran_before(torch):
    def begin():
        thread = threading.Thread(target=outer, args=(torch,))
        thread.start()
        thread.join()

    prof, tree = record(gs, begin, with_stack=True)
    assert not [node for node in walk(tree) if node.name.endswith(": outer")]
    assert [event for event in prof.events() if event.name.endswith(": outer")]


def test_the_tree_is_the_same_each_time(torch):
    prof, tree = record(gs, work_of(torch))
    again = prof.profiler.kineto_results.experimental_event_tree()
    assert tree
    assert all(one is other for one, other in zip(tree, again, strict=True))


def test_torchs_patterns_are_found_as_in_torch(torch, theirs):
    matcher = pytest.importorskip("torch.profiler._pattern_matcher")
    x = torch.ones(4, 4)

    def work():
        for row in range(20):
            x[row % 4] = row

    found = []
    for module in (theirs, gs):
        prof = record(module, work, with_stack=True)[0]
        patterns = matcher.ForLoopIndexingPattern(prof), matcher.NamePattern(prof, "aten::fill_")
        found.append([len(pattern.matched_events()) for pattern in patterns])
    assert found == [[1, 20]] * 2


def test_torch_works_out_self_times_of_our_tree(torch, theirs):
    utils = pytest.importorskip("torch.profiler._utils")
    prof, tree = record(gs, work_of(torch))
    metrics = utils.BasicEvaluation(prof.profiler).metrics
    assert len(metrics) == len(list(walk(tree)))
    for key, metric in metrics.items():
        inside = sum(child.duration_time_ns for child in key.event.children)
        assert metric.self_time_ns == key.event.duration_time_ns - inside
