# SPDX-License-Identifier: Apache-2.0
"""The program's own code without a GPU: names of what it calls, imports, waits, and what of the machine held it up."""

from __future__ import annotations

import dis
import os
import sys
from types import CodeType

import pytest

from fakes.loops import Loop
from fakes.recordings import make_trace
from fakes.schemas import offences
from gpuscope.diagnosis import diagnose, find_steps
from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.findings import Where
from gpuscope.diagnosis.own_code import OWNERS, OwnFunction, _called, own_places
from gpuscope.exporters.sql import Database
from gpuscope.steps.breakdown import break_down
from gpuscope.trace import NONE

CALLS = {
    "df.apply(x, axis=1)": ["df.apply"],
    "g(x)": ["g"],
    "len(x)": ["len"],
    "obj.a.b.c(x.y, z=3)": ["obj.a.b.c"],
    "df.groupby(x).sum()": ["df.groupby", "sum"],
    "', '.join(x)": ["str.join"],
    "g(*x)": ["g"],
    "obj.m(*x, **x)": ["obj.m"],
    "g(x)(x)": ["g", ""],
    "print(len(x), obj.n(x))": ["len", "obj.n", "print"],
    "x[0].foo(g(x))": ["g", "foo"],
    "gc.collect()": ["gc.collect"],
}


@pytest.mark.parametrize("text", CALLS)
def test_the_name_of_what_an_instruction_calls_is_that_of_the_source(text):
    module = compile(f"import gc\na = b = 0\ndef f(df, obj, g, x):\n    {text}\n", "x.py", "exec")
    code = next(each for each in module.co_consts if isinstance(each, CodeType))
    calls = [each for each in dis.get_instructions(code) if each.opname.startswith("CALL")]
    assert [_called(code, each.offset) for each in calls if not each.opname.startswith("CALL_INTRINSIC")] == CALLS[text]


@pytest.mark.parametrize(
    "name", ["RESUME", "LOAD_CONST", "RETURN_VALUE"] if sys.version_info >= (3, 11) else ["RETURN_VALUE"]
)
def test_an_instruction_that_calls_nothing_has_no_name(name):
    code = compile("x = [1]\ny = x", "x.py", "exec")
    at = [each.offset for each in dis.get_instructions(code) if each.opname.startswith(name)]
    assert [_called(code, offset) for offset in at] == [""] * len(at)


def sampled(*rows, threads=1, info=None, **tables):
    """A recording of samples: each row is the frames from the outermost, as "file:function:line", and ms."""
    stack = {"parent": [], "function": [], "file": [], "line": []}
    known = {}
    sample = {"start_ns": [], "duration_ns": [], "cpu_ns": [], "stack": [], "count": [], "thread": []}
    clocks = [0] * threads
    for frames, ms, *more in rows:
        thread, on_cpu = (*more, 0, 1.0)[:2] if len(more) < 2 else more
        parent = NONE
        for frame in frames.split(" > "):
            file, function, line = frame.rsplit(":", 2)
            key = (parent, frame)
            if key not in known:
                known[key] = len(stack["parent"])
                for name, value in (("parent", parent), ("function", function), ("file", file), ("line", int(line))):
                    stack[name].append(value)
            parent = known[key]
        for name, value in (
            ("start_ns", clocks[thread]),
            ("duration_ns", ms * 1_000_000),
            ("cpu_ns", int(ms * on_cpu * 1_000_000)),
            ("stack", parent),
            ("count", ms),
            ("thread", thread),
        ):
            sample[name].append(value)
        clocks[thread] += ms * 1_000_000
    facts = {"session.start_ns": "0", "session.stop_ns": str(max(clocks)), "process.id": "1"}
    numbers = {"system_id": [1 + thread for thread in range(threads)]}
    return make_trace(
        {"stack": stack, "thread": numbers, "python_sample": sample, **tables}, info={**facts, **(info or {})}
    )


LIBRARY = "/x/lib/python3.11/site-packages/"
IMPORT = "<frozen importlib._bootstrap>:_find_and_load:1"


def first(trace):
    found = diagnose(trace)
    return found.findings[0].title if found.findings else found.summary


