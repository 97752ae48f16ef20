# SPDX-License-Identifier: Apache-2.0
"""The server behind pages and figures: clients that stand still, ask wrongly or under names of others."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time

import pytest

from gpuscope import local_server
from gpuscope.local_server import LocalHandler, LocalServer

LONG = 32 << 20  # more than the system keeps for a client that does not read


class Handler(LocalHandler):
    def do_GET(self):  # noqa: N802 (the base class calls it so)
        self.send_response(200)
        self.end_headers()
        self.send_body(bytes(LONG) if self.path == "/long" else b"the page")


@pytest.fixture
def server():
    with LocalServer(0, Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(local_server, "_PATIENCE_S", 0.3)


def connected(server, data=b""):
    client = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
    client.sendall(data)
    return client


def request(server, path="/", host="localhost"):
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def answered(server, data):
    """The status that comes; none where the server closes."""
    with connected(server, data) as client, contextlib.suppress(ConnectionError):
        found = b"".join(iter(lambda: client.recv(1 << 16), b""))
        return int(found.split()[1]) if found.startswith(b"HTTP/") else None


def page(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().read()


def ends(client):
    """Whether the server closes it."""
    with client, contextlib.suppress(ConnectionError):
        while client.recv(1 << 20):
            pass
    return True


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: ", b"GET / HTTP/1.1\r\nHost: localhost\r\n"]
)
def test_a_request_that_does_not_come_to_its_end_is_ended(server, impatient, sent):
    assert ends(connected(server, sent))


def test_a_request_that_comes_byte_by_byte_is_ended(server, impatient):
    client = connected(server, b"GET / HTTP/1.1\r\nX: ")
    with client, contextlib.suppress(ConnectionError):
        for _ in range(200):
            client.sendall(b"x")
            time.sleep(0.05)
        pytest.fail("it was not ended")


def test_an_answer_that_nobody_reads_is_ended(server, impatient):
    with connected(server, request(server, "/long")):
        deadline = time.monotonic() + 20
        while server._waiting:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_an_answer_that_is_read_slowly_comes_whole(server, impatient):
    with connected(server, request(server, "/long")) as client:
        got, reads = 0, 0
        while data := client.recv(1 << 20):
            got += len(data)
            reads += 1
            time.sleep(0.03 if reads < 30 else 0)
        assert got > LONG


def test_connections_that_stand_still_lock_nobody_out(server):
    held = [connected(server, b"GET / HTTP/1.1\r\nHost: ") for _ in range(3 * local_server._MOST_CONNECTIONS)]
    try:
        assert page(server) == b"the page"
        assert len(server._waiting) <= local_server._MOST_CONNECTIONS
    finally:
        for client in held:
            client.close()


def test_an_answer_under_way_is_not_ended_for_connections_that_stand_still(server):
    with connected(server, request(server, "/long")) as client:
        got = len(client.recv(1 << 20))
        held = [connected(server) for _ in range(2 * local_server._MOST_CONNECTIONS)]
        while data := client.recv(1 << 20):
            got += len(data)
        assert got > LONG
        for each in held:
            each.close()


WITHOUT_FILES = """
import os, resource, sys, threading, time
from gpuscope.local_server import LocalHandler, LocalServer
with LocalServer(0, LocalHandler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 64))
    input()
    before = time.process_time()
    time.sleep(1)
    print(time.process_time() - before, flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    input()
"""


def test_no_core_is_kept_busy_where_no_connection_can_be_accepted():
    process = subprocess.Popen(
        [sys.executable, "-c", WITHOUT_FILES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            process.stdin.write("\n")
            process.stdin.flush()
            assert float(process.stdout.readline()) < 0.3
            assert client.recv(100).startswith(b"HTTP/1.0 501")  # it goes on when there are files again
        process.kill()


def test_a_thread_that_cannot_be_started_ends_one_connection(server, monkeypatch, capfd):
    with monkeypatch.context() as patched:

        def start(thread):
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", start)
        assert answered(server, request(server)) is None
    assert page(server) == b"the page"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "host",
    [
        *(
            "localhost",
            "LocalHost:9400",
            "localhost.",
            "127.0.0.1",
            "127.0.0.1:80",
            "10.1.2.3:9400",
            "[::1]:9400",
            "[::1]",
        ),
        *(socket.gethostname(), f"{socket.gethostname().upper()}:9400", socket.getfqdn()),
    ],
)
def test_requests_name_this_machine_by_an_address_or_its_own_name(server, host):
    assert answered(server, request(server, host=host)) == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:9400",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example#localhost",
        ),
        *(
            "",
            ":",
            ":9400",
            "[",
            "[]",
            "[::1",
            "::1",
            "[::1]x",
            "localhost:x",
            "localhost:1:2",
            "localhost\x00",
            "a" * 60_000,
        ),
    ],
)
def test_other_names_are_refused(server, host):
    assert answered(server, request(server, host=host)) == 404


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1." + b"1" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: 1\r\n" * 300 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\xff\x00: \xfe\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\xff\xfe / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(range(256)) * 300,
        b"\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_without_a_word_on_the_terminal(server, capfd, sent):
    status = answered(server, sent)
    assert status is None or status >= 400
    assert page(server) == b"the page"
    assert capfd.readouterr().err == ""
