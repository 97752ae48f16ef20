# SPDX-License-Identifier: Apache-2.0
"""Processes that listen: recordings and dumps from outside, what is refused, and that nothing is left behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpuscope as gs
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.profiler import lifecycle
from gpuscope.watching import attaching, listening
from gpuscope.watching.attaching import Target

PROGRAM = """
import time
import gpuscope as gs

print("ready", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end:
    with gs.record_function("forward"):
        time.sleep(0.005)
    gs.step()
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The default folder of sockets, short enough for a socket."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "gpuscope"


@pytest.fixture
def listener(home):
    with gs.listen() as made:
        yield made


@pytest.fixture
def program(home, tmp_path):
    """Runs a program that listens, and returns its process."""
    begun = []

    def begin(source=PROGRAM, *options):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(source))
        command = [sys.executable, "-m", "gpuscope", "run", "--listen", str(home), *options, str(path)]
        begun.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        assert begun[-1].stdout.readline() == "ready\n"
        return begun[-1]

    yield begin
    for each in begun:
        each.kill()
        each.communicate()


def command(*arguments, cwd=None):
    line = [sys.executable, "-m", "gpuscope", *map(str, arguments)]
    return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def until(condition, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def ask(listener, request: object, line: bytes | None = None):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(listener.path))
        connection.sendall(json.dumps(request).encode() + b"\n" if line is None else line)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    return json.loads(answer)


def attach(listener, folder, **limits):
    return ask(listener, {"do": "attach", "dir": str(folder), **limits})


def ended(listener):
    until(lambda: ask(listener, {"do": "state"})["is_over"])
    return ask(listener, {"do": "state"})


# -- commands ----------------------------------------------------------------------------------------------------------


def test_attach_records_a_number_of_steps(program, tmp_path):
    process = program()
    done = command("attach", process.pid, "--steps", 5, "-o", "trace", cwd=tmp_path)
    assert (done.returncode, "wrote trace/rank-00000.gscope" in done.stdout) == (0, True), done.stderr
    assert f"recording 5 steps of process {process.pid} (train.py)" in done.stderr
    assert calls(tmp_path / "trace" / "rank-00000.gscope") == 5
    assert process.poll() is None


def test_attach_records_seconds_into_a_spool_too(program, tmp_path):
    process = program()
    done = command("attach", process.pid, "--seconds", "0.3s", "--spool", "-o", "trace", cwd=tmp_path)
    assert "the recording is in trace/rank-00000.gscope/" in done.stdout, done.stderr
    assert calls(tmp_path / "trace" / "rank-00000.gscope") > 5


def test_detach_ends_a_recording_and_attach_says_where_it_is(program, tmp_path):
    process = program()
    line = [sys.executable, "-m", "gpuscope", "attach", str(process.pid), "--seconds", "60s", "-o", "trace"]
    waiting = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "recording 60 s" in waiting.stderr.readline()
    done = command("detach", process.pid, cwd=tmp_path)
    assert "wrote trace/rank-00000.gscope" in done.stdout, done.stderr
    assert "wrote trace/rank-00000.gscope" in waiting.communicate(timeout=20)[0]
    assert "no recording that attach began runs" in command("detach", process.pid).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_attach_detaches(program, tmp_path, number):
    process = program()
    line = [sys.executable, "-m", "gpuscope", "attach", str(process.pid), "--steps", "1000000", "-o", "trace"]
    waiting = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "recording" in waiting.stderr.readline()
    until(lambda: Target(process.pid).ask("state")["waits"] is False)
    waiting.send_signal(number)
    output, _ = waiting.communicate(timeout=20)
    if number == signal.SIGINT:
        assert (waiting.returncode, "wrote trace/" in output) == (0, True)
    assert Target(process.pid).ask("state")["is_over"]
    assert calls(tmp_path / "trace" / "rank-00000.gscope") > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_ends_meanwhile_leaves_its_recording_and_no_socket(program, home, tmp_path, number):
    process = program()
    line = [sys.executable, "-m", "gpuscope", "attach", str(process.pid), "--seconds", "60s", "-o", "trace"]
    waiting = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "recording" in waiting.stderr.readline()
    process.send_signal(number)
    output, _ = waiting.communicate(timeout=20)
    assert (waiting.returncode, "wrote trace/rank-00000.gscope" in output) == (0, True)
    assert "ended meanwhile" in output
    process.wait(20)
    assert not [*home.glob("*.sock")]


