# SPDX-License-Identifier: Apache-2.0
"""Out-of-memory errors are written up once, wherever they are seen, and harm nothing."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import sys
import threading
import weakref
from functools import partial
from types import SimpleNamespace

import pytest

from fakes.memory_machine import OutOfMemoryError
from fakes.memory_parts import parts
from gpuscope.errors import InvalidArgument
from gpuscope.memory.limits import out_of_memory, out_of_memory_reports
from gpuscope.memory.limits.out_of_memory_reports import MOST, ExceptHook, muted, report_out_of_memory

TEXT = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB"
ASKED = 20 << 20


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch):
    """Reports have nothing to ask, and hooks of no test outlive it."""
    for name, answer in parts().items():
        monkeypatch.setattr(out_of_memory, name, answer)
    yield
    assert not isinstance(sys.excepthook, ExceptHook)
    assert not isinstance(threading.excepthook, ExceptHook)
    assert out_of_memory_reports._reporter.listeners == []


@pytest.fixture
def file():
    return io.StringIO()


def run_out(text=TEXT):
    raise OutOfMemoryError(text)


def leaving(reports, *calls):
    """Makes the calls within the context, of which the last runs out of memory."""
    with pytest.raises(OutOfMemoryError), reports:
        [call() for call in calls]
    return reports


def test_an_error_that_leaves_the_context_is_reported_and_goes_on(file):
    error = OutOfMemoryError(TEXT)
    with pytest.raises(OutOfMemoryError) as raised, report_out_of_memory(file=file) as reports:
        raise error
    assert raised.value is error
    assert (error.args, error.__cause__, error.__context__) == ((TEXT,), None, None)
    assert [(each.requested_bytes, each.device, each.library) for each in reports.reports] == [(ASKED, 0, "torch")]
    assert file.getvalue().startswith("gpuscope: out of GPU memory: torch asked for 20.0 MiB on GPU 0")


def test_the_stack_leads_from_the_line_that_ran_out_to_the_caller(file):
    with pytest.raises(OutOfMemoryError), report_out_of_memory(file=file) as reports:
        run_out()
    functions = [frame.function for frame in reports.reports[0].stack]
    assert functions[:2] == ["run_out", "test_the_stack_leads_from_the_line_that_ran_out_to_the_caller"]
    assert len(functions) > 2
    assert re.search(r"  at test_out_of_memory_watch.py:\d+ run_out", file.getvalue())


def test_other_errors_are_none_of_its_business(file):
    with pytest.raises(KeyError), report_out_of_memory(file=file) as reports:
        raise KeyError("x")
    assert (reports.count, file.getvalue()) == (0, "")


def test_an_error_that_passes_several_contexts_is_reported_and_printed_once(file):
    outer, inner = report_out_of_memory(file=file), report_out_of_memory(file=file)
    with pytest.raises(OutOfMemoryError), outer, inner:
        run_out()
    assert (outer.count, inner.count) == (1, 1)
    assert outer.reports == inner.reports
    assert file.getvalue().count("out of GPU memory") == 1


def test_an_error_wrapped_on_its_way_is_reported_once(file):
    def step():
        try:
            with report_out_of_memory(file=file):
                run_out()
        except OutOfMemoryError as error:
            raise ValueError("step") from error

    with pytest.raises(ValueError, match="step"), report_out_of_memory(file=file) as outer:
        step()
    assert outer.count == 1


def test_an_error_with_the_text_of_its_reported_cause_is_the_same(file):
    def step():
        try:
            with report_out_of_memory(file=file):
                run_out()
        except OutOfMemoryError as error:
            raise RuntimeError(f"step 3 failed: {error}") from error

    with pytest.raises(RuntimeError, match="step 3"), report_out_of_memory(file=file) as outer:
        step()
    assert outer.count == 1


def test_a_second_try_that_runs_out_too_is_a_report_of_its_own(file):
    def step():
        try:
            with report_out_of_memory(file=file):
                run_out()
        except OutOfMemoryError:
            run_out()

    with pytest.raises(OutOfMemoryError), report_out_of_memory(file=file) as outer:
        step()
    assert outer.count == 2


def test_an_error_that_nobody_catches_is_reported_before_the_previous_hook(file, monkeypatch):
    order = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: order.append((args[1], file.getvalue() != "")))
    reports = report_out_of_memory(file=file)
    error = OutOfMemoryError(TEXT)
    sys.excepthook(OutOfMemoryError, error, None)
    reports.close()
    assert order == [(error, True)]


def test_an_error_that_nobody_catches_on_a_thread_is_reported(file, monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    with report_out_of_memory(file=file) as reports:
        thread = threading.Thread(target=run_out, name="loader")
        thread.start()
        thread.join()
    assert [each.thread for each in reports.reports] == ["loader"]
    assert len(seen) == 1


def test_closing_puts_the_hooks_back():
    before = sys.excepthook, threading.excepthook
    reports = report_out_of_memory()
    assert sys.excepthook is not before[0]
    reports.close()
    reports.close()
    assert (sys.excepthook, threading.excepthook) == before


def test_a_hook_that_came_later_stays_and_is_not_called_in_circles(file, monkeypatch):
    calls = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: calls.append("first"))
    reports = report_out_of_memory(file=file)
    ours = sys.excepthook

    def later(*args):
        calls.append("later")
        ours(*args)

    sys.excepthook = later
    reports.close()
    assert sys.excepthook is later
    with report_out_of_memory(file=file) as again:
        sys.excepthook(OutOfMemoryError, OutOfMemoryError(TEXT), None)
    assert sys.excepthook is later
    assert calls == ["later", "first"]
    assert (reports.count, again.count) == (0, 1)


def test_as_a_decorator_it_is_on_during_calls_only(file):
    @report_out_of_memory(file=file)
    def step(depth):
        """Docstring."""
        assert sys.excepthook is not before
        return step(depth - 1) if depth else run_out()

    before = sys.excepthook
    for _ in range(2):
        with pytest.raises(OutOfMemoryError):
            step(2)
    assert step.__doc__ == "Docstring."
    assert file.getvalue().count("out of GPU memory") == 2


def test_as_a_decorator_of_a_coroutine_it_waits_for_its_end(file):
    @report_out_of_memory(file=file)
    async def step():
        await asyncio.sleep(0)
        run_out()

    with pytest.raises(OutOfMemoryError):
        asyncio.run(step())
    assert "out of GPU memory" in file.getvalue()


def test_as_a_decorator_of_a_generator_it_is_on_while_its_body_runs(file):
    before = sys.excepthook

    @report_out_of_memory(file=file)
    def batches():
        assert sys.excepthook is not before
        yield 1
        run_out()

    running = batches()
    assert next(running) == 1
    assert sys.excepthook is before
    with pytest.raises(OutOfMemoryError):
        next(running)
    assert file.getvalue().count("out of GPU memory") == 1


def test_as_a_decorator_of_an_asynchronous_generator_it_is_on_while_its_body_runs(file):
    @report_out_of_memory(file=file)
    async def batches():
        yield 1
        run_out()

    async def loop():
        return [batch async for batch in batches()]

    with pytest.raises(OutOfMemoryError):
        asyncio.run(loop())
    assert file.getvalue().count("out of GPU memory") == 1


def test_it_can_be_entered_again_after_its_end(file):
    reports = report_out_of_memory(file=file)
    reports.close()
    with pytest.raises(OutOfMemoryError), reports:
        run_out()
    assert reports.count == 1


@pytest.fixture
def torch(monkeypatch):
    """A stand-in that runs what waits for CUDA when `start` is called, and tells its observers."""
    waiting, observers, started = [], [], []

    def lazy_call(call):
        call() if started else waiting.append(call)

    def start():
        started.append(True)
        [call() for call in waiting]

    module = SimpleNamespace(
        cuda=SimpleNamespace(_lazy_call=lazy_call, is_initialized=lambda: True, current_device=lambda: 0),
        _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append),
        start=start,
        observers=observers,
    )

    def ask(asked=ASKED, catch=False):
        for observer in observers:
            observer(0, asked, 80 << 30, 1 << 20)
        if not catch:
            raise OutOfMemoryError(TEXT)

    module.ask = ask
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(out_of_memory_reports._reporter, "_attached", False)
    return module


def test_torch_is_observed_only_once_it_works_on_a_gpu(torch, file):
    with report_out_of_memory(file=file):
        assert torch.observers == []
        torch.start()
        assert len(torch.observers) == 1


def test_torch_is_given_one_observer_for_good(torch, file):
    with report_out_of_memory(file=file):
        torch.start()
    with report_out_of_memory(file=file):
        assert len(torch.observers) == 1
    torch.ask(catch=True)
    assert file.getvalue() == ""


def test_what_torch_tells_and_then_raises_is_reported_once(torch, file):
    reports = leaving(report_out_of_memory(file=file), torch.start, torch.ask)
    assert [(each.requested_bytes, each.free_bytes) for each in reports.reports] == [(ASKED, 1 << 20)]


def test_what_torch_tells_on_another_thread_is_the_same_error(torch, file):
    thread = threading.Thread(target=torch.ask, kwargs={"catch": True})
    reports = leaving(report_out_of_memory(file=file), torch.start, thread.start, thread.join, run_out)
    assert reports.count == 1


def test_what_the_program_catches_is_reported_and_the_next_error_too(torch, file):
    caught = partial(torch.ask, asked=1 << 30, catch=True)
    reports = leaving(report_out_of_memory(file=file), torch.start, caught, torch.ask)
    assert [each.requested_bytes for each in reports.reports] == [1 << 30, ASKED]


def test_a_torch_that_cannot_be_observed_still_raises_into_a_report(torch, file):
    def refuse(observer):
        raise RuntimeError("cudaMallocAsync does not support it")

    torch._C._cuda_attach_out_of_memory_observer = refuse
    reports = leaving(report_out_of_memory(file=file), torch.start, run_out)
    assert reports.count == 1


def test_what_runs_out_on_purpose_is_not_reported(torch, file):
    with report_out_of_memory(file=file) as reports, muted():
        torch.start()
        torch.ask(catch=True)
    assert reports.count == 0


def test_what_is_raised_on_purpose_is_not_reported(file):
    reports = report_out_of_memory(file=file)
    with pytest.raises(OutOfMemoryError), muted(), reports:
        run_out()
    assert reports.count == 0


def test_text_and_json_are_written(tmp_path, file):
    path = tmp_path / "oom-{pid}-{n}.txt"
    with pytest.raises(OutOfMemoryError), report_out_of_memory(path, file=file) as reports:
        run_out()
    stem = tmp_path / f"oom-{os.getpid()}-{reports.reports[0].number}"
    assert stem.with_suffix(".txt").read_text() == f"{reports.reports[0]}\n"
    assert json.loads(stem.with_suffix(".json").read_text())["requested_bytes"] == ASKED
    assert f"whole report: {stem}.txt" in file.getvalue()


def test_a_path_without_a_number_keeps_the_first_report(tmp_path, file):
    reports = report_out_of_memory(tmp_path / "oom.json", file=file)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError), reports:
            run_out()
    second = reports.reports[1].number
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(
        ["oom.json", "oom.txt", f"oom-{second}.json", f"oom-{second}.txt"]
    )


def test_a_path_that_cannot_be_written_is_said_beside_the_report(tmp_path, file):
    folder = tmp_path / "gone"
    folder.mkdir()
    reports = leaving(report_out_of_memory(folder / "oom.txt", file=file), folder.rmdir, run_out)
    assert "out of GPU memory" in file.getvalue()
    assert re.search(r"cannot write .*oom.txt: the folder .*gone does not exist", file.getvalue())
    assert len(reports.failures) == 1


def test_the_callback_gets_the_report(file):
    got = []
    with pytest.raises(OutOfMemoryError), report_out_of_memory(file=file, on_report=got.append) as reports:
        run_out()
    assert got == list(reports.reports)


def test_a_callback_that_raises_harms_nothing(file):
    def callback(report):
        raise ZeroDivisionError

    with pytest.raises(OutOfMemoryError), report_out_of_memory(file=file, on_report=callback) as reports:
        run_out()
    assert reports.failures == ("on_report failed: ZeroDivisionError: ",)


def test_a_callback_that_runs_out_of_memory_is_not_reported_again(torch, file):
    def callback(report):
        torch.ask()

    reports = leaving(report_out_of_memory(file=file, on_report=callback), torch.start, run_out)
    assert reports.count == 1


def test_an_error_inside_the_reporter_harms_nothing(file, monkeypatch):
    monkeypatch.setattr(out_of_memory_reports, "gather", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(OutOfMemoryError) as raised, report_out_of_memory(file=file):
        run_out()
    assert raised.value.__context__ is None


def test_a_closed_file_harms_nothing(file):
    file.close()
    with pytest.raises(OutOfMemoryError), report_out_of_memory(file=file) as reports:
        run_out()
    assert reports.failures[0].startswith("printing failed: ValueError")


def test_a_program_without_a_console_harms_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(OutOfMemoryError), report_out_of_memory() as reports:
        run_out()
    assert reports.failures == ()


def test_errors_without_end_are_counted(file):
    reports = report_out_of_memory(file=file)
    for _ in range(MOST + 3):
        with pytest.raises(OutOfMemoryError), reports:
            run_out()
    assert (reports.count, len(reports.reports)) == (MOST + 3, MOST)
    assert file.getvalue().count("out of GPU memory") == MOST
    assert file.getvalue().endswith("further ones are counted only\n")


def test_a_report_keeps_nothing_of_the_program_alive(file):

    class Piece:
        pass

    def hold():
        piece = Piece()
        pieces.append(weakref.ref(piece))
        run_out()

    pieces = []
    with report_out_of_memory(file=file) as reports:
        try:
            with reports:
                hold()
        except OutOfMemoryError:
            pass
    assert reports.count == 1
    assert pieces[0]() is None


BAD = {
    "path is a int; accepted are the path of a file and None": {"path": 3},
    "path is 'no/such/x.txt'; its folder does not exist": {"path": "no/such/x.txt"},
    "file is a str; accepted are open text files and None": {"file": "x"},
    "on_report is a int; accepted are functions of a report": {"on_report": 3},
}


@pytest.mark.parametrize(("sentence", "given"), BAD.items(), ids=BAD)
def test_bad_input_gets_one_sentence(sentence, given):
    with pytest.raises(InvalidArgument, match=f"^{re.escape(sentence)}$"):
        report_out_of_memory(**given)
