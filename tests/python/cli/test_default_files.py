# SPDX-License-Identifier: Apache-2.0
"""Files that nobody named: what ``run`` writes replaces nothing, what reads a recording takes the newest."""

from __future__ import annotations

import errno
import os
import shlex
import threading

import pytest

from fakes.stores import training_store
from gpuscope.cli import console
from gpuscope.cli.export import Outputs, newest_recording
from gpuscope.exporters import save
from gpuscope.recording import Recording, load


@pytest.fixture
def recorded(tmp_path):
    """Writes a recording, so many seconds after 1970."""

    def write(name, seconds=0):
        save(training_store(), tmp_path / name)
        os.utime(tmp_path / name, (seconds, seconds))
        return name

    return write


def outputs(tmp_path, *names):
    return Outputs([str(tmp_path / name) for name in names or ("train.gscope",)], replaces=False)


def written(made):
    assert made.write(Recording(training_store())) == []
    return [path.name for path in made.written]


# -- what run writes ---------------------------------------------------------------------------------------------------


def test_a_run_replaces_no_recording_and_offers_the_comparison_with_the_one_before(gpuscope, script, tmp_path):
    path = script("print('ran')", "train.py")
    first, second, third = (gpuscope("run", path) for _ in range(3))
    assert "compare" not in first.stderr
    assert second.stderr.endswith("compare: gpuscope diff train.gscope train-2.gscope\n")
    assert third.stderr.endswith("compare: gpuscope diff train-2.gscope train-3.gscope\n")
    assert {path.name for path in tmp_path.glob("*.gscope")} == {"train.gscope", "train-2.gscope", "train-3.gscope"}


def test_a_named_recording_is_replaced(gpuscope, script, tmp_path):
    for _ in range(2):
        done = gpuscope("run", "-o", "train.gscope", script("print('ran')", "train.py"))
        assert "compare" not in done.stderr
    assert [path.name for path in tmp_path.glob("*.gscope")] == ["train.gscope"]


@pytest.mark.parametrize(
    ("variables", "name"),
    [({}, "rank-00000.gscope"), ({"RANK": "341", "WORLD_SIZE": "512"}, "rank-00341.gscope")],
    ids=["one process", "a rank"],
)
@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_a_folder_gets_a_recording_named_by_its_rank(gpuscope, script, tmp_path, monkeypatch, command, variables, name):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    done = gpuscope(command, "-o", "new/run/", script("print('ran')", "train.py"))
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "new" / "run").iterdir()
    assert path.name == name
    assert load(tmp_path / "new" / "run").trace.info["process.argv"].endswith("train.py")


@pytest.mark.parametrize(
    "command", [("report", "-o", "out.html"), ("diagnose",), ("export", "-o", "out.json")], ids=lambda words: words[0]
)
def test_commands_read_the_recording_of_a_runs_folder(gpuscope, recorded, tmp_path, command):
    (tmp_path / "run").mkdir()
    recorded("run/pid-1.gscope")
    assert gpuscope(*command, "run").returncode == 0
    recorded("run/pid-2.gscope")
    done = gpuscope(*command, "run")
    assert (
        done.stderr
        == "gpuscope: the folder 'run' has 2 recordings; give one of them: run/pid-1.gscope, run/pid-2.gscope\n"
    )


def test_a_folder_without_a_recording_is_refused(gpuscope, tmp_path):
    (tmp_path / "run").mkdir()
    assert gpuscope("report", "run").stderr == "gpuscope: the folder 'run' has no .gscope file\n"


def test_a_folder_that_cannot_be_made_is_one_sentence_before_the_run(gpuscope, script):
    path = script("print('ran')", "train.py")
    done = gpuscope("run", "-o", "train.py/run/", path)
    assert done.stderr == "gpuscope: the folder 'train.py/run/' cannot be made: Not a directory\n"
    assert not done.stdout


def test_the_page_of_a_recording_has_its_number(recorded, tmp_path):
    recorded("train.gscope")
    assert written(outputs(tmp_path, "train.gscope", "train.html")) == ["train-2.gscope", "train-2.html"]


def test_windows_of_one_run_follow_the_recordings_that_there_are(recorded, tmp_path):
    recorded("train.gscope")
    made = outputs(tmp_path)
    written(made)
    assert written(made) == ["train-2.gscope", "train-3.gscope"]
    assert made.comparison().endswith("train.gscope " + str(tmp_path / "train-2.gscope"))


def test_a_recording_that_goes_on_keeps_its_number(recorded, tmp_path):
    recorded("train.gscope")
    made = outputs(tmp_path)
    written(made)
    made.write_again()
    assert written(made) == ["train-2.gscope"]


