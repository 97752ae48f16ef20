# SPDX-License-Identifier: Apache-2.0
"""The stub of the extension module says what the module has."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

GENERATOR = Path(__file__).resolve().parents[1] / "make_stub.py"
specification = importlib.util.spec_from_file_location("make_stub", GENERATOR)
assert specification is not None
assert specification.loader is not None
make_stub = importlib.util.module_from_spec(specification)
specification.loader.exec_module(make_stub)

# What every class has from object, or from being a class.
INHERITED = {"__doc__", "__module__", "__new__", "__init__", "__dict__", "__weakref__", "__repr__"}


def test_stub_is_what_the_generator_makes_of_the_module() -> None:
    pytest.importorskip("pybind11_stubgen", reason="the test extra has it")
    committed = make_stub.STUB.read_text(encoding="utf-8")
    fresh = make_stub.make_stub()
    difference = "\n".join(
        difflib.unified_diff(committed.splitlines(), fresh.splitlines(), "committed", "fresh", "", "", 1)
    )
    assert committed == fresh, f"regenerate it with `python tests/make_stub.py`:\n{difference}"


@pytest.fixture(scope="module")
def module_names() -> dict[str, list[str]]:
    """The module's names with the names in each, asked of a fresh process: other tests put fakes into the module."""
    question = (
        "import json; from gpuscope import _core;"
        "print(json.dumps({name: sorted(getattr(value, '__dict__', ())) for name, value in vars(_core).items()}))"
    )
    done = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    names: dict[str, list[str]] = json.loads(done.stdout)
    return names


@pytest.mark.parametrize("name", make_stub.WRITTEN_IN_C)
def test_declaration_by_hand_has_the_names_of_the_type(name: str, module_names: dict[str, list[str]]) -> None:
    if name not in module_names:
        pytest.skip(f"_core has no {name}")
    (declared,) = ast.parse(make_stub.WRITTEN_IN_C[name]).body
    assert isinstance(declared, ast.ClassDef)
    names = {node.name for node in declared.body if isinstance(node, ast.FunctionDef)}
    assert names - INHERITED == set(module_names[name]) - INHERITED


def test_every_public_name_of_the_module_is_in_the_stub(module_names: dict[str, list[str]]) -> None:
    declared = set()
    for node in ast.parse(make_stub.STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            declared.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared.add(node.target.id)
    assert {name for name in module_names if not name.startswith("__")} <= declared
