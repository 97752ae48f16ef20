# SPDX-License-Identifier: Apache-2.0
"""The largest batch of a torch model, and that the model is afterwards as it was."""

from __future__ import annotations

import copy
import re

import pytest

from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.memory import host
from gpuscope.memory.limits import batch_size
from gpuscope.memory.limits.batch_size import find_max_batch_size as find

torch = pytest.importorskip("torch")
nn = torch.nn
LARGEST = 21


def find_max_batch_size(*args, device="cpu", **more):
    return find(*args, device=device, **more)


class Capped(nn.Module):
    """Runs out of memory above LARGEST samples, and notes how it was called."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.calls = []
        self.gradients = []

    def forward(self, x, scale=1.0):
        self.gradients.append(self.linear.weight.grad)
        self.calls.append((len(x), self.training, torch.is_grad_enabled(), x.dtype))
        out = self.drop(self.norm(self.linear(x.to(self.linear.weight.dtype))))
        if len(x) > LARGEST:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return {"logits": out * scale, "hidden": x}


def state_of(model):
    return {
        "values": {name: value.tolist() for name, value in model.state_dict().items()},
        "gradients": [None if each.grad is None else each.grad.tolist() for each in model.parameters()],
        "modes": [each.training for each in model.modules()],
        "random": torch.get_rng_state().tolist(),
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Nothing here has cycles, and among torch's objects a collection takes longer than all else; so do its threads."""
    monkeypatch.setattr(batch_size.gc, "collect", lambda: 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = Capped()
    model.drop.eval()  # a mode of its own
    return model


def test_a_forward_runs_in_evaluation_mode_without_gradients(model):
    assert find_max_batch_size(model, (6,)) == LARGEST
    assert {call[1:] for call in model.calls} == {(False, False, torch.float32)}


def test_training_runs_with_gradients(model):
    found = find_max_batch_size(model, (6,), training=True)
    assert found == LARGEST
    assert found.training
    assert {call[1:3] for call in model.calls} == {(True, True)}


def test_each_training_step_begins_without_gradients(model):
    find_max_batch_size(model, (6,), training=True)
    assert set(model.gradients) == {None}


def test_training_has_gradients_within_no_grad_too(model):
    with torch.no_grad():
        assert find_max_batch_size(model, (6,), training=True) == LARGEST


OPTIMIZERS = {
    "none": lambda model: None,
    "estimate": lambda model: True,
    "adam": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_model_is_as_before(model, optimizer):
    before = state_of(model)
    find_max_batch_size(model, (6,), training=True, optimizer=optimizer(model))
    assert state_of(model) == before


def test_gradients_that_were_there_keep_their_values_and_objects(model):
    model.train()
    model(torch.randn(4, 6))["logits"].sum().backward()
    gradients = [each.grad for each in model.parameters()]
    before = state_of(model)
    find_max_batch_size(model, (6,), training=True)
    assert state_of(model) == before
    assert all(each.grad is kept for each, kept in zip(model.parameters(), gradients, strict=True))


def test_a_used_optimizer_has_its_state_back(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()
    model(torch.randn(4, 6))["logits"].sum().backward()
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    find_max_batch_size(model, (6,), training=True, optimizer=optimizer)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for number, state in before["state"].items():
        assert all(torch.equal(after["state"][number][name], value) for name, value in state.items())


def test_a_fresh_optimizer_is_fresh_again(model):
    optimizer = torch.optim.Adam(model.parameters())
    find_max_batch_size(model, (6,), training=True, optimizer=optimizer)
    assert optimizer.state_dict()["state"] == {}


class Masked(nn.Module):
    """Makes its mask on demand."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", None)

    def forward(self, x):
        self.mask = torch.ones(len(x))
        return x


def test_a_buffer_that_was_not_there_is_taken_away_again():
    model = Masked()
    find_max_batch_size(model, (6,), limit=16)
    assert model.mask is None


def test_the_model_is_as_before_when_it_raises(model):
    before = state_of(model)

    def loss(output):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        find_max_batch_size(model, (6,), training=True, loss=loss, optimizer=torch.optim.Adam(model.parameters()))
    assert state_of(model) == before


def test_the_optimizer_steps_for_real(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    optimizer.register_step_post_hook(lambda *args: seen.append(model.linear.weight.detach().clone()))
    find_max_batch_size(model, (6,), training=True, optimizer=optimizer)
    assert seen
    assert not torch.equal(seen[-1], model.linear.weight)


def test_inputs_can_be_made(model):
    assert find_max_batch_size(model, make_input=lambda n: (torch.zeros(n, 6, dtype=torch.int64), 2.0)) == LARGEST
    assert model.calls[-1][3] == torch.int64
    assert find_max_batch_size(model, make_input=lambda n: {"x": torch.zeros(n, 6), "scale": 2.0}) == LARGEST


def test_inputs_have_the_type_that_is_asked_for(model):
    find_max_batch_size(model, (6,), dtype=torch.int32)
    assert model.calls[-1][3] == torch.int32


def test_the_loss_is_given_output_and_target(model):
    found = find_max_batch_size(
        model,
        (6,),
        training=True,
        make_target=lambda n: torch.zeros(n, dtype=torch.int64),
        loss=lambda output, target: nn.functional.cross_entropy(output["logits"], target),
    )
    assert found == LARGEST


def test_inputs_have_the_models_type(model):
    find_max_batch_size(model.double(), (6,))
    assert model.calls[-1][3] == torch.float64


@pytest.mark.parametrize("model", [nn.Linear(6, 4), nn.ReLU()], ids=["with parameters", "without"])
def test_without_a_gpu_a_model_is_refused(model, monkeypatch):
    monkeypatch.setattr(batch_size, "why_no_gpu", lambda: "no driver")
    with pytest.raises(
        NotAvailable, match=r"^find_max_batch_size is not available: no driver; device=\"cpu\" searches"
    ):
        find(model, (6,))


def test_a_model_on_the_cpu_beside_a_gpu_is_refused(model, monkeypatch):
    monkeypatch.setattr(batch_size, "why_no_gpu", lambda: "")
    with pytest.raises(InvalidArgument, match=r"^device is None and fn_or_model is on the CPU; accepted are device="):
        find(model, (6,))


def test_a_model_on_the_cpu_is_not_moved_where_it_is_refused(model, monkeypatch):
    monkeypatch.setattr(batch_size, "why_no_gpu", lambda: "no driver")
    with pytest.raises(NotAvailable):
        find(model, (6,), device="cuda")
    assert not model.calls


def test_a_model_without_parameters_is_tried_on_the_device_that_is_named():
    assert find_max_batch_size(nn.ReLU(), (6,), limit=16) == 16


def test_a_model_without_parameters_is_tried_on_the_current_gpu(monkeypatch):
    monkeypatch.setattr(batch_size, "why_no_gpu", lambda: "")
    assert batch_size._place(nn.ReLU(), None) == torch.device("cuda")


def test_copies_that_the_host_cannot_hold_are_refused(model, monkeypatch):
    monkeypatch.setattr(host, "available_memory", lambda: (10, 10))
    with pytest.raises(NotAvailable, match=r"copies of its state.*take .* and the host has 10 B; optimizer=True"):
        find_max_batch_size(model, (6,), training=True, optimizer=torch.optim.Adam(model.parameters()))


def test_an_output_without_gradients_needs_a_loss():
    with pytest.raises(InvalidArgument, match=r"^loss is missing; the model's output has no tensor with gradients"):
        find_max_batch_size(nn.Flatten(), (6,), training=True)


BAD = {
    "input_shape is missing; a model takes one of input_shape and make_input": {},
    "input_shape is given together with make_input; a model takes one of input_shape and make_input": {
        "input_shape": (3,),
        "make_input": len,
    },
    "input_shape is (0,); accepted are a sample's sizes, as (3, 224, 224)": {"input_shape": (0,)},
    "input_shape is 3; accepted are a sample's sizes, as (3, 224, 224)": {"input_shape": 3},
    "loss is given without training=True; a forward alone has no use for it": {"input_shape": (6,), "loss": len},
    "make_target is given without loss; accepted with it is a loss(output, target)": {
        "input_shape": (6,),
        "training": True,
        "make_target": len,
    },
    "dtype is 7; accepted are torch's, as torch.float16, and None": {"input_shape": (6,), "dtype": 7},
    "optimizer is 'adam'; accepted are torch's optimizers, True and None": {
        "input_shape": (6,),
        "training": True,
        "optimizer": "adam",
    },
    "loss is 3; accepted is a function": {"input_shape": (6,), "training": True, "loss": 3},
    "make_input is 3; accepted is a function": {"make_input": 3},
}


@pytest.mark.parametrize(("sentence", "given"), BAD.items(), ids=BAD)
def test_bad_input_gets_one_sentence(model, sentence, given):
    with pytest.raises(InvalidArgument, match=f"^{re.escape(sentence)}$"):
        find_max_batch_size(model, **given)


def test_parameters_without_a_shape_are_refused():
    with pytest.raises(InvalidArgument, match=r"^fn_or_model has parameters without a shape yet"):
        find_max_batch_size(nn.LazyLinear(3), (6,))
