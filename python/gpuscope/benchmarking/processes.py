# SPDX-License-Identifier: Apache-2.0
"""Repeats a measurement in fresh processes, one after the other.

Memory placement, hash seeds and the like are constant in a process and differ between processes; pyperf and benchstat
repeat in processes for the same reason. They are started by "spawn", as CUDA does not survive a fork.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import cast

import numpy as np

from gpuscope import stats
from gpuscope.benchmarking.engine import CPU_TICK, GPU_TICK, function_name
from gpuscope.benchmarking.result import BenchmarkResult, Measured, Processes
from gpuscope.benchmarking.roofline import rate_at
from gpuscope.benchmarking.samples import mean_kernels
from gpuscope.benchmarking.stopping import CONFIDENCE, now
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.results import kept_on_error
from gpuscope.stats.distributions import student_factor
from gpuscope.units import first_line

MOST_PROCESSES = 1000
# Seconds to wait after Ctrl-C for a process: to send its result by itself if the terminal interrupted it too, to send
# it after our signal, and to end.
_BY_ITSELF, _AFTER_SIGNAL, _TO_END = 0.5, 3.0, 1.0
_LOOK = 1.0  # seconds between two checks that the process is alive
_FAILURES = 2  # before any result, after which no further process is started

Task = Callable[[float], BenchmarkResult]
"""Measures for this many seconds. Picklable."""


class InProcess(GpuscopeError):  # noqa: N818 - the cause of an error, as concurrent.futures has it
    """The traceback of an error in another process."""


@dataclass(frozen=True)
class _Failure:
    """The end of a process by an error with its traceback, or by Ctrl-C."""

    error: Exception | None
    traceback: str = ""
    before: bool = False  # the process died before it read the task, as others would
    seconds: float = 0.0  # spent measuring

    @property
    def sentence(self) -> str:
        return f"{type(self.error).__name__}: {first_line(str(self.error))}"


def pickled(task: Callable[..., BenchmarkResult], function: object) -> bytes:
    """The task as bytes, to send to the processes.

    Raises:
        InvalidArgument: a process could not import `function`, or an argument cannot be pickled.
    """
    name = function_name(function)
    accepted = "accepted with processes= are functions of modules or of a script's file, and functools.partial of them"
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    main = sys.modules.get("__main__")
    if getattr(inner, "__module__", None) == "__main__" and not _can_be_imported(main):
        raise InvalidArgument(f"fn is {name}, which was typed in and is in no file; {accepted}")
    try:
        pickle.dumps(inner)
    except Exception as error:  # whatever __reduce__ raises
        why = first_line(str(error)) or type(error).__name__
        raise InvalidArgument(f"fn is {name}, which cannot be sent to a process ({why}); {accepted}") from error
    try:
        return pickle.dumps(task)
    except Exception as error:
        why = first_line(str(error)) or type(error).__name__
        raise InvalidArgument(
            f"an argument of {name} cannot be sent to a process ({why}); accepted with processes= is what pickle takes"
        ) from error


def _can_be_imported(main: object) -> bool:
    """Whether processes can import this ``__main__``: a module, or the file of a script."""
    path = getattr(main, "__file__", None)
    return getattr(main, "__spec__", None) is not None or (path is not None and os.path.isfile(path))


def in_processes(
    task: bytes,
    count: int,
    *,
    name: str,
    budget: float,
    precision: float,
    progress: Callable[[str], object] | None = None,
) -> BenchmarkResult:
    """Runs the task in `count` fresh processes, which share the budget; their start is not counted.

    Ctrl-C ends the current process and keeps the results so far. A failed process becomes a warning.

    Raises:
        NotAvailable: a process ended before it could measure.
        Exception: raised by the task in all processes, or by `progress`.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InvalidArgument(
            "processes cannot be started while a script is imported in one of them; accepted are calls under "
            "if __name__ == '__main__':"
        )
    say = progress or (lambda text: None)
    results: list[BenchmarkResult] = []
    starts: list[float] = []
    failures: list[_Failure] = []
    spent = 0.0  # of the budget

    def result(cut_short: str) -> BenchmarkResult:
        return combined(results, starts, [each.sentence for each in failures], count, precision, cut_short)

    def measure() -> str:
        nonlocal spent
        for number in range(1, count + 1):
            share = max(budget - spent, 0.0) / (count + 1 - number) or sys.float_info.min
            began = now()
            say(f"{name}: starting process {number} of {count}")
            measuring = functools.partial(say, f"{name}: measuring in process {number} of {count}")
            outcome, interrupted = _outcome(task, share, measuring)
            if isinstance(outcome, BenchmarkResult):
                results.append(outcome)
                spent += outcome.seconds
                starts.append(max(now() - began - outcome.seconds, 0.0))
                interrupted = interrupted or outcome.stopped == "interrupted"
            elif outcome.error is not None:
                failures.append(outcome)
                spent += min(outcome.seconds, share)  # its first call may have taken much longer
            else:
                interrupted = True
            if interrupted:
                return "interrupted"
            if not results and (len(failures) >= _FAILURES or failures[-1].before):
                break
        return ""

    with kept_on_error(lambda: result("error") if results else None):
        try:
            cut_short = measure()
        except KeyboardInterrupt:
            cut_short = "interrupted"
    if not results:
        if failures and failures[0].error is not None:
            raise failures[0].error from (InProcess(failures[0].traceback) if failures[0].traceback else None)
        raise KeyboardInterrupt
    return result(cut_short)


