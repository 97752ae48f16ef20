# SPDX-License-Identifier: Apache-2.0
"""Threads have the names that Python has for them."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import gpuscope
from fakes.perfetto import unpacked
from gpuscope import _core


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
