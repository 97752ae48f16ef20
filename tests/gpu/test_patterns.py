# SPDX-License-Identifier: Apache-2.0
"""Sweeps, crossovers, throughput, latency and loaders with work on a real GPU; loose bounds only."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.benchmarking.crossovers import crossover
from gpuscope.benchmarking.dataloader import benchmark_dataloader
from gpuscope.benchmarking.latency import measure_latency
from gpuscope.benchmarking.sweeps import sweep
from gpuscope.benchmarking.throughput import measure_throughput
from gpuscope.errors import InvalidArgument

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

# A data loader forks its workers; Python 3.12 warns of it in every program that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def on_cpu(n):
    x = np.random.default_rng(0).random((n, n), dtype=np.float32)
    return lambda: x @ x


def on_gpu(n):
    x = torch.rand(n, n, device="cuda")
    return lambda: x @ x


def with_copies(n):
    x = torch.rand(n, n).pin_memory()

    def call():
        y = x.cuda(non_blocking=True)
        return (y @ y).cpu()

    return call


@pytest.fixture
def model():
    return torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(4096, 10)
    ).cuda()


@pytest.fixture
def loader():
    data = torch.utils.data.TensorDataset(torch.rand(4096, 1024), torch.randint(0, 10, (4096,)))
    return torch.utils.data.DataLoader(data, batch_size=64, pin_memory=True)


def test_matrix_products_cross_over():
    result = crossover(on_cpu, on_gpu, transfers=with_copies, n=[8, 32, 128, 512, 2048], budget=10)
    assert result.without_transfers.kind in ("one", "several"), result
    assert result.without_transfers.crossings[-1].gpu_faster == "above", result
    assert 8 < result.without_transfers.crossings[-1].value < 2048
    assert result.with_transfers.crossings[-1].value >= 0.5 * result.without_transfers.crossings[-1].value


def test_a_sweep_has_kernel_times_that_grow_with_the_work():
    result = sweep(on_gpu, n=[256, 4096], budget=5)
    assert result[4096].estimate.value > 4 * result[256].estimate.value, result
    assert {point.quantity for point in result} <= {"kernel", "stream"}


def test_a_point_too_large_for_the_gpu_is_kept_and_the_rest_goes_on():
    result = sweep(on_gpu, n=[256, 10_000_000], budget=3)
    assert "OutOfMemory" in result[10_000_000].error
    assert result[256].estimate is not None


def test_each_points_memory_is_free_before_the_next():
    held = []

    def make(n):
        held.append(torch.cuda.memory_allocated())
        return on_gpu(n)

    before = torch.cuda.memory_allocated()
    sweep(make, n=[1024, 2048, 4096], budget=2)
    assert max(held) - before < 1024 * 1024 * 4  # the smallest point's inputs


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(InvalidArgument, match="device is 99"):
        sweep(on_gpu, n=[256], device=99)


def test_latency_has_the_gpus_time_and_the_callers(model):
    result = measure_latency(model, torch.rand(64, 1024), num_iterations=50)
    assert len(result.samples) == 50
    assert 0 < result.gpu.median <= 1.5 * result.wall.median
    assert np.percentile(result, 95) >= 1000 * result.min > 0
    assert model.training


def test_latency_holds_the_time_of_known_work(kernels):
    result = measure_latency(lambda: kernels.spin(2_000_000), (), num_iterations=20, stream=0)
    assert 1.9e-3 < result.gpu.median < 4e-3
    assert result.wall.median >= 0.9 * result.gpu.median


def test_a_training_is_measured_and_said_what_limits_it(model, loader):
    result = measure_throughput(
        model,
        loader,
        num_batches=40,
        criterion=torch.nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )
    assert (result.batches, result.samples) == (40, 40 * 64)
    assert 0 <= result.gpu_idle_share <= 1
    assert result.limit in ("loader", "gpu", "step")


def test_a_gpu_that_is_kept_busy_limits(kernels):
    result = measure_throughput(lambda batch: kernels.spin(5_000_000), [torch.zeros(8)] * 60, num_batches=50, device=0)
    assert result.limit == "gpu", result
    assert result.gpu_idle_share < 0.1
    assert 4.9e-3 < result.seconds_per_batch < 8e-3


def test_a_gpu_that_waits_for_data_is_limited_by_the_loader(kernels):
    import time

    def slow():
        for _ in range(40):
            time.sleep(5e-3)
            yield torch.zeros(8)

    result = measure_throughput(lambda batch: kernels.spin(200_000), slow(), num_batches=30, device=0)
    assert result.limit == "loader", result
    assert result.gpu_idle_share > 0.5


def test_pinned_batches_of_workers_arrive(loader):
    result = benchmark_dataloader(loader, 20, workers=[0, 2])
    assert [each.workers for each in result] == [0, 2]
    assert not any("pin_memory" in text for text in result.warnings)
