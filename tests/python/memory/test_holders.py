# SPDX-License-Identifier: Apache-2.0
"""Real tensors on the CPU stand for pieces of memory: the addresses of their storages are the pieces'."""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections import deque

import numpy as np
import pytest

from fakes.tensors import needs_autograd, tensors_of_torch, torch  # noqa: F401
from gpuscope.memory.history import holders, references
from gpuscope.memory.history.growth import Growth
from gpuscope.memory.history.holders import find_holders

KEPT = []
COUNT = 12


def growth(addresses, source="torch"):
    return Growth(None, (), source, 0, COUNT, COUNT, 1, COUNT, tuple(addresses))


def addresses(kept):
    return [one.untyped_storage().data_ptr() for one in kept]


def new(count=COUNT):
    return [torch.ones(10) for _ in range(count)]


def holder(at):
    (found,), _ = find_holders([growth(at)])
    return found


def named(at):
    found = holder(at)
    return found.name, found.kind, found.entries


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()
    yield
    KEPT.clear()


class Trainer:
    """Its attributes may not be asked for by code that is not its own."""

    registry = {}  # noqa: RUF012

    def __init__(self):
        self.history = []
        self.logs = {"losses": []}

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None

    def __len__(self):
        raise RuntimeError("measured")


class Slotted:
    __slots__ = ("kept", "other")


TRAINER, SLOTTED = Trainer(), Slotted()


def test_a_global_list_is_named_with_its_module(whole_heap):
    KEPT.extend(new())
    assert named(addresses(KEPT)) == (f"{__name__}.KEPT", "list", COUNT)


def test_a_local_variable_is_named_with_its_function():
    losses = new()
    found = holder(addresses(losses))
    assert found.name == "losses"
    assert found.where.startswith("a local of test_a_local_variable_is_named_with_its_function() (test_holders.py:")


def test_a_variable_of_a_caller_is_found():
    losses = new()

    def inner(at):
        return named(at)

    assert inner(addresses(losses))[0] == "losses"


def test_an_attribute_is_named_with_its_object(whole_heap):
    TRAINER.history += new()
    try:
        assert named(addresses(TRAINER.history)) == (f"{__name__}.TRAINER.history", "list", COUNT)
    finally:
        TRAINER.history.clear()


def test_a_key_of_a_dict_is_part_of_the_name(whole_heap):
    TRAINER.logs["losses"] += new()
    try:
        assert named(addresses(TRAINER.logs["losses"]))[0] == f"{__name__}.TRAINER.logs['losses']"
    finally:
        TRAINER.logs["losses"].clear()


def test_a_slot_is_named_as_an_attribute(whole_heap):
    SLOTTED.kept = deque(new())
    try:
        assert named(addresses(SLOTTED.kept)) == (f"{__name__}.SLOTTED.kept", "deque", COUNT)
    finally:
        SLOTTED.kept = None


def test_an_attribute_of_a_class_is_named_with_it(whole_heap):
    Trainer.registry.update(enumerate(new()))
    try:
        assert named(addresses(Trainer.registry.values())) == ("Trainer.registry", "dict", COUNT)
    finally:
        Trainer.registry.clear()


def test_a_default_argument_is_put_down_to_its_function():
    def remember(one, seen=[]):  # noqa: B006
        seen.append(one)

    for _ in range(COUNT):
        remember(torch.ones(10))
    found = holder(addresses(remember.__defaults__[0]))
    assert (found.name, found.where) == (remember.__qualname__, "in a closure or a default argument of that function")


def test_a_closure_is_put_down_to_its_function():
    def make():
        seen = []

        def remember():
            seen.append(torch.ones(10))
            return addresses(seen)

        return remember

    remember = make()
    for _ in range(COUNT):
        kept = remember()
    (found,), _ = find_holders([growth(kept)])
    assert found.name.endswith("make.<locals>.remember")


def test_a_function_cache_is_put_down_to_its_function():
    @functools.cache
    def cached(number):
        return torch.ones(10)

    kept = [cached(number).untyped_storage().data_ptr() for number in range(COUNT)]
    (found,), _ = find_holders([growth(kept)])
    assert found.where == "the lru_cache of that function"


def test_a_running_generator_is_named():
    def produce():
        mine = new()
        yield addresses(mine)
        yield mine

    producer = produce()
    (found,), _ = find_holders([growth(next(producer))])
    assert found.kind == "list"
    assert found.entries == COUNT


