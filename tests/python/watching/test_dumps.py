# SPDX-License-Identifier: Apache-2.0
"""What a dump contains, and the limits that hold in a storm of events."""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.watching import dumps as module
from gpuscope.watching.dumps import COOL_DOWN_S, MOST_DUMPS, Dumps, Moment, make_own_folder
from gpuscope.watching.triggers import Event

FACTS = {"rank": 3, "host": "node-7", "pid": 812, "program": "train.py", "versions": {"python": "3.12"}}
EVENT = Event("slow_step", "step 700", "step 700 took 1 s, 5x the usual 200 ms", 700, {"seconds": 1.0})


@pytest.fixture
def recordings(tmp_path):
    paths = [tmp_path / f"window-{number}.gscope" for number in range(6)]
    for path in paths:
        path.write_bytes(b"x" * 1000)
    return paths


def moment(recordings=(), sections=()):
    return lambda: Moment(1_780_000_000_000_000_000, FACTS, sections, recordings)


def why(dump) -> str:
    return (Path(dump.path) / "why.txt").read_text()


def test_a_dump_says_what_happened(tmp_path, recordings):
    sections = [("last steps", lambda: ["200 ms, 1 s"]), ("GPUs", lambda: 1 // 0), ("nothing", list)]
    dump = Dumps(tmp_path / "dumps").take(EVENT, 0.0, moment(recordings, sections))
    assert Path(dump.path).name == "0001-slow_step"
    text = why(dump)
    assert text.startswith("Step 700 took 1 s, 5x the usual 200 ms.\nwhen: 20")
    assert "process: rank 3, pid 812 on node-7\n" in text
    assert "last steps\n  200 ms, 1 s\n" in text
    assert "GPUs\n  not known: ZeroDivisionError" in text
    assert "nothing" not in text
    assert "test_a_dump_says_what_happened" in text  # of the main thread's stack
    facts = json.loads((Path(dump.path) / "why.json").read_text())
    assert facts | {"trigger": "slow_step", "step": 700, "rank": 3, "figures": {"seconds": 1.0}} == facts
    assert facts["recordings"] == [path.name for path in recordings[-4:]]


def test_the_last_recordings_are_links(tmp_path, recordings):
    dump = Dumps(tmp_path / "dumps").take(EVENT, 0.0, moment(recordings))
    linked = sorted(Path(dump.path).glob("*.gscope"))
    assert [path.name for path in linked] == [path.name for path in recordings[-4:]]
    assert all(os.path.samefile(path, tmp_path / path.name) for path in linked)


def test_the_last_segments_of_a_recording_are_links(tmp_path):
    folder = tmp_path / "rank-00000.gscope"
    folder.mkdir()
    for number in range(9):
        (folder / f"segment-{number:08d}.gscope").write_bytes(b"x")
    dump = Dumps(tmp_path / "dumps").take(EVENT, 0.0, moment([folder]))
    linked = sorted((Path(dump.path) / folder.name).iterdir())
    assert [int(path.stem.rpartition("-")[2]) for path in linked] == [0, 5, 6, 7, 8]
    assert os.path.samefile(linked[-1], folder / linked[-1].name)


def test_a_file_system_without_links_gets_copies(tmp_path, recordings, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    dump = Dumps(tmp_path / "dumps").take(EVENT, 0.0, moment(recordings))
    assert dump.recordings == 4
    assert (Path(dump.path) / "window-5.gscope").read_bytes() == recordings[5].read_bytes()


def test_a_recording_that_was_deleted_is_left_out(tmp_path, recordings):
    recordings[4].unlink()
    assert Dumps(tmp_path / "dumps").take(EVENT, 0.0, moment(recordings)).recordings == 3


def test_the_text_fits_on_two_screens(tmp_path):
    long = [f"line {number}" for number in range(500)]
    ends = threading.Event()
    threads = [threading.Thread(target=ends.wait, name=f"loader {number}") for number in range(60)]
    for thread in threads:
        thread.start()
    event = replace(EVENT, details=tuple(long))
    sections = [(f"part {number}", lambda: long) for number in range(3)]
    dump = Dumps(tmp_path / "dumps").take(event, 0.0, moment(sections=sections))
    ends.set()
    lines = why(dump).splitlines()
    assert len(lines) <= 80
    assert all(len(line) <= 160 for line in lines)
    assert lines[-1].startswith("recordings: none yet")
    assert sum("loader" in line for line in lines) < 20
    assert "wait" in (Path(dump.path) / "stacks.txt").read_text()


def test_control_characters_do_not_reach_the_text(tmp_path):
    event = replace(EVENT, sentence="an exception was not caught: \x1b[31mred\nline", details=("\x07bell",))
    text = why(Dumps(tmp_path / "dumps").take(event, 0.0, moment()))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_the_same_cause_is_counted(tmp_path):
    dumps = Dumps(tmp_path / "dumps")
    assert dumps.take(EVENT, 0.0, moment()) is not None
    assert dumps.take(EVENT, 10 * COOL_DOWN_S, moment()) is None
    assert dumps.counted == {"slow_step": 1}


def test_a_much_worse_event_is_dumped_before_its_trigger_has_cooled_down(tmp_path):
    dumps = Dumps(tmp_path / "dumps")
    sizes = [0.06, 0.1, 1.0, 2.0]
    found = [
        dumps.take(replace(EVENT, cause=f"step {at}", size=size), float(at), moment()) for at, size in enumerate(sizes)
    ]
    assert [each is not None for each in found] == [True, False, True, False]


def test_stacks_of_an_event_that_is_over_are_said_to_be_later(tmp_path):
    assert "stacks of all threads, after that step\n" in why(
        Dumps(tmp_path / "dumps").take(replace(EVENT, is_past=True), 0.0, moment())
    )


def test_further_files_of_a_dump_come_last(tmp_path):
    def write(folder):
        assert (folder / "why.txt").exists()
        (folder / "more").write_text("")

    def make():
        return replace(moment()(), write_more=write)

    assert (Path(Dumps(tmp_path / "dumps").take(EVENT, 0.0, make).path) / "more").exists()


def test_a_trigger_cools_down(tmp_path):
    dumps = Dumps(tmp_path / "dumps")
    others = [replace(EVENT, cause=f"step {number}") for number in range(3)]
    assert dumps.take(others[0], 100.0, moment()) is not None
    assert dumps.take(others[1], 99.0 + COOL_DOWN_S, moment()) is None
    assert dumps.take(replace(EVENT, trigger="hang"), 101.0, moment()) is not None
    assert dumps.take(others[2], 101.0 + COOL_DOWN_S, moment()) is not None


def test_a_dump_that_a_user_asks_for_does_not_wait(tmp_path):
    dumps = Dumps(tmp_path / "dumps")
    asked = replace(EVENT, trigger="signal", is_asked=True)
    assert [dumps.take(asked, 0.0, moment()) is not None for _ in range(3)] == [True] * 3


def test_a_storm_of_events_ends_at_the_limits(tmp_path):
    dumps = Dumps(tmp_path / "dumps")
    for number in range(500):
        dumps.take(replace(EVENT, cause=f"step {number}"), number * 2 * COOL_DOWN_S, moment())
    assert len(dumps.written) == len(os.listdir(tmp_path / "dumps")) == MOST_DUMPS
    assert dumps.counted == {"slow_step": 500 - MOST_DUMPS}


def test_the_size_of_dumps_is_limited(tmp_path, recordings, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 6000)
    dumps = Dumps(tmp_path / "dumps")
    taken = [
        dumps.take(replace(EVENT, cause=str(number)), number * 2 * COOL_DOWN_S, moment(recordings))
        for number in range(4)
    ]
    assert [each is not None for each in taken] == [True, True, False, False]


def test_ranks_share_the_numbers(tmp_path):
    names = [Path(Dumps(tmp_path / "dumps").take(EVENT, 0.0, moment()).path).name for _ in range(3)]
    assert names == ["0001-slow_step", "0002-slow_step", "0003-slow_step"]


def test_a_folder_with_many_dumps_gets_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_IN_FOLDER", 2)
    dumps = [Dumps(tmp_path / "dumps") for _ in range(3)]
    assert [each.take(EVENT, 0.0, moment()) is None for each in dumps] == [False, False, True]
    assert "no more are written" in dumps[2].failures[0]


def test_a_full_disk_is_noted(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise GpuscopeError("cannot write why: No space left on device")

    monkeypatch.setattr(module, "write_text", refuse)
    monkeypatch.setattr(module, "json_text", refuse)
    dumps = Dumps(tmp_path / "dumps")
    assert dumps.take(EVENT, 0.0, moment()) is not None
    assert "No space left" in dumps.failures[0]


def test_a_folder_that_cannot_be_made_is_noted(tmp_path):
    (tmp_path / "dumps").write_text("a file")
    dumps = Dumps(tmp_path / "dumps")
    assert dumps.take(EVENT, 0.0, moment()) is None
    assert "no folder" in dumps.failures[0]
    assert dumps.counted == {"slow_step": 1}


# -- on_dump -----------------------------------------------------------------------------------------------------------


def test_a_function_gets_the_path(tmp_path):
    told = []
    dumps = Dumps(tmp_path / "dumps", told.append)
    dump = dumps.take(EVENT, 0.0, moment())
    dumps.tell(dump)
    assert told == [Path(dump.path)]


def test_a_command_gets_the_path_as_one_word(tmp_path):
    folder = tmp_path / "two words; touch hacked"
    script = tmp_path / "tell.py"
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[1], 'told').touch()")
    dumps = Dumps(folder, f"{sys.executable} {script} {{path}}")
    dump = dumps.take(EVENT, 0.0, moment())
    dumps.tell(dump)
    assert dumps.failures == []
    assert (Path(dump.path) / "told").exists()


@pytest.mark.parametrize(
    ("on_dump", "said"),
    [
        (lambda path: 1 // 0, "ZeroDivisionError"),
        ("/does/not/exist {path}", "No such file"),
        (f"{sys.executable} -c \"import sys; sys.exit('full')\"", "ended with 1: full"),
    ],
)
def test_a_failure_of_the_callback_is_noted(tmp_path, on_dump, said):
    dumps = Dumps(tmp_path / "dumps", on_dump)
    dumps.tell(dumps.take(EVENT, 0.0, moment()))
    assert len(dumps.failures) == 1
    assert dumps.failures[0].startswith("on_dump: ")
    assert said in dumps.failures[0]


@pytest.mark.parametrize("wrong", [3, "", "  ", 'cmd "{path}'])
def test_no_callback_is_refused(tmp_path, wrong):
    with pytest.raises(InvalidArgument, match="on_dump is"):
        Dumps(tmp_path, wrong)


# -- folders -----------------------------------------------------------------------------------------------------------


def test_a_new_folder_is_private(tmp_path):
    assert make_own_folder(tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_unsafe_folders_are_refused(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "file").touch()
    real.chmod(0o777)
    for name, what in (("link", "a symbolic link"), ("file", "no folder"), ("real", "every user may replace")):
        with pytest.raises(InvalidArgument, match=what):
            make_own_folder(tmp_path / name)
    real.chmod(0o1777)
    assert make_own_folder(real) == real


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InvalidArgument, match="a folder of the user"):
        make_own_folder(tmp_path)
