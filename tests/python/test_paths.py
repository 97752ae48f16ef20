# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fakes.stores import training_store
from gpuscope import _core
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.exporters import export_chrome_trace, export_perfetto, save
from gpuscope.paths import check_writable, replacing, write_text
from gpuscope.readers.files import load_store
from gpuscope.recording import Recording

EXPORTS = [
    (save, "a.gscope"),
    (export_chrome_trace, "a.json"),
    (export_chrome_trace, "a.json.gz"),
    (export_perfetto, "a.pftrace"),
]


def test_good_path_comes_back_as_path(tmp_path):
    path = tmp_path / "a.json"
    assert check_writable(str(path), (".json",)) == path
    assert check_writable(path, (".json", ".json.gz")) == path
    assert list(tmp_path.iterdir()) == []


def test_suffix_is_read_without_case(tmp_path):
    assert check_writable(tmp_path / "A.JSON", (".json",)) == tmp_path / "A.JSON"


def test_unknown_suffix_names_the_accepted_ones(tmp_path):
    with pytest.raises(InvalidArgument, match=r"path must end with \.json or \.json\.gz, got '.*a\.txt'"):
        check_writable(tmp_path / "a.txt", (".json", ".json.gz"))


def test_existing_file_is_not_touched(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")
    check_writable(path, (".json",))
    assert path.read_text() == "old"


def test_missing_folder_is_told(tmp_path):
    with pytest.raises(GpuscopeError, match=r"cannot write .*: the folder .*/no does not exist"):
        check_writable(tmp_path / "no" / "a.json", (".json",))


def test_directory_is_told(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(GpuscopeError, match="it is a directory"):
        check_writable(tmp_path / "a.json", (".json",))


def test_socket_is_told(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "a.json"))
        with pytest.raises(GpuscopeError, match="it is no regular file"):
            check_writable(tmp_path / "a.json")


def test_name_too_long_is_told(tmp_path):
    with pytest.raises(GpuscopeError, match="File name too long"):
        check_writable(tmp_path / ("x" * 300 + ".json"), (".json",))


def test_longest_name_works(tmp_path):
    path = tmp_path / ("x" * 248 + ".gscope")
    save(training_store(), path)
    assert path.stat().st_size > 0


def test_folder_that_takes_no_files_is_told():
    with pytest.raises(GpuscopeError, match=r"cannot write /proc/a\.json: "):
        check_writable("/proc/a.json", (".json",))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(GpuscopeError, match="Permission denied"):
        check_writable(tmp_path / "a.json", (".json",))


@pytest.mark.parametrize(("export", "name"), EXPORTS)
def test_result_replaces_the_old_file_and_leaves_nothing_else(tmp_path, export, name):
    path = tmp_path / name
    path.write_text("old")
    export(training_store(), path)
    assert path.read_bytes()[:3] != b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("export", "name"), EXPORTS)
def test_result_has_the_permissions_of_any_new_file(tmp_path, export, name):
    plain = tmp_path / "plain"
    plain.touch()
    export(training_store(), tmp_path / name)
    assert (tmp_path / name).stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize(("export", "name"), EXPORTS)
def test_link_stays_a_link(tmp_path, export, name):
    target = tmp_path / "target"
    target.touch()
    (tmp_path / name).symlink_to(target)
    export(training_store(), tmp_path / name)
    assert (tmp_path / name).is_symlink()
    assert target.stat().st_size > 0


@pytest.mark.parametrize(("export", "name"), EXPORTS)
def test_name_alone_means_the_current_folder(tmp_path, monkeypatch, export, name):
    monkeypatch.chdir(tmp_path)
    export(training_store(), name)
    assert os.listdir() == [name]


