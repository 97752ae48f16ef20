# SPDX-License-Identifier: Apache-2.0
"""A training step under gpuscope.profile and under torch.profiler: both must tell the same of its operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import gpuscope  # noqa: E402
from fakes.torch_steps import STEPS  # noqa: E402

MEMORY = "[memory]"


@pytest.fixture(scope="module", params=list(STEPS))
def profilers(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # torch.profiler does not see the operators of the threads that share an operator's work
    step = STEPS[request.param]()
    options = {"record_shapes": True, "profile_memory": True, "with_flops": True}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as theirs:
        step()
    step()  # gives back what was taken while torch.profiler looked: of that alone it knows the size
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU], **options) as ours:
        step()
    yield ours, theirs
    torch.set_num_threads(threads)


def figures(profiler, *names):
    rows = profiler.key_averages(group_by_input_shape=True)
    return {
        (row.key, str(row.input_shapes)): tuple(getattr(row, name) for name in names)
        for row in rows
        if row.key != MEMORY
    }


def test_names_shapes_and_counts_are_torchs(profilers):
    ours, theirs = profilers
    assert figures(ours, "count") == figures(theirs, "count")


def test_memory_is_torchs(profilers):
    ours, theirs = profilers
    names = ("cpu_memory_usage", "self_cpu_memory_usage")
    assert figures(ours, *names) == figures(theirs, *names)


def test_scopes_and_annotations_are_torchs(profilers):
    ours, theirs = profilers
    assert figures(ours, "scope", "is_user_annotation") == figures(theirs, "scope", "is_user_annotation")


def test_operators_that_torch_counts_have_its_flops(profilers):
    ours, theirs = profilers
    mine = figures(ours, "flops")
    for key, count in figures(theirs, "flops").items():
        if count != (0,) and key[0] not in ("aten::add", "aten::mul"):  # torch counts the first input of those
            assert mine[key] == count, key


def test_every_convolution_is_counted(profilers):
    ours, _ = profilers
    names = {"aten::conv2d", "aten::convolution_backward"}
    assert all(event.flops for event in ours.events() if event.name in names)


def test_operators_lie_inside_each_other_as_in_torch(profilers):
    def is_handed_on(event):
        above = event.cpu_parent
        return above is not None and above.name == event.name and len(above.cpu_children) == 1

    def nesting(profiler):
        return sorted(
            (event.name, event.cpu_parent.name if event.cpu_parent is not None else "")
            for event in profiler.events()
            if event.name != MEMORY and not is_handed_on(event)  # torch leaves those out
        )

    ours, theirs = profilers
    assert nesting(ours) == nesting(theirs)


def test_backward_operators_have_autograds_number_and_their_forward_operator(profilers):
    ours, _ = profilers
    nodes = [event for event in ours.events() if event.scope == 1 and event.sequence_nr >= 0]
    assert nodes
    for node in nodes:
        assert node.forward is not None, node.name
        assert node.forward.sequence_nr == node.sequence_nr


def test_the_table_has_torchs_columns(profilers):
    ours, theirs = (
        profiler.key_averages(group_by_input_shape=True).table(max_name_column_width=None).splitlines()[1]
        for profiler in profilers
    )
    for title in (title.strip() for title in theirs.split("  ") if title.strip()):
        assert title.removeprefix("Total ").lstrip("KMGTP") in ours


def test_the_memory_timeline_ends_where_the_allocations_do(profilers, tmp_path):
    import json

    ours, _ = profilers
    ours.export_memory_timeline(tmp_path / "memory.json", device="cpu")
    _, sizes = json.loads((tmp_path / "memory.json").read_text())
    memory = ours.trace.memory
    first = max(0, int(memory.allocated_bytes[0]) - int(memory.bytes[0]))
    assert sum(sizes[-1]) == first + int(memory.bytes.sum())
