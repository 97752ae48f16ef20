# SPDX-License-Identifier: Apache-2.0
"""Each trigger on programs with the fault and without."""

from __future__ import annotations

import signal
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

from fakes.monitors import series
from gpuscope.errors import InvalidArgument
from gpuscope.monitor.xid import XidErrors
from gpuscope.watching import triggers
from gpuscope.watching.triggers import (
    NAMES,
    Beat,
    GpuError,
    Hang,
    IdleGpu,
    MemoryExhausted,
    Requested,
    SlowStep,
    ThrottledGpu,
    UncaughtException,
)


def beats(seconds, *, per_beat=1, compared=None):
    seconds = np.asarray(seconds, np.float64)
    compared = np.ones(len(seconds), bool) if compared is None else compared
    for first in range(0, len(seconds), per_beat):
        part = slice(first, first + per_beat)
        yield Beat(first, seconds[part], compared[part], float(seconds[part].sum()))


def events_of(trigger, beats_):
    return [event for beat in beats_ for event in trigger.check(beat)]


def noisy(count, *, usual=0.2, noise=0.03, seed=0):
    return usual * np.exp(np.random.default_rng(seed).normal(0, noise, count))


# -- slow steps --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_beat", [1, 7, 1000])
def test_a_slow_step_is_found_in_beats_of_any_size(per_beat):
    times = noisy(1000)
    times[613] *= 1.8
    (event,) = events_of(SlowStep(), beats(times, per_beat=per_beat))
    assert event.step == 613
    assert event.sentence.startswith("step 613 took ")
    assert event.figures["usual_s"] == pytest.approx(0.2, rel=0.02)
    assert event.figures["lost_s"] == pytest.approx(0.16, rel=0.15)


def test_noise_is_not_slow():
    assert events_of(SlowStep(), beats(noisy(20_000, noise=0.05), per_beat=10)) == []


def test_a_slow_step_after_a_somewhat_slow_one_is_told():
    seconds = noisy(100)
    seconds[60:62] = [0.27, 2.0]
    assert [event.step for event in events_of(SlowStep(), beats(seconds))] == [60, 61]


def test_a_slow_step_that_loses_little_time_is_not_told():
    times = noisy(500, usual=0.002)
    times[300] *= 5
    assert events_of(SlowStep(), beats(times)) == []


def test_first_steps_are_not_judged():
    assert events_of(SlowStep(), beats([60.0, 9.0, 5.0, *noisy(200)])) == []


def test_a_new_level_is_told_once_and_learnt():
    times = np.concatenate([noisy(500), 1.6 * noisy(500, seed=1)])
    times[560] *= 1.6
    assert [event.step for event in events_of(SlowStep(), beats(times))] == [500, 560]


def test_a_level_of_faster_steps_is_learnt():
    times = np.concatenate([noisy(500), 0.5 * noisy(500, seed=1)])
    times[560] *= 1.7  # as fast as before
    assert [event.step for event in events_of(SlowStep(), beats(times))] == [560]


def test_drift_is_not_slow():
    times = noisy(20_000) * np.linspace(1, 3, 20_000)
    assert events_of(SlowStep(), beats(times, per_beat=5)) == []


def test_slow_steps_at_equal_distances_have_one_cause():
    times = noisy(3000)
    times[99::250] *= 4
    causes = [event.cause for event in events_of(SlowStep(), beats(times))]
    assert len(causes) == 12
    assert len(set(causes[:2])) == 2
    assert set(causes[2:]) == {"every 250 steps"}


def test_kinds_of_steps_that_are_frequent_are_not_slow():
    times = noisy(2000)
    times[::8] *= 3  # an optimizer's step after each eight of gradients
    found = events_of(SlowStep(), beats(times))
    assert all(event.step < 100 for event in found)


def test_steps_with_other_work_are_not_judged():
    times = noisy(500)
    times[300] *= 9
    compared = np.ones(500, bool)
    compared[300] = False
    assert events_of(SlowStep(), beats(times, compared=compared)) == []


# -- hangs -------------------------------------------------------------------------------------------------------------


