# SPDX-License-Identifier: Apache-2.0
"""A machine with a GPU that the test drives, and one without."""

from __future__ import annotations

import pytest

from fakes.event_gpu import FakeGpu
from gpuscope import _core, devices
from gpuscope.errors import NotAvailable
from gpuscope.timing import reset_timings


@pytest.fixture(autouse=True)
def fresh():
    devices.why_no_gpu.cache_clear()
    reset_timings()
    yield
    devices.why_no_gpu.cache_clear()
    reset_timings()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu().put_in(monkeypatch)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: int = 0, **options: bool) -> int:
        raise NotAvailable("the GPU is not available: for the test")

    monkeypatch.setattr(_core, "find_device", refuse)
    monkeypatch.setattr(_core, "Event", refuse)
    monkeypatch.setattr(_core, "stream_device", lambda stream: 0)
