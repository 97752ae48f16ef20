# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle
import tracemalloc

import pytest

from fakes.gscope import NONE
from fakes.recordings import aggregate, cpu_only, make_trace, training
from gpuscope.analysis import tree
from gpuscope.errors import InvalidArgument
from gpuscope.text import columns_of

TRAINING = """\
Name                                                      Count  GPU total  GPU self  CPU total  CPU self        p50
train                                                         1   12.500us         -  100.000us  30.000us  100.000us
├─ backward                                                   1    9.500us   9.500us   40.000us  38.500us   40.000us
│  ├─ triton_mm                                               1    7.000us   7.000us          -         -    7.000us
│  ├─ [graph] captured before profiling, or in no region      1    1.500us   1.500us          -         -          -
│  │  └─ void kernel<float>(float*, int)                      1    1.500us   1.500us          -         -    1.500us
│  ├─ [graph] train/forward                                   1    1.000us   1.000us          -         -          -
│  │  └─ triton_mm                                            1    1.000us   1.000us          -         -    1.000us
│  ├─ cudaGraphLaunch                                         1          -         -    0.900us   0.900us    0.900us
│  └─ cudaLaunchKernel                                        1          -         -    0.600us   0.600us    0.600us
└─ forward                                                    1    3.000us   3.000us   30.000us  29.600us   30.000us
   ├─ void kernel<float>(float*, int)                         1    3.000us   3.000us          -         -    3.000us
   └─ cudaLaunchKernel                                        1          -         -    0.400us   0.400us    0.400us
Memcpy HtoD (Pageable -> Device)                              1    0.800us   0.800us          -         -    0.800us
"""


def test_the_tree_prints_aligned_and_sorted():
    assert str(tree(training())).rpartition("audit:")[0] == TRAINING


def test_the_audit_stands_below():
    assert str(tree(training())).splitlines()[-1].startswith("audit: complete")


def test_a_node_is_found_by_name():
    node = tree(training()).find("backward")
    assert node is not None
    assert (node.kind, node.count, node.cpu_ns, node.self_cpu_ns) == ("region", 1, 40_000, 38_500)
    assert (node.device_ns, node.self_device_ns) == (9_500, 9_500)


def test_a_name_that_is_not_there_is_none():
    assert tree(training()).find("nope") is None


def test_nodes_come_before_their_children():
    names = [node.name for node in tree(training())]
    assert names[:3] == ["train", "backward", "triton_mm"]
    assert len(names) == 13


def test_the_root_is_the_recording():
    root = tree(training()).root
    assert (root.kind, root.cpu_ns, root.device_ns) == ("recording", 100_000, 13_300)


def test_the_root_lasts_as_long_as_what_lies_in_it():
    parts = {"region": [0, 1], "first": [0, 0], "suspended_ns": [50, 0]}
    regions = {"start_ns": [0, 60], "duration_ns": [10, 20], "path": [0, 0], "parent": [NONE] * 2}
    trace = make_trace(
        {"path": {"name": ["fetch"]}, "thread": {"system_id": [1]}, "region": regions, "resumption": parts}
    )
    root = tree(trace).root
    assert (root.cpu_ns, root.elapsed_ns) == (30, 80)


def test_columns_stand_below_each_other_beside_names_of_wide_characters():
    regions = {"duration_ns": [5, 5], "path": [0, 1], "parent": [NONE] * 2}
    trace = make_trace({"path": {"name": ["\u540d" * 50, "plain"]}, "thread": {"system_id": [1]}, "region": regions})
    lines = tree(trace).render(width=80).splitlines()[:-1]
    assert {columns_of(line) for line in lines} == {80}


def test_what_a_graph_ran_is_grouped_by_its_capture():
    node = tree(training()).find("[graph] train/forward")
    assert node is not None
    assert [(child.name, child.device_ns) for child in node.children] == [("triton_mm", 1_000)]


def test_depth_is_limited():
    text = tree(training()).render(max_depth=1)
    assert "train" in text
    assert "backward" not in text


def test_small_nodes_are_left_out_and_counted():
    text = tree(training()).render(min_percent=50)
    assert "backward" in text
    assert "forward " not in text
    assert "(1 below 50 %)" in text


def test_lines_keep_to_the_width():
    trace = make_trace(
        {"path": {"name": ["x" * 500]}, "thread": {"system_id": [1]}, "region": {"duration_ns": [5], "path": [0]}}
    )
    lines = tree(trace).render(width=80).splitlines()[:-1]
    assert max(map(len, lines)) == 80
    assert "x…" in lines[1]


def test_gpu_columns_are_left_out_without_a_gpu():
    assert "GPU total" not in str(tree(cpu_only()))


def test_aggregate_mode_has_the_same_tree():
    node = tree(aggregate()).find("step")
    assert node is not None
    assert (node.count, node.self_cpu_ns, node.device_ns) == (10, 700, 500)
    assert [child.name for child in node.children] == ["f()"]


def test_a_region_that_only_launched_elsewhere_stays():
    trace = make_trace({"path": {"name": ["outer", "inner"], "parent": [NONE, 0]}, "thread": {"system_id": [1]},
                        "region": {"duration_ns": [5], "path": [1]}})  # fmt: skip
    assert [node.name for node in tree(trace)] == ["outer", "inner"]


def test_an_empty_recording_has_an_empty_tree():
    assert list(tree(make_trace({}))) == []
    assert "Name" in str(tree(make_trace({})))


DEEP = 3_000


def deep():
    parents = [NONE, *range(DEEP - 1)]
    region = {"duration_ns": [DEEP - row for row in range(DEEP)], "parent": parents, "path": list(range(DEEP))}
    return make_trace(
        {"path": {"name": ["f"] * DEEP, "parent": parents}, "thread": {"system_id": [1]}, "region": region}
    )


def test_deep_recursion_prints():
    assert len(list(tree(deep()))) == DEEP
    assert len(tree(deep()).render().splitlines()) == DEEP + 2


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))])
@pytest.mark.parametrize("make", [training, deep, lambda: make_trace({})])
def test_trees_can_be_copied_pickled_and_compared(make, copied):
    found = tree(make())
    assert copied(found) == found
    assert hash(copied(found)) == hash(found)
    assert found != tree(cpu_only())


def test_a_deep_tree_prints_in_memory_linear_in_its_rows():
    def peak_bytes(depth):
        parents = [NONE, *range(depth - 1)]
        region = {"duration_ns": [depth - row for row in range(depth)], "parent": parents, "path": list(range(depth))}
        path = {"name": ["f"] * depth, "parent": parents}
        deep = tree(make_trace({"path": path, "thread": {"system_id": [1]}, "region": region}))
        tracemalloc.start()
        deep.render()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    assert peak_bytes(4_000) < 3 * peak_bytes(2_000)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("max_depth", 0), ("max_depth", "2"), ("min_percent", -1), ("min_percent", 101), ("width", 79), ("width", None)],
)
def test_a_bad_argument_is_named(argument, value):
    with pytest.raises(InvalidArgument, match=argument):
        tree(training()).render(**{argument: value})
