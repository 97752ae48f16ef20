# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import os
import pickle
import threading
import time
import uuid
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpuscope as ours
from fakes import session as fake
from gpuscope import _core
from gpuscope.errors import GpuscopeWarning, IncompleteCapture, InvalidArgument, NotAvailable
from gpuscope.profiler import ProfilerAction, ProfilerActivity, profile, schedule
from gpuscope.profiler.activities import CuspyConfig, PerformanceMetricsConfig, ProfilerActivityConfig
from gpuscope.profiler.windows import Annotations


@pytest.fixture(autouse=True)
def log(monkeypatch):
    yield fake.install(lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False))
    assert fake.Session.running is None, "a session was left running"


def transitions(words):
    """The windows of a log, without steps."""
    return [word for word in words if word[0] not in "+-"]


def run(prof, steps):
    with prof:
        for _ in range(steps):
            prof.step()
    return prof


# -- one window ------------------------------------------------------------------------------------------------------


def test_a_with_block_is_one_window(log):
    with profile():
        assert log == ["start", "open"]
    assert log == ["start", "open", "stop"]


def test_start_and_stop_do_what_a_with_block_does(log):
    prof = profile()
    prof.start()
    prof.stop()
    assert log == ["start", "open", "stop"]


def test_a_second_stop_does_nothing(log):
    ready = []
    prof = profile(on_trace_ready=ready.append)
    with prof:
        prof.stop()
    prof.stop()
    assert log == ["start", "open", "stop"]
    assert ready == [prof]


def test_stop_before_start_does_nothing(log):
    profile().stop()
    assert log == []


def test_starting_a_running_profiler_is_an_error_that_leaves_it_running(log):
    with profile() as prof:
        with pytest.raises(InvalidArgument, match="running already"):
            prof.start()
        assert log == ["start", "open"]


def copied(way, prof):
    return copy.deepcopy(prof) if way == "deepcopy" else pickle.loads(pickle.dumps(prof))


class Named(profile):
    def __init__(self, name):
        super().__init__(with_flops=True)
        self.name = name


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_profiler_that_has_not_begun_can_be_copied(log, way):
    original = profile(schedule=schedule(wait=0, warmup=0, active=2), with_flops=True)
    original.on_trace_ready = id
    original.add_metadata("run", "a")
    made = copied(way, original)
    assert (made.with_flops, made.on_trace_ready, made.schedule) == (True, id, original.schedule)
    assert run(made, 1).trace.store.info()["metadata.run"] == '"a"'
    assert original.step_num == 0


def test_a_copy_has_what_a_subclass_added(log):
    made = copied("deepcopy", Named("mine"))
    assert (type(made), made.name, made.with_flops) == (Named, "mine", True)


def test_a_profiler_is_copied_with_what_it_calls_back_to(log):
    class Holder:
        def __init__(self):
            self.prof = profile(on_trace_ready=self.ready)

        def ready(self, prof):
            """Nothing."""

    made = copied("deepcopy", Holder().prof)
    assert made.on_trace_ready.__self__.prof is made


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_profiler_that_has_begun_cannot_be_copied(log, way):
    with pytest.raises(TypeError, match="has begun cannot be copied"):
        copied(way, run(profile(), 0))


def test_a_profiler_can_be_used_again(log):
    prof = profile()
    for number in (1, 2):
        with prof:
            pass
        assert prof.trace.store.number == number


def test_the_callback_receives_the_profiler_with_its_recording(log):
    seen = []
    prof = profile(on_trace_ready=lambda p: seen.append(p.trace.store.number))
    with prof:
        assert seen == []
    assert seen == [1]


def test_steps_without_a_schedule_are_counted_and_named_nowhere(log):
    prof = run(profile(), 3)
    assert prof.step_num == 3
    assert log == ["start", "open", "stop"]


# -- schedules -------------------------------------------------------------------------------------------------------


def test_the_session_starts_with_the_warmup_and_the_window_with_the_record(log):
    prof = profile(schedule=schedule(wait=1, warmup=1, active=1, repeat=1))
    with prof:
        assert transitions(log) == []
        prof.step()
        assert transitions(log) == ["start"]
        prof.step()
        assert transitions(log) == ["start", "open"]
        prof.step()
        assert transitions(log) == ["start", "open", "stop"]
    assert transitions(log) == ["start", "open", "stop"]


def test_the_session_lives_on_between_cycles(log):
    run(profile(schedule=schedule(wait=1, warmup=1, active=1, repeat=3)), 20)
    assert transitions(log) == ["start", "open", "cut", "open", "cut", "open", "stop"]


@pytest.mark.parametrize(
    ("steps", "repeats"),
    [
        (None, False),
        (schedule(wait=0, warmup=0, active=1, repeat=1), False),
        (schedule(wait=0, warmup=0, active=1, repeat=2), True),
        (schedule(wait=0, warmup=0, active=1), True),
        (lambda step: ProfilerAction.RECORD, True),
    ],
)
def test_the_core_is_told_whether_windows_may_come_as_long_as_the_program_runs(log, steps, repeats):
    with profile(schedule=steps):
        assert fake.Session.options["repeats"] is repeats


def test_the_callback_comes_after_each_cycle_with_that_cycle(log):
    seen = []
    run(
        profile(
            schedule=schedule(wait=1, warmup=0, active=2, repeat=2),
            on_trace_ready=lambda p: seen.append((p.step_num, p.trace.store.number)),
        ),
        20,
    )
    assert seen == [(3, 1), (6, 2)]


def test_a_loop_that_ends_inside_a_window_is_delivered(log):
    seen = []
    prof = run(profile(schedule=schedule(wait=1, warmup=1, active=9), on_trace_ready=seen.append), 4)
    assert seen == [prof]
    assert prof.trace.store.number == 1


