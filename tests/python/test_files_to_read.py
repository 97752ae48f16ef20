# SPDX-License-Identifier: Apache-2.0
"""Files that users name to be read: regular ones alone, and nothing waits."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from gpuscope import load
from gpuscope.errors import GpuscopeError, InvalidArgument
from gpuscope.paths import open_file, read_text


def test_a_file_is_read(tmp_path):
    (tmp_path / "a.json").write_text("ü")
    with open_file(tmp_path / "a.json") as file:
        assert file.read() == "ü".encode()
    assert read_text(str(tmp_path / "a.json"), 2) == "ü"


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("make", "what"), [(os.mkdir, "a directory"), (os.mkfifo, "a named pipe"), (make_socket, "a socket")]
)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch, make, what):
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    make("a.json")
    with pytest.raises(InvalidArgument, match=f"path is 'a.json', which is {what}; accepted are regular files"):
        read_text("a.json", 100)


def test_a_device_is_refused_at_once():
    with pytest.raises(InvalidArgument, match="path is '/dev/zero', which is a device; accepted are regular files"):
        read_text("/dev/zero", 100)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(InvalidArgument, match=r"path is '.*none'; there is no such file"):
        read_text(tmp_path / "none", 100)


def test_a_link_to_itself_is_told(tmp_path):
    (tmp_path / "a.json").symlink_to("a.json")
    with pytest.raises(GpuscopeError, match=r"cannot read .*a\.json: Too many levels of symbolic links"):
        read_text(tmp_path / "a.json", 100)


def test_an_error_of_reading_is_told(tmp_path):
    (tmp_path / "a.json").touch()
    with (
        pytest.raises(GpuscopeError, match=r"cannot read .*a\.json: Input/output error"),
        open_file(tmp_path / "a.json"),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_more_than_is_accepted_is_not_read(tmp_path):
    (tmp_path / "a.json").write_bytes(b"x" * 101)
    with pytest.raises(InvalidArgument, match="which has more than the 100 bytes that are accepted"):
        read_text(tmp_path / "a.json", 100)


def test_what_is_no_utf8_is_told(tmp_path):
    (tmp_path / "a.json").write_bytes(b"\xff")
    with pytest.raises(InvalidArgument, match="which is no text in UTF-8"):
        read_text(tmp_path / "a.json", 100)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_recording_is_a_regular_file(tmp_path, make):
    make(tmp_path / "a.gscope")
    with pytest.raises(GpuscopeError, match=r"cannot open .*a\.gscope: it is (a directory|no file)"):
        load(tmp_path / "a.gscope")
