# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from fakes.memory_history import FakeHistory
from fakes.tensors import needs_autograd, tensors_of_torch, torch  # noqa: F401
from gpuscope import _core
from gpuscope.errors import InvalidArgument
from gpuscope.memory.history import leaks as module
from gpuscope.memory.history.leaks import find_leaks

MIB = 1 << 20


@pytest.fixture(autouse=True)
def history(monkeypatch):
    return FakeHistory().put_in(monkeypatch)


class Training:
    """Steps that allocate and let go; those that leak keep it in `kept`."""

    def __init__(self, history):
        self.history, self.kept, self.called = history, [], 0

    def clean(self):
        self.called += 1
        self.history.keep(torch.ones(100))

    def leaky(self):
        self.clean()
        self.kept.append(self.history.keep(torch.ones(100)))

    def in_cycles(self):
        pair = [self.history.keep(torch.ones(100))]
        pair.append(pair)


LEAKING_LINE = Training.leaky.__code__.co_firstlineno + 2


@pytest.fixture
def training(history):
    return Training(history)


def test_the_line_that_leaks_is_found(training):
    (leak,) = find_leaks(training.leaky)
    assert (leak.place.file, leak.place.line) == (__file__, LEAKING_LINE)


def test_who_holds_it_is_found(training):
    (leak,) = find_leaks(training.leaky)
    assert leak.holder.name == "training.kept"


def test_a_clean_loop_has_none(training):
    report = find_leaks(training.clean)
    assert not report
    assert len(report) == 0
    assert str(report).startswith("no leaks in 20 steps, the first 3 of them warm-up: nothing grew step after step")


def test_a_function_is_called_as_often_as_asked(training):
    find_leaks(training.clean, steps=7)
    assert training.called == 7


def test_a_function_gets_its_arguments(history):
    seen = []
    find_leaks(lambda *args, **kwargs: seen.append((args, kwargs)), 1, 2, steps=5, rate=3)
    assert seen == [((1, 2), {"rate": 3})] * 5


def test_what_a_function_returns_is_let_go(history):
    assert not find_leaks(lambda: history.keep(torch.ones(10)), steps=8)


def test_a_loop_is_watched_by_its_steps(training):
    with find_leaks() as leaks:
        for _ in range(8):
            training.leaky()
            leaks.step()
    (leak,) = leaks.report()
    assert (leak.allocations, leak.grew) == (4 + 1, 5)


def test_a_report_can_be_had_within_the_loop(training):
    with find_leaks() as leaks:
        for _ in range(8):
            training.leaky()
            leaks.step()
        assert len(leaks.report()) == 1


def test_the_finder_prints_as_its_report(training):
    with find_leaks() as leaks:
        for _ in range(8):
            training.leaky()
            leaks.step()
    assert str(leaks) == str(leaks.report())


def test_a_finder_that_was_not_used_says_so(history):
    assert "nothing has been watched yet" in str(find_leaks())


def test_steps_that_were_not_marked_are_said_to_be_missing(training):
    with find_leaks() as leaks:
        training.leaky()
    assert "leaks.step() was not called" in str(leaks)


def test_too_few_steps_in_a_loop_tell_nothing(training):
    with find_leaks() as leaks:
        for _ in range(4):
            training.leaky()
            leaks.step()
    assert not leaks.report().judged
    assert str(leaks).startswith("leaks cannot be told in 4 steps: it takes at least 5")


@pytest.mark.parametrize("steps", [12, 30])
def test_too_few_steps_after_the_warm_up_tell_nothing(training, steps):
    with find_leaks(steps=200, warmup=27) as leaks:
        for _ in range(steps):
            training.leaky()
            leaks.step()
    warmup = min(steps, 27)
    assert not leaks.report().judged
    assert str(leaks).startswith(f"leaks cannot be told in {steps} steps, the first {warmup} of them warm-up: it takes")


def test_a_program_that_allocates_nothing_is_not_called_clean(history):
    assert str(find_leaks(lambda: None)).startswith("leaks cannot be told in 20 steps: not one allocation was seen")


def test_reference_cycles_that_only_the_collector_frees_are_told(training):
    import gc

    gc.disable()
    try:
        (leak,) = find_leaks(training.in_cycles)
    finally:
        gc.enable()
    assert leak.cycles
    assert "reference cycles" in str(leak)


def test_a_history_is_recorded_only_while_it_is_needed(history, training):
    find_leaks(training.clean)
    assert (history.begun, history.ended) == (1, 1)


def test_a_history_that_runs_is_used_and_left_on(history, training):
    history.active = True
    assert find_leaks(training.leaky)
    assert (history.begun, history.ended, history.active) == (0, 0, True)


def test_a_history_that_the_program_ends_tells_nothing_of_later_steps(history, training):
    def step():
        training.leaky()
        history.active = False

    report = find_leaks(step)
    assert (report.steps, report.judged) == (0, False)
    assert any("ended a memory history itself after 0 whole steps" in note for note in report.notes)


def test_steps_before_the_program_ends_the_history_are_judged(history, training):
    def step():
        training.leaky()
        history.active = training.called < 13

    report = find_leaks(step)
    assert (report.steps, len(report)) == (12, 1)


def test_what_the_history_does_not_record_is_said(history, training):
    history.notes = ("CuPy is not recorded",)
    assert "note: CuPy is not recorded" in str(find_leaks(training.clean))


def test_an_error_of_the_program_goes_on_and_recording_ends(history):
    def fail():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        find_leaks(fail)
    assert not history.active


def test_ctrl_c_reaches_the_program_with_the_report_of_the_steps_so_far(training):
    def step():
        training.leaky()
        if training.called == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        find_leaks(step)
    report = caught.value.report
    assert report.interrupted
    assert (report.steps, len(report)) == (11, 1)
    assert "stopped after 11 steps" in str(report)


def test_an_interrupt_of_a_loop_goes_on_and_leaves_the_report(training):
    leaks = find_leaks()

    def loop():
        with leaks:
            for _ in range(12):
                training.leaky()
                leaks.step()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert leaks.report().steps == 12


def test_a_failure_of_ours_is_noted_and_not_raised(monkeypatch, training):
    def fail(*args):
        raise RuntimeError("ours")

    monkeypatch.setattr(module, "leaks_in", fail)
    assert "the events could not be judged: RuntimeError: ours" in str(find_leaks(training.clean))


def test_a_failure_to_find_holders_leaves_the_leaks(monkeypatch, training):
    def fail(*args):
        raise RuntimeError("ours")

    monkeypatch.setattr(module, "find_holders", fail)
    report = find_leaks(training.leaky)
    assert len(report) == 1
    assert "who holds the memory could not be looked up: RuntimeError: ours" in report.notes


@needs_autograd
def test_losses_with_graphs_and_what_those_saved_are_one_leak(history):
    weight, losses = torch.ones(50, requires_grad=True), []

    def step():
        saved = history.keep(weight * 2, size=4 * MIB)
        losses.append(history.keep(saved.sin().sum(), size=512))

    (leak,) = find_leaks(step)
    assert len(leak.growths) == 2
    assert leak.holder.name == "losses"
    assert "losses.append(loss.item())" in str(leak)


def test_how_long_the_memory_lasts_is_told(monkeypatch, training):
    facts = {"process": 0, "used": 20 << 30, "free": 60 << 30, "total": 80 << 30, "name": "GPU", "why": ""}
    monkeypatch.setattr(_core, "process_memory", lambda device: facts, raising=False)
    (leak,) = find_leaks(training.leaky)
    assert leak.steps_left == 60 * 1024
    assert "at this rate the GPU's free 60.0 GiB last 61,440 steps" in str(leak)


def test_lines_fit_a_terminal(monkeypatch, training):
    facts = {"process": 0, "used": 20 << 30, "free": 60 << 30, "total": 80 << 30, "name": "GPU", "why": ""}
    monkeypatch.setattr(_core, "process_memory", lambda device: facts, raising=False)
    assert max(map(len, str(find_leaks(training.leaky)).splitlines())) <= 100


def test_a_report_is_plain_values_too(training):
    found = json.loads(json.dumps(find_leaks(training.leaky).to_dict()))
    assert found["leaks"][0]["place"]["line"] == LEAKING_LINE
    assert found["leaks"][0]["holder"]["name"] == "training.kept"


def test_events_that_were_lost_are_told(monkeypatch, history, training):
    history.lost = 20
    report = find_leaks(training.leaky)
    assert report.steps < 20
    assert "are no longer kept" in str(report)


@pytest.mark.parametrize("steps", [4, 0, -1, 5.0, True, None])
def test_steps_that_cannot_tell_are_refused(history, steps):
    with pytest.raises(InvalidArgument, match=r"^steps is .*; accepted are whole numbers from 5"):
        find_leaks(print, steps=steps)


@pytest.mark.parametrize("warmup", [-1, 17, 1.5, True])
def test_a_warm_up_that_leaves_nothing_is_refused(history, warmup):
    with pytest.raises(InvalidArgument, match=r"^warmup is .*; accepted are None and whole numbers from 0 to 16"):
        find_leaks(print, warmup=warmup)


def test_what_cannot_be_called_is_refused(history):
    with pytest.raises(InvalidArgument, match=r"^fn is a list; accepted are functions"):
        find_leaks([])
