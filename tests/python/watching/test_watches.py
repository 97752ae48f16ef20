# SPDX-License-Identifier: Apache-2.0
"""Watched programs: windows, triggers, ends, forks, and what must not happen to the program."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import gpuscope as gs
from fakes.monitors import nvml_library
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.watching import triggers
from gpuscope.watching import watches as module
from gpuscope.watching.hang import find_hang
from gpuscope.watching.summary import JobSummary, read_job

BUDGET = 0.5  # windows of 25 steps out of 50


@pytest.fixture
def watched(tmp_path):
    """Begins watches in a folder, and ends them."""
    begun = []

    def begin(**options):
        begun.append(gs.watch(tmp_path / "job", **{"budget": BUDGET, "triggers": None, **options}))
        return begun[-1]

    yield begin
    for each in begun:
        each.stop()


def take(watch, steps, seconds=1e-3):
    for _ in range(steps):
        with gs.record_function("forward"):
            time.sleep(seconds)
        watch.step()


def until(condition, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def windows(folder):
    return sorted((folder / "job" / "rank-00000.watch").glob("*.gscope"))


def dumps(folder):
    return sorted(path.name for path in (folder / "job" / "dumps").iterdir())


def program(folder, source, *arguments, command=(), **options):
    """Runs a program with the folder as its directory."""
    (folder / "program.py").write_text(textwrap.dedent(source))
    line = [sys.executable, *command, "program.py", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60, check=False, **options)


def state(folder, rank="rank-00000"):
    return json.loads((folder / "job" / f"{rank}.watch" / "watch.json").read_text())


# -- windows -----------------------------------------------------------------------------------------------------------


def test_windows_are_recordings_of_25_steps(watched, tmp_path):
    watch = watched()
    take(watch, 130)
    watch.stop()
    first, second = windows(tmp_path)
    assert [first.name, second.name] == ["window-00000050.gscope", "window-00000100.gscope"]
    recording = gs.load(first)
    (row,) = [row for row in recording.key_averages() if row.key == "forward"]
    assert row.count == 25
    facts = json.loads(recording.trace.info["metadata.watch"])
    assert facts | {"first_step": 50, "steps": 25, "represents_steps": 50, "weight": 2.0} == facts
    summary = watch.summary()
    assert (summary.windows, summary.recorded, summary.steps) == (2, 50, 130)


def test_steps_of_the_package_count(watched):
    watch = watched()
    for _ in range(60):
        gs.step()
    assert watch.summary().steps == 60


def test_a_window_that_is_open_at_the_end_is_written(watched, tmp_path):
    watch = watched()
    take(watch, 60)
    watch.stop()
    (only,) = windows(tmp_path)
    assert json.loads(gs.load(only).trace.info["metadata.watch"])["steps"] == 10


def test_old_windows_are_deleted(watched, tmp_path):
    watch = watched(keep_bytes=9000)
    take(watch, 330)
    watch.stop()
    kept = windows(tmp_path)
    assert 0 < len(kept) < watch.summary().windows
    assert sum(path.stat().st_size for path in kept) <= 9000
    assert kept[-1].name == f"window-{max(int(path.stem[7:]) for path in kept):08d}.gscope"


def test_a_window_a_minute_is_a_profile_of_pprof(watched, tmp_path):
    watch = watched(pprof=tmp_path / "profiles")
    take(watch, 180)
    watch.stop()
    assert windows(tmp_path)[0].name == "window-00000050.gscope"
    (path,) = (tmp_path / "profiles").iterdir()
    assert path.name == "rank-00000-window-00000050.pb.gz"
    assert b"forward" in gzip.decompress(path.read_bytes())


def test_profiles_of_pprof_are_deleted_with_old_windows(watched, tmp_path):
    watch = watched(pprof=tmp_path / "profiles", keep_bytes=1)
    take(watch, 180)
    watch.stop()
    assert [*(tmp_path / "profiles").iterdir()] == []


def test_a_budget_of_zero_records_nothing(watched, tmp_path):
    watch = watched(budget=0)
    take(watch, 200, 0.0)
    watch.stop()
    assert windows(tmp_path) == []
    assert "only the heartbeat" in watch.summary().off
    assert watch.summary().steps == 200


def test_the_state_is_written_each_second(watched, tmp_path):
    watch = watched()
    take(watch, 20)
    until(lambda: state(tmp_path)["steps"] == 20)
    assert state(tmp_path)["state"] == "running"
    watch.stop()
    assert state(tmp_path)["state"] == "ended"


def test_a_profiler_of_the_program_has_priority(watched, tmp_path):
    watch = watched()
    take(watch, 60)  # a window is open
    with gs.profile() as prof:
        take(watch, 60)
    assert sum(row.count for row in prof.key_averages() if row.key == "forward") == 60
    take(watch, 70)
    watch.stop()
    assert [path.name for path in windows(tmp_path)] == ["window-00000050.gscope", "window-00000150.gscope"]


def test_a_window_that_cannot_begin_is_noted_and_the_program_goes_on(watched, monkeypatch):
    def refuse():
        raise GpuscopeError("CUPTI is not there")

    watch = watched()
    monkeypatch.setattr(module, "profile", refuse)
    take(watch, 120, 0.0)
    assert any("CUPTI is not there" in note for note in watch.summary().notes)
    assert watch.summary().steps == 120


def test_a_window_that_cannot_be_written_is_counted(watched, tmp_path, monkeypatch):
    def refuse(self, path):
        raise GpuscopeError(f"cannot write {path}: No space left on device")

    watch = watched()
    monkeypatch.setattr(module.profile, "save", refuse)
    take(watch, 130)
    watch.stop()
    assert watch.summary().lost == {"windows that could not be written": 2}
    assert watch.summary().steps == 130


def test_a_full_disk_costs_the_oldest_windows(watched, tmp_path, monkeypatch):
    watch = watched()
    take(watch, 80)
    until(lambda: watch.summary().windows == 1)
    save, calls = module.profile.save, []

    def fails_once(self, path):
        calls.append(path)
        if len(calls) == 1:
            raise GpuscopeError("No space left on device")
        save(self, path)

    monkeypatch.setattr(module.profile, "save", fails_once)
    take(watch, 50)
    watch.stop()
    assert [path.name for path in windows(tmp_path)] == ["window-00000100.gscope"]


def test_a_deleted_folder_does_not_end_the_program(watched, tmp_path):
    import shutil

    watch = watched()
    shutil.rmtree(tmp_path / "job")
    take(watch, 130)
    watch.stop()
    assert watch.summary().steps == 130
    assert watch.summary().lost["windows that could not be written"] == 2


def test_each_run_has_a_folder_of_its_own(watched, tmp_path):
    for _ in range(2):
        watched().stop()
    assert sorted(path.name for path in (tmp_path / "job").glob("*.watch")) == [
        "rank-00000-2.watch",
        "rank-00000.watch",
    ]
    job = read_job(tmp_path / "job")
    assert len(job.ranks) == 1
    assert "1 process of earlier runs in this folder not shown" in str(job)


def test_a_profiler_that_runs_already_has_no_windows_beside_it(watched, tmp_path):
    with gs.profile() as prof:
        watch = watched()
        take(watch, 60)
    watch.stop()
    assert windows(tmp_path) == []
    assert "there are no windows while another profiler runs" in watch.summary().notes
    assert len(prof.trace.regions) == 60


def test_totals_of_all_steps_follow_from_the_weights(watched, tmp_path):
    watch = watched()
    take(watch, 280)
    watch.stop()
    recordings = [gs.load(path) for path in windows(tmp_path)]
    facts = [json.loads(recording.trace.info["metadata.watch"]) for recording in recordings]
    counts = [len(recording.trace.regions) for recording in recordings]
    assert sum(fact["represents_steps"] for fact in facts) == facts[-1]["first_step"]
    estimated = sum(count * fact["weight"] for count, fact in zip(counts, facts, strict=True))
    assert estimated == pytest.approx(facts[-1]["first_step"])


def test_the_ranks_of_a_job_record_the_same_steps(tmp_path):
    (tmp_path / "program.py").write_text(LOOP.format(act="pass"))
    ranks = [
        subprocess.Popen(
            [sys.executable, "program.py"], cwd=tmp_path, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}
        )
        for rank in range(3)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    job = read_job(tmp_path / "job")
    assert [(rank.rank, rank.world_size, rank.steps) for rank in job.ranks] == [
        (0, 3, 1000),
        (1, 3, 1000),
        (2, 3, 1000),
    ]
    firsts = [
        {int(path.stem[7:]) for path in (tmp_path / "job" / f"rank-0000{rank}.watch").glob("*.gscope")}
        for rank in range(3)
    ]
    fewest = min(firsts, key=len)
    assert fewest
    assert all(fewest <= each for each in firsts)
    assert sorted(path.name for path in (tmp_path / "job").glob("*.prom")) == [
        f"metrics-0000{rank}.prom" for rank in range(3)
    ]
    assert len(str(job).splitlines()) >= 5


# -- requests ----------------------------------------------------------------------------------------------------------


def test_requests_have_windows_by_their_number(watched, tmp_path):
    watch = watched()

    def serve(count):
        for _ in range(count):
            with watch.request():
                time.sleep(1e-3)

    threads = [threading.Thread(target=serve, args=(250,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watch.stop()
    summary = watch.summary()
    assert (summary.unit, summary.steps) == ("requests", 500)
    assert summary.windows >= 1
    inside, outside = summary.request_p99_s
    assert inside > 1e-3
    assert outside > 1e-3
    counts = [row.count for row in gs.load(windows(tmp_path)[0]).key_averages() if row.key == "request"]
    assert counts[0] >= 50


def test_an_error_of_a_request_is_the_programs(watched):
    watch = watched()
    with pytest.raises(KeyError), watch.request():
        raise KeyError("user")
    assert watch.summary().steps == 1


# -- triggers ----------------------------------------------------------------------------------------------------------


def test_a_slow_step_is_dumped(watched, tmp_path):
    told = []
    watch = watched(triggers=["slow_step"], on_dump=told.append)
    take(watch, 80)
    take(watch, 1, 0.2)
    take(watch, 5)
    until(lambda: told)
    assert dumps(tmp_path) == ["0001-slow_step"]
    text = (told[0] / "why.txt").read_text()
    assert text.startswith("Step 80 took 2")
    assert "recordings: window-00000050.gscope" in text


def test_a_hang_is_dumped_with_the_line_that_waits(watched, tmp_path, monkeypatch):
    monkeypatch.setattr(triggers, "_HANG_S", 1.0)
    watch = watched(triggers=["hang"])
    take(watch, 40)
    page = tmp_path / "job" / "dumps" / "0001-hang" / "why.txt"
    until(page.exists)
    text = page.read_text()
    assert text.startswith("No step for ")
    assert "in until" in text


def test_a_dump_has_the_collectives_that_torch_recorded(tmp_path):
    pytest.importorskip("torch.distributed")
    program(
        tmp_path,
        """
