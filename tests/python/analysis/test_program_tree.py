# SPDX-License-Identifier: Apache-2.0
"""The tree of the program's functions: libraries and imports in a line each, and the hottest line always there."""

from __future__ import annotations

import re

import pytest

from fakes.gscope import NONE, make_store
from gpuscope.analysis.program_tree import ProgramTree
from gpuscope.trace import Trace

MS = 1_000_000
MAIN, OTHER = 7, 8
PARSE = [("<module>", "/work/etl.py", 9), ("parse", "/work/etl.py", 6)]
LOADS = ("loads", "/usr/lib/python3.11/json/__init__.py", 346)
DECODE = ("JSONDecoder.decode", "/usr/lib/python3.11/json/decoder.py", 337)
RAW = ("JSONDecoder.raw_decode", "/usr/lib/python3.11/json/decoder.py", 353)
IMPORT = ("_find_and_load", "<frozen importlib._bootstrap>", 1176)
TORCH = ("<module>", "/usr/lib/python3.11/site-packages/torch/__init__.py", 1)
NUMPY = ("<module>", "/usr/lib/python3.11/site-packages/numpy/__init__.py", 1)
THREAD = [
    ("Thread._bootstrap", "/usr/lib/python3.11/threading.py", 1002),
    ("Thread.run", "/usr/lib/python3.11/threading.py", 982),
]
JOIN = ("Thread.join", "/usr/lib/python3.11/threading.py", 1119)


def recording(*samples, names=None, **info):
    """Samples as (stack from the outermost frame, ms, thread); a recording of 100 ms."""
    stacks = {"parent": [], "function": [], "file": [], "line": []}
    rows: dict[tuple, int] = {}
    columns = {"start_ns": [], "duration_ns": [], "cpu_ns": [], "stack": [], "count": [], "thread": []}
    for stack, length, *thread in samples:
        row = NONE
        for depth in range(1, len(stack) + 1):
            frames = tuple(stack[:depth])
            if frames not in rows:
                rows[frames] = len(rows)
                for name, value in zip(stacks, (row, *frames[-1]), strict=True):
                    stacks[name].append(value)
            row = rows[frames]
        waits = stack[-1] == JOIN
        values = (0, length * MS, 0 if waits else length * MS, row, length, (thread or [MAIN])[0] - MAIN)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    facts = {"session.mode": "full", "session.start_ns": "0", "session.stop_ns": str(100 * MS), "process.id": str(MAIN)}
    facts |= {"samples.interval_ns": str(MS), "thread_name.8": (names or {}).get(OTHER, ""), **info}
    tables = {
        "info": {"key": list(facts), "value": list(facts.values())},
        "thread": {"system_id": [MAIN, OTHER]},
        "stack": stacks,
        "python_sample": columns,
    }
    return Trace(make_store(tables))


def rows(trace, most_rows=20):
    """The names of the rows below the headings, with their branches."""
    lines = ProgramTree(trace).render(most_rows, 120).splitlines()[2:]
    return [" ".join(re.split(r" +\d+\.\d %", line)[0].split()) for line in lines]


def test_frames_of_a_library_are_one_row_below_the_function_that_is_called():
    trace = recording(([*PARSE, LOADS], 10), ([*PARSE, LOADS, DECODE], 20), ([*PARSE, LOADS, DECODE, RAW], 50))
    assert rows(trace) == [
        "<module> etl.py:9",
        "└─ parse etl.py:6",
        "└─ json.loads line 6",
        "└─ [2 frames of json]",
    ]


def test_shares_are_of_the_recorded_time():
    trace = recording(([*PARSE, LOADS], 10), ([*PARSE, LOADS, DECODE], 70))
    about, _, *lines = ProgramTree(trace).render(20, 120, more="").splitlines()
    assert about == "80 samples every 1.00 ms; shares are of the 100 ms that were recorded"
    assert re.findall(r"[\d.]+ (?:%|ms)", lines[2]) == ["80.0 %", "80.0 ms", "10.0 %", "10.0 ms", "80.0 %"]


def test_imports_are_one_row_with_the_packages():
    script = [("<module>", "/work/train.py", 1)]
    trace = recording(
        ([*script, IMPORT, TORCH], 50),
        ([*script, IMPORT, TORCH, IMPORT, NUMPY], 10),
        ([*script, IMPORT, NUMPY], 20),
        ([("<module>", "/work/train.py", 5), LOADS, IMPORT, NUMPY], 5),  # which a library imports when it is called
    )
    assert rows(trace) == ["<module> train.py:1", "└─ imports 85.0 ms: torch 60.0 ms, numpy 25.0 ms"]