def test_attach_to_a_killed_program_says_so(program, home, tmp_path):
    process = program()
    line = [sys.executable, "-m", "gpuscope", "attach", str(process.pid), "--seconds", "60s", "-o", "trace"]
    waiting = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "recording" in waiting.stderr.readline()
    process.kill()
    process.wait()
    _, errors = waiting.communicate(timeout=20)
    assert waiting.returncode == 1
    assert f"there is no recording: the process {process.pid} ended meanwhile" in errors


def test_dump_prints_the_stacks(program):
    source = "import time\ndef wait():\n    time.sleep(60)\nprint('ready', flush=True)\nwait()"
    done = command("dump", program(source).pid)
    assert done.returncode == 0, done.stderr
    assert "MainThread:" in done.stdout
    assert "in wait" in done.stdout
    assert "gpuscope-listen" not in done.stdout
    for title in ("stacks of all threads", "last steps", "open regions", "GPUs"):
        assert f"\n{title}\n" in done.stdout


def test_trigger_writes_a_dump_without_a_watch(program, tmp_path):
    done = command("trigger", program().pid, "-o", "dumps", cwd=tmp_path)
    assert done.stdout == "the dump is in dumps/0001-asked\n", done.stderr
    assert "MainThread" in (tmp_path / "dumps" / "0001-asked" / "why.txt").read_text()


def test_trigger_asks_the_watch(program, tmp_path):
    process = program(PROGRAM, "--watch", "job")
    for number in (1, 2):  # asked dumps have no pause
        done = command("trigger", process.pid, cwd=tmp_path)
        assert done.stdout == f"the dump is in job/dumps/000{number}-asked\n", done.stderr
    assert "last steps\n  " in (tmp_path / "job" / "dumps" / "0001-asked" / "why.txt").read_text()
    assert "median of the last" in command("dump", process.pid).stdout


def test_run_refuses_options_of_one_recording(tmp_path):
    done = command("run", "--listen", tmp_path, "-o", "a.gscope", "-c", "pass")
    assert (done.returncode, "--listen waits for `gpuscope attach`" in done.stderr) == (2, True)


# -- the socket --------------------------------------------------------------------------------------------------------


def test_only_the_user_can_open_the_socket(listener, home):
    assert listener.path == home / f"pid-{os.getpid()}.sock"
    assert stat.S_IMODE(os.stat(listener.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(home).st_mode) == 0o700


def test_another_user_is_refused(listener, monkeypatch):
    monkeypatch.setattr(listening, "peer_of", lambda connection: (1, os.geteuid() + 1))
    assert "error" in ask(listener, {"do": "state"})


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ([], "accepted are attach, detach, state, dump, trigger, close"),
        ({"do": "exec"}, "the request is 'exec'"),
        ({"do": "attach", "dir": "trace", "steps": 1}, "accepted is an absolute path"),
        ({"do": "attach", "dir": "/x", "steps": 1, "seconds": 1}, "accepted is one of the two"),
        ({"do": "attach", "dir": "/x", "steps": 0}, "steps is 0"),
        ({"do": "attach", "dir": "/x", "seconds": 1e9}, "accepted are at most 86,400"),
        ({"do": "attach", "dir": "/proc/x", "seconds": 1}, "cannot be made"),
    ],
)
def test_wrong_requests_get_a_sentence(listener, request_, said):
    assert said in ask(listener, request_)["error"]
    assert lifecycle.running() == ()


def test_a_request_has_a_largest_size_and_a_time(listener, monkeypatch):
    assert "longer than" in ask(listener, None, b"x" * (listening.MOST_BYTES + 4096))["error"]
    assert "could not" in ask(listener, None, b"{\n")["error"]
    monkeypatch.setattr(listening, "_REQUEST_S", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(listener.path))
        assert ask(listener, {"do": "state"})["is_over"]  # served after the silent one


def test_a_second_listen_and_a_long_path_are_refused(listener, tmp_path):
    with pytest.raises(InvalidArgument, match="listens already"):
        gs.listen()
    listener.close()
    with pytest.raises(InvalidArgument, match="the path of the socket has"):
        gs.listen(tmp_path / ("x" * 100))
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(InvalidArgument, match="every user may replace"):
        gs.listen(folder)
    assert listening._current is None


