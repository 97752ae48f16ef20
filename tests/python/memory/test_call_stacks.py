# SPDX-License-Identifier: Apache-2.0
"""The program's own line is found among the lines of libraries, and the library that asked for memory."""

from __future__ import annotations

import json
import os

import pytest

import gpuscope
from gpuscope import _core
from gpuscope.memory.history.call_stacks import (
    CPP_CODE,
    NO_STACK,
    YOUR_CODE,
    is_program,
    library_of,
    line_text,
    program_frame,
    program_line,
    program_line_text,
)
from gpuscope.memory.history.events import Frame

PACKAGES = "/opt/env/lib/python3.11/site-packages"
TORCH = Frame("Module._call_impl", f"{PACKAGES}/torch/nn/modules/module.py", 1700)
LLAMA = Frame("forward", f"{PACKAGES}/transformers/models/llama.py", 50)
DEBIAN = Frame("empty", "/usr/lib/python3/dist-packages/cupy/core.py", 7)
STANDARD = Frame("dumps", json.__file__, 12)
THREADING = Frame("run", os.path.join(os.path.dirname(os.__file__), "threading.py"), 9)
OTHER_MACHINES = Frame("run", "/opt/conda/lib/python3.12/threading.py", 9)
RED_HAT = Frame("run", "/usr/lib64/python3.9/threading.py", 9)
WINDOWS = Frame("run", r"C:\Users\me\miniconda3\Lib\threading.py", 9)
WINDOWS_TORCH = Frame("forward", r"C:\me\venv\Lib\site-packages\torch\nn\modules\linear.py", 134)
COMPILED = Frame("call", "/tmp/torchinductor_me/ab/cab5kzq3tjr2wxyzabcdefghijklmnopqrstuvwxyz234567abcd.py", 80)
FROZEN = Frame("_run_code", "<frozen runpy>", 88)
GPUSCOPE = Frame("find_leaks", gpuscope.__file__, 3)
OWN = Frame("step", "/me/train.py", 41)
MAIN = Frame("<module>", "/me/train.py", 80)
CELL = Frame("<module>", "/tmp/ipykernel_7/123.py", 2)
UNWIND = Frame("torch::unwind::unwind()", "??", 0)
ALLOCATOR = Frame("c10::cuda::malloc(int)", "/pytorch/c10/cuda/CUDACachingAllocator.cpp", 900)
CUPY = Frame("zeros", f"{PACKAGES}/cupy/_creation/basic.py", 3)
SINGLE = Frame("pad", "/usr/lib/python3/dist-packages/single.py", 5)
CPP = Frame("c10::malloc", "Allocator.cpp", 88)
LIBRARIES = [DEBIAN, TORCH, STANDARD, GPUSCOPE, FROZEN]


@pytest.mark.parametrize(
    "inner",
    [
        *(TORCH, STANDARD, THREADING, OTHER_MACHINES, RED_HAT, WINDOWS, WINDOWS_TORCH, COMPILED),
        *(GPUSCOPE, FROZEN, UNWIND, ALLOCATOR),
    ],
)
def test_the_innermost_line_of_the_programs_own_code_is_the_line(inner):
    assert program_line((inner, OWN, CELL)) == OWN


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ((), None),
        ((OWN, MAIN), OWN),
        ((TORCH, LLAMA, OWN, MAIN), OWN),
        ((STANDARD, FROZEN, MAIN), MAIN),
        ((TORCH, FROZEN), TORCH),
    ],
)
def test_the_line_is_the_innermost_of_the_program(frames, line):
    assert program_line(frames) == line


@pytest.mark.parametrize(
    "file",
    [
        "<stdin>",
        "<string>",
        "<ipython-input-3>",
        "<python-input-0>",
        "/tmp/ipykernel_7/123.py",
        "In [3]",
        "<timed exec>",
        "/home/me/bin/train",
    ],
)
def test_what_was_typed_is_the_programs_own(file):
    own = Frame("<module>", file, 1)
    assert program_line((TORCH, own)) == own


@pytest.mark.parametrize(
    "file",
    [
        *("??", "", "a.cpp", "a.cc", "a.cu", "a.h", "./nptl/pthread_create.c", "/usr/include/c++/13/functional"),
        *("/lib/libc.so.6", "/x/libtorch_cuda.so", "/usr/bin/python3", "/usr/bin/python3.12"),
    ],
)
def test_cpp_is_never_the_programs_own(file):
    assert not is_program(file)


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        *((name, False) for name in ("torch/serialization.py", "threading.py", "concurrent/futures/thread.py")),
        *(
            (name, True)
            for name in ("train.py", "test.py", "models/torch_model.py", "faults/host.py", "/home/me/torch/train.py")
        ),
    ],
)
def test_a_file_without_its_folder_is_told_by_its_module(file, is_own):
    assert is_program(file) == is_own


@pytest.mark.parametrize(
    "file", [r"C:\me\train.py", r"D:\python\train.py", "/me/ab/cab.py", "/me/torchinductor_runs/train.py"]
)
def test_what_only_looks_installed_or_compiled_is_the_programs_own(file):
    assert is_program(file)


def test_where_all_is_installed_the_innermost_line_is_the_line():
    assert program_line((GPUSCOPE, TORCH, STANDARD)) == TORCH


def test_where_all_is_installed_python_comes_before_cpp():
    assert program_line((UNWIND, ALLOCATOR, TORCH, STANDARD)) == TORCH


def test_a_stack_of_cpp_alone_has_its_innermost_line():
    assert program_line((UNWIND, ALLOCATOR)) == UNWIND


@pytest.mark.parametrize("stack", [(), (GPUSCOPE,)])
def test_without_a_line_of_another_there_is_no_line(stack):
    assert program_line(stack) is None


def test_the_own_line_is_among_libraries():
    assert line_text(program_frame([*LIBRARIES, OWN, Frame("main", "x.py", 1)])) == "train.py:41 step"


def test_a_stack_of_libraries_alone_has_no_own_line():
    assert program_frame([*LIBRARIES, UNWIND]) is None


def test_no_stack_has_no_own_line(monkeypatch):
    monkeypatch.setattr(_core, "stack_frames", lambda stack: [("f", "a.py", stack)])
    assert (program_line_text(0), program_line_text(4)) == ("", "a.py:4 f")


def test_lines_are_written_short():
    assert line_text(OWN) == "train.py:41 step"
    assert line_text(Frame("step", r"C:\me\train.py", 41)) == "train.py:41 step"
    assert line_text(None) == NO_STACK


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ((), NO_STACK),
        ((TORCH, OWN), YOUR_CODE),
        ((TORCH, LLAMA, TORCH, OWN), "transformers"),
        ((CUPY, THREADING, OWN), YOUR_CODE),
        ((SINGLE,), "single"),
        ((TORCH,), "torch"),
        ((COMPILED, TORCH, LLAMA, OWN), "transformers"),
        ((CPP, TORCH, LLAMA), "transformers"),
        ((CPP,), CPP_CODE),
    ],
)
def test_the_library_is_the_innermost_that_asked_a_framework(frames, name):
    assert library_of(frames) == name
