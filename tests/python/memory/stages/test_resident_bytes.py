# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from gpuscope.memory import host as resident
from gpuscope.memory.host import highest_resident_bytes, resident_bytes


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(resident, "_file", None)


def by_status():
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


def test_it_is_what_the_system_says():
    assert resident_bytes() == pytest.approx(by_status(), rel=0.05)


def test_memory_that_is_touched_is_seen():
    before = resident_bytes()
    data = mmap.mmap(-1, 32 << 20)  # malloc may give what was touched before
    for page in range(0, len(data), 4096):
        data[page] = 1
    assert resident_bytes() - before > 0.9 * len(data)
    assert highest_resident_bytes() >= 0.99 * resident_bytes()


def test_a_descriptor_that_the_program_closed_is_opened_anew():
    resident_bytes()
    os.close(resident._file[1])
    assert resident_bytes() == pytest.approx(by_status(), rel=0.05)


def test_a_descriptor_that_now_is_the_programs_file_is_let_go(tmp_path):
    resident_bytes()
    path = tmp_path / "theirs"
    path.write_text("1 2 3")
    theirs = os.open(path, os.O_RDONLY)
    os.dup2(theirs, resident._file[1])
    assert resident_bytes() == pytest.approx(by_status(), rel=0.05)
    os.close(theirs)


def test_a_child_reads_its_own(monkeypatch):
    resident_bytes()
    of_parent = resident._file
    monkeypatch.setattr(os, "getpid", lambda: 1)
    resident_bytes()
    assert resident._file[0] == 1
    assert resident._file[1] != of_parent[1]


def test_without_proc_the_highest_stands_in(monkeypatch):
    def refuse(*args):
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", refuse)
    assert resident_bytes() == highest_resident_bytes()