def test_sockets_of_dead_processes_are_removed(home):
    home.mkdir(mode=0o700)
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    for pid in (os.getpid(), process.pid):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(home / f"pid-{pid}.sock"))
    with pytest.raises(GpuscopeError, match=f"there is no process {process.pid}"):
        Target(process.pid)
    assert [path.name for path in home.glob("*.sock")] == [f"pid-{os.getpid()}.sock"]
    with pytest.raises(NotAvailable, match=r"does not listen: start it with `gpuscope run --listen DIR`"):
        Target(os.getpid())
    assert not [*home.glob("*.sock")]
    with gs.listen():
        assert Target(os.getpid()).was_prepared


def test_a_dead_socket_of_this_number_is_replaced(home):
    home.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(home / f"pid-{os.getpid()}.sock"))
    with gs.listen() as made:
        assert ask(made, {"do": "state"})["is_over"]


def test_a_socket_of_another_process_is_not_asked(listener):
    os.rename(listener.path, listener.path.with_name("pid-1.sock"))
    target = object.__new__(Target)
    target.pid = 1
    with pytest.raises(GpuscopeError, match="belongs to another process than 1"):
        target.ask("state")


def test_the_socket_is_found_in_any_folder(home, tmp_path, monkeypatch):
    with gs.listen(tmp_path / "sockets") as made:
        assert Target(os.getpid()).was_prepared

        def of_another_user(path, real=os.stat):
            found = real(path)
            return SimpleNamespace(st_uid=found.st_uid + 1) if path == str(made.path) else found

        monkeypatch.setattr(os, "stat", of_another_user)
        assert attaching._socket_of(os.getpid()).parent == home


