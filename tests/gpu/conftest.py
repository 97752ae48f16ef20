# SPDX-License-Identifier: Apache-2.0
"""These tests need a GPU: without one the whole folder is skipped, and says why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    """The built-in kernels on device 0."""
    from gpuscope import _core

    return _core.Kernels()
