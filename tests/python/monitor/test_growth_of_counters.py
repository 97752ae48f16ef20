# SPDX-License-Identifier: Apache-2.0
"""What counters grew by between two moments: against counters of which everything is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.machines import gpu, sample
from fakes.monitors import BEGIN_S, series, taken
from gpuscope.errors import InvalidArgument
from gpuscope.monitor import growth

TICK_S = 0.0995
NS = 1_000_000_000
LINK = {"pcie_generation_max": 5, "pcie_width_max": 16}  # 63 GB/s: 32 bits wrap in 68 ms


def at(seconds: float) -> int:
    return round((BEGIN_S + seconds) * 1e9)


def in_ticks(counter):
    """A counter as NVML has it: it goes on at ticks."""
    return lambda seconds: counter(math.floor(seconds / TICK_S) * TICK_S)


def test_energy_between_two_moments_is_bounded_by_the_readings_around_them():
    grown = growth(series(20, energy_total_j=in_ticks(lambda s: 1e6 + 400 * s)), at(5.0), at(15.0)).energy_j
    assert grown.low <= 4000 <= grown.high
    assert grown.value == pytest.approx(4000, rel=0.02)
    assert grown.seconds == pytest.approx(10)
    assert grown.high - grown.low < 2 * 400 * 1.2  # a reading a second, and a tick


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 8), st.floats(0.5, 8), st.floats(1, 1000), st.floats(1, 1000), st.floats(0.1, 1))
def test_the_truth_lies_within_the_bounds_whatever_the_power_did(begin, seconds, first, second, every_s):
    def energy(s):  # one power, then another
        return first * min(s, 6) + second * max(0, s - 6)

    samples = series(math.ceil(20 / every_s), every_s=every_s, energy_total_j=in_ticks(energy))
    found = growth(samples, at(begin), at(begin + seconds))
    true = energy(begin + seconds) - energy(begin)
    slack = 1e-6 + 2e-6 * (first + second)  # moments are ns
    assert found.energy_j.low - slack <= true <= found.energy_j.high + slack


def test_without_moments_growth_is_between_the_first_reading_and_the_last():
    found = growth(series(11, energy_total_j=lambda s: 100 * s))
    assert (found.energy_j.value, found.energy_j.seconds) == (pytest.approx(1000), pytest.approx(10))
    assert found.energy_j.high is None  # nothing was read after it
    assert found.mean_power_w == pytest.approx(100)


def test_readings_that_are_repeated_count_once():
    rows = [sample(gpu(energy_total_j=100.0 * (n // 10)), BEGIN_S + n / 10) for n in range(41)]
    for n, row in enumerate(rows):
        row["slow_time_ns"] = at(n // 10)
    grown = growth(taken(*rows)).energy_j
    assert (grown.value, grown.seconds) == (pytest.approx(400), pytest.approx(4))


def test_what_takes_long_to_read_is_of_the_moment_at_which_it_was_read():
    """Read each five seconds, told with each sample: 100 W, and heat holds clocks back half of the time."""
    rows = [
        sample(
            gpu(
                energy_total_j=500.0 * (n // 5),
                throttled_s={"sw_power_cap": 1.0 * n, "hw_thermal_slowdown": 2.5 * (n // 5)},
            ),
            BEGIN_S + n,
            rare_time_ns=at(5 * (n // 5)),
        )
        for n in range(41)
    ]
    found = growth(taken(*rows), at(7), at(22))
    assert found.energy_j.low <= 1500 <= found.energy_j.high
    assert found.energy_j.value == pytest.approx(1500)
    assert found.energy_j.high - found.energy_j.low <= 1000  # as far as readings lie apart, at both ends
    heat = found.throttled_s["hw_thermal_slowdown"]
    assert heat.low <= 7.5 <= heat.high
    assert found.throttled_s["sw_power_cap"].low >= 14


def test_throttled_seconds_are_exact_and_never_more_than_went_by():
    found = growth(series(30, throttled_s=in_ticks(lambda s: 0.25 * s)), at(4), at(24))
    assert found.throttled_s["sw_power_cap"].value == pytest.approx(5, abs=0.1)
    always = growth(series(30, throttled_s=lambda s: s), at(4), at(24)).throttled_s["sw_power_cap"]
    assert always.high <= 20
    assert always.value == pytest.approx(20, abs=0.11)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 62e9), st.floats(0.001, 0.06))
def test_bytes_are_counted_across_any_number_of_wraps(start, rate, every_s):
    wrapped = lambda s: int(start + rate * s) % 2**32  # noqa: E731
    samples = series(40, every_s=every_s, pcie_sent_bytes=wrapped, pcie_received_bytes=0, **LINK)
    grown = growth(samples).pcie_sent_bytes
    assert grown.value == pytest.approx(rate * 39 * every_s, abs=40 + 1e-6 * rate)


@pytest.mark.parametrize("every_s", [0.07, 0.1, 1.0])
def test_bytes_that_may_have_wrapped_unseen_are_not_known(every_s):
    found = growth(series(5, every_s=every_s, pcie_sent_bytes=7, pcie_received_bytes=7, **LINK))
    assert (found.pcie_sent_bytes, found.pcie_received_bytes) == (None, None)
    assert "may wrap each 68 ms on this link; readings are up to" in found.why["pcie_sent_bytes"]


def test_one_round_that_came_late_is_enough_for_bytes_not_to_be_known():
    samples = series(10, every_s=0.05, pcie_sent_bytes=7, pcie_received_bytes=7, **LINK)
    assert growth(samples).pcie_sent_bytes is not None
    assert growth(samples[:4] + samples[6:]).pcie_sent_bytes is None


def test_bytes_are_counted_in_a_log_of_two_processes_that_read_at_once():
    rate = 10e9
    rows = []
    for number in range(100):
        for begin_s, late_s in ((0.0, 0.002), (0.001, 0.0001)):  # the first one reads after the second
            at_s = 0.01 * number + begin_s
            facts = gpu(pcie_sent_bytes=int(rate * (at_s + late_s)) % 2**32, pcie_received_bytes=0, **LINK)
            rows.append(sample(facts, BEGIN_S + at_s, took_ns=2_500_000))
    assert growth(taken(*rows)).pcie_sent_bytes.value == pytest.approx(rate * 0.99, rel=0.01)


def test_more_bytes_than_the_link_carries_are_a_counter_that_began_anew():
    sent = lambda s: int(1e9 * s) if s < 0.5 else int(1e9 * (s - 0.5))  # noqa: E731
    found = growth(series(100, every_s=0.01, pcie_sent_bytes=sent, pcie_received_bytes=0, **LINK))
    assert found.pcie_sent_bytes is None
    assert "was reset" in found.why["pcie_sent_bytes"]


def test_a_slow_link_may_be_read_seldom():
    link = {"pcie_generation_max": 1, "pcie_width_max": 1}  # 0.25 GB/s: 17 s
    samples = series(5, every_s=2.0, pcie_sent_bytes=lambda s: int(1e8 * s), pcie_received_bytes=0, **link)
    assert growth(samples).pcie_sent_bytes.value == pytest.approx(8e8)


def test_bytes_that_were_not_read_have_the_reason_of_that():
    samples = series(3, why={"pcie_sent_bytes": "Not Supported"})
    assert growth(samples).why["pcie_sent_bytes"] == "Not Supported"


def test_a_counter_that_began_anew_is_not_known_and_no_negative_number():
    samples = series(6, energy_total_j=lambda s: 500.0 * s if s < 3 else 1.0)
    found = growth(samples)
    assert found.energy_j is None
    assert "was reset: the driver was reloaded" in found.why["energy_j"]


def test_a_counter_of_energy_that_stands_still_is_no_zero():
    found = growth(series(6, energy_total_j=5.0))
    assert found.energy_j is None
    assert "stands still" in found.why["energy_j"]


def test_a_counter_that_is_absent_has_its_reason():
    found = growth(series(6, why={"energy_total_j": "Not Supported"}))
    assert (found.energy_j, found.why["energy_j"]) == (None, "Not Supported")


def test_a_moment_before_the_first_reading_is_not_known():
    found = growth(series(6, energy_total_j=lambda s: s), at(-1), at(3))
    assert "no reading lies before its beginning" in found.why["energy_j"]


def test_a_clock_that_goes_backwards_is_told():
    counters = {"energy_total_j": lambda s: s, "pcie_sent_bytes": 7, "pcie_received_bytes": 7}
    samples = series(6, every_s=0.01, **counters, **LINK)
    samples[2], samples[3] = samples[3], samples[2]
    why = growth(samples).why
    assert "clock goes backwards" in why["energy_j"]
    assert "clock goes backwards" in why["pcie_sent_bytes"]


def of_two_processes():
    """What a log of two monitors on one GPU has, each of which reads counters once a second for itself."""
    rows = []
    for begin_s in (0.0, 0.35):
        for number in range(40):
            at = begin_s + number / 4
            read = begin_s + number // 4
            host = {"machine_cpu_s": 2.0 * read, "process_major_faults": int(1000 * begin_s) + number, "why": {}}
            moments = {"slow_time_ns": round((BEGIN_S + read) * 1e9), "rare_time_ns": round((BEGIN_S + read) * 1e9)}
            facts = gpu(energy_total_j=100.0 * read, throttled_s={"sw_power_cap": 0.5 * read})
            made = sample(facts, BEGIN_S + at, host=host, process_cpu_s=10 * begin_s + at, **moments)
            rows.append(made | {"host_time_ns": round((BEGIN_S + read) * 1e9)})
    return taken(*sorted(rows, key=lambda each: each["time_ns"]))


def test_counters_of_the_gpu_and_the_machine_grow_in_a_log_of_several_processes():
    found = growth(of_two_processes())
    assert found.energy_j.per_second == pytest.approx(100)
    assert found.throttled_s["sw_power_cap"].per_second == pytest.approx(0.5)
    assert found.host["machine_cpu_s"].per_second == pytest.approx(2)


def test_counters_of_a_process_are_not_known_in_a_log_of_several():
    found = growth(of_two_processes())
    assert "process_cpu_s" not in found.host
    assert "the samples are of several processes" in found.why["process_cpu_s"]
    assert "the samples are of several processes" in found.why["process_major_faults"]


def test_what_the_host_counts_grows_too():
    rows = [
        sample(None, BEGIN_S + n, host={"io_pressure_s": 0.5 * n, "machine_cpu_s": 2.0 * n, "why": {}})
        for n in range(5)
    ]
    found = growth(taken(*rows))
    assert found.host["io_pressure_s"].per_second == pytest.approx(0.5)
    assert found.host["machine_cpu_s"].value == pytest.approx(8)
    assert found.why["cpu_throttled_s"]


@pytest.mark.parametrize("count", [0, 1])
def test_one_sample_has_no_growth(count):
    with pytest.raises(InvalidArgument, match="accepted are two or more of one GPU"):
        growth(series(count))


def test_samples_of_two_gpus_are_refused():
    with pytest.raises(InvalidArgument, match="of one GPU"):
        growth(series(2) + series(2, index=1))


def test_an_end_before_the_beginning_is_refused():
    with pytest.raises(InvalidArgument, match="accepted are moments after begin_ns"):
        growth(series(5), at(3), at(2))
