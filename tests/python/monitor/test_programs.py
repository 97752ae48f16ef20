# SPDX-License-Identifier: Apache-2.0
"""What programs that are profiled say to a monitor of the same user, and files that are no such pages."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import threading
import time

import pytest

import gpuscope as gs
from gpuscope.monitor import programs as room
from gpuscope.monitor.programs import OPT_OUT, StatusPage, programs
from gpuscope.text import one_line

NAMESPACE = os.stat("/proc/self/ns/pid").st_ino


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(OPT_OUT, raising=False)
    room.status_page.close()  # of what was profiled before, which lies elsewhere
    yield tmp_path / "gpuscope"
    room.status_page.close()


@pytest.fixture
def page():
    made = StatusPage()
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch):
    """The moment that it is, as a list of one."""
    moment = [1000.0]
    monkeypatch.setattr(room._core, "monotonic_ns", lambda: round(moment[0] * 1e9))
    return moment


def test_a_page_says_what_runs_and_how_fast(page, clock):
    page.open("recording")
    for number in range(8):
        clock[0] += 0.5
        page.step(number * 4, "recording")
    (found,) = programs()
    assert (found.pid, found.step, found.state, found.verdict) == (os.getpid(), 28, "recording", "")
    assert found.steps_per_s == pytest.approx(8)
    page.say(verdict="saves 31 %: the GPU waits for data")
    assert programs()[0].verdict == "saves 31 %: the GPU waits for data"


def region_within(seconds, wanted):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = programs()
        if found and found[0].region == wanted:
            return wanted
        time.sleep(0.01)
    return found[0].region


def test_a_page_says_in_which_region_the_program_is():
    with gs.profile(activities=[gs.ProfilerActivity.CPU]):
        with gs.record_function("train"):
            assert region_within(20, "train") == "train"
            with gs.record_function("forward\x1b[31m"):
                assert region_within(20, one_line("forward\x1b[31m")) == one_line("forward\x1b[31m")
            assert region_within(20, "train") == "train"
            assert " in train " in str(programs()[0])
        assert region_within(20, "") == ""
        entered, leaves = threading.Event(), threading.Event()

        def work():
            with gs.record_function("on another thread"):
                entered.set()
                leaves.wait(30)

        thread = threading.Thread(target=work)
        thread.start()
        entered.wait(30)
        assert region_within(20, "on another thread") == "on another thread"
        with gs.record_function("main"):
            assert region_within(20, "main") == "main"
        leaves.set()
        thread.join()
        with gs.record_function("é" * 500):
            assert region_within(20, "é" * 98) == "é" * 98
            before = programs()[0].region
    assert before
    assert programs()[0].region == ""  # nothing is recorded any more


def test_a_region_that_is_half_written_is_not_believed(page, runtime):
    page.open("recording")
    data = bytearray(page._path.read_bytes())
    data[room._REGION_AT + 6 : room._REGION_AT + 9] = b"abc"
    page._path.write_bytes(data)
    (found,) = programs()
    assert (found.region, found.state) == ("", "recording")


def test_steps_are_written_ten_times_a_second_at_most(page, clock):
    page.open("recording")
    before = page._writes
    for number in range(1000):
        clock[0] += 0.001
        page.step(number, "recording")
    assert 2 * 8 <= page._writes - before <= 2 * 10  # two for each: odd while it is under way
    clock[0] += 0.2
    page.step(5000, "waiting")
    assert (programs()[0].step, programs()[0].state) == (5000, "waiting")


def test_only_the_user_may_read_it_and_it_goes_away(page, runtime):
    page.open("recording")
    (file,) = runtime.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    page.close()
    assert [*runtime.iterdir()] == []
    page.close()
    page.open("recording")
    assert len(programs()) == 1


def test_nobody_is_told_where_a_variable_says_so(page, runtime, monkeypatch):
    monkeypatch.setenv(OPT_OUT, "1")
    page.open("recording")
    page.step(1, "recording")
    page.say(verdict="fine")
    assert (programs(), runtime.exists()) == ([], False)


@pytest.mark.parametrize("obstacle", ["file", "link", "others"])
def test_a_folder_that_is_not_ours_alone_is_left_alone(page, runtime, tmp_path, obstacle):
    if obstacle == "file":
        runtime.write_text("mine")
    elif obstacle == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        runtime.symlink_to(tmp_path / "elsewhere")
    else:
        runtime.mkdir()
        runtime.chmod(0o777)
    page.open("recording")
    page.step(1, "recording")
    assert programs() == []
    assert not (tmp_path / "elsewhere").exists() or not [*(tmp_path / "elsewhere").iterdir()]


def test_long_and_wild_texts_stay_in_their_bounds(page, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/x/" + "\U0001f600\n\x1b[31m" * 100])
    page.open("recording")
    page.say("s" * 500, verdict="\x1b]0;title\x07" + "v\n" * 1000)
    (found,) = programs()
    assert max(map(len, (found.name, found.state, found.verdict))) <= 4 * 512  # what cannot be shown is spelled out
    assert not [text for text in (found.name, found.verdict, str(found)) if "\n" in text or "\x1b" in text]


def test_pages_of_processes_that_ended_are_removed(page, runtime):
    page.open("recording")
    (file,) = runtime.iterdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (ended.pid, os.getpid()):  # it died; its number is another's now
        name = f"{NAMESPACE}-{pid}-1.status"
        (runtime / name).write_bytes(file.read_bytes())
        (runtime / name).chmod(0o600)
    assert [program.pid for program in programs()] == [os.getpid()]
    assert [*runtime.iterdir()] == [file]


def test_pages_of_other_pid_namespaces_are_left_alone(page, runtime):
    page.open("recording")
    (file,) = runtime.iterdir()
    other = runtime / file.name.replace(str(NAMESPACE), str(NAMESPACE + 1))
    other.write_bytes(file.read_bytes())
    other.chmod(0o600)
    dead = runtime / f"{NAMESPACE + 1}-1-1.status"
    dead.touch(0o600)
    assert len(programs()) == 1
    assert other.exists()
    assert dead.exists()


def test_damaged_pages_are_left_out_whatever_is_wrong_with_them(page, runtime):
    page.open("recording")
    page.say(verdict="fine")
    (file,) = runtime.iterdir()
    good = file.read_bytes()
    (told,) = programs()
    dice = random.Random(1)
    for _ in range(500):
        bad = bytearray(good)
        for _ in range(dice.choice([1, 3, 100])):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        file.write_bytes(bad[: dice.choice([len(bad), len(bad), dice.randrange(len(bad))])])
        assert programs() in ([], [told])
    file.write_bytes(good)
    assert programs() == [told]


def test_what_else_lies_there_harms_nobody(page, runtime):
    page.open("recording")
    (file,) = runtime.iterdir()
    name = f"{NAMESPACE}-{os.getppid()}-{room._started(os.getppid())}.status"
    os.mkfifo(runtime / name, 0o600)
    (runtime / f"{NAMESPACE}-1-2.status").mkdir()
    (runtime / "notes.txt").write_text("mine")
    (runtime / f"{NAMESPACE}-3-4.status").symlink_to(file)
    (runtime / f"{NAMESPACE}-99999999999999999999-5.status").write_bytes(b"")
    assert [program.pid for program in programs()] == [os.getpid()]
    assert (runtime / "notes.txt").exists()


WITH_STEPS = """
import sys, time
import gpuscope as gs
with gs.profile(activities=["CPU"]) as prof:
    print("runs", flush=True)
    sys.stdin.readline()
    for number in range(3):
        with gs.record_function(f"step {number}"):
            time.sleep(0.25)  # the region is written too
        prof.step()
