# SPDX-License-Identifier: Apache-2.0
"""`processes=N` measures in fresh processes: the interval comes from how they differ; one that fails costs no other.

Processes are simulated where only what they measured matters; the others are real ones.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from gpuscope import benchmark, stats
from gpuscope.benchmarking import processes
from gpuscope.benchmarking.result import BenchmarkResult, Measured
from gpuscope.errors import InvalidArgument, NotAvailable

QUICK = {"budget": 0.2}


def work(count=100):
    return sum(range(count))


def name_itself():
    print(os.getpid(), file=sys.stderr)
    return work()


def fail(kind=ValueError):
    raise kind("no such luck")


def leave():
    os._exit(7)


def die_by(number):
    os.kill(os.getpid(), number)


def leave_a_child(file):
    child = os.fork()
    if not child:
        time.sleep(20)
        file.with_suffix(".ended").touch()
        os._exit(0)
    file.write_text(str(child))
    leave()


def found(median, spread=0.001, *, random=None, quantity="wall", stopped="precision", seconds=0.1, warnings=()):
    """What a process measured."""
    random = random or np.random.default_rng(1)
    samples = median * random.normal(1, spread, 100)
    measured = Measured(quantity, samples, np.ones(100, bool), stats.estimate(samples))
    return BenchmarkResult(
        name="work",
        quantity=quantity,
        quantities={quantity: measured},
        absent={},
        kernels=(),
        converged=stopped == "precision",
        stopped=stopped,
        warnings=warnings,
        cold=True,
        clock_hz=np.full(100, np.nan),
        throttled=np.zeros(100, bool),
        bytes=None,
        flops=None,
        rates=(),
        environment={},
        seconds=seconds,
        capped=np.zeros(100, bool),
        bursts=np.full(10, 10),
        value=None,
    )


def combined(results, count=None, failures=(), interrupted=False, precision=0.01):
    starts = [0.5] * len(results)
    count = count or len(results)
    return processes.combined(results, starts, failures, count, precision, "interrupted" if interrupted else "")


# -- the interval ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 5, 10])
def test_the_interval_holds_the_centre_of_all_processes_as_often_as_it_says(count):
    random = np.random.default_rng(count)
    held = []
    for _ in range(400):
        ends = [found(1e-3 * random.normal(1, 0.02), random=random).estimate for _ in range(count)]
        estimate = processes.between(ends)
        held.append(estimate.low <= 1e-3 <= estimate.high)
    assert 0.925 <= np.mean(held) <= 0.98


def test_samples_do_not_make_up_for_processes():
    result = combined([found(1e-3), found(1.02e-3), found(0.98e-3)])
    assert result.estimate.n == 300
    assert result.estimate.n_eff == 3
    assert result.estimate.relative_half_width > 0.03


def test_processes_that_agree_by_chance_keep_the_interval_of_their_own():
    result = combined([found(1e-3, 0.05)] * 2)
    own = found(1e-3, 0.05).estimate
    assert result.estimate.high - result.estimate.low == pytest.approx((own.high - own.low) / 2**0.5)


def test_how_much_they_differ_is_printed():
    result = combined([found(1e-3), found(1.02e-3), found(0.98e-3)])
    assert result.processes.spread == pytest.approx(0.02, rel=0.1)
    assert "3 processes differ by 2" in str(result)
    assert "1.5 s to start" in result.report().replace("1.50 s", "1.5 s")


def test_how_much_they_differ_is_in_the_json_and_survives_it():
    result = combined([found(1e-3), found(1.02e-3)], count=3, failures=["ValueError: no"])
    assert json.loads(result.to_json())["processes"]["spread"] == result.processes.spread
    assert BenchmarkResult.from_json(result.to_json()).processes == result.processes


def test_samples_are_of_as_many_calls_as_any_process_has_in_one():
    results = [replace(found(1e-8), calls_per_sample=calls) for calls in (500, 1000, 500)]
    assert combined(results).calls_per_sample == 1000


def test_one_process_says_nothing_of_others():
    result = combined([found(1e-3)])
    assert result.processes.spread is None
    assert "1 process of 1, which says nothing of others" in str(result)


def test_processes_that_differ_have_not_converged():
    result = combined([found(1e-3), found(1.05e-3)])
    assert (result.converged, result.stopped) == (False, "processes")
    assert "processes differ by more" in str(result)


def test_processes_that_agree_have():
    random = np.random.default_rng(2)
    result = combined([found(1e-3, random=random) for _ in range(5)])
    assert (result.converged, result.stopped) == (True, "precision")


def test_a_process_that_fell_back_to_another_time_is_left_out():
    result = combined([found(1e-5, quantity="kernel"), found(9e-5), found(1e-5, quantity="kernel")])
    assert result.quantity == "kernel"
    assert len(result.processes.estimates) == 2
    assert any("1 of 3 processes did not come to measure kernel time" in warning for warning in result.warnings)


def test_a_warning_of_some_says_of_which():
    result = combined([found(1e-3, warnings=("all", "one")), found(1e-3, warnings=("all",))])
    assert result.warnings == ("all", "process 1: one")


# -- one after the other ---------------------------------------------------------------------------------------------


@pytest.fixture
def simulated(monkeypatch):
    """Processes with these outcomes: results, errors, or None for Ctrl-C; the budgets that they were given."""

    def simulate(*outcomes):
        budgets, left = [], list(outcomes)

        def outcome(task, budget, measuring):
            budgets.append(budget)
            one = left.pop(0)
            if isinstance(one, (BenchmarkResult, processes._Failure)):
                return one, False
            return processes._Failure(one, "a traceback"), one is None

        monkeypatch.setattr(processes, "_outcome", outcome)
        return budgets

    return simulate


def test_the_budget_is_shared_and_what_one_leaves_is_the_others(simulated):
    budgets = simulated(found(1e-3, seconds=0.4), found(1e-3, seconds=0.8), found(1e-3, seconds=0.8))
    benchmark(work, processes=3, budget=2.0)
    assert budgets == pytest.approx([2 / 3, 0.8, 0.8])


@pytest.mark.parametrize("seconds", [1.0, 30.0], ids=["its share", "more"])
def test_what_one_spends_until_it_fails_is_not_the_others(simulated, seconds):
    failed = processes._Failure(ValueError("odd"), seconds=seconds)
    budgets = simulated(found(1e-3, seconds=1.0), failed, found(1e-3, seconds=1.0))
    benchmark(work, processes=3, budget=3.0)
    assert budgets == pytest.approx([1.0, 1.0, 1.0])


def test_what_failed_is_told_once_and_what_others_measured_is_kept(simulated):
    simulated(found(1e-3), ValueError("odd"), found(1e-3), ValueError("odd"))
    result = benchmark(work, processes=4)
    assert [warning for warning in result.warnings if "odd" in warning] == [
        "2 of 4 processes failed, the first with ValueError: odd"
    ]
    assert result.n == 200
    assert not result.converged


def test_what_always_fails_is_not_tried_again_and_again(simulated):
    budgets = simulated(*[ValueError("odd")] * 5)
    with pytest.raises(ValueError, match="odd"):
        benchmark(work, processes=5)
    assert len(budgets) == 2


def test_an_interrupt_keeps_what_was_measured(simulated):
    budgets = simulated(found(1e-3), found(1e-3), None, found(1e-3))
    result = benchmark(work, processes=4)
    assert len(budgets) == 3
    assert (result.stopped, result.n) == ("interrupted", 200)


def test_an_interrupt_before_any_result_goes_on(simulated):
    simulated(None)
    with pytest.raises(KeyboardInterrupt):
        benchmark(work, processes=4)


# -- real ones -------------------------------------------------------------------------------------------------------


def test_each_is_a_fresh_process(capfd):
    said = []
    result = benchmark(name_itself, processes=2, progress=said.append, **QUICK)
    pids = {int(line) for line in capfd.readouterr().err.split()}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert len(result.processes.estimates) == 2
    assert said[:2] == ["name_itself: starting process 1 of 2", "name_itself: measuring in process 1 of 2"]


def test_their_start_is_not_in_the_budget():
    began = time.perf_counter()
    result = benchmark(work, processes=2, precision=1e-6, **QUICK)
    took = time.perf_counter() - began
    assert min(result.processes.start_seconds) > 0.05
    assert result.seconds + sum(result.processes.start_seconds) <= took


def test_what_a_function_raises_comes_through_with_its_traceback():
    with pytest.raises(ValueError, match="no such luck") as caught:
        benchmark(functools.partial(fail, ValueError), processes=1, **QUICK)
    assert "in fail" in str(caught.value.__cause__)


def test_a_process_that_ends_is_told_with_its_status():
    with pytest.raises(NotAvailable, match=r"^a process ended with status 7 while it measured$"):
        benchmark(leave, processes=1, **QUICK)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGRTMIN + 1, "35")])
def test_a_process_that_a_signal_ends_is_told_with_it(number, name):
    with pytest.raises(NotAvailable, match=f"^a process ended by signal {name} while it measured$"):
        benchmark(functools.partial(die_by, int(number)), processes=1, **QUICK)


def test_the_end_of_a_process_is_noticed_while_what_it_forked_goes_on(tmp_path):
    file = tmp_path / "child"
    with pytest.raises(NotAvailable, match="with status 7"):
        benchmark(functools.partial(leave_a_child, file), processes=1, **QUICK)
    assert not file.with_suffix(".ended").exists()
    os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (lambda: 1, (), r"^fn is <lambda>, which cannot be sent to a process \(.*\); accepted with processes= are"),
        (work, (lambda: 1,), r"^an argument of work cannot be sent to a process \(.*\); accepted with processes= is"),
    ],
)
def test_what_cannot_be_sent_gets_one_sentence(function, arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        benchmark(function, *arguments, processes=2)


@pytest.mark.parametrize(
    "count", [0, -1, 1.5, float("nan"), float("inf"), True, "3", 10**400, 10**5000], ids=map(str, range(9))
)
def test_a_bad_number_of_processes_gets_one_sentence(count):
    with pytest.raises(InvalidArgument, match=r"^processes is .{1,80}; accepted are integers from 1 to 1000$"):
        benchmark(work, processes=count)


def test_a_stream_stays_in_its_process():
    with pytest.raises(InvalidArgument, match=r"^stream is 7; accepted with processes= is None"):
        benchmark(work, processes=2, stream=7)


SCRIPT = """
import time
from dataclasses import replace
import gpuscope
calls = 0
def work():
    global calls
    calls += 1
    if calls == 1000:  # it is warmed up by then
        open("works", "w").close()
    time.sleep(0.001)
{guard}
    say = lambda text: print(text, flush=True)
    result = gpuscope.benchmark(work, processes=3, budget={budget}, precision=1e-6, progress=say)
    print(result.stopped, len(result.processes.estimates), result.n > 0)
