# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.memory_events import START, STEP, events
from gpuscope.memory.history.growth import leaks_in

MIB = 1 << 20
FRAMES = {
    1: [("empty", "/env/lib/python3.12/site-packages/torch/a.py", 3), ("step", "/home/me/train.py", 12)],
    2: [("forward", "/home/me/model.py", 20), ("step", "/home/me/train.py", 10)],
    3: [("log", "/home/me/log.py", 7)],
}


class Program:
    """Steps of allocations: ``body(program, number)`` calls `take` and `give`."""

    def __init__(self, steps, body, lost=0):
        self.rows, self.lost, self._next = [], lost, 0x1000
        self.ends = [START]
        for number in range(steps):
            body(self, number)
            self.ends.append(START + STEP * len(self.rows))

    def take(self, size=MIB, stack=1, **more):
        self._next += 0x1_0000_0000
        self.rows.append(("alloc", self._next, size, {"stack": stack} | more))
        return self._next, size, more

    def give(self, piece):
        address, size, more = piece
        self.rows.append(("free", address, size, more))

    def leaks(self, **options):
        return leaks_in(events(*self.rows, frames=FRAMES, lost=self.lost), self.ends, **options)


def run(steps, body, **options):
    return Program(steps, body).leaks(**options)


def leaky(program, number):
    temporary = program.take(stack=2)
    program.take()
    program.give(temporary)


def test_a_piece_kept_each_step_is_found_with_its_line():
    (leak,) = run(20, leaky)
    assert str(leak.place) == "/home/me/train.py:12 step"


def test_how_much_it_grew_is_told():
    (leak,) = run(20, leaky)
    assert (leak.bytes, leak.allocations, leak.grew, leak.steps, leak.bytes_per_step) == (17 * MIB, 17, 17, 17, MIB)


class Batches:
    """Each step keeps a KiB, and drops the large piece of the step before, made by the same line."""

    def __init__(self):
        self.large = None
        self.kept = []

    def __call__(self, program, number):
        if self.large is not None:
            program.give(self.large)
        self.large = program.take((10 + 37 * number % 100) * MIB)
        self.kept.append(program.take(1024, stack=4)[0])


FRAMES[4] = [("loss", "/env/lib/python3.12/site-packages/torch/a.py", 5), *FRAMES[1][1:]]


@pytest.mark.parametrize("warmup", [None, 5])
def test_what_each_step_drops_of_the_one_before_is_no_growth(warmup):
    (leak,) = run(20, Batches(), warmup=warmup)
    assert (leak.bytes_per_step, leak.allocations) == (1024, leak.steps)


def test_what_the_warm_up_keeps_is_no_growth():
    batches = Batches()

    def body(program, number):
        batches(program, number)
        if number == 2:  # the last step of the warm-up
            program.take(100 * MIB)

    (leak,) = run(20, body)
    assert leak.bytes == 17 * 1024


def dropping(most, then):
    """Each step drops what the one before has made, between one piece and `most`, and goes on with `then`."""
    made = []

    def body(program, number):
        for piece in made:
            program.give(piece)
        made[:] = [program.take() for _ in range(1 + number * 7 % most)]
        then(program, number)

    return body


@pytest.mark.parametrize("most", [2, 3, 5])
def test_a_leak_is_found_beside_any_number_of_pieces_that_the_next_step_drops(most):
    (leak,) = run(20, dropping(most, lambda program, number: program.take(1024)))
    assert (leak.grew, leak.bytes) == (17, 17 * 1024)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_a_cache_that_fills_up_beside_pieces_that_the_next_step_drops_is_no_leak(most):
    assert not run(20, dropping(most, lambda program, number: number < 12 and program.take(1024)))


def test_what_lives_of_the_last_step_stands_not_for_the_leak():
    batches = Batches()
    (leak,) = run(20, batches)
    assert (leak.addresses, leak.stack[0].function) == (tuple(batches.kept[3:19]), "loss")


def test_a_leak_is_found_within_eight_steps():
    assert len(run(8, leaky)) == 1


def test_five_steps_are_the_fewest_that_tell():
    assert [len(run(steps, leaky)) for steps in (4, 5)] == [0, 1]


@pytest.mark.parametrize("length", range(1, 20))
def test_a_list_that_keeps_the_last_few_is_no_leak(length):
    kept = []

    def body(program, number):
        kept.append(program.take())
        if len(kept) > length:
            program.give(kept.pop(0))

    assert run(20, body) == ()


