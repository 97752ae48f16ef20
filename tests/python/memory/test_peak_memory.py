# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest

from fakes.memory_events import HOST, START, STEP, events
from fakes.memory_history import FakeHistory
from gpuscope.errors import InvalidArgument
from gpuscope.memory.history.categories import PARAMETER
from gpuscope.memory.history.events import AtEnd, Frame, Storage
from gpuscope.memory.history.history import record_memory_history
from gpuscope.memory.history.peak import peak_memory

MIB = 1 << 20
FRAMES = {
    1: [("conv2d", "/env/lib/python3.12/site-packages/torch/nn/functional.py", 3), ("forward", "/me/model.py", 12)],
    2: [("step", "/me/train.py", 20)],
    3: [("forward", "/me/model.py", 12), ("evaluate", "/me/train.py", 40)],
}
A, B, C = 0x10_0000_0000, 0x20_0000_0000, 0x30_0000_0000


def at(stack, **more):
    return {"stack": stack} | more


def report(*rows, **options):
    lost = options.pop("lost", 0)
    return peak_memory(events(*rows, frames=FRAMES, lost=lost), **options)


STEP_ROWS = (
    ("alloc", A, 6 * MIB, at(1)),
    ("alloc", B, 3 * MIB, at(2)),
    ("alloc", C, MIB, at(3)),
    ("free", B, 3 * MIB),
    ("alloc", B, 2 * MIB, at(2)),
    ("free", A, 6 * MIB),
)


def test_the_peak_is_what_was_in_use_at_most():
    assert report(*STEP_ROWS).bytes == 10 * MIB


def test_places_are_lines_of_the_program_with_the_largest_first():
    assert [(str(one.place), one.bytes, one.count) for one in report(*STEP_ROWS).places] == [
        ("/me/model.py:12 forward", 7 * MIB, 2),
        ("/me/train.py:20 step", 3 * MIB, 1),
    ]


def test_shares_are_of_the_peak():
    assert [one.share for one in report(*STEP_ROWS).places] == pytest.approx([0.7, 0.3])


def test_when_it_was_is_told():
    found = report(*STEP_ROWS)
    assert (found.time_ns, found.since_begin_ns) == (START + 2 * STEP, 2 * STEP)


def test_when_the_pieces_of_a_place_were_allocated_is_told():
    found = report(*STEP_ROWS).places[0]
    assert (found.first_ns, found.last_ns) == (START, START + 2 * STEP)


def test_the_stack_is_that_of_most_of_it():
    assert report(*STEP_ROWS).places[0].stack[0].function == "conv2d"


def test_the_step_is_told_where_steps_are_known():
    ends = [START, START + 2 * STEP, START + 4 * STEP]
    assert report(*STEP_ROWS, steps_ns=ends).step == 1
    assert report(*STEP_ROWS).step is None


def test_what_was_allocated_before_is_the_base():
    rows = (("alloc", A, MIB, at(1, allocated_bytes=5 * MIB)), ("free", A, MIB, at(1, allocated_bytes=4 * MIB)))
    found = report(*rows)
    assert (found.bytes, found.base_bytes) == (5 * MIB, 4 * MIB)


def test_releases_of_what_was_allocated_before_move_the_peak():
    rows = (
        ("alloc", A, 2 * MIB, at(1, allocated_bytes=12 * MIB)),
        ("free", B, 10 * MIB, at(0, allocated_bytes=2 * MIB)),
        ("alloc", C, 4 * MIB, at(2, allocated_bytes=6 * MIB)),
    )
    found = report(*rows)
    assert (found.bytes, found.base_bytes, len(found)) == (12 * MIB, 10 * MIB, 1)


@pytest.mark.parametrize("source", ["cupy", "driver"])
def test_an_allocator_that_gave_all_back_has_no_part_in_a_later_peak(source):
    rows = (
        ("alloc", A, 8 * MIB, at(1, allocated_bytes=8 * MIB)),
        ("free", A, 8 * MIB, at(1, allocated_bytes=0)),
        ("alloc", B, 10 * MIB, at(2, allocated_bytes=0, source=source)),
    )
    found = report(*rows)
    assert (found.bytes, found.base_bytes) == (10 * MIB, 0)


