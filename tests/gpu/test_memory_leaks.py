# SPDX-License-Identifier: Apache-2.0
"""Leaks that were planted in training steps, and training steps that have none."""

from __future__ import annotations

import pytest

from gpuscope.frameworks import torch_autograd
from gpuscope.memory.history.fragments import fragmentation
from gpuscope.memory.history.leaks import find_leaks
from gpuscope.memory.history.peak import peak_memory

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

from fakes.leaking import PLANTS  # noqa: E402
from gpuscope.memory.history import history  # noqa: E402

MIB = 1 << 20


class Block(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(channels),
            torch.nn.ReLU(),
            torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.layers(x))


class Training:
    """A small residual network with momentum; what its steps leave behind is kept in `kept`."""

    def __init__(self):
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, padding=1), Block(32), Block(32), torch.nn.Flatten(), torch.nn.LazyLinear(10)
        ).cuda()
        self.images = torch.randn(16, 3, 32, 32, device="cuda")
        self.labels = torch.randint(0, 10, (16,), device="cuda")
        self.model(self.images)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.kept, self.steps = [], 0

    def loss(self):
        return torch.nn.functional.cross_entropy(self.model(self.images), self.labels)

    def clean(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps % 5 == 0:
            with torch.no_grad():
                self.model(torch.randn(64, 3, 32, 32, device="cuda")).argmax(1)
        return loss.item()

    def leaky(self):
        self.clean()
        self.kept.append(torch.empty(MIB, dtype=torch.uint8, device="cuda"))

    def keeps_graphs(self):
        self.kept.append(self.loss())

    def sums_graphs(self):
        self.total = getattr(self, "total", 0) + self.loss()


LEAKING_LINE = Training.leaky.__code__.co_firstlineno + 2


@pytest.fixture
def training():
    made = Training()
    yield made
    made.kept.clear()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("steps", [8, 20])
def test_a_planted_leak_is_found_with_its_line_and_holder(training, steps):
    (leak,) = find_leaks(training.leaky, steps=steps)
    assert (leak.place.file, leak.place.line) == (__file__, LEAKING_LINE)
    assert leak.bytes_per_step == MIB
    assert leak.holder.name == "training.kept"
    assert leak.steps_left > 100


def test_a_planted_leak_is_found_in_a_loop(training):
    with find_leaks() as leaks:
        for _ in range(20):
            training.leaky()
            leaks.step()
    (leak,) = leaks.report()
    assert leak.place.line == LEAKING_LINE


def test_losses_that_keep_their_graphs_are_found_and_explained(training):
    report = find_leaks(training.keeps_graphs)
    leak = report.leaks[0]
    assert leak.holder.name == "training.kept", str(report)
    assert leak.holder.keeps_graphs
    assert ".item() or .detach()" in str(report)
    assert len(leak.growths) > 1


def test_a_sum_that_keeps_the_graphs_is_found(training):
    leak = find_leaks(training.sums_graphs).leaks[0]
    assert leak.holder.name == "training.total"
    assert leak.holder.operations > 20


@pytest.mark.parametrize("plant", PLANTS)
def test_memory_is_followed_through_graphs_closures_modules_and_tracebacks(plant):
    if plant.saved_by and not hasattr(torch._C._autograd.SavedTensor, "data"):
        pytest.skip(f"torch {torch.__version__} does not show what was saved")
    program = plant("cuda")
    report = find_leaks(program.step, steps=8)
    leak = report.leaks[0]
    assert (leak.holder.name, leak.holder.kind) == (plant.holder, plant.kind), str(report)
    assert (leak.holder.saved_by, leak.holder.error) == (plant.saved_by, plant.error), str(report)
    assert leak.bytes_per_step == pytest.approx(MIB, rel=0.01)


@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant.saved_by])
def test_graphs_are_blamed_whether_or_not_torch_shows_what_was_saved(plant, monkeypatch):
    monkeypatch.setattr(torch_autograd, "_shows_saved", lambda: False)
    program = plant("cuda")
    report = find_leaks(program.step, steps=8)
    assert report.leaks[0].holder.name == plant.holder, str(report)
    assert report.leaks[0].holder.keeps_graphs


def test_a_training_loop_without_leaks_has_none(training):
    report = find_leaks(training.clean)
    assert not report, str(report)
    assert report.events > 1000


def test_a_loop_whose_variables_live_on_has_none(training):
    with find_leaks() as leaks:
        for _ in range(20):
            training.optimizer.zero_grad()
            output = training.model(training.images)
            loss = torch.nn.functional.cross_entropy(output, training.labels)
            loss.backward()
            training.optimizer.step()
            leaks.step()
    assert not leaks.report(), str(leaks)


def test_memory_that_was_taken_from_the_driver_is_found():
    from gpuscope import _core

    if not hasattr(_core, "watch_allocations"):
        pytest.skip("this build does not watch the driver's allocations")
    runtime = pytest.importorskip("cupy").cuda.runtime
    kept = []
    try:
        report = find_leaks(lambda: kept.append(runtime.malloc(4 * MIB)))
    finally:
        for pointer in kept:
            runtime.free(pointer)
    assert [(leak.growths[0].source, leak.bytes_per_step) for leak in report] == [("driver", 4 * MIB)], str(report)


def test_arrays_of_cupy_that_are_kept_are_found():
    cupy = pytest.importorskip("cupy")
    kept = []
    report = find_leaks(lambda: kept.append(cupy.empty(MIB, dtype=cupy.uint8)))
    assert len(report) == 1, str(report)
    assert report.leaks[0].holder is not None, str(report)
    kept.clear()


def test_a_history_that_is_recorded_goes_on(training):
    with history.record_memory_history(max_entries=500_000):
        assert find_leaks(training.leaky)
        assert history.recording()


def test_the_peak_of_a_step_is_explained(training):
    torch.cuda.reset_peak_memory_stats()
    with history.record_memory_history():
        training.clean()
    report = peak_memory()
    said = torch.cuda.max_memory_allocated()
    assert report.bytes >= said
    assert sum(one.bytes for one in report.places) + report.base_bytes == report.bytes
    assert any(one.place is not None and one.place.file == __file__ for one in report.places), str(report)


def test_a_chequered_pool_is_fragmented():
    torch.cuda.empty_cache()
    blocks = [torch.empty(15 * MIB, dtype=torch.uint8, device="cuda") for _ in range(64)]
    kept = blocks[::2]
    blocks.clear()
    found = fragmentation()
    assert found.free_bytes >= 32 * 15 * MIB
    assert found.allocated_bytes >= len(kept) * 15 * MIB
    assert found.advice
    print(found)