import signal, time, torch, gpuscope as gs
torch.distributed.init_process_group("gloo", init_method=f"file://{__file__}.store", rank=0, world_size=1)
torch.distributed.all_reduce(torch.ones(3))
with gs.watch("job", signals=signal.SIGUSR2) as watch:
    signal.raise_signal(signal.SIGUSR2)
    while not watch.summary().dumps:
        time.sleep(0.05)
""",
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "100"},
    )
    assert (tmp_path / "job" / "dumps" / "0001-signal" / "flight_recorder.pickle").exists()
    rank = find_hang(tmp_path / "job").ranks[0]
    assert rank.collective == "all_reduce 1 of default_pg"


def test_a_recording_that_is_written_as_it_runs_is_in_the_dump(watched, tmp_path):
    told = []
    with gs.profile(path=tmp_path / "spool", spool=True):
        watched(signals=signal.SIGUSR2, on_dump=told.append)
        signal.raise_signal(signal.SIGUSR2)
        until(lambda: told)
    assert gs.load(told[0] / "rank-00000.gscope").trace.info["process.id"] == str(os.getpid())


def test_an_exception_that_leaves_the_block_is_dumped(tmp_path):
    with pytest.raises(ValueError, match="bad loss"), gs.watch(tmp_path / "job"):
        raise ValueError("bad loss")
    assert dumps(tmp_path) == ["0001-exception"]
    assert "ValueError: bad loss" in (tmp_path / "job" / "dumps" / "0001-exception" / "why.txt").read_text()


def test_a_program_without_steps_says_so(watched):
    assert "call gpuscope.step()" in str(watched().summary())


def test_a_signal_makes_a_dump(watched, tmp_path):
    watch = watched(signals=signal.SIGUSR2)
    signal.raise_signal(signal.SIGUSR2)
    until(lambda: watch.summary().dumps)
    assert dumps(tmp_path) == ["0001-signal"]
    watch.stop()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


# -- ends --------------------------------------------------------------------------------------------------------------

LOOP = """
import os, signal, sys, time
import gpuscope as gs
watch = gs.watch("job", budget=0.5)
for number in range(1000):
    time.sleep(1e-3)
    gs.step()
    if number == 60:
        {act}
