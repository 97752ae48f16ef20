# SPDX-License-Identifier: Apache-2.0
"""`benchmark` stops when the time is known, says why it stopped, and warns of what makes a number doubtful."""

from __future__ import annotations

import dataclasses
import re
import traceback

import numpy as np
import pytest

from fakes.gpu import OTHER, Session, install
from gpuscope import stats
from gpuscope.benchmarking import benchmark, benchmarks
from gpuscope.benchmarking.result import BenchmarkResult, Measured
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.units import format_seconds

OWN_STREAM = 0x5000


@pytest.fixture
def gpu(monkeypatch):
    return install(monkeypatch.setattr, noise=0.02)


def warned(result, words):
    return any(words in warning for warning in result.warnings)


def test_a_quiet_kernel_reaches_the_target(gpu):
    result = benchmark(lambda: gpu.launch(seconds=5e-6))
    assert result.converged
    assert result.stopped == "precision"
    assert result.quantity == "kernel"
    assert result.estimate.relative_half_width <= 0.01
    assert result.n >= 30
    low, high = result.ci
    assert low < 5e-6 < high
    assert result.warnings == ()


def test_a_quiet_kernel_takes_a_part_of_the_budget(gpu):
    assert 0.3 < benchmark(lambda: gpu.launch(seconds=5e-6), budget=2.0).seconds < 0.5


def test_samples_are_taken_in_bursts_that_add_up(gpu):
    result = benchmark(lambda: gpu.launch(seconds=5e-6))
    assert len(result.bursts) >= 12
    assert result.bursts.sum() == len(result.headline.samples)


def test_what_changes_while_it_warms_up_is_left_out(gpu):
    def function():
        gpu.launch(seconds=12e-6 if gpu.seconds < 0.2 else 10e-6)

    result = benchmark(function, budget=4.0)
    assert result.converged
    assert result.max < 11.5e-6


def test_what_changes_later_is_said_and_not_called_converged(gpu):
    gpu.noise = 0.3

    def function():
        gpu.launch(seconds=10e-6 if gpu.seconds < 0.8 else 12e-6)

    result = benchmark(function, precision=0.001, budget=2.0)
    assert not result.converged
    assert warned(result, "drifted") or warned(result, "changed by")


def test_a_narrower_target_takes_more_samples(gpu):
    gpu.noise = 0.1
    wide, narrow = (benchmark(gpu.launch, precision=precision, budget=10.0) for precision in (0.02, 0.006))
    assert narrow.n > 4 * wide.n
    assert narrow.converged
    assert narrow.estimate.relative_half_width <= 0.006


def test_more_samples_are_not_taken_for_what_only_other_processes_show(gpu):
    result = benchmark(gpu.launch, precision=0.001, budget=20.0)
    assert result.stopped == "processes"
    assert not result.converged
    assert result.seconds < 10
    assert stats.estimate(result.samples).relative_half_width < 0.001
    assert result.estimate.relative_half_width == pytest.approx(1.96 * result.processes_differ, rel=0.05)
    assert warned(result, "processes=5 measures it")
    assert "NOT converged: processes differ by more" in str(result)


def test_the_host_time_of_a_call_is_of_this_process(gpu):
    assert benchmark(lambda: gpu.work(20e-6), budget=0.5).processes_differ == 0


def test_the_budget_ends_what_does_not_converge(gpu):
    gpu.noise = 0.3
    result = benchmark(lambda: gpu.launch(seconds=1e-3), precision=0.0005, budget=0.5)
    assert not result.converged
    assert result.stopped == "budget"
    assert 0.5 <= result.seconds < 0.7


def test_a_call_longer_than_the_budget_still_has_a_result(gpu):
    result = benchmark(lambda: gpu.launch(seconds=1.0), budget=0.1)
    assert result.stopped == "budget"
    assert result.n == 1
    assert result.median == pytest.approx(1.0, rel=0.2)


def interrupted_after(gpu, seconds, **options):
    def function():
        gpu.launch(seconds=1e-3)
        if gpu.seconds > seconds:
            raise KeyboardInterrupt

    return benchmark(function, precision=1e-4, budget=10.0, **options)


