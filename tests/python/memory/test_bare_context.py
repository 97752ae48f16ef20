# SPDX-License-Identifier: Apache-2.0
"""A bare context is measured in another process, once."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from gpuscope.memory.usage import bare_context


@pytest.fixture
def child(monkeypatch):
    """What the child answers; its command lines and variables are kept."""
    answers = SimpleNamespace(stdout="518 92\n", returncode=0, calls=[])

    def run(command, **how):
        answers.calls.append((command, how["env"]))
        if answers.returncode is None:
            raise subprocess.TimeoutExpired(command, 1)
        return answers

    monkeypatch.setattr(bare_context.subprocess, "run", run)
    monkeypatch.setattr(bare_context, "_measured", {})
    return answers


def test_it_is_measured_once_for_each_device(child):
    assert [bare_context.bare_context_bytes(device) for device in (0, 1, 0)] == [518, 518, 518]
    assert [command[-3:] for command, _ in child.calls] == [["0", "", ""], ["1", "", ""]]


@pytest.mark.parametrize(
    ("stdout", "code"), [("", 0), ("0 0\n", 0), ("518\n", 0), ("518 x\n", 0), ("518 92\n", 1), ("", None)]
)
def test_a_child_that_cannot_tell_leaves_it_open_and_is_asked_again(child, stdout, code):
    child.stdout, child.returncode = stdout, code
    assert [bare_context.bare_context_bytes(0) for _ in range(2)] == [None, None]
    assert len(child.calls) == 2


def test_services_are_measured_once_for_each_set(child):
    sets = (("assert",), ("printf", "assert"), ("assert", "printf"), ("assert",))
    assert [bare_context.additions_bytes(0, "cupti.so", services) for services in sets] == [(0, 92)] * 4
    (bare, *others) = [command[-2:] for command, _ in child.calls]
    assert bare == ["", ""]
    assert [("__assertfail" in kernel, "vprintf" in kernel) for kernel, _ in others] == [(True, False), (True, True)]
    assert {cupti for _, cupti in others} == {"cupti.so"}


def test_what_cupti_adds_is_what_there_is_more(child, monkeypatch):
    monkeypatch.setattr(bare_context, "_measure", lambda device, services, cupti: (530 if cupti else 518, 0))
    assert bare_context.additions_bytes(0, "cupti.so", ()) == (12, 0)


def test_tools_do_not_come_along(child, monkeypatch):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/tool.so")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    bare_context.bare_context_bytes(0)
    ((_, variables),) = child.calls
    assert "CUDA_INJECTION64_PATH" not in variables
    assert variables["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_childs_program_is_valid():
    compile(bare_context._PROGRAM, "child", "exec")


def test_without_an_interpreter_nothing_is_started(child, monkeypatch):
    monkeypatch.setattr(bare_context.sys, "executable", "")
    assert bare_context.bare_context_bytes(0) is None
    assert not child.calls
