# SPDX-License-Identifier: Apache-2.0
"""Black boxes: what a process entered before its death is in the file, and wrong files are refused."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import signal
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope import _core, record_function
from gpuscope.errors import CorruptTrace, GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.watching.black_box import read_black_box

KILLS = 50
HEADER_BYTES = 256
THREADS_AT = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "black_box.bin"


@pytest.fixture
def box(path: Path) -> Iterator[_core.BlackBox]:
    made = _core.BlackBox(str(path), 3)
    yield made
    made.close()


def test_a_box_names_its_process(box: _core.BlackBox, path: Path) -> None:
    content = read_black_box(path)
    assert (content.pid, content.rank, content.is_closed, content.beat_ns) == (os.getpid(), 3, False, None)
    assert content.start_ticks == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert content.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
    assert content.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert abs(content.created_ns - time.time_ns()) < 60e9
    assert path.stat().st_blocks * 512 >= 1 << 20  # so that a full disk raises no SIGBUS
    assert path.stat().st_mode & 0o777 == 0o600


def test_steps_and_collectives_are_read_while_the_process_runs(box: _core.BlackBox, path: Path) -> None:
    for number in range(2):
        box.step_begin(number)
        box.collective("dp", number, "all_reduce", 4096, 8)
        box.collective("dp", number, "all_reduce", 4096, 8, ended=True)
        box.step_end(number)
    box.step_begin(2)
    box.collective("tp", 7, "all_gather")
    box.trigger("slow step")
    box.beat()
    content = read_black_box(path)
    assert [(step.number, step.ended_ns is not None) for step in content.steps] == [(0, True), (1, True), (2, False)]
    first, _, last = content.collectives
    assert (first.communicator, first.number, first.kind, first.size) == ("dp", 0, "all_reduce", "4096 bytes")
    assert (first.ranks, first.is_done, last.is_done) == (8, True, False)
    assert first.since_ns is not None
    assert content.created_ns <= first.since_ns <= content.last_ns
    assert (last.communicator, last.number, last.kind, last.size) == ("tp", 7, "all_gather", "")
    assert [name for name, _ in content.triggers] == ["slow step"]
    assert content.beat_ns is not None
    assert content.notes == ()


def test_a_ring_keeps_the_last_entries(box: _core.BlackBox, path: Path) -> None:
    for number in range(3000):
        box.step_begin(number)
    steps = read_black_box(path).steps
    assert [step.number for step in steps] == list(range(3000 - 1024, 3000))


def test_open_regions_of_each_thread_are_the_innermost(box: _core.BlackBox, path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with record_function("loader"):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()

    def names() -> dict[int, list[str]]:
        return {each.id: [region.name for region in each.regions] for each in read_black_box(path).threads}

    def nest(depth: int) -> None:
        with record_function(f"level {depth}"):
            if depth < 40:
                nest(depth + 1)
            else:
                own = next(each for each in read_black_box(path).threads if each.id == threading.get_native_id())
                assert own.depth == 41
                assert [region.name for region in own.regions] == [f"level {each}" for each in range(24, 32)]
        assert threading.get_native_id() not in names() or names()[threading.get_native_id()][-1] == (
            f"level {min(depth, 32) - 1}"
        )

    nest(0)
    assert names() == {thread.native_id: ["loader"]}
    leave.set()
    thread.join()
    assert names() == {}


def test_a_slot_of_an_ended_thread_is_used_again(box: _core.BlackBox, path: Path) -> None:
    def enter() -> None:
        with record_function("short"):
            pass

    for _ in range(300):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert read_black_box(path).notes == ()


def test_generated_names_fill_the_table_and_harm_nothing(box: _core.BlackBox, path: Path) -> None:
    for number in range(1500):
        with record_function(f"request {number} " + "x" * 2000):
            pass
    with record_function("one more"):
        content = read_black_box(path)
    assert content.threads[0].regions[-1].name in ("one more", "(a name without room)")
    assert any("names found no room" in note for note in content.notes)


def test_a_box_that_was_closed_gets_nothing_more(path: Path) -> None:
    box = _core.BlackBox(str(path))
    with record_function("open"):
        box.close()
    box.step_begin(1)
    box.beat()
    with record_function("later"):
        pass
    content = read_black_box(path)
    assert (content.is_closed, content.rank, content.steps) == (True, None, ())
    assert [region.name for region in content.threads[0].regions] == ["open"]
    assert not box.is_open


def test_a_forked_child_leaves_the_box_to_its_parent(box: _core.BlackBox, path: Path) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            box.step_begin(99)
            with record_function("of the child"):
                own = _core.BlackBox(str(path) + ".child")
                with record_function("inner"):
                    names = [each.name for each in read_black_box(str(path) + ".child").threads[0].regions]
                own.close()
            code = 0 if names == ["inner"] and not box.is_open else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    box.step_begin(1)
    content = read_black_box(path)
    assert [step.number for step in content.steps] == [1]
    assert content.threads == ()


def test_a_box_that_cannot_be_made_says_why(box: _core.BlackBox, tmp_path: Path) -> None:
    with pytest.raises(NotAvailable, match="already has one"):
        _core.BlackBox(str(tmp_path / "second.bin"))
    assert not (tmp_path / "second.bin").exists()
    box.close()
    for path, rank in ((str(tmp_path / "box.bin"), -2), (f"{tmp_path}/a\0b", 0)):
        with pytest.raises(InvalidArgument, match="accepted are"):
            _core.BlackBox(path, rank)
    (tmp_path / "link.bin").symlink_to(tmp_path / "target.bin")
    for wrong in (tmp_path / "absent" / "box.bin", tmp_path / "link.bin", tmp_path):
        with pytest.raises(NotAvailable, match="black box"):
            _core.BlackBox(str(wrong))
    assert not (tmp_path / "target.bin").exists()


def write_until_killed(path: Path, done: mmap.mmap) -> None:
    """Steps, collectives and regions, each noted in shared memory after it was entered."""
    box, counter = _core.BlackBox(str(path), 0), ctypes.c_uint64.from_buffer(done)  # stores of 8 bytes are whole
    number = 0
    while True:
        box.step_begin(number)
        with record_function(f"step {number % 50}"):
            box.collective("dp", number, "all_reduce", 8, 2)
            counter.value = number + 1
            box.collective("dp", number, "all_reduce", 8, 2, ended=True)
        box.step_end(number)
        number += 1


def test_what_was_entered_before_sigkill_is_in_the_file(tmp_path: Path) -> None:
    wait = random.Random(1)
    for attempt in range(KILLS):
        path, done = tmp_path / f"{attempt}.bin", mmap.mmap(-1, 8)
        child = os.fork()
        if child == 0:
            try:
                write_until_killed(path, done)
            finally:
                os._exit(1)
        while struct.unpack_from("<Q", done)[0] == 0:
            time.sleep(0.001)
        time.sleep(wait.random() * 0.02)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        entered = struct.unpack_from("<Q", done)[0] - 1
        content = read_black_box(path)
        calls = {call.number: call for call in content.collectives}
        assert content.steps[-1].number in (entered, entered + 1)
        assert calls[entered].since_ns is not None
        assert all(number in calls for number in range(max(0, entered - 1000), entered))
        assert all(calls[number].is_done for number in range(max(0, entered - 1000), entered))
        for thread in content.threads:
            assert thread.is_torn or [each.name for each in thread.regions] in (
                [f"step {entered % 50}"],
                [f"step {(entered + 1) % 50}"],
            )
        path.unlink()


def test_damaged_bytes_are_refused_or_reported(box: _core.BlackBox, path: Path) -> None:
    for number in range(2000):
        box.step_begin(number)
        box.collective("dp", number, "all_reduce")
    with record_function("region"):
        whole = path.read_bytes()
    damage, damaged = random.Random(2), path.with_name("damaged.bin")
    for _ in range(30):
        data = bytearray(whole)
        for _ in range(damage.choice([1, 100, 10_000])):
            data[damage.randrange(len(data))] = damage.randrange(256)
        damaged.write_bytes(data)
        try:
            content = read_black_box(damaged)
        except CorruptTrace:
            continue
        assert all(0 <= step.number < 2000 for step in content.steps)
        assert len(content.steps) == 1024 or content.notes
    damaged.write_bytes(whole[:HEADER_BYTES] + damage.randbytes(len(whole) - HEADER_BYTES))
    content = read_black_box(damaged)
    assert content.steps == ()
    assert any("not written to their end" in note for note in content.notes)


def test_a_torn_thread_and_a_damaged_name_are_marked(box: _core.BlackBox, path: Path) -> None:
    with record_function("a name"):
        data = bytearray(path.read_bytes())
    damaged = path.with_name("damaged.bin")
    struct.pack_into("<Q", data, THREADS_AT, struct.unpack_from("<Q", data, THREADS_AT)[0] + 1)
    damaged.write_bytes(data)
    assert [(each.is_torn, each.regions[-1].name) for each in read_black_box(damaged).threads] == [(True, "a name")]
    damaged.write_bytes(data.replace(b"a name", b"b name"))
    assert read_black_box(damaged).threads[0].regions[-1].name == "(a damaged name)"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"", "no black box"),
        (lambda data: bytes(len(data)), "no black box"),
        (lambda data: data[:-1], "cut off"),
        (lambda data: data[:100], "cut off"),
        (lambda data: data[:8] + b"\2" + data[9:], "version 2"),
        (lambda data: data[:20] + b"\7" + data[21:], "header is damaged"),
    ],
)
def test_a_wrong_file_is_refused(box: _core.BlackBox, path: Path, tmp_path: Path, change, words: str) -> None:
    wrong = tmp_path / "wrong.bin"
    wrong.write_bytes(change(path.read_bytes()))
    with pytest.raises(CorruptTrace, match=words):
        read_black_box(wrong)


def test_links_pipes_and_folders_are_not_read(box: _core.BlackBox, path: Path, tmp_path: Path) -> None:
    (tmp_path / "link.bin").symlink_to(path)
    os.mkfifo(tmp_path / "pipe.bin")
    for wrong in ("link.bin", "pipe.bin", "absent.bin", ".", "a\0b"):
        with pytest.raises(GpuscopeError) as caught:
            read_black_box(tmp_path / wrong)
        assert isinstance(caught.value, InvalidArgument)
