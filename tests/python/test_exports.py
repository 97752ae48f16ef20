# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest

import gpuscope


def python(script):
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


@pytest.mark.parametrize("name", gpuscope.__all__)
def test_every_public_name_exists(name):
    assert getattr(gpuscope, name) is not None
    assert name in dir(gpuscope)


def test_the_package_lists_its_public_names_alone():
    assert dir(gpuscope) == gpuscope.__all__
    listed = python("import gpuscope; gpuscope.profile, gpuscope.memory.MemoryEvents; print(*dir(gpuscope))")
    assert listed == gpuscope.__all__, "also once modules are imported"


@pytest.mark.parametrize(
    "room", ["analysis", "benchmarking", "counters", "diagnosis", "diffing", "memory", "monitor", "profiler", "timing"]
)
def test_a_public_room_lists_its_public_names_alone(room):
    module = importlib.import_module(f"gpuscope.{room}")
    assert dir(module) == sorted(module.__all__)
    assert [name for name in dir(module) if isinstance(getattr(module, name), types.ModuleType)] == []


def test_errors_lists_its_classes_alone():
    assert {type(getattr(gpuscope.errors, name)) for name in dir(gpuscope.errors)} == {type}


LITERALS = [
    (gpuscope.profile, "mode", {"full", "ring", "aggregate"}),
    (gpuscope.profile, "graphs", {"node", "launch"}),
    (gpuscope.compare, "quantity", {"kernel", "span", "stream", "launch", "wall", None}),
    (gpuscope.sweep, "quantity", {"kernel", "span", "stream", "launch", "wall", None}),
    (gpuscope.record_memory_history, "enabled", {"all", "state", bool, None}),
    (gpuscope.record_memory_history, "stacks", {"python", "all", bool}),
    (gpuscope.record_memory_history, "context", {"all", "alloc", "state", None}),
    (gpuscope.analysis.Samples.table, "sort_by", {"self_ns", "total_ns", "cpu_ns", "count"}),
    (gpuscope.analysis.EventList.table, "time_unit", {"s", "ms", "us", None}),
]


def values_of(hint):
    """The values and types that a hint is made of."""
    if typing.get_origin(hint) is typing.Literal:
        return {*typing.get_args(hint)}
    parts = typing.get_args(hint)
    return set().union(*map(values_of, parts)) if parts else {None if hint is type(None) else hint}


@pytest.mark.parametrize(
    ("function", "argument", "values"), LITERALS, ids=[f"{each[0].__name__}-{each[1]}" for each in LITERALS]
)
def test_fixed_values_are_part_of_the_signature(function, argument, values):
    owner = sys.modules[function.__module__]
    target = function.__init__ if isinstance(function, type) else function
    hint = eval(inspect.get_annotations(target)[argument], vars(owner))  # others of the names are imported for checkers
    assert values_of(hint) == values


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'gpuscope' has no attribute 'profle'"):
        _ = gpuscope.profle


def test_no_module_bears_the_name_of_a_public_function():
    paths = [path for folder in gpuscope.__path__ for path in Path(folder).rglob("*.py")]  # an editable one has two
    stems = {path.stem for path in paths} | {path.parent.name for path in paths if path.stem == "__init__"}
    known = {"compare", "crossover", "sweep"}  # to be renamed
    assert (stems & set(gpuscope.__all__)) - known == set()


def test_types_of_errors_are_reached_from_their_room():
    assert python("import gpuscope; print(gpuscope.errors.InvalidArgument.__name__)") == ["InvalidArgument"]


def test_import_alone_loads_no_other_part_of_the_package():
    assert python("import gpuscope, sys; print(*[m for m in sys.modules if m.startswith('gpuscope.')])") == []


@pytest.mark.parametrize("module", ["numpy", "rich", "argparse", "json", "dataclasses", "torch"])
def test_import_alone_loads_nothing_heavy(module):
    assert python(f"import gpuscope, sys; print({module!r} in sys.modules)") == ["False"]


def test_a_recording_ends_without_waiting_for_imports():
    script = """
import sys
import gpuscope
with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof:
    prof.step()
    started = set(sys.modules)
print(*sorted(set(sys.modules) - started))
"""
    assert python(script) == []
