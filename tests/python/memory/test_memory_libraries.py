# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import pytest

from gpuscope.memory.call_stacks import CPP_CODE, NO_STACK, YOUR_CODE, library
from gpuscope.memory.events import Frame

PACKAGES = "/opt/env/lib/python3.11/site-packages"
TORCH = Frame("Module._call_impl", f"{PACKAGES}/torch/nn/modules/module.py", 1700)
CUPY = Frame("zeros", f"{PACKAGES}/cupy/_creation/basic.py", 3)
LLAMA = Frame("forward", f"{PACKAGES}/transformers/models/llama.py", 50)
SINGLE = Frame("pad", "/usr/lib/python3/dist-packages/single.py", 5)
STANDARD = Frame("run", os.path.join(os.path.dirname(os.__file__), "threading.py"), 9)
CPP = Frame("c10::malloc", "Allocator.cpp", 88)
OURS = Frame("step", "/home/me/train.py", 12)


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ((), NO_STACK),
        ((TORCH, OURS), YOUR_CODE),
        ((TORCH, LLAMA, TORCH, OURS), "transformers"),
        ((CUPY, STANDARD, OURS), YOUR_CODE),
        ((SINGLE,), "single"),
        ((TORCH,), "torch"),
        ((CPP, TORCH, LLAMA), "transformers"),
        ((CPP,), CPP_CODE),
    ],
)
def test_the_library_is_the_innermost_that_asked_a_framework(frames, name):
    assert library(frames) == name
