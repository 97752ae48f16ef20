# SPDX-License-Identifier: Apache-2.0
"""The other end of `listen`: finds the socket of a process, makes a process listen, and asks it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpuscope.errors import GpuscopeError, NotAvailable
from gpuscope.text import one_line
from gpuscope.units import first_line
from gpuscope.watching.dumps import make_own_folder
from gpuscope.watching.listening import default_folder, peer_of, socket_name

_MOST_BYTES = 1 << 20  # of an answer
_ANSWER_S = 30.0
_INJECTED_S = 20.0
_POLL_S = 0.05

# Runs in the other program: its modules and its errors stay as they are.
_SCRIPT = """\
def _():
    try:
        import gpuscope
        gpuscope.listen()
    except BaseException as error:
        with open({why!r}, "w", errors="replace") as file:
            file.write(f"{{type(error).__name__}}: {{error}}")
_()
del _
"""


class Target:
    """A process that is asked.

    Attributes:
        pid: its number.
        was_prepared: whether it listened before. Otherwise `release` ends its listening.

    Raises:
        GpuscopeError: there is no such process, it is another user's, or it does not listen and cannot be made to.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._path = _socket_of(pid)
        _check_process(pid, self._path)
        try:
            self.ask("state")
            self.was_prepared = True
        except NotAvailable:
            _inject(pid)
            self.was_prepared = False

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Asks once and returns the answer.

        Raises:
            NotAvailable: the process does not listen, or has ended.
            GpuscopeError: it refuses, or gives no answer in 30 s.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_S)
            line = b""
            try:
                self._connect(connection)
                connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
                while not line.endswith(b"\n") and (part := connection.recv(1 << 16)) and len(line) <= _MOST_BYTES:
                    line += part
            except TimeoutError:
                raise GpuscopeError(f"the process {self.pid} did not answer within {_ANSWER_S:.0f} s") from None
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET):
                    raise NotAvailable(f"the process {self.pid} ended meanwhile") from None
                raise GpuscopeError(f"the process {self.pid} cannot be reached: {error.strerror}") from None
        if not line:
            raise NotAvailable(f"the process {self.pid} ended meanwhile")
        try:
            answer: dict[str, Any] = dict(json.loads(line))
        except (TypeError, ValueError):
            raise GpuscopeError(f"the process {self.pid} gave an answer that is not gpuscope's") from None
        if "error" in answer:
            raise GpuscopeError(f"process {self.pid}: {one_line(str(answer['error']))}")
        return answer

    def release(self) -> None:
        """Ends the listening that `Target` began. Never raises."""
        if not self.was_prepared:
            with contextlib.suppress(GpuscopeError):
                self.ask("close")

    def _connect(self, connection: socket.socket) -> None:
        self._path = _socket_of(self.pid)
        try:
            connection.connect(str(self._path))
        except FileNotFoundError:
            raise NotAvailable(f"the process {self.pid} does not listen") from None
        except ConnectionRefusedError:  # of a dead process that had this number
            _remove(self._path)
            raise NotAvailable(f"the process {self.pid} does not listen") from None
        if peer_of(connection)[0] != self.pid:
            raise GpuscopeError(f"the socket {str(self._path)!r} belongs to another process than {self.pid}")


def _socket_of(pid: int) -> Path:
    """The socket of a process in any folder, as the kernel lists it; without one, its place in the default folder."""
    name, lines = socket_name(pid), []
    with contextlib.suppress(OSError):
        lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()
    for line in lines:
        path = f"/{line.partition(' /')[2]}"
        if path.endswith(f"/{name}"):
            with contextlib.suppress(OSError):
                if os.stat(path).st_uid == os.stat(f"/proc/{pid}").st_uid:  # other users may give a socket this name
                    return Path(path)
    return default_folder() / name


def _check_process(pid: int, path: Path) -> None:
    """Raises GpuscopeError unless this user may reach the process; removes the socket of a dead one."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        _remove(path)
        raise GpuscopeError(f"there is no process {pid}") from None
    except PermissionError:
        raise GpuscopeError(f"the process {pid} belongs to another user; accepted are your own") from None


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _inject(pid: int) -> None:
    """Makes a process listen, by Python's remote debugging."""
    execute = getattr(sys, "remote_exec", None)
    if execute is None:
        raise NotAvailable(
            f"the process {pid} does not listen: start it with `gpuscope run --listen DIR`, or call gpuscope.listen() "
            "in it; with Python 3.14 on both sides neither is necessary"
        )
    folder = make_own_folder(default_folder())
    with tempfile.TemporaryDirectory(prefix="attach-", dir=folder) as own:
        script, why = Path(own, "listen.py"), Path(own, "why.txt")
        script.write_text(_SCRIPT.format(why=str(why)))
        try:
            execute(pid, str(script))
        except PermissionError:
            raise NotAvailable(
                f"the system does not permit to debug the process {pid} (ptrace_scope or CAP_SYS_PTRACE); "
                "start it with `gpuscope run --listen DIR`"
            ) from None
        except (OSError, RuntimeError) as error:  # another version, or remote debugging is disabled
            raise NotAvailable(
                f"the process {pid} does not listen, and Python cannot reach it: {first_line(error)}; "
                "start it with `gpuscope run --listen DIR`"
            ) from None
        until = time.monotonic() + _INJECTED_S
        while time.monotonic() < until:
            if why.exists() and (said := why.read_text()):
                raise NotAvailable(f"the process {pid} cannot listen: {first_line(said)}")
            if _socket_of(pid).exists():
                return
            time.sleep(_POLL_S)
    raise NotAvailable(
        f"the process {pid} did not begin to listen within {_INJECTED_S:.0f} s: its main thread runs no Python code"
    )
