# SPDX-License-Identifier: Apache-2.0
"""Hardware counters of programs whose memory traffic, operations and waits are known."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import gpuscope as gs
from gpuscope import _core
from gpuscope.counters.names import (
    ENGINE_ACTIVE,
    NOTHING_QUEUED,
    OVERVIEW,
    WAITS_AT_SEMAPHORE,
    WHY,
    check_names,
    list_counters,
)
from gpuscope.errors import InvalidArgument, NotAvailable

if TYPE_CHECKING:
    from gpuscope._core import Kernels
    from gpuscope.counters import SampledCounters

MS = 1_000_000
# Of this machine; for any other reason the tests fail.
NOT_HERE = ("lets administrators alone", "does not permit it", "another tool", "was not found", " has no ")
SM_ACTIVE = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"


@pytest.fixture(scope="module", autouse=True)
def _permitted() -> None:
    """Counters can be read, or the tests are skipped where this machine does not let them, with the reason."""
    _core.Kernels().spin(1000)
    try:
        gs.measure_counters(lambda: None, ["gpu__time_duration.sum"])
    except NotAvailable as error:
        if not any(reason in str(error) for reason in NOT_HERE):
            raise
        pytest.skip(str(error))


def sampled(prof: gs.profile) -> SampledCounters:
    found = prof.counters()
    if not len(found):
        pytest.skip(found.why)
    return found


def test_the_chip_offers_what_the_sets_name() -> None:
    chip = _core.counter_chip()
    for names, sampling in ((WHY, True), (OVERVIEW, False)):
        chosen, unknown, too_many = _core.choose_counters(chip, sampling=sampling, wanted=list(names))
        assert len(chosen) >= 10
        assert len(chosen) + len(unknown) + len(too_many) == len(names)
        if chip == "GH100":
            assert chosen == list(names)
    counters = list_counters()
    assert len(counters) > 1000
    (read,) = (counter for counter in counters if counter.name == "dram__bytes_read")
    assert (read.kind, read.unit, read.hardware) == ("counter", "byte", "dram")


def test_unknown_names_are_offered_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match="nearest are dram__bytes_read"):
        gs.measure_counters(lambda: None, ["dram__byte_read.sum"])
    with pytest.raises(InvalidArgument, match="nearest are"):
        gs.profile(counters=["dram__bytes_reads.sum"]).start()
    check_names([SM_ACTIVE], "counters", sampling=True)
    with gs.profile() as prof:  # what was refused leaves nothing behind
        pass
    assert prof.audit().complete


def test_a_copy_moves_its_bytes(kernels: Kernels) -> None:
    size = 1 << 30
    found = gs.measure_counters(lambda: kernels.copy(size), ["dram__bytes_read.sum", "dram__bytes_write.sum"])
    assert found["dram__bytes_read.sum"] == pytest.approx(size, rel=0.03)
    assert found["dram__bytes_write.sum"] == pytest.approx(size, rel=0.03)


def test_many_metrics_take_passes_and_the_call_is_made_in_each(kernels: Kernels) -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        kernels.fma(1 << 14)

    found = gs.measure_counters(
        work, ["sm__throughput.avg.pct_of_peak_sustained_elapsed", "gpu__time_duration.sum", "sm__inst_executed.sum"]
    )
    assert found.passes > 1
    assert len(calls) == found.passes + 1
    assert found["sm__throughput.avg.pct_of_peak_sustained_elapsed"] > 30


def test_a_call_that_fails_leaves_the_counters_free(kernels: Kernels) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gs.measure_counters(fail)
    calls = iter([None, ZeroDivisionError()])

    def fail_later() -> None:
        error = next(calls)
        if error is not None:
            raise error

    with pytest.raises(ZeroDivisionError):
        gs.measure_counters(fail_later)
    # A range is some 0.1 ms longer than what runs in it.
    assert MS <= gs.measure_counters(lambda: kernels.spin(MS))["gpu__time_duration.sum"] < 2 * MS


def test_counters_are_not_measured_while_a_profiler_runs() -> None:
    with gs.profile(), pytest.raises(InvalidArgument, match="while a profiler runs"):
        gs.measure_counters(lambda: None)


def test_operations_of_a_product_are_counted() -> None:
    torch = pytest.importorskip("torch")
    size = 4096
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    metric = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
    if _core.choose_counters(_core.counter_chip(), sampling=False, wanted=[metric])[1]:
        pytest.skip(f"{_core.counter_chip()} has no {metric}")
    assert gs.measure_counters(lambda: a @ a, [metric])[metric] == pytest.approx(2 * size**3, rel=0.01)


def test_samples_are_on_the_clock_of_the_kernels(kernels: Kernels) -> None:
    with gs.profile(counters="why", counter_interval_us=50) as prof:
        for _ in range(20):
            time.sleep(0.005)
            with gs.record_function("busy"):
                kernels.fma(1 << 14)
                kernels.synchronize()
    found = sampled(prof)
    assert not found.why
    start_ns, busy = found.timeline(SM_ACTIVE)
    length = prof.trace.counter_samples.duration_ns
    assert np.median(length) == pytest.approx(50_000, rel=0.1)
    kernel = prof.trace.kernels
    begin, end = kernel.start_ns, kernel.start_ns + kernel.duration_ns
    inside = np.zeros(len(start_ns), bool)
    for first, last in zip(begin, end, strict=True):
        inside |= (start_ns >= first) & (start_ns + length <= last)
    near = np.zeros(len(start_ns), bool)
    for first, last in zip(begin, end, strict=True):
        near |= (start_ns < last + 100_000) & (start_ns + length > first - 100_000)
    assert inside.sum() > 20
    assert np.median(busy[inside]) > 80
    assert np.median(busy[~near]) < 5


def test_kernels_and_regions_have_values(kernels: Kernels) -> None:
    with gs.profile(counters=[SM_ACTIVE, "dram__bytes_read.sum"], counter_interval_us=20) as prof:
        for _ in range(10):
            with gs.record_function("copies"):
                kernels.copy(1 << 30)
            with gs.record_function("spins"):
                kernels.spin(2 * MS)
            kernels.synchronize()
    found = sampled(prof)
    by_name = {row.name: dict(zip(found.metrics, row.values, strict=True)) for row in found.regions()}
    assert by_name["copies"]["dram__bytes_read.sum"] > 100 * by_name["spins"]["dram__bytes_read.sum"]
    values = found.kernel_values()
    assert np.isfinite(values[prof.trace.kernels.duration_ns > 200_000]).all()
    total = sum(row.values[1] * row.time_ns / 1e9 for row in found.regions() if row.name == "copies")
    assert total == pytest.approx(10 * (1 << 30), rel=0.1)


def front_end(prof: gs.profile) -> tuple[float, dict[str, float]]:
    """How much of the time from the first kernel to the last one ran, in percent, and the counters' means over it."""
    found = sampled(prof)
    if not {ENGINE_ACTIVE, NOTHING_QUEUED, WAITS_AT_SEMAPHORE} <= set(found.metrics):
        pytest.skip(f"{_core.counter_chip()} does not count what its front end waits for")
    ran = prof.trace.kernels
    start_ns, end_ns = int(ran.start_ns.min()), int((ran.start_ns + ran.duration_ns).max())
    return 100 * ran.duration_ns.sum() / (end_ns - start_ns), found.mean(start_ns, end_ns)


