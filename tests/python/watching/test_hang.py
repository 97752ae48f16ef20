# SPDX-License-Identifier: Apache-2.0
"""`gpuscope hang` names the cause of real hangs of processes on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fakes import hanging
from gpuscope import _core
from gpuscope.cli import main
from gpuscope.errors import InvalidArgument
from gpuscope.watching.black_box import read_black_box
from gpuscope.watching.evidence import DEAD, ELSEWHERE, RUNNING, process_state
from gpuscope.watching.hang import HangCause, HangRank, HangReport, find_hang

AFTER_S = 0.5
LONG_S = 20.0


def until_named(folder: Path, kind: str, words: Sequence[str] = (), *, others: bool = True) -> HangReport:
    """The first report with that cause and these words, else the last one: a busy machine takes its time."""
    until = time.monotonic() + LONG_S
    while True:
        report = find_hang(folder, AFTER_S)
        text = str(report).lower()
        # A dead rank is named before the others have waited for long.
        is_named = any(cause.kind == kind and (cause.waiting or not others) for cause in report.causes)
        is_named = is_named and all(word.lower() in text for word in words)
        if is_named or time.monotonic() > until:
            return report
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("program", "kind", "ranks", "words"),
    [
        (hanging.sleeps_before, "late", (1,), ["rank 1 misses all_reduce 2 of dp", "'evaluate'", "in sleeps_before"]),
        (
            hanging.calls_another_kind,
            "mismatch",
            (1,),
            ["rank 1 calls broadcast", "rank 0 calls all_reduce", "2 of dp"],
        ),
        (hanging.calls_another_size, "mismatch", (1,), ["8192 bytes", "4096 bytes", "2 of dp"]),
        (hanging.calls_in_another_order, "order", (0, 1), ["all_reduce 0 of tp", "all_reduce 0 of pp", "same order"]),
        (hanging.is_killed, "dead", (1,), ["is dead after step 2", "does not exist", "'backward'"]),
        (hanging.raises, "ended", (1,), ["has ended after step 2", "exception: ValueError: bad batch"]),
        (hanging.is_stopped, "stopped", (1,), ["is stopped by a signal", "kill -CONT"]),
        (hanging.keeps_the_gil, "gil", (1,), ["holds the GIL", "'tokenize'", "in keeps_the_gil"]),
        (hanging.computes_with_the_gil, "gil", (1,), ["is the suspect, in region 'tokenize'", "computes_with_the_gil"]),
        (hanging.waits_for_a_loader, "loader", (1,), ["waits for its data loader", "in waits_for_a_loader"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_hang_is_named(
    tmp_path: Path, program: hanging.Program, kind: str, ranks: tuple[int, ...], words: Sequence[str]
) -> None:
    with hanging.hanging_job(tmp_path / "job", program) as pids:
        report = until_named(tmp_path / "job", kind, words)
    assert [cause.kind for cause in report.causes] == [kind]
    assert report.causes[0].ranks == ranks
    assert 0 in report.causes[0].waiting
    assert report.causes[0].seconds is not None
    text = str(report)
    for word in words:
        assert word.lower() in text.lower()
    assert len(text.splitlines()) <= 40
    assert {each.pid for each in report.ranks} == set(pids)


def test_a_job_that_goes_on_does_not_hang(tmp_path: Path) -> None:
    with hanging.hanging_job(tmp_path / "job", hanging.goes_on):
        time.sleep(2 * AFTER_S)
        report = find_hang(tmp_path / "job", 10 * AFTER_S)
    assert not report.is_hang
    assert "No hang seen" in str(report)
    assert all((each.step or 0) >= 2 for each in report.ranks)


def test_the_cause_is_read_from_the_files_of_a_job_that_is_over(tmp_path: Path) -> None:
    with hanging.hanging_job(tmp_path / "job", hanging.sleeps_before, size=3):
        until_named(tmp_path / "job", "late")
    report = find_hang(tmp_path / "job", AFTER_S / 2)
    assert report.causes[0].ranks == (1,)
    assert report.causes[0].waiting == (0, 2)
    assert "'evaluate'" in str(report)


def test_a_process_that_has_the_number_of_a_dead_one_is_another(tmp_path: Path) -> None:
    with hanging.hanging_job(tmp_path / "job", hanging.goes_on, size=1):
        path = next((tmp_path / "job").rglob("black_box.bin"))
        assert process_state(read_black_box(path)) == RUNNING
        data = bytearray(path.read_bytes())
        struct.pack_into("<Q", data, 24, 1)  # the start
        struct.pack_into("<I", data, 160, _core.crc32c(data[8:160]))
        (tmp_path / "other.bin").write_bytes(data)
        assert process_state(read_black_box(tmp_path / "other.bin")) == DEAD
        struct.pack_into("<Q", data, 40, 1)  # the namespace
        struct.pack_into("<I", data, 160, _core.crc32c(data[8:160]))
        (tmp_path / "other.bin").write_bytes(data)
        assert process_state(read_black_box(tmp_path / "other.bin")) == ELSEWHERE


def test_a_rank_without_steps_is_named_alone(tmp_path: Path) -> None:
    def stalls(own: hanging.SimulatedRank) -> None:
        time.sleep(1000)

    with hanging.hanging_job(tmp_path / "job", stalls, size=1):
        report = until_named(tmp_path / "job", "no steps", others=False)
    assert [(cause.kind, cause.ranks) for cause in report.causes] == [("no steps", (0,))]
    assert "has begun no step for" in str(report)


def test_a_rank_that_stood_still_before_the_job_was_killed_is_named(tmp_path: Path) -> None:
    def stalls(own: hanging.SimulatedRank) -> None:
        while True:
            time.sleep(0.1)
            own.box.beat()

    with hanging.hanging_job(tmp_path / "job", stalls, size=1):
        until_named(tmp_path / "job", "no steps", others=False)
    report = find_hang(tmp_path / "job", AFTER_S)
    assert [(cause.kind, cause.ranks) for cause in report.causes] == [("no steps", (0,))]


def test_a_rank_that_ended_in_order_is_what_the_others_wait_for(tmp_path: Path) -> None:
    def ends_first(own: hanging.SimulatedRank) -> None:
        if own.rank == 1:
            own.box.close()
            os._exit(0)
        while True:
            time.sleep(0.1)
            own.box.beat()

    with hanging.hanging_job(tmp_path / "job", ends_first):
        report = until_named(tmp_path / "job", "ended", others=False)
    assert report.causes[0].ranks == (1,)
    assert report.causes[0].waiting == (0,)
    assert str(report).startswith("Rank 1 has ended in order, and rank 0 then began no step for ")


def test_without_a_line_its_stack_is_to_be_asked_for(tmp_path: Path) -> None:
    with hanging.hanging_job(tmp_path / "job", hanging.sleeps_before):
        until_named(tmp_path / "job", "late")
        for path in (tmp_path / "job").rglob("stacks.txt"):
            path.unlink()
        text = str(find_hang(tmp_path / "job", AFTER_S / 2))
    assert "To do: ask for its stack" in text


def test_files_that_vanish_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        name, path = "fdinfo", "/proc/1/fdinfo"

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "scandir", lambda folder: contextlib.nullcontext([Gone()]))
    with pytest.raises(InvalidArgument, match="no readable black box"):
        find_hang(tmp_path)


def test_a_killed_job_that_did_not_hang_is_over(tmp_path: Path) -> None:
    with hanging.hanging_job(tmp_path / "job", hanging.goes_on):
        time.sleep(AFTER_S)
    text = str(find_hang(tmp_path / "job", LONG_S))
    assert "No hang seen" in text
    assert "the job is over; killed without an orderly end: rank 0, rank 1" in text


def test_the_command_has_exit_codes_and_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "job"
    with hanging.hanging_job(folder, hanging.sleeps_before):
        until_named(folder, "late")
        assert main(["hang", str(folder), "--after", "500ms"]) == 1
        assert capfd.readouterr().out.startswith("Rank 1 misses all_reduce 2 of dp: rank 0 waits inside for ")
        assert main(["hang", str(folder), "--after", "500ms", "--json", "-"]) == 1
        result = json.loads(capfd.readouterr().out)
        assert (result["is_hang"], result["causes"][0]["kind"], result["causes"][0]["waiting"]) == (True, "late", [0])
        assert main(["hang", str(folder), "--after", "1000s"]) == 0
        assert "No hang seen" in capfd.readouterr().out
    (tmp_path / "empty").mkdir()
    for wrong in (str(tmp_path / "empty"), str(tmp_path / "absent"), __file__):
        assert main(["hang", wrong]) == 2
    assert os.path.basename(__file__) in capfd.readouterr().err


def test_the_text_has_at_most_forty_lines() -> None:
    cause = HangCause("late", (1,), (0,), 1.0, "A sentence. " * 100, ("one", "two", "three", "four"), "advice")
    ranks = [HangRank(rank, 1, "running", 2, "r" * 200, "line", "all_reduce 1 of dp", True) for rank in range(99)]
    lines = str(HangReport((cause,) * 9, tuple(ranks), ("a note",) * 9)).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 400
