# SPDX-License-Identifier: Apache-2.0
"""Kernels shorter than a sample whose counters are known, from samples of what they add up to."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.recordings import make_trace
from gpuscope.counters.sampled import SampledCounters
from gpuscope.counters.short_kernels import solve_nonnegative

BUSY, BYTES, HITS = "sm__busy.avg.pct_of_peak_sustained_elapsed", "dram__bytes.sum", "lts__hit_rate.pct"
LENGTH = 100_000
RATES = {"copy": (20.0, 2e12), "gemm": (90.0, 3e11), "tiny": (1.0, 0.0)}


def sampled(kernels, samples=2000, noise=0.0, seed=0):
    """`kernels`: name, start, duration; each sample has what `RATES` say of those that ran in it."""
    random = np.random.default_rng(seed)
    names = list(dict.fromkeys(name for name, *_ in kernels))
    starts = np.arange(samples) * LENGTH
    values = np.zeros((samples, 3))
    for name, start, length in kernels:
        for sample in range(start // LENGTH, min((start + length - 1) // LENGTH + 1, samples)):
            inside = min(start + length, starts[sample] + LENGTH) - max(start, starts[sample])
            values[sample, 0] += RATES[name][0] * inside / LENGTH
            values[sample, 1] += RATES[name][1] * inside / 1e9
    values *= 1 + noise * random.standard_normal(values.shape)
    values[:, 2] = 50
    return SampledCounters(
        make_trace(
            {
                "track": {"device": [0]},
                "variant": {"name": names},
                "kernel": {
                    "start_ns": [start for _, start, _ in kernels],
                    "duration_ns": [length for *_, length in kernels],
                    "variant": [names.index(name) for name, *_ in kernels],
                },
                "counter": {
                    "name": [BUSY, BYTES, HITS],
                    "unit": ["percent", "byte", "percent"],
                    "description": [""] * 3,
                },
                "counter_sample": {"start_ns": starts.tolist(), "duration_ns": [LENGTH] * samples},
                "counter_value": {
                    "sample": np.repeat(np.arange(samples), 3).tolist(),
                    "counter": [0, 1, 2] * samples,
                    "value": values.ravel().tolist(),
                },
            },
            info={"session.mode": "full"},
        )
    )


def mixed(count=6000, seed=1, names=("copy", "gemm", "tiny")):
    """Kernels of 3 to 30 us in an order without a period."""
    random = np.random.default_rng(seed)
    at, kernels = 0, []
    for name in random.choice(names, count):
        length = int(random.integers(3_000, 30_000))
        kernels.append((str(name), at, length))
        at += length + int(random.integers(0, 10_000))
    return kernels


def test_kernels_shorter_than_a_sample_have_their_own_means():
    found = sampled(mixed()).short_kernels()
    by_name = {each.name: each for each in found.kernels}
    assert set(by_name) == set(RATES)
    for name, (busy, read) in RATES.items():
        assert by_name[name].values[0] == pytest.approx(busy, rel=0.01)
        assert by_name[name].values[1] == pytest.approx(read, rel=0.01, abs=1e9)
    assert max(found.residuals[:2]) < 1e-3


def test_noise_is_in_the_residual_and_in_the_errors():
    found = sampled(mixed(), noise=0.05).short_kernels()
    by_name = {each.name: each for each in found.kernels}
    assert found.residuals[0] == pytest.approx(0.05, rel=0.3)
    gemm = by_name["gemm"]
    assert abs(gemm.values[0] - 90) < 5 * gemm.errors[0]
    assert 0 < gemm.errors[0] < 2


def test_kernels_that_always_run_in_the_same_proportion_are_not_told_apart():
    kernels = [
        (name, LENGTH * turn + 50_000 * part, 50_000)
        for turn in range(1000)
        for part, name in enumerate(("copy", "gemm"))
    ]
    found = sampled(kernels, samples=1000).short_kernels()
    assert len(found.kernels) == 2
    for each in found.kernels:
        assert np.isnan(each.values[:2]).all()
        assert np.isinf(each.errors[:2]).all()


def test_rates_that_do_not_add_up_have_no_value():
    found = sampled(mixed()).short_kernels()
    assert np.isnan(found.residuals[2])
    assert all(np.isnan(each.values[2]) for each in found.kernels)


def test_kernels_of_few_launches_are_left_out():
    kernels = [*mixed(names=("copy", "gemm")), *(("tiny", 150_000_000 + 50_000 * at, 5_000) for at in range(49))]
    assert {each.name for each in sampled(kernels).short_kernels().kernels} == {"copy", "gemm"}


def test_kernels_that_run_at_once_add_up():
    random = np.random.default_rng(3)
    kernels = [
        (name, int(start), 20_000)
        for name in ("copy", "gemm")
        for start in np.sort(random.integers(0, 190_000_000, 3000))
    ]
    by_name = {each.name: each for each in sampled(kernels).short_kernels().kernels}
    assert by_name["gemm"].values[0] == pytest.approx(90, rel=0.01)
    assert by_name["copy"].values[0] == pytest.approx(20, rel=0.01)


def test_the_text_and_the_json_have_values_with_their_errors():
    found = sampled(mixed(), noise=0.05).short_kernels()
    assert "solved from all samples" in str(found)
    (busy,) = [line for line in str(found).splitlines() if line.startswith(BUSY)]
    assert " +- " in busy
    saved = json.loads(found.to_json())
    assert saved["metrics"] == [BUSY, BYTES, HITS]
    assert saved["kernels"][0]["values"][2] is None


def test_without_samples_there_is_nothing():
    found = sampled(mixed(200), samples=0)
    assert found.short_kernels().kernels == ()
    assert sampled(mixed(200)).short_kernels(device=7).kernels == ()
    assert "no kernel of GPU 7" in str(sampled(mixed(200)).short_kernels(device=7))


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 1000))
def test_the_solution_is_the_best_of_those_that_are_not_negative(size, seed):
    random = np.random.default_rng(seed)
    shares, values = random.random((40, size)), random.standard_normal(40)
    gram, product = shares.T @ shares, shares.T @ values
    solution = solve_nonnegative(gram, product)
    gradient = gram @ solution - product
    scale = np.abs(product).max()
    assert (solution >= 0).all()
    assert (gradient >= -1e-8 * scale).all()  # no entry gains by growing
    assert np.abs(gradient[solution > 0]).max(initial=0) <= 1e-8 * scale  # nor a free one by any change