"""


def test_sigterm_ends_the_program_and_leaves_everything(tmp_path):
    done = program(tmp_path, LOOP.format(act="os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)"))
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert state(tmp_path)["state"] == "ended by SIGTERM"
    assert [path.name for path in windows(tmp_path)] == ["window-00000050.gscope"]
    assert dumps(tmp_path) == ["0001-terminated"]


def test_the_programs_handler_of_sigterm_is_called(tmp_path):
    handler = "signal.signal(signal.SIGTERM, lambda *_: (print('checkpoint'), sys.exit(0)))\nwatch ="
    done = program(tmp_path, LOOP.format(act="signal.raise_signal(signal.SIGTERM)").replace("watch =", handler))
    assert (done.returncode, done.stdout) == (0, "checkpoint\n"), done.stderr
    assert dumps(tmp_path) == ["0001-terminated"]
    assert state(tmp_path)["state"] == "ended"


def test_a_handler_that_the_program_sets_later_is_called(tmp_path):
    act = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); signal.raise_signal(signal.SIGTERM)"
    done = program(tmp_path, LOOP.format(act=act))
    assert done.returncode == 7, done.stderr
    assert state(tmp_path)["state"] == "ended"


def test_an_uncaught_exception_is_dumped_at_the_end(tmp_path):
    done = program(tmp_path, LOOP.format(act="raise ValueError('bad loss')"))
    assert done.returncode == 1
    assert done.stderr.count("bad loss") == 2  # of the line and of the message
    assert dumps(tmp_path) == ["0001-exception"]


def test_a_killed_program_is_said_to_have_died(tmp_path):
    act = "time.sleep(1.5); os.kill(os.getpid(), signal.SIGKILL)"
    assert program(tmp_path, LOOP.format(act=act)).returncode == -signal.SIGKILL
    (rank,) = read_job(tmp_path / "job").ranks
    assert rank.status(rank.written_ns + 11 * 10**9) == "died"
    assert rank.steps > 0


def test_a_forked_child_leaves_the_watch_to_its_parent(tmp_path):
    act = """
        child = os.fork()
        if child == 0:
            watch.step(); gs.step()
            own = gs.watch("job", budget=0)
            own.step()
            own.stop()
            os._exit(watch.summary().steps - 61)
        assert os.waitpid(child, 0)[1] == 0