def test_the_engine_is_active_while_kernels_run_and_a_host_that_waits_queues_nothing(kernels: Kernels) -> None:
    with gs.profile(counters="why") as prof:
        for _ in range(50):
            kernels.spin(MS)
            kernels.synchronize()
            time.sleep(0.003)
    ran, means = front_end(prof)
    assert 15 < ran < 35
    assert means[ENGINE_ACTIVE] == pytest.approx(ran, abs=3)
    assert means[NOTHING_QUEUED] > 97  # also while kernels run: nothing is queued behind them
    assert means[WAITS_AT_SEMAPHORE] < 3
    answers = [each for each in prof.diagnose().idle_by_counters if each.samples]
    assert answers, str(prof.diagnose())
    assert answers[0].agreement_points < 3
    assert answers[0].nothing_queued > 0.97


def test_kernels_that_are_queued_wait_for_the_one_before(kernels: Kernels) -> None:
    with gs.profile(counters="why") as prof:
        kernels.spin(MS, count=100)
        kernels.synchronize()
    ran, means = front_end(prof)
    assert means[ENGINE_ACTIVE] > 95
    assert ran > 90
    assert means[WAITS_AT_SEMAPHORE] > 80
    assert means[NOTHING_QUEUED] < 20


def test_a_copy_stands_at_the_bandwidth_that_was_measured(kernels: Kernels) -> None:
    with gs.profile(counters=["dram__bytes_read.sum", "dram__bytes_write.sum"], counter_interval_us=20) as prof:
        for _ in range(20):
            kernels.copy(1 << 30)
        kernels.synchronize()
    sampled(prof)
    (point,) = prof.roofline().kernels
    assert point.bandwidth_from == "counters"
    assert point.share_of_bandwidth is not None
    assert 0.7 < point.share_of_bandwidth < 1.1  # a fill may be faster than a copy
    assert point.limit == "memory-bound"


