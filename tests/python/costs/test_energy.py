# SPDX-License-Identifier: Apache-2.0
"""The energy of regions and steps of a GPU whose power is known, and shares of time with clocks held back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fakes.powered import IDLE_W, MS, START, THROTTLED, PoweredGpu, S
from fakes.recordings import make_trace
from gpuscope.costs.energy import Energy, energy
from gpuscope.recording import Recording

SW_POWER_CAP = "sw_power_cap"


def regions_of_a_second(seed=1, **options):
    gpu = PoweredGpu(seed, **options)
    for _ in range(2):
        for name, watts, count in (("big", 620, 100), ("small", 300, 200)):
            gpu.idle(int(gpu.random.integers(200, 600)) * MS)
            for _ in range(count):
                gpu.run(name, 1000 // count * MS, watts, name)
    gpu.idle(300 * MS)
    return gpu


def short_regions(seed=1, **options):
    """200 turns of 5 ms among other work and idle time."""
    gpu = PoweredGpu(seed, **options)
    for _ in range(200):
        gpu.run("gemm", 5 * MS, 600, "train/forward")
        gpu.run("norm", int(gpu.random.integers(2, 20)) * MS, 300, "train/backward")
        gpu.idle(int(gpu.random.integers(1, 20)) * MS)
    return gpu


def of(gpu, **tables):
    return energy(gpu.trace(**tables))[0]


def counters(gpu, every=100 * MS, **columns):
    """Throttle counters that are read at an interval; a column is a share of the time."""
    times = np.arange(0, gpu.now + every, every)
    rows = {name: (share * times).astype(np.int64).tolist() for name, share in columns.items()}
    readings = gpu.readings()
    more = {name: [-1] * len(times) for name in readings} | {"start_ns": (START + times).tolist(), **rows}
    return {"device_counter": {name: [*readings[name], *more[name]] for name in readings}}


def test_regions_of_a_second_are_known_within_5_percent():
    off = []
    for seed in range(8):
        gpu = regions_of_a_second(seed)
        found = of(gpu)
        assert found.total.joules == pytest.approx(gpu.joules(), rel=0.01)
        off += [found[name].energy.joules / gpu.joules(name) - 1 for name in ("big", "small")]
    assert np.mean(np.square(off)) ** 0.5 < 0.05  # one in 20 is off by up to 10 %


@pytest.mark.parametrize("seed", range(5))
def test_regions_that_always_take_turns_are_known_as_well_as_their_interval_says(seed):
    """Each second has the same mixture of work, so only the classes of the kernels separate the regions."""
    gpu = short_regions(seed)
    found = of(gpu)
    for name in ("train", "train/forward", "train/backward"):
        assert found[name].energy.low <= gpu.joules(name) <= found[name].energy.high
    assert found["forward"].count == 200
    assert found["forward"].seconds == pytest.approx(1.0)


def test_a_region_needs_a_second_in_all():
    gpu = regions_of_a_second()
    gpu.run("gemm", 200 * MS, 600, "once")
    found = of(gpu)
    assert found["once"].energy is None
    assert found["once"].power_w is None
    assert found["once"].why == "needs 1 s of GPU time in all; it ran 200 ms"
    assert found["big"].why == ""
    assert "-: a region needs 1 s of GPU time in all" in str(found)


def bursts(seed=1, **options):
    """Turns of 5 ms of kernels that draw more in turns than where they run on and on, as a limit of power has it."""
    gpu = PoweredGpu(seed, **options)
    gpu.idle(700 * MS)
    for _ in range(30):
        gpu.run("pause", 50 * MS, 126, "waiting")
    for name, watts in (("copy", 376), ("gemm", 695)):
        for region, count in (("", 40), (name, 100), ("", 30)):
            for _ in range(count):
                gpu.run(name, 10 * MS, watts, region)
    for name, watts in (("copy", 397), ("gemm", 993)):
        for _ in range(200):
            gpu.run(name, 5 * MS, watts, f"{name} in turns")
            gpu.run("pause", int(gpu.random.integers(2, 20)) * MS, 126)
    gpu.idle(400 * MS)
    return gpu


BEHIND = {"lag_ns": 100 * MS}
UNEVEN = {"uneven_ns": 8 * MS}
OF_EARLIER_VERSIONS = {"read_ns": 0}
OF_BURSTS = {"copy": 0.05, "gemm": 0.05, "copy in turns": 0.1, "gemm in turns": 0.1}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, BEHIND, UNEVEN, OF_EARLIER_VERSIONS])
def test_a_kernel_that_draws_more_in_turns_is_known_in_both_regions(seed, options):
    gpu = bursts(seed, **options)
    found = of(gpu)
    for name, within in OF_BURSTS.items():
        assert found[name].energy.joules == pytest.approx(gpu.joules(name), rel=within), name


@pytest.mark.parametrize("options", [{}, BEHIND, UNEVEN, OF_EARLIER_VERSIONS])
def test_intervals_hold_the_truth_whatever_the_counter_does(options):
    inside = []
    for seed in range(6):
        gpu = bursts(seed, **options)
        found = of(gpu)
        pairs = [(found[name].energy, gpu.joules(name)) for name in OF_BURSTS] + [(found.total, gpu.joules())]
        inside += [each.low <= truth <= each.high for each, truth in pairs]
    assert np.mean(inside) > 0.85


def test_kernels_without_a_power_of_their_own_have_that_of_their_class():
    gpu = PoweredGpu()
    for turn in range(600):
        gpu.run(f"gemm_{turn}", 3 * MS, 600, "products")
        gpu.run(f"norm_{turn}", 3 * MS, 300, "norms")
    found = of(gpu)
    assert found["products"].power_w > 1.3 * found["norms"].power_w


def test_intervals_hold_the_truth_as_often_as_they_say():
    inside = []
    for seed in range(12):
        for gpu in (short_regions(seed), regions_of_a_second(seed)):
            found = of(gpu)
            pairs = [(found[name].energy, gpu.joules(name)) for name in {row.name for row in found.regions}]
            inside += [each.low <= truth <= each.high for each, truth in (*pairs, (found.total, gpu.joules()))]
    assert np.mean(inside) > 0.9


def test_regions_idle_time_and_the_rest_add_up_to_the_whole():
    gpu = short_regions()
    gpu.run("loose", 1200 * MS, 500)
    found = of(gpu)
    parts = found["train"].energy.joules + found.idle.joules + found.outside.joules
    assert parts == pytest.approx(found.total.joules, rel=1e-6)
    assert found.outside.low < 1.2 * 500 < found.outside.high


def test_idle_time_needs_a_second_in_all():
    gpu = PoweredGpu()
    gpu.run("gemm", 3 * S, 600, "forward")
    gpu.idle(300 * MS)
    found = of(gpu)
    assert (found.idle, found.idle_power_w, found.outside) == (None, None, None)
    assert found.why["idle"] == "needs 1 s of idle time in all; it lasted 300 ms"


def test_a_region_has_what_is_used_in_those_inside_it():
    found = of(short_regions())
    inner = found["train/forward"].energy.joules + found["train/backward"].energy.joules
    assert found["train"].energy.joules == pytest.approx(inner)


def test_idle_power_is_known_where_the_gpu_was_idle():
    gpu = regions_of_a_second()
    gpu.idle(3 * S)
    assert of(gpu).idle_power_w == pytest.approx(IDLE_W, rel=0.1)
    assert of(short_regions()).idle_power_w is None  # the same share of each second was idle
    busy = PoweredGpu()
    for _ in range(300):
        busy.run("gemm", 10 * MS, 600, "forward")
    found = of(busy)
    assert found.idle_power_w is None
    assert found["forward"].energy.joules == pytest.approx(busy.joules(), rel=0.01)


def test_work_that_runs_at_the_same_time_counts_once():
    gpu = short_regions()
    tables = gpu.tables()["kernel"]
    twice = {name: [*column, *column] for name, column in tables.items()}
    assert of(gpu, kernel=twice)["train"].energy.joules == pytest.approx(of(gpu)["train"].energy.joules, rel=0.05)


def test_a_region_whose_name_has_a_slash_is_found_by_that_name():
    gpu = PoweredGpu()
    for _ in range(400):
        gpu.run("gemm", 5 * MS, 600, "train")
    gpu.paths = [("loss/ce", 2**32 - 1)]
    assert of(gpu)["loss/ce"].count == 400
    gpu.paths = [("train/loss/ce", 2**32 - 1)]
    assert of(gpu)["loss/ce"].count == 400


def test_windows_of_a_recording_in_which_nothing_repeats_are_no_steps():
    gpu = PoweredGpu()
    gpu.run("gemm", 2 * S, 600)
    found = of(gpu)
    assert (found.steps, found.step, found.step_joules) == (0, None, ())
    assert found.why["steps"] == "nothing in the recording repeats"


def stepped(count, ms):
    """Steps of a kernel and some idle time, and their energies."""
    gpu = PoweredGpu()
    edges = [0]
    for _ in range(count):
        for _ in range(20):
            gpu.run("gemm", ms * MS // 20, 600, "forward")
        gpu.idle(ms * MS // 2)
        edges.append(gpu.now)
    words = [START, *np.diff(edges).tolist()]
    gpu.info["session.step_edges_ns"] = " ".join(map(str, words))
    return of(gpu), np.diff(gpu.until(np.array(edges, np.float64)))


def test_steps_have_their_mean_energy_with_idle_time():
    found, truth = stepped(30, 100)
    assert found.steps == 30
    assert found.step.joules == pytest.approx(truth.mean(), rel=0.02)
    assert found.step.low <= truth.mean() <= found.step.high
    assert found.step_joules == ()  # of 0.15 s


def test_steps_of_more_than_a_second_have_their_own_energy():
    found, truth = stepped(8, 1000)
    assert np.array(found.step_joules) == pytest.approx(truth, rel=0.1)
    assert sum(found.step_joules) == pytest.approx(8 * found.step.joules)


def test_steps_need_a_second_in_all():
    found, _ = stepped(4, 100)
    assert (found.step, found.step_joules) == (None, ())
    assert found.why["steps"] == "needs 1 s of steps in all; they lasted 600 ms"


def test_throttled_time_is_a_share_of_a_region_by_reason():
    gpu = regions_of_a_second()
    found = of(gpu, **counters(gpu, sw_power_cap_ns=0.25, sw_thermal_slowdown_ns=0.0))
    assert found.throttled[SW_POWER_CAP] == pytest.approx(0.25, abs=0.01)
    assert found["big"].throttled[SW_POWER_CAP] == pytest.approx(0.25, abs=0.01)
    assert found["big"].throttled["sw_thermal_slowdown"] == 0
    assert found["big"].throttled["hw_thermal_slowdown"] is None  # was not read, which is not 0
    assert "hw_thermal_slowdown" in found.why


def test_throttling_is_of_the_region_that_it_was_in():
    gpu = regions_of_a_second()
    tables = counters(gpu, sw_power_cap_ns=0.0)["device_counter"]
    kernels = gpu.tables()["kernel"]
    big = [START + gpu.now] + [
        at for at, region in zip(kernels["start_ns"], kernels["region"], strict=True) if region == 0
    ]
    first, last = min(big), max(big[1:101])
    tables["sw_power_cap_ns"] = [
        -1 if value < 0 else int(np.clip(at - first, 0, last - first))
        for at, value in zip(tables["start_ns"], tables["sw_power_cap_ns"], strict=True)
    ]
    found = of(gpu, device_counter=tables)
    assert found["big"].throttled[SW_POWER_CAP] == pytest.approx(0.5, abs=0.1)  # of its two turns the first
    assert found["small"].throttled[SW_POWER_CAP] < 0.1


def test_clocks_are_means_while_kernels_of_the_region_ran():
    gpu = regions_of_a_second()
    times = np.arange(0, gpu.now, 50 * MS)
    samples = {
        "start_ns": (START + times).tolist(),
        "sm_mhz": [1500] * len(times),
        **{name: [-1] * len(times) for name in ("sm_max_mhz", "power_mw")},
    }
    found = of(gpu, device_sample=samples)
    assert found["big"].sm_mhz == pytest.approx(1500)
    assert of(gpu)["big"].sm_mhz is None
    assert "sm_mhz" in of(gpu).why


# -- what is not known -------------------------------------------------------------------------------------------------


def without(gpu, energy_mj=-1, **info):
    readings = gpu.readings()
    count = len(readings["start_ns"])
    values = energy_mj if isinstance(energy_mj, list) else [energy_mj] * count
    gpu.info.update(info)
    return of(gpu, device_counter={**readings, "energy_mj": values[:count], "sw_power_cap_ns": [0] * count})


def test_what_nvml_does_not_tell_is_none_with_its_reason():
    found = without(regions_of_a_second(), **{"device_samples.0.energy_mj": "Not Supported"})
    assert (found.total, found.idle, found.power_w, found.step) == (None, None, None, None)
    assert found["big"].energy is None
    assert found["big"].seconds > 0
    assert found.why["energy"] == "Not Supported"
    assert "energy not known: Not Supported" in str(found)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1000] * 1000, "the counter stands still"),
        ([5000, *range(1000, 2000)], "the counter was reset, as when the driver is reloaded"),
    ],
)
def test_a_counter_that_cannot_be_right_is_not_believed(values, why):
    found = without(regions_of_a_second(), values)
    assert found.total is None
    assert found.why["energy"] == why


def test_a_recording_without_samples_says_how_to_get_them():
    report = energy(make_trace({}, info={"session.mode": "full"}))
    assert report.devices == ()
    assert "device_samples=True, --device-samples" in str(report)


def test_a_recording_that_is_too_short_for_regions_has_its_total():
    gpu = PoweredGpu()
    for _ in range(40):
        gpu.run("gemm", 10 * MS, 600, "forward")
    found = of(gpu)
    assert found.total.joules == pytest.approx(gpu.joules(), rel=0.2)
    assert found.total.low < gpu.joules() < found.total.high
    assert found["forward"].energy is None
    assert found["forward"].why == "needs 1 s of GPU time in all; it ran 400 ms"


@pytest.mark.parametrize("options", [{}, OF_EARLIER_VERSIONS])
def test_a_gpu_that_only_idles_has_all_its_energy_as_idle(options):
    gpu = PoweredGpu(**options)
    gpu.idle(3 * S)
    gpu.run("gemm", MS, IDLE_W, "forward")
    found = of(gpu)
    assert found.total.joules == pytest.approx(3 * IDLE_W, rel=0.05)
    assert found.idle.joules == pytest.approx(3 * IDLE_W, rel=0.05)


def test_a_recording_within_one_tick_has_no_energy_and_not_0():
    gpu = PoweredGpu(step_ns=10 * S)
    gpu.run("gemm", 10 * MS, 600, "forward")
    found = of(gpu)
    assert found.total is None
    assert "short" in found.why["energy"]


@pytest.mark.parametrize("seed", range(5))
def test_a_recording_without_a_whole_interval_of_the_counter_has_no_energy_and_not_0(seed):
    gpu = PoweredGpu(seed)
    gpu.run("gemm", 95 * MS, 600, "forward")
    found = of(gpu)
    assert (found.total, found.power_w) == (None, None)
    assert "short" in found.why["energy"]


@pytest.mark.parametrize("seconds", [1, 5])
def test_a_gpu_that_ran_nothing_is_told_beside_one_that_did(seconds):
    gpu = PoweredGpu()
    while gpu.now < seconds * S:
        gpu.run("gemm", 10 * MS, 600, "forward")
    readings = gpu.readings()
    count = len(readings["start_ns"])
    both = {name: values * 2 for name, values in readings.items()}
    report = energy(gpu.trace(device_counter={**both, "device": [0] * count + [1] * count}))
    assert [device.device for device in report.devices] == [0, 1]
    assert report[1].total.joules == pytest.approx(report[0].total.joules, rel=0.05)
    assert report[1].regions == ()


def test_a_gpu_of_which_counters_alone_were_read_is_told():
    gpu = PoweredGpu()
    gpu.run("wait", 3 * S, IDLE_W)
    report = energy(make_trace({"device_counter": gpu.readings()}))
    assert report[0].total.joules == pytest.approx(3 * IDLE_W, rel=0.1)


@pytest.mark.parametrize("columns", [["energy_mj"], THROTTLED], ids=["energy", "throttled"])
@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, -2, 0])
def test_no_value_of_a_file_breaks_it(columns, value):
    gpu = regions_of_a_second()
    readings = gpu.readings()
    for column in columns:
        readings[column][3] = value
    str(energy(gpu.trace(device_counter=readings)))


@pytest.mark.parametrize("value", [2**61, START - S, 0])
@pytest.mark.parametrize("row", [0, 3, -1])
def test_no_time_of_a_reading_in_a_file_breaks_it(value, row):
    gpu = regions_of_a_second()
    readings = gpu.readings()
    readings["start_ns"][row] = value
    str(energy(gpu.trace(device_counter=readings)))


# -- as a result -------------------------------------------------------------------------------------------------------


def test_it_can_be_read_and_saved():
    gpu = short_regions()
    report = Recording(gpu.trace(**counters(gpu, sw_power_cap_ns=0.125)).store).energy()
    text = str(report)
    assert "GPU 0 NVIDIA H100" in text
    assert "train/forward" in text
    assert "sw_power_cap 12" in text
    assert "hw_thermal_slowdown not known" in text
    values = json.loads(report.to_json())
    device = values["devices"][0]
    assert device["regions"][0]["energy"]["joules"] == report[0].regions[0].energy.joules
    assert device["throttled"]["hw_thermal_slowdown"] is None
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Energy(123.456, 122.456, 124.456), "123.5 J +-1.0"),
        (Energy(1234.5, 1200, 1270), "1,234 J +-35"),
        (Energy(0.0123, 0.0121, 0.0125), "0.01230 J +-0.00020"),
    ],
)
def test_joules_have_as_many_digits_as_their_interval_gives(value, text):
    assert str(value) == text
