# SPDX-License-Identifier: Apache-2.0
"""Threads have the names that Python has for them."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import gpuscope
from fakes.gscope import make_store
from fakes.perfetto import unpacked
from gpuscope import _core
from gpuscope.trace import Trace, thread_name


@pytest.fixture
def session():
    session = _core.Session(cuda=False)
    yield session
    session.stop()


def names(store):
    threads = store.columns("thread")
    return {
        int(number): store.string(int(name)) for number, name in zip(threads["system_id"], threads["name"], strict=True)
    }


def work():
    with _core.record_function("work"):
        pass


def test_a_thread_that_has_ended_has_the_name_that_it_was_made_with(session):
    session.open()
    thread = threading.Thread(target=work, name="loader")
    thread.start()
    thread.join()
    assert names(session.cut())[thread.native_id] == "loader"


def test_a_name_that_is_set_after_the_start_counts(session):
    session.open()

    def named_late():
        work()
        threading.current_thread().name = "late"

    thread = threading.Thread(target=named_late)
    thread.start()
    thread.join()
    assert names(session.cut())[thread.native_id] == "late"


def test_a_thread_that_runs_on_has_the_name_of_each_window(session):
    opened, renamed, done = threading.Event(), threading.Event(), threading.Event()

    def run():
        work()
        opened.set()
        renamed.wait(10)
        work()
        done.set()
        leave.wait(10)

    leave = threading.Event()
    thread = threading.Thread(target=run, name="first")
    session.open()
    thread.start()
    opened.wait(10)
    assert names(session.cut())[thread.native_id] == "first"
    session.open()
    thread.name = "second"
    renamed.set()
    done.wait(10)
    assert names(session.cut())[thread.native_id] == "second"
    leave.set()
    thread.join()


def test_a_thread_of_a_pool_has_its_prefix(session):
    session.open()
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        pool.submit(work).result()
    assert "pool_0" in names(session.cut()).values()


def test_the_main_thread_keeps_the_name_of_the_system_until_it_is_named(session):
    main = threading.main_thread()
    session.open()
    work()
    assert names(session.cut())[main.native_id] != "MainThread"
    main.name = "trainer"
    try:
        session.open()
        work()
        assert names(session.cut())[main.native_id] == "trainer"
    finally:
        main.name = "MainThread"


def test_a_name_that_is_no_text_of_utf_8_is_replaced(session):
    session.open()
    thread = threading.Thread(target=work, name="lone \ud800")
    thread.start()
    thread.join()
    assert names(session.cut())[thread.native_id] == "lone ?"


def test_traces_and_tables_have_the_names(tmp_path):
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof:
        thread = threading.Thread(target=work, name="loader thread of a long name")
        thread.start()
        thread.join()
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    given = [event for event in events if event["name"] == "thread_name" and event["tid"] == thread.native_id]
    assert ["loader thread of a long name" in event["args"]["name"] for event in given] == [True]
    prof.export_perfetto(str(tmp_path / "trace.pftrace"))
    assert b"loader thread of a long name" in unpacked((tmp_path / "trace.pftrace").read_bytes())


@pytest.mark.skipif(not _core.knows_stacks(), reason="frames are not known in this version of Python")
def test_a_sampled_thread_that_is_gone_has_its_name():
    with gpuscope.profile(activities=["CPU"], python_samples=True) as prof:
        thread = threading.Thread(target=time.sleep, args=(0.1,), name="gone")
        thread.start()
        thread.join()
        number = thread.native_id
        del thread
    trace = prof.trace
    row = trace.threads.system_id.tolist().index(number)
    assert thread_name(trace, row) == "gone"


def test_the_main_thread_is_called_so():
    with gpuscope.profile(activities=["CPU"]) as prof:
        work()
    assert [thread_name(prof.trace, row) for row in range(len(prof.trace.threads))] == ["main thread"]


def test_a_thread_without_a_name_has_its_number():
    assert thread_name(Trace(make_store({"thread": {"system_id": [5]}})), 0) == "thread 5"


@pytest.mark.skipif(not _core.knows_stacks(), reason="frames are not known in this version of Python")
def test_a_thread_with_a_name_that_no_file_can_hold_is_recorded(tmp_path):
    with gpuscope.profile(activities=["CPU"], python_samples=True) as prof:
        thread = threading.Thread(target=time.sleep, args=(0.1,), name="lone \ud800")
        thread.start()
        thread.join()
    prof.save(tmp_path / "made.gscope")
    assert "lone ?" in gpuscope.load(tmp_path / "made.gscope").trace.info.values()


@pytest.mark.skipif(not _core.knows_stacks(), reason="frames are not known in this version of Python")
def test_names_of_all_windows_are_kept_where_these_make_one_recording():
    numbers = []
    with gpuscope.profile(
        activities=["CPU"],
        python_samples=True,
        acc_events=True,
        schedule=gpuscope.schedule(wait=0, warmup=0, active=1, repeat=2),
    ) as prof:
        for number in range(2):
            thread = threading.Thread(target=time.sleep, args=(0.1,), name=f"window {number}")
            thread.start()
            thread.join()
            numbers.append(thread.native_id)
            del thread
            prof.step()
    ids = prof.trace.threads.system_id.tolist()
    assert [thread_name(prof.trace, ids.index(number)) for number in numbers] == ["window 0", "window 1"]


@pytest.mark.parametrize("options", [{"python_samples": True}, {}])
def test_threads_begin_as_before_when_the_window_has_ended(options):
    before = vars(threading.Thread)["_set_native_id"]
    with gpuscope.profile(activities=["CPU"], **options):
        pass
    assert vars(threading.Thread)["_set_native_id"] is before