def test_a_product_stands_at_the_rate_that_was_measured() -> None:
    torch = pytest.importorskip("torch")
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    a @ a
    torch.cuda.synchronize()
    with gs.profile(counters="why", record_shapes=True) as prof:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()
    found = prof.roofline()
    point = found.kernels[0]
    assert point.dtype == "bfloat16"
    assert point.share_of_compute == pytest.approx(1, abs=0.25), str(found)
    assert point.limit == "compute-bound", str(found)
    if len(prof.counters()):
        assert point.bandwidth_from == "counters"
        assert point.tensor_active is not None
        assert point.tensor_active > 0.5


def test_kernels_shorter_than_a_sample_are_told_apart(kernels: Kernels) -> None:
    size = 1 << 26
    random = np.random.default_rng(0)
    metrics = ["dram__bytes_read.sum", "dram__bytes_write.sum"]
    with gs.profile(counters=metrics, counter_interval_us=100) as prof:
        for is_copy in random.random(4000) < 0.5:
            if is_copy:
                kernels.copy(size)
            else:
                kernels.spin(20_000)
        kernels.synchronize()
    found = sampled(prof).short_kernels()
    copies = max(found.kernels, key=lambda each: np.nan_to_num(each.values[0]))
    assert prof.trace.kernels.duration_ns.max() < 100_000
    # Some of what a copy reads may have stayed in the L2 cache.
    assert 0.4 * size < copies.values[0] * copies.time_ns / 1e9 / copies.count < 1.1 * size, str(found)
    (spins,) = [each for each in found.kernels if each is not copies]
    assert not spins.values[0] > 0.05 * copies.values[0], str(found)


def test_windows_of_a_schedule_have_their_own_samples(kernels: Kernels) -> None:
    windows: list[gs.profile] = []
    counts: list[tuple[int, int, int]] = []

    def ready(prof: gs.profile) -> None:
        samples, info = prof.trace.counter_samples, prof.trace.info
        inside = (samples.start_ns >= int(info["session.start_ns"])) & (samples.start_ns < int(info["session.stop_ns"]))
        counts.append((len(samples), int(inside.sum()), int(info["session.stop_ns"]) - int(info["session.start_ns"])))
        windows.append(prof)

    with gs.profile(schedule=gs.schedule(wait=1, warmup=1, active=2), on_trace_ready=ready, counters="why") as prof:
        for _ in range(12):
            kernels.spin(5 * MS)
            kernels.synchronize()
            prof.step()
    assert len(counts) == 3
    for samples, inside, length_ns in counts:
        assert samples == inside
        assert samples == pytest.approx(length_ns / 100_000, rel=0.2)