def test_runs_at_once_have_a_file_each(tmp_path):
    makers = [outputs(tmp_path) for _ in range(8)]
    barrier = threading.Barrier(len(makers))

    def write(made):
        barrier.wait()
        made.write(Recording(training_store()))

    threads = [threading.Thread(target=write, args=(made,)) for made in makers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(made.written[0].name for made in makers)
    assert names == sorted(["train.gscope", *(f"train-{number}.gscope" for number in range(2, 9))])
    assert all(load(path).trace is not None for path in tmp_path.iterdir())


def test_a_folder_and_a_broken_link_keep_their_names(tmp_path):
    (tmp_path / "train.gscope").mkdir()
    (tmp_path / "train-2.gscope").symlink_to("absent")
    made = outputs(tmp_path)
    assert written(made) == ["train-3.gscope"]
    assert made.comparison() == ""


def test_the_number_behind_thousands_is_found(tmp_path):
    for name in ("train.gscope", *(f"train-{number}.gscope" for number in range(2, 3000))):
        (tmp_path / name).touch()
    assert written(outputs(tmp_path)) == ["train-3000.gscope"]


@pytest.mark.parametrize("name", ["a b;$(x) 'é'", "-x", "[1]"])
def test_a_name_of_odd_characters_is_one_word_of_the_offered_command(recorded, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_started_in", tmp_path)
    recorded(f"{name}.gscope")
    made = Outputs([f"{name}.gscope"], replaces=False)
    written(made)
    before, after = (f"./{name}" if name.startswith("-") else name for name in (f"{name}.gscope", f"{name}-2.gscope"))
    assert shlex.split(made.comparison()) == ["gpuscope", "diff", before, after]


def test_the_offered_command_compares(gpuscope, script):
    for _ in range(2):
        done = gpuscope("run", "--", script("print('ran')", "-x.py").name)
    words = shlex.split(done.stderr.splitlines()[-1].removeprefix("compare: gpuscope"))
    assert gpuscope(*words).returncode == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_number_that_cannot_be_taken_is_one_sentence_and_the_recording_is_kept(tmp_path, monkeypatch, code):
    made, recording = outputs(tmp_path), Recording(training_store())

    def refuse(path, *of_open):
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        (error,) = made.write(recording)
    assert str(error) == f"cannot write {tmp_path / 'train.gscope'}: {os.strerror(code)}"
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = made.keep(recording)
    assert kept.name == "train.gscope"
    assert load(kept).trace is not None


def test_a_recording_that_cannot_be_written_leaves_its_number_free(tmp_path, monkeypatch):
    made = outputs(tmp_path)
    recording = Recording(training_store())
    monkeypatch.setattr(Recording, "save", lambda *of_save: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    assert len(made.write(recording)) == 1
    assert list(tmp_path.iterdir()) == []


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [("report",), ("diagnose",), ("export", "-o", "x.json"), ("sql", "from regions")], ids=" ".join
)
def test_the_newest_recording_is_read_and_named(gpuscope, recorded, command):
    recorded("old.gscope", 1000)
    recorded("new.gscope", 2000)
    recorded("a.gscope", 1500)
    if command[0] == "sql":
        pytest.importorskip("duckdb")
    done = gpuscope(*command)
    assert done.returncode == 0
    assert done.stderr == "reading new.gscope, the newest recording in this folder\n"


def test_a_given_recording_is_read_without_a_word(gpuscope, recorded):
    recorded("new.gscope", 2000)
    done = gpuscope("report", recorded("old.gscope", 1000))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["run", "diagnose"])
def test_a_folder_keeps_the_recording_of_an_earlier_process_of_that_name(
    gpuscope, script, tmp_path, monkeypatch, command
):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    for _ in range(2):
        gpuscope(command, "-o", "run/", script("print('ran')", "train.py"))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"rank-00000.gscope", "rank-00000-2.gscope"}


@pytest.mark.parametrize("command", [("report",), ("view",), ("export", "-o", "x.json"), ("sql", "from regions")])
def test_without_any_recording_a_sentence_says_so(gpuscope, tmp_path, command):
    (tmp_path / "folder.gscope").mkdir()
    done = gpuscope(*command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpuscope: FILE is missing, and this folder has no .gscope file to take instead\n"


def test_diagnose_without_anything_to_read_or_run_says_so(gpuscope):
    done = gpuscope("diagnose")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a script or a recording is missing" in done.stderr


def test_the_newest_is_no_folder_no_link_to_nothing_and_no_file_that_is_only_begun(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert newest_recording() is None
    (tmp_path / "folder.gscope").mkdir()
    (tmp_path / "begun.gscope").touch()
    (tmp_path / "link.gscope").symlink_to("absent")
    assert newest_recording() is None
    recorded("Capital.GSCOPE", 1000)
    assert newest_recording() == "Capital.GSCOPE"


def test_a_single_word_is_the_recording_of_a_query(gpuscope, recorded):
    pytest.importorskip("duckdb")
    done = gpuscope("sql", recorded("a.gscope"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "QUERY is missing" in done.stderr
    assert gpuscope("sql", "absent.gscope").returncode == 2


# -- the demo ----------------------------------------------------------------------------------------------------------


def test_the_demo_writes_into_a_folder_of_its_own_and_names_it(gpuscope, tmp_path):
    done = gpuscope("demo", "--steps", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert "folder gpuscope-demo" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["gpuscope-demo"]
    assert gpuscope("demo", "--steps", 1).returncode == 0


def test_a_file_in_place_of_the_demos_folder_is_left_alone(gpuscope, tmp_path):
    (tmp_path / "gpuscope-demo").write_text("mine")
    done = gpuscope("demo")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'gpuscope-demo' is no folder" in done.stderr
    assert (tmp_path / "gpuscope-demo").read_text() == "mine"