def silent(count, *, passed=1.0, p99=0.5, first=40):
    nothing = np.empty(0)
    return [Beat(first, nothing, nothing.astype(bool), passed, 0.4, p99) for _ in range(count)]


def hang(variables=None):
    trigger = Hang(variables or {})
    assert events_of(trigger, beats(noisy(40))) == []
    return trigger


def test_a_hang_is_told_once_after_thirty_seconds():
    trigger = hang()
    assert events_of(trigger, silent(30)) == []
    (event,) = events_of(trigger, silent(100))
    assert event.sentence.startswith("no step for 31.0 s")
    assert event.step == 40


def test_slow_programs_hang_after_ten_steps():
    assert Hang({}).limit_s(20.0) == 200.0
    assert Hang({}).limit_s(0.1) == 30.0


def test_a_hang_is_told_before_the_watchdog_ends_the_program():
    trigger = hang({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "25"})
    (event,) = events_of(trigger, silent(21))
    assert event.figures["limit_s"] == 20.0
    assert Hang({"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "never"}).limit_s(0.1) == 30.0


def test_a_process_that_was_stopped_does_not_hang():
    assert events_of(hang(), silent(5, passed=3600.0)) == []


def test_a_program_without_steps_does_not_hang():
    trigger = Hang({})
    assert events_of(trigger, [replace(each, p99_s=None) for each in silent(100, first=0)]) == []


def test_a_hang_after_the_program_went_on_is_another_one():
    trigger = hang()
    first = events_of(trigger, silent(40))
    events_of(trigger, [replace(each, first=40) for each in beats([0.1])])
    second = events_of(trigger, silent(40, first=41))
    assert [len(first), len(second)] == [1, 1]
    assert first[0].cause != second[0].cause


# -- GPUs --------------------------------------------------------------------------------------------------------------


def gpu_beats(count, seconds=0.1, **figures):
    for number, sample in enumerate(series(count, **{"busy_ratio": 0.9, **figures})):
        yield Beat(number, np.array([seconds]), np.ones(1, bool), 1.0, seconds, seconds, gpus=[sample.gpu])


def with_faults(beats_, *faults, slower=1.0):
    for beat in beats_:
        (gpu,) = beat.gpus
        yield replace(beat, gpus=[replace(gpu, throttle_faults=faults)], seconds=beat.seconds * slower)


def test_throttling_that_makes_steps_slow_is_told():
    trigger = ThrottledGpu()
    assert events_of(trigger, gpu_beats(3)) == []
    found = events_of(trigger, with_faults(gpu_beats(4), "hw_thermal", slower=1.2))
    assert [event.cause for event in found[:1]] == ["GPU 0 hw_thermal"]
    assert "1.20x as long" in found[0].sentence
    assert len(found) == 3  # from the second sample on


def test_throttling_without_slower_steps_is_not_told():
    trigger = ThrottledGpu()
    events_of(trigger, gpu_beats(3))
    assert events_of(trigger, with_faults(gpu_beats(9), "sw_power_cap", slower=1.01)) == []


def test_an_error_of_the_driver_is_told_by_its_meaning():
    def errors(*found):
        return [replace(beat, machine=[replace(beat.gpus[0], xid_errors=found)]) for beat in gpu_beats(2)]

    trigger = GpuError()
    assert events_of(trigger, errors()) == []
    (event,) = events_of(trigger, errors(XidErrors(79, 1, 0)))
    assert (
        event.sentence
        == "GPU 0: Xid 79: the GPU has fallen off the bus (the GPU wants a reset, or the machine a restart)"
    )
    assert events_of(trigger, errors(XidErrors(79, 1, 0))) == []
    assert len(events_of(trigger, errors(XidErrors(79, 2, 0)))) == 1


def test_an_idle_gpu_is_told_once_until_it_works_again():
    trigger = IdleGpu()
    assert events_of(trigger, gpu_beats(5)) == []
    idle = events_of(trigger, gpu_beats(200, busy_ratio=0.02))
    assert [event.cause for event in idle] == ["GPU 0"]
    events_of(trigger, gpu_beats(2))
    assert len(events_of(trigger, gpu_beats(61, busy_ratio=0.02))) == 1


def test_a_gpu_that_never_worked_is_not_idle():
    assert events_of(IdleGpu(), gpu_beats(200, busy_ratio=0.0)) == []


# -- errors and signals ------------------------------------------------------------------------------------------------


@pytest.fixture
def fired():
    """Begins a trigger, and gives its events."""
    begun = []

    def begin(trigger):
        events = []
        begun.append(trigger)
        trigger.begin(events.append)
        return events

    yield begin
    for trigger in reversed(begun):
        trigger.end()


def error_of(kind, text):
    try:
        raise kind(text)
    except kind as error:
        return error


def test_an_uncaught_exception_is_told_with_its_place(fired, monkeypatch, capsys):
    events = fired(UncaughtException())
    error = error_of(ValueError, "bad loss")
    sys.excepthook(ValueError, error, error.__traceback__)
    sys.excepthook(ValueError, error, error.__traceback__)
    (event,) = events
    assert event.sentence.startswith("an exception was not caught: ValueError: bad loss at test_triggers.py:")
    assert event.details[-1] == "ValueError: bad loss"
    assert "bad loss" in capsys.readouterr().err  # the program's hook is called too


def test_an_exception_of_a_thread_is_told(fired, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    events = fired(UncaughtException())
    thread = threading.Thread(target=lambda: 1 // 0)
    thread.start()
    thread.join()
    assert "ZeroDivisionError" in events[0].sentence


def test_ctrl_c_is_no_failure(fired, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *arguments: None)
    events = fired(UncaughtException())
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert events == []


def test_the_hooks_are_given_back():
    before = sys.excepthook, threading.excepthook
    trigger = UncaughtException()
    trigger.begin(lambda event: None)
    assert (sys.excepthook, threading.excepthook) != before
    trigger.end()
    assert (sys.excepthook, threading.excepthook) == before


def test_memory_that_runs_out_is_told_once(fired, monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", lambda *arguments: None)
    exceptions, memory = fired(UncaughtException()), fired(MemoryExhausted())
    error = error_of(MemoryError, "no more")
    sys.excepthook(MemoryError, error, error.__traceback__)
    assert exceptions == []
    assert memory[0].sentence.startswith("out of host memory")
    assert "gpuscope" not in capsys.readouterr().err


def test_a_signal_asks_for_a_dump(fired):
    events = fired(Requested(signal.SIGUSR2))
    signal.raise_signal(signal.SIGUSR2)
    signal.raise_signal(signal.SIGUSR2)
    assert [event.sentence for event in events] == ["a dump was asked for by SIGUSR2"] * 2


def test_a_signal_in_use_is_refused(monkeypatch):
    previous = signal.signal(signal.SIGUSR2, lambda number, frame: None)
    try:
        with pytest.raises(InvalidArgument, match="which the program handles"):
            Requested(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, previous)


@pytest.mark.parametrize("wrong", [signal.SIGKILL, 0, 999, True, "USR2"])
def test_no_signal_is_refused(wrong):
    with pytest.raises(InvalidArgument, match="signals is"):
        Requested(wrong)


# -- names -------------------------------------------------------------------------------------------------------------


def test_triggers_are_chosen_by_name():
    assert triggers.chosen("default") == NAMES
    assert triggers.chosen("slow_step, hang") == ("slow_step", "hang")
    assert triggers.chosen(["exit"]) == ("exit",)
    assert triggers.chosen(None) == triggers.chosen("") == ()


@pytest.mark.parametrize("wrong", ["slow", 3, ["hang", None]])
def test_unknown_triggers_are_refused_by_name(wrong):
    with pytest.raises(InvalidArgument, match=r"triggers contains .* accepted are 'default' and slow_step, hang"):
        triggers.chosen(wrong)


def test_an_end_is_told_by_status_or_signal():
    assert triggers.ended(0, "") is None
    assert triggers.ended(None, "os.execv") is None
    assert triggers.ended(3, "").sentence == "the program ended with exit status 3"
    assert triggers.ended(143, "SIGTERM").trigger == "terminated"
