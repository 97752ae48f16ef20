# SPDX-License-Identifier: Apache-2.0
"""``gpuscope view``: a page that this machine alone gets, under an address that is told to nobody else."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from fakes.browser import chromium
from fakes.loops import Loop
from fakes.steps import steps_store
from gpuscope import cli
from gpuscope.cli.view import PageServer
from gpuscope.exporters import save
from gpuscope.exporters.page import report_events
from gpuscope.exporters.page.report import ServedReport
from gpuscope.trace import Trace


@pytest.fixture
def recording(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(steps_store(), tmp_path / "run.gscope")
    return "run.gscope"


@contextlib.contextmanager
def served(server):
    """A server while it answers."""
    thread = threading.Thread(target=server.serve)
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server():
    with served(
        PageServer("<!DOCTYPE html><p>page", lambda start, end: None if end > 999 else f"[{start},{end}]")
    ) as it:
        yield it


def asked(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer, answer.read()


def test_the_page_is_under_its_address_alone(server):
    answer, body = asked(server, server.path)
    assert (answer.status, body) == (200, server.page)
    for path in ("/", "/favicon.ico", server.path[:-1], f"{server.path}x", "/../etc/passwd", "/" + "a" * 22 + "/"):
        answer, body = asked(server, path)
        assert answer.status == 404
        assert server.path.strip("/").encode() not in body
    assert asked(server, server.path, "POST")[0].status == 501
    answer, body = asked(server, server.path, "HEAD")
    assert (answer.status, body) == (200, b"")


def test_events_are_handed_out_by_stretches_that_are_not_too_long(server):
    answer, body = asked(server, f"{server.path}events?from=3&to=17")
    assert (answer.status, body, answer.headers["Content-Type"]) == (200, b"[3,17]", "application/json; charset=utf-8")
    assert asked(server, f"{server.path}events?from=3&to=1000")[0].status == 413
    for query in ("", "?", "?from=1", "?from=-1&to=2", "?from=1&to=x", "?to=2&from=1", "?from=1&to=" + "9" * 400):
        assert asked(server, f"{server.path}events{query}")[0].status == 400
    assert asked(server, "/events?from=3&to=17")[0].status == 404


def test_each_server_has_another_address(server):
    with PageServer("", lambda start, end: None) as other:
        assert other.path != server.path
        assert len(other.path) >= 22


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_page_of_others_cannot_ask_by_a_name_of_its_own(server):
    assert asked(server, server.path, Host="evil.example")[0].status == 404
    assert asked(server, server.path, Host=f"evil.example:{server.server_port}")[0].status == 404
    assert asked(server, server.path, Host=f"localhost:{server.server_port}")[0].status == 200


def test_what_the_page_may_do_is_in_the_headers_too(server):
    headers = asked(server, server.path)[0].headers
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'unsafe-inline'")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers


@contextlib.contextmanager
def command_that_serves(recording):
    """`gpuscope view`, which would serve for ever where the test fails."""
    command = [sys.executable, "-m", "gpuscope", "view", recording, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_prints_the_url_and_serves(recording, tmp_path):
    with chromium() as browser, command_that_serves(recording) as process:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        page = browser.new_page()
        said, wanted = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: wanted.append(request.url))
        page.goto(f"{url}#/tables?q=gemm")
        page.wait_for_selector("html[data-complete]", state="attached")
        assert page.locator("h1").inner_text() == "train.py"
        assert page.locator("[data-row]").count() > 0
        assert said == []
        assert {each.partition("#")[0] for each in wanted} == {url}
    assert os.listdir(tmp_path) == ["run.gscope"]


def test_the_command_ends_by_ctrl_c(recording):
    with command_that_serves(recording) as process:
        urllib.request.urlopen(process.stdout.readline().strip()).close()  # it is serving by now
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()


def test_closed_standard_output_is_no_error(recording, monkeypatch):
    monkeypatch.setattr(PageServer, "serve", lambda server: None)
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["view", recording, "--no-browser"]) == 0


@pytest.fixture
def long_recording(monkeypatch):
    """30 steps, of which a page keeps a few; each has 21 kernels."""
    made = Loop(info={"process.argv": "train.py"})
    for _ in made.steps(30):
        with made.region("forward"):
            for _ in range(20):
                made.launch(gpu=30)
            made.launch(gpu=50, name="last")
        made.wait()
    monkeypatch.setattr(report_events, "MOST_EVENTS", 600)
    monkeypatch.setattr(report_events, "_WHOLE_LANE", 200)
    return made.trace()


@contextlib.contextmanager
def viewed(trace):
    """The page of a trace in a browser, and what it asked the server for."""
    report = ServedReport(trace)
    assert "MOST_FETCHED = 20000;" in report.text
    text = report.text.replace("MOST_FETCHED = 20000;", "MOST_FETCHED = 120;")  # two steps
    said, wanted = [], []
    with served(PageServer(text, report.events)) as server, chromium() as browser:
        page = browser.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: wanted.append(request.url.partition("#")[0]))
        page.goto(f"{server.url}#/timeline")
        page.wait_for_selector("html[data-complete]", state="attached")
        yield page, wanted
    assert said == []
    assert all(url.startswith(server.url) for url in wanted)


def settled(page):
    """Whose events the timeline shows, once it waits for no others."""
    return page.wait_for_selector("#lanes:not([data-events=asked])", state="attached").get_attribute("data-events")


def test_events_that_the_page_has_not_are_asked_for_where_the_view_is_near(long_recording):
    with viewed(long_recording) as (page, wanted):
        assert "The others are asked for" in page.inner_text("body")
        page.focus("#lanes")
        kept, fetched = 0, 0
        for step in range(30):  # through all steps: of each every event is there
            page.keyboard.press(".")
            first, last = map(int, page.get_attribute("#lanes", "data-view").split("-"))
            kernels = long_recording.kernels
            page.fill("#find", "last")
            state = settled(page)
            fetched += state == "fetched"
            kept += state != "fetched"
            page.focus("#lanes")
            page.keyboard.press("Escape")
            page.keyboard.press("n")
            assert page.inner_text("#details h3") == "last", step
            assert "took" in page.inner_text("#details")
            assert "launched by" in page.inner_text("#details")
            began = re.search(r"began at\s+([\d.]+) (ms|µs)", page.inner_text("#details"))
            assert began, page.inner_text("#details")
            assert len(kernels) == 30 * 21
            assert tuple(map(int, page.get_attribute("#lanes", "data-view").split("-"))) == (first, last)
        assert kept >= 3
        assert fetched > 10
        asked_for = [url for url in wanted if "events?from=" in url]
        assert 5 < len(asked_for) <= 60


def test_a_chosen_event_stays_chosen_when_more_are_there(long_recording):
    with viewed(long_recording) as (page, _):
        held = []
        page.route("**/events?*", lambda route: held.append(route))  # asked for, and not answered yet
        page.fill("#find", "forward")
        page.focus("#lanes")
        with page.expect_request("**/events?*"):
            for _ in range(12):
                page.keyboard.press(".")
        page.keyboard.press("n")
        chosen = page.inner_text("#details")
        assert "forward" in chosen
        assert page.get_attribute("#lanes", "data-events") == "asked"
        held[-1].continue_()
        assert settled(page) == "fetched"
        page.keyboard.press("]")  # to the next of its name, and back
        assert page.inner_text("#details") != chosen
        page.keyboard.press("[")
        assert page.inner_text("#details") == chosen


def test_the_address_brings_back_an_event_that_was_asked_for(long_recording):
    with viewed(long_recording) as (page, _):
        page.focus("#lanes")
        for _ in range(12):
            page.keyboard.press(".")
        assert settled(page) == "fetched"
        page.keyboard.press("Enter")
        chosen = page.inner_text("#details")
        page.wait_for_function("() => location.hash.includes('event=')")
        page.reload()
        page.wait_for_selector("html[data-complete]", state="attached")
        assert settled(page) == "fetched"
        assert page.inner_text("#details") == chosen


def test_a_link_to_a_stretch_has_its_events_asked_for(long_recording):
    with viewed(long_recording) as (page, _):
        assert settled(page) == "kept"
        page.locator(".steps a").nth(12).click()
        page.wait_for_selector("#lanes[data-events=fetched]", state="attached")


def test_the_view_stays_with_what_it_has_once_the_server_has_ended(long_recording):
    report = ServedReport(long_recording)
    server = PageServer(report.text, lambda start, end: None)
    assert '"events":"events"' in report.text
    assert "connect-src 'self'" in report.text
    server.server_close()
    assert '"events":null' in ServedReport(Trace(steps_store())).text


def redirected(url):
    """Where a file that a browser was given leads, and the file."""
    path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    return re.search(r"url=(http://127[^\"]+)", path.read_text())[1], path


def test_the_browser_is_opened_unless_it_is_not_wanted(recording, monkeypatch, capsys):
    shown, found = queue.SimpleQueue(), []
    monkeypatch.setattr("webbrowser.open", shown.put)
    monkeypatch.setattr(PageServer, "serve", lambda server: found.append(redirected(shown.get(timeout=60))))
    assert cli.main(["view", recording]) == 0
    ((url, _),) = found
    assert capsys.readouterr().out.strip() == url
    assert urllib.parse.urlsplit(url).hostname == "127.0.0.1"
    monkeypatch.setattr(PageServer, "serve", lambda server: None)
    assert cli.main(["view", recording, "--no-browser"]) == 0
    assert shown.empty()


def test_the_address_is_in_a_private_file_and_no_argument_of_the_browser(recording, monkeypatch, capsys):
    shown, found = queue.SimpleQueue(), []

    def look(server):
        argument = shown.get(timeout=60)
        path = redirected(argument)[1]
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)]
        found.append((server.path.strip("/") in argument, modes, path))

    monkeypatch.setattr("webbrowser.open", shown.put)
    monkeypatch.setattr(PageServer, "serve", look)
    assert cli.main(["view", recording]) == 0
    ((is_told, modes, path),) = found
    assert (is_told, modes) == (False, [0o600, 0o700])
    assert not path.parent.exists()


def test_the_private_file_goes_when_the_command_is_terminated(recording, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "gpuscope", "view", recording]
    variables = {**os.environ, "TMPDIR": str(folder), "BROWSER": "true"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables) as it:
        urllib.request.urlopen(it.stdout.readline().strip()).close()  # it is serving by now
        assert len([*folder.glob("gpuscope-view-*/open.html")]) == 1
        it.terminate()
        assert it.wait(30) == -signal.SIGTERM
    assert [*folder.iterdir()] == []


def test_without_room_for_the_private_file_the_page_is_served_and_it_is_said(recording, monkeypatch, capsys):
    served = []
    monkeypatch.setattr("tempfile.TemporaryDirectory", lambda **_: os.mkdir("/proc/none"))
    monkeypatch.setattr("webbrowser.open", lambda url: served.append("a browser"))
    monkeypatch.setattr(PageServer, "serve", lambda server: served.append("the page"))
    assert cli.main(["view", recording]) == 0
    assert served == ["the page"]
    assert "the browser is not opened, as no temporary file can be written" in capsys.readouterr().err


def test_a_browser_of_the_terminal_gets_the_page_while_the_command_waits_for_it(recording, monkeypatch):
    got = queue.SimpleQueue()

    def open_in_terminal(url):
        with contextlib.suppress(OSError), urllib.request.urlopen(redirected(url)[0], timeout=10) as answer:
            got.put(answer.status)

    def serve_once(server):
        server.timeout = 10
        server.handle_request()
        with contextlib.suppress(queue.Empty):
            statuses.append(got.get(timeout=10))

    statuses = []
    monkeypatch.setattr("webbrowser.open", open_in_terminal)
    monkeypatch.setattr(PageServer, "serve", serve_once)
    assert cli.main(["view", recording]) == 0
    assert statuses == [200]


def test_the_port_may_be_chosen(recording, monkeypatch, capsys):
    monkeypatch.setattr(PageServer, "serve", lambda server: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        assert cli.main(["view", recording, "--no-browser", "--port", str(port)]) == 2
        assert f"--port is {port}, which cannot be had" in capsys.readouterr().err
    assert cli.main(["view", recording, "--no-browser", "--port", str(port)]) == 0
    assert f":{port}/" in capsys.readouterr().out


@pytest.mark.parametrize("port", ["x", "-1", "65536", "1.5", ""])
def test_what_is_no_port_is_refused(recording, port, capsys):
    assert cli.main(["view", recording, f"--port={port}"]) == 2
    assert "accepted are 0 to 65535" in capsys.readouterr().err


def test_what_is_no_recording_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["view", "none.gscope"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_without_a_thread_for_the_browser_the_page_is_served_and_it_is_said(recording, monkeypatch, capsys):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    served = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(PageServer, "serve", lambda server: served.append("the page"))
    assert cli.main(["view", recording]) == 0
    assert served == ["the page"]
    assert "the browser is not available: the system gives this process no further thread" in capsys.readouterr().err
