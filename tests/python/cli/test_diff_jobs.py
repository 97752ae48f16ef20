# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from fakes.fleets import job_tables
from gpuscope.fleet import tables


@pytest.fixture
def jobs(tmp_path):
    """Folders of two jobs, of which the second is slower."""
    pytest.importorskip("pyarrow")
    for name, transfer in (("before", 1.0), ("after", 2.0)):
        tables.write(tmp_path / name, tables.join([job_tables(4, transfer_ms=transfer, noise=0.01)]), 0)
    return tmp_path


def test_two_jobs_are_compared(gpuscope, jobs):
    done = gpuscope("diff", "before", "after", "--json", "diff.json", "--fail-over", "5%")
    assert done.returncode == 1
    assert done.stdout.startswith("verdict: slower: a step takes ")
    assert json.loads((jobs / "diff.json").read_text())["step"]["verdict"] == "slower"
    assert gpuscope("diff", "before", "after", "--fail-over", "50%").returncode == 0


def test_options_for_recordings_are_refused_for_jobs(gpuscope, jobs):
    done = gpuscope("diff", "before", "after", "-o", "a.html")
    assert done.returncode == 2
    assert "accepted with jobs are --fail-over and --json" in done.stderr
