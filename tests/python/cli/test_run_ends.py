# SPDX-License-Identifier: Apache-2.0
"""``gpuscope run`` however the program ends: the recording is there, and the exit status is the program's own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpuscope as gs

WORK = """\
import os, signal, sys, time, gpuscope
with gpuscope.record_function("work"):
    pass
"""
# In short sleeps: a signal that comes between Python's last look for one and the sleep is handled at its end.
WAITS = WORK + "print('ready', flush=True)\nfor _ in range(600):\n    time.sleep(0.1)\n"
ENDING = ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGVTALRM", "SIGPROF", "SIGXCPU"]
ENDING += ["SIGIO", "SIGPWR", "SIGRTMIN"]


def defaults() -> None:
    """In the child: what runs the tests, nohup for one, may have signals ignored."""
    for name in ENDING:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(script, tmp_path: Path) -> Iterator[Start]:
    """Starts ``gpuscope run`` with a script; waits until that says "ready"."""
    started: list[subprocess.Popen[str]] = []

    def popen(source: str, *options: str, command: str = "run") -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "gpuscope", command, *options, str(script(source))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(words, **pipes, text=True, cwd=tmp_path, preexec_fn=defaults)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield popen
    for process in started:
        process.kill()
        process.communicate()


def names(folder: Path) -> set[str]:
    return {event.key for event in gs.load(folder / "script.gscope").key_averages()}


@pytest.mark.parametrize("name", ENDING)
def test_a_signal_ends_the_program_once_the_recording_is_written(start, tmp_path, name):
    process = start(WAITS)
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -getattr(signal, name)
    assert f"the program was ended by {name}" in errors
    assert "wrote script.gscope" in errors
    assert "work" in names(tmp_path)


def test_a_signal_ends_a_program_whose_main_thread_is_inside_a_call(start, tmp_path):
    source = (
        WORK + "import ctypes\nprint('ready', flush=True)\nctypes.CDLL(None).sem_wait(ctypes.create_string_buffer(64))"
    )
    process = start(source)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "work" in names(tmp_path)


def test_a_signal_sent_twice_at_once_is_one(start, tmp_path):
    """As timeout(1) and systemd do. Of those that wait together Linux delivers the one of the lowest number first."""
    process = start(WAITS)
    process.terminate()
    process.send_signal(signal.SIGHUP)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGTERM, -signal.SIGHUP)
    assert "work" in names(tmp_path)


def test_a_handler_of_the_program_takes_the_signal(start, tmp_path):
    handler = "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f'ended by {number}'))\n"
    process = start(WORK + handler + WAITS)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith("ended by 15\n")
    assert "work" in names(tmp_path)


def test_a_handler_that_sends_the_signal_again_leaves_the_recording(start, tmp_path):
    handler = """
import os
def end(number, frame):
    os.write(1, b"saved\\n")  # by print it would fail while the program itself prints
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
signal.signal(signal.SIGTERM, end)
"""
    process = start(WORK + handler + WAITS)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (-signal.SIGTERM, "saved\n")
    assert "work" in names(tmp_path)


@pytest.mark.parametrize("name", ["SIGINT", "SIGPIPE"])
def test_a_signal_that_the_program_has_end_it_leaves_the_recording(start, tmp_path, name):
    process = start(WORK + f"signal.signal(signal.{name}, signal.SIG_DFL)\n" + WAITS)
    process.send_signal(getattr(signal, name))
    process.communicate(timeout=60)
    assert process.returncode == -getattr(signal, name)
    assert "work" in names(tmp_path)


def test_a_closed_pipe_that_ends_the_program_leaves_the_recording(start, tmp_path):
    pipe = "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nprint('ready', flush=True)\n"
    process = start(WORK + pipe + "for _ in range(600):\n    print('more', flush=True)\n    time.sleep(0.1)\n")
    process.stdout.close()
    process.stdout = None  # which communicate would read
    process.communicate(timeout=60)
    assert "work" in names(tmp_path)


def test_a_signal_that_the_program_ignores_is_ignored(start, tmp_path):
    source = (
        WORK + "signal.signal(signal.SIGHUP, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(1)\nprint('on')"
    )
    process = start(source)
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "on\n")


def test_the_program_finds_the_handlers_that_it_finds_under_the_interpreter(gpuscope, script):
    source = f"import signal\nprint([signal.getsignal(getattr(signal, name)) for name in {ENDING}])"
    plain = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert gpuscope("run", script(source)).stdout == plain.stdout


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_are_ended_by_signals_at_once(gpuscope, script, method):
    source = f"""
import multiprocessing, time
if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(30)
    print(child.exitcode)
"""
    done = gpuscope("run", script(source))
    assert (done.stdout, done.returncode) == ("-15\n", 0)
    assert done.stderr.count("wrote") == 1


def test_os_exit_leaves_the_recording_and_its_status(gpuscope, script, tmp_path):
    done = gpuscope("run", script(WORK + "print('lost in the buffer')\nos._exit(7)"), PYTHONUNBUFFERED="")
    assert (done.returncode, done.stdout) == (7, "")
    assert "wrote script.gscope" in done.stderr
    assert "work" in names(tmp_path)


def test_os_exit_of_a_thread_does_too(gpuscope, script, tmp_path):
    source = WORK + "import threading\nthreading.Thread(target=os._exit, args=(7,)).start()\ntime.sleep(60)"
    assert gpuscope("run", script(source)).returncode == 7
    assert "work" in names(tmp_path)


@pytest.mark.parametrize(
    "call",
    [
        "os.execv('/bin/sh', ['sh', '-c', 'echo other; exit 6'])",
        "os.execlp('sh', 'sh', '-c', 'echo other; exit 6')",
        "os.execve('/bin/sh', ['sh', '-c', 'echo $word; exit 6'], {'word': 'other'})",
    ],
)
def test_a_program_that_becomes_another_one_leaves_its_recording(gpuscope, script, tmp_path, call):
    done = gpuscope("run", script(WORK + call))
    assert (done.returncode, done.stdout) == (6, "other\n")
    assert "the program became another one by os.exec" in done.stderr
    assert "work" in names(tmp_path)


def test_an_exec_that_fails_goes_on_being_recorded(gpuscope, script, tmp_path):
    source = """
