# SPDX-License-Identifier: Apache-2.0
"""What the host has left, from the files that the kernel writes."""

from __future__ import annotations

import pytest

from gpuscope.memory import host
from gpuscope.memory.host import available_memory, peak_resident, reset_peak_resident, resident

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"
KiB = 1024


@pytest.fixture
def root(tmp_path):
    """Makes a system of these files."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_what_is_available_counts_not_what_is_free(root):
    assert available_memory(root({"proc/meminfo": MEMINFO})) == (600 * KiB, 1000 * KiB)


def group(limit, used, cache, *, version=2):
    if version == 2:
        folder, names = "sys/fs/cgroup/", ("memory.max", "memory.current", "inactive_file")
    else:
        folder = "sys/fs/cgroup/memory/"
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    texts = (f"{limit}\n", f"{used}\n")
    files = {folder + name: text for name, text in zip(names, texts, strict=False)}
    return files | {folder + "memory.stat": f"anon 5\n{names[2]} {cache}\n", "proc/meminfo": MEMINFO}


@pytest.mark.parametrize("version", [1, 2])
def test_a_containers_limit_counts_where_it_is_less(root, version):
    files = group(500 * KiB, 300 * KiB, 100 * KiB, version=version)
    assert available_memory(root(files)) == (300 * KiB, 500 * KiB)


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("sys/fs/cgroup/slurm/job_7/step_0/", "0::/slurm/job_7/step_0/task_1"),
        ("sys/fs/cgroup/memory/slurm/job_7/", "4:cpu,memory:/slurm/job_7"),
    ],
)
def test_the_limit_of_a_job_around_the_process_counts(root, folder, line):
    version = 1 if "memory" in folder else 2
    job = {}
    for name, text in group(500 * KiB, 300 * KiB, 100 * KiB, version=version).items():
        job[name if name == "proc/meminfo" else folder + name.rpartition("/")[2]] = text
    files = group(400 * KiB if version == 2 else 1 << 62, 0, 0, version=version)
    assert available_memory(root({**files, **job, "proc/self/cgroup": f"1:cpuset:/other\n{line}\n"})) == (
        300 * KiB,
        400 * KiB if version == 2 else 500 * KiB,
    )


@pytest.mark.parametrize("limit", ["max", 5000 * KiB, 1 << 62])
def test_a_limit_that_is_none_or_above_the_host_does_not_count(root, limit):
    assert available_memory(root(group(limit, 0, 0))) == (600 * KiB, 1000 * KiB)


def test_a_limit_that_is_passed_leaves_nothing(root):
    assert available_memory(root(group(100, 300, 0)))[0] == 0


def test_without_files_nothing_is_known(tmp_path):
    assert available_memory(tmp_path) == (None, None)
    assert (resident(tmp_path), peak_resident(tmp_path), reset_peak_resident(tmp_path)) == (None, None, False)


def test_the_process_is_told_of(root):
    here = root({"proc/self/status": "VmHWM:\t  40 kB\nVmRSS:\t  30 kB\n", "proc/self/clear_refs": ""})
    assert (resident(here), peak_resident(here)) == (30 * KiB, 40 * KiB)
    assert reset_peak_resident(here)
    assert (here / "proc/self/clear_refs").read_text() == "5"


def test_the_highest_goes_on_where_the_peak_begins_anew(root, monkeypatch):
    monkeypatch.setattr(host, "_highest", 0)
    reset_peak_resident(root({"proc/self/status": f"VmHWM:\t  {1 << 40} kB\n", "proc/self/clear_refs": ""}))
    assert (host.highest_resident_bytes(), host.host_memory().peak_resident_bytes) == (KiB << 40, KiB << 40)
