# SPDX-License-Identifier: Apache-2.0
"""Samples of Python as they are taken: of every thread, whatever it does, and without touching the program."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

import gpuscope as gs
from fakes.disturbances import least_disturbed
from gpuscope import _core
from gpuscope.analysis.rows import stack_texts
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.profiler import profile

pytestmark = pytest.mark.skipif(not _core.knows_stacks(), reason="frames are not known in this version of Python")

OFTEN = 0.0005


def spend(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def long_part() -> None:
    spend(0.035)


def short_part() -> None:
    spend(0.015)


def in_turns(rounds: int = 12) -> None:
    for _ in range(rounds):
        long_part()
        short_part()


def sampled(work: Callable[[], object], **options: object) -> gs.Recording:
    """What samples say of a call."""
    with profile(activities=["CPU"], **{"python_samples": OFTEN, **options}) as prof:
        work()
    return prof


def shares(prof: gs.Recording) -> dict[str, float]:
    """Of each function with what it called, in the recorded time: what runs the tests may have threads of its own."""
    samples = prof.samples()
    return {function.function: function.total_ns / samples.recorded_ns for function in samples.functions}


def sampled_ns(prof: gs.Recording, system_id: int) -> int:
    """How long a thread was sampled."""
    table, threads = prof.trace.python_samples, prof.trace.threads
    return int(table.duration_ns[threads.system_id[table.thread] == system_id].sum())


def looks(prof: gs.Recording) -> float:
    """At the thread that recorded: as many looks of one length as say as much as its samples do."""
    table, threads = prof.trace.python_samples, prof.trace.threads
    own = threads.system_id[table.thread] == threading.get_native_id()
    duration_ns, count = table.duration_ns[own].astype(float), table.count[own]
    return float(duration_ns.sum() ** 2 / (duration_ns**2 / count).sum())


# -- what is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["full", "ring", "aggregate"])
@least_disturbed
def test_functions_have_the_shares_of_their_time(mode):
    took = {"long_part": 0.0, "short_part": 0.0}

    def measured_turns():
        for _ in range(12):
            for part in (long_part, short_part):
                began = time.perf_counter()
                part()
                took[part.__name__] += time.perf_counter() - began

    prof = sampled(measured_turns, mode=mode)
    found = shares(prof)
    both = found["long_part"] + found["short_part"]
    real = took["long_part"] / sum(took.values())
    # Where looks are dear, or the machine is busy, there are few: as far off as a share of so many random ones.
    assert found["long_part"] / both == pytest.approx(real, abs=0.02 + 4 * math.sqrt(0.25 / looks(prof)))


@least_disturbed
def test_the_samples_add_up_to_the_recorded_time():
    prof = sampled(in_turns)
    assert sampled_ns(prof, threading.get_native_id()) == pytest.approx(prof.samples().recorded_ns, rel=0.1)


@least_disturbed
def test_a_sample_has_the_line_that_ran():
    first = in_turns.__code__.co_firstlineno
    prof = sampled(in_turns)
    texts = {frame for stack in stack_texts(prof.trace) for frame in stack}
    assert f"{__file__}({first + 2}): in_turns" in texts
    assert f"{__file__}({first + 3}): in_turns" in texts
    assert f"{__file__}({first + 1}): in_turns" not in texts or len(texts) > 2


@least_disturbed
def test_the_time_of_a_function_in_c_that_keeps_the_gil_is_its_callers():
    numbers = np.random.default_rng(0).normal(size=400_000).tolist()

    took_ns = []

    def sort():
        began_ns = time.perf_counter_ns()
        for _ in range(4):
            sorted(numbers)
        took_ns.append(time.perf_counter_ns() - began_ns)

    functions = sampled(sort).samples().functions
    assert max(each.total_ns for each in functions if each.function.endswith("sort")) > 0.8 * took_ns[0]


@least_disturbed
def test_waiting_counts_and_is_told_from_running():
    def wait():
        time.sleep(0.3)

    functions = sampled(lambda: (spend(0.2), wait())).samples().functions
    spent = next(function for function in functions if function.function == "spend")
    waited = next(function for function in functions if function.function.endswith("wait"))
    assert waited.total_ns > 0.2e9
    assert waited.cpu_ns < 0.1 * waited.total_ns
    assert waited.cpu_ns < 0.5 * spent.cpu_ns


@least_disturbed
def test_generators_and_coroutines_are_under_those_who_run_them():
    def numbers():
        for _ in range(10):
            spend(0.02)
            yield 1

    async def inner():
        spend(0.05)
        await asyncio.sleep(0)
        spend(0.05)

    async def outer():
        await inner()

    prof = sampled(lambda: (sum(numbers()), asyncio.run(outer())))
    stacks = [[frame.split(": ")[1] for frame in stack] for stack in stack_texts(prof.trace)]
    prefix = "test_generators_and_coroutines_are_under_those_who_run_them.<locals>." * (sys.version_info >= (3, 11))
    own = [[name.removeprefix(prefix) for name in stack] for stack in stacks]
    assert any(stack[:3] == ["spend", "numbers", "<lambda>"] for stack in own)
    assert any(stack[:3] == ["spend", "inner", "outer"] for stack in own)


@least_disturbed
def test_a_generator_that_goes_on_each_moment_is_under_its_caller():
    def total():
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            sum(number for number in range(20_000))

    samples = sampled(total).samples()
    alone = sum(root.total_ns for root in samples.roots if root.function.endswith("<genexpr>"))
    inside = sum(each.total_ns for each in samples.functions if each.function.endswith("<genexpr>"))
    assert 0 <= alone < 0.05 * inside


@least_disturbed
def test_deep_recursion_keeps_the_innermost_frames():
    def deep(levels):
        if levels:
            return deep(levels - 1)
        return spend(0.2)

    prof = sampled(lambda: deep(600))
    samples = prof.samples()
    assert max(map(len, stack_texts(prof.trace))) == 257
    assert {stack[-1] for stack in stack_texts(prof.trace) if len(stack) == 257} == {"(0): (more frames)"}
    spent = samples.find("spend")
    assert spent is not None
    assert spent.total_ns > 0.14e9
    recursive = next(function for function in samples.functions if function.function.endswith("deep"))
    assert recursive.total_ns <= samples.recorded_ns * 1.05  # counted once


@least_disturbed
def test_code_without_a_file_has_the_name_that_it_was_compiled_with():
    names: dict[str, object] = {"spend": spend}
    exec(compile("def made():\n    spend(0.1)\n", "<made up>", "exec"), names)
    found = sampled(names["made"]).samples().find("made")
    assert found is not None
    assert found.file == "<made up>"
    assert found.line == 2


@least_disturbed
def test_names_of_any_alphabet_are_read():
    names: dict[str, object] = {"spend": spend}
    exec(compile("def größe_量_ߜ():\n    spend(0.1)\n", "<código 数>", "exec"), names)
    function = next(value for key, value in names.items() if key.startswith("größe"))
    found = sampled(function).samples().find(function.__name__)
    assert found is not None
    assert found.file == "<código 数>"


@least_disturbed
def test_functions_made_again_and_again_are_told_apart():
    def make_and_call():
        until = time.perf_counter() + 1.0
        number = 0
        while time.perf_counter() < until:
            number += 1
            names: dict[str, object] = {"spend": spend}
            text = f"def made_{number % 3}():\n" + "\n" * (number % 3) + "    spend(0.004)\n"
            exec(compile(text, f"<made {number % 3}>", "exec"), names)
            names[f"made_{number % 3}"]()

    found = {function.function: function for function in sampled(make_and_call).samples().functions}
    for number in range(3):
        function = found[f"made_{number}"]
        assert (function.file, function.line) == (f"<made {number}>", number + 2)


# -- threads ---------------------------------------------------------------------------------------------------------


def in_four_threads() -> tuple[gs.Recording, list[threading.Thread]]:
    """A recording of four threads that run for a while, and those that are not the main one."""
    workers = [threading.Thread(target=spend, args=(0.3,), name=f"worker {number}") for number in range(3)]

    def work():
        for thread in workers:
            thread.start()
        spend(0.3)
        for thread in workers:
            thread.join()

    return sampled(work), workers


@least_disturbed
def test_every_thread_is_sampled():
    prof, workers = in_four_threads()
    assert all(
        sampled_ns(prof, thread) for thread in (threading.get_native_id(), *(each.native_id for each in workers))
    )


def test_every_thread_has_one_row():
    threads = in_four_threads()[0].trace.threads
    assert len(set(threads.system_id.tolist())) == len(threads)


@least_disturbed
def test_a_thread_that_opens_regions_has_one_row():
    def work():
        def inside():
            spend(0.1)
            with gs.record_function("region"):
                spend(0.1)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()

    prof = sampled(work)
    (region,) = prof.trace.regions.thread.tolist()
    assert region in prof.trace.python_samples.thread.tolist()
    assert len(set(prof.trace.threads.system_id.tolist())) == len(prof.trace.threads)


def in_thousands_of_threads() -> gs.Recording:
    def work():
        for _ in range(60):
            threads = [threading.Thread(target=spend, args=(0.0005,)) for _ in range(40)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    return sampled(work)


def test_threads_that_come_and_go_in_thousands_leave_whole_samples():
    prof = in_thousands_of_threads()
    assert prof.audit().complete
    table = prof.trace.python_samples
    assert (table.duration_ns > 0).all()
    assert (table.cpu_ns <= table.duration_ns).all()


@least_disturbed
def test_threads_that_come_and_go_in_thousands_are_sampled():
    assert shares(in_thousands_of_threads())["spend"] > 0.05


@least_disturbed
def test_a_profile_in_a_thread_samples_the_main_one_too():
    result = []

    def record():
        with profile(activities=["CPU"], python_samples=OFTEN) as prof:
            time.sleep(0.3)
        result.append(prof)

    thread = threading.Thread(target=record)
    thread.start()
    while thread.is_alive():
        spend(0.01)
    assert "spend" in shares(result[0])


# -- the program is left alone ---------------------------------------------------------------------------------------


def test_the_programs_files_stay_its_own():
    sampled(in_turns)  # a process's first recording opens the page by which monitors know it
    reading, writing = os.pipe()
    before = sorted(os.listdir("/proc/self/fd"))

    def work():
        spend(0.05)
        assert sorted(os.listdir("/proc/self/fd")) == before
        os.close(writing)
        assert os.read(reading, 1) == b""  # nobody else holds the other end

    sampled(work)
    os.close(reading)


def test_sampling_is_not_seen_by_the_code_of_this_package():
    prof = sampled(in_turns)
    assert not any(function.file.startswith(os.path.dirname(gs.__file__)) for function in prof.samples().functions)


def test_nothing_is_sampled_unless_asked_for():
    prof = sampled(in_turns, python_samples=False)
    assert not prof.samples()
    assert len(prof.trace.python_samples) == 0
    assert not any(key.startswith("samples.") for key in prof.trace.info)
    assert "outside" not in {event.kind for event in prof.key_averages()}


def program(text: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import gpuscope as gs, os, sys, threading, time\n" + text]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize(
    "end", ["", "sys.exit(0)", "os._exit(0)", "raise SystemExit", "threading.Thread(target=loop).start()"]
)
def test_the_interpreter_ends_while_samples_are_taken(end):
    ran = program(
        "def loop():\n    for _ in range(100_000): pass\n"
        "threading.Thread(target=lambda: [loop() for _ in range(10_000)], daemon=True).start()\n"
        f"prof = gs.profile(python_samples=1e-4)\nprof.start()\nloop()\n{end}\n"
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_fork_leaves_parent_and_child_able_to_sample():
    ran = program(
        """\
