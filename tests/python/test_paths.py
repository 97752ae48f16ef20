# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.stores import training_store
from gpuscope import _core, paths
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.exporters import export_chrome_trace, export_perfetto, save
from gpuscope.paths import check_writable

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


def test_device_is_told():
    with pytest.raises(GpuscopeError, match="it is no regular file"):
        check_writable(os.devnull, ())


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


@pytest.mark.parametrize(("export", "name"), EXPORTS[1:])
def test_interrupted_export_keeps_the_old_file(tmp_path, monkeypatch, export, name):
    path = tmp_path / name
    path.write_text("old")

    def interrupt(store, write):
        write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(_core, "write_chrome", interrupt)
    monkeypatch.setattr(_core, "write_perfetto", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export(training_store(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_full_disk_is_told(tmp_path, monkeypatch):
    def create_on_full_disk(target):
        (tmp_path / "full").touch()
        return os.open("/dev/full", os.O_WRONLY), tmp_path / "full"

    monkeypatch.setattr(paths, "_create_beside", create_on_full_disk)
    with pytest.raises(GpuscopeError, match="No space left on device"):
        export_chrome_trace(training_store(), tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []
