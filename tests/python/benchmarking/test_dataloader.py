# SPDX-License-Identifier: Apache-2.0
"""How fast loaders are, and how many workers they need."""

from __future__ import annotations

import json
import multiprocessing

import pytest

from fakes.loaders import Clock, Loader
from gpuscope.benchmarking import dataloader
from gpuscope.benchmarking.dataloader import benchmark_dataloader, recommendation
from gpuscope.errors import InvalidArgument

# A data loader forks its workers; Python 3.12 warns of it in every program that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(dataloader, "now", clock)
    return clock


@pytest.fixture
def data():
    """torch.utils.data, and no worker process left behind."""
    before = set(multiprocessing.active_children())
    yield pytest.importorskip("torch.utils.data")
    assert set(multiprocessing.active_children()) <= before


class Squares:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return float(index**2)


class Workers:
    """A loader with workers, whose batches take given seconds on the clock."""

    prefetch_factor = 2

    def __init__(self, clock, seconds, workers):
        self.clock = clock
        self.seconds = seconds
        self.num_workers = workers

    def __iter__(self):
        for seconds in self.seconds:
            self.clock.spend(seconds)
            yield 0


class Broken(Squares):
    def __getitem__(self, index):
        if index == 40:
            raise OSError("image 40 is cut off")
        return float(index)


class Interrupted(Squares):
    """Ctrl-C comes while the main process makes batch 10, but not in a worker."""

    def __getitem__(self, index):
        if index == 40 and multiprocessing.parent_process() is None:
            raise KeyboardInterrupt
        return float(index)


def test_the_figures_are_reached_as_in_a_dict(clock):
    figures = benchmark_dataloader(Loader(clock, [0] * 100, seconds=0.02, start=3))
    assert figures["avg_batch_time_ms"] == pytest.approx(20)
    assert figures["batches_per_second"] == pytest.approx(50)
    assert figures["slowest_batch_ms"] == pytest.approx(20)
    assert figures["fastest_batch_ms"] == pytest.approx(20)
    assert {"avg_batch_time_ms", "p95_batch_ms"} < set(dict(figures))


def test_the_first_batch_is_kept_apart(clock):
    result = benchmark_dataloader(Loader(clock, [0] * 100, seconds=0.02, start=3))
    assert result.first_batch == pytest.approx(3.02)
    assert len(result.times) == 50
    assert "the first batch took 3.0 s" in result.warnings[0]


def test_a_short_loader_begins_anew_and_the_wait_for_its_later_epochs_counts(clock):
    result = benchmark_dataloader(Loader(clock, [0] * 11, seconds=0.02, start=1), num_batches=25)
    assert len(result.times) == 25
    assert result.epoch_starts == pytest.approx((1.02, 1.02))
    assert result["avg_batch_time_ms"] == pytest.approx(20 + 2000 / 25)
    assert result["batches_per_second"] == pytest.approx(25 / 2.5)


def test_a_later_epoch_whose_batches_all_come_with_the_first_is_timed_whole(clock):
    result = benchmark_dataloader(Workers(clock, (0.3, 0, 0), workers=4), 6)
    assert result["avg_batch_time_ms"] == pytest.approx(100)
    assert not result.warnings


def test_a_single_epoch_that_the_workers_may_have_loaded_ahead_is_named(clock):
    (text,) = benchmark_dataloader(Workers(clock, (0.1, 0, 0.02, 0.02), workers=2), 2).warnings
    assert text.startswith("the workers may have loaded most of the 4 batches")


def test_batches_that_workers_began_together_are_not_timed(clock):
    loader = Workers(clock, (1, 0, 0, 0, 0.02, 0.02, 0.02), workers=4)
    assert benchmark_dataloader(loader, 3).times.samples == pytest.approx([0.02] * 3)


def test_epochs_of_one_batch_are_timed_whole_and_it_is_told(clock):
    result = benchmark_dataloader(Loader(clock, [0], seconds=0.02), num_batches=5)
    assert len(result.times) == 5
    assert "an epoch is a single batch" in result.warnings[0]


