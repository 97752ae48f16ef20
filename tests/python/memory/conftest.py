# SPDX-License-Identifier: Apache-2.0
"""What tests of memory share."""

from __future__ import annotations

import pytest

from fakes.frameworks import Machine


@pytest.fixture
def machine(monkeypatch):
    """A machine with one GPU that is in use, and no framework imported."""
    return Machine(monkeypatch)