def _outcome(task: bytes, budget: float, measuring: Callable[[], object]) -> tuple[BenchmarkResult | _Failure, bool]:
    """The result or the failure of one process, and whether Ctrl-C was pressed meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_child, args=(sender, task, budget))
    interrupted = ready = False
    began = now()
    try:
        try:
            with _later_interrupts():
                try:
                    process.start()
                except OSError as error:
                    raise NotAvailable(
                        f"another process is not available: the system starts none ({error.strerror}); raise the limit "
                        "of processes (ulimit -u, the container's pids.max) or of memory, or measure without processes="
                    ) from error
                sender.close()
            if answer := _received(receiver, process):  # it failed before it could measure
                return _unpickled(answer), False
            ready, began = True, now()
            measuring()
            outcome = _unpickled(_received(receiver, process))
            return replace(outcome, seconds=now() - began) if isinstance(outcome, _Failure) else outcome, False
        except KeyboardInterrupt:
            interrupted = True
            return _last_words(receiver, process), True
    except EOFError:
        process.join(_TO_END)
        if interrupted:
            return _Failure(None), True
        return _Failure(_died(process, ready), before=not ready, seconds=now() - began if ready else 0.0), False
    finally:
        _end(process)
        receiver.close()


def _unpickled(answer: bytes) -> BenchmarkResult | _Failure:
    return cast("BenchmarkResult | _Failure", pickle.loads(answer))


def _received(receiver: connection.Connection, process: SpawnProcess) -> bytes:
    """The process's next message. A process that it forked may keep the pipe open after its death."""
    while not receiver.poll(_LOOK):
        if not process.is_alive() and not receiver.poll():
            raise EOFError
    return receiver.recv_bytes()


def _last_words(receiver: connection.Connection, process: SpawnProcess) -> BenchmarkResult | _Failure:
    """The result of an interrupted process."""
    if process.pid is None:
        return _Failure(None)
    for patience in (_BY_ITSELF, _AFTER_SIGNAL):
        while receiver.poll(patience):
            answer = receiver.recv_bytes()
            if answer:
                return _unpickled(answer)
        if patience == _BY_ITSELF and process.is_alive():
            os.kill(process.pid, signal.SIGINT)
    return _Failure(None)


def _died(process: SpawnProcess, ready: bool) -> NotAvailable:
    code = process.exitcode
    how = f"with status {code}"
    if code is not None and code < 0:
        how = f"by signal {next((one.name for one in signal.Signals if one == -code), -code)}"
    if ready:
        return NotAvailable(f"a process ended {how} while it measured")
    return NotAvailable(
        f"a process ended {how} before it measured; a script that it imports needs its calls under "
        "if __name__ == '__main__':"
    )


def _end(process: SpawnProcess) -> None:
    """Ends the process, by force if needed."""
    if process.pid is None:
        return
    process.join(_TO_END)
    for stop in (process.terminate, process.kill):
        if process.is_alive():
            stop()
            process.join(_TO_END)
    with contextlib.suppress(ValueError):  # still alive: nothing more can be done
        process.close()


@contextlib.contextmanager
def _later_interrupts() -> Iterator[None]:
    """Blocks SIGINT here and in processes started meanwhile, until they measure."""
    resource_tracker.ensure_running()  # its start would unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _child(sender: connection.Connection, task: bytes, budget: float) -> None:
    """Sends an empty message, measures, and sends the outcome. Prints go to standard error."""
    outcome: BenchmarkResult | _Failure
    try:
        with contextlib.redirect_stdout(sys.stderr or io.StringIO()):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            run: Task = pickle.loads(task)
            sender.send_bytes(b"")
            outcome = replace(run(budget), value=None)
    except KeyboardInterrupt:
        outcome = _Failure(None)
    except BaseException as error:  # SystemExit among them
        partial = getattr(error, "measured", None)
        if isinstance(partial, BenchmarkResult):
            with contextlib.suppress(Exception):
                error.measured = replace(partial, value=None)  # type: ignore[attr-defined]
        outcome = _Failure(_sendable(error), traceback.format_exc())
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):  # the parent has closed the pipe
        sender.send_bytes(pickle.dumps(outcome))