def test_every_step_is_a_region_inside_the_session(log):
    run(profile(schedule=schedule(wait=0, warmup=1, active=2, repeat=1)), 3)
    assert log == [
        "start",
        "+ProfilerStep#0",
        "-ProfilerStep#0",
        "open",
        "+ProfilerStep#1",
        "-ProfilerStep#1",
        "+ProfilerStep#2",
        "-ProfilerStep#2",
        "stop",
    ]


def test_the_current_action_is_that_of_the_step(log):
    prof = profile(schedule=schedule(wait=1, warmup=1, active=1, repeat=1))
    seen = []
    with prof:
        for _ in range(3):
            seen.append((prof.step_num, prof.current_action.name))
            prof.step()
    assert seen == [(0, "NONE"), (1, "WARMUP"), (2, "RECORD_AND_SAVE")]


def test_a_window_that_is_broken_off_is_kept_without_a_callback_and_said(log):
    plan = [ProfilerAction.RECORD, ProfilerAction.NONE]
    ready = []
    prof = profile(schedule=plan.__getitem__, on_trace_ready=ready.append)
    with prof, pytest.warns(GpuscopeWarning, match="goes from RECORD to NONE at step 1"):
        prof.step()
    assert prof.trace.store.number == 1
    assert ready == []


def test_a_schedule_that_never_becomes_active_says_when_it_would_have(log):
    prof = profile(schedule=schedule(wait=4, warmup=2, active=1))
    with pytest.warns(GpuscopeWarning, match="3 steps were taken and the schedule begins to record at step 6"):
        run(prof, 3)
    with pytest.raises(NotAvailable, match="3 steps were taken and the schedule begins to record at step 6"):
        prof.key_averages()


def test_a_function_that_never_asks_to_record_is_named_as_such(log):
    with pytest.warns(GpuscopeWarning, match="asked to record at none of them"):
        run(profile(schedule=lambda step: ProfilerAction.NONE), 2)


def test_a_schedule_that_returns_no_action_ends_the_step_and_changes_nothing_else(log):
    plan = [ProfilerAction.RECORD, "record"]
    prof = profile(schedule=plan.__getitem__)
    with prof:
        with pytest.raises(InvalidArgument, match=r"schedule\(1\) returned 'record'; accepted are ProfilerAction.NONE"):
            prof.step()
        assert prof.step_num == 0
        assert log == ["start", "open", "+ProfilerStep#0", "-ProfilerStep#0"]
    assert prof.trace.store.number == 1


def test_a_schedule_of_torch_is_accepted(log):
    torch_profiler = pytest.importorskip("torch.profiler")
    prof = run(profile(schedule=torch_profiler.schedule(wait=1, warmup=1, active=1, repeat=1)), 5)
    assert prof.trace.store.number == 1


actions = st.lists(st.sampled_from(["NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"]), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=actions)
def test_windows_open_close_and_are_delivered_at_the_steps_torch_does_it(plan, log):
    torch_profiler = pytest.importorskip("torch.profiler")
    theirs = []

    class Torch(torch_profiler.profile):
        def prepare_trace(self):
            pass

        def start_trace(self):
            theirs.append("open")

        def stop_trace(self):
            if theirs[-1] == "open":  # torch opens and closes a window to end a warm-up; nothing is recorded in it
                theirs.pop()
            else:
                theirs.append("close")

    log.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = Torch(
            activities=[torch_profiler.ProfilerActivity.CPU],
            schedule=lambda step: torch_profiler.ProfilerAction[plan[step]],
            on_trace_ready=lambda _: theirs.append("ready"),
        )
        ours = profile(schedule=lambda step: ProfilerAction[plan[step]], on_trace_ready=lambda _: log.append("ready"))
        for prof, words in ((reference, theirs), (ours, log)):
            prof.start()
            words.append("step")
            for _ in plan[1:]:
                prof.step()
                words.append("step")
            prof.stop()
    assert [word for word in map(plain_window, windows(log)) if word] == theirs


def windows(words):
    """A log in torch's words: a stop closes a window only if one is open."""
    is_open = False
    for word in words:
        if word == "stop" and not is_open:
            continue
        is_open = word == "open" or (is_open and word not in ("cut", "stop"))
        yield word


def plain_window(word):
    return {"cut": "close", "stop": "close", "start": ""}.get(word, "" if word[0] in "+-" else word)


# -- things that go wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError("user"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_an_exception_in_the_block_propagates_unchanged_and_the_recording_is_kept(log, error):
    ready = []
    prof = profile(on_trace_ready=ready.append)
    with pytest.raises(type(error)) as caught, prof:
        raise error
    assert caught.value is error
    assert caught.value.__context__ is None
    assert prof.trace.store.number == 1
    assert ready == [prof]


def test_an_exception_inside_a_step_closes_its_region(log):
    prof = profile(schedule=schedule(wait=0, warmup=0, active=5))
    with pytest.raises(ZeroDivisionError), prof:
        raise ZeroDivisionError(prof.step())
    assert log[-2:] == ["-ProfilerStep#1", "stop"]


def refuse(prof):
    raise OSError("disk full")


def test_a_callback_that_raises_at_the_end_leaves_the_recording(log):
    prof = profile(on_trace_ready=refuse)
    with pytest.raises(OSError, match="disk full"), prof:
        pass
    assert prof.trace.store.number == 1


def test_a_callback_that_raises_in_a_step_leaves_the_recording_and_the_next_cycle(log):
    prof = profile(schedule=schedule(wait=0, warmup=0, active=1), on_trace_ready=refuse)
    prof.start()
    with pytest.raises(OSError, match="disk full"):
        prof.step()
    assert prof.trace.store.number == 1
    assert log[-3:] == ["cut", "open", "+ProfilerStep#1"]
    prof.on_trace_ready = None
    prof.stop()
    assert prof.trace.store.number == 2


def test_a_callback_that_raises_does_not_hide_the_exception_of_the_block(log):
    prof = profile(on_trace_ready=refuse)
    with pytest.warns(GpuscopeWarning, match="disk full"), pytest.raises(ZeroDivisionError), prof:
        raise ZeroDivisionError


