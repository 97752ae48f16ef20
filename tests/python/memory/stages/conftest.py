# SPDX-License-Identifier: Apache-2.0
"""Machines with and without a GPU, whose memory the test drives."""

from __future__ import annotations

import sys

import pytest

from fakes.allocating_torch import FakeTorch
from gpuscope import _core, devices
from gpuscope.errors import NotAvailable
from gpuscope.memory.usage.tracking import reset_memory_stages


@pytest.fixture
def fresh_stages():
    devices.why_no_gpu.cache_clear()
    reset_memory_stages()
    yield
    devices.why_no_gpu.cache_clear()
    reset_memory_stages()


@pytest.fixture
def fake_torch(fresh_stages, monkeypatch):
    """A GPU with torch, which reports nothing: peaks come from its counters."""
    for name in ("cupy", "rmm", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return FakeTorch().put_in(monkeypatch)


@pytest.fixture
def reporting_torch(fake_torch, monkeypatch):
    """The same, and torch reports its allocations."""
    return fake_torch.reports(monkeypatch)


@pytest.fixture
def host_only(fresh_stages, monkeypatch):
    def refuse(device=0, **options):
        raise NotAvailable("the GPU is not available: for the test")

    monkeypatch.setattr(_core, "find_device", refuse)
