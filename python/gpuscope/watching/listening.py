# SPDX-License-Identifier: Apache-2.0
"""`listen`: a unix socket by which another process of the same user starts recordings and asks for dumps.

A connection carries one line of JSON and its answer, also one line.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuscope import _core
from gpuscope.arguments import check_count, check_positive
from gpuscope.distributed import distributed_rank, recording_name
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.monitor.snapshot import gpu_snapshot
from gpuscope.paths import as_path, claim, drop_claim, make_folder, numbered
from gpuscope.profiler import lifecycle
from gpuscope.profiler.facade import profile
from gpuscope.text import brief
from gpuscope.threads import shared_lock, start_thread
from gpuscope.units import first_line
from gpuscope.watching.dumps import Dump, Dumps, Moment, make_own_folder, region_of, versions
from gpuscope.watching.triggers import Event
from gpuscope.watching.watches import Watch, running_watch

MOST_BYTES = 1 << 16
"""Of a request."""

_LONGEST_PATH = 107  # bytes, of sockaddr_un
_WAITING = 8  # connections; one is served at a time
_REQUEST_S, _DUMP_S = 2.0, 10.0
_MOST_STEPS, _MOST_S = 1_000_000, 86_400.0
_NO_STEP_S = 600.0  # without a step, a recording of steps ends
_PAUSE_S = 0.1
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ECONNABORTED, errno.EINTR}
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

_current: Listener | None = None
_hooked = False


def listen(dir: str | os.PathLike[str] | None = None) -> Listener:  # noqa: A002 - the name on the command line
    """Lets ``gpuscope attach``, ``dump`` and ``trigger`` of the same user reach this program, until `Listener.close`.

    A thread waits at a unix socket, ``DIR/pid-<pid>.sock``. It costs nothing until a command arrives. A forked child
    does not listen.

    Args:
        dir: folder of the socket, made if missing. Default: ``$XDG_RUNTIME_DIR/gpuscope``, else
            ``/tmp/gpuscope-<uid>``.

    Raises:
        InvalidArgument: this process listens already, the folder is not safe, or its path is too long for a socket.
        GpuscopeError: the socket cannot be made.
        NotAvailable: the system refuses another thread.
    """
    return Listener(dir)


def default_folder() -> Path:
    """The folder of this user's sockets."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(own) / "gpuscope" if own and os.path.isdir(own) else Path(f"/tmp/gpuscope-{os.geteuid()}")


def socket_name(pid: int) -> str:
    """The name of a process's socket in its folder."""
    return f"pid-{pid}.sock"


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user