"""
    done = program(tmp_path, LOOP.format(act=act.strip()))
    assert done.returncode == 0, done.stderr
    assert state(tmp_path)["steps"] == 1000
    assert state(tmp_path, "rank-00000-2")["steps"] == 1


def test_a_process_that_is_replaced_leaves_its_state(tmp_path):
    act = "time.sleep(1.5); os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])"
    done = program(tmp_path, LOOP.format(act=act))
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert state(tmp_path)["steps"] == 61


# -- the commands ------------------------------------------------------------------------------------------------------

RUN = ("-m", "gpuscope", "run", "--watch", "job")
SCRIPT = LOOP.replace('watch = gs.watch("job", budget=0.5)\n', "")


def test_run_watches_a_script(tmp_path):
    done = program(tmp_path, SCRIPT.format(act="pass"), command=RUN)
    assert done.returncode == 0, done.stderr
    assert state(tmp_path)["steps"] == 1000
    assert "1,000" in done.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "gpuscope", "watch", "job"], cwd=tmp_path, capture_output=True, text=True
    )
    assert shown.stdout.splitlines()[0].startswith("rank  state  steps")
    as_json = subprocess.run(
        [sys.executable, "-m", "gpuscope", "watch", "job", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert json.loads(as_json.stdout)["ranks"][0]["steps"] == 1000


@pytest.mark.parametrize(
    ("act", "code", "trigger", "said"),
    [
        ("sys.exit(3)", 3, "exit", "ended with exit status 3"),
        ("os._exit(4)", 4, "exit", "ended by os._exit"),
        ("raise KeyError(5)", 1, "exception", "ended with exit status 1"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM, "terminated", "ended by SIGTERM"),
    ],
)
def test_run_keeps_the_end_of_a_script(tmp_path, act, code, trigger, said):
    done = program(tmp_path, SCRIPT.format(act=act), command=RUN)
    assert done.returncode == code, done.stderr
    assert dumps(tmp_path) == [f"0001-{trigger}"]
    assert state(tmp_path)["state"] == said


def test_run_watches_on_if_exec_fails(tmp_path):
    act = """
        try:
            os.execv("program.py", ["program.py"])
        except OSError:
            print("goes on", flush=True)
