# SPDX-License-Identifier: Apache-2.0
"""The tree, the table and the time outside regions, from samples whose every number is known."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.gscope import NONE, make_store
from gpuscope.analysis import key_averages, samples, tree
from gpuscope.analysis.python_samples import IN_CALL, outside_regions_ns, sampled_paths
from gpuscope.errors import InvalidArgument
from gpuscope.text import columns_of
from gpuscope.trace import Trace

MS = 1_000_000
INFO = {
    "session.mode": "full",
    "session.start_ns": "0",
    "session.stop_ns": str(100 * MS),
    "process.id": "7",
    "samples.interval_ns": str(MS),
}
# main calls fib, which calls itself; main runs line 1 and 2.
STACKS = {
    "parent": [NONE, NONE, 0, 1, 2],
    "function": ["main", "main", "fib", "fib", "fib"],
    "file": ["run.py"] * 5,
    "line": [1, 2, 9, 9, 10],
}


def recording(rows, info=None, stack=None, **tables):
    """Samples as (start, duration, cpu, stack, thread) in ms, of threads 7 and 8."""
    columns = {
        "start_ns": [row[0] * MS for row in rows],
        "duration_ns": [row[1] * MS for row in rows],
        "cpu_ns": [row[2] * MS for row in rows],
        "stack": [row[3] for row in rows],
        "count": [row[1] for row in rows],
        "thread": [row[4] for row in rows],
    }
    facts = {**INFO, **(info or {})}
    known = dict(stack or STACKS)
    return Trace(
        make_store(
            {
                "info": {"key": list(facts), "value": list(facts.values())},
                "thread": {"system_id": [7, 8]},
                "stack": known,
                "python_sample": columns,
                **tables,
            }
        )
    )


@pytest.fixture
def run():
    return recording([(0, 10, 10, 0, 0), (10, 30, 20, 2, 0), (40, 40, 40, 4, 0), (80, 15, 0, 3, 0)])


def test_calls_have_their_own_time_and_that_of_whom_they_call(run):
    (main,) = samples(run).roots
    assert (main.function, main.self_ns, main.total_ns, main.cpu_ns) == ("main", 10 * MS, 95 * MS, 70 * MS)
    (fib,) = main.children
    assert (fib.self_ns, fib.total_ns, fib.line) == (45 * MS, 85 * MS, 9)
    assert fib.lines == ((9, 45 * MS),)
    assert [(inner.self_ns, inner.line) for inner in fib.children] == [(40 * MS, 10)]


def test_a_function_has_the_time_of_recursion_once(run):
    found = {function.function: function for function in samples(run).functions}
    assert (found["fib"].self_ns, found["fib"].total_ns, found["fib"].count) == (85 * MS, 85 * MS, 85)
    assert found["main"].total_ns == 95 * MS
    assert found["main"].line == 1  # 80 ms of it
    assert [function.function for function in samples(run).functions] == ["fib", "main"]


def test_shares_are_of_the_recorded_time(run):
    text = samples(run).render()
    assert "95 samples every 1.00 ms; shares are of the 100 ms that were recorded" in text
    lines = text.splitlines()
    assert lines[2].split() == ["main", "run.py:1", "95.0", "%", "95.0", "ms", "10.0", "%", "10.0", "ms", "70.0", "%"]
    assert lines[3].split()[:4] == ["└─", "fib", "run.py:9", "85.0"]


def test_shares_of_a_full_ring_are_of_the_time_since_its_first_sample():
    trace = recording([(60, 40, 40, 0, 0)], info={"session.mode": "ring", "audit.evicted": "1"})
    assert samples(trace).share(samples(trace).roots[0].total_ns) == 100.0


def test_small_calls_and_deep_ones_are_left_out(run):
    assert "fib" not in samples(run).render(max_depth=1)
    text = samples(run).render(min_percent=90)
    assert "(1 below 90 %)" in text
    assert "fib" not in text


def test_lines_of_a_function_stand_under_it():
    stack = {"parent": [NONE, NONE], "function": ["main"] * 2, "file": ["run.py"] * 2, "line": [3, 5]}
    lines = samples(recording([(0, 60, 60, 0, 0), (60, 40, 40, 1, 0)], stack=stack)).render().splitlines()
    assert [line.split()[1:4] for line in lines[3:]] == [["line", "3", "60.0"], ["line", "5", "40.0"]]


def test_the_import_system_is_left_out():
    stack = {
        "parent": [NONE, 0, 1],
        "function": ["main", "_find_and_load", "<module>"],
        "file": ["run.py", "<frozen importlib._bootstrap>", "library.py"],
        "line": [3, 900, 1],
    }
    (main,) = samples(recording([(0, 10, 10, 1, 0), (10, 50, 50, 2, 0)], stack=stack)).roots
    assert main.self_ns == 10 * MS
    assert main.line == 3
    assert [child.file for child in main.children] == ["library.py"]


def test_the_table_is_ordered_as_asked(run):
    functions = samples(run).table(sort_by="total_ns").splitlines()[2:]
    assert [line.split()[0] for line in functions] == ["main", "fib"]
    assert len(samples(run).table(row_limit=1).splitlines()) == 3


def test_columns_stand_below_each_other_beside_names_of_wide_characters():
    stack = {"parent": [NONE, NONE], "function": ["\u540d" * 50, "main"], "file": ["run.py"] * 2, "line": [1, 2]}
    lines = samples(recording([(0, 10, 10, 0, 0), (10, 10, 10, 1, 0)], stack=stack)).table(width=80).splitlines()
    assert {columns_of(line) for line in lines if "10.0 ms" in line} == {80}


@pytest.mark.parametrize(
    ("method", "arguments", "words"),
    [
        ("table", {"sort_by": "time"}, "sort_by is 'time'; accepted are 'self_ns', 'total_ns', 'cpu_ns', 'count'"),
        ("table", {"row_limit": 0}, "row_limit is 0; accepted are integers from 1"),
        ("render", {"min_percent": 101}, "min_percent is 101; accepted are numbers from 0 to 100"),
        ("render", {"max_depth": 0}, "max_depth is 0; accepted are integers from 1"),
        ("render", {"width": 10}, "width is 10; accepted are integers from 40"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(run, method, arguments, words):
    with pytest.raises(InvalidArgument, match=words):
        getattr(samples(run), method)(**arguments)


def test_a_recording_without_samples_is_empty():
    empty = samples(recording([]))
    assert not empty
    assert (len(empty), empty.roots, empty.find("main")) == (0, (), None)
    assert empty.render()


def test_json_has_every_call_with_its_parent(run):
    calls = samples(run).to_dict()["calls"]
    assert [(call["function"], call["parent"]) for call in calls] == [("main", None), ("fib", 0), ("fib", 1)]


# -- the time outside regions ----------------------------------------------------------------------------------------

REGION = {
    "path": {"parent": [NONE], "name": ["step"]},
    "region": {"start_ns": [20 * MS, 30 * MS], "duration_ns": [30 * MS, 10 * MS], "parent": [NONE, 0], "path": [0, 0]},
}


def test_the_row_outside_makes_percentages_of_the_whole_run():
    trace = recording([(0, 60, 60, 0, 0), (60, 40, 0, 2, 0)], **REGION)
    assert outside_regions_ns(trace) == 70 * MS
    averages = key_averages(trace)
    outside = next(row for row in averages if row.kind == "outside")
    assert (outside.key, outside.self_cpu_time_total) == ("[outside every region]", 70_000.0)
    assert averages.self_cpu_time_total == 100_000.0
    assert {row.key: row.self_cpu_percent for row in averages} == {"step": "30.00%", "[outside every region]": "70.00%"}
    assert "[outside every region]" in averages.table()


def test_the_call_tree_has_it_too():
    call_tree = tree(recording([(0, 100, 60, 0, 0)], **REGION))
    node = call_tree.find("[outside every region]")
    assert node is not None
    assert (node.cpu_ns, call_tree.root.cpu_ns) == (70 * MS, 100 * MS)


def test_of_threads_without_regions_it_is_the_time_on_a_cpu():
    trace = recording([(0, 100, 100, 0, 0), (0, 100, 5, 0, 1)], **REGION)
    assert outside_regions_ns(trace) == 75 * MS


def test_in_aggregate_mode_it_is_what_regions_leave():
    totals = {
        "path": {"parent": [NONE], "name": ["step"]},
        "region_total": {"path": [0], "count": [3], "total_ns": [30 * MS], "min_ns": [MS], "max_ns": [20 * MS]},
    }
    aggregate = {"session.mode": "aggregate"}
    assert outside_regions_ns(recording([(0, 90, 60, 0, 0)], info=aggregate, **totals)) == 60 * MS
    several_threads = recording([(0, 90, 60, 0, 0), (0, 90, 60, 0, 1)], info=aggregate, **totals)
    assert outside_regions_ns(several_threads) == 0  # whose time the regions took is not known


@pytest.mark.parametrize("lost", ["refused", "log_dropped", "regions_off"])
def test_it_is_not_known_where_regions_were_left_out(lost):
    assert outside_regions_ns(recording([(0, 100, 60, 0, 0)], info={f"audit.{lost}": "1"}, **REGION)) == 0


def test_without_samples_there_is_no_such_row():
    trace = recording([], **REGION)
    assert outside_regions_ns(trace) == 0
    assert [row.kind for row in key_averages(trace)] == ["region"]


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), max_size=6)


@given(regions=SPANS, sampled=SPANS)
def test_overlaps_are_those_of_every_millisecond(regions, sampled):
    tables = {
        "path": {"parent": [NONE], "name": ["step"]},
        "region": {
            "start_ns": [start * MS for start, _ in regions],
            "duration_ns": [length * MS for _, length in regions],
            "parent": [NONE] * len(regions),
            "path": [0] * len(regions),
        },
    }
    rows = [(start, length, length, 0, 0) for start, length in sampled]
    inside = {at for start, length in regions for at in range(start, start + length)}
    outside = sum(at not in inside for start, length in sampled for at in range(start, start + length))
    assert outside_regions_ns(recording(rows, **tables)) == outside * MS


@given(regions=SPANS, calls=SPANS, sampled=SPANS)
def test_a_sample_is_of_the_region_or_call_that_began_last_of_those_around(regions, calls, sampled):
    spans = [*regions, *calls]
    columns = {name: [span[at] * MS for span in spans] for at, name in ((0, "start_ns"), (1, "duration_ns"))}
    count = len(regions)
    tables = {
        "path": {"parent": [NONE] * count, "name": [f"region {number}" for number in range(count)]},
        "region": {
            **{name: values[:count] for name, values in columns.items()},
            "parent": [NONE] * count,
            "path": list(range(count)),
        },
        "api": {**{name: values[count:] for name, values in columns.items()}, "region": [NONE] * len(calls)},
        "call": {"name": ["cuLaunchKernel"], "kind": [1]},
    }
    paths = [*range(count), *[IN_CALL] * len(calls)]
    expected = Counter()
    for row, (start, length) in enumerate(sampled):
        for at in range(start, start + length):
            around = [number for number, (begin, lasts) in enumerate(spans) if begin <= at < begin + lasts]
            latest = max(around, key=lambda number: (spans[number][0], -spans[number][1], number), default=None)
            expected[row, NONE if latest is None else paths[latest]] += MS
    trace = recording([(start, length, length, 0, 0) for start, length in sampled], **tables)
    found = Counter()
    for row, path, time_ns in zip(*(values.tolist() for values in sampled_paths(trace)), strict=True):
        found[row, path] += time_ns
    assert found == expected
