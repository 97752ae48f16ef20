# SPDX-License-Identifier: Apache-2.0
"""What tests without a GPU share; those in tests/gpu use real frameworks, which may replace modules of their own."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from fakes.browser import chromium
from fakes.modules import modules_unchanged


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the garbage collector: collected tests are thousands of objects, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``-m "not browser"`` leaves out the tests of pages, which are the same whatever else is installed."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """Hides older objects from the garbage collector, which takes a second for those of all tests and of PyTorch."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def whole_heap(small_heap: None) -> Iterator[None]:
    """The garbage collector sees all objects, for tests whose modules and globals refer to others."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(autouse=True)
def modules_of_the_test() -> Iterator[None]:
    """No stand-in for a module outlives its test: set up before all other fixtures, this one ends after them."""
    with modules_unchanged():
        yield


@pytest.fixture(scope="module")  # while it lives, no other event loop can run in this thread
def browser() -> Iterator[Any]:
    """A Chromium, where one is installed."""
    with chromium() as found:
        yield found


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that runs Python and uses a CPU."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process
        process.kill()