def test_the_moment_is_that_of_the_allocators_own_figure():
    rows = (
        ("alloc", A, 100 * MIB, at(1, allocated_bytes=100 * MIB)),
        ("free", A, 100 * MIB, at(1, allocated_bytes=0)),
        ("alloc", B, 50 * MIB, at(2, allocated_bytes=8000 * MIB)),  # with what other threads took
        ("free", B, 50 * MIB, at(2, allocated_bytes=0)),
    )
    found = report(*rows)
    assert (found.bytes, found.base_bytes, found.since_begin_ns) == (8000 * MIB, 7950 * MIB, 2 * STEP)


@pytest.mark.parametrize("said", [0, 100 * MIB])
def test_an_address_that_comes_again_was_given_back(said):
    first = 5 * said
    rows = (
        ("alloc", A, 500 * MIB, at(1, allocated_bytes=first)),
        ("free", A, 500 * MIB, at(1, allocated_bytes=0)),
        *[("alloc", B, 100 * MIB, at(2, allocated_bytes=said))] * 10,
    )
    found = report(*rows)
    assert (found.bytes, found.since_begin_ns) == (500 * MIB, 0)


def test_host_memory_is_what_the_events_add_up_to():
    said = ({"device": HOST, "allocated_bytes": 900 * MIB}, {"device": HOST, "allocated_bytes": 1000 * MIB})
    found = report(*(("alloc", A, 100 * MIB, one) for one in said))  # in between another thread gave it back
    assert (found.bytes, found.base_bytes) == (100 * MIB, 0)


def test_a_history_may_begin_at_the_peak():
    rows = (
        ("free", A, 400 * MIB, at(0, allocated_bytes=400 * MIB)),
        ("free", B, 400 * MIB, at(0, allocated_bytes=0)),
        ("alloc", C, 100 * MIB, at(1, allocated_bytes=100 * MIB)),
    )
    found = report(*rows)
    assert (found.bytes, found.base_bytes, found.since_begin_ns, len(found)) == (800 * MIB, 800 * MIB, 0, 0)


def test_a_segment_and_what_lies_in_it_count_once():
    rows = (("alloc", A, 20 * MIB, at(1, source="driver")), ("alloc", A, MIB, at(1, allocated_bytes=MIB)))
    assert report(*rows).bytes == MIB


def test_a_librarys_own_memory_counts():
    rows = (("alloc", A, 20 * MIB, at(2, source="driver")), ("alloc", B, MIB, at(1, allocated_bytes=MIB)))
    assert report(*rows).bytes == 21 * MIB


def test_a_growth_explains_no_more_than_its_own_bytes():
    rows = (
        ("alloc", A, MIB, at(1, allocated_bytes=MIB, reserved_bytes=2 * MIB)),
        ("alloc", B, MIB, at(2, source="driver")),  # a library's, before a segment that is mapped later
        ("alloc", C, 20 * MIB, at(2, source="driver")),
        ("alloc", A + MIB, MIB, at(1, allocated_bytes=2 * MIB, reserved_bytes=22 * MIB)),
    )
    assert report(*rows).bytes == 3 * MIB


def test_a_segment_with_pieces_in_it_is_what_a_growth_explains():
    rows = (
        ("alloc", A, MIB, at(1, allocated_bytes=MIB, reserved_bytes=2 * MIB)),
        ("alloc", C, 20 * MIB, at(2, source="driver")),
        ("alloc", B, 20 * MIB, at(2, source="driver")),  # a library's, though later
        ("alloc", C, MIB, at(1, allocated_bytes=2 * MIB, reserved_bytes=22 * MIB)),
    )
    assert report(*rows).bytes == 22 * MIB


def test_what_autograds_threads_take_is_a_place_of_its_own():
    rows = (
        ("alloc", A, 4 * MIB, at(1)),
        ("alloc", B, 2 * MIB, at(0, thread=2)),
        ("alloc", C, MIB, at(0, device=HOST, thread=1)),
    )
    found = report(*rows)
    assert [(one.place is None, one.backward, one.bytes) for one in found.places] == [
        (False, False, 4 * MIB),
        (True, True, 2 * MIB),
    ]
    assert "backward (autograd's thread, no Python stack)" in str(found)