def test_a_callback_may_stop_the_profiler(log):
    prof = profile(schedule=schedule(wait=0, warmup=0, active=1), on_trace_ready=profile.stop)
    run(prof, 3)
    assert transitions(log) == ["start", "open", "cut", "stop"]


def test_a_second_profiler_is_refused_and_the_first_goes_on(log):
    with profile() as first:
        second = profile()
        with pytest.raises(InvalidArgument, match="active already"):
            second.start()
        second.stop()
    assert first.trace.store.number == 1
    with pytest.raises(NotAvailable):
        second.events()


def test_a_profiler_that_was_refused_can_start_later(log):
    second = profile()
    with profile(), pytest.raises(InvalidArgument):
        second.start()
    with second:
        pass
    assert second.trace.store.number == 2


@pytest.mark.parametrize(
    "question",
    [
        lambda prof: prof.key_averages(),
        lambda prof: prof.events(),
        lambda prof: prof.tree(),
        lambda prof: prof.audit(),
        lambda prof: prof.trace,
        lambda prof: prof.table(),
        lambda prof: prof.export_chrome_trace("trace.json"),
        lambda prof: prof.export_perfetto("trace.pftrace"),
        lambda prof: prof.export_stacks("stacks.txt"),
        lambda prof: prof.save("run.gscope"),
    ],
)
def test_no_question_is_answered_before_there_is_a_recording(log, question):
    prof = profile()
    with pytest.raises(NotAvailable, match="never started"):
        question(prof)


@pytest.mark.parametrize(
    "question",
    [
        lambda prof: prof.tree(),
        lambda prof: prof.audit(),
        lambda prof: prof.trace,
        lambda prof: prof.export_chrome_trace("trace.json"),
        lambda prof: prof.save("run.gscope"),
    ],
)
def test_what_is_of_a_whole_recording_is_not_answered_while_the_first_is_made(log, question):
    with profile() as prof, pytest.raises(NotAvailable, match="window is still open"):
        question(prof)


def test_the_last_finished_window_answers_while_the_next_is_open(log):
    prof = profile(schedule=schedule(wait=0, warmup=0, active=1))
    with prof:
        prof.step()
        assert prof.trace.store.number == 1


# -- strict ----------------------------------------------------------------------------------------------------------


class Audit:
    def __init__(self, *reasons):
        self.reasons = reasons


@pytest.fixture
def incomplete(monkeypatch):
    import gpuscope.analysis

    monkeypatch.setattr(gpuscope.analysis, "audit", lambda trace: Audit("3 kernel records never came"), raising=False)


def test_strict_raises_the_reasons_at_the_end_and_keeps_the_recording(log, incomplete):
    prof = profile(strict=True)
    with pytest.raises(IncompleteCapture, match="3 kernel records never came"), prof:
        pass
    assert prof.trace.store.number == 1


def test_strict_waits_for_the_end_of_the_run(log, incomplete):
    prof = profile(strict=True, schedule=schedule(wait=0, warmup=0, active=1, repeat=1))
    prof.start()
    prof.step()
    with pytest.raises(IncompleteCapture):
        prof.stop()


def test_strict_judges_each_run_by_itself(log, monkeypatch):
    import gpuscope.analysis

    verdicts = iter([Audit("lost"), Audit()])
    monkeypatch.setattr(gpuscope.analysis, "audit", lambda trace: next(verdicts), raising=False)
    prof = profile(strict=True)
    with pytest.raises(IncompleteCapture), prof:
        pass
    with prof:
        pass


def test_strict_does_not_hide_the_exception_of_the_block(log, incomplete):
    with (
        pytest.warns(GpuscopeWarning, match="3 kernel records never came"),
        pytest.raises(ZeroDivisionError),
        profile(strict=True),
    ):
        raise ZeroDivisionError


def test_strict_is_content_with_a_complete_recording(log, monkeypatch):
    import gpuscope.analysis

    monkeypatch.setattr(gpuscope.analysis, "audit", lambda trace: Audit(), raising=False)
    with profile(strict=True):
        pass


# -- decorator -------------------------------------------------------------------------------------------------------


def test_a_decorated_function_is_recorded_at_each_call(log):
    prof = profile()

    @prof
    def work(value, *, more):
        """Works."""
        assert log[-1] == "open"
        return value + more

    assert (work(1, more=2), work(3, more=4)) == (3, 7)
    assert log == ["start", "open", "stop"] * 2
    assert (work.__name__, work.__doc__) == ("work", "Works.")


def test_a_recursive_call_belongs_to_the_outermost(log):
    @profile()
    def fall(depth):
        return fall(depth - 1) if depth else "done"

    assert fall(3) == "done"
    assert log == ["start", "open", "stop"]


def test_calls_of_several_threads_are_one_run_from_the_first_to_the_last(log):
    runs, may_end = ([threading.Event(), threading.Event()] for _ in range(2))

    @profile()
    def work(number):
        runs[number].set()
        assert may_end[number].wait(10)

    with ThreadPoolExecutor(2) as threads:
        calls = []
        for number in range(2):
            calls.append(threads.submit(work, number))
            assert runs[number].wait(10)
        may_end[0].set()
        calls[0].result()
        assert log == ["start", "open"]
        may_end[1].set()
        calls[1].result()
    assert log == ["start", "open", "stop"]


def test_calls_that_threads_begin_at_once_all_run(log, monkeypatch):
    opens, open_at_once = threading.Event(), fake.Session.open

    def open_slowly(session, folder):
        opens.set()
        time.sleep(0.05)  # the second call begins meanwhile
        open_at_once(session, folder)

    monkeypatch.setattr(fake.Session, "open", open_slowly)

    @profile()
    def work():
        return "done"

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(work)
        assert opens.wait(10)
        second = threads.submit(work)
        assert [first.result(), second.result()] == ["done", "done"]


def test_a_decorated_call_leaves_a_profiler_that_ran_before_it_running(log):
    prof = profile()
    with prof:
        prof(lambda: None)()
        assert log == ["start", "open"]