"""
    done = program(tmp_path, SCRIPT.format(act=act.strip()), command=RUN)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
    job = read_job(tmp_path / "job")
    assert sum(rank.steps for rank in job.ranks) == 1000


def test_run_refuses_options_of_one_recording(tmp_path):
    done = program(tmp_path, "", command=(*RUN, "-o", "x.gscope"))
    assert done.returncode == 2
    assert "-o is of one recording, and --watch records windows" in done.stderr


def test_a_large_job_is_shown_on_a_screen(watched):
    watch = watched()
    one = watch.summary()
    lost = dataclasses.replace(one, rank=900, lost={"states that could not be written": 3})
    ranks = [dataclasses.replace(one, rank=number) for number in range(900)]
    lines = str(JobSummary((*ranks, lost), one.written_ns)).splitlines()
    assert len(lines) < 40
    assert any(line.startswith("900  ") for line in lines)
    assert "... and 877 more ranks" in lines
    assert any(line.startswith("901 ranks: no step was seen") for line in lines)
    assert "rank 900: 3 states that could not be written" in lines


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": -0.1}, "budget is -0.1"),
        ({"budget": 1}, "budget is 1; accepted are shares from 0 to below 1"),
        ({"budget": "1%"}, "budget is '1%'"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"triggers": "slow"}, "triggers contains 'slow'"),
        ({"on_dump": 3}, "on_dump is 3"),
        ({"signals": signal.SIGKILL}, "which no program can handle"),
        ({"keep_bytes": "much"}, "keep_bytes is 'much'"),
        ({"keep_age": 0}, "keep_age is 0"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(tmp_path, options, said):
    with pytest.raises(InvalidArgument) as error:
        gs.watch(tmp_path / "job", **options)
    assert said in str(error.value)
    assert not (tmp_path / "job").exists()


def test_a_second_watch_is_refused(watched):
    watched()
    with pytest.raises(InvalidArgument, match="a watch runs in this process already"):
        watched()


def test_unsafe_folders_are_refused(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "job").symlink_to(tmp_path / "real")
    with pytest.raises(InvalidArgument, match="a symbolic link"):
        gs.watch(tmp_path / "job")
    assert list((tmp_path / "real").iterdir()) == []


def test_a_watch_that_cannot_begin_leaves_nothing_on(tmp_path, monkeypatch):
    before = sys.excepthook, threading.excepthook, signal.getsignal(signal.SIGTERM)

    def refuse(start, what):
        raise GpuscopeError("no further thread")

    monkeypatch.setattr(module, "start_thread", refuse)
    with pytest.raises(GpuscopeError, match="no further thread"):
        gs.watch(tmp_path / "job")
    assert (sys.excepthook, threading.excepthook, signal.getsignal(signal.SIGTERM)) == before
    gs.step()


def test_folders_without_a_watch_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="in which no process was watched"):
        read_job(tmp_path)
    with pytest.raises(InvalidArgument, match="accepted is the folder of a watch"):
        read_job(tmp_path / "missing")


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"rank": "x"}', "\x00", "9" * 5000])
def test_damaged_states_are_named(watched, tmp_path, content):
    watched().stop()
    (tmp_path / "job" / "rank-00000.watch" / "watch.json").write_text(content)
    job = read_job(tmp_path / "job")
    assert job.ranks == ()
    assert job.notes[0].startswith("rank-00000.watch/watch.json cannot be read")
    assert str(job)


def test_the_figures_for_prometheus_are_few(watched, tmp_path):
    from prometheus_client.parser import text_string_to_metric_families

    watch = watched(signals=signal.SIGUSR2)
    for _ in range(3):
        signal.raise_signal(signal.SIGUSR2)
    take(watch, 330)
    watch.stop()
    families = list(text_string_to_metric_families((tmp_path / "job" / "metrics.prom").read_text()))
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert sum(len(family.samples) for family in families) <= 60
    assert samples["gpuscope_watch_step_seconds_count"].value == 330
    assert samples["gpuscope_watch_windows_total"].value == watch.summary().windows
    assert samples["gpuscope_watch_dumps_total"].labels == {"rank": "0", "trigger": "signal"}
    assert "gpuscope_watch_overhead_ratio" in samples


def test_the_gpus_of_the_machine_are_sampled(tmp_path):
    source = """
        import os, signal, time
        import gpuscope as gs
        with gs.watch("job", budget=0, signals=signal.SIGUSR1) as watch:
            for _ in range(100):
                time.sleep(0.03)
                gs.step()
            signal.raise_signal(signal.SIGUSR1)
    """
    done = program(tmp_path, source, env={**os.environ, **nvml_library(tmp_path), "FAKE_XID": "0:79"})
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not any("GPUs are off" in note for note in state(tmp_path)["notes"])
    assert dumps(tmp_path) == ["0001-gpu_error", "0002-signal"]
    text = (tmp_path / "job" / "dumps" / "0001-gpu_error" / "why.txt").read_text()
    assert text.startswith("GPU 0: Xid 79: the GPU has fallen off the bus")
    text = (tmp_path / "job" / "dumps" / "0002-signal" / "why.txt").read_text()
    section = text.partition("\nGPUs\n")[2].partition("\n\n")[0]
    assert section.split()[:3] == ["GPU", "name", "busy"]
