# SPDX-License-Identifier: Apache-2.0
"""``gpuscope view``: the page of a recording in the browser, served to this machine alone and kept nowhere."""

from __future__ import annotations

import argparse
import contextlib
import hmac
import secrets
import sys
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpuscope.cli import console
from gpuscope.cli.export import add_recording, exit_code, open_recording
from gpuscope.errors import InvalidArgument

_ADDRESS = "127.0.0.1"
_MOST_PORT = 65535
# The page needs nothing but itself; a browser asks for an icon, which there is not.
_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class View:
    """Shows a recording in the browser."""

    description = (
        "Shows the page of a recording in the browser: timeline, tables, tree, idle time, findings. A server on\n"
        "127.0.0.1 hands it out, under an address that only its printed URL says, until Ctrl-C; no file is written.\n"
        "To look from another machine, forward the port: ssh -L 8000:127.0.0.1:8000 HOST."
    )
    examples = """\
  gpuscope view train.gscope
  gpuscope view train.gscope --port 8000 --no-browser    on a machine without one: open the printed URL
  gpuscope view trace.json.gz                            a trace of torch.profiler"""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        add_recording(parser)
        parser.add_argument("--port", metavar="N", type=_port, default=0, help="of the server (default: a free one)")
        parser.add_argument("--no-browser", action="store_true", help="print the URL, and open nothing")

    def run(self, options: argparse.Namespace) -> int:
        """Makes the page, and serves it until Ctrl-C; the exit code is 3 when the file held only part of it."""
        from gpuscope.exporters.page.report import render

        progress = console.errors()
        recording = open_recording(options, progress)
        with progress.working("making the page"):
            page = render(recording.trace).encode("utf-8", "backslashreplace")
        try:
            server = PageServer(page, options.port)
        except OSError as error:
            raise InvalidArgument(f"--port is {options.port}, which cannot be had: {error.strerror}") from error
        with server:
            out = console.output()
            out.line((server.url, "bold"))
            sys.stdout.flush()  # who reads it through a pipe waits for it
            progress.line(("Ctrl-C ends it", "dim"))
            if not options.no_browser:
                import webbrowser

                webbrowser.open(server.url)
            server.serve()
        return exit_code(recording)


class PageServer(ThreadingHTTPServer):
    """Hands out one page, to this machine, under an address that cannot be guessed.

    Attributes:
        page: its bytes.
        path: the address, behind the host.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, page: bytes, port: int = 0) -> None:
        super().__init__((_ADDRESS, port), _Handler)
        self.page = page
        self.path = f"/{secrets.token_urlsafe(16)}/"

    @property
    def url(self) -> str:
        """What a browser opens."""
        return f"http://{_ADDRESS}:{self.server_port}{self.path}"

    @property
    def hosts(self) -> Sequence[str]:
        """What a browser may call this server: a page of others whose name leads here is refused."""
        return tuple(f"{name}:{self.server_port}" for name in (_ADDRESS, "localhost"))

    def serve(self) -> None:
        """Answers until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self.serve_forever()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "gpuscope", ""

    def do_GET(self) -> None:
        self._answer(with_page=True)

    def do_HEAD(self) -> None:
        self._answer(with_page=False)

    def _answer(self, with_page: bool) -> None:
        is_ours = self.headers.get("Host", "").lower() in self.server.hosts
        if not is_ours or not hmac.compare_digest(self.path.encode(), self.server.path.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        for name, value in {**_HEADERS, "Content-Length": str(len(self.server.page))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_page:
            self.wfile.write(self.server.page)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the base class names it so)
        """Nothing: the terminal is the reader's."""


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= _MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; accepted are 0 to {_MOST_PORT}, 0 for a free one")
    return int(text)