@pytest.mark.parametrize(("export", "name"), EXPORTS)
def test_interrupted_export_keeps_the_old_file(tmp_path, monkeypatch, export, name):
    path = tmp_path / name
    path.write_text("old")

    def interrupt(store, write):
        write(b"half of it")
        raise KeyboardInterrupt

    for writer in ("write_chrome", "write_perfetto", "write_gscope"):
        monkeypatch.setattr(_core, writer, interrupt)
    with pytest.raises(KeyboardInterrupt):
        export(training_store(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# -- full disks -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk():
    """No file can grow past 64 bytes: what a full disk does, with another number of the error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_flame_graph(store, path):
    Recording(store).export_stacks(path)


def write_events(store, path):
    Recording(store).events().export_chrome_trace(path)


WRITERS = [
    *EXPORTS,
    (lambda store, path: Recording(store).key_averages().to_json(path), "a.json"),
    (write_flame_graph, "a.txt"),
    (write_events, "a.json"),
]


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_full_disk_keeps_the_old_file_and_leaves_nothing_else(tmp_path, write, name):
    store, path = training_store(), tmp_path / name
    path.write_text("old")
    with full_disk(), pytest.raises(GpuscopeError, match=f"cannot write .*{name}: File too large"):
        write(store, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_full_device_is_told(write, name):
    with pytest.raises(GpuscopeError, match="cannot write /dev/full: No space left on device"):
        write(training_store(), "/dev/full")


# -- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("write", "name"), WRITERS)
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_file_that_is_replaced_keeps_its_permissions(tmp_path, mode, write, name):
    path = tmp_path / name
    path.touch()
    path.chmod(mode)
    write(training_store(), path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_file_that_is_replaced_keeps_its_owner(tmp_path):
    path = tmp_path / "a.gscope"
    path.touch()
    os.chown(path, 1234, 5678)
    save(training_store(), path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 5678)


# -- pipes and devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_null_device_takes_everything(write, name):
    write(training_store(), os.devnull)
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_named_pipe_is_written_to(tmp_path, write, name):
    path, copy = tmp_path / name, tmp_path / f"copy.{name}"
    os.mkfifo(path)
    with copy.open("wb") as file, subprocess.Popen(["cat", path], stdout=file):
        write(training_store(), path)
    write(training_store(), tmp_path / f"file.{name}")
    assert copy.stat().st_size == (tmp_path / f"file.{name}").stat().st_size
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_check_does_not_open_a_named_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert check_writable(tmp_path / "pipe", (".json",)) == tmp_path / "pipe"  # it would wait for a reader


def test_open_descriptor_goes_on_where_it_is(tmp_path):
    with (tmp_path / "log").open("w+") as log:
        log.write("before\n")
        log.flush()
        write_text(f"/dev/fd/{log.fileno()}", "after\n")
        log.seek(0)
        assert log.read() == "before\nafter\n"


def test_link_to_standard_output_is_standard_output(tmp_path):
    (tmp_path / "out.json").symlink_to("/dev/stdout")
    script = f"from gpuscope.paths import write_text; write_text({str(tmp_path / 'out.json')!r}, 'text')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "text"


def test_descriptor_that_is_open_for_reading_is_told(tmp_path):
    (tmp_path / "a").touch()
    with (tmp_path / "a").open() as file, pytest.raises(GpuscopeError, match="it is open for reading only"):
        check_writable(f"/dev/fd/{file.fileno()}")


def test_descriptor_that_is_not_open_is_told():
    with pytest.raises(GpuscopeError, match="cannot write /dev/fd/999: Bad file descriptor"):
        check_writable("/dev/fd/999")
    with pytest.raises(GpuscopeError, match="cannot write"):
        check_writable(f"/dev/fd/{'9' * 20}")


def test_reader_that_has_seen_enough_is_no_failure(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        write_text(f"/dev/fd/{writer}", "text")
    os.close(writer)


# -- processes that die -----------------------------------------------------------------------------------------------

SAVES_FOR_EVER = """
import itertools, sys
from fakes.stores import training_store
from gpuscope.exporters import save
store = training_store()
for turn in itertools.count():
    save(store, sys.argv[1])
    if not turn:
        print("begun", flush=True)
"""


def killed_while_writing(path, after_s):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", SAVES_FOR_EVER, path], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after_s)
        process.kill()


def test_killed_process_leaves_a_whole_file_and_nothing_after_the_next_write(tmp_path):
    path = tmp_path / "a.gscope"
    generator = random.Random(0)
    for _ in range(5):
        killed_while_writing(path, generator.uniform(0, 0.05))
        assert len(load_store(path).tables()) > 0
    write_text(tmp_path / "other", "text")
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "other"]


def test_file_left_by_a_process_that_died_is_removed_by_the_next_write(tmp_path):
    (tmp_path / ".gpuscope-0.tmp").write_text("left")
    write_text(tmp_path / "a", "text")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["text"]


def test_file_that_another_process_is_writing_is_left_alone(tmp_path):
    with replacing(tmp_path / "first") as file:
        file.write(b"first")
        write_text(tmp_path / "second", "second")
    assert (tmp_path / "first").read_text() == "first"
    assert (tmp_path / "second").read_text() == "second"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_a_thousand_processes_write_into_takes_one_more(tmp_path):
    for number in range(1000):
        (tmp_path / f".gpuscope-{number}.tmp").mkdir()  # cannot be removed, as a locked file
    write_text(tmp_path / "a", "text")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a"]


def test_many_threads_write_one_file(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_text(tmp_path / "a", str(number) * 1000), range(64)))
    assert len(set((tmp_path / "a").read_text())) <= 2
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
