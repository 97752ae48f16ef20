# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import pytest

from gpuscope.memory.events import Frame
from gpuscope.memory.lines import NO_STACK, YOUR_CODE, library, line_text, program_line

PACKAGES = "/opt/env/lib/python3.11/site-packages"
TORCH = Frame("Module._call_impl", f"{PACKAGES}/torch/nn/modules/module.py", 1700)
CUPY = Frame("zeros", f"{PACKAGES}/cupy/_creation/basic.py", 3)
LLAMA = Frame("forward", f"{PACKAGES}/transformers/models/llama.py", 50)
SINGLE = Frame("pad", "/usr/lib/python3/dist-packages/single.py", 5)
STANDARD = Frame("run", os.path.join(os.path.dirname(os.__file__), "threading.py"), 9)
FROZEN = Frame("_run_code", "<frozen runpy>", 88)
OURS = Frame("step", "/home/me/train.py", 12)
MAIN = Frame("<module>", "/home/me/train.py", 40)


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ((), None),
        ((OURS, MAIN), OURS),
        ((TORCH, LLAMA, OURS, MAIN), OURS),
        ((STANDARD, FROZEN, MAIN), MAIN),
        ((TORCH, FROZEN), TORCH),
    ],
)
def test_the_line_is_the_innermost_of_the_program(frames, line):
    assert program_line(frames) == line


@pytest.mark.parametrize(
    ("frames", "name"),
    [
        ((), NO_STACK),
        ((TORCH, OURS), YOUR_CODE),
        ((TORCH, LLAMA, TORCH, OURS), "transformers"),
        ((CUPY, STANDARD, OURS), YOUR_CODE),
        ((SINGLE,), "single"),
        ((TORCH,), "torch"),
    ],
)
def test_the_library_is_the_innermost_that_asked_a_framework(frames, name):
    assert library(frames) == name


def test_lines_are_written_short():
    assert line_text(OURS) == "train.py:12 step"
    assert line_text(None) == NO_STACK