class Listener:
    """A process that listens; `listen` makes it. Methods are for any thread.

    Attributes:
        path: of the socket.
    """

    def __init__(self, dir: str | os.PathLike[str] | None = None) -> None:  # noqa: A002
        global _current, _hooked
        if _current is not None:
            raise InvalidArgument("listen: this process listens already; accepted after its close()")
        folder = make_own_folder(default_folder() if dir is None else as_path(dir).absolute())
        self.path = folder / socket_name(os.getpid())
        self._lock = shared_lock()
        self._is_open = True
        self._recording: _Asked | None = None
        self._count = 0
        self._dumps: dict[Path, Dumps] = {}
        self._socket = _bound(self.path)
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        # The program may close every descriptor, and use the numbers again.
        self._own = {each: os.fstat(each.fileno()).st_ino for each in (self._socket, self._waker, self._woken)}
        self._thread = threading.Thread(target=self._run, name="gpuscope-listen", daemon=True)
        try:
            start_thread(self._thread.start, "listening")
        except BaseException:
            self._end()
            raise
        if not _hooked:
            os.register_at_fork(after_in_child=_abandon)
            _hooked = True
        atexit.register(self.close)
        _current = self

    def close(self) -> None:
        """Ends a recording that runs, and removes the socket; a second call does nothing."""
        global _current
        self._is_open = False
        self._wake()
        if threading.current_thread() is not self._thread and self._has(self._waker):  # else it cannot be woken
            self._thread.join(_DUMP_S)
        self._end()
        atexit.unregister(self.close)
        _current = None if _current is self else _current

    def abandon(self) -> None:
        """Closes the descriptors in a forked child; the socket is the parent's."""
        self._is_open, self._recording = False, None
        self._drop()

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Listener: {'open' if self._is_open else 'closed'}, {self.path}>"

    def _wake(self) -> None:
        if self._has(self._waker):
            with contextlib.suppress(OSError):
                self._waker.send(b"x")

    def _has(self, own: socket.socket) -> bool:
        """Whether a descriptor is still this object's."""
        try:
            return os.fstat(own.fileno()).st_ino == self._own[own]
        except OSError:
            return False

    def _drop(self) -> None:
        for each in self._own:
            if self._has(each):
                each.close()
            else:
                each.detach()

    def _end(self) -> None:
        with self._lock:
            if self._recording is not None:
                self._recording.stop()
            if self._socket.fileno() >= 0:
                self._drop()
                with contextlib.suppress(OSError):
                    os.unlink(self.path)

    # -- the listening thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.register(self._woken, select.POLLIN)
            while self._is_open and self._wait(poll):
                pass
        finally:
            self.close()

    def _wait(self, poll: select.poll) -> bool:
        """Waits for a request or the end of a recording. False if the program has closed the descriptors."""
        recording = self._recording
        due = None if recording is None else recording.due_s
        try:
            ready = dict(poll.poll(None if due is None else max(0.0, due - time.monotonic()) * 1e3 + 1))
            if recording is not None:
                recording.look()
            if not all(map(self._has, self._own)):
                return False
            if self._woken.fileno() in ready:
                self._woken.recv(1024)
            if self._socket.fileno() in ready and self._is_open:
                connection, _ = self._socket.accept()
                with connection, contextlib.suppress(OSError):  # the peer is gone or too slow
                    self._serve(connection)
        except OSError as error:
            time.sleep(_PAUSE_S)
            return error.errno in _PASSING
        return True

    def _serve(self, connection: socket.socket) -> None:
        until = time.monotonic() + _REQUEST_S
        _, user = peer_of(connection)
        line = b""
        while not line.endswith(b"\n") and len(line) <= MOST_BYTES:
            connection.settimeout(max(1e-3, until - time.monotonic()))
            if not (part := connection.recv(4096)):
                return
            line += part
        if user not in (os.geteuid(), 0):
            answer: Mapping[str, Any] = {"error": f"this is a process of the user {os.geteuid()}, not of {user}"}
        elif len(line) > MOST_BYTES:
            answer = {"error": f"the request is longer than {MOST_BYTES:,} bytes"}
        else:
            answer = self._answer(line)
        connection.settimeout(_REQUEST_S)
        connection.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, line: bytes) -> Mapping[str, Any]:
        handlers: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
            "attach": self._attach,
            "detach": self._detach,
            "state": lambda request: self._state(),
            "dump": self._dump,
            "trigger": self._trigger,
            "close": self._close_after,
        }
        try:
            request = json.loads(line)
            name = request.get("do") if isinstance(request, dict) else None
            if not isinstance(name, str) or name not in handlers:
                raise InvalidArgument(f"the request is {brief(name)}; accepted are {', '.join(handlers)}")
            return {"program": _program(), **handlers[name](request)}
        except GpuscopeError as error:
            return {"error": str(error)}
        except Exception as error:  # of any part that a request reaches
            return {"error": f"the process could not do this: {first_line(error)}"}

    def _attach(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._recording is not None and not self._recording.is_over:
            raise InvalidArgument("a recording that attach began runs already; accepted after `gpuscope detach`")
        steps, seconds = request.get("steps"), request.get("seconds")
        if (steps is None) == (seconds is None):
            raise InvalidArgument("steps and seconds: accepted is one of the two")
        if steps is not None:
            check_count("steps", steps, 1, _MOST_STEPS)
        elif check_positive("seconds", seconds, "seconds") > _MOST_S:
            raise InvalidArgument(f"seconds is {seconds}; accepted are at most {_MOST_S:,.0f}")
        recording = _Asked(_folder_of(request), steps, seconds, request.get("spool") is True, self._wake)
        recording.begin()
        self._count += 1
        self._recording = recording
        return self._state()

    def _detach(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._recording is None or self._recording.is_over:
            raise InvalidArgument("no recording that attach began runs in this process")
        self._recording.stop()
        return self._state()

    def _close_after(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self._is_open = False
        return {}

    def _state(self) -> Mapping[str, Any]:
        recording = self._recording
        if recording is None:
            return {"number": self._count, "is_over": True}
        return {
            "number": self._count,
            "is_over": recording.is_over,
            "path": str(recording.path) if recording.path is not None else None,
            "waits": recording.waits,
            "note": recording.note,
        }

    def _dump(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
            dumps = Dumps(Path(folder) / "dumps")
            path = Path(_taken(dumps, _asked("the state was asked for by gpuscope dump")).path)
            why, stacks = ((path / name).read_text(errors="replace") for name in ("why.txt", "stacks.txt"))
        return {"text": why, "stacks": stacks[:MOST_BYTES]}

    def _trigger(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        event, watch = _asked("a dump was asked for by gpuscope trigger"), running_watch()
        if watch is not None:
            return {"path": watch.dump(event, _DUMP_S).path, "is_watched": True}
        folder = _folder_of(request)
        dumps = self._dumps.setdefault(folder, Dumps(folder))
        return {"path": _taken(dumps, event).path, "is_watched": False}


class _Asked:
    """A recording that `attach` began. Methods are for any thread and never raise, except `begin`.

    Attributes:
        path: the recording, once it is written; with a spool, once it begins.
        note: why it ended early or is not written.
        is_over: whether it has ended and is written.
        due_s: when `look` has something to do, of the monotonic clock; None if not at a fixed time.
    """

    def __init__(
        self, folder: Path, steps: int | None, seconds: float | None, spool: bool, wake: Callable[[], None]
    ) -> None:
        self._folder, self._limit, self._seconds, self._spool, self._wake = folder, steps, seconds, spool, wake
        self._lock = shared_lock()
        self._profile: profile | None = None
        self._is_on = False
        self.path: Path | None = None
        self._steps = 0
        self.note = ""
        self.is_over = False
        self.due_s: float | None = None

    def begin(self) -> None:
        """Begins to record, or to wait for a step.

        Raises:
            InvalidArgument: another profiler runs.
            GpuscopeError: the folder cannot be written, or recording is not possible.
        """
        if any(not isinstance(each, Watch) for each in lifecycle.running()):
            raise InvalidArgument("another profiler runs in the process; accepted after its end")
        make_folder(str(self._folder))
        with self._lock:
            self._is_on = True
            lifecycle.watch(self)
            lifecycle.begins.append(self._give_way)
            self.due_s = time.monotonic() + (self._seconds or _NO_STEP_S)
            if self._limit is None:
                try:
                    self._start()
                except BaseException:
                    self._profile = None
                    self.stop()
                    raise

    @property
    def waits(self) -> bool:
        """Whether it waits for the first step to end."""
        return self._is_on and self._profile is None

    def step(self) -> None:
        """Marks the end of a step: begins to record, or ends it after the last step."""
        with self._lock:
            if not self._is_on:
                return
            try:
                if self._profile is None:
                    self._start()
                    self.due_s = None
                    return
                self._steps += 1
                if self._limit is not None and self._steps >= self._limit:
                    self._end()
                else:
                    self._profile.step()
            except Exception as error:  # the program must go on
                self._end(first_line(error))

    def look(self) -> None:
        """Ends and writes the recording if it is time, on the listening thread."""
        if self._is_on and self.due_s is not None and time.monotonic() >= self.due_s:
            waited = "" if self._limit is None else "the program did not call gpuscope.step() for 10 minutes"
            self._end(waited)
        if not self._is_on:
            self._write()

    def stop(self) -> None:
        """Ends and writes the recording."""
        self._end()
        self._write()

    def abandon(self) -> None:
        """Forgets the recording in a forked child."""
        self._is_on, self._profile, self.is_over = False, None, True
        self._leave()

    def _start(self) -> None:
        self._profile = made = profile(path=self._folder, spool=True) if self._spool else profile()
        made.start()
        lifecycle.forget(made)  # this object steps and stops it
        self.path = made.spool_folder

    def _give_way(self, other: object) -> None:
        if other is not self and other is not self._profile:
            self._end("the program started a profiler of its own")

    def _leave(self) -> None:
        lifecycle.forget(self)
        with contextlib.suppress(ValueError):
            lifecycle.begins.remove(self._give_way)

    def _end(self, note: str = "") -> None:
        with self._lock:
            if not self._is_on:
                return
            self._is_on, self.due_s, self.note = False, None, note
            self._leave()
            try:
                if self._profile is not None:
                    self._profile.stop()
            except Exception as error:
                self.note = first_line(error)
        self._wake()

    def _write(self) -> None:
        with self._lock:
            made, self._profile = self._profile, None
            if made is not None and not self._spool:
                rank = distributed_rank()
                name = self._folder / recording_name(rank.rank if rank else 0)
                try:
                    path = numbered(name, claim(name, name.suffix, 1), name.suffix)
                    try:
                        made.save(path)
                    except GpuscopeError:
                        drop_claim(path)
                        raise
                    self.path = path
                except (OSError, GpuscopeError) as error:
                    self.note = f"the recording could not be written: {first_line(error)}"
            elif made is None and self.path is None and not self.note:
                self.note = "no step began, so that nothing was recorded"
            self.is_over = True


def _abandon() -> None:
    global _current
    listener, _current = _current, None
    if listener is not None:
        listener.abandon()


def _bound(path: Path) -> socket.socket:
    """A socket that listens at a path. One of this process's number is of a process that has ended."""
    if (length := len(os.fsencode(path))) > _LONGEST_PATH:
        raise InvalidArgument(
            f"dir is {brief(str(path.parent))}: the path of the socket has {length} bytes; accepted are {_LONGEST_PATH}"
        )
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.fchmod(made.fileno(), 0o600)  # bind takes it for the file
        made.bind(str(path))
        made.listen(_WAITING)
        made.setblocking(False)
        return made
    except OSError as error:
        made.close()
        raise GpuscopeError(f"the socket {str(path)!r} cannot be made: {error.strerror}") from None


def _folder_of(request: Mapping[str, Any]) -> Path:
    folder = request.get("dir")
    if not isinstance(folder, str) or not os.path.isabs(folder):
        raise InvalidArgument(f"dir is {brief(folder)}; accepted is an absolute path")
    return Path(folder)


def _asked(sentence: str) -> Event:
    return Event("asked", "asked", sentence, is_asked=True)


def _taken(dumps: Dumps, event: Event) -> Dump:
    """Writes a dump; raises GpuscopeError if that is not possible."""
    dump = dumps.take(event, time.monotonic(), lambda: _moment(event))
    if dump is None:
        raise GpuscopeError(dumps.failures[-1] if dumps.failures else "this process has written its most dumps")
    return dump


def _moment(event: Event) -> Moment:
    """The state of this process, from its watch if one runs."""
    if (watch := running_watch()) is not None:
        return watch.moment(event)
    rank = distributed_rank()
    facts = {
        "rank": rank.rank if rank else 0,
        "world_size": rank.world_size if rank else 1,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "program": _program(),
        "versions": versions(),
    }
    sections = [
        ("last steps", lambda: ["not known without a watch (gpuscope run --watch DIR)"]),
        ("open regions", lambda: region_of(os.getpid())),
        ("GPUs", _gpu_lines),  # last: it may wait for the device
    ]
    return Moment(_core.realtime_ns(), facts, sections)


def _gpu_lines() -> list[str]:
    found = gpu_snapshot()
    return str(found).splitlines()[1:] if found.gpus else [f"none: {found.why}"]


def _program() -> str:
    return os.path.basename(sys.argv[0]) or "python" if sys.argv else "python"
