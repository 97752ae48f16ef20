# SPDX-License-Identifier: Apache-2.0
"""Categories of memory: by hand-made histories, and on real training steps against torch.profiler's own."""

from __future__ import annotations

import dataclasses
import json
import warnings

import numpy as np
import pytest

from fakes.memory_events import HOST, events
from gpuscope.memory.history.categories import (
    CATEGORIES,
    GRADIENT,
    PARAMETER,
    Phase,
    backward_without_stack,
    categorize,
    category_text,
    event_phases,
    known_at_end,
    phase_of,
)
from gpuscope.memory.history.events import AtEnd, Frame, Storage

TORCH = "/usr/lib/python3/site-packages/torch"
SCRIPT = ("main", "/home/me/train.py", 3)
MODULE = ("Module._call_impl", f"{TORCH}/nn/modules/module.py", 1700)
STEP = ("Adam.step", f"{TORCH}/optim/adam.py", 200)
MOVE = ("Module._apply", f"{TORCH}/nn/modules/module.py", 900)
START = ("Tensor.backward", f"{TORCH}/_tensor.py", 600)
STACKS = {1: (SCRIPT,), 2: (MODULE, SCRIPT), 3: (STEP, SCRIPT), 4: (MOVE, SCRIPT), 5: (START, SCRIPT)}
OUT, MODEL, OPTIM, SET, BACK = ({"stack": stack} for stack in range(1, 6))
ENGINE = {"stack": 0, "thread": 2}  # autograd's own thread runs no Python


def names(*rows, at_end=AtEnd()):  # noqa: B008
    made = dataclasses.replace(events(*rows, frames=STACKS), at_end=lambda: at_end)
    return [CATEGORIES[category] for category in categorize(made)]


def training_round(*, batch=0x10, activation=0x20, gradient=0x30, state=0x40):
    """One step: a batch, an activation freed by autograd's thread, a gradient freed by the next zero_grad."""
    return (
        ("alloc", batch, 4, OUT),
        ("alloc", activation, 8, MODEL),
        ("alloc", gradient, 16, ENGINE),
        ("free", activation, 8, ENGINE),
        ("alloc", state, 32, OPTIM),
        ("free", gradient, 16, OPTIM),
        ("free", batch, 4, OUT),
    )


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        ((), Phase.UNKNOWN),
        ((SCRIPT,), Phase.OUTSIDE),
        ((("relu", f"{TORCH}/nn/functional.py", 1), MODULE, SCRIPT), Phase.FORWARD),
        ((START, SCRIPT), Phase.BACKWARD),
        ((("backward", f"{TORCH}/autograd/__init__.py", 1), START, SCRIPT), Phase.BACKWARD),
        ((("grad", f"{TORCH}/autograd/__init__.py", 1), SCRIPT), Phase.BACKWARD),
        ((STEP, SCRIPT), Phase.OPTIMIZER),
        ((("Optimizer.zero_grad", f"{TORCH}/optim/optimizer.py", 1), SCRIPT), Phase.OPTIMIZER),
        ((("wrapper", f"{TORCH}/optim/optimizer.py", 1), SCRIPT), Phase.OPTIMIZER),
        ((MOVE, SCRIPT), Phase.SETUP),
        ((("Linear.__init__", f"{TORCH}/nn/modules/linear.py", 1), SCRIPT), Phase.SETUP),
        ((("step", "/home/me/optim/mine.py", 1),), Phase.OUTSIDE),
        ((MODULE, START, SCRIPT), Phase.FORWARD),  # computed again for a backward
    ],
)
def test_a_stack_tells_the_phase(stack, phase):
    assert phase_of([Frame(*frame) for frame in stack]) == phase


def test_a_thread_without_any_python_is_autograds():
    assert event_phases(events(*training_round(), frames=STACKS)).tolist() == [
        *(Phase.OUTSIDE, Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OPTIMIZER, Phase.OUTSIDE)
    ]


def test_a_release_without_a_stack_belongs_to_what_its_thread_does_around_it():
    rows = [("alloc", 1, 4, MODEL), ("alloc", 2, 4, ENGINE), ("free", 1, 4), ("alloc", 3, 4, MODEL), ("free", 3, 4)]
    phases = event_phases(events(*rows, frames=STACKS)).tolist()
    assert phases == [Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.FORWARD, Phase.OUTSIDE]


def test_without_stacks_nothing_is_known():
    assert names(("alloc", 1, 4), ("free", 1, 4)) == ["UNKNOWN"]


def test_a_step_has_input_activation_gradient_and_state():
    assert names(*training_round()) == ["INPUT", "ACTIVATION", "GRADIENT", "OPTIMIZER_STATE"]