def test_an_interrupt_ends_with_what_there_is(gpu):
    result = interrupted_after(gpu, 3.0)
    assert result.stopped == "interrupted"
    assert not result.converged
    assert result.n > 100
    assert not Session.active()


def test_an_interrupt_before_the_headline_leaves_what_was_taken_beside_it(gpu):
    result = interrupted_after(gpu, 0.3)
    assert result.stopped == "interrupted"
    assert result.quantity in ("stream", "wall")


def test_an_interrupt_after_what_counted_as_warming_up_keeps_it(gpu, monkeypatch):
    looks = []
    looked = benchmarks.Bursts.looked
    monkeypatch.setattr(benchmarks.Bursts, "looked", lambda self, spent: looks.append(looked(self, spent)))

    def function():
        gpu.launch(seconds=12e-6 if gpu.seconds < 0.2 else 10e-6)
        if looks:
            raise KeyboardInterrupt

    result = benchmark(function, budget=4.0)
    assert result.stopped == "interrupted"
    assert result.quantity == "kernel"


def test_an_interrupt_before_any_sample_goes_on(gpu):
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(gpu, 0.0)


def test_all_quantities_are_taken_beside_the_headline(gpu):
    result = benchmark(lambda: gpu.launch(seconds=10e-6))
    assert list(result.quantities) == ["kernel", "span", "launch", "stream", "wall"]
    assert set(result.absent) == {"marginal"}


def test_marginal_time_is_taken_on_a_stream_that_can_be_captured(gpu):
    result = benchmark(lambda: gpu.launch(seconds=10e-6), stream=OWN_STREAM)
    assert result.quantities["marginal"].estimate.value == pytest.approx(10e-6, rel=0.02)


def test_a_graph_is_captured_once_and_its_replay_measured(gpu):
    calls = []

    def function():
        calls.append(1)
        gpu.launch("gemm", 8e-6)
        gpu.launch("add", 2e-6)

    result = benchmark(function, graph=True, stream=OWN_STREAM)
    assert len(calls) < 10
    assert result.median == pytest.approx(10e-6, rel=0.02)
    assert [kernel.name for kernel in result.kernels] == ["gemm", "add"]
    assert "replay" in result.absent["marginal"]


def test_what_cannot_be_captured_is_refused_with_the_reason(gpu):
    def function():
        gpu.launch()
        gpu.synchronize()

    with pytest.raises(NotAvailable, match="cannot be captured"):
        benchmark(function, graph=True, stream=OWN_STREAM)


def test_kernels_come_with_their_shares(gpu):
    def function():
        for _ in range(3):
            gpu.launch("add", 1e-6)
        gpu.launch("gemm", 9e-6)

    gemm, add = benchmark(function).kernels
    assert (gemm.name, gemm.count) == ("gemm", 1.0)
    assert (add.name, add.count) == ("add", 3.0)
    assert add.seconds == pytest.approx(3e-6, rel=0.05)


def test_arguments_reach_the_function(gpu):
    seen = []

    def function(a, b, target=None):
        seen.append((a, b, target))
        gpu.launch()
        return "made"

    result = benchmark(function, 1, b=2, kwargs={"target": 3})
    assert set(seen) == {(1, 2, 3)}
    assert result.name == "function"
    assert result.value == "made"


# -- warnings --------------------------------------------------------------------------------------------------------


def warning(result, words):
    return next((warning for warning in result.warnings if words in warning), "")


def test_work_that_doubles_in_mid_run_is_said_with_both_levels_and_where(gpu):
    gpu.noise = 0.3
    result = benchmark(lambda: gpu.launch(seconds=10e-6 if gpu.seconds < 1.2 else 20e-6), precision=0.001, budget=2.0)
    found = re.search(r"from (\S+) us to (\S+) us, after (\d+) of (\d+) samples", warning(result, "changed by"))
    before, after, at, n = map(float, found.groups())
    assert (before, after) == (pytest.approx(10, rel=0.1), pytest.approx(20, rel=0.1))
    assert 0 < at < n == result.n
    assert np.median(result.samples[: int(at)]) < 11e-6 < 18e-6 < np.median(result.samples[int(at) :])


