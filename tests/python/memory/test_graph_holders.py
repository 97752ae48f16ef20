# SPDX-License-Identifier: Apache-2.0
"""Memory that no name of the program leads to directly: autograd's operations have saved it, or a traceback has it."""

from __future__ import annotations

import gc
import sys
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

from gpuscope.frameworks import torch_autograd  # noqa: E402
from gpuscope.memory.history import references  # noqa: E402
from gpuscope.memory.history.growth import Growth  # noqa: E402
from gpuscope.memory.history.holders import find_holders  # noqa: E402

COUNT = 12
needs_saved = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "data"), reason="this torch does not show what was saved"
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(references, "LONGEST_SEARCH", 60.0)
    gc.collect()
    yield
    gc.collect()


def growth(addresses, source="torch"):
    return Growth(None, (), source, 0, COUNT, COUNT, 1, COUNT, tuple(addresses))


def holder(addresses):
    (found,), remarks = find_holders([growth(addresses)])
    assert remarks == ()
    return found


def address(tensor):
    return tensor.untyped_storage().data_ptr()


WEIGHT = torch.ones(64, requires_grad=True)


def result_of_exp():
    """A loss, and where the memory is that its graph has saved: no variable of the program is left of it."""
    hidden = (WEIGHT * 2).exp()
    return hidden.sum(), address(hidden)


@needs_saved
def test_what_an_operation_saved_is_followed_to_the_list_of_losses():
    losses, saved = zip(*[result_of_exp() for _ in range(COUNT)], strict=True)
    losses = list(losses)
    found = holder(saved)
    assert (found.name, found.kind, found.entries, found.saved_by) == ("losses", "list", COUNT, "ExpBackward0")
    assert found.advice == "tensors in list `losses` keep their autograd graphs: use .item() or .detach()"


@needs_saved
def test_two_lists_of_losses_are_told_apart():
    first, in_first = map(list, zip(*[result_of_exp() for _ in range(COUNT)], strict=True))
    second, in_second = map(list, zip(*[result_of_exp() for _ in range(COUNT)], strict=True))
    found, _ = find_holders([growth(in_first), growth(in_second)])
    assert [one.name for one in found] == ["first", "second"]
    assert len(first) == len(second)


@needs_saved
def test_what_was_changed_since_is_read_all_the_same():
    def changed():
        hidden = WEIGHT * 2
        squared = hidden * hidden
        hidden.add_(1)  # a backward would fail
        return squared.sum(), address(hidden)

    losses, saved = map(list, zip(*[changed() for _ in range(COUNT)], strict=True))
    assert holder(saved).name == "losses"
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses[0].backward()


@needs_saved
def test_hooks_on_saved_tensors_do_not_run_and_what_they_packed_is_found():
    unpacked, packed = [], []

    def pack(tensor):
        copy = tensor.detach().clone()
        packed.append(address(copy))
        return ("elsewhere", copy)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpacked.append):
        losses = [(WEIGHT * 2).exp().sum() for _ in range(COUNT)]
    found = holder(packed)
    assert (found.name, found.saved_by) == ("losses", "ExpBackward0")
    assert unpacked == []
    assert losses


@needs_saved
def test_memory_that_a_backward_has_freed_is_held_by_nobody():
    losses, saved = map(list, zip(*[result_of_exp() for _ in range(COUNT)], strict=True))
    for one in losses:
        one.backward()
    assert holder(saved) is None


def test_what_was_looked_at_dies_without_the_collector():
    losses, saved = map(list, zip(*[result_of_exp() for _ in range(COUNT)], strict=True))
    kept = [torch.ones(10) for _ in range(COUNT)]
    alive = [weakref.ref(one) for one in losses + kept]
    gc.disable()
    try:
        find_holders([growth(saved), growth([*map(address, kept)])])
        losses.clear()
        kept.clear()
        assert [one() for one in alive] == [None] * (2 * COUNT)
    finally:
        gc.enable()


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        ctx.scaled = x * 3
        Saving.at = address(result), address(ctx.scaled)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@needs_saved
def test_saved_tensors_of_a_function_of_the_program_are_followed():
    losses, saved = [], []
    for _ in range(COUNT):
        losses.append(Saving.apply(WEIGHT * 2).sum())
        saved.append(Saving.at[0])
    found = holder(saved)
    assert (found.name, found.saved_by) == ("losses", "SavingBackward")


def test_attributes_of_the_context_of_a_function_are_followed():
    losses, kept = [], []
    for _ in range(COUNT):
        losses.append(Saving.apply(WEIGHT * 2).sum())
        kept.append(Saving.at[1])
    found = holder(kept)
    assert (found.name, found.kind, found.saved_by) == ("losses", "list", "SavingBackward")
    assert found.keeps_graphs


@needs_saved
def test_a_sum_whose_graph_spans_the_steps_is_found_by_what_it_saved():
    total, saved = torch.zeros(()), []
    for _ in range(COUNT):
        one, at = result_of_exp()
        total = total + one
        saved.append(at)
    del one
    found = holder(saved)
    assert (found.name, found.operations, found.saved_by) == ("total", 1 + 4 * COUNT, "ExpBackward0")


@needs_saved
def test_a_list_of_operations_alone_keeps_their_graphs():
    operations, saved = [], []
    for _ in range(COUNT):
        one, at = result_of_exp()
        operations.append(one.grad_fn)
        saved.append(at)
    del one
    assert holder(saved).name == "operations"