def test_the_gpu_with_the_highest_peak_is_taken():
    rows = (("alloc", A, MIB), ("alloc", A, 2 * MIB, {"device": 1}), ("alloc", A, 9 * MIB, {"device": HOST}))
    assert report(*rows).device == 1


def test_a_device_can_be_asked_for():
    rows = (("alloc", A, MIB), ("alloc", A, 9 * MIB, {"device": HOST}))
    assert report(*rows, device=HOST).bytes == 9 * MIB
    assert not report(*rows, device=3)


def test_host_memory_is_taken_where_nothing_else_is():
    assert report(("alloc", A, MIB, {"device": HOST})).device == HOST


@pytest.mark.parametrize(
    "place", ["model.py:12", "me/model.py:12", "/me/model.py", Frame("forward", "/me/model.py", 12)]
)
def test_a_place_is_looked_up(place):
    assert [one.bytes for one in report(*STEP_ROWS).at(place)] == [7 * MIB]


def test_a_place_on_windows_is_looked_up_by_its_file():
    made = events(("alloc", A, MIB, at(1)), frames={1: [("step", r"C:\me\train.py", 4)]})
    assert [one.bytes for one in peak_memory(made).at("train.py:4")] == [MIB]


@pytest.mark.parametrize("place", ["model.py:1", "odel.py:12", "", Frame("other", "/me/model.py", 12)])
def test_a_place_that_held_nothing_is_empty(place):
    assert report(*STEP_ROWS).at(place) == ()


MODULE = ("Module._call_impl", "/env/lib/python3.12/site-packages/torch/nn/modules/module.py", 1700)
OPTIMIZER = ("Adam.step", "/env/lib/python3.12/site-packages/torch/optim/adam.py", 200)
TRAINING_FRAMES = {1: [MODULE, ("step", "/me/train.py", 20)], 2: [OPTIMIZER, ("step", "/me/train.py", 22)]}
ENGINE = {"stack": 0, "thread": 2}  # autograd's own thread runs no Python
OLDER = 20 * MIB  # in use before the first event


def training(tensors=None):
    """An activation of 8 MiB, a gradient of 4 and an optimizer's state of 2; 20 MiB are older than the events."""
    changes = [
        ("alloc", A, 8 * MIB, at(1)),
        ("alloc", B, 4 * MIB, ENGINE),
        ("alloc", C, 2 * MIB, at(2)),
        ("free", A, 8 * MIB, ENGINE),
        ("free", B, 4 * MIB, at(2)),
    ]
    in_use, rows = OLDER, []
    for action, address, size, more in changes:
        in_use += size if action == "alloc" else -size
        rows.append((action, address, size, more | {"allocated_bytes": in_use}))
    return dataclasses.replace(events(*rows, frames=TRAINING_FRAMES), at_end=lambda: AtEnd(tensors))


