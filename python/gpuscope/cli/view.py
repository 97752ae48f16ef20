# SPDX-License-Identifier: Apache-2.0
"""``gpuscope view``: serves the page of a recording to a browser on this machine, without writing a file."""

from __future__ import annotations

import argparse
import contextlib
import hmac
import re
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

from gpuscope.cli import console
from gpuscope.cli.console import Console
from gpuscope.cli.ends import ended_by_signals
from gpuscope.cli.export import add_recording, choose_recording, exit_code, open_recording
from gpuscope.cli.options import whole
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.local_server import ADDRESS, LocalHandler, LocalServer
from gpuscope.text import brief
from gpuscope.threads import start_thread

_MOST_PORT = 65535
# The page needs only itself and events; browsers also request an icon, which does not exist.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class View:
    """Shows a recording in the browser."""

    description = (
        "Shows the page of a recording in the browser: timeline, tables, tree, idle time, findings. A server on\n"
        "127.0.0.1 hands it out, under an address that only its printed URL says, until Ctrl-C. No file has it.\n"
        "To look from another machine, forward the port: ssh -L 8000:127.0.0.1:8000 HOST."
    )
    examples = """\
  gpuscope view                                          the newest recording of this folder
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
        from gpuscope.exporters.page.report import ServedReport

        progress = console.errors()
        choose_recording(options)
        recording = open_recording(options, progress)
        with progress.working("making the page"):
            report = ServedReport(recording.trace)
        try:
            server = PageServer(report.text, report.events, options.port)
        except OSError as error:
            raise InvalidArgument(f"--port is {options.port}, which cannot be had: {error.strerror}") from error
        with ended_by_signals(), server:
            out = console.output()
            out.line((server.url, "bold"))
            if sys.stdout is not None:
                sys.stdout.flush()  # a reader of a pipe waits for it
            progress.line(("Ctrl-C ends it", "dim"))
            with contextlib.nullcontext() if options.no_browser else _opened(server.url, progress):
                server.serve()
        return exit_code(recording)


class PageServer(LocalServer):
    """Serves one page and ranges of its events to this machine, under an address that cannot be guessed.

    Attributes:
        page: the page as bytes.
        events: returns the events between two ticks as JSON; None if there are too many.
        path: the path of the URL.
    """

    def __init__(self, page: str, events: Callable[[int, int], str | None], port: int = 0) -> None:
        super().__init__(port, _Handler)
        self.page = page.encode("utf-8", "backslashreplace")
        self.events = events
        self.path = f"/{secrets.token_urlsafe(16)}/"

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://{ADDRESS}:{self.server_port}{self.path}"

    def serve(self) -> None:
        """Answers until Ctrl-C."""
        with contextlib.suppress(KeyboardInterrupt):
            self.serve_forever()


class _Handler(LocalHandler):
    server: PageServer

    def do_GET(self) -> None:  # noqa: N802 (the base class calls it so)
        self._answer(with_page=True)

    def do_HEAD(self) -> None:  # noqa: N802
        self._answer(with_page=False)

    def _answer(self, with_page: bool) -> None:
        path, _, query = self.path.partition("?")
        own = self.server.path
        if not hmac.compare_digest(path[: len(own)].encode(), own.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif path == own:
            self._send(self.server.page, "text/html", with_page)
        elif path == f"{own}events":
            self._send_events(query, with_page)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send_events(self, query: str, with_page: bool) -> None:
        found = re.fullmatch(r"from=(\d{1,15})&to=(\d{1,15})", query, re.ASCII)
        if found is None:
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        events = self.server.events(int(found[1]), int(found[2]))
        if events is None:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            self._send(events.encode(), "application/json", with_page)

    def _send(self, body: bytes, kind: str, with_page: bool) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {**_HEADERS, "Content-Type": f"{kind}; charset=utf-8"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_page:
            self.send_body(body)


@contextlib.contextmanager
def _opened(url: str, progress: Console) -> Iterator[None]:
    """Shows a page in the browser by a file that redirects to it: every user can see a browser's arguments.

    Only this user can read the file, which exists while the block runs. A browser in the terminal returns only when the
    user leaves it.
    """
    import webbrowser

    with contextlib.ExitStack() as open_things:
        try:
            folder = tempfile.TemporaryDirectory(prefix="gpuscope-view-", ignore_cleanup_errors=True)
            page = Path(open_things.enter_context(folder)) / "open.html"
            page.touch(mode=0o600)
            page.write_text(f'<meta http-equiv="refresh" content="0;url={url}"><a href="{url}">gpuscope view</a>\n')
        except OSError as error:
            progress.note(f"the browser is not opened, as no temporary file can be written: {error.strerror or error}")
        else:
            thread = threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True)
            try:
                start_thread(thread.start, "the browser")
            except NotAvailable as error:
                progress.note(str(error))
        yield


def _port(text: str) -> int:
    if (number := whole(text)) is None or number > _MOST_PORT:
        raise argparse.ArgumentTypeError(f"{brief(text)} is no port; accepted are 0 to {_MOST_PORT}, 0 for a free one")
    return number