@pytest.mark.parametrize(
    ("where", "category"),
    [(OUT, "TEMPORARY"), (MODEL, "TEMPORARY"), (OPTIM, "TEMPORARY"), (SET, "TEMPORARY"), (BACK, "AUTOGRAD_DETAIL")],
)
def test_what_lives_within_one_phase_is_passing(where, category):
    assert names(("alloc", 1, 4, where), ("free", 1, 4, where)) == [category]


def test_an_activation_may_outlive_its_backward():
    assert names(("alloc", 1, 4, MODEL), ("alloc", 2, 4, BACK), ("free", 1, 4, OUT))[0] == "ACTIVATION"


def test_a_loss_outside_of_modules_is_an_activation():
    assert names(*training_round()[:2], ("alloc", 3, 4, OUT), ("alloc", 4, 4, BACK), ("free", 3, 4, OUT))[2] == (
        "ACTIVATION"
    )


def test_a_batch_that_only_the_graph_holds_is_an_input():
    assert (
        names(("alloc", 1, 4, OUT), ("alloc", 2, 4, MODEL), ("alloc", 3, 4, BACK), ("free", 1, 4, BACK))[0] == "INPUT"
    )


def test_what_is_computed_between_two_modules_is_an_activation():
    rows = (("alloc", 1, 4, MODEL), ("alloc", 2, 4, OUT), ("alloc", 3, 4, MODEL), ("alloc", 4, 4, BACK))
    assert names(*rows, ("free", 2, 4, BACK))[1] == "ACTIVATION"


def test_a_model_without_modules_has_activations():
    assert names(("alloc", 1, 4, OUT), ("alloc", 2, 4, BACK), ("free", 1, 4, BACK))[0] == "ACTIVATION"


def test_what_outlives_many_steps_is_no_input():
    rounds = [row for step in range(3) for row in training_round(state=0x40 + step)]
    assert names(("alloc", 1, 4, OUT), *rounds)[0] == "UNKNOWN"


def test_a_module_that_was_moved_has_parameters():
    assert names(("alloc", 1, 4, SET), *training_round())[0] == "PARAMETER"


def test_what_lives_at_the_end_is_known_by_its_address():
    parameter = Storage(PARAMETER, 4, 0)
    at_end = AtEnd({1: parameter, 2: parameter})
    found = names(("alloc", 1, 4, OUT), ("alloc", 2, 4, OUT), ("free", 2, 4, OUT), at_end=at_end)
    assert found == ["PARAMETER", "TEMPORARY"]


def kept_by_a_step(at_end):
    """Of what a forward takes first, and of the last of a backward; both live at the end."""
    first, last = ("alloc", 1, 4, MODEL), ("alloc", 2, 4, ENGINE)
    found = names(first, ("alloc", 3, 4, MODEL), ("alloc", 4, 4, ENGINE), ("free", 3, 4, ENGINE), last, at_end=at_end)
    return found[0], found[-1]


def test_what_no_tensor_has_after_a_backward_is_a_workspace():
    assert kept_by_a_step(AtEnd({})) == ("WORKSPACE", "WORKSPACE")


def test_what_a_tensor_has_after_a_backward_is_none():
    assert kept_by_a_step(AtEnd({1: Storage(None, 4, 0), 2: Storage(GRADIENT, 4, 0)})) == ("ACTIVATION", "GRADIENT")


def test_workspaces_are_not_known_without_the_tensors():
    assert kept_by_a_step(AtEnd()) == ("ACTIVATION", "GRADIENT")


def test_what_autograd_keeps_for_a_backward_is_no_workspace():
    assert names(("alloc", 1, 4, MODEL), at_end=AtEnd({})) == ["ACTIVATION"]


def test_the_pools_of_graphs_are_known_by_their_addresses():
    at_end = AtEnd(graph_pools=[(0x100, 0x200)])
    found = names(("alloc", 0x100, 4, OUT), ("alloc", 0x200, 4, OUT), at_end=at_end)
    assert found[0] == "GRAPH_POOL"
    assert found[1] != "GRAPH_POOL"


def test_memory_of_other_libraries_has_no_category():
    assert names(("alloc", 1, 4, {**MODEL, "source": "cupy"})) == ["UNKNOWN"]


def test_what_a_library_takes_from_the_driver_is_the_libraries():
    rows = (("alloc", 0x1000, 64, {**MODEL, "source": "driver"}), ("alloc", 0x9000, 4, MODEL))
    assert names(*rows) == ["LIBRARY", "ACTIVATION"]


def test_a_frameworks_segment_is_not_the_libraries():
    rows = (("alloc", 0x1000, 64, {**MODEL, "source": "driver"}), ("alloc", 0x1000, 4, MODEL))
    assert names(*rows) == ["UNKNOWN", "ACTIVATION"]