def test_a_generator_counts_what_there_was(clock):
    result = benchmark_dataloader(iter(Loader(clock, [0] * 5)), num_batches=50)
    assert len(result.times) == 4
    assert result.warnings == ("the loader ended after 4 of 50 batches",)


@pytest.mark.parametrize("loader", [[], iter(())])
def test_an_empty_loader_is_refused(loader):
    with pytest.raises(InvalidArgument, match="loader is empty"):
        benchmark_dataloader(loader)


def test_a_step_tells_how_long_the_gpu_would_wait(clock):
    result = benchmark_dataloader(Loader(clock, [0] * 100, seconds=0.045), step_ms=20)
    assert result.idle_share(20) == pytest.approx(25 / 45)
    assert "with a step of 20 ms the GPU idles 56% of the time" in str(result)


def test_json_holds_the_figures(clock):
    read = json.loads(benchmark_dataloader(Loader(clock, [0] * 100, seconds=0.02)).to_json())
    assert read["avg_batch_time_ms"] == pytest.approx(20)


@pytest.mark.parametrize(
    ("batch_ms", "step_ms", "expected"),
    [
        ({0: 45.2, 2: 18.7, 4: 9.3, 8: 5.1, 12: 5.0}, None, (8, "within 5% of the fastest, 12 workers")),
        ({0: 45.2, 2: 18.7, 4: 9.3, 8: 5.1, 12: 5.0}, 20, (2, "the fewest that feed a step of 20 ms")),
        ({0: 45.2, 2: 18.7}, 5, (2, "none feeds a step of 5 ms, the GPU idles 73% of the time")),
        ({0: 5.0, 2: 9.0}, None, (0, "the fastest at 5.0 ms/batch")),
    ],
)
def test_the_recommendation_is_the_smallest_count_that_is_fast_enough(batch_ms, step_ms, expected):
    count, why = recommendation(batch_ms, step_ms)
    assert count == expected[0]
    assert expected[1] in why


def test_each_worker_count_is_measured(data):
    result = benchmark_dataloader(data.DataLoader(Squares(), batch_size=4), 6, workers=[0, 1, 2])
    assert [result[count].workers for count in (0, 1, 2)] == [0, 1, 2]
    assert [len(each.times) for each in result] == [6, 6, 6]


def test_the_text_is_a_table_with_the_recommendation_below(data):
    lines = str(benchmark_dataloader(data.DataLoader(Squares(), batch_size=4), 5, workers=[0, 2])).splitlines()
    assert lines[0].startswith("workers= 0: ")
    assert "ms/batch, " in lines[1]
    assert lines[1].endswith(" batches/sec")
    assert lines[2].startswith("recommended: num_workers=")


def test_more_workers_than_cores_are_told(data, monkeypatch):
    monkeypatch.setattr(dataloader, "_cpu_cores", lambda: 1)
    result = benchmark_dataloader(data.DataLoader(Squares(), batch_size=4), 3, workers=[0, 2])
    assert "this process may use 1 CPU cores: more workers than that take turns" in result.warnings


def test_workers_that_gain_nothing_are_told(data, monkeypatch):
    times = iter([(0.01, 0), (0.0099, 2)])

    def measured(loader, num_batches, own=False):
        seconds, workers = next(times)
        return dataloader.DataLoaderResult(dataloader.Distribution([seconds]), 0.0, (), workers, ())

    monkeypatch.setattr(dataloader, "_measured", measured)
    result = benchmark_dataloader(data.DataLoader(Squares()), workers=[0, 2])
    assert result.recommended == 0
    assert any("more workers than 0 gain nothing" in text for text in result.warnings)


def test_unpinned_batches_are_told_where_there_is_a_gpu(data, monkeypatch):
    monkeypatch.setattr(dataloader.torch, "uses_cuda", lambda: True)
    result = benchmark_dataloader(data.DataLoader(Squares(), batch_size=4), 3, workers=[0])
    assert any(text.startswith("pin_memory is off") for text in result.warnings)