def test_sampling_can_be_begun_again_and_again(kernels: Kernels) -> None:
    for _ in range(5):
        with gs.profile(counters="why", counter_interval_us=20) as prof:
            kernels.spin(20 * MS)
            kernels.synchronize()
        assert len(sampled(prof)) > 500
        gs.measure_counters(lambda: kernels.spin(MS), ["gpu__time_duration.sum"])


def follow(prof: gs.profile, device: int) -> bool:
    """Whether the samples of a device follow upon one another from the window's begin to its end."""
    samples, info = prof.trace.counter_samples, prof.trace.info
    own = samples.device == device
    start_ns, length = samples.start_ns[own], samples.duration_ns[own]
    between = np.diff(start_ns)
    assert (between > 0).all()  # none comes twice
    assert np.abs(length - 100_000).max() < 50_000
    whole = (int(info["session.stop_ns"]) - int(info["session.start_ns"])) / 100_000
    return bool(between.max() < 150_000 and len(start_ns) > whole - 30)


@pytest.mark.parametrize("seconds", [0.02, 3])
def test_samples_follow_upon_one_another_or_a_loss_is_told(kernels: Kernels, seconds: float) -> None:
    with gs.profile(counters="why") as prof:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            kernels.spin(MS)
            kernels.synchronize()
    found = sampled(prof)
    assert not found.why
    assert found.overflows or follow(prof, 0)
    assert any("hardware counters were lost" in reason for reason in prof.audit().reasons) == (found.overflows > 0)


def test_samples_that_come_too_fast_become_longer_and_most_of_the_time_is_sampled(kernels: Kernels) -> None:
    with gs.profile(counters="why", counter_interval_us=10) as prof:
        end = time.perf_counter() + 4
        while time.perf_counter() < end:
            kernels.spin(MS)
            kernels.synchronize()
    found = sampled(prof)
    assert not found.why
    assert found.overflows > 0  # no host reads 24 metrics of 100,000 samples a second
    asked, last_ns = found.interval_ns
    assert asked == 10_000
    assert last_ns in (20_000, 40_000, 80_000, 160_000, 320_000, 640_000, 1_000_000)
    samples = prof.trace.counter_samples
    start_ns, stop_ns = (int(prof.trace.info[f"session.{moment}"]) for moment in ("start_ns", "stop_ns"))
    window_ns = stop_ns - start_ns
    # Some 0.3 s pass after a loss until there are samples again: after one near the end there are none.
    unsampled_ns = stop_ns - int(samples.start_ns[-1] + samples.duration_ns[-1])
    last_sampled_ns = last_ns if unsampled_ns < last_ns + MS else last_ns / 2
    assert np.median(samples.duration_ns[-10:]) == pytest.approx(last_sampled_ns, rel=0.1)
    assert samples.duration_ns.sum() > 0.5 * window_ns
    assert (np.diff(samples.start_ns) > 0).all()


def test_each_gpu_of_a_process_has_its_own_samples() -> None:
    torch = pytest.importorskip("torch")
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("one GPU is here")
    tensors = [torch.rand(1 << 26, device=f"cuda:{device}") for device in range(count)]
    with gs.profile(counters="why") as prof:
        for busy in range(count):  # one after the other
            with gs.record_function(f"gpu{busy}"):
                for _ in range(500):
                    tensors[busy].mul_(1.0)
                torch.cuda.synchronize(busy)
    found = sampled(prof)
    assert found.devices == list(range(count))
    kernels = prof.trace.kernels
    at = prof.trace.tracks.device[kernels.track]
    for device in found.devices:
        assert found.overflows or follow(prof, device)
        own = at == device
        begin, end = kernels.start_ns[own].min(), (kernels.start_ns + kernels.duration_ns)[own].max()
        for each in found.devices:
            mean = found.mean(int(begin), int(end), each)[SM_ACTIVE]
            assert mean > 50 if each == device else mean < 10, (device, each, mean)