def test_categories_have_names_for_people():
    assert [category_text(name) for name in ("OPTIMIZER_STATE", "LIBRARY")] == ["optimizer state", "libraries"]


def test_a_backward_has_no_stack_on_autograds_thread():
    made = events(("alloc", 1, 4, MODEL), ("alloc", 2, 4, ENGINE), ("alloc", 3, 4, BACK), frames=STACKS)
    assert backward_without_stack(made).tolist() == [False, True, False]


def test_a_piece_without_a_stack_where_no_other_thread_has_one_is_no_backward():
    made = events(("alloc", 1, 4, MODEL), ("alloc", 2, 4, {"stack": 0}), frames=STACKS)
    assert not backward_without_stack(made).any()


def test_every_stack_is_looked_at_once():
    looked = []

    def frames(number):
        looked.append(number)
        return tuple(Frame(*frame) for frame in STACKS[number])

    made = events(*[("alloc", row, 4, MODEL) for row in range(50)], frames=STACKS)
    object.__setattr__(made, "frames", frames)
    assert len(categorize(made)) == 50
    assert looked == [2]


@pytest.fixture(scope="module")
def training():
    """A model with its optimizer and a function that trains it; torch's own categories are those of the same steps."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(256, 512)
            self.norm = torch.nn.LayerNorm(512)
            self.last = torch.nn.Linear(512, 256)

        def forward(self, batch):
            return self.last(torch.nn.functional.gelu(self.norm(self.first(batch)))).softmax(-1)

    def make(optimizer):
        model = Net()
        optimizer = optimizer(model.parameters(), lr=0.01)

        def train():
            for _ in range(3):
                batch, target = torch.randn(512, 256), torch.randn(512, 256)
                loss = torch.nn.functional.mse_loss(model(batch), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        return train

    return make


def at_peak(made, categories):
    """Bytes by category where most is in use."""
    lifetimes = made.lifetimes()
    row = int(np.cumsum(made.bytes).argmax())
    there = (lifetimes.born <= row) & (lifetimes.alive | (lifetimes.died > row))
    sizes = np.bincount(categories[there], weights=lifetimes.bytes[there], minlength=len(CATEGORIES))
    return dict(zip(CATEGORIES, sizes.astype(int).tolist(), strict=True))


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_the_peak_of_a_training_agrees_with_torchs_own_categories(training, tmp_path, optimizer):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.profiler.profile, "export_memory_timeline"):
        pytest.skip("this torch has no memory timeline any more")
    from fakes.torch_memory import record

    kind = getattr(torch.optim, optimizer)
    made = record(training(kind))
    ours = at_peak(made, categorize(made))
    train = training(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated in newer versions
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, with_stack=True, record_shapes=True
        ) as profiler:
            train()
        profiler.export_memory_timeline(str(tmp_path / "theirs.json"), device="cpu")
    sizes = np.array(json.loads((tmp_path / "theirs.json").read_text())[1])
    theirs = dict(zip(CATEGORIES, sizes[sizes.sum(axis=1).argmax(), 1:].tolist(), strict=False))

    # The batch and target, what waits for backward and the optimizer's state are told by both alike; the loss, of
    # 4 bytes, lives in between. The parameters are older than the recording.
    for category in ("INPUT", "ACTIVATION", "OPTIMIZER_STATE", "GRADIENT", "TEMPORARY"):
        assert abs(ours[category] - theirs[category]) <= 64, category
    # torch says nothing of workspaces inside of backward's kernels, which no tensor names.
    assert abs(ours["AUTOGRAD_DETAIL"] - theirs["AUTOGRAD_DETAIL"] - theirs["UNKNOWN"]) <= 64
    assert ours["UNKNOWN"] == 0


def test_live_tensors_are_found_with_what_they_are_for():
    torch = pytest.importorskip("torch")
    model = torch.nn.BatchNorm1d(8)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    found = known_at_end().tensors

    def category(tensor):
        return CATEGORIES[found[tensor.untyped_storage().data_ptr()].category]

    assert category(model.weight) == category(model.running_mean) == "PARAMETER"
    assert category(model.weight.grad) == "GRADIENT"
    assert category(optimizer.state[model.weight]["exp_avg"]) == "OPTIMIZER_STATE"
    assert found[model.weight.untyped_storage().data_ptr()][1:] == (32, HOST)


def test_any_other_tensor_that_lives_is_found_without_a_category():
    torch = pytest.importorskip("torch")
    other = torch.randn(4, 8)
    assert known_at_end().tensors[other.untyped_storage().data_ptr()] == Storage(None, 128, HOST)


def test_without_torch_nothing_is_known(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    assert known_at_end() == AtEnd()
