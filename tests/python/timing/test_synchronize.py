# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
import types

import pytest

from gpuscope.devices import ordinal_of
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.streams import Stream
from gpuscope.timing import Event, synchronize


def of(package: str, name: str, **members: object) -> object:
    return type(name, (), {"__module__": f"{package}.some.module", **members})()


class TheirEvent:
    """An event of CuPy or torch."""

    def __init__(self) -> None:
        self.waited = 0

    def record(self) -> None: ...

    def synchronize(self) -> None:
        self.waited += 1


DEVICES = [
    (3, 3),
    ("cuda:3", 3),
    ("gpu:3", 3),
    ("cuda", 0),
    (of("torch", "device", type="cuda", index=3), 3),
    (of("torch", "device", type="cuda", index=None), 0),
    (of("cupy", "Device", id=3), 3),
    (of("numba", "Device", id=3), 3),
    (of("cuda", "Device", device_id=3), 3),
    (of("jaxlib", "Device", platform="gpu", local_hardware_id=3), 3),
]


@pytest.mark.parametrize(("device", "ordinal"), DEVICES)
def test_devices_in_every_form(gpu, device, ordinal):
    assert ordinal_of(device) == ordinal
    assert synchronize(device) == 0.25 + ordinal


def test_the_current_device_by_itself(gpu):
    assert synchronize() == 0.25


def test_streams(gpu):
    assert synchronize(Stream(7, 0, "int")) == 7.25
    assert synchronize(of("theirs", "Stream", __cuda_stream__=(0, 8))) == 8.25
    assert synchronize(of("cupy", "Stream", ptr=9, wait_event=None, record=None, synchronize=None)) == 9.25


def test_our_event(gpu):
    event = Event()
    event.record()
    assert synchronize(event) >= 0
    assert gpu.waited == 1


@pytest.mark.parametrize("package", ["torch", "cupy"])
def test_their_events(gpu, package):
    event = type("Event", (TheirEvent,), {"__module__": f"{package}.cuda"})()
    assert synchronize(event) >= 0
    assert event.waited == 1


@pytest.mark.parametrize("target", ["cpu", of("torch", "device", type="cpu", index=None)])
def test_the_cpu_is_never_waited_for(gpu, target):
    assert synchronize(target) == 0.0
    assert gpu.waited == 0


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("target", [None, 0, 3, "cuda:1", Stream(0, 0, "int"), Event(), "cpu"])
def test_nothing_to_wait_for_without_a_gpu(target):
    assert synchronize(target) == 0.0


@pytest.mark.parametrize("machine", ["gpu", "no_gpu"])
@pytest.mark.parametrize(
    "target", [1.5, True, "cuda:x", [], object(), types, of("torch", "Tensor", type=lambda: "cpu")]
)
def test_anything_else_is_refused(machine, request, target):
    request.getfixturevalue(machine)
    with pytest.raises(
        InvalidArgument, match=r"(?s)^target is .*; accepted are None, streams, events, an ordinal from 0"
    ):
        synchronize(target)


def test_negative_ordinals_are_refused(gpu):
    with pytest.raises(InvalidArgument, match=r"^target is -1; accepted are device ordinals from 0$"):
        synchronize(-1)
    with pytest.raises(InvalidArgument, match=r"^device is -1 .*; accepted are"):
        ordinal_of(-1)


def test_device_that_is_not_there_is_told_of(gpu, monkeypatch):
    from gpuscope import _core

    def refuse(device=0):
        raise NotAvailable("device 5 is not available: this process sees 1 devices")

    monkeypatch.setattr(_core, "synchronize", refuse)
    with pytest.raises(NotAvailable, match="device 5"):
        synchronize(5)


CAPTURED = (
    r"^synchronize\(\) is not available while a CUDA graph is being captured: it would spoil the capture; call it"
)


@pytest.mark.parametrize("target", [None, 0, "cuda:1", Stream(7, 0, "int"), Stream(0, 0, "int")])
def test_nothing_is_waited_for_while_a_graph_is_captured(gpu, target):
    gpu.capturing = True
    with pytest.raises(NotAvailable, match=CAPTURED):
        synchronize(target)
    assert gpu.waited == 0


@pytest.mark.parametrize("package", ["torch", "cupy"])
def test_events_of_others_may_be_part_of_the_capture(gpu, package):
    gpu.capturing = True
    event = type("Event", (TheirEvent,), {"__module__": f"{package}.cuda"})()
    with pytest.raises(NotAvailable, match=CAPTURED):
        synchronize(event)
    assert event.waited == 0


def test_a_stream_that_is_not_captured_can_be_waited_for_meanwhile(gpu):
    gpu.capturing = {9}
    assert synchronize(Stream(7, 0, "int")) == 7.25


def cupy_on(stream):
    cuda = types.SimpleNamespace(
        runtime=types.SimpleNamespace(getDevice=lambda: 0),
        get_current_stream=lambda: types.SimpleNamespace(ptr=stream),
    )
    return types.SimpleNamespace(cuda=cuda)


def torch_on(stream, **members):
    of = types.SimpleNamespace(cuda_stream=stream, device_index=0)
    cuda = types.SimpleNamespace(is_initialized=lambda: True, current_stream=lambda device: of, **members)
    return types.SimpleNamespace(cuda=cuda)


@pytest.mark.parametrize("captured", [7, 8, 0])
def test_a_capture_of_any_framework_is_seen(gpu, monkeypatch, captured):
    monkeypatch.setitem(sys.modules, "torch", torch_on(7))
    monkeypatch.setitem(sys.modules, "cupy", cupy_on(8))
    gpu.capturing = {captured}
    with pytest.raises(NotAvailable, match=CAPTURED):
        synchronize()
    gpu.capturing = {99}
    assert synchronize() == 0.25


def test_the_stream_that_torch_captures_on_by_itself_is_seen_from_other_threads(gpu, monkeypatch):
    stream = types.SimpleNamespace(cuda_stream=9, device_index=0)
    torch = torch_on(7, graph=types.SimpleNamespace(default_capture_stream=stream))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.cuda", torch.cuda)
    gpu.capturing = {9}
    with pytest.raises(NotAvailable, match=CAPTURED):
        synchronize()
