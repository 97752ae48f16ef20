# SPDX-License-Identifier: Apache-2.0
"""Each record goes to the call that launched it, and its time is right to the nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.gscope import make_store
from gpuscope.benchmarking.kernel_times import measure
from gpuscope.trace import Trace

T = 1_700_000_000_000_000_000
LAUNCH, COPY, SYNC = range(3)
CALLED = np.array([T + 1000, T + 2000, T + 3000])
FLUSH = "gpuscope_flush_write"


def window(launches, kernels, copies=(), info=None, names=("gemm", "add", FLUSH), grid=(1, 1, 1), result=0, flags=0):
    """A trace of launches (time, correlation[, call]), kernels (start, duration, correlation, name[, track, flags])."""
    api = [(*launch, LAUNCH)[:3] for launch in launches]
    kernels = [(*kernel, *(0, 0)[len(kernel) - 4 :]) for kernel in kernels]
    tables = {
        "thread": {"system_id": [1]},
        "track": {"stream": [7, 13]},
        "variant": {
            "name": list(names),
            "grid_x": list(grid)[: len(names)],
            **{column: [1] * len(names) for column in ("grid_y", "grid_z", "block_x", "block_y", "block_z")},
        },
        "call": {
            "name": ["cuLaunchKernel", "cuMemcpyAsync", "cuStreamSynchronize"],
            "kind": [1, 3, 5],
            "result": [result] * 3,
            "flags": [flags] * 3,
        },
        "api": {
            "start_ns": [T + row[0] for row in api],
            "duration_ns": [10] * len(api),
            "correlation": [row[1] for row in api],
            "call": [row[2] for row in api],
        },
        "kernel": {
            "start_ns": [T + row[0] for row in kernels],
            "duration_ns": [row[1] for row in kernels],
            "correlation": [row[2] for row in kernels],
            "variant": [names.index(row[3]) for row in kernels],
            "track": [row[4] for row in kernels],
            "flags": [row[5] for row in kernels],
        },
        "memcpy": {
            "start_ns": [T + row[0] for row in copies],
            "duration_ns": [row[1] for row in copies],
            "correlation": [row[2] for row in copies],
            "kind": [2] * len(copies),
            "source": [3] * len(copies),
            "destination": [2] * len(copies),
        },
    }
    return Trace(make_store(tables, info=info))


def ns(seconds):
    return list(np.rint(seconds * 1e9).astype(int))


def test_overlapping_streams_count_once_and_gaps_only_in_the_span():
    launches = [(1100, 1), (1110, 2), (1120, 3)]
    kernels = [(9000, 100, 1, "gemm"), (9050, 101, 2, "gemm", 1), (9500, 30, 3, "add")]
    times = measure(window(launches, kernels), CALLED)
    assert ns(times.busy) == [181, 0, 0]
    assert ns(times.span) == [530, 0, 0]


def test_a_kernel_inside_another_adds_nothing():
    kernels = [(9000, 1000, 1, "gemm"), (9100, 10, 2, "add", 1), (9200, 50, 3, "add", 1)]
    times = measure(window([(1100, 1), (1110, 2), (1120, 3)], kernels), CALLED)
    assert ns(times.busy) == [1000, 0, 0]


def test_calls_that_overlap_on_the_gpu_each_have_their_own_time():
    kernels = [(9000, 1000, 1, "gemm"), (9100, 300, 2, "gemm", 1), (9200, 500, 3, "gemm")]
    times = measure(window([(1100, 1), (2100, 2), (3100, 3)], kernels), CALLED)
    assert ns(times.busy) == [1000, 300, 500]


def test_work_belongs_to_the_call_that_launched_it_however_late_it_ran():
    times = measure(window([(1100, 1), (2100, 2)], [(10_000, 7, 2, "gemm"), (20_000, 5, 1, "gemm")]), CALLED)
    assert ns(times.busy) == [5, 7, 0]


def test_the_samplers_own_kernels_belong_to_no_call():
    launches = [(1100, 1), (1900, 2), (2100, 3)]
    times = measure(window(launches, [(9000, 10, 1, "gemm"), (9010, 99, 2, FLUSH), (9200, 20, 3, "gemm")]), CALLED)
    assert ns(times.busy) == [10, 20, 0]
    assert list(times.launches) == [1, 1, 0]


def test_what_came_before_the_first_call_belongs_to_none():
    times = measure(window([(500, 1), (1100, 2)], [(900, 10, 1, "gemm"), (9000, 20, 2, "gemm")]), CALLED)
    assert ns(times.busy) == [20, 0, 0]
    assert times.valid.all()


def test_copies_count_as_work():
    times = measure(window([(1100, 1), (1200, 2, COPY)], [(9000, 10, 1, "gemm")], [(9010, 40, 2)]), CALLED)
    assert ns(times.busy)[0] == 50
    assert list(times.records) == [2, 0, 0]


def test_a_launch_without_its_record_makes_the_call_invalid():
    launches = [(1100, 1), (2100, 2), (2200, 3), (3100, 4)]
    times = measure(window(launches, [(9000, 10, 1, "gemm"), (9100, 10, 2, "gemm"), (9200, 10, 4, "gemm")]), CALLED)
    assert list(times.valid) == [True, False, True]


@pytest.mark.parametrize("flag", [1 << 0, 1 << 1, 1 << 2], ids=["no times", "backward", "still running"])
def test_a_record_without_true_times_makes_the_call_invalid(flag):
    kernels = [(9000, 10, 1, "gemm", 0), (9100, 0, 2, "gemm", 0, flag)]
    assert list(measure(window([(1100, 1), (2100, 2)], kernels), CALLED).valid) == [True, False, True]


def test_a_copy_that_never_brings_a_record_is_no_loss():
    launches = [(1100, 1, COPY), (2100, 2, COPY), (3100, 3, COPY)]
    assert measure(window(launches, []), CALLED).valid.all()


def test_a_copy_that_lacks_the_record_which_others_have_is_a_loss():
    launches = [(1100, 1, COPY), (2100, 2, COPY), (3100, 3, COPY)]
    assert list(measure(window(launches, [], [(9000, 5, 1), (9200, 5, 3)]), CALLED).valid) == [True, False, True]


def test_a_record_of_an_unknown_launch_goes_to_the_call_around_it():
    launches = [(1100, 1), (1300, 3), (2100, 4), (3100, 5)]
    kernels = [(9000 + 100 * number, 10, number, "gemm") for number in range(1, 6)]
    times = measure(window(launches, kernels), CALLED)
    assert list(times.records) == [3, 1, 1]
    assert times.valid.all()


def test_a_record_of_an_unknown_launch_between_two_calls_makes_both_invalid():
    launches = [(1100, 1), (2100, 3), (3100, 4)]
    kernels = [(9000 + 100 * number, 10, number, "gemm") for number in range(1, 5)]
    assert list(measure(window(launches, kernels), CALLED).valid) == [False, False, True]


def test_fewer_records_than_others_are_a_loss_when_cupti_says_that_it_dropped_some():
    launches = [(1100, 1), (2100, 2), (3100, 3)]
    kernels = [(9000, 10, 1, "gemm"), (9010, 10, 1, "add"), (9100, 10, 2, "gemm"), (9200, 10, 3, "gemm")]
    assert measure(window(launches, kernels), CALLED).valid.all()
    dropped = measure(window(launches, kernels, info={"audit.dropped": "2"}), CALLED)
    assert list(dropped.valid) == [True, False, False]


@pytest.mark.parametrize("fault", [{"result": 2}, {"flags": 1 << 7}], ids=["failed", "captured"])
def test_a_launch_that_put_nothing_on_the_gpu_does_not_count(fault):
    times = measure(window([(1100, 1)], [], **fault), CALLED)
    assert list(times.launches) == [0, 0, 0]
    assert times.valid.all()


def test_waiting_is_no_launch():
    assert measure(window([(1100, 1, SYNC)], []), CALLED).launches.sum() == 0


def test_the_signature_is_of_what_ran_and_not_of_its_order():
    launches = [(1100, 1), (1200, 2), (2100, 3), (2200, 4), (3100, 5), (3200, 6)]
    order = ["gemm", "add", "add", "gemm", "gemm", "gemm"]
    kernels = [(9000 + 100 * number, 10, number, name) for number, name in enumerate(order, 1)]
    signature = measure(window(launches, kernels), CALLED).signature
    assert signature[0] == signature[1]
    assert signature[0] != signature[2]


def test_another_launch_configuration_is_other_work():
    kernels = [(9000, 10, 1, "gemm")]
    small, large = (measure(window([(1100, 1)], kernels, grid=grid), CALLED) for grid in ((1, 1, 1), (2, 1, 1)))
    assert small.signature[0] != large.signature[0]


def test_work_beside_the_stream_of_the_sampler_is_elsewhere():
    launches = [(900, 1), (1100, 2), (2100, 3)]
    times = measure(window(launches, [(950, 5, 1, FLUSH), (9000, 10, 2, "gemm"), (9000, 10, 3, "gemm", 1)]), CALLED)
    assert list(times.elsewhere) == [False, True, False]


def test_shares_are_per_call_and_the_longest_comes_first():
    launches = [(1100, 1), (1200, 2), (2100, 3), (2200, 4)]
    kernels = [(9000, 10, 1, "add"), (9100, 30, 2, "gemm"), (9200, 10, 3, "add"), (9300, 50, 4, "gemm")]
    gemm, add = measure(window(launches, kernels), CALLED).shares(np.array([True, True, False]))
    assert (gemm.name, gemm.count, round(gemm.seconds * 1e9)) == ("gemm", 1.0, 40)
    assert (add.name, add.count, round(add.seconds * 1e9)) == ("add", 1.0, 10)


def test_a_window_in_which_nothing_ran_is_empty():
    times = measure(window([], []), CALLED)
    assert ns(times.busy) == [0, 0, 0]
    assert times.shares(np.ones(3, bool)) == ()
