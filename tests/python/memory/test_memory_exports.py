# SPDX-License-Identifier: Apache-2.0
"""The types that `gpuscope.memory` names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gpuscope.memory


def test_the_types_that_checkers_see_are_those_that_programs_get():
    stub = ast.parse(Path(f"{gpuscope.memory.__file__}i").read_text(encoding="utf-8"))
    seen = {node.names[0].name: str(node.module) for node in stub.body if isinstance(node, ast.ImportFrom)}
    assert sorted(seen) == gpuscope.memory.__all__
    assert {name: getattr(gpuscope.memory, name).__module__ for name in seen} == seen
    assert set(seen) <= set(dir(gpuscope.memory))


def test_importing_the_room_imports_nothing_of_it():
    code = "import gpuscope.memory, sys; print([name for name in sys.modules if name.startswith('gpuscope.memory.')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'MemorySnapshots'"):
        _ = gpuscope.memory.MemorySnapshots