print("ended", flush=True)
"""


@pytest.mark.parametrize("how", ["cut", "removed", "a directory", "a pipe", "a link", "nobody's"])
def test_whatever_is_done_to_its_page_a_program_goes_on(runtime, tmp_path, how):
    (tmp_path / "other").write_text("mine")
    with subprocess.Popen(
        [sys.executable, "-c", WITH_STEPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "runs\n"
        (file,) = runtime.iterdir()
        if how == "cut":
            os.truncate(file, 0)
        elif how == "nobody's":
            file.chmod(0)
        else:
            file.unlink()
        if how == "a directory":
            file.mkdir()
        elif how == "a pipe":
            os.mkfifo(file)
        elif how == "a link":
            file.symlink_to(tmp_path / "other")
        process.stdin.close()
        assert process.stdout.read() == "ended\n"
        assert process.wait(30) == 0
    assert (tmp_path / "other").read_text() == "mine"


def test_a_page_that_was_cut_is_whole_again_at_the_next_step(page, clock):
    page.open("recording")
    os.truncate(page._path, 0)
    assert programs() == []
    clock[0] += 1
    page.step(7, "recording")
    assert [program.step for program in programs()] == [7]


def test_a_file_that_has_the_number_of_the_pages_is_neither_written_nor_closed(page, tmp_path, clock):
    page.open("recording")
    with open(tmp_path / "other", "w") as other:
        os.dup2(other.fileno(), page._file)  # the program has closed all files, and opened its own
        clock[0] += 1
        page.step(1, "recording")
        page.close()
        os.close(page._file)  # it is still there
    assert (tmp_path / "other").read_text() == ""


def test_a_full_file_system_is_no_error(page, monkeypatch, clock):
    def full(*_):
        raise OSError(28, "No space left on device")

    page.open("recording")
    monkeypatch.setattr(room.os, "pwrite", full)
    clock[0] += 1
    page.step(1, "recording")
    page.say(verdict="fine")


@pytest.mark.parametrize("kind", ["foreign", "dead", "reused", "directories", "pipes", "spelled otherwise"])
def test_other_names_hide_no_program(page, runtime, kind):
    page.open("recording")
    (file,) = runtime.iterdir()
    pid, started = os.getpid(), room._started(os.getpid())
    for number in range(600):
        name = {
            "foreign": f"{NAMESPACE}-!{number}",
            "reused": f"{NAMESPACE}-{pid}-{number}.status",
            "spelled otherwise": f"{NAMESPACE}-{'0' * (number % 3)}{pid}-{'0' * (1 + number // 3 % 8)}{started}.status",
        }.get(kind, f"{NAMESPACE}-0{number}-{number}.status")
        if kind == "directories":
            (runtime / name).mkdir()
        elif kind == "pipes":
            os.mkfifo(runtime / name, 0o600)
        else:
            (runtime / name).touch(0o600)
    assert [program.pid for program in programs()] == [pid]
    left = {"foreign": 600, "directories": 600, "pipes": 600}.get(kind, 0)
    assert len([*runtime.iterdir()]) == left + 1
    assert file.exists()


def test_a_process_that_begins_while_a_reader_looks_keeps_its_page(page, runtime, monkeypatch):
    """What lives is listed after the pages are."""
    listed, listdir = [], os.listdir
    monkeypatch.setattr(room.os, "listdir", lambda path: listed.append(str(path)) or listdir(path))
    page.open("recording")
    assert len(programs()) == 1
    assert listed == [str(runtime), "/proc"]


def test_a_write_that_is_under_way_is_not_believed(page, runtime):
    page.open("recording")
    (file,) = runtime.iterdir()
    data = bytearray(file.read_bytes())
    data[8] |= 1
    file.write_bytes(data)
    assert programs() == []


def test_a_forked_child_says_nothing_on_its_parents_page(page):
    page.open("recording")
    child = os.fork()
    if child == 0:
        page.say("of the child")
        page.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert [program.state for program in programs()] == ["recording"]


PROFILED = """
import sys
import gpuscope as gs
from gpuscope.monitor.programs import programs
sys.argv[0] = "train.py"
assert programs() == []
with gs.profile(schedule=gs.schedule(wait=1, warmup=0, active=2)) as prof:
    assert programs()[0].state == "waiting"
    prof.step()
told = programs()
prof.diagnose()
print(told[0].name, told[0].state, programs()[0].verdict, sep="|")
"""


def test_a_program_that_is_profiled_says_so_until_it_ends(runtime):
    done = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True)
    name, state, verdict = done.stdout.strip().split("|")
    assert (name, state, verdict != "") == ("train.py", "recorded", True)
    assert [*runtime.iterdir()] == []


@pytest.mark.filterwarnings("ignore:GPUMonitor samples no GPU")
def test_importing_and_watching_say_nothing(runtime):
    with gs.GPUMonitor(None, interval=0.1):
        pass
    assert not runtime.exists()