@pytest.mark.parametrize("size", range(1, 20))
def test_a_cache_that_fills_up_is_no_leak(size):
    assert run(20, lambda program, number: number < size and program.take()) == ()


def test_double_buffers_are_no_leak():
    buffers = [None, None]

    def body(program, number):
        if buffers[number % 2]:
            program.give(buffers[number % 2])
        buffers[number % 2] = program.take()

    assert run(20, body) == ()


def test_a_list_that_is_emptied_now_and_then_is_no_leak():
    kept = []

    def body(program, number):
        kept.append(program.take())
        if number % 7 == 6:
            while kept:
                program.give(kept.pop())

    assert run(20, body) == ()


def test_a_list_that_was_emptied_once_is_no_leak():
    kept = []

    def body(program, number):
        kept.append(program.take())
        if number == 8:
            while kept:
                program.give(kept.pop())

    assert run(20, body) == ()


def test_growth_in_the_last_steps_alone_is_not_yet_a_leak():
    assert run(20, lambda program, number: number > 13 and program.take()) == ()


def test_growth_in_odd_steps_now_and_then_is_no_leak():
    assert run(20, lambda program, number: number in {3, 4, 6, 9, 10, 13, 15, 19} and program.take()) == ()


@pytest.mark.parametrize("steps", [12, 20])
def test_more_pieces_each_step_that_replace_each_other_are_no_leak(steps):
    last = []

    def body(program, number):
        while last:
            program.give(last.pop())
        last.extend(program.take() for _ in range(1 + number * (number + 7) * (1 + number % 2)))

    assert run(steps, body) == ()


def replaced_by(sizes):
    """A program with one piece, of another size each step."""
    last = []

    def body(program, number):
        last.append(program.take(sizes[number] * MIB))
        if len(last) > 1:
            program.give(last.pop(0))

    return body


def test_a_piece_that_grows_by_leaps_is_no_leak():
    sizes = [*range(1, 12), 40, *range(41, 49)]
    assert run(20, replaced_by(sizes)) == ()


def test_a_piece_that_grows_needs_eight_steps_to_be_sure():
    assert [len(run(steps, replaced_by(range(1, 21)))) for steps in (7, 8)] == [0, 1]


def test_growth_once_is_no_leak():
    assert run(20, lambda program, number: number == 9 and program.take()) == ()


def test_pieces_of_changing_size_that_replace_each_other_are_no_leak():
    assert run(20, replaced_by([3, 5, 4, 9, 2, 6, 7, 3, 8, 5, 4, 6, 9, 10, 3, 12, 4, 5, 13, 14])) == ()


def test_a_piece_made_anew_and_larger_each_step_is_growth():
    (leak,) = run(20, replaced_by(range(1, 21)))
    assert (leak.allocations, leak.bytes) == (0, 17 * MIB)


def test_a_leak_in_every_fourth_step_is_found():
    (leak,) = run(24, lambda program, number: number % 4 == 3 and program.take())
    assert leak.grew == 6


def test_a_leak_that_skips_a_step_is_found():
    (leak,) = run(20, lambda program, number: number != 10 and program.take())
    assert leak.grew == 16


def test_a_leak_that_begins_late_is_found():
    assert len(run(20, lambda program, number: number > 8 and program.take())) == 1


def test_a_leak_beside_pieces_of_the_same_line_that_come_and_go_is_found():
    held = []

    def body(program, number):
        program.take()
        held.append(program.take())
        if len(held) > 2:
            program.give(held.pop(0))

    (leak,) = run(20, body)
    assert leak.allocations == 17


def test_what_is_given_back_after_the_last_step_is_no_leak():
    program = Program(10, lambda program, number: program.take())
    for _, address, size, more in list(program.rows):
        program.rows.append(("free", address, size, more))
    assert program.leaks() == ()


def test_the_warm_up_is_not_judged():
    first, rest = (run(20, leaky, warmup=warmup)[0] for warmup in (0, 10))
    assert (first.steps, rest.steps) == (20, 10)


def test_stacks_of_one_line_are_one_place():
    frames = {stack: [(f"f{stack}", "/x/site-packages/a.py", stack), ("step", "/t.py", 5)] for stack in range(1, 21)}
    program = Program(20, lambda program, number: program.take(stack=number + 1))
    (leak,) = leaks_in(events(*program.rows, frames=frames), program.ends)
    assert leak.place.line == 5