def _sendable(error: BaseException) -> Exception:
    """The error if it survives pickling, else its text."""
    with contextlib.suppress(Exception):
        if isinstance(error, Exception) and type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return GpuscopeError(f"{type(error).__name__}: {error}") if isinstance(error, Exception) else left_program(error)


def left_program(error: BaseException) -> InvalidArgument:
    """The error for code that raises SystemExit or the like, which would end our program."""
    return InvalidArgument(
        f"the code to measure leaves the program ({first_line(error)}); accepted is code that returns, or raises an "
        "Exception"
    )


def between(estimates: Sequence[stats.Estimate]) -> stats.Estimate:
    """The mean of processes' estimates, with Student's interval from their differences.

    Each estimate is one independent observation. As a few may agree by chance, the interval is at least as wide as
    the estimates' own intervals imply for equal processes.
    """
    if len(estimates) == 1:
        return estimates[0]
    values, count = np.array([each.value for each in estimates]), len(estimates)
    own = np.array([(each.high - each.low) / 2 for each in estimates])
    own = own[np.isfinite(own)]
    error = float(values.std(ddof=1)) / math.sqrt(count)
    half = student_factor(CONFIDENCE, count - 1) * error
    half = max(half, float(own.mean()) / math.sqrt(count) if len(own) else 0.0)
    value, n = float(values.mean()), sum(each.n for each in estimates)
    return stats.Estimate(value, max(value - half, 0.0), value + half, n, float(count), "mean of processes", CONFIDENCE)


def combined(
    results: Sequence[BenchmarkResult],
    starts: Sequence[float],
    failures: Sequence[str],
    count: int,
    precision: float,
    cut_short: str = "",
) -> BenchmarkResult:
    """Joins results of processes: all samples, and intervals from the differences between them.

    `cut_short` is "interrupted" or "error" if that ended the measurement before all processes had measured.
    """
    headline = Counter(each.quantity for each in results).most_common(1)[0][0]
    used = [number for number, each in enumerate(results) if each.quantity == headline]
    others, results = len(results) - len(used), [results[number] for number in used]
    first = results[0]
    quantities = {
        name: _joined([each.quantities[name] for each in results])
        for name in first.quantities
        if all(name in each.quantities for each in results)
    }
    absent = {name: why for each in results for name, why in each.absent.items() if name not in quantities}
    absent |= {name: "not all processes have it" for name in first.quantities if name not in quantities | absent}
    estimate = quantities[headline].estimate
    converged = not cut_short and len(results) == count and estimate.relative_half_width <= precision
    if cut_short:
        stopped = cut_short
    elif converged:
        stopped = "precision"
    else:
        stopped = "processes" if all(each.stopped == "precision" for each in results) else "budget"
    warnings = _failed(failures, count)
    if others:
        warnings.append(f"{others} of {count} processes did not come to measure {headline} time and are left out")
    calls_per_sample = max(each.calls_per_sample for each in results)
    tick = GPU_TICK if first.on_gpu else CPU_TICK / calls_per_sample
    made = replace(
        first,
        quantities=quantities,
        absent=absent,
        kernels=mean_kernels([(each.kernels, each.n) for each in results]),
        converged=converged,
        stopped=stopped,
        warnings=(*warnings, *_shared_warnings(results)),
        clock_hz=np.concatenate([each.clock_hz for each in results]),
        throttled=np.concatenate([each.throttled for each in results]),
        capped=np.concatenate([each.capped for each in results]),
        bursts=np.concatenate([each.bursts for each in results]),
        rates=tuple(rate_at(rate, estimate, first.bytes, first.flops) for rate in first.rates),
        seconds=sum(each.seconds for each in results),
        calls_per_sample=calls_per_sample,
        processes=Processes(
            count, tuple(each.estimate for each in results), tuple(starts[number] for number in used), tuple(failures)
        ),
    )
    return replace(made, modes=stats.modes(made.samples, tick=tick))


def _joined(parts: Sequence[Measured]) -> Measured:
    return Measured(
        parts[0].quantity,
        np.concatenate([each.samples for each in parts]),
        np.concatenate([each.valid for each in parts]),
        between([each.estimate for each in parts]),
    )


def _failed(failures: Sequence[str], count: int) -> list[str]:
    if not failures:
        return []
    return [f"{len(failures)} of {count} processes failed, the first with {failures[0]}"]


def _shared_warnings(results: Sequence[BenchmarkResult]) -> list[str]:
    """Each warning once, with the process where only one has it."""
    found: dict[str, list[int]] = {}
    for number, each in enumerate(results, 1):
        for warning in each.warnings:
            found.setdefault(warning, []).append(number)
    return [
        warning if len(numbers) == len(results) else f"process {', '.join(map(str, numbers))}: {warning}"
        for warning, numbers in found.items()
    ]