def test_a_decorated_coroutine_function_is_recorded_until_it_ends(log):
    @profile()
    async def work():
        await asyncio.sleep(0)
        assert log[-1] == "open"
        return 1

    assert inspect.iscoroutinefunction(work)
    assert asyncio.run(work()) == 1
    assert log == ["start", "open", "stop"]


class AsyncHandler:
    async def __call__(self):
        await asyncio.sleep(0)


def test_an_object_whose_call_is_a_coroutine_function_is_recorded_until_it_ends(log):
    handle = profile()(AsyncHandler())
    assert inspect.iscoroutinefunction(handle)
    asyncio.run(handle())
    assert log == ["start", "open", "stop"]


class Numbers:
    def __call__(self):
        yield 1


@pytest.mark.parametrize("numbers", [Numbers(), Numbers().__call__])
def test_a_generator_function_is_refused_with_the_way_out(log, numbers):
    with pytest.raises(InvalidArgument, match="in a generator `with profile"):
        profile()(numbers)


# -- arguments -------------------------------------------------------------------------------------------------------


def test_the_parameters_of_torch_have_their_names_kinds_and_defaults():
    torch_profiler = pytest.importorskip("torch.profiler")
    ours = inspect.signature(profile).parameters
    for name, parameter in inspect.signature(torch_profiler.profile).parameters.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name


def test_the_methods_of_torch_take_what_they_take_there():
    torch_profiler = pytest.importorskip("torch.profiler")
    not_built = {"export_memory_timeline"}
    for name, method in inspect.getmembers(torch_profiler.profile, inspect.isfunction):
        if name.startswith("_") or name in not_built:
            continue
        ours = inspect.signature(getattr(profile, name)).parameters
        theirs = inspect.signature(method).parameters
        # key_averages has one more, of a newer torch.
        first = list(ours.values())[: len(theirs)]
        assert [(p.name, p.default) for p in first] == [(p.name, p.default) for p in theirs.values()], name


def test_the_core_is_asked_for_the_defaults(log):
    with profile():
        pass
    assert fake.Session.options == {
        "cuda": True,
        "mode": "full",
        "graphs": "node",
        "sync": False,
        "overheads": False,
        "max_bytes": 1 << 30,
        "ring_ns": 10_000_000_000,
        "spool": False,
        "spool_bytes": 1 << 30,
        "spool_age_ns": 0,
        "segment_bytes": 16 << 20,
        "segment_ns": 8_000_000_000,
        "with_stack": False,
        "profile_memory": False,
        "left_out": set(),
        "counters": (),
        "counters_in_full": False,
        "counter_interval_ns": 100_000,
        "device_interval_ns": 0,
        "repeats": False,
    }


def test_the_core_is_asked_for_what_was_given(log):
    with profile(
        activities=[ProfilerActivity.CPU],
        mode="ring",
        graphs="launch",
        sync=True,
        overheads=True,
        max_bytes="512MB",
        ring_seconds=2.5,
    ):
        pass
    assert fake.Session.options == {
        "cuda": False,
        "mode": "ring",
        "graphs": "launch",
        "sync": True,
        "overheads": True,
        "max_bytes": 512_000_000,
        "ring_ns": 2_500_000_000,
        "spool": False,
        "spool_bytes": 1 << 30,
        "spool_age_ns": 0,
        "segment_bytes": 16 << 20,
        "segment_ns": 8_000_000_000,
        "with_stack": False,
        "profile_memory": False,
        "left_out": set(),
        "counters": (),
        "counters_in_full": False,
        "counter_interval_ns": 100_000,
        "device_interval_ns": 0,
        "repeats": False,
    }


def test_the_core_records_memory_of_the_driver_with_profile_memory(log):
    with profile(profile_memory=True):
        pass
    assert fake.Session.options["profile_memory"] is True


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512MB", 512 * 10**6),
        ("1GiB", 2**30),
        ("1.5 gib", 3 * 2**29),
        (" 4096 KiB ", 2**22),
        ("2000000B", 2 * 10**6),
        (1 << 21, 1 << 21),
    ],
)
def test_sizes_are_read(log, text, size):
    with profile(max_bytes=text):
        pass
    assert fake.Session.options["max_bytes"] == size


@pytest.mark.parametrize(
    "size", ["", "much", "2000000", "12 parsecs", "-1GB", -1, 0, 1000, True, 1e9, None, "1e9", "inf GB"]
)
def test_sizes_that_are_none_are_refused(size):
    with pytest.raises(InvalidArgument, match=r"max_bytes is .*accepted are .* at least 1048576"):
        profile(max_bytes=size)


@pytest.mark.parametrize(
    ("argument", "value", "accepted"),
    [
        ("mode", "fast", "accepted are 'full', 'ring', 'aggregate'"),
        ("graphs", "kernel", "accepted are 'node', 'launch'"),
        ("ring_seconds", 0, "accepted are seconds"),
        ("ring_seconds", float("nan"), "accepted are seconds"),
        ("ring_seconds", "10", "accepted are seconds"),
        ("schedule", 5, "accepted is a callable or None"),
        ("on_trace_ready", "print", "accepted is a callable or None"),
        ("activities", [], "at least one of ProfilerActivity.CPU, ProfilerActivity.CUDA"),
        ("activities", ["TPU"], "accepted are ProfilerActivity.CPU, ProfilerActivity.CUDA"),
        ("activities", "CPU", "accepted are ProfilerActivity.CPU, ProfilerActivity.CUDA"),
        ("activities", 3, "accepted are ProfilerActivity.CPU, ProfilerActivity.CUDA"),
        ("record_shapes", "yes", "accepted are True, False and 'operators'"),
        ("profile_memory", "operators", "accepted are True and False"),
        ("acc_events", 3, "accepted are True and False"),
        ("post_processing_timeout_s", "1", "accepted are seconds from 0, or None"),
        ("post_processing_timeout_s", -1, "must be non-negative: it is -1; accepted are seconds from 0, or None"),
        ("activities", {ProfilerActivity.CUDA: ["GPU_MEMCOPY"]}, "GPU_MEMCOPY; accepted are .*GPU_MEMCPY"),
        ("activities", [{ProfilerActivity.CUDA: ["GPU_MEMCOPY"]}], "GPU_MEMCOPY; accepted are .*GPU_MEMCPY"),
        ("custom_trace_id_callback", "id", "accepted is a callable or None"),
        ("execution_trace_observer", "trace.json", r"without start\(\); accepted are an ExecutionTraceObserver"),
        ("activities", [ProfilerActivity.CPU] * 2, "accepted is each activity once"),
    ],
)
def test_a_bad_argument_is_named_with_what_is_accepted(argument, value, accepted):
    with pytest.raises(InvalidArgument, match=accepted) as caught:
        profile(**{argument: value})
    assert str(caught.value).startswith(argument)