def test_a_module_of_the_program_is_no_import():
    own = ("<module>", "/work/helpers.py", 3)
    trace = recording(([("<module>", "/work/train.py", 1), IMPORT, own], 50))
    assert rows(trace) == ["<module> train.py:1", "└─ <module> helpers.py:3"]


def test_recursion_and_comprehensions_are_one_row_with_their_function():
    visit = ("visit", "/work/walk.py", 4)
    inside = ("visit.<locals>.<listcomp>", "/work/walk.py", 5)
    trace = recording(([visit, visit, visit], 30), ([visit, visit, inside], 60))
    assert rows(trace) == ["visit walk.py:5", "├─ line 5", "└─ line 4"]


def test_functions_that_a_library_calls_back_stand_below_it():
    apply = ("DataFrame.apply", "/usr/lib/python3.11/site-packages/pandas/core/frame.py", 9)
    inner = ("FrameApply.apply", "/usr/lib/python3.11/site-packages/pandas/core/apply.py", 9)
    tax = ("add_tax", "/work/etl.py", 2)
    trace = recording(([*PARSE, apply, inner], 20), ([*PARSE, apply, inner, tax], 70))
    assert rows(trace)[2:] == ["└─ DataFrame.apply line 6", "├─ add_tax etl.py:2", "└─ [1 frame of pandas]"]


def test_functions_of_other_threads_have_the_name_of_the_thread():
    work = ("work", "/work/etl.py", 3)
    trace = recording(
        ([*THREAD, work], 90, OTHER), ([("<module>", "/work/etl.py", 9)], 50), names={OTHER: "Thread-1 (work)"}
    )
    assert rows(trace) == ["work etl.py:3 in Thread-1 (work)", "<module> etl.py:9"]


def test_a_wait_for_other_threads_does_not_come_first():
    work = ("work", "/work/etl.py", 3)
    trace = recording(([("<module>", "/work/etl.py", 9), JOIN], 90), ([*THREAD, work], 60, OTHER))
    assert [row.split()[0] for row in rows(trace)] == ["work", "<module>", "└─"]


def test_threads_that_only_wait_are_left_out_and_those_that_compute_have_a_name():
    script, idle = [("<module>", "/work/etl.py", 9)], [*THREAD, JOIN]
    assert rows(recording((script, 50), (idle, 100, OTHER))) == [
        "<module> etl.py:9",
        "(1 more row with less time: --tree)",
    ]
    assert rows(recording((script, 50), (THREAD, 40, OTHER), names={OTHER: "prefetch"}))[1] == "[prefetch]"


def test_files_of_one_name_have_their_folders():
    trace = recording(
        ([("load", "/work/train/data.py", 1)], 40),
        ([("save", "/work/serve/data.py", 2)], 30),
        ([("make", "/work/models/__init__.py", 3)], 20),
    )
    assert rows(trace) == ["load train/data.py:1", "save serve/data.py:2", "make models/__init__.py:3"]


def test_the_hottest_line_is_there_however_few_rows_there_are():
    script = ("<module>", "/work/etl.py", 9)
    others = [([script, (f"part_{number}", "/work/etl.py", number)], 9) for number in range(20, 29)]
    hottest = ([script, ("main", "/work/etl.py", 1), ("slow", "/work/etl.py", 4)], 12)
    found = rows(recording(*others, hottest), most_rows=4)
    assert found[:3] == ["<module> etl.py:9", "├─ main etl.py:1", "│ └─ slow etl.py:4"]
    assert len(found) == 5
    assert found[-1] == "(8 more rows with less time: --tree)"


def test_functions_that_only_call_each_other_are_one_row_where_the_program_is_deep():
    chain = [(f"level_{number}", "/work/deep.py", number) for number in range(1, 31)]
    found = rows(recording((chain, 90), (chain[:10], 5)))
    assert len(found) <= 10
    assert any(row.endswith("frames of the program]") for row in found)
    assert found[-1].endswith("level_30 deep.py:30")


@pytest.mark.parametrize("folder", ["site-packages/black", "json"], ids=["installed", "standard library"])
def test_of_a_program_that_is_installed_its_own_files_are_the_program(folder):
    trace = recording(([("visit", f"/usr/lib/python3.11/{folder}/tool.py", 5)], 90))
    assert rows(trace)[0] == "visit tool.py:5"


def test_names_obey_no_terminal():
    assert "\x1b" not in ProgramTree(recording(([("\x1b[31mred", "/work/\x1b.py", 1)], 90))).render(9, 80, more="")