def test_what_grows_is_named_and_not_what_each_step_puts_into_it():
    rows = [{"step": number, "loss": one} for number, one in enumerate(new())]
    assert named(addresses([row["loss"] for row in rows])) == ("rows", "list", COUNT)


def test_views_stand_for_the_memory_they_share():
    kept = [torch.ones(10)[3:].view(7, 1) for _ in range(COUNT)]
    assert named(addresses(kept)) == ("kept", "list", COUNT)


@needs_autograd
def test_a_list_of_losses_with_graphs_is_told_with_what_to_do():
    weight = torch.ones(4, requires_grad=True)
    losses = [(weight * 2).sum() for _ in range(COUNT)]
    found = holder(addresses(losses))
    assert found.keeps_graphs
    assert found.advice == "tensors in list `losses` keep their autograd graphs: use .item() or .detach()"


@needs_autograd
def test_a_list_of_detached_losses_keeps_no_graphs():
    weight = torch.ones(4, requires_grad=True)
    losses = [(weight * 2).sum().detach() for _ in range(COUNT)]
    assert not holder(addresses(losses)).keeps_graphs


@needs_autograd
def test_memory_that_no_tensor_stands_for_is_put_down_to_the_graphs_that_are_kept():
    weight = torch.ones(4, requires_grad=True)
    losses = [(weight * 2).sum() for _ in range(COUNT)]
    found, _ = find_holders([growth([1, 2, 3]), growth(addresses(losses))])
    assert [one.name for one in found] == ["losses", "losses"]


@needs_autograd
def test_tensors_that_no_name_leads_to_are_not_put_down_to_graphs():
    weight = torch.ones(4, requires_grad=True)
    losses = [(weight * 2).sum() for _ in range(COUNT)]
    hidden = np.array([*(one.numpy() for one in new()), None], object)[:-1]  # neither it nor they are known to gc
    at = [one.__array_interface__["data"][0] for one in hidden]
    found, _ = find_holders([growth(at), growth(addresses(losses))])
    assert found[0] is None


@needs_autograd
def test_arrays_over_tensors_are_followed_to_a_dict_that_the_collector_passes_over():
    arrays = {number: one.numpy() for number, one in enumerate(new())}
    at = [array.__array_interface__["data"][0] for array in arrays.values()]
    assert named(at) == ("arrays", "dict", COUNT)


@needs_autograd
def test_arrays_over_tensors_are_followed_to_their_list():
    arrays = [one.numpy() for one in new()]
    views = [array[2:] for array in arrays]  # noqa: F841
    at = [array.__array_interface__["data"][0] for array in arrays]
    assert named(at)[1:] == ("list", COUNT)
    del arrays
    assert named(at) == ("views", "list", COUNT)


@needs_autograd
def test_places_beyond_those_that_are_searched_are_not_put_down_to_graphs():
    weight = torch.ones(4, requires_grad=True)
    losses = [(weight * 2).sum() for _ in range(COUNT)]
    searched = [new() for _ in range(7)]
    more = new()
    places = [losses, *searched, more, losses]
    found, remarks = find_holders([growth(addresses(kept)) for kept in places])
    assert [one and one.name for one in found] == ["losses", *["searched[...]"] * 7, None, "losses"]
    assert remarks == ("who holds the memory was looked up for the 8 places with most of it",)


def test_lists_that_one_line_fills_by_turns_are_all_named():
    for count in (2, 3):
        kept = new(COUNT * count)
        lists = [kept[at::count] for at in range(count)]
        first, second, *third = lists
        at = addresses(kept)
        del kept, lists
        found = holder(at)
        assert sorted((found.name, *found.others)) == ["first", "second", "third"][:count]
        assert f", and others: {', '.join(found.others)}" in str(found)
        assert len(first) == len(second) == COUNT
        assert len(third) == count - 2


@needs_autograd
def test_a_sum_of_losses_whose_graph_spans_the_steps_is_found():
    weight = torch.ones(4, requires_grad=True)
    total = torch.zeros(())
    for _ in range(COUNT):
        total = total + (weight * 2).sum()
    (found,), _ = find_holders([growth([1, 2, 3])])
    assert (found.name, found.operations) == ("total", 1 + 3 * COUNT)
    assert found.advice.startswith("the autograd graph of `total` spans the steps")