@pytest.mark.parametrize("timeout", [None, 0, 0.5, float("inf")])
def test_stop_waits_for_gpu_work_as_long_as_it_is_told(timeout, log):
    prof = profile()
    prof.start()
    prof.stop(timeout)
    assert fake.Session.timeout == timeout


@pytest.mark.parametrize("timeout", [-1, "2", float("nan"), True])
def test_stop_with_a_bad_timeout_leaves_the_run_as_it_is(timeout, log):
    prof = profile()
    prof.start()
    with pytest.raises(InvalidArgument, match="stop: timeout must be non-negative: it is "):
        prof.stop(timeout)
    assert "stop" not in log
    prof.stop()
    assert "stop" in log


def test_activities_of_torch_are_accepted(log):
    torch_profiler = pytest.importorskip("torch.profiler")
    prof = profile(activities=[torch_profiler.ProfilerActivity.CPU, torch_profiler.ProfilerActivity.CUDA])
    assert prof.activities == {ProfilerActivity.CPU, ProfilerActivity.CUDA}


def test_an_empty_list_of_events_leaves_its_activity_out(log):
    prof = profile(activities=[ProfilerActivity.CPU, {ProfilerActivity.CUDA: []}])
    assert prof.activities == {ProfilerActivity.CPU}


@pytest.mark.parametrize(
    ("activities", "left_out", "sync"),
    [
        ([{ProfilerActivity.CUDA: ["GPU_MEMCPY"]}], {"kernel", "memset", "api"}, False),
        ([ProfilerActivity.CPU, {ProfilerActivity.CUDA: ["GPU_MEMCPY"]}], {"kernel", "memset"}, False),
        ([{ProfilerActivity.CUDA: ["CONCURRENT_KERNEL", "CUDA_RUNTIME", "CUDA_SYNC"]}], {"memcpy", "memset"}, True),
        ([{ProfilerActivity.CPU: ["CPU_OP"]}, ProfilerActivity.CUDA], set(), False),
        (
            [{ProfilerActivity.CPU: ["CPU_OP"], ProfilerActivity.CUDA: ["GPU_MEMSET"]}],
            {"kernel", "memcpy", "api"},
            False,
        ),
        ([ProfilerActivity.CPU, ProfilerActivity.CUDA], set(), False),
    ],
)
def test_a_list_of_events_leaves_out_what_it_does_not_name(log, activities, left_out, sync):
    with profile(activities=activities) as prof:
        pass
    assert fake.Session.options["left_out"] == left_out
    assert fake.Session.options["sync"] == sync
    notes = prof.trace.store.info()["session.notes"]
    assert notes.startswith("recorded as activities asks: of ") == any(isinstance(item, dict) for item in activities)


def test_a_dictionary_of_events_need_not_be_in_a_list(log):
    with profile(activities={ProfilerActivity.CUDA: ["GPU_MEMCPY"]}):
        pass
    assert fake.Session.options["left_out"] == {"kernel", "memset", "api"}


# What torch had for this when it was written; whoever has a later one finds the same here.
@dataclasses.dataclass(kw_only=True, slots=True)
class TorchActivityConfig:
    activity_types: list | None = None
    profiler_configs: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(kw_only=True, slots=True)
class TorchMetricsConfig:
    metric_names: list
    sampling_interval_ms: float | None = None
    lookback_window_ms: float | None = None
    device_id: int = 0


@dataclasses.dataclass(kw_only=True, slots=True)
class TorchCuspyConfig:
    enable_cuda_sync_events: bool = False
    enable_environment_counters: bool = False
    enable_graph_dependencies: bool = False
    enable_event_node_ids: bool = False


CONFIGS = [
    (ProfilerActivityConfig, PerformanceMetricsConfig, CuspyConfig),
    (TorchActivityConfig, TorchMetricsConfig, TorchCuspyConfig),
]
METRICS = ["sm__cycles_active.avg", "dram__throughput.avg.pct_of_peak_sustained_elapsed"]