def test_places_are_told_apart():
    leaks = run(20, lambda program, number: (program.take(), program.take(2 * MIB, stack=3)))
    assert [leak.place.file for leak in leaks] == ["/home/me/log.py", "/home/me/train.py"]


def test_devices_are_told_apart():
    leaks = run(20, lambda program, number: (program.take(), program.take(2 * MIB, device=1)))
    assert [(leak.device, leak.allocations) for leak in leaks] == [(1, 17), (0, 17)]


def test_pieces_without_a_stack_are_found_by_size():
    leaks = run(20, lambda program, number: (program.take(512, stack=0), program.take(1024, stack=0)))
    assert [(leak.place, leak.bytes) for leak in leaks] == [(None, 17 * 1024), (None, 17 * 512)]


def test_steps_whose_events_are_lost_are_not_judged():
    program = Program(20, leaky, lost=100)
    program.rows = program.rows[15:]  # three rows a step
    ends = [end - STEP * 15 for end in program.ends]
    (leak,) = leaks_in(events(*program.rows, frames=FRAMES, lost=15), ends)
    assert (leak.steps, leak.allocations) == (12, 12)


def test_a_lookup_of_frames_that_fails_leaves_the_place_open():
    program = Program(10, leaky)

    def refuse(stack):
        raise KeyError(stack)

    found = events(*program.rows)
    object.__setattr__(found, "frames", refuse)
    (leak,) = leaks_in(found, program.ends)
    assert leak.place is None


def test_memory_taken_from_the_driver_counts():
    (leak,) = run(10, lambda program, number: program.take(source="driver"))
    assert leak.source == "driver"


def test_a_segment_of_a_framework_counts_once():
    def body(program, number):
        at, _, _ = program.take(20 * MIB, source="driver")
        program.rows.append(("alloc", at, MIB, {"stack": 1}))

    assert [leak.source for leak in run(10, body)] == ["torch"]


def test_a_segment_that_is_mapped_elsewhere_counts_once():
    def body(program, number):
        program.take(20 * MIB, source="driver", stack=1)
        program.take(MIB, reserved_bytes=(number + 1) * 20 * MIB)

    assert [leak.source for leak in run(10, body)] == ["torch"]


def test_a_librarys_own_memory_beside_a_framework_counts():
    def body(program, number):
        program.take(8 * MIB, source="driver", stack=3)
        program.give(program.take(MIB, reserved_bytes=64 * MIB))

    assert [leak.source for leak in run(10, body)] == ["driver"]


def test_releases_that_were_not_seen_are_no_leak():
    assert run(20, lambda program, number: program.take(allocated_bytes=5 * MIB)) == ()


def test_a_leak_is_found_though_something_large_is_given_back_meanwhile():
    program = Program(
        20, lambda program, number: program.take(allocated_bytes=(100 + number - 60 * (number > 15)) * MIB)
    )
    assert len(program.leaks()) == 1


def test_a_rare_leak_is_confirmed_by_the_allocators_total():
    program = Program(
        24, lambda program, number: number % 4 == 3 and program.take(allocated_bytes=(number // 4 + 1) * MIB)
    )
    assert len(program.leaks()) == 1


# What a step keeps and for how many steps; 0 is given back within the step.
KEPT = st.lists(
    st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 9), st.integers(1, 6), st.integers(1, 40)), max_size=8
)


class Clean:
    """A program that gives everything back: each kind of piece every so many steps, after so many."""

    def __init__(self, kept, caches):
        self.kept, self.caches, self.due = kept, caches, {}

    def __call__(self, program, number):
        for piece in self.due.pop(number, ()):
            program.give(piece)
        for stack, age, every, size in self.kept:
            if number % every == 0:
                piece = program.take(size * 512, stack=stack)
                if age:
                    self.due.setdefault(number + age, []).append(piece)
                else:
                    program.give(piece)
        for step in self.caches:
            if step == number:
                program.take(stack=3)


@settings(deadline=None)
@given(KEPT, st.sets(st.integers(0, 12), max_size=3), st.integers(24, 40))
def test_a_periodic_program_has_no_leak(kept, caches, steps):
    assert run(steps, Clean(kept, caches)) == ()


@settings(deadline=None)
@given(KEPT, st.integers(24, 40))
def test_a_planted_leak_is_found_in_a_periodic_program(kept, steps):
    clean = Clean(kept, ())

    def body(program, number):
        clean(program, number)
        program.take(stack=1)

    (leak,) = run(steps, body)
    assert leak.place.line == 12