def test_a_process_of_another_user_is_refused(home, monkeypatch):
    def refuse(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(GpuscopeError, match="belongs to another user"):
        Target(os.getpid())


def test_a_forked_child_does_not_listen(listener):
    numbers = [each.fileno() for each in (listener._socket, listener._waker, listener._woken)]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            still = [number for number in numbers if os.path.exists(f"/proc/self/fd/{number}")]
            listener.close()
            code = 0 if not still and listening._current is None and listener.path.exists() else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert ask(listener, {"do": "state"})["is_over"]


def test_a_program_that_closes_all_descriptors_goes_on(program, home):
    source = """
        import os, socket
        import gpuscope.watching.listening as listening
        listener = listening._current  # its thread may end it first
        print('ready', flush=True)
        os.closerange(3, 100)
        own = [socket.create_server(("127.0.0.1", 0)) for _ in range(20)]
        listener.close()
        for each in own:
            socket.create_connection(each.getsockname()).close()
            each.accept()
        print('done', flush=True)
    """
    process = program(source)
    assert process.stdout.readline() == "done\n"
    assert process.wait(20) == 0


def test_a_server_of_the_program_keeps_its_connections(listener):
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.dup2(server.fileno(), listener._socket.fileno())
        listener._wake()
        client = socket.create_connection(server.getsockname())
        listener._thread.join(5)
        server.settimeout(5)
        server.accept()[0].close()
        client.close()
        assert not listener._thread.is_alive()


# -- recordings --------------------------------------------------------------------------------------------------------


def calls(path, name="forward"):
    return sum(row.count for row in gs.load(path).key_averages() if row.key == name)


def take(steps):
    for _ in range(steps):
        with gs.record_function("forward"):
            pass
        gs.step()


def test_a_recording_has_whole_steps(listener, tmp_path):
    begun = attach(listener, tmp_path / "a", steps=3)
    assert (begun["waits"], begun["is_over"]) == (True, False)
    take(10)
    state = ended(listener)
    assert state["path"] == str(tmp_path / "a" / "rank-00000.gscope")
    assert calls(state["path"]) == 3
    attach(listener, tmp_path / "a", steps=1)
    take(2)
    assert ended(listener)["path"].endswith("rank-00000-2.gscope")


def test_a_profiler_that_runs_is_not_disturbed(listener, tmp_path):
    with gs.profile() as own:
        assert "another profiler runs" in attach(listener, tmp_path, seconds=1)["error"]
        take(2)
    assert own.key_averages()


@pytest.mark.parametrize("limits", [{"steps": 100}, {"seconds": 60}])
def test_a_recording_gives_way_to_the_programs_profiler(listener, tmp_path, limits):
    attach(listener, tmp_path, **limits)
    take(5)
    with gs.profile() as own:
        take(2)
    assert own.key_averages()
    state = ended(listener)
    assert state["note"] == "the program started a profiler of its own"
    assert calls(state["path"]) >= 4


def test_a_recording_and_a_watch_take_turns(listener, tmp_path):
    with gs.watch(tmp_path / "job", 0.5, None) as watch:
        take(60)  # a window is open
        attach(listener, tmp_path / "a", steps=5)
        take(10)
        assert calls(ended(listener)["path"]) == 5
        take(100)
        until(lambda: watch.summary().windows > 1)


def test_a_failure_inside_a_step_stays_away_from_the_program(listener, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("no CUPTI")

    monkeypatch.setattr(listening, "profile", fail)
    attach(listener, tmp_path, steps=5)
    take(3)
    assert ended(listener)["note"] == "RuntimeError: no CUPTI"
    assert "no CUPTI" in attach(listener, tmp_path, seconds=5)["error"]
    assert lifecycle.running() == ()


def test_a_recording_without_steps_is_given_up(listener, tmp_path, monkeypatch):
    monkeypatch.setattr(listening, "_NO_STEP_S", 0.05)
    attach(listener, tmp_path, steps=5)
    assert "did not call gpuscope.step()" in ended(listener)["note"]


def test_close_writes_a_recording_that_runs(listener, tmp_path):
    attach(listener, tmp_path / "a", seconds=60)
    take(2)
    listener.close()
    assert calls(tmp_path / "a" / "rank-00000.gscope") == 2
    assert not listener.path.exists()


def test_nothing_is_left_after_detach(listener, tmp_path):
    def left():
        gc.collect()
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        hooks = len(lifecycle.begins), len(lifecycle.running()), sys.getprofile(), sys.gettrace()
        counts = [threading.active_count(), *(len(os.listdir(f"/proc/self/{each}")) for each in ("task", "fd"))]
        return (counts, hooks), memory

    def cycle(number):
        attach(listener, tmp_path, **({"steps": 50} if number % 2 else {"seconds": 60}), spool=number % 4 > 1)
        take(20)
        assert ask(listener, {"do": "detach"})["is_over"]

    for number in range(4):
        cycle(number)
    before, memory = left()
    for number in range(20):
        cycle(number)
    after, memory_after = left()
    assert after == before
    assert memory_after - memory < 8 << 20
    listener.close()
    assert [thread.name for thread in threading.enumerate() if "gpuscope-listen" in thread.name] == []


# -- processes that do not listen --------------------------------------------------------------------------------------


def test_python_3_14_makes_a_process_listen_and_leaves_it_as_it_was(home, monkeypatch):
    def execute(pid, script):
        assert pid == os.getpid()
        exec(compile(Path(script).read_text(), script, "exec"), {})

    monkeypatch.setattr(sys, "remote_exec", execute, raising=False)
    target = Target(os.getpid())
    assert not target.was_prepared
    assert target.ask("state")["is_over"]
    target.release()
    until(lambda: listening._current is None)
    assert not [*home.glob("*.sock")]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(), "the system does not permit to debug the process"),
        (RuntimeError("Remote debugging is not enabled in the remote process."), "Remote debugging is not enabled"),
    ],
)
def test_remote_debugging_that_fails_says_what_to_do(home, monkeypatch, error, said):
    def execute(pid, script):
        raise error

    monkeypatch.setattr(sys, "remote_exec", execute, raising=False)
    with pytest.raises(NotAvailable, match=f"{said}.*gpuscope run --listen DIR"):
        Target(os.getpid())
    assert not [*home.glob("*.sock")]


def test_a_failure_in_the_other_process_is_told(home, monkeypatch):
    def execute(pid, script):
        source = Path(script).read_text().replace("import gpuscope", "import gpuscope_that_is_not_there")
        exec(compile(source, script, "exec"), {})

    monkeypatch.setattr(sys, "remote_exec", execute, raising=False)
    with pytest.raises(NotAvailable, match="cannot listen: ModuleNotFoundError: No module named"):
        Target(os.getpid())


def test_a_process_that_runs_no_python_code_is_named(home, monkeypatch):
    monkeypatch.setattr(attaching, "_INJECTED_S", 0.1)
    monkeypatch.setattr(sys, "remote_exec", lambda pid, script: None, raising=False)
    with pytest.raises(NotAvailable, match="its main thread runs no Python code"):
        Target(os.getpid())
