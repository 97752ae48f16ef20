# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ctypes
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope import _core, streams
from gpuscope.errors import CudaError, InvalidArgument
from gpuscope.streams import Stream


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    """Two devices: a stream's thousands are its device."""
    monkeypatch.setattr(_core, "stream_device", lambda stream: stream // 1000)


def of(package: str, name: str = "Stream", bases: tuple[type, ...] = (), **members: object) -> object:
    """An object of a framework that is not here: only its class's package and its attributes are looked at."""
    return type(name, bases, {"__module__": f"{package}.some.module", **members})()


TORCH = of("torch", cuda_stream=77, device_index=1)
TORCH_PARENT = of("torch", native_handle=78, device_index=1, device=types.SimpleNamespace(type="cuda"))
CUPY = of("cupy", ptr=79, device_id=1, wait_event=None)
CUPY_NULL = of("cupy", ptr=0, device_id=-1, wait_event=None)
NUMBA_CONTEXT = types.SimpleNamespace(device=types.SimpleNamespace(id=1))
NUMBA = of("numba", handle=ctypes.c_void_p(80), auto_synchronize=None, context=NUMBA_CONTEXT)
NUMBA_DEFAULT = of("numba", handle=ctypes.c_void_p(0), auto_synchronize=None, context=NUMBA_CONTEXT)
NUMBA_NEW = of("numba_cuda", handle=of("cuda", "CUstream", __int__=lambda self: 81), auto_synchronize=None)
PROPERTY = of("theirs", __cuda_stream__=(0, 1082))
METHOD = of("theirs", __cuda_stream__=lambda self: (0, 1083))
METHOD_OF_OBJECT = of("cuda", __cuda_stream__=lambda self: (0, of("cuda", "CUstream", __int__=lambda self: 1084)))
PYCUDA = of("pycuda", handle=1085, wait_for_event=None)
DRIVER = of("cuda", "CUstream", __int__=lambda self: 1086)
RUNTIME = of("cuda", "cudaStream_t", __int__=lambda self: 1087)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (TORCH, Stream(77, 1, "torch")),
        (TORCH_PARENT, Stream(78, 1, "torch")),
        (CUPY, Stream(79, 1, "cupy")),
        (CUPY_NULL, Stream(0, 0, "cupy")),
        (NUMBA, Stream(80, 1, "numba")),
        (NUMBA_DEFAULT, Stream(0, 1, "numba")),
        (NUMBA_NEW, Stream(81, 0, "numba")),
        (PROPERTY, Stream(1082, 1, "__cuda_stream__")),
        (METHOD, Stream(1083, 1, "__cuda_stream__")),
        (METHOD_OF_OBJECT, Stream(1084, 1, "__cuda_stream__")),
        (PYCUDA, Stream(1085, 1, "pycuda")),
        (DRIVER, Stream(1086, 1, "cuda-python")),
        (RUNTIME, Stream(1087, 1, "cuda-python")),
        (0, Stream(0, 0, "int")),
        (1088, Stream(1088, 1, "int")),
        (np.uint64(1089), Stream(1089, 1, "int")),
        (Stream(5, 1, "cupy"), Stream(5, 1, "cupy")),
    ],
)
def test_form_is_read(form, expected):
    assert streams.resolve(form) == expected
    assert streams.is_stream(form)


def test_torchs_parent_of_all_streams_is_read_only_on_cuda():
    with pytest.raises(InvalidArgument):
        streams.resolve(of("torch", native_handle=78, device_index=0, device=types.SimpleNamespace(type="xpu")))


def test_torchs_streams_of_the_host_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidArgument, match="accepted are None for the current stream"):
        streams.resolve(torch.Stream(device="cpu"))


@pytest.mark.parametrize(
    "value",
    [
        "0",
        1.5,
        True,
        [],
        object(),
        np.zeros(3),
        Stream,
        ctypes.c_void_p(7),
        of("cupy", "Event", ptr=3),
        of("a", handle=3),
    ],
)
def test_what_is_no_stream_is_refused(value):
    with pytest.raises(
        InvalidArgument, match=r"(?s)^stream is .*; accepted are None for the current stream, an integer"
    ):
        streams.resolve(value)
    assert not streams.is_stream(value)


def test_refusal_is_one_short_line():
    with pytest.raises(InvalidArgument) as caught:
        streams.resolve("x" * 10_000)
    assert len(str(caught.value)) < 400
    assert str(caught.value).startswith("stream is 'xxx")
    assert "(builtins.str)" in str(caught.value)


@pytest.mark.parametrize("handle", [-1, 2**64])
def test_number_that_is_no_handle_is_refused(handle):
    with pytest.raises(InvalidArgument, match=rf"^stream is {handle}; accepted handles are 0 to"):
        streams.resolve(handle)