import os, gpuscope
try:
    os.execvp("no-program-of-this-name", ["x"])
except FileNotFoundError:
    with gpuscope.record_function("work"):
        pass
"""
    assert gpuscope("run", script(source)).returncode == 0
    assert "work" in names(tmp_path)


def test_a_spawned_process_may_run_os_exit(gpuscope, script):
    source = """
import multiprocessing, os
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=os._exit, args=(3,))
    child.start()
    child.join()
    print(child.exitcode)
"""
    assert gpuscope("run", script(source)).stdout == "3\n"


@pytest.mark.parametrize("end", ["os._exit(5)", "os.execv('/bin/sh', ['sh', '-c', 'exit 5'])"])
def test_a_forked_child_leaves_no_recording(gpuscope, script, end):
    source = f"import os\nchild = os.fork()\nif child == 0:\n    {end}\nprint(os.waitpid(child, 0)[1] >> 8)"
    done = gpuscope("run", script(source))
    assert (done.stdout, done.returncode) == ("5\n", 0)
    assert done.stderr.count("wrote") == 1


SLOW = """\
import gpuscope.exporters, signal, os, time, threading
def save(store, path):
    {action}
gpuscope.exporters.save = save
"""


@pytest.mark.parametrize("command", ["run -o kept.gscope", "diagnose -o kept.gscope", "memory -o kept.json"])
def test_a_program_that_has_used_up_its_files_leaves_its_results(script, tmp_path, command):
    script("fs = []\nwhile True:\n    fs.append(open('/dev/null'))")
    line = f"ulimit -n 40; {sys.executable} -m gpuscope {command} script.py"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("Too many open files") == 1
    assert f"wrote {command.split()[-1]}" in done.stderr


def test_files_of_a_program_that_closed_all_others_stay_open(gpuscope, script):
    source = "import atexit, os\nos.closerange(3, 99)\nopened = [open(__file__) for _ in range(20)]\n"
    done = gpuscope("run", script(source + "atexit.register(lambda: print(len({file.read() for file in opened})))"))
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "wrote script.gscope" in done.stderr


def test_a_second_ctrl_c_says_what_it_gave_up(gpuscope, script):
    source = (
        WORK + SLOW.format(action="os.kill(os.getpid(), signal.SIGINT); time.sleep(60)") + "raise KeyboardInterrupt"
    )
    done = gpuscope("run", script(source))
    assert done.returncode == 130
    assert "gpuscope: script.gscope is not written: interrupted by a Ctrl-C" in done.stderr
    assert done.stderr.count("Traceback") == 1


def test_a_second_signal_gives_up_and_says_so(start):
    process = start(WORK + SLOW.format(action="print('ready', flush=True); time.sleep(60)") + WAITS)
    process.terminate()
    assert process.stdout.readline() == "ready\n"
    time.sleep(2.5)  # one that comes sooner is no second one
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "gpuscope: a second signal, or Python that did not run, ended this before all was written" in errors


@pytest.mark.parametrize("attempt", range(5))
def test_a_signal_that_comes_as_the_program_ends_ends_it_as_well(start, tmp_path, attempt):
    process = start(WORK + "import os, signal\nprint('ready', flush=True)\nos.kill(os.getpid(), signal.SIGHUP)")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGHUP
    assert "work" in names(tmp_path)


def test_a_recording_that_cannot_be_written_is_said_at_a_signal(start):
    process = start(WORK + SLOW.format(action="raise OSError('no space')") + WAITS)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert "the recording could not be written: no space" in errors


def test_the_report_of_memory_comes_before_a_signal_ends_the_program(start):
    process = start(WAITS, command="memory")
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert "the program was ended by SIGTERM" in errors


FAILING = {
    "no format": "open('other', 'w').write('hello'); os.chmod('other', 0o755); os.execv('other', ['other'])",
    "no interpreter": "open('other', 'w').write('#!/no/such'); os.chmod('other', 0o755); os.execv('other', ['other'])",
    "no arguments": "os.execv('/bin/sh', [])",
    "too many arguments": "os.execve('/bin/sh', ['x' * (1 << 22)], {})",
    "wrong environment": "os.execve('/bin/sh', ['sh'], {1: 2})",
    "a folder": "os.execl('/tmp', 'x')",
}


@pytest.mark.parametrize("call", FAILING.values(), ids=FAILING)
def test_what_comes_after_an_exec_that_fails_is_in_the_same_recording(gpuscope, script, tmp_path, call):
    after = "with gpuscope.record_function('after'):\n    pass\n"
    done = gpuscope(
        "run", script(f"{WORK}try:\n    {call}\nexcept Exception:\n    {after.replace(chr(10), chr(10) + '    ')}")
    )
    assert done.returncode == 0
    assert {"work", "after"} <= names(tmp_path)
    assert [*tmp_path.glob("*.gscope")] == [tmp_path / "script.gscope"]


def test_a_memory_report_goes_on_after_an_exec_that_failed(gpuscope, script):
    done = gpuscope(
        "memory", script("import os\ntry:\n    os.execv('/bin/sh', [])\nexcept ValueError:\n    print('on')")
    )
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr.count("no allocations were recorded") == 2
