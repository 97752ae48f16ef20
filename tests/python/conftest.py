# SPDX-License-Identifier: Apache-2.0
"""What tests without a GPU share; those in tests/gpu use real frameworks, which may replace modules of their own."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from fakes.modules import modules_unchanged


@pytest.fixture(autouse=True)
def modules_of_the_test() -> Iterator[None]:
    """No stand-in for a module outlives its test: set up before all other fixtures, this one ends after them."""
    with modules_unchanged():
        yield


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> Iterator[None]:
    """Shells have what runs in their background ignore SIGINT, and programs started from there inherit that."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
