# SPDX-License-Identifier: Apache-2.0
"""What all Python tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Builders of test data: `from fakes.elf import needed_libraries`.
sys.path.insert(0, str(Path(__file__).parent))

from fakes.modules import modules_unchanged

# Tests compare text: no colours, and a table's width does not depend on the terminal.
os.environ["NO_COLOR"] = "1"
os.environ["COLUMNS"] = "120"


@pytest.fixture(autouse=True)
def modules_of_the_test() -> Iterator[None]:
    """No stand-in for a module outlives its test: set up before all other fixtures, this one ends after them."""
    with modules_unchanged():
        yield
