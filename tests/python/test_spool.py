# SPDX-License-Identifier: Apache-2.0
"""Recordings that are written while the program runs, and outlive it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope as gs
from gpuscope import _core
from gpuscope.cli import main
from gpuscope.errors import CorruptTrace, GpuscopeWarning, InvalidArgument
from gpuscope.profiler.options import RecordingOptions

RECORDING = "rank-00000.gscope"

# Forks a process a round, which records until it is killed, and prints what it had recorded by then and when.
KILLED = """\
import mmap, os, random, signal, struct, sys, time
import gpuscope as gs
from gpuscope._core import now_ns

def record(folder, shared):
    with gs.profile(path=folder, spool=True), gs.record_function("all"):
        for count in range(1, 10**9):
            with gs.record_function("step"), gs.record_function("inner"):
                time.sleep(0.0005)
            shared[:16] = struct.pack("qq", count, now_ns())

for number in range(int(sys.argv[2])):
    shared = mmap.mmap(-1, 16)
    child = os.fork()
    if child == 0:
        record(f"{sys.argv[1]}/{number}", shared)
    time.sleep(random.uniform(0.2, 0.6))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print(*struct.unpack("qq", shared[:16]), flush=True)
"""


def work(steps: int) -> None:
    for _ in range(steps):
        with gs.record_function("step"), gs.record_function("inner"):
            pass


def counts(recording) -> dict[str, int]:
    return {row.key: row.count for row in recording.key_averages()}


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / RECORDING).iterdir())


def test_a_recording_on_the_disk_is_the_one_in_memory(tmp_path):
    with gs.profile(path=tmp_path, spool=True) as prof:
        work(1000)
    assert counts(prof) == {"step": 1000, "inner": 1000}
    assert segments(tmp_path) == ["segment-00000000.gscope", "segment-00000001.gscope", "segment-99999999.gscope"]
    loaded = gs.load(tmp_path / RECORDING)
    assert counts(loaded) == counts(prof)
    assert loaded.audit().complete
    for table in ("regions", "threads", "paths"):
        theirs, ours = getattr(loaded.trace, table), getattr(prof.trace, table)
        for column in type(theirs).__annotations__:
            assert list(getattr(theirs, column)) == list(getattr(ours, column)), (table, column)
    assert loaded.trace.info["process.argv"] == prof.trace.info["process.argv"]


def test_metadata_and_notes_are_on_the_disk(tmp_path):
    with gs.profile(path=tmp_path, spool=True) as prof:
        prof.add_metadata("model", "small")
        work(1)
    assert gs.load(tmp_path / RECORDING).trace.info["metadata.model"] == '"small"'


def test_each_window_has_a_folder(tmp_path):
    windows = []
    with gs.profile(
        path=tmp_path,
        spool=True,
        schedule=gs.schedule(wait=1, warmup=0, active=1, repeat=2),
        on_trace_ready=lambda prof: windows.append(counts(prof)["step"]),
    ) as prof:
        for step in range(4):
            work(step)
            prof.step()
    assert windows == [1, 3]
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert folders == ["rank-00000-2.gscope", RECORDING]
    assert [counts(gs.load(tmp_path / name))["step"] for name in reversed(folders)] == windows


def test_fifty_killed_processes_lose_a_quarter_second_at_most(tmp_path):
    rounds = 50
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(rounds)], capture_output=True, text=True, check=True
    )
    for number, line in enumerate(done.stdout.splitlines()):
        steps, last_ns = map(int, line.split())
        if not steps:  # killed before it recorded
            continue
        recording = gs.load(tmp_path / str(number) / RECORDING)
        regions = recording.trace.regions
        recorded_until = max((regions.start_ns + regions.duration_ns).tolist(), default=last_ns - 250_000_000)
        assert last_ns - recorded_until <= 250_000_000, number
        assert not recording.audit().complete
    assert number == rounds - 1


def test_a_recording_without_an_end_says_so(tmp_path, capsys):
    with gs.profile(path=tmp_path, spool=True):
        work(10)
    folder = tmp_path / RECORDING
    (folder / "segment-99999999.gscope").unlink()
    with (folder / "segment-00000001.gscope").open("r+b") as file:
        file.truncate(os.path.getsize(file.name) - 100)
    reasons = gs.load(folder).audit().reasons
    assert reasons[0].startswith("the recording has no end: the process died or still runs; its last row here is of 20")
    assert main(["report", str(folder)]) == 3  # in part
    assert "the recording has no end" in capsys.readouterr().out


def test_a_running_recording_can_be_read(tmp_path):
    with gs.profile(path=tmp_path, spool=True):
        work(10)
        folder = tmp_path / RECORDING
        while len(segments(tmp_path)) < 2 or (folder / "segment-00000001.gscope").stat().st_size < 1000:
            pass
        assert counts(gs.load(folder)) == {"step": 10, "inner": 10}


def test_a_ring_has_its_rows_on_the_disk():
    options = RecordingOptions.of(
        gs.profile(path="unused-ring", spool=True, mode="ring", ring_seconds=7)._arguments  # nothing is made yet
    )
    os.rmdir("unused-ring")
    assert options.spool_age_ns == 7_000_000_000


def test_deleted_segments_are_a_loss_of_a_full_recording_and_none_of_a_ring(tmp_path):
    store = {"mode": "full"}
    for store["mode"] in ("full", "ring"):
        folder = tmp_path / store["mode"]
        with gs.profile(path=folder, spool=True, mode=store["mode"]):
            work(10)
        (folder / RECORDING / "segment-00000001.gscope").rename(folder / RECORDING / "segment-00000004.gscope")
        audit = gs.load(folder / RECORDING).audit()
        said = audit.remarks if store["mode"] == "ring" else audit.reasons
        assert any("3 older segments are deleted" in sentence for sentence in said)
        assert audit.complete == (store["mode"] == "ring")


def test_a_disk_that_is_full_ends_neither_the_program_nor_the_recording(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    prof = gs.profile(path=tmp_path, spool=True)
    try:
        with prof:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            work(5000)
            with pytest.warns(GpuscopeWarning, match="not complete on the disk"):
                prof.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert counts(prof) == {"step": 5000, "inner": 5000}, "they are still in memory"
    assert any("could not be written to the disk: File too large" in reason for reason in prof.audit().reasons)


def test_a_forked_child_leaves_the_parents_segments_alone(tmp_path):
    with gs.profile(path=tmp_path, spool=True) as prof:
        work(5)
        child = os.fork()
        if child == 0:
            work(100)
            os._exit(0)
        os.waitpid(child, 0)
        work(5)
    assert counts(prof) == {"step": 10, "inner": 10}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"spool": True}, "spool is True and path is None"),
        ({"spool": True, "path": "x", "mode": "aggregate"}, "mode='aggregate'"),
        ({"spool": "yes", "path": "x"}, "spool is 'yes'"),
        ({"spool": True, "path": "x", "spool_bytes": "1MB"}, "spool_bytes"),
        ({"spool": True, "path": "x", "spool_age": 0}, "spool_age is 0"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(InvalidArgument, match=sentence):
        gs.profile(**options)


def test_a_folder_without_a_readable_segment_is_refused(tmp_path):
    folder = tmp_path / RECORDING
    folder.mkdir()
    with pytest.raises(CorruptTrace, match="the folder has no segment of a recording"):
        _core.read_segments(str(folder))
    (folder / "segment-00000001.gscope").write_bytes(b"something else")
    with pytest.raises(CorruptTrace, match=r"segment-00000001\.gscope: this is no \.gscope file"):
        gs.load(folder)


def test_the_command_records_into_a_folder_that_the_others_open(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("prog.py").write_text("import gpuscope\nwith gpuscope.record_function('step'):\n    sum(range(10**5))\n")
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "run", "--spool", "runs", "prog.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "the recording is in runs/rank-00000.gscope/, written as it ran" in done.stderr
    assert main(["report", "runs"]) == 0
    assert "step" in capsys.readouterr().out
    assert main(["merge", "runs", "-o", "job"]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--spool", "runs", "--children"], "--spool is given with --children"),
        (["--spool-bytes", "1GB"], "--spool-bytes needs --spool"),
    ],
)
def test_the_command_refuses_what_does_not_go_together(arguments, sentence, tmp_path, capsys):
    program = tmp_path / "prog.py"
    program.write_text("")
    assert main(["run", *arguments, str(program)]) == 2
    assert sentence in capsys.readouterr().err


def test_the_recording_of_a_killed_rank_is_merged_up_to_its_death(tmp_path):
    for _ in (0, 1):
        with gs.profile(path=tmp_path / "ranks", spool=True):
            work(10)
    folders = sorted((tmp_path / "ranks").iterdir())
    for rank, folder in enumerate(folders):
        folder.rename(folder.with_name(f"rank-{rank:05d}.gscope") if rank else folder)
    (folders[0] / "segment-99999999.gscope").unlink()
    job = gs.merge([tmp_path / "ranks" / name for name in os.listdir(tmp_path / "ranks")])
    assert len(job.ranks) == 2
    assert any("the recording has no end" in note for note in job.notes)