"""


def started(tmp_path, text, **options):
    (tmp_path / "measure.py").write_text(text)
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "measure.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        **options,
    )


def test_functions_of_a_script_are_measured(tmp_path):
    out, err = started(tmp_path, SCRIPT.format(guard="if __name__ == '__main__':", budget=0.3)).communicate()
    assert err == ""
    assert out.splitlines()[-1] == "budget 3 True"


def test_a_script_that_measures_when_it_is_imported_is_told_so_once(tmp_path):
    out, err = started(tmp_path, SCRIPT.format(guard="if True:", budget=0.3)).communicate()
    assert out.count("starting process") == 1
    assert err.count("InvalidArgument: processes cannot be started while a script is imported") == 1
    assert err.splitlines()[-1].endswith("a script that it imports needs its calls under if __name__ == '__main__':")


def test_a_function_that_was_typed_in_gets_one_sentence():
    typed = "import gpuscope\ndef work(): pass\ngpuscope.benchmark(work, processes=2)"
    done = subprocess.run([sys.executable, "-c", typed], capture_output=True, text=True, check=False)
    assert "InvalidArgument: fn is work, which was typed in and is in no file; accepted with" in done.stderr


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["one", "terminal"])
def test_ctrl_c_keeps_what_there_is_and_leaves_no_process(tmp_path, send):
    text = SCRIPT.format(guard="if __name__ == '__main__':", budget=60)
    process = started(tmp_path, text, start_new_session=True)
    lines = [process.stdout.readline() for _ in range(2)]
    assert "measuring in process 1" in lines[1] or pytest.fail(process.stderr.read())
    while not (tmp_path / "works").exists() and process.poll() is None:
        time.sleep(0.02)
    send(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.splitlines()[-1] == "interrupted 1 True"
    deadline = time.monotonic() + 60  # multiprocessing's own tracker ends a moment after its owner
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process was left")
