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
    tree = ast.parse(Path(gpuscope.memory.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "gpuscope" in str(node.module)]
    seen = {node.names[0].name: str(node.module).rpartition(".")[2] for node in imports}
    assert seen == gpuscope.memory._MODULE_OF
    assert all(isinstance(getattr(gpuscope.memory, name), type) for name in seen)
    assert set(seen) <= set(dir(gpuscope.memory))


def test_importing_the_room_imports_nothing_of_it():
    code = "import gpuscope.memory, sys; print([name for name in sys.modules if name.startswith('gpuscope.memory.')])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'MemorySnapshots'"):
        _ = gpuscope.memory.MemorySnapshots