@pytest.mark.parametrize("kinds", CONFIGS, ids=["ours", "torch's"])
def test_configs_of_an_activity_ask_for_counters_syncs_and_device_samples(log, kinds):
    activity, metrics, cuspy = kinds
    configs = [
        metrics(metric_names=METRICS, sampling_interval_ms=0.5, lookback_window_ms=10_000),
        cuspy(enable_cuda_sync_events=True, enable_environment_counters=True),
    ]
    with profile(activities=[ProfilerActivity.CPU, {ProfilerActivity.CUDA: activity(profiler_configs=configs)}]) as p:
        pass
    assert p.activities == {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    asked = fake.Session.options
    assert list(asked["counters"]) == METRICS
    assert asked["counter_interval_ns"] == 500_000
    assert asked["sync"] is True
    assert asked["device_interval_ns"] == 100_000_000
    assert asked["left_out"] == set()
    assert "without effect" not in p.trace.store.info()["session.notes"]


@pytest.mark.parametrize("kinds", CONFIGS, ids=["ours", "torch's"])
def test_the_event_names_of_a_config_are_those_of_a_list(log, kinds):
    with profile(activities=[{ProfilerActivity.CUDA: kinds[0](activity_types=["GPU_MEMCPY"])}]):
        pass
    assert fake.Session.options["left_out"] == {"kernel", "memset", "api"}


@pytest.mark.parametrize("kinds", CONFIGS, ids=["ours", "torch's"])
def test_an_empty_config_asks_for_the_whole_activity(log, kinds):
    with profile(activities=[{ProfilerActivity.CUDA: kinds[0]()}]) as p:
        pass
    assert p.activities == {ProfilerActivity.CUDA}
    assert fake.Session.options["left_out"] == set()
    assert fake.Session.options["sync"] is False


@pytest.mark.parametrize("kinds", CONFIGS, ids=["ours", "torch's"])
def test_what_a_config_asks_for_in_vain_is_named(log, kinds):
    activity, _, cuspy = kinds
    configs = [cuspy(enable_graph_dependencies=True), TorchMetricsConfig(metric_names=METRICS, device_id=1), "theirs"]
    named = f"{cuspy.__name__}.enable_graph_dependencies, TorchMetricsConfig.device_id, str"
    with (
        pytest.warns(GpuscopeWarning, match=f"without effect in this version: {named}$"),
        profile(activities=[{ProfilerActivity.CUDA: activity(profiler_configs=configs)}]) as p,
    ):
        pass
    assert named in p.trace.store.info()["session.notes"]


def metrics_of(*configs):
    return [{ProfilerActivity.CUDA: ProfilerActivityConfig(profiler_configs=configs)}]


def test_counters_are_named_in_one_place():
    with pytest.raises(InvalidArgument, match="counters is given and activities has metric_names; accepted is one"):
        profile(activities=metrics_of(PerformanceMetricsConfig(METRICS)), counters="why")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (PerformanceMetricsConfig("sm__cycles_active.avg"), "metric_names is 'sm__cycles_active.avg'; accepted is a"),
        (PerformanceMetricsConfig(METRICS, sampling_interval_ms=0), "counter_interval_us is 0.0; accepted are 10 to"),
        (PerformanceMetricsConfig(METRICS, sampling_interval_ms="1"), "counter_interval_us is nan; accepted are 10"),
    ],
)
def test_a_bad_config_gets_one_sentence(config, complaint):
    with pytest.raises(InvalidArgument, match=complaint):
        profile(activities=metrics_of(config))


@pytest.mark.parametrize("name", ["ProfilerActivityConfig", "PerformanceMetricsConfig", "CuspyConfig"])
def test_configs_have_the_options_of_torchs(name):
    theirs = getattr(pytest.importorskip("torch.profiler"), name, None)
    if theirs is None:
        pytest.skip(f"this torch has no {name}")
    own = {field.name for field in dataclasses.fields(getattr(ours, name))}
    assert {field.name for field in dataclasses.fields(theirs)} >= own


@pytest.mark.parametrize("names", ["GPU_MEMCPY", 3, [3]])
def test_events_that_are_no_list_of_names_are_refused(names):
    with pytest.raises(InvalidArgument, match=r"activities gives CUDA the events .*accepted is a list of names"):
        profile(activities=[{ProfilerActivity.CUDA: names}])


def test_use_cuda_is_accepted_and_deprecated(log):
    with pytest.warns(FutureWarning, match="use activities instead"):
        prof = profile(use_cuda=False)
    assert prof.activities == {ProfilerActivity.CPU}


def test_the_core_is_asked_for_counters(log):
    with profile(counters="why", counter_interval_us=20):
        pass
    asked = fake.Session.options
    assert asked["counters"][0] == "gr__cycles_active.avg.pct_of_peak_sustained_elapsed"
    assert (asked["counters_in_full"], asked["counter_interval_ns"]) == (False, 20_000)
    with profile(counters=["dram__bytes.sum"]):
        pass
    asked = fake.Session.options
    assert (list(asked["counters"]), asked["counters_in_full"]) == (["dram__bytes.sum"], True)


@pytest.mark.parametrize("counters", ["speed_of_light", 3, [], [3]])
def test_counters_that_are_no_set_and_no_names_are_refused(counters):
    with pytest.raises(InvalidArgument, match=r"counters is .*; accepted is 'why', or a list of metrics"):
        profile(counters=counters)


def test_counters_need_rows_and_an_interval_that_a_gpu_can_keep():
    with pytest.raises(InvalidArgument, match="'full' and 'ring'"):
        profile(counters="why", mode="aggregate")
    with pytest.raises(InvalidArgument, match="counter_interval_us is 1; accepted are 10 to 1,000,000 us"):
        profile(counters="why", counter_interval_us=1)


def test_options_without_effect_are_said_once_and_noted_in_the_recording(log):
    with pytest.warns(GpuscopeWarning, match="without effect in this version") as caught:
        prof = profile(experimental_config=object())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with prof:
        pass
    assert prof.trace.store.info()["session.notes"] == "without effect in this version: experimental_config"


def test_notes_of_the_core_stay(log, monkeypatch):
    monkeypatch.setattr(
        fake.Store,
        "info",
        lambda self: (
            {"session.notes": "from the core", **self.facts}
            | {"session.notes": self.facts["session.notes"] or "from the core"}
        ),
    )
    with pytest.warns(GpuscopeWarning):
        prof = profile(experimental_config=object())
    with prof:
        pass
    assert prof.trace.store.facts["session.notes"].splitlines()[0] == "from the core"


def test_toggling_switches_what_is_named(log):
    with profile() as prof:
        prof.toggle_collection_dynamic(False, [ProfilerActivity.CUDA])
        prof.toggle_collection_dynamic(True, {ProfilerActivity.CUDA, ProfilerActivity.CPU})
        prof.toggle_collection_dynamic(False, [])
    assert log == ["start", "open", "gpu off", "gpu on", "regions on", "stop"]