def test_what_counts_as_warming_up_is_said(gpu):
    result = benchmark(lambda: gpu.launch(seconds=20e-6 if gpu.seconds < 0.2 else 10e-6), budget=4.0)
    assert result.converged
    found = re.search(r"from (\S+) us to (\S+) us, after", warning(result, "what came before counts as warming up"))
    assert [float(level) for level in found.groups()] == pytest.approx([20, 10], rel=0.02)


def test_a_drift_is_said_with_its_rate(gpu):
    gpu.slowdown = lambda seconds: 1 + 0.1 * seconds
    result = benchmark(gpu.launch, budget=2.0)
    found = re.search(r"over the run, \+(\S+) % a second", warning(result, "drifted by"))
    assert float(found[1]) == pytest.approx(8.9, rel=0.1)  # of the median, after 1.2 s
    assert not warned(result, "warming up")


def test_what_does_not_settle_is_said_with_what_was_seen(gpu):
    gpu.noise = 0.1
    result = benchmark(lambda: gpu.launch(seconds=1e-4), precision=0.0005, budget=0.5)
    found = warning(result, "did not settle")
    assert f"known to +-{100 * result.estimate.relative_half_width:.2g} %" in found
    assert "+-0.05 % was wanted" in found
    assert format_seconds(result.p95, 4) in found


def test_what_settles_is_not_said_to_be_unsettled(gpu):
    assert not warned(benchmark(gpu.launch), "settle")


BAD = [float("nan"), float("inf"), 10**400, 10**5000, -1, 0, True, "1", None, 1j]


@pytest.mark.parametrize("value", BAD, ids=map(str, range(len(BAD))))
@pytest.mark.parametrize("name", ["budget", "precision"])
def test_a_bad_number_gets_one_sentence(gpu, name, value):
    with pytest.raises(InvalidArgument, match=rf"^{name} is .{{1,40}}; accepted are .{{1,50}} above 0"):
        benchmark(gpu.launch, **{name: value})


@pytest.mark.parametrize("value", [float("nan"), 1.5, True, "0", -1, 10**5000], ids=map(str, range(6)))
def test_a_bad_device_gets_one_sentence(gpu, value):
    with pytest.raises(InvalidArgument, match=r"^device is .{1,40}; accepted are (integers from )?0"):
        benchmark(gpu.launch, device=value)


def test_a_tiny_number_is_a_number(gpu):
    assert benchmark(gpu.launch, budget=1e-300).stopped == "budget"
    assert not benchmark(gpu.launch, precision=1e-300, budget=0.1).converged


def test_drift_is_said_and_keeps_it_from_converging(gpu):
    gpu.slowdown = lambda seconds: 1 + 5 * seconds
    result = benchmark(lambda: gpu.launch(seconds=1e-4), budget=1.0)
    assert not result.converged
    assert warned(result, "drifted by +")


def test_throttling_is_said_and_the_samples_kept(gpu):
    gpu.reasons = lambda seconds: 0x40 if seconds > 0.06 else 0
    result = benchmark(lambda: gpu.launch(seconds=1e-4), precision=0.001)
    assert warned(result, "throttled")
    assert result.throttled.any()
    assert len(result.samples) == result.n == len(result.throttled)


def test_a_shifted_clock_tags_samples_and_the_clean_ones_can_be_had(gpu):
    def clock(seconds):  # falls after the first span of samples, which would count as warming up
        return 1.5e9 if seconds > 0.8 else 1.7e9

    gpu.clock_hz = clock
    gpu.slowdown = lambda seconds: 1.7e9 / clock(seconds)
    result = benchmark(gpu.launch, precision=1e-6, budget=2.0)
    assert warned(result, "clock 2 % off")
    assert 0 < len(result.clean_samples) < len(result.samples)
    assert result.clean.value == pytest.approx(10e-6, rel=0.01)
    assert result.median > result.clean.value


