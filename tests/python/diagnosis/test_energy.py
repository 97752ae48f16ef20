# SPDX-License-Identifier: Apache-2.0
"""The energy of regions and steps of a GPU whose power is known, and shares of time with clocks held back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fakes.powered import IDLE_W, MS, START, THROTTLED, PoweredGpu, S
from fakes.recordings import make_trace
from gpuscope.analysis.device_samples import DeviceReadings
from gpuscope.diagnosis.energy import energy
from gpuscope.diagnosis.energy_model import Energy, kinds_of_work
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


@pytest.mark.parametrize("seed", range(5))
def test_a_region_of_a_second_is_known_within_3_percent(seed):
    gpu = regions_of_a_second(seed)
    found = of(gpu)
    assert found.total.joules == pytest.approx(gpu.joules(), rel=0.005)
    for name in ("big", "small"):
        assert found[name].energy.joules == pytest.approx(gpu.joules(name), rel=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_a_region_of_5_ms_that_comes_often_is_known_within_10_percent(seed):
    gpu = short_regions(seed)
    found = of(gpu)
    for name in ("train", "train/forward", "train/backward"):
        assert found[name].energy.joules == pytest.approx(gpu.joules(name), rel=0.1)
    assert found["forward"].power_w == pytest.approx(600, rel=0.1)
    assert found["forward"].count == 200
    assert found["forward"].seconds == pytest.approx(1.0)


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
RECORDED = {"every": 0, "tick_error_ns": 9 * MS}
OF_BURSTS = {"copy": 0.03, "gemm": 0.03, "copy in turns": 0.1, "gemm in turns": 0.1}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, RECORDED, BEHIND, RECORDED | BEHIND, {"uneven_ns": 5 * MS}])
def test_a_kernel_that_draws_more_in_turns_is_known_in_both_regions(seed, options):
    gpu = bursts(seed, **options)
    found = of(gpu)
    for name, within in OF_BURSTS.items():
        assert found[name].energy.joules == pytest.approx(gpu.joules(name), rel=within), name


VAGUE = {"every": 0, "tick_error_ns": 65 * MS, "jitter_ns": 25 * MS}


@pytest.mark.parametrize("seed", range(4))
def test_waiting_draws_no_more_in_turns_where_ticks_are_hardly_known(seed):
    """Turns are far shorter than ticks are apart: only what is expected of a kernel that waits tells the two apart."""
    gpu = bursts(seed, **VAGUE)
    found = of(gpu)
    for name in ("copy in turns", "gemm in turns"):
        assert found[name].energy.joules == pytest.approx(gpu.joules(name), rel=0.1), name


@pytest.mark.parametrize("options", [{}, RECORDED, BEHIND, {"uneven_ns": 20 * MS}, RECORDED | {"uneven_ns": 5 * MS}])
def test_intervals_hold_the_truth_whatever_the_counter_does(options):
    inside = []
    for seed in range(6):
        gpu = bursts(seed, **options)
        found = of(gpu)
        pairs = [(found[name].energy, gpu.joules(name)) for name in OF_BURSTS] + [(found.total, gpu.joules())]
        inside += [each.low <= truth <= each.high for each, truth in pairs]
    assert np.mean(inside) > 0.85


def test_kinds_of_work_are_few_however_many_kernels_and_regions_there_are():
    random = np.random.default_rng(1)
    name, place = random.integers(0, 500, 20_000), random.integers(0, 300, 20_000)
    name[:9000], place[:9000] = 7, np.arange(9000) % 2
    kind, kernel = kinds_of_work([str(number) for number in range(500)], name, place, np.full(20_000, 1000))
    assert len(kernel) == int(kind.max()) + 1 <= 49
    assert sorted(np.unique(kind).tolist()) == list(range(len(kernel)))
    first, second = kind[0], kind[1]
    assert first != second
    assert kernel[first] == kernel[second]  # the same kernel in two regions


def test_work_of_one_kernel_in_one_region_is_one_kind():
    kind, kernel = kinds_of_work(["a"], np.zeros(5, np.int64), np.full(5, 3), np.ones(5, np.int64))
    assert (kind.tolist(), kernel.tolist()) == ([0] * 5, [0])
    kind, kernel = kinds_of_work([], *([np.zeros(0, np.int64)] * 3))
    assert (len(kind), len(kernel)) == (0, 0)


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
    gpu.run("loose", 50 * MS, 500)
    found = of(gpu)
    parts = found["train"].energy.joules + found.idle.joules + found.outside.joules
    assert parts == pytest.approx(found.total.joules, rel=1e-6)
    assert found.outside.low < 0.05 * 500 < found.outside.high  # it ran once: little tells its power


def test_a_region_has_what_is_used_in_those_inside_it():
    found = of(short_regions())
    inner = found["train/forward"].energy.joules + found["train/backward"].energy.joules
    assert found["train"].energy.joules == pytest.approx(inner)


def test_idle_power_is_known_where_the_gpu_was_idle():
    assert of(short_regions()).idle_power_w == pytest.approx(IDLE_W, rel=0.1)
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
    assert of(gpu, kernel=twice)["train"].energy.joules == pytest.approx(gpu.joules("train"), rel=0.05)


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


def test_steps_have_their_energy_with_idle_time():
    gpu = PoweredGpu()
    edges = [0]
    for _ in range(30):
        for _ in range(20):
            gpu.run("gemm", 5 * MS, 600, "forward")
        gpu.idle(50 * MS)
        edges.append(gpu.now)
    words = [START, *np.diff(edges).tolist()]
    gpu.info["session.step_edges_ns"] = " ".join(map(str, words))
    found = of(gpu)
    truth = np.diff(gpu.until(np.array(edges, np.float64)))
    assert found.steps == 30
    assert found.step.joules == pytest.approx(truth.mean(), rel=0.01)
    assert found.step.low <= truth.mean() <= found.step.high
    assert np.array(found.step_joules) == pytest.approx(truth, rel=0.1)
    assert sum(found.step_joules) == pytest.approx(30 * found.step.joules)


def test_a_counter_that_is_read_seldom_tells_regions_of_seconds():
    gpu = regions_of_a_second(every=5)
    found = of(gpu)
    assert found["big"].energy.joules == pytest.approx(gpu.joules("big"), rel=0.05)


def unread_in_the_middle(seed=1, means_ns=100 * MS, **options):
    """A kernel that runs on, and then turns of it that draw more, most of which the counter was not read of."""
    gpu = PoweredGpu(seed, unread_ns=(2 * S, 6_400 * MS), means_ns=means_ns, **options)
    gpu.idle(1000 * MS)
    for _ in range(80):
        gpu.run("gemm", 10 * MS, 800, "steady")
    for _ in range(120):
        gpu.run("gemm", 10 * MS, 650, "steady")
    gpu.idle(1000 * MS)
    for _ in range(200):
        gpu.run("gemm", 5 * MS, 980, "bursts")
        gpu.idle(7 * MS)
    return gpu


@pytest.mark.parametrize("seed", range(5))
def test_means_of_power_tell_what_was_used_while_the_counter_was_not_read(seed):
    gpu = unread_in_the_middle(seed)
    found = of(gpu)
    assert found["steady"].energy.joules == pytest.approx(gpu.joules("steady"), rel=0.03)
    assert found["bursts"].energy.joules == pytest.approx(gpu.joules("bursts"), rel=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_means_of_power_tell_regions_of_a_second_where_ticks_are_hardly_known(seed):
    gpu = bursts(seed, means_ns=100 * MS, **VAGUE)
    found = of(gpu)
    for name, within in {"copy": 0.02, "gemm": 0.02, "copy in turns": 0.05, "gemm in turns": 0.05}.items():
        assert found[name].energy.joules == pytest.approx(gpu.joules(name), rel=within), name
        assert found[name].energy.low <= gpu.joules(name) <= found[name].energy.high, name


def test_a_recording_too_long_for_ten_moments_a_second_has_one_a_second():
    gpu = PoweredGpu(2, means_ns=100 * MS, **VAGUE)
    for _ in range(30):
        gpu.idle(700 * MS)
        for name, watts, count in (("other", 300, 1300), ("one", 620, 130)):
            for _ in range(count):
                gpu.run(name, 10 * MS, watts, name)
    ticks, _ = DeviceReadings(gpu.trace(), 0).energy
    assert gpu.now > 400 * S
    assert len(ticks.moments) == pytest.approx(gpu.now / S, rel=0.02)
    assert of(gpu)["one"].energy.joules == pytest.approx(gpu.joules("one"), rel=0.03)


@pytest.mark.parametrize(
    "options",
    [{"means_ns": 0}, {"capability": (8, 0)}, {"capability": (7, 5)}, {"means_ns": 1000 * MS}],
    ids=["not read", "of an A100", "of a T4", "read seldom"],
)
def test_power_that_is_no_mean_or_not_known_in_between_tells_nothing_of_energy(options):
    gpu = unread_in_the_middle(**options)
    assert abs(of(gpu)["steady"].energy.joules / gpu.joules("steady") - 1) > 0.04


def test_means_of_power_that_the_counter_contradicts_are_not_believed():
    gpu = unread_in_the_middle()
    wrong = gpu.means()
    wrong["power_mw"] = [value * 3 // 2 for value in wrong["power_mw"]]
    assert abs(of(gpu, device_sample=wrong)["steady"].energy.joules / gpu.joules("steady") - 1) > 0.04


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
    assert "too seldom" in found.why["regions"]


@pytest.mark.parametrize("options", [{}, RECORDED])
def test_a_gpu_that_only_idles_has_all_its_energy_as_idle(options):
    gpu = PoweredGpu(**options)
    gpu.idle(3 * S)
    gpu.run("gemm", MS, IDLE_W, "forward")
    found = of(gpu)
    assert found.total.joules == pytest.approx(3 * IDLE_W, rel=0.01)
    assert found.idle.joules == pytest.approx(3 * IDLE_W, rel=0.01)


def test_a_recording_within_one_tick_has_no_energy_and_not_0():
    gpu = PoweredGpu(tick_ns=10 * S)
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


def test_unknown_times_of_ticks_leave_no_energy():
    gpu = regions_of_a_second()
    readings = gpu.readings()
    count = len(readings["start_ns"])
    unknown = {"tick_ns": [-1] * count, "tick_error_ns": [-1] * count}
    assert of(gpu, device_counter={**readings, **unknown}).total is None


def test_the_first_value_is_of_the_tick_before_the_first_that_was_seen():
    gpu = regions_of_a_second()
    known = of(gpu)
    readings = gpu.readings()
    count = len(readings["start_ns"])
    for column in ("tick_ns", "tick_error_ns"):
        readings[column] = [-1, *readings[column][1:]]
    assert len(readings["tick_ns"]) == count
    assert of(gpu, device_counter=readings).total.joules == pytest.approx(known.total.joules, rel=0.01)


@pytest.mark.parametrize("column", ["energy_mj", "tick_ns", "tick_error_ns", *THROTTLED])
@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, -2, 0])
def test_no_value_of_a_file_breaks_it(column, value):
    gpu = unread_in_the_middle()
    readings = gpu.readings()
    readings[column][5] = value
    str(energy(gpu.trace(device_counter=readings)))


@pytest.mark.parametrize(("column", "value"), [("start_ns", 2**61), ("start_ns", 0), ("power_mw", 2**31 - 1)])
@pytest.mark.parametrize("row", [0, 20, -1])
def test_no_reading_of_power_in_a_file_breaks_it(column, value, row):
    gpu = unread_in_the_middle()
    means = gpu.means()
    means[column][row] = value
    str(energy(gpu.trace(device_sample=means)))


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
