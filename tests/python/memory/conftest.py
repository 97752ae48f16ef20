# SPDX-License-Identifier: Apache-2.0
"""What tests of memory share."""

from __future__ import annotations

import pytest

from fakes.frameworks import Machine
from gpuscope import devices


@pytest.fixture
def machine(monkeypatch):
    """A machine with one GPU that is in use, and no framework imported."""
    yield Machine(monkeypatch)
    devices.why_no_gpu.cache_clear()