def test_a_caller_is_not_named_for_the_time_of_a_function_that_it_calls():
    trace = sampled(("a/etl.py:<module>:9 > a/etl.py:main:5 > a/etl.py:parse:2", 80), ("a/etl.py:<module>:9", 20))
    assert first(trace) == "parse (etl.py:2)"


def test_the_query_of_own_code_returns_the_samples_of_its_lines():
    trace = sampled(("a/etl.py:<module>:9 > a/etl.py:parse:2", 80), ("a/etl.py:<module>:9", 20))
    rows = Database(trace).run(diagnose(trace).findings[0].query).rows
    assert rows[0][:4] == ("a/etl.py", 2, "parse", 80)


def test_a_diagnosis_of_own_code_fits_the_schema():
    trace = sampled(("a/etl.py:<module>:9 > a/etl.py:parse:2", 80), ("a/etl.py:<module>:9", 20))
    assert offences("diagnosis", diagnose(trace)) == []


def test_a_function_that_library_code_calls_is_listed_in_the_one_that_called_the_library():
    apply = f"{LIBRARY}pandas/core/frame.py:DataFrame.apply:3"
    trace = sampled(
        (f"a/etl.py:add:5 > {apply} > a/etl.py:tax:2", 40),
        (f"a/etl.py:add:5 > {apply}", 40),
        ("a/etl.py:rest:9", 20),
    )
    found = diagnose(trace)
    assert found.findings[0].title == "add (etl.py:5): DataFrame.apply"
    assert found.findings[0].share == pytest.approx(0.8, abs=0.01)
    assert found.findings[0].evidence["in tax (etl.py:2)"] == "40 %"


def test_imports_are_one_line_and_no_finding():
    trace = sampled(
        (f"a/run.py:<module>:1 > {IMPORT} > {LIBRARY}torch/__init__.py:<module>:7", 60),
        (f"a/run.py:<module>:2 > {IMPORT} > {LIBRARY}yaml.py:<module>:7", 10),
        ("a/run.py:<module>:3", 30),
    )
    found = diagnose(trace)
    assert [each.title for each in found.findings] == ["the script (run.py:3)"]
    name, share = found.host_times[0]
    assert name.startswith("imports (torch 60.")
    assert ", yaml 10." in name
    assert share == pytest.approx(0.7, abs=0.01)


def test_what_a_module_of_the_program_does_while_it_is_imported_is_its_own_code():
    assert (
        first(sampled((f"a/run.py:<module>:1 > {IMPORT} > a/tables.py:<module>:4", 90))) == "the script (tables.py:4)"
    )


def test_an_event_loop_with_nothing_to_do_is_no_own_code():
    loop = "/usr/lib/python3.11/asyncio/base_events.py:run:3 > /usr/lib/python3.11/selectors.py:EpollSelector.select:4"
    found = diagnose(sampled((f"a/app.py:main:3 > {loop}", 95, 0, 0.0), ("a/app.py:main:4", 5)))
    assert (found.verdict, found.findings) == ("fine", ())
    assert dict(found.host_times)["event loop with nothing to do"] == pytest.approx(0.95, abs=0.01)


def test_a_wait_for_threads_is_the_time_of_what_they_compute():
    wait = "/usr/lib/python3.11/threading.py:Condition.wait:7"
    trace = sampled(
        (f"a/app.py:main:3 > {wait}", 100, 0, 0.0),
        ("a/app.py:parse:9", 100, 1, 0.9),
        (f"a/app.py:worker:5 > {wait}", 100, 2, 0.0),
        threads=3,
    )
    found = diagnose(trace)
    assert found.findings[0].title == "parse (app.py:9)"
    assert found.findings[0].share == pytest.approx(1.0)


def test_a_wait_for_threads_that_do_nothing_is_the_line_that_waits():
    wait = "/usr/lib/python3.11/threading.py:Thread.join:7"
    assert first(sampled((f"a/app.py:main:3 > {wait}", 100, 0, 0.0), threads=2)) == "main (app.py:3): Thread.join"