def spend(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until: pass
def record():
    with gs.profile(activities=["CPU"], python_samples=1e-3) as prof:
        spend(0.05)
    return prof.samples().find("spend") is not None
def can_record():  # the sampler may get no CPU for a while
    return any(record() for _ in range(5))
record()  # imports what children need
prof = gs.profile(activities=["CPU"], python_samples=1e-4)
prof.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if can_record() else 1)
    assert os.waitpid(child, 0)[1] == 0
prof.stop()
print(prof.samples().count > 0, can_record())
"""
    )
    assert ran.stdout == "True True\n", ran.stderr


# -- windows, modes and files ----------------------------------------------------------------------------------------


def test_samples_of_a_window_lie_in_it():
    windows = []
    with profile(
        activities=["CPU"],
        python_samples=OFTEN,
        schedule=gs.schedule(wait=1, warmup=0, active=1, repeat=2),
        on_trace_ready=lambda prof: windows.append(prof.trace),
    ) as prof:
        for _ in range(4):
            spend(0.05)
            prof.step()
    assert len(windows) == 2
    for trace in windows:
        table = trace.python_samples
        assert len(table)
        assert table.start_ns.min() >= int(trace.info["session.start_ns"])
        assert (table.start_ns + table.duration_ns).max() <= int(trace.info["session.stop_ns"])


@least_disturbed
def test_the_ring_keeps_the_latest_samples():
    prof = sampled(lambda: [part(0.3) for part in (spend, time.sleep, spend)], mode="ring", ring_seconds=0.2)
    table = prof.trace.python_samples
    stop_ns = int(prof.trace.info["session.stop_ns"])
    assert len(table)
    assert table.start_ns.min() > stop_ns - 0.8e9
    assert (table.start_ns + table.duration_ns).max() > stop_ns - 0.1e9


@least_disturbed
def test_aggregate_mode_keeps_a_row_for_each_stack():
    prof = sampled(in_turns, mode="aggregate")
    table = prof.trace.python_samples
    assert len(set(zip(table.stack.tolist(), table.thread.tolist(), strict=True))) == len(table)
    assert int(table.count.sum()) == prof.samples().count > len(table)


def test_a_file_holds_what_was_sampled(tmp_path):
    prof = sampled(in_turns)
    prof.save(tmp_path / "run.gscope")
    loaded = gs.load(tmp_path / "run.gscope")
    assert loaded.samples().to_dict() == prof.samples().to_dict()
    for name in prof.trace.python_samples.columns:
        assert (loaded.trace.python_samples[name] == prof.trace.python_samples[name]).all()


def test_a_file_that_is_cut_off_has_some_of_them(tmp_path):
    path = tmp_path / "run.gscope"
    sampled(in_turns).save(path)
    whole = path.read_bytes()
    for end in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:end])
        try:
            recording = gs.load(path)
        except GpuscopeError:
            continue
        samples = recording.samples()
        assert samples.render()
        assert samples.table()


# -- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 0.0, -1, -0.001, math.nan, math.inf, "1ms", "", 1e-9, 11, [1], b"1"])
def test_what_is_no_interval_gets_one_sentence(value):
    with pytest.raises(InvalidArgument) as caught:
        profile(python_samples=value)
    message = str(caught.value)
    assert message.startswith("python_samples is ")
    assert message.endswith("; accepted are True, False and seconds from 0.0001 to 10")
    assert "\n" not in message


@pytest.mark.parametrize("value", [True, False, None, 1, 1e-4, np.float32(0.01), Fraction(1, 100)])
def test_intervals_are_taken_in_any_kind_of_number(value):
    profile(python_samples=value)


# -- what held the program up ------------------------------------------------------------------------------------------

SOURCES = ("thread_waits", "process_usages", "control_group_usages.throttled_ns", "control_group_usages.io_wait_ns")


def is_recorded(prof: gs.Recording, source: str) -> bool:
    return prof.trace.info[f"host.{source}"] == "recorded"


def test_each_source_of_waits_is_recorded_or_has_a_reason():
    prof = sampled(lambda: spend(0.25))
    assert all(prof.trace.info[f"host.{source}"] for source in SOURCES)
    groups = prof.trace.control_group_usages
    for source in ("throttled_ns", "io_wait_ns"):
        known = groups[source] >= 0
        assert (known.all() and len(groups)) if is_recorded(prof, f"control_group_usages.{source}") else not known.any()


def test_without_samples_nothing_is_said_of_waits():
    prof = sampled(lambda: spend(0.05), python_samples=False)
    assert not any(key.startswith("host.") for key in prof.trace.info)
    assert len(prof.trace.process_usages) == len(prof.trace.thread_waits) == 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system keeps no process to a CPU")
@least_disturbed
def test_a_thread_that_shares_its_cpu_waits_for_it():
    cpus = os.sched_getaffinity(0)
    one = {min(cpus)}
    code = "import os, time\nend = time.time() + 20\nwhile time.time() < end and os.getppid() > 1: pass"
    other = subprocess.Popen([sys.executable, "-c", code], preexec_fn=lambda: os.sched_setaffinity(0, one))
    try:
        with profile(activities=["CPU"], python_samples=True) as prof:
            os.sched_setaffinity(0, one)  # of this thread alone
            spend(1.0)
            os.sched_setaffinity(0, cpus)
    finally:
        other.kill()
        other.wait()
    if not is_recorded(prof, "thread_waits"):
        pytest.skip(prof.trace.info["host.thread_waits"])
    table, threads = prof.trace.thread_waits, prof.trace.threads
    own = threads.system_id[table.thread] == threading.get_native_id()
    assert table.wait_ns[own].sum() > 0.15e9
    assert (table.wait_ns + table.cpu_ns <= table.duration_ns).all()
    usages = prof.trace.process_usages
    child = usages.process == other.pid
    assert usages.cpu_ns[child].sum() > 0.03e9  # on a busy machine it has little of its CPU


def test_a_child_process_is_seen_with_its_cpu_time():
    code = "import time\nwhile time.process_time() < 1.5: pass"  # child processes are looked for each half a second
    pids = []

    def work() -> None:
        child = subprocess.Popen([sys.executable, "-c", code])
        pids.append(child.pid)
        child.wait()

    usages = sampled(work).trace.process_usages
    child, own = (usages.process == pid for pid in (pids[0], os.getpid()))
    assert usages.cpu_ns[child].sum() > 0  # how much depends on who else wants the CPUs
    assert own.any()
    assert (usages.duration_ns > 0).all()


def test_waits_are_the_same_in_a_file(tmp_path):
    prof = sampled(lambda: spend(0.3))
    prof.save(tmp_path / "run.gscope")
    loaded = gs.load(tmp_path / "run.gscope")
    for table in ("thread_waits", "process_usages", "control_group_usages"):
        mine, theirs = getattr(prof.trace, table), getattr(loaded.trace, table)
        assert all((mine[name] == theirs[name]).all() for name in mine.columns)
    assert {key for key in loaded.trace.info if key.startswith("host.")} == {f"host.{source}" for source in SOURCES}
