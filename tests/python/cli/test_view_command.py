# SPDX-License-Identifier: Apache-2.0
"""``gpuscope view``: a page that this machine alone gets, under an address that is told to nobody else."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse

import pytest

from fakes.browser import chromium
from fakes.steps import steps_store
from gpuscope import cli
from gpuscope.cli.view import PageServer
from gpuscope.exporters import save


@pytest.fixture
def recording(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(steps_store(), tmp_path / "run.gscope")
    return "run.gscope"


@pytest.fixture
def server():
    with PageServer(b"<!DOCTYPE html><p>page") as made:
        thread = threading.Thread(target=made.serve)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


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


def test_each_server_has_another_address(server):
    with PageServer(b"") as other:
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


def test_the_command_prints_the_url_serves_and_ends_by_ctrl_c(recording, tmp_path):
    command = [sys.executable, "-m", "gpuscope", "view", recording, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        with chromium() as browser:
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
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
    assert os.listdir(tmp_path) == ["run.gscope"]


def test_the_browser_is_opened_unless_it_is_not_wanted(recording, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    monkeypatch.setattr(PageServer, "serve", lambda server: None)
    assert cli.main(["view", recording]) == 0
    (url,) = shown
    assert capsys.readouterr().out.strip() == url
    assert urllib.parse.urlsplit(url).hostname == "127.0.0.1"
    assert cli.main(["view", recording, "--no-browser"]) == 0
    assert len(shown) == 1


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