def test_an_exception_of_the_dataset_goes_on_and_no_worker_stays(data):
    with pytest.raises(OSError, match="image 40 is cut off") as raised:
        benchmark_dataloader(data.DataLoader(Broken(), batch_size=4), 30, workers=[2, 0])
    assert "__getitem__" in str(raised.value)  # the worker's own traceback


def test_an_interrupt_keeps_the_counts_that_are_done(data):
    result = benchmark_dataloader(data.DataLoader(Interrupted(), batch_size=4), 12, workers=[1, 0])
    assert list(result.results) == [1]
    assert "interrupted: 1 of 2 worker counts were measured" in result.warnings


def test_an_interrupt_before_anything_is_done_goes_on(data):
    with pytest.raises(KeyboardInterrupt):
        benchmark_dataloader(data.DataLoader(Interrupted(), batch_size=4), 12, workers=[0])


def test_iterable_datasets_are_rebuilt(data):
    class Counting(data.IterableDataset):
        def __iter__(self):
            return iter(range(40))

    result = benchmark_dataloader(data.DataLoader(Counting(), batch_size=4), 5, workers=[0, 2])
    assert list(result.results) == [0, 2]


def test_a_custom_batch_sampler_is_kept(data):
    drawn = []

    class Pairs:
        def __iter__(self):
            for i in range(0, 60, 2):
                drawn.append(i)
                yield [i, i + 1]

        def __len__(self):
            return 30

    benchmark_dataloader(data.DataLoader(Squares(), batch_sampler=Pairs()), 5, workers=[0])
    assert drawn == [0, 2, 4, 6, 8, 10]


def test_a_custom_sampler_without_batches_is_kept(data):
    drawn = []

    class Backwards:
        def __iter__(self):
            for i in range(63, -1, -1):
                drawn.append(i)
                yield i

    benchmark_dataloader(data.DataLoader(Squares(), batch_size=None, sampler=Backwards()), 3, workers=[0])
    assert drawn == [63, 62, 61, 60]


def test_a_loaders_own_persistent_workers_are_left_alone(data):
    loader = data.DataLoader(Squares(), batch_size=4, num_workers=1, persistent_workers=True)
    benchmark_dataloader(loader, 3)
    (worker,) = loader._iterator._workers
    assert worker.is_alive()
    loader._iterator._shutdown_workers()


def test_what_is_no_dataloader_cannot_be_rebuilt():
    with pytest.raises(InvalidArgument, match="loader is a list; accepted with workers is a torch DataLoader"):
        benchmark_dataloader([1, 2], workers=[0, 2])


@pytest.mark.parametrize("workers", [[], [-1], ["a"], 4, [True]])
def test_bad_worker_counts_are_refused(workers):
    with pytest.raises(InvalidArgument, match=r"workers is .*; accepted is a list of counts from 0"):
        benchmark_dataloader([1], workers=workers)


def test_other_bad_arguments_are_refused():
    with pytest.raises(InvalidArgument, match="num_batches is 0; accepted are integers from 1"):
        benchmark_dataloader([1], 0)
    with pytest.raises(InvalidArgument, match="step_ms is 0; accepted are milliseconds above 0"):
        benchmark_dataloader([1], step_ms=0)


def test_a_loader_that_is_none_is_named():
    with pytest.raises(InvalidArgument, match="loader is 3; accepted are a DataLoader and any other iterable"):
        benchmark_dataloader(3)


def test_the_conditions_have_batch_type_and_workers(data):
    import torch

    loader = data.DataLoader(data.TensorDataset(torch.ones(64, 3)), batch_size=16)
    result = benchmark_dataloader(loader, num_batches=3)
    assert "conditions: batch 16, float32, 0 workers, CPU" in str(result)
    assert result.to_dict()["conditions"]["batch_size"] == 16


def test_batches_of_an_unknown_type_have_no_size(clock):
    class Batch:
        shape = 7

    conditions = benchmark_dataloader(Loader(clock, [Batch()] * 20), num_batches=5).conditions
    assert conditions.batch_size is None
    assert conditions.absent["batch_size"] == "not known"