@needs_saved
def test_graphs_larger_than_the_budget_are_not_followed_to_their_end_and_that_is_said(monkeypatch):
    monkeypatch.setattr(torch_autograd, "MOST_OPERATIONS", 5)
    losses, saved = map(list, zip(*[result_of_exp() for _ in range(COUNT)], strict=True))
    _, remarks = find_holders([growth(saved)])
    assert remarks == ("autograd's graphs were followed through 5 operations only",)
    assert losses


def test_a_search_that_takes_too_long_ends_and_that_is_said(monkeypatch):
    monkeypatch.setattr(references, "LONGEST_SEARCH", 0.0)
    kept = [torch.ones(10) for _ in range(COUNT)]
    _, remarks = find_holders([growth(map(address, kept))])
    assert remarks == ("the search for who holds the memory was ended after 0 s",)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.ReLU())


def test_an_attribute_of_a_nested_module_is_named_as_programs_write_it():
    model = Model()
    model.encoder[0][0].seen = [torch.ones(10) for _ in range(COUNT)]
    found = holder(map(address, model.encoder[0][0].seen))
    assert (found.name, found.kind, found.entries) == ("model.encoder[0][0].seen", "list", COUNT)


def test_closures_that_are_made_anew_each_time_are_put_down_to_their_list():
    callbacks, kept = [], []

    def remember():
        tensor = torch.ones(10)
        kept.append(address(tensor))
        callbacks.append(lambda: tensor)

    for _ in range(COUNT):
        remember()
    found = holder(kept)
    assert (found.name, found.kind, found.entries) == ("callbacks", "list", COUNT)


def fails(kept):
    batch = torch.ones(10)
    kept.append(address(batch))
    raise ValueError("bad batch")


def test_exceptions_that_are_kept_are_found_to_hold_the_variables_of_their_functions():
    errors, kept = [], []
    for _ in range(COUNT):
        try:
            fails(kept)
        except ValueError as error:
            errors.append(error)
    found = holder(kept)
    assert (found.name, found.kind, found.entries, found.error) == ("errors", "list", COUNT, "ValueError")
    assert found.advice == (
        "the traceback of a ValueError keeps the variables of its functions: keep str(error), or clear them "
        "with traceback.clear_frames(error.__traceback__)"
    )


def test_a_traceback_is_followed_however_deep_it_is():
    errors, kept = [], []

    def deeper(levels):
        return deeper(levels - 1) if levels else fails(kept)

    for _ in range(COUNT):
        try:
            deeper(100)
        except ValueError as error:
            errors.append(error)
    assert holder(kept).name == "errors"


def test_the_last_exception_of_a_prompt_is_named(monkeypatch, whole_heap):
    def run():
        batches = [torch.ones(10) for _ in range(COUNT)]
        kept.extend(map(address, batches))
        raise ValueError("bad batch")

    kept = []
    try:
        run()
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.setattr(sys, "last_exc", error, raising=False)
    found = holder(kept)
    assert found.name in {
        f"sys.{name}.__traceback__.tb_frame.f_locals['batches']" for name in ("last_value", "last_exc")
    }
    assert (found.kind, found.entries, found.error) == ("list", COUNT, "ValueError")


def test_the_variables_of_a_function_that_still_runs_are_no_tracebacks():
    errors, batches = [], [torch.ones(10) for _ in range(COUNT)]
    try:
        raise ValueError("caught here")
    except ValueError as error:
        errors.append(error)
    found = holder(map(address, batches))
    assert (found.name, found.error) == ("batches", "")


def test_a_version_of_torch_that_shows_no_saved_memory_is_survived(monkeypatch):
    monkeypatch.setattr(torch_autograd, "_shows_saved", lambda: False)
    losses, saved = map(list, zip(*[result_of_exp() for _ in range(COUNT)], strict=True))
    at = [*map(address, losses)]
    found, _ = find_holders([growth(saved), growth(at)])
    assert [(one.name, one.saved_by) for one in found] == [("losses", "")] * 2


class Doubled(torch.autograd.Function):
    """Has a tensor of Python's saved, which nothing else refers to."""

    @staticmethod
    def forward(ctx, x):
        doubled = x * 2
        ctx.save_for_backward(doubled)
        AT.append(address(doubled))
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


AT: list[int] = []


@pytest.mark.parametrize("shown", [pytest.param(True, marks=needs_saved), False])
def test_tensors_that_a_function_of_the_program_saved_are_its_graphs(monkeypatch, shown):
    if not shown:
        monkeypatch.setattr(torch_autograd, "_shows_saved", lambda: False)
    AT.clear()
    losses = [Doubled.apply(WEIGHT) for _ in range(COUNT)]
    found, _ = find_holders([growth(AT), growth(map(address, losses))])
    assert [(one.name, one.keeps_graphs) for one in found] == [("losses", True)] * 2


def test_classes_that_look_like_operations_are_left_alone():
    class Lookalike:
        @property
        def next_functions(self):
            raise RuntimeError("called")

    kept = [Lookalike(), types.SimpleNamespace(next_functions=())]
    assert not torch_autograd.is_operation(Lookalike)
    assert holder([1]) is None
    assert kept
