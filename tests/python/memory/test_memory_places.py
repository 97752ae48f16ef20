# SPDX-License-Identifier: Apache-2.0
"""The program's own line is found among the lines of libraries."""

from __future__ import annotations

import json

import gpuscope
from gpuscope import _core
from gpuscope.memory.events import Frame
from gpuscope.memory.places import own_place, place_of

LIBRARIES = [
    Frame("empty", "/usr/lib/python3/dist-packages/cupy/core.py", 7),
    Frame("forward", "/venv/lib/python3.12/site-packages/torch/nn/linear.py", 134),
    Frame("loads", json.__file__, 3),
    Frame("snapshot", gpuscope.__file__, 5),
    Frame("_call", "<frozen runpy>", 88),
]


def test_the_innermost_line_of_the_program_is_named():
    assert own_place([*LIBRARIES, Frame("step", "/home/me/train.py", 12), Frame("main", "x.py", 1)]) == (
        "train.py:12 step"
    )


def test_a_stack_of_libraries_alone_has_no_place():
    assert own_place(LIBRARIES) == ""


def test_no_stack_has_no_place(monkeypatch):
    monkeypatch.setattr(_core, "stack_frames", lambda stack: [("f", "a.py", stack)], raising=False)
    assert (place_of(0), place_of(4)) == ("", "a.py:4 f")