def test_toggling_takes_the_members_of_torch(log):
    torch_profiler = pytest.importorskip("torch.profiler")
    with profile() as prof:
        prof.toggle_collection_dynamic(False, [torch_profiler.ProfilerActivity.CPU])
    assert log == ["start", "open", "regions off", "stop"]


def test_toggling_outside_a_run_does_nothing(log):
    prof = profile()
    prof.toggle_collection_dynamic(False, [ProfilerActivity.CUDA])
    with prof:
        pass
    prof.toggle_collection_dynamic(False, [ProfilerActivity.CUDA])
    assert log == ["start", "open", "stop"]


@pytest.mark.parametrize(
    ("enable", "activities", "complaint"),
    [
        (False, ["TPU"], "activities contains 'TPU'; accepted are ProfilerActivity.CPU, ProfilerActivity.CUDA"),
        (False, "CUDA", "activities contains 'CUDA'"),
        (False, None, "activities contains None"),
        ("off", [ProfilerActivity.CUDA], "enable is 'off'; accepted are True and False"),
    ],
)
def test_a_bad_toggle_is_named_with_what_is_accepted(log, enable, activities, complaint):
    with profile() as prof, pytest.raises(InvalidArgument, match=complaint):
        prof.toggle_collection_dynamic(enable, activities)
    assert log == ["start", "open", "stop"]


# -- windows together, and by hand -----------------------------------------------------------------------------------


def test_windows_accumulate_when_asked_to(log):
    seen = []
    prof = profile(
        schedule=schedule(wait=0, warmup=0, active=1, repeat=3),
        on_trace_ready=lambda p: seen.append(p.trace.store.number),
        acc_events=True,
    )
    run(prof, 3)
    assert seen == [1, (1, 2), ((1, 2), 3)]
    assert prof.trace.store.number == ((1, 2), 3)


def test_windows_are_put_together_only_when_somebody_asks(log):
    prof = run(profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=3), acc_events=True), 3)
    assert prof.trace.store.number == (1, 2, 3)
    assert prof.trace is prof.trace


def test_windows_accumulate_over_runs(log):
    prof = profile(acc_events=True)
    for _ in range(2):
        with prof:
            pass
    assert prof.trace.store.number == (1, 2)


def test_metadata_reaches_the_windows_put_together(log):
    prof = run(profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=2), acc_events=True), 2)
    store = prof.trace.store
    prof.add_metadata("model", "large")
    assert store.info()["metadata.model"] == '"large"'


def test_a_chrome_trace_is_that_of_the_latest_window_even_when_they_accumulate(log, monkeypatch, tmp_path):
    import gpuscope.exporters

    written = []
    monkeypatch.setattr(gpuscope.exporters, "export_chrome_trace", lambda store, path: written.append(store.number))
    prof = run(profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=2), acc_events=True), 2)
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert written == [2]


def test_windows_can_be_opened_and_closed_by_hand(log):
    prof = profile()
    prof.prepare_trace()
    prof.start_trace()
    with pytest.raises(NotAvailable, match="window is still open"):
        prof.tree()
    prof.stop_trace()
    assert log == ["start", "open", "stop"]
    assert prof.trace.store.number == 1


def test_the_inner_profiler_is_there_from_the_first_window_on(log):
    prof = profile(custom_trace_id_callback=lambda: "mine")
    assert prof.profiler is None
    with prof:
        assert prof.profiler.trace_id == "mine"
    assert prof.profiler.trace.store.number == 1


# -- observers of torch ----------------------------------------------------------------------------------------------


class Observer:
    def __init__(self, words):
        self.words = words

    def start(self):
        self.words.append("start")

    def stop(self):
        self.words.append("stop")

    def cleanup(self):
        self.words.append("cleanup")


@pytest.mark.parametrize("steps", range(9))
def test_an_observer_is_called_as_torch_calls_it(log, steps):
    torch_profiler = pytest.importorskip("torch.profiler")
    heard = {}
    plan = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2}
    for module, options in ((torch_profiler, {"activities": [torch_profiler.ProfilerActivity.CPU]}), (ours, {})):
        words = heard[module] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with module.profile(
                schedule=module.schedule(**plan), execution_trace_observer=Observer(words), **options
            ) as prof:
                for step in range(steps):
                    words.append(step)
                    prof.step()
    # torch opens and closes a window to end a warm-up; nothing is recorded in it.
    without = {module: " ".join(map(str, words)).replace("start stop ", "") for module, words in heard.items()}
    assert without[ours] == without[torch_profiler]


def test_an_observer_that_fails_is_said_and_the_recording_goes_on(log):
    observer = Observer([])
    observer.start = lambda: 1 / 0
    with (
        pytest.warns(GpuscopeWarning, match=r"execution_trace_observer.start\(\) failed: ZeroDivisionError"),
        profile(execution_trace_observer=observer) as prof,
    ):
        pass
    assert "failed: ZeroDivisionError" in prof.trace.store.info()["session.notes"]


def test_the_observer_of_torch_writes_its_file(log, tmp_path):
    torch = pytest.importorskip("torch")
    from gpuscope import ExecutionTraceObserver

    path = tmp_path / "trace.json"
    with profile(execution_trace_observer=ExecutionTraceObserver().register_callback(str(path))):
        torch.ones(3).sum()
    assert "aten::sum" in path.read_text()


def test_the_environment_can_ask_for_the_observer_of_torch(log, monkeypatch):
    pytest.importorskip("torch.profiler")
    monkeypatch.setenv("ENABLE_PYTORCH_EXECUTION_TRACE", "1")
    prof = profile()
    assert prof.execution_trace_observer.is_registered
    with prof:
        pass
    assert not prof.execution_trace_observer.is_registered
    os.unlink(prof.execution_trace_observer.get_output_file_path())


# -- without torch ---------------------------------------------------------------------------------------------------


