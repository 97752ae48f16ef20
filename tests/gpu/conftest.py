# SPDX-License-Identifier: Apache-2.0
"""These tests need a GPU: without one the whole folder is skipped, and says why."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuscope._core import Kernels

FOLDER = Path(__file__).parent


def why_no_gpu() -> str:
    """The reason that there is no GPU to test on; empty when there is one."""
    from gpuscope import _core

    if not hasattr(_core, "environment"):
        return "this build of gpuscope cannot look for a GPU"
    facts = _core.environment()
    if facts["devices"]:
        return ""
    return f"no GPU: {facts['cuda_error'] or 'the driver lists no device'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if FOLDER in item.path.parents]
    reason = why_no_gpu() if here else ""
    if reason:
        for item in here:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """With a GPU, `-n auto` runs one test after another: tests that share a GPU disturb each other."""
    return None if why_no_gpu() else 0


@pytest.fixture(scope="module", autouse=True)
def _whole_heap() -> None:
    """The garbage collector sees all objects again, which tests without a GPU hide."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _first_gpu() -> Iterator[None]:
    """The first of several GPUs is the current one again: JAX leaves the last one when it first looks for devices."""
    yield
    from gpuscope import _core

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and len(_core.environment()["devices"]) > 1:
        torch.cuda.set_device(0)


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """The built-in kernels on device 0."""
    from gpuscope import _core

    return _core.Kernels()
