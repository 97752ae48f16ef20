# SPDX-License-Identifier: Apache-2.0
"""The one grammar of devices."""

from __future__ import annotations

import types

import pytest

from gpuscope import _core, devices, streams
from gpuscope.errors import InvalidArgument, NotAvailable


def of(package: str, **attributes: object) -> object:
    """An instance of a class of that package."""
    return type("Device", (), {"__module__": f"{package}.device", **attributes})()


@pytest.fixture(autouse=True)
def _fresh():
    devices.why_no_gpu.cache_clear()
    yield
    devices.why_no_gpu.cache_clear()


@pytest.fixture
def two_gpus(monkeypatch):
    def find_device(device=0):
        if device > 1:
            raise NotAvailable(f"device {device} is not available: this process sees 2 devices")
        return device

    monkeypatch.setattr(_core, "find_device", find_device)
    monkeypatch.setattr(streams, "current", lambda device=None: streams.Stream(0, 1, "default"))
    uuids = [{"ordinal": at, "uuid": f"GPU-0000-{at}"} for at in range(2)]
    monkeypatch.setattr(_core, "environment", lambda: {"devices": uuids})


@pytest.fixture
def no_gpu(monkeypatch):
    def refuse(device=0):
        raise NotAvailable("the GPU is not available: for the test")

    monkeypatch.setattr(_core, "find_device", refuse)


FORMS = [
    (None, 1),
    (0, 0),
    ("cuda", 1),
    ("cuda:0", 0),
    ("gpu:1", 1),
    ("GPU-0000-1", 1),
    (of("torch", type="cuda", index=0), 0),
    (of("torch", type="cuda", index=None), 1),
    (of("jaxlib", platform="gpu", local_hardware_id=1), 1),
    (of("cupy", id=1), 1),
    (of("numba", id=0), 0),
    (of("cuda", device_id=1), 1),
]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("device", "ordinal"), FORMS)
def test_every_form_gives_its_ordinal(device, ordinal):
    assert devices.ordinal_of(device) == ordinal
    assert devices.ordinal_or_host(device) == ordinal


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    "device", [-1, True, 1.5, "cpu", "cuda:x", "cuda:" + "9" * 5000, "GPU-ffff", [], of("torch", type="cpu"), types]
)
def test_anything_else_is_refused(device):
    with pytest.raises(InvalidArgument, match=r"^device is .*; accepted are an ordinal from 0"):
        devices.ordinal_of(device)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("device", ["cpu", of("torch", type="cpu"), of("jaxlib", platform="cpu")])
def test_the_cpu_is_the_host(device):
    assert devices.ordinal_or_host(device) == devices.HOST


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there_is_not_available():
    with pytest.raises(NotAvailable, match="this process sees 2 devices"):
        devices.ordinal_or_host(5)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("device", [None, 0, "cuda:1", "cpu"])
def test_every_gpu_is_the_host_where_there_is_none(device):
    assert devices.ordinal_or_host(device) == devices.HOST


@pytest.mark.usefixtures("no_gpu")
def test_what_is_no_device_is_refused_without_a_gpu_too():
    with pytest.raises(InvalidArgument, match=r"^device is 'x'"):
        devices.ordinal_or_host("x")


@pytest.mark.usefixtures("no_gpu")
def test_says_why_there_is_no_gpu():
    assert devices.why_no_gpu() == "the GPU is not available: for the test"


@pytest.mark.usefixtures("two_gpus")
def test_says_nothing_with_a_gpu():
    assert devices.why_no_gpu() == ""