@pytest.mark.parametrize(
    "closed",
    [
        of("cuda", __cuda_stream__=lambda self: (0, None)),
        of("cuda", __cuda_stream__=lambda self: (0, 0)),
        of("cuda", __cuda_stream__=lambda self: (0, int(self.handle)), handle=None),
        of("pycuda", handle=None, wait_for_event=None),
    ],
)
def test_closed_stream_is_refused(closed):
    with pytest.raises(InvalidArgument, match=r"^stream is .*, which is closed; accepted are open streams$"):
        streams.resolve(closed)


def test_null_stream_of_others_is_open():
    assert streams.resolve(of("theirs", __cuda_stream__=(0, 0))).handle == 0


@pytest.mark.parametrize("answer", [7, (1, 2, 3), ("a", "b"), (0, "b"), (0, 1.5), (0, True)])
def test_answer_of_another_form_is_refused(answer):
    with pytest.raises(
        InvalidArgument, match=r"^stream is .*, whose __cuda_stream__ is .*; accepted is \(0, handle\)$"
    ):
        streams.resolve(of("theirs", __cuda_stream__=answer))


def test_answer_of_another_version_is_refused():
    with pytest.raises(InvalidArgument, match="version 1 of __cuda_stream__; accepted is version 0"):
        streams.resolve(of("theirs", __cuda_stream__=(1, 5)))


def test_stream_that_the_driver_does_not_know_is_refused(monkeypatch):
    def refuse(stream):
        raise CudaError("stream_get_context failed with CUDA_ERROR_INVALID_HANDLE (400)", "stream_get_context", 400)

    monkeypatch.setattr(_core, "stream_device", refuse)
    with pytest.raises(InvalidArgument, match=r"^stream is 0x4d, which the driver does not know \(.*INVALID_HANDLE"):
        streams.resolve(77)


class TestDevice:
    def test_says_whose_default_stream_is_meant(self):
        assert streams.resolve(0, device=1) == Stream(0, 1, "int")
        assert streams.resolve(2, device=1) == Stream(2, 1, "int")

    @pytest.mark.parametrize("stream", [1088, TORCH, Stream(0, 1, "default")])
    def test_of_a_stream_must_be_the_one_given(self, stream):
        assert streams.resolve(stream, device=1).device == 1
        with pytest.raises(InvalidArgument, match=r"^stream is of device 1; accepted here are streams of device 0$"):
            streams.resolve(stream, device=0)


@given(st.integers(0, 2**64 - 1))
def test_every_handle_is_kept(handle):
    stream = streams.resolve(handle)
    assert stream.handle == handle
    assert streams.resolve(stream) is stream
    assert stream.is_default == (handle < 3)


def test_our_own_follows_the_protocol():
    assert Stream(5, 0, "int").__cuda_stream__() == (0, 5)


class TestCurrent:
    @pytest.fixture(autouse=True)
    def without_frameworks(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        monkeypatch.setitem(sys.modules, "cupy", None)

    @staticmethod
    def torch(initialized):
        def current_stream(device):
            return types.SimpleNamespace(cuda_stream=55, device_index=1 if device is None else device)

        return types.SimpleNamespace(
            cuda=types.SimpleNamespace(is_initialized=lambda: initialized, current_stream=current_stream)
        )

    @staticmethod
    def cupy(device):
        return types.SimpleNamespace(
            cuda=types.SimpleNamespace(
                runtime=types.SimpleNamespace(getDevice=device),
                get_current_stream=lambda: types.SimpleNamespace(ptr=66),
            )
        )

    def test_is_the_default_one_without_a_framework(self):
        assert streams.resolve() == streams.current() == Stream(0, 0, "default")
        assert streams.current(1) == Stream(0, 1, "default")

    def test_is_torchs_when_torch_uses_cuda(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", self.torch(True))
        monkeypatch.setitem(sys.modules, "cupy", self.cupy(lambda: 1))
        assert streams.current() == Stream(55, 1, "torch")
        assert streams.current(0) == Stream(55, 0, "torch")

    def test_is_not_torchs_before_torch_uses_cuda(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", self.torch(False))
        assert streams.current() == Stream(0, 0, "default")

    def test_is_cupys_on_cupys_device(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", self.cupy(lambda: 1))
        assert streams.current() == Stream(66, 1, "cupy")
        assert streams.current(0) == Stream(0, 0, "default")

    def test_is_the_default_one_where_cupy_finds_no_gpu(self, monkeypatch):
        def fail():
            raise RuntimeError("cudaErrorNoDevice")

        monkeypatch.setitem(sys.modules, "cupy", self.cupy(fail))
        assert streams.current() == Stream(0, 0, "default")

    @pytest.mark.parametrize("name", ["torch", "cupy"])
    def test_is_the_default_one_while_a_framework_is_being_imported(self, monkeypatch, name):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        assert streams.current() == Stream(0, 0, "default")
