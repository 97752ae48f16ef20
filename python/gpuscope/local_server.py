# SPDX-License-Identifier: Apache-2.0
"""HTTP for this machine only, with limits so that no client blocks the others."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import sys
import threading
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpuscope import _core

ADDRESS = "127.0.0.1"
_MOST_CONNECTIONS = 32  # a browser opens six, and some that it may never use
_PATIENCE_S = 10.0  # for a whole request, and for each piece of an answer
_PIECE_BYTES = 1 << 16
_PAUSE_S = 0.1
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:]+)(:\d{1,5})?")


def _now_s() -> float:
    return _core.monotonic_ns() / 1e9


class LocalServer(ThreadingHTTPServer):
    """Listens on 127.0.0.1, with a thread for each connection.

    A connection ends when its request or the next piece of its answer takes more than ten seconds. A new connection
    above 32 ends the one that has waited longest, first those without a whole request.

    Raises:
        OSError: the port is not available.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, handler: type[LocalHandler]) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, tuple[bool, float]] = {}  # whether it is being answered, and its deadline
        super().__init__((ADDRESS, port), handler)

    def is_own(self, host: str) -> bool:
        """Whether a Host header names this machine: by an address, as localhost, or by its own name.

        Other names are refused, against DNS rebinding by other sites.
        """
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found[1].strip("[]").removesuffix(".")
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return name == "localhost" or name in self._names

    @cached_property
    def _names(self) -> set[str]:
        own = socket.gethostname().lower()
        return {own, own.partition(".")[0], socket.getfqdn().lower()}  # the last may ask a name server

    def keep(self, request: socket.socket) -> None:
        """Extends the deadline of a connection whose request has arrived, for the next piece of its answer."""
        with self._lock:
            if request in self._waiting:
                self._waiting[request] = (True, _now_s() + _PATIENCE_S)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accepts a connection; waits a moment if that fails, as when the process has too many open files."""
        try:
            return super().get_request()
        except OSError:
            with self._lock:
                self._end_longest()
            threading.Event().wait(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection."""
        with self._lock:
            if len(self._waiting) >= _MOST_CONNECTIONS:
                self._end_longest()
            self._waiting[request] = (False, _now_s() + _PATIENCE_S)
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no further thread can be started
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        with self._lock:
            self._waiting.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends the connections past their deadline; called twice a second."""
        now = _now_s()
        with self._lock:
            for request in [each for each, (_, until) in self._waiting.items() if until < now]:
                self._end(request)

    def _end_longest(self) -> None:
        if self._waiting:
            self._end(min(self._waiting, key=self._waiting.__getitem__))

    def _end(self, request: socket.socket) -> None:
        """Wakes the thread of a connection, which closes it. The caller has the lock, so that it is still open."""
        del self._waiting[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors of clients that go away."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class LocalHandler(BaseHTTPRequestHandler):
    """Answers requests whose one Host header is the server's."""

    server: LocalServer
    server_version, sys_version = "gpuscope", ""

    def parse_request(self) -> bool:
        """False if the request was refused."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.is_own(hosts[0]):
            self.send_error(HTTPStatus.NOT_FOUND)
            return False
        self.server.keep(self.connection)
        return True

    def send_body(self, body: bytes) -> None:
        """Sends the body in pieces, each with its own deadline, as connections may be slow."""
        for begin in range(0, len(body), _PIECE_BYTES):
            self.wfile.write(body[begin : begin + _PIECE_BYTES])
            self.server.keep(self.connection)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the base class names it so)
        """Logs nothing."""
