# SPDX-License-Identifier: Apache-2.0
"""``profile(path=DIR)`` writes each window into a folder, named by the rank of the process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope import profile, schedule
from gpuscope.errors import GpuscopeError, GpuscopeWarning, InvalidArgument
from gpuscope.recording import Analyses, load

LAUNCHED = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: pytest.MonkeyPatch):
    for variable in LAUNCHED:
        monkeypatch.delenv(variable, raising=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_without_a_launcher_the_rank_is_0_and_folders_are_made(tmp_path):
    with profile(path=tmp_path / "a" / "b"):
        pass
    assert names(tmp_path / "a" / "b") == ["rank-00000.gscope"]


def test_the_launchers_rank_names_the_file_and_is_in_it(tmp_path, monkeypatch):
    for variable, value in {"RANK": "341", "WORLD_SIZE": "512", "LOCAL_RANK": "5"}.items():
        monkeypatch.setenv(variable, value)
    with profile(path=str(tmp_path)):
        pass
    info = load(tmp_path / "rank-00341.gscope").trace.info
    known = [info[f"process.{key}"] for key in ("rank", "world_size", "local_rank", "launcher")]
    assert known == ["341", "512", "5", "torchrun"]
    assert info["process.host"]
    assert info["process.id"]


def test_a_process_group_made_after_the_profiler_names_the_file(tmp_path, monkeypatch):
    with profile(path=tmp_path):
        monkeypatch.setattr("gpuscope.profiler.windows.process_group", lambda: {"rank": 3, "world_size": 4})
    assert names(tmp_path) == ["rank-00003.gscope"]
    assert load(tmp_path).trace.info["process.launcher"] == "torch.distributed"


def test_each_window_has_a_file_and_files_of_another_run_are_kept(tmp_path):
    (tmp_path / "rank-00000.gscope").write_text("another run")
    with profile(path=tmp_path, schedule=schedule(wait=0, warmup=0, active=1, repeat=2)) as profiler:
        profiler.step()
        profiler.step()
    assert names(tmp_path) == ["rank-00000-2.gscope", "rank-00000-3.gscope", "rank-00000.gscope"]
    assert (tmp_path / "rank-00000.gscope").read_text() == "another run"


def test_the_file_is_written_before_the_callback(tmp_path):
    seen: list[int] = []

    def callback(results: Analyses) -> None:
        seen.append(len(load(tmp_path / "rank-00000.gscope").trace.regions))

    with profile(path=tmp_path, on_trace_ready=callback):
        pass
    assert seen == [0]


def test_the_folder_is_that_of_the_start_of_the_program(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with profile(path="job"):
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert names(tmp_path / "job") == ["rank-00000.gscope"]


def test_a_profiler_that_never_stops_is_written_at_the_end_of_the_process(tmp_path):
    program = f"import gpuscope; gpuscope.profile(path={str(tmp_path)!r}).start()"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert load(tmp_path).trace.info["process.argv"] == f"-c {program}"


def test_a_copy_writes_into_the_folder_too(tmp_path):
    with pickle.loads(pickle.dumps(profile(path=tmp_path))):
        pass
    assert names(tmp_path) == ["rank-00000.gscope"]


def test_a_failed_write_is_a_warning_and_the_callback_is_called(tmp_path, monkeypatch):
    called: list[Analyses] = []

    def refuse(*arguments: object) -> None:
        raise GpuscopeError("the disk is full")

    profiler = profile(path=tmp_path, on_trace_ready=called.append)
    profiler.start()
    monkeypatch.setattr("gpuscope.recording.Recording.save", refuse)
    with pytest.warns(GpuscopeWarning, match="the recording could not be written: the disk is full"):
        profiler.stop()
    assert len(called) == 1
    assert names(tmp_path) == []


def test_the_name_of_a_recording_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"path is '.*run\.gscope'; accepted is a folder"):
        profile(path=str(tmp_path / "run.gscope"))
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(GpuscopeError, match=r"the folder '.*file/job' cannot be made: Not a directory"):
        profile(path=tmp_path / "file" / "job")
