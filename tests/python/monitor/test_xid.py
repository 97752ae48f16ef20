# SPDX-License-Identifier: Apache-2.0
"""Errors of GPUs that the driver tells of: in words, and those that the kernel's log has."""

from __future__ import annotations

import pytest

from fakes.machines import gpu, sample
from fakes.monitors import taken
from gpuscope.monitor import KernelXids, XidErrors, kernel_xids
from gpuscope.monitor.schema import xids_of_text
from gpuscope.monitor.xid import describe

LOG = """\
6,1234,5678,-;NVRM: loading NVIDIA UNIX Open Kernel Module
4,1240,99,-;NVRM: Xid (PCI:0000:0a:00): 31, pid=42, name=python, Ch 00000008, MMU Fault
4,1241,100,-;NVRM: Xid (PCI:0000:0a:00): 31, pid=43, name=python
 SUBSYSTEM=pci
4,1242,101,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.
4,1243,102,-;NVRM: Xid (nonsense
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "kmsg"
    path.write_text(LOG)
    return kernel_xids(str(path))


def test_the_kernels_log_is_read_by_gpu_however_addresses_are_written(log):
    assert log.of("00000000:0A:00.0") == {31: 2}
    assert log.of("0000:1b:00.0") == {79: 1}
    assert log.of("00000000:01:00.0") == {}
    assert log.of("") == {}


@pytest.mark.parametrize("instance", ["GPU-I:05", "GPU-I:05 GPU-CI:00"])
def test_an_error_of_an_instance_is_one_of_its_gpu(instance, tmp_path):
    path = tmp_path / "kmsg"
    path.write_text(f"4,1240,99,-;NVRM: Xid (PCI:0000:0a:00 {instance}): 94, pid=42, name=python, Contained\n")
    assert kernel_xids(str(path)).of("00000000:0A:00.0") == {94: 1}


def test_a_log_that_may_not_be_read_says_why(tmp_path):
    found = kernel_xids(str(tmp_path / "none"))
    assert found == KernelXids((), "the kernel's log cannot be read: No such file or directory")


def test_an_error_is_found_wherever_it_lies_in_a_file(tmp_path):
    path = tmp_path / "messages"
    line = "host kernel: NVRM: Xid (PCI:0000:0a:00): 31, pid=42\n"
    path.write_text(line * 5000 + line.rstrip())
    assert kernel_xids(str(path)).of("00000000:0A:00.0") == {31: 5001}


def test_a_log_without_end_ends():
    assert kernel_xids("/dev/zero").found == ()


def test_numbers_are_said_in_words():
    assert describe(79) == "Xid 79: the GPU has fallen off the bus (the GPU wants a reset, or the machine a restart)"
    assert describe(31) == "Xid 31: access to memory that is not there (of a program)"
    assert "NVIDIA's list" in describe(9999)
    assert "2 times, last at" in str(XidErrors(31, 2, 10**18))


def test_an_error_that_wants_a_reset_is_a_warning_and_that_of_a_program_is_none():
    (found,) = taken(sample(gpu(xid_errors=[(31, 2, 10**18), (79, 1, 10**18)])))
    assert [warning for warning in found.gpu.warnings if "Xid" in warning] == [str(XidErrors(79, 1, 10**18))]


@pytest.mark.parametrize("text", ["", "79", "79x1", "x@", "axb@c"])
def test_other_texts_are_no_errors(text):
    with pytest.raises(ValueError, match=r"invalid literal|could not convert"):
        xids_of_text(text)
