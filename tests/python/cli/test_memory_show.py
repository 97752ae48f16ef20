# SPDX-License-Identifier: Apache-2.0
"""``gpuscope memory show``: what a memory snapshot's file tells."""

from __future__ import annotations

import pickle

import pytest

from fakes.snapshot_files import BASE, LOAD, MIB, snapshot
from gpuscope import cli


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a snapshot's file."""
    monkeypatch.chdir(tmp_path)

    def write(content):
        (tmp_path / "memory.pickle").write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
        return "memory.pickle"

    return write


def test_peak_end_and_largest_lines_are_told(file, capsys):
    assert cli.main(["memory", "show", file(snapshot())]) == 0
    said = capsys.readouterr().out
    parts = (
        "GPU 0 at its end: 4.00 MiB in use, 22.0 MiB held in 2 segments, 2.00 MiB in private pools, as of CUDA graphs",
        "3 events in",
        *("an allocation of 900 MiB was refused", "peak of GPU 0: 6.00 MiB", "from before the history"),
        *("at its end: 3.00 MiB of known lines", "train.py:5 load", "taken over the whole time: 5.00 MiB"),
        *("train.py:5 load", "train.py:12 step"),
    )
    place = 0
    for part in parts:
        place = said.index(part, place)


def test_categories_of_the_peak_are_shown(file, capsys):
    content = snapshot() | {"gpuscope": {"tensors": [(BASE, 3 * MIB, 0, "PARAMETER")]}}
    cli.main(["memory", "show", file(content)])
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines() if "parameter" in line] == [
        ["parameter", "3.00", "MiB", "50.0", "%"]
    ]


def test_categories_that_are_not_known_say_why(file, capsys):
    content = snapshot()
    for entry in content["device_traces"][0]:
        entry["frames"] = []
    cli.main(["memory", "show", file(content)])
    assert "categories are not known: the events have no call stacks" in capsys.readouterr().out


def test_what_autograds_threads_took_is_told_as_such(file, capsys):
    content = snapshot()
    content["device_traces"][0].append({"action": "alloc", "addr": BASE + 8 * MIB, "size": MIB, "time_us": 20})
    cli.main(["memory", "show", file(content)])
    assert "backward (autograd's thread, no Python stack)" in capsys.readouterr().out


def test_top_limits_the_lines(file, capsys):
    cli.main(["memory", "show", file(snapshot()), "--top", "1"])
    said = capsys.readouterr().out
    assert "train.py:12 step" not in said
    assert "1 more lines" in said


def test_another_device_is_shown_on_demand(file, capsys):
    content = snapshot()
    content["device_traces"][1] = [
        {"action": "alloc", "addr": BASE, "size": 512, "time_us": 12, "frames": LOAD},
    ]
    assert cli.main(["memory", "show", file(content), "--device", "1"]) == 0
    assert "GPU 1 at its end" in capsys.readouterr().out


def test_what_another_device_refused_is_not_told(file, capsys):
    content = snapshot()
    content["device_traces"][1] = [{"action": "alloc", "addr": BASE, "size": 512, "time_us": 12, "frames": LOAD}]
    cli.main(["memory", "show", file(content), "--device", "1"])
    assert "refused" not in capsys.readouterr().out


def test_a_device_that_is_not_in_the_file_is_misuse(file, capsys):
    assert cli.main(["memory", "show", file(snapshot()), "--device", "5"]) == 2
    assert "--device is 5; the file has GPU 0" in capsys.readouterr().err


def test_a_page_is_written_on_demand(file, capsys, tmp_path):
    assert cli.main(["memory", "show", file(snapshot()), "--html", "page.html"]) == 0
    assert "wrote page.html" in capsys.readouterr().out
    assert "Memory of memory.pickle" in (tmp_path / "page.html").read_text()


def test_what_libraries_took_is_a_category_of_the_page(file, tmp_path):
    content = snapshot()
    for entry in content["device_traces"][0]:
        entry["source"] = "driver"
    cli.main(["memory", "show", file(content), "--html", "page.html"])
    assert '"name":"libraries"' in (tmp_path / "page.html").read_text()


def test_a_file_without_history_says_how_to_record_one(file, capsys):
    assert cli.main(["memory", "show", file({**snapshot(), "device_traces": []})]) == 0
    assert "_record_memory_history()" in capsys.readouterr().out


def test_lost_events_are_told(file, capsys):
    cli.main(["memory", "show", file({**snapshot(), "gpuscope": {"lost": 5}})])
    assert "5 older events were no longer kept" in capsys.readouterr().out


def test_a_damaged_file_is_a_failure_in_one_sentence(file, capsys):
    assert cli.main(["memory", "show", file(pickle.dumps(snapshot())[:200])]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is no whole memory snapshot" in said


def test_a_missing_file_is_misuse(file, capsys):
    assert cli.main(["memory", "show", "none.pickle"]) == 2
    assert "there is no such file" in capsys.readouterr().err