def test_several_modes_are_said_with_their_shares(gpu):
    gpu.noise = 0.005
    calls = []

    def function():
        calls.append(1)
        gpu.launch(seconds=10e-6 if len(calls) % 3 else 14e-6)

    result = benchmark(function, precision=0.001)
    assert warned(result, "gather around 2 values")
    assert [mode.share for mode in result.modes] == pytest.approx([2 / 3, 1 / 3], abs=0.05)
    assert " | 2 modes: " in str(result)
    assert [mode["share"] for mode in result.to_dict()["modes"]] == [mode.share for mode in result.modes]


def test_a_single_mode_is_not_worth_a_word(gpu):
    assert "mode" not in str(benchmark(lambda: gpu.launch(seconds=10e-6)))


def test_work_that_changes_is_said(gpu):
    calls = []

    def function():
        calls.append(1)
        gpu.launch("even" if len(calls) % 2 else "odd")

    assert warned(benchmark(function), "work changes from call to call: 2 different")


def test_waiting_inside_is_said_and_leaves_no_stream_time(gpu):
    def function():
        gpu.launch()
        gpu.synchronize()

    result = benchmark(function)
    assert warned(result, "waits for the GPU inside")
    assert "stream" not in result.quantities
    assert "launch latency" in result.absent["stream"]
    assert result.median == pytest.approx(10e-6, rel=0.02)


def test_other_streams_are_said(gpu):
    def function():
        gpu.launch()
        gpu.launch(stream=OTHER)

    result = benchmark(function)
    assert warned(result, "other streams")
    assert "stream" in result.absent


def test_allocations_are_said(gpu):
    def function():
        gpu.allocate()
        gpu.launch()

    assert warned(benchmark(function), "allocates GPU memory")


def test_a_function_without_gpu_work_is_said_and_measured_on_the_cpu(gpu):
    result = benchmark(lambda: gpu.work(1e-4))
    assert result.quantity == "wall"
    assert warned(result, "no work on the GPU")
    assert result.median == pytest.approx(1e-4, rel=0.05)


def test_lost_records_are_said_and_their_samples_left_out(gpu):
    gpu.loses = lambda number: number > 100 and number % 50 == 0
    result = benchmark(gpu.launch)
    assert warned(result, "lack records")
    assert not result.headline.valid.all()
    assert result.samples.min() > 8e-6


def test_without_any_record_stream_time_takes_over(gpu):
    gpu.loses = lambda number: number > 10
    result = benchmark(gpu.launch, budget=0.5)
    assert result.quantity == "stream"
    assert "records" in result.absent["kernel"]


def measured(quantity, seconds):
    samples = np.full(40, seconds)
    return Measured(quantity, samples, np.ones(40, bool), stats.estimate(samples))


def test_stream_time_far_from_the_span_is_said():
    quantities = {"span": measured("span", 100e-6), "stream": measured("stream", 150e-6)}
    assert "longer than the kernels' span" in next(benchmarks._warnings_of_quantities(quantities, 1))


def test_stream_time_near_the_span_is_as_it_should_be():
    quantities = {"span": measured("span", 2e-6), "stream": measured("stream", 5e-6)}
    assert list(benchmarks._warnings_of_quantities(quantities, 1)) == []


def test_a_rate_that_no_memory_reaches_is_said(gpu):
    result = benchmark(lambda: gpu.launch(seconds=10e-6), bytes=10**9)
    assert warned(result, "more than the memory can deliver")
    assert result.rates[0].value == pytest.approx(1e14, rel=0.02)


def test_unsteady_warming_up_is_said(gpu):
    gpu.clock_hz = lambda seconds: 1e9 * (1 + seconds)
    assert warned(benchmark(gpu.launch, budget=0.4), "not steady")


# -- bad input and its end -------------------------------------------------------------------------------------------