@pytest.fixture
def no_torch(monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch.profiler", None)


def test_options_of_operators_are_accepted_without_torch_and_noted_only(log, no_torch):
    with profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        pass
    assert prof.trace.store.info()["session.notes"].split("\n") == [
        "record_shapes: no shapes were recorded, as the program did not import PyTorch",
        "profile_memory: no allocations of tensors were recorded, as the program did not import PyTorch",
    ]


def test_nothing_is_noted_without_torch_when_nothing_of_it_was_wanted(log, no_torch):
    with profile(with_stack=True) as prof:
        pass
    assert prof.trace.store.info()["session.notes"] == ""


def test_what_aggregate_mode_keeps_nothing_of_is_noted(log):
    pytest.importorskip("torch")
    with profile(profile_memory=True, with_flops=True, with_modules=True, mode="aggregate") as prof:
        pass
    assert prof.trace.store.info()["session.notes"].split("\n") == [
        "profile_memory: no allocations of tensors were recorded, as mode='aggregate' keeps no events",
        "with_flops: no operations were recorded, as mode='aggregate' keeps no events",
    ]


def test_names_of_torch_can_be_imported_without_it_and_say_what_is_missing(no_torch):
    from gpuscope.profiler import execution_trace

    assert execution_trace.ExecutionTraceObserver.build_execution_trace_obs_from_env() is None
    assert not execution_trace.itt.is_available()
    for use in (
        execution_trace.ExecutionTraceObserver,
        lambda: execution_trace.itt.range_push("a"),
        lambda: execution_trace._ExperimentalConfig(verbose=True),
        lambda: execution_trace.RecordScope.FUNCTION,
    ):
        with pytest.raises(NotAvailable, match="PyTorch is not installed"):
            use()


# -- metadata --------------------------------------------------------------------------------------------------------


def test_metadata_reaches_the_recording_made_and_the_one_to_come(log):
    prof = profile()
    with prof:
        prof.add_metadata("model", 'the "large" one')
    prof.add_metadata_json("shape", "[1, 2]")
    assert prof.trace.store.info()["metadata.model"] == '"the \\"large\\" one"'
    assert prof.trace.store.info()["metadata.shape"] == "[1, 2]"
    with prof:
        pass
    assert prof.trace.store.number == 2
    assert prof.trace.store.info()["metadata.shape"] == "[1, 2]"


def test_metadata_that_is_a_number_says_how_to_add_it():
    with pytest.raises(InvalidArgument, match=r"value is 0.1; accepted is text \(numbers as str\(value\), or add_meta"):
        profile().add_metadata("lr", 0.1)


@pytest.mark.parametrize("value", ["{", None, 3])
def test_metadata_that_is_not_json_is_refused(value):
    with pytest.raises(InvalidArgument, match="accepted is text in JSON"):
        profile().add_metadata_json("key", value)


@pytest.mark.parametrize(("key", "value"), [("key", '"\udcff"'), ("\udcff", "1"), ("key", b"1")])
def test_metadata_that_no_recording_can_hold_is_refused(key, value):
    with pytest.raises(InvalidArgument, match=r"metadata: .*; accepted is text"):
        profile().add_metadata_json(key, value)


def test_a_note_that_cannot_be_encoded_is_escaped():
    annotations = Annotations()
    annotations.note("what \udcff is")
    store = _core.merge([])
    annotations.write_to(store)
    assert store.info()["session.notes"] == r"what \udcff is"


@pytest.mark.parametrize("made", [uuid.UUID(int=1), None, "\udcff"])
def test_an_id_of_a_window_that_is_no_text_is_told_as_the_window_begins(log, made):
    prof = profile(custom_trace_id_callback=lambda: made)
    with pytest.raises(InvalidArgument, match=r"what custom_trace_id_callback returned is .*; accepted is text"):
        prof.start()
    assert log == ["start", "stop"]


def test_what_makes_ids_is_a_function_when_it_is_replaced_too():
    with pytest.raises(InvalidArgument, match="callback is 5; accepted is a callable or None"):
        profile().set_custom_trace_id_callback(5)


def test_each_window_has_an_id_of_its_own(log):
    names = iter(["first", "second"])
    prof = profile(schedule=schedule(wait=0, warmup=0, active=1), custom_trace_id_callback=lambda: next(names))
    assert prof.get_trace_id() is None
    with prof:
        assert prof.get_trace_id() == "first"
        prof.step()
        assert prof.trace.store.info()["trace.id"] == "first"
    assert prof.trace.store.info()["trace.id"] == "second"


# -- TensorBoard's folder --------------------------------------------------------------------------------------------


class Exported:
    def __init__(self):
        self.paths = []

    def export_chrome_trace(self, path):
        self.paths.append(path)


@pytest.fixture
def handler():
    from gpuscope.profiler import tensorboard_trace_handler

    return tensorboard_trace_handler


def test_the_handler_makes_the_folder_at_once(handler, tmp_path):
    handler(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize(("use_gzip", "suffix"), [(False, ".pt.trace.json"), (True, ".pt.trace.json.gz")])
def test_the_handler_names_files_as_tensorboard_wants_them(handler, tmp_path, use_gzip, suffix):
    exported = Exported()
    write = handler(tmp_path, "worker7", use_gzip=use_gzip)
    write(exported)
    write(exported)
    folders, names = zip(*map(os.path.split, exported.paths), strict=True)
    assert set(folders) == {str(tmp_path)}
    assert len(set(names)) == 2
    for name in names:
        assert name.startswith("worker7.")
        assert name.endswith(suffix)
        assert name.removeprefix("worker7.").removesuffix(suffix).isdigit()


def test_the_worker_is_host_and_process_unless_named(handler, tmp_path):
    exported = Exported()
    handler(tmp_path)(exported)
    assert f"_{os.getpid()}." in os.path.basename(exported.paths[0])


def test_a_folder_that_is_a_file_is_refused_before_the_run(handler, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="dir_name"):
        handler(tmp_path / "file")


def test_a_worker_name_with_a_separator_is_refused(handler, tmp_path):
    with pytest.raises(InvalidArgument, match="worker_name"):
        handler(tmp_path, "a/b")