def sizes(found):
    return {one.name: one.bytes // MIB for one in found.categories}


def test_categories_are_what_the_memory_was_for_with_the_largest_first():
    assert list(sizes(peak_memory(training())).items()) == [
        ("unknown", 20),
        ("activation", 8),
        ("gradient", 4),
        ("optimizer state", 2),
    ]


def test_tensors_that_are_older_than_the_events_have_their_category():
    tensors = {
        0x900: Storage(PARAMETER, 12 * MIB, 0),
        0x901: Storage(PARAMETER, 5 * MIB, 1),
        0x902: Storage(None, 3, 0),
    }
    found = sizes(peak_memory(training(tensors)))
    assert (found["parameter"], found["unknown"]) == (12, 8)


def test_older_tensors_take_no_more_than_was_there():
    found = sizes(peak_memory(training({0x900: Storage(PARAMETER, 90 * MIB, 0)})))
    assert found["parameter"] == 20
    assert "unknown" not in found


@pytest.mark.parametrize("tensors", [None, {0x900: Storage(PARAMETER, 12 * MIB, 0)}])
def test_categories_add_up_to_the_peak(tensors):
    found = peak_memory(training(tensors))
    assert sum(one.bytes for one in found.categories) == found.bytes
    assert sum(one.share for one in found.categories) == pytest.approx(1)


def test_categories_are_a_table():
    assert str(peak_memory(training())).splitlines()[1:4] == [
        "category            bytes   share",
        "---------------  --------  ------",
        "unknown          20.0 MiB  58.8 %",
    ]


UNKNOWN_CATEGORIES = {
    "they are known of PyTorch's memory": [("alloc", A, MIB, at(2, source="numpy", device=HOST))],
    "the events have no call stacks": [("alloc", A, MIB)],
    "no allocation at the peak belongs to a module, a backward or an optimizer": [("alloc", A, MIB, at(2))],
    "nothing was allocated": [],
}


@pytest.mark.parametrize(("why", "rows"), UNKNOWN_CATEGORIES.items(), ids=UNKNOWN_CATEGORIES)
def test_categories_that_are_not_known_say_why(why, rows):
    found = report(*rows)
    assert found.categories is None
    assert found.why_no_categories.startswith(why)


def test_categories_are_plain_values_too():
    found = json.loads(json.dumps(peak_memory(training()).to_dict()))
    assert found["categories"][1] == {"name": "activation", "bytes": 8 * MIB, "share": pytest.approx(8 / 34)}


def test_a_history_of_a_training_on_the_cpu_has_categories():
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    with record_memory_history(numpy=False):
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            model(torch.randn(64, 256)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = {one.name: one.bytes for one in peak_memory().categories}
    weights = sum(each.nbytes for each in model.parameters())
    assert found["gradient"] == pytest.approx(weights, rel=0.02)
    assert found["optimizer state"] == pytest.approx(2 * weights, rel=0.02)


def test_no_events_are_no_peak():
    found = report()
    assert (bool(found), found.device, str(found)) == (False, None, "peak: nothing was allocated")


def test_the_table():
    rows = (("alloc", A, 2 * MIB, at(1, allocated_bytes=11 * MIB)), ("alloc", B, MIB, at(0, allocated_bytes=12 * MIB)))
    assert str(report(*rows, lost=1200)) == "\n".join(
        [
            "peak of GPU 0: 12.0 MiB, 0.000 s after the first event",
            "categories are not known: no allocation at the peak belongs to a module, a backward or an optimizer",
            "allocated at                       bytes   share  pieces  first s  last s",
            "------------------------------  --------  ------  ------  -------  ------",
            "model.py:12 forward             2.00 MiB  16.7 %       1    0.000   0.000",
            "a place without a Python stack  1.00 MiB   8.3 %       1    0.000   0.000",
            "before the first event          9.00 MiB  75.0 %",
            "note: 1,200 older events are no longer kept",
        ]
    )


def test_the_smallest_places_share_a_row():
    frames = {number: [("f", "/me/a_module_with_a_long_name.py" * 3, number)] for number in range(1, 31)}
    rows = [("alloc", A + MIB * number, 512 * number, at(number)) for number in range(1, 31)]
    text = str(peak_memory(events(*rows, frames=frames)))
    assert "15 smaller places" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_report_is_plain_values_too():
    found = json.loads(json.dumps(report(*STEP_ROWS).to_dict()))
    assert found["places"][0]["place"]["line"] == 12


def test_an_allocator_that_reports_nothing_is_noted(monkeypatch):
    FakeHistory().put_in(monkeypatch)
    torch = SimpleNamespace(cuda=SimpleNamespace(get_allocator_backend=lambda: "cudaMallocAsync"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    (note,) = peak_memory().notes
    assert note == (
        "torch's allocations on GPUs are left out: its allocator is cudaMallocAsync, which reports neither allocations "
        "nor segments"
    )


def test_the_history_is_asked_without_events(monkeypatch):
    history = FakeHistory().put_in(monkeypatch)
    history.rows.append(("alloc", A, MIB, at(1)))
    assert peak_memory().bytes == MIB


@pytest.mark.parametrize("device", ["cuda:x", 1.0, True])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(InvalidArgument, match=r"^device is .*; accepted are an ordinal"):
        report(*STEP_ROWS, device=device)


def test_what_are_no_memory_events_is_named():
    with pytest.raises(InvalidArgument, match="events is 3; accepted are memory events and None"):
        peak_memory(3)