def test_what_the_function_raises_comes_with_its_own_traceback(gpu):
    calls = []

    def breaks():
        calls.append(1)
        gpu.launch()
        if len(calls) > 300:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        benchmark(breaks, precision=0.0001)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "breaks"
    assert not Session.active()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": 0}, r"^precision is 0; accepted are fractions above 0 and below 1$"),
        ({"precision": 1}, r"^precision is 1; "),
        ({"precision": "1 %"}, r"^precision is '1 %'; "),
        ({"budget": 0}, r"^budget is 0; accepted are seconds above 0$"),
        ({"budget": float("inf")}, r"^budget is inf; "),
        ({"bytes": -1}, r"^bytes is -1; accepted are numbers above 0$"),
        ({"flops": 0}, r"^flops is 0; "),
        ({"device": 5}, r"^device is 5; accepted are 0 to 0$"),
        ({"stream": "mine"}, r"^stream is 'mine'"),
    ],
)
def test_bad_arguments_are_named(gpu, options, message):
    with pytest.raises(InvalidArgument, match=message):
        benchmark(gpu.launch, **options)


def test_what_cannot_be_called_is_named(gpu):
    with pytest.raises(InvalidArgument, match=r"^fn is 3; accepted"):
        benchmark(3)


def test_without_a_gpu_the_cpu_is_measured(gpu):
    gpu.present = False
    result = benchmark(lambda: gpu.work(1e-4), budget=0.5)
    assert result.quantity == "wall"
    assert result.converged
    assert "no NVIDIA GPU" in result.absent["kernel"]
    assert result.environment["gpu"] is None
    assert result.warnings == ()


def test_without_a_gpu_there_is_no_graph(gpu):
    gpu.present = False
    with pytest.raises(NotAvailable, match="graph"):
        benchmark(gpu.launch, graph=True)


def test_the_environment_is_kept(gpu):
    environment = benchmark(gpu.launch).environment
    assert environment["gpu"] == "Simulated GPU"
    assert environment["driver"] == "580.0"
    assert {"python", "gpuscope", "cuda", "cupti", "tier", "date", "frameworks"} <= set(environment)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_mode_of_a_module_is_said(is_training):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1).train(is_training)
    result = benchmark(model, torch.ones(4, 3), budget=0.05)
    assert f"| {'train' if is_training else 'eval'} mode, gradients |" in str(result)
    assert "conditions: batch 4, float32, CPU" in result.report()


def test_the_mode_of_a_method_of_a_module_is_said():
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        result = benchmark(torch.nn.Linear(3, 1).forward, torch.ones(4, 3), budget=0.05)
    assert "| train mode, no gradients |" in str(result)


def test_a_target_as_text_is_judged_and_kept_in_json(gpu):
    result = benchmark(gpu.launch, target="1 s")
    assert result.target.met is True
    assert "| target 1 s: met (" in str(result)
    assert BenchmarkResult.from_json(result.to_json()).target == result.target


def test_a_relative_target_is_judged_against_an_earlier_result(gpu):
    before = benchmark(gpu.launch)
    assert benchmark(gpu.launch, target="+30 %", baseline=before).target.met is False
    assert benchmark(gpu.launch, target="+30 %", baseline=2 * before.estimate.value).target.met is True


def test_a_baseline_without_the_same_quantity_leaves_the_target_open(gpu):
    before = benchmark(gpu.launch)
    others = {name: each for name, each in before.quantities.items() if name != before.quantity}
    before = dataclasses.replace(before, quantities=others, quantity=next(iter(others)))
    assert benchmark(gpu.launch, target="+30 %", baseline=before).target.why == "the baseline has no kernel time"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"target": "fast"}, "target is 'fast'; accepted are '20 ms'"),
        ({"target": "500 samples/s"}, "target is '500 samples/s'; accepted are '20 ms'"),
        ({"target": "+30 %"}, "baseline is missing"),
        ({"baseline": 1.0}, "baseline is given with target=None; accepted is a target as"),
        ({"target": "+30 %", "baseline": -1}, "baseline is -1; accepted are earlier results, and seconds above 0"),
    ],
)
def test_bad_targets_and_baselines_are_refused(options, sentence):
    with pytest.raises(InvalidArgument, match=f"^{re.escape(sentence)}"):
        benchmark(int, **options)