def test_a_wait_for_a_thread_is_first_its_sleep_and_then_what_it_computes():
    wait = "/usr/lib/python3.11/threading.py:Thread.join:7"
    trace = sampled(
        (f"a/app.py:main:3 > {wait}", 100, 0, 0.0),
        ("a/app.py:fetch:5", 60, 1, 0.0),
        ("a/app.py:parse:9", 40, 1, 1.0),
        threads=2,
    )
    found = diagnose(trace)
    shares = {each.title: (each.share, each.evidence["on a CPU"]) for each in found.findings}
    assert shares == {
        "fetch (app.py:5)": (pytest.approx(0.6, abs=0.02), "0.0 %"),
        "parse (app.py:9)": (pytest.approx(0.4, abs=0.02), "100 %"),
    }


@pytest.mark.parametrize(("samples", "is_named"), [(5, False), (50, True)])
def test_a_library_without_own_code_around_it_is_named_of_enough_samples_only(samples, is_named):
    found = diagnose(sampled(("/usr/lib/python3.11/contextlib.py:enter:5", samples)))
    assert bool(found.findings) == is_named


def test_a_function_keeps_its_key_when_another_of_its_lines_has_the_most_samples(tmp_path):
    path = tmp_path / "app.py"
    path.write_text("def parse():\n    one()\n    other()\n")
    os.utime(path, ns=(0, 0))
    keys = [
        [each.key for each in diagnose(sampled((f"{path}:parse:2", first), (f"{path}:parse:3", 100 - first))).findings]
        for first in (30, 70)
    ]
    assert keys[0]
    assert keys[0] == keys[1]


def test_threads_that_compute_at_once_share_the_time_of_the_one_that_waits():
    wait = "/usr/lib/python3.11/threading.py:Thread.join:7"
    trace = sampled(
        (f"a/app.py:main:3 > {wait}", 100, 0, 0.0),
        ("a/app.py:one:5", 100, 1, 0.9),
        ("a/app.py:two:9", 100, 2, 0.9),
        threads=3,
    )
    found = diagnose(trace)
    assert [each.id for each in found.findings] == ["R51", "R51"]  # and no wait for the GIL
    assert [each.share for each in found.findings] == [pytest.approx(0.5, abs=0.01)] * 2


def test_an_event_loop_that_waits_for_its_executor_is_what_that_runs():
    loop = "/usr/lib/python3.11/asyncio/base_events.py:run:3 > /usr/lib/python3.11/selectors.py:EpollSelector.select:4"
    trace = sampled((f"a/app.py:main:3 > {loop}", 100, 0, 0.0), ("a/app.py:blocking:9", 100, 1, 1.0), threads=2)
    assert first(trace) == "blocking (app.py:9)"


def test_functions_that_one_line_calls_in_turns_are_named_and_not_the_line():
    trace = sampled(("a/app.py:main:3 > a/app.py:one:5", 50), ("a/app.py:main:3 > a/app.py:two:9", 50))
    assert {each.title for each in diagnose(trace).findings} == {"one (app.py:5)", "two (app.py:9)"}


def test_times_of_the_host_add_up():
    trace = sampled(
        ("a/app.py:main:3 > a/lib.py:one:5", 40), ("b/app.py:main:4 > a/lib.py:one:5", 20), ("a/app.py:main:6", 40)
    )
    found = diagnose(trace)
    assert sum(share for _, share in found.host_times) == pytest.approx(1.0)
    assert sum(found.to_dict()["host_times"].values()) == pytest.approx(1.0)


def test_the_wrapper_of_a_library_s_function_is_not_what_is_called():
    inside = [
        f"{LIBRARY}pandas/util/_decorators.py:deprecate.<locals>.wrapper:3",
        f"{LIBRARY}pandas/core/series.py:Series.max:4",
    ]
    assert first(sampled((" > ".join(["a/app.py:main:3", *inside]), 100))) == "main (app.py:3): Series.max"


def test_of_an_installed_program_its_own_package_is_named():
    assert (
        first(sampled((f"{LIBRARY}tool/cli.py:main:3 > {LIBRARY}tool/work.py:crunch:9", 100))) == "crunch (work.py:9)"
    )


def test_a_comprehension_is_part_of_its_function():
    rows = "a/app.py:rows:3", "a/app.py:rows:3 > a/app.py:rows.<locals>.<listcomp>:3"
    found = diagnose(sampled((rows[0], 50), (rows[1], 50)))
    assert [(each.title, each.share) for each in found.findings] == [("rows (app.py:3)", pytest.approx(1.0))]


