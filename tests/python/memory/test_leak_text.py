# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuscope.memory.history.events import Frame
from gpuscope.memory.history.growth import Growth
from gpuscope.memory.history.holders import Holder
from gpuscope.memory.history.leaks import Leak, LeakReport

MIB = 1 << 20
STACK = (
    Frame("conv2d", "/env/lib/python3.12/site-packages/torch/nn/functional.py", 540),
    Frame("Net.forward", "/me/model.py", 12),
    Frame("step", "/me/train.py", 41),
)


def growth(place=STACK[1], size=17 * MIB, pieces=17, source="torch", device=0):
    return Growth(place, STACK if place else (), source, device, 17, 17, size, pieces, ())


def text(*leaks, **more):
    return str(LeakReport(leaks, more.pop("steps", 20), 3, 1000, **more))


def test_a_leak_in_full():
    holder = Holder("train.losses", "", "list", 20, keeps_graphs=True)
    leak = Leak((growth(), growth(STACK[2], MIB)), holder, steps_left=4100, free_bytes=60 << 30)
    assert text(leak) == "\n".join(
        [
            "1 leak in 20 steps, the first 3 of them warm-up: 1.06 MiB a step",
            "",
            "1. model.py:12 Net.forward: 1.06 MiB a step",
            "   18.0 MiB in 34 pieces, 2 a step; it grew in 17 of the 17 steps after warm-up (GPU 0, torch)",
            "   at this rate the GPU's free 60.0 GiB last 4,100 steps",
            "   held by train.losses: a list of 20",
            "   tensors in list `train.losses` keep their autograd graphs: use .item() or .detach()",
            "     losses.append(loss)         # keeps the graph of every step",
            "     losses.append(loss.item())  # keeps a number",
            "   allocated at /me/model.py:12 Net.forward",
            "                /me/train.py:41 step",
            "   another place grows with it: train.py:41 step (60.2 KiB a step)",
            "",
            "what fills up only after 20 steps would look the same: more steps tell",
        ]
    )


def test_a_leak_without_a_stack_says_so():
    assert "1. a place without a Python stack: 1.00 MiB a step" in text(Leak((growth(None),)))


def test_a_leak_without_a_holder_says_so():
    assert "who holds it was not found among Python's objects" in text(Leak((growth(),)))


def test_a_graph_of_many_steps_is_told():
    holder = Holder("total", "a local of main() (train.py:7)", "Tensor", None, True, 61)
    shown = text(Leak((growth(),), holder))
    assert "held by total: a Tensor, a local of main() (train.py:7)" in shown
    assert "the autograd graph of `total` spans the steps: use .item() or .detach() in between" in shown
    assert ".append(" not in shown


def test_a_piece_made_anew_and_larger_is_told_as_such():
    assert "one piece replaced by a larger one each time, grown by 17.0 MiB so far" in text(Leak((growth(pieces=0),)))


def test_memory_of_the_driver_and_of_the_host_is_named():
    assert "(GPU 1, driver)" in text(Leak((growth(source="driver", device=1),)))
    assert "(host memory, torch)" in text(Leak((growth(device=-1),)))


def test_many_places_are_counted():
    leak = Leak(tuple(growth(Frame("f", "/me/a.py", line), (20 - line) * MIB) for line in range(1, 8)))
    assert "6 other places grow with it: a.py:2 f" in text(leak)
    assert "and 3 more" in text(leak)


def test_the_smallest_of_many_leaks_are_counted():
    assert "and 3 smaller, 3.00 MiB a step together" in text(*[Leak((growth(),))] * 8)


def test_an_interrupted_run_and_notes_are_told():
    shown = text(steps=11, interrupted=True, notes=("one", "two"))
    assert shown.endswith("interrupted: the program was stopped after 11 steps\nnote: one\nnote: two")


@pytest.mark.parametrize("place", [None, Frame("f" * 30, "/a/very/long/path" * 20 + "/file.py", 123)])
def test_lines_fit_a_terminal(place):
    stack = () if place is None else (place,)
    grown = Growth(place, stack, "torch", 0, 17, 17, MIB, 17, ())
    holder = Holder("module.trainer.statistics['of the losses']", "a local of main() (train.py:7)", "list", 20, True)
    shown = text(Leak((grown,), holder, steps_left=10**9, free_bytes=1 << 40))
    assert max(map(len, shown.splitlines())) <= 100


def test_the_operation_that_saved_the_memory_is_named():
    holder = Holder("train.losses", "", "list", 20, keeps_graphs=True, saved_by="ExpBackward0")
    shown = text(Leak((growth(),), holder))
    assert "held by train.losses: a list of 20; ExpBackward0 of an autograd graph saved it for backward" in shown


def test_a_list_of_exceptions_is_told_with_what_to_do():
    holder = Holder("train.errors", "", "list", 20, keeps_graphs=True, error="ValueError")
    shown = text(Leak((growth(),), holder))
    assert "the traceback of a ValueError keeps the variables of its functions: keep str(error)" in shown
    assert ".append(loss" not in shown