@needs_autograd
def test_the_graph_of_one_step_is_not_blamed():
    layers = [torch.ones(4, requires_grad=True) for _ in range(50)]
    loss = sum((layer * 2).sum() for layer in layers)
    found, _ = find_holders([growth([1, 2, 3])])
    assert loss.grad_fn is not None
    assert found == (None,)


@needs_autograd
def test_the_drivers_memory_is_not_put_down_to_graphs():
    weight = torch.ones(4, requires_grad=True)
    losses = [(weight * 2).sum() for _ in range(COUNT)]
    found, _ = find_holders([growth([1], source="driver"), growth(addresses(losses))])
    assert found[0] is None


def test_tensors_that_die_are_not_kept_alive_by_having_been_found():
    losses = new()
    seen = [weakref.ref(one) for one in losses]
    holder(addresses(losses))
    losses.clear()
    assert [one() for one in seen] == [None] * COUNT


def test_a_variable_that_is_rebound_is_not_kept_alive_by_having_been_read():
    big = torch.ones(10)
    seen, losses = weakref.ref(big), new()
    holder(addresses(losses))
    del big
    assert seen() is None


def test_a_programs_own_copy_of_its_variables_stays_whole():
    mine = locals()
    losses = new()
    holder(addresses(losses))
    assert "losses" in locals()
    assert mine is not None


@needs_autograd
def test_tensors_of_the_programs_own_class_are_read_without_its_code():
    class Guarded(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, kinds, args=(), kwargs=None):
            raise RuntimeError("called")

    kept = [torch.ones(10).as_subclass(Guarded) for _ in range(COUNT)]
    with torch._C.DisableTorchFunctionSubclass():
        at = addresses(kept)
    (found,), _ = find_holders([growth(at)])
    assert found.name == "kept"


@needs_autograd
def test_sparse_tensors_are_passed_over():
    sparse = torch.ones(3, 3).to_sparse()
    kept = new()
    assert named(addresses(kept))[0] == "kept"
    assert sparse.is_sparse


@needs_autograd
def test_stand_ins_of_the_compiler_are_passed_over():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        stand_in = torch.empty(10, requires_grad=True) * 2
    found = holders.Tensors({1}, (), references.Names()).roots
    assert not any(one is stand_in for one in found)


def test_arrays_of_cupy_are_found(monkeypatch):
    class Data:
        def __init__(self, ptr):
            self.ptr, self.mem = ptr, types.SimpleNamespace(ptr=ptr - 512)

    class Array:
        def __init__(self, ptr):
            self._data = Data(ptr)

        data = property(lambda self: self._data)

    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=Array))
    arrays = [Array(0x10000 + 1024 * number) for number in range(COUNT)]
    (found,), _ = find_holders([growth([0x10000 - 512 + 1024 * number for number in range(COUNT)], "other")])
    assert (found.name, len(arrays)) == ("arrays", COUNT)


class Equal(type):
    """Its classes are equal to all, and cannot be hashed."""

    def __eq__(cls, other):
        return True


def test_classes_that_cannot_be_hashed_are_passed_through():
    class Odd(metaclass=Equal):
        pass

    odd = Odd()
    odd.kept = new()
    assert named(addresses(odd.kept)) == ("odd.kept", "list", COUNT)


def test_no_holder_is_made_up():
    assert find_holders([growth([1, 2, 3])]) == ((None,), ())


def test_too_many_objects_are_not_all_looked_at_and_that_is_said(monkeypatch):
    monkeypatch.setattr(holders, "MOST_OBJECTS", 10)
    _, remarks = find_holders([growth([1, 2, 3])])
    assert remarks == ("there were too many Python objects to look at them all for who holds the memory",)


def test_modules_whose_attributes_cannot_be_read_are_survived(monkeypatch):
    class Module(types.ModuleType):
        def __getattribute__(self, name):
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "guarded", Module("guarded"))
    kept = new()
    assert named(addresses(kept))[0] == "kept"


def test_a_long_key_is_not_spelled_out():
    assert references.step_text({"k" * 100: KEPT}, KEPT) == "[...]"


def test_nothing_is_searched_without_tensors():
    assert references.References(references.Names(), set(), {}).chains_to([]) == {}
