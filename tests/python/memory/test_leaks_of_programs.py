# SPDX-License-Identifier: Apache-2.0
"""Training on the CPU, its memory recorded as it happens."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from gpuscope.memory.history import history  # noqa: E402
from gpuscope.memory.history.leaks import find_leaks  # noqa: E402
from gpuscope.memory.history.peak import peak_memory  # noqa: E402

MIB = 1 << 20


class Training:
    """A small network with momentum."""

    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.inputs, self.kept, self.steps = torch.randn(32, 16), [], 0

    def clean(self):
        self.optimizer.zero_grad()
        loss = self.model(self.inputs).square().mean()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps % 5 == 0:
            with torch.no_grad():
                self.model(torch.randn(64, 16))
        return loss.item()

    def leaky(self):
        self.clean()
        self.kept.append(torch.empty(MIB, dtype=torch.uint8))

    def keeps_graphs(self):
        self.kept.append(self.model(self.inputs).square().mean())

    def sums_graphs(self):
        self.total = getattr(self, "total", 0) + self.model(self.inputs).square().mean()

    def keeps_the_last(self):
        self.kept = [*self.kept[-3:], torch.empty(MIB, dtype=torch.uint8)]


@pytest.fixture
def training():
    return Training()


@pytest.mark.parametrize("steps", [5, 8, 20, 50])
def test_training_without_leaks_has_none(training, steps):
    report = find_leaks(training.clean, steps=steps)
    assert not report, str(report)
    assert report.judged


@pytest.mark.parametrize("steps", [8, 20])
def test_a_planted_leak_is_found_with_its_line_and_holder(training, steps):
    (leak,) = find_leaks(training.leaky, steps=steps)
    assert (leak.place.file, leak.place.line) == (__file__, Training.leaky.__code__.co_firstlineno + 2)
    assert (leak.holder.name, leak.bytes_per_step) == ("training.kept", MIB)


def test_losses_that_keep_their_graphs_are_one_leak(training):
    (leak,) = find_leaks(training.keeps_graphs)
    assert leak.holder.keeps_graphs
    assert leak.holder.name == "training.kept"


def test_threads_whose_allocations_are_not_seen_are_named(training):
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, name="loader")
    thread.start()
    try:
        report = find_leaks(training.clean, steps=5)
    finally:
        ends.set()
        thread.join()
    (note,) = [note for note in report.notes if "threads" in note]
    assert note.startswith("allocations of other threads through torch and CuPy are not seen; there are: ")
    assert "loader" in note
    assert "MainThread" not in note


def test_a_sum_that_keeps_the_graphs_is_found(training):
    (leak,) = find_leaks(training.sums_graphs)
    assert leak.holder.name == "training.total"


def test_a_list_of_the_last_few_is_no_leak(training):
    assert not find_leaks(training.keeps_the_last)


def test_a_loop_over_a_loader_has_none(training):
    loader = torch.utils.data.DataLoader(torch.randn(200, 16), batch_size=10)
    with find_leaks() as leaks:
        for batch in loader:
            training.inputs = batch
            training.clean()
            leaks.step()
    assert not leaks.report(), str(leaks)
    assert leaks.report().steps == 20


def test_recording_ends_with_the_search(training):
    find_leaks(training.clean, steps=5)
    assert not history.recording()


def test_a_history_that_is_recorded_goes_on(training):
    with history.record_memory_history(max_entries=500_000):
        assert find_leaks(training.leaky)
        assert history.recording()


def test_steps_after_the_program_began_a_history_of_its_own_are_not_judged(training):
    def step():
        if training.steps == 8:
            history.record_memory_history()
        training.leaky()

    try:
        report = find_leaks(step)
    finally:
        history.record_memory_history(None)
    assert (report.steps, len(report)) == (8, 1)


def test_what_lives_at_the_peak_is_put_down_to_its_line():
    with history.record_memory_history():
        large = torch.empty(64 * MIB, dtype=torch.uint8)
        line = 3 + test_what_lives_at_the_peak_is_put_down_to_its_line.__code__.co_firstlineno - 1
        del large
    (place,) = peak_memory().at(f"test_leaks_of_programs.py:{line}")
    assert place.bytes >= 64 * MIB
