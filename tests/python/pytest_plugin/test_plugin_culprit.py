# SPDX-License-Identifier: Apache-2.0
"""Which kernel is named for a slowdown."""

from __future__ import annotations

from gpuscope.pytest_plugin.gate import culprit


def kernels(**seconds):
    return [{"name": name, "count": 1.0, "seconds": value} for name, value in seconds.items()]


def test_kernel_that_grew_most_in_time_is_named_not_that_which_grew_most_in_proportion():
    sentence = culprit(kernels(small=1e-6, large=100e-6), kernels(small=2e-6, large=110e-6))
    assert sentence == "kernel large takes 110.0 us per call, 100.0 us before (+10.0%)"


def test_more_runs_of_a_kernel_are_said():
    now = [{"name": "copy", "count": 3.0, "seconds": 3e-6}]
    assert culprit(kernels(copy=1e-6), now) == (
        "kernel copy takes 3.000 us per call, 1.000 us before (+200.0%, 3 runs instead of 1)"
    )


def test_new_and_gone_kernels_are_said():
    assert culprit(kernels(fused=5e-6), kernels(gemm=4e-6, bias=2e-6)) == (
        "new kernel gemm takes 4.000 us per call; new kernel bias takes 2.000 us per call;"
        " kernel fused is gone (5.000 us per call)"
    )


def test_what_added_most_time_comes_first():
    sentence = culprit(kernels(gemm=10e-6), kernels(gemm=12e-6, bias=5e-6, relu=1e-6))
    assert [part.split(" takes")[0] for part in sentence.split("; ")] == [
        "new kernel bias",
        "kernel gemm",
        "new kernel relu",
    ]


def test_time_outside_of_kernels_is_said():
    assert culprit(kernels(gemm=10e-6), kernels(gemm=10e-6)) == (
        "no kernel grew: the time lies between the kernels or on the host"
    )


def test_kernels_that_are_not_known_are_said():
    assert "not known" in culprit([], kernels(gemm=10e-6))
