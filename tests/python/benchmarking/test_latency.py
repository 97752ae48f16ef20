# SPDX-License-Identifier: Apache-2.0
"""How long a caller waits for an answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fakes.loaders import Clock, Marks
from gpuscope.benchmarking import latency
from gpuscope.benchmarking.latency import measure_latency
from gpuscope.errors import InvalidArgument
from gpuscope.figures import Distribution
from gpuscope.stats.location import fewest_samples, quantile_ranks


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(latency, "now", clock)
    monkeypatch.setattr(latency, "marks_of_process", lambda stream=None: None)
    return clock


@pytest.fixture
def gpu(clock, monkeypatch):
    marks = Marks(clock)
    monkeypatch.setattr(latency, "marks_of_process", lambda stream=None: marks)
    return marks


def taking(clock, times):
    """A model that takes the given seconds, one after the other."""
    waiting = iter(times)
    return lambda x: clock.spend(next(waiting))


def test_each_call_is_timed_in_seconds(clock):
    result = measure_latency(taking(clock, [9, 0.001, 0.002, 0.003]), 0, num_iterations=3, warmup=1)
    assert result.samples == pytest.approx([0.001, 0.002, 0.003])
    assert result.wall.mean == pytest.approx(0.002)
    assert result.wall.median == pytest.approx(0.002)
    assert (result.wall.min, result.wall.max) == pytest.approx((0.001, 0.003))


def test_as_an_array_it_is_in_milliseconds(clock):
    result = measure_latency(taking(clock, [0.001, 0.002, 0.003, 0.004]), 0, num_iterations=4, warmup=0)
    assert np.asarray(result) == pytest.approx([1, 2, 3, 4])
    assert (result.mean, result.min, result.max) == pytest.approx((2.5e-3, 1e-3, 4e-3))
    assert result.std == pytest.approx(np.std([1, 2, 3, 4]) / 1000)
    assert (np.mean(result), np.std(result)) == pytest.approx((2.5, np.std([1, 2, 3, 4])))
    assert (np.median(result), np.percentile(result, 50), np.max(result)) == pytest.approx((2.5, 2.5, 4))
    assert result[1:] == pytest.approx([2, 3, 4])
    assert (len(result), list(result)) == (4, pytest.approx([1, 2, 3, 4]))


def test_numpy_takes_it_in_lists_and_by_keyword(clock):
    result = measure_latency(taking(clock, [0.001, 0.002]), 0, num_iterations=2, warmup=0)
    assert np.concatenate([result, result]) == pytest.approx([1, 2, 1, 2])
    assert np.percentile(a=result, q=50) == pytest.approx(1.5)


def test_the_text_has_the_usual_statistics_in_milliseconds(clock):
    text = str(measure_latency(taking(clock, [0.002] * 5), 0, num_iterations=5, warmup=0))
    assert text.splitlines()[0] == (
        "Latency - Mean: 2.00 ms, Std: 0.00 ms, Median: 2.00 ms, Min: 2.00 ms, Max: 2.00 ms, P95: 2.00 ms, P99: 2.00 ms"
    )


def test_short_times_keep_digits_that_say_something(clock):
    text = str(measure_latency(taking(clock, [21.3e-6] * 5), 0, num_iterations=5, warmup=0))
    assert "Median: 0.0213 ms" in text


def test_a_quantile_of_too_few_calls_has_no_interval_and_says_so(clock):
    result = measure_latency(taking(clock, np.random.default_rng(0).uniform(1, 2, 110)), 0)
    assert result.wall.interval(0.99).low is None
    p90 = result.wall.interval(0.9)
    assert p90.low < p90.value == result.wall.p90 < p90.high
    assert "p99 of 100 samples" in str(result)
    assert "has no interval: 368 are needed" in str(result)


def test_the_gpus_time_is_measured_beside_the_callers(gpu, clock):
    def model(x):
        clock.spend(0.001)
        gpu.give(0.004)

    result = measure_latency(model, 0, num_iterations=5)
    assert result.wall.samples == pytest.approx([0.005] * 5)
    assert result.gpu.samples == pytest.approx([0.005] * 5)
    assert "GPU     - Mean: 5.00 ms" in str(result)


def test_without_a_gpu_there_is_a_reason(clock):
    result = measure_latency(lambda x: None, 0, num_iterations=2)
    assert result.gpu is None
    assert result.absent == "nothing of the model is on a GPU"


def test_a_latency_that_falls_asks_for_a_longer_warm_up(clock):
    result = measure_latency(taking(clock, np.linspace(2, 1, 60)), 0, num_iterations=60, warmup=0)
    assert "give a longer warmup" in result.warnings[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(5, ((5,), {})), ((1, 2), ((1, 2), {})), ({"a": 1}, ((), {"a": 1})), ((), ((), {})), (([1],), (([1],), {}))],
)
def test_the_input_is_handed_over_as_arguments(clock, given, expected):
    seen = []
    measure_latency(lambda *args, **kwargs: seen.append((args, kwargs)), given, num_iterations=1, warmup=0)
    assert seen == [expected]


def test_a_module_runs_in_evaluation_mode_and_each_part_is_put_back():
    torch = pytest.importorskip("torch")
    seen = []

    class Part(torch.nn.Dropout):
        def forward(self, x):
            seen.append((self.training, torch.is_grad_enabled()))
            return x

    model = torch.nn.Sequential(Part(), torch.nn.BatchNorm1d(3))
    model[1].eval()  # frozen
    measure_latency(model, torch.ones(4, 3), num_iterations=3)
    assert set(seen) == {(False, False)}
    assert [part.training for part in model.modules()] == [True, True, False]


def test_a_module_that_raises_is_put_back_too():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    with pytest.raises(RuntimeError):
        measure_latency(model, torch.ones(4, 7))
    assert model.training
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("is_module", [True, False])
def test_the_first_line_says_the_mode_of_a_module(is_module):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    result = measure_latency(model if is_module else lambda x: model(x), torch.ones(4, 3), num_iterations=2, warmup=0)
    assert result.mode == ("inference: eval mode, no gradients" if is_module else "")
    assert str(result).startswith("inference: eval mode, no gradients\nLatency - " if is_module else "Latency - ")


def test_the_input_goes_to_the_modules_device():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1, device="meta")
    devices = []
    model.register_forward_pre_hook(lambda module, inputs: devices.append(inputs[0].device.type))
    measure_latency(model, torch.ones(4, 3), num_iterations=2, warmup=0)
    assert devices == ["meta", "meta"]


def test_json_holds_the_samples(clock):
    read = json.loads(measure_latency(taking(clock, [0.5] * 3), 0, num_iterations=3, warmup=0).to_json())
    assert read["wall"]["samples"] == [0.5] * 3
    assert read["gpu"] is None


def test_bad_counts_are_refused():
    with pytest.raises(InvalidArgument, match="num_iterations is 0; accepted are integers from 1"):
        measure_latency(lambda x: None, 0, num_iterations=0)
    with pytest.raises(InvalidArgument, match="warmup is -2; accepted are integers from 0"):
        measure_latency(lambda x: None, 0, warmup=-2)


@pytest.mark.parametrize(("q", "fewest"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368)])
def test_fewest_samples_leave_the_quantile_within_their_range_often_enough(q, fewest):
    assert fewest_samples(q) == fewest
    assert q**fewest <= 0.025 < q ** (fewest - 1)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_the_interval_of_a_quantile_covers_what_it_says(q):
    stats = pytest.importorskip("scipy.stats")
    for n in (400, 1000):
        low, high = quantile_ranks(n, q)
        assert stats.binom.cdf(high - 1, n, q) - stats.binom.cdf(low - 1, n, q) >= 0.95


def test_repeated_samples_do_not_narrow_the_interval():
    once = np.random.default_rng(3).uniform(1, 2, 100)
    apart, repeated = Distribution(once).interval(0.5), Distribution(np.repeat(once, 10)).interval(0.5)
    assert repeated.high - repeated.low > 0.6 * (apart.high - apart.low)


def test_the_conditions_of_a_module_have_mode_batch_and_type():
    torch = pytest.importorskip("torch")
    conditions = measure_latency(torch.nn.Linear(3, 1), torch.ones(4, 3), num_iterations=2).conditions
    assert (conditions.mode, conditions.batch_size, conditions.dtype) == ("eval", 4, "float32")
    assert conditions.gradients is False


def test_a_module_without_parameters_has_the_type_of_its_input():
    torch = pytest.importorskip("torch")
    result = measure_latency(torch.nn.ReLU(), torch.ones(4, 3, dtype=torch.float16), num_iterations=2)
    assert "conditions: batch 4, float16, CPU" in str(result)