def test_a_function_that_calls_itself_counts_once():
    found = diagnose(sampled((" > ".join(["a/app.py:deep:3"] * 50), 100)))
    assert [(each.title, each.share) for each in found.findings] == [("deep (app.py:3)", pytest.approx(1.0))]


def test_what_a_library_makes_of_text_is_not_the_programs():
    found = diagnose(sampled((f"a/app.py:main:3 > {LIBRARY}attr/make.py:build:3 > <string>:__init__:1", 100)))
    assert found.findings[0].title == "main (app.py:3): attr.build"


def test_without_samples_regions_are_named():
    trace = make_trace(
        {
            "path": {"name": ["step", "forward"], "parent": [NONE, 0]},
            "thread": {"system_id": [1]},
            "region": {"start_ns": [0, 1], "duration_ns": [100, 95], "path": [0, 1], "parent": [NONE, 0]},
        },
        info={"session.start_ns": "0", "session.stop_ns": "100"},
    )
    assert diagnose(trace).summary == "95 % of the run is spent in step > forward"


# -- the machine -------------------------------------------------------------------------------------------------------


def waiting_program(used, busy):
    """A program that waits for a CPU half of the time; how many CPUs it and all processes keep busy."""
    loop = Loop(info={"machine.cpus": "4", "machine.cpus_busy": str(busy)})
    for _ in loop.steps(12):
        since = loop.now
        loop.work(1000)
        loop.wait_for_cpu(1000)
        loop.process(since, used)
    return diagnose(loop.trace())


def test_other_processes_that_have_the_cpus_are_a_condition_and_no_finding():
    found = waiting_program(used=0.9, busy=3.9)
    assert "R08" not in {each.id for each in found}
    assert found.conditions == (
        "other processes use 3.00 of 4 CPUs: the main thread waited 1.00 ms per step for a CPU",
    )
    assert "note: other processes" in found.page()


def test_a_program_with_more_threads_than_cpus_is_told_so():
    found = waiting_program(used=3.8, busy=4.0)
    assert "R08" in {each.id for each in found}
    assert found.conditions == ()


def test_a_wait_that_nobody_else_is_the_cause_of_is_neither():
    found = waiting_program(used=0.9, busy=1.0)
    assert "R08" not in {each.id for each in found}
    assert found.conditions == ()


def test_own_lines_have_the_time_of_libraries_and_imports_have_their_package():
    trace = sampled(
        (f"a/etl.py:<module>:9 > {LIBRARY}pandas/core/frame.py:DataFrame.apply:3", 40),
        (f"a/etl.py:<module>:1 > {IMPORT} > {LIBRARY}pandas/__init__.py:<module>:1", 30),
        ("a/etl.py:<module>:9 > a/etl.py:rest:4", 20),
        ("/usr/lib/python3.11/runpy.py:run:1", 10),
    )
    steps = find_steps(trace)
    found = own_places(Context(trace, steps, break_down(trace, steps)), OWNERS[0])
    times = {(where.function, where.line): round(time_ns / 1e6) for where, time_ns in found.values()}
    assert times == {("<module>", 9): 40, ("import pandas", None): 30, ("rest", 4): 20}


@pytest.mark.parametrize(
    ("file", "name"),
    [("etl.py", "the script (etl.py:7)"), ("In [4]", "the cell (In [4]:7)")],
)
def test_code_outside_of_functions_is_that_of_the_script_or_the_cell(file, name):
    assert OwnFunction(Where(file, 7, "<module>"), 1.0, 1.0, [], []).name == name


def test_a_function_whose_time_a_cause_with_advice_explains_is_named_once():
    loop = Loop()
    for _ in loop.steps(12):
        with loop.at("train.py", 7, "load"), loop.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            since = loop.now
            loop.work(600)
            loop.sampled(since, 1.0)
        with loop.at("train.py", 30, "step"):
            since = loop.now
            loop.work(400)
            loop.sampled(since, 1.0)
    found = diagnose(make_trace(loop.tables(), info=dict(loop.trace().info)))
    assert sorted((each.id, each.where[0].line) for each in found.findings) == [("R02", 7), ("R51", 30)]
