# SPDX-License-Identifier: Apache-2.0
"""How much a loader and a step get through, and which of them limits."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fakes.loaders import Clock, Loader, Marks
from gpuscope.benchmarking import throughput
from gpuscope.benchmarking.throughput import measure_throughput
from gpuscope.errors import InvalidArgument

BATCH = np.zeros((4, 2))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(throughput, "now", clock)
    monkeypatch.setattr(throughput, "marks_of_process", lambda device=None: None)
    return clock


@pytest.fixture
def gpu(clock, monkeypatch):
    marks = Marks(clock)
    monkeypatch.setattr(throughput, "marks_of_process", lambda device=None: marks)
    return marks


def test_samples_batches_and_times_are_counted(clock):
    result = measure_throughput(lambda batch: clock.spend(0.03), Loader(clock, [BATCH] * 50), num_batches=20)
    assert (result.batches, result.samples) == (20, 80)
    assert result.seconds == pytest.approx(0.8)
    assert result.samples_per_second == pytest.approx(100)
    assert result.batches_per_second == pytest.approx(25)
    assert result.seconds_per_batch == pytest.approx(0.04)


def test_the_warm_up_and_the_start_of_the_loader_are_left_out(clock):
    seen = []
    loader = Loader(clock, [BATCH] * 5, start=100)
    result = measure_throughput(seen.append, loader, num_batches=2, warmup=3)
    assert len(seen) == 5
    assert result.seconds == pytest.approx(0.02)


def test_an_iterator_counts_what_there_was_and_says_so(clock):
    result = measure_throughput(lambda batch: None, iter(Loader(clock, [BATCH] * 7)), num_batches=100, warmup=2)
    assert result.batches == 5
    assert "the loader ended after 5 of 100 batches; pass a loader, or itertools.cycle(...)" in str(result)


def test_one_batch_is_singular(clock):
    assert "(1 batch; " in str(measure_throughput(lambda batch: clock.spend(1), iter([BATCH]), warmup=0))


def test_a_short_loader_is_restarted_and_its_restarts_are_waited_for(clock):
    result = measure_throughput(lambda batch: None, Loader(clock, [BATCH] * 4, start=1), num_batches=9, warmup=3)
    assert result.batches == 9
    assert result.wait_seconds == pytest.approx(9 * 0.01 + 2)
    assert result.warnings[0] == "3 epochs of 4 batches: the wait for the loader includes its restarts"


def test_a_loader_that_is_empty_when_restarted_ends_the_measurement(clock):
    class Once:
        left = [BATCH] * 5

        def __iter__(self):
            while self.left:
                yield self.left.pop()

    result = measure_throughput(lambda batch: clock.spend(1), Once(), warmup=0)
    assert result.warnings[0].startswith("the loader ended after 5 of 100 batches")


def test_a_loader_that_the_warm_up_takes_begins_anew(clock):
    result = measure_throughput(lambda batch: None, Loader(clock, [BATCH] * 2), num_batches=2, warmup=3)
    assert result.batches == 2
    assert "the warm-up took the whole loader" in result.warnings[0]


def test_an_empty_loader_is_refused(clock):
    with pytest.raises(InvalidArgument, match="loader is empty"):
        measure_throughput(lambda batch: None, [])


def test_a_generator_that_the_warm_up_takes_is_refused(clock):
    with pytest.raises(InvalidArgument, match="no batch beyond the 3 of the warm-up"):
        measure_throughput(lambda batch: None, (BATCH for _ in range(2)))


def test_batches_of_varying_size_are_counted_and_told(clock):
    batches = [np.zeros(n) for n in (8, 8, 8, 8, 3)]
    result = measure_throughput(lambda batch: None, Loader(clock, batches), num_batches=5, warmup=0)
    assert result.samples == 35
    assert "batches of 3 to 8 samples" in result.warnings


def test_batches_without_a_length_count_as_one_sample_and_it_is_told(clock):
    result = measure_throughput(lambda batch: None, Loader(clock, [object()] * 5), num_batches=5, warmup=0)
    assert result.samples == 5
    assert "cannot be told" in str(result)


@pytest.mark.parametrize(
    "batch",
    [
        BATCH,
        (BATCH, np.zeros(4)),
        [BATCH, np.zeros(4)],
        {"x": BATCH},
        {"a": 1.0, "x": BATCH},
        [1, 2, 3, 4],
        ((BATCH, BATCH), BATCH),
        [[BATCH, BATCH], [BATCH, BATCH]],
        (7, BATCH),
        (np.float64(7), BATCH),
        tuple(zip(*[(np.zeros((3, 8, 8)), {"boxes": np.zeros((2, 4))})] * 4, strict=True)),
        [[np.zeros((3, 8, 8))] * 4, [1, 2, 3, 4]],
    ],
)
def test_the_size_of_a_batch_is_found(clock, batch):
    assert measure_throughput(lambda _: None, Loader(clock, [batch]), num_batches=1, warmup=0).samples == 4


def test_without_a_gpu_the_longer_of_loader_and_step_limits(clock):
    slow = measure_throughput(lambda batch: clock.spend(0.03), Loader(clock, [BATCH] * 9))
    fast = measure_throughput(lambda batch: clock.spend(0.003), Loader(clock, [BATCH] * 9))
    assert (slow.limit, fast.limit) == ("step", "loader")
    assert slow.wait_share == pytest.approx(0.25)


def test_a_gpu_that_is_always_busy_limits(gpu, clock):
    result = measure_throughput(lambda batch: gpu.give(0.02), Loader(clock, [BATCH] * 50), warmup=1)
    assert result.limit == "gpu"
    assert result.gpu_idle_share < 0.05
    assert result.seconds_per_batch == pytest.approx(0.02, rel=0.05)


def test_a_gpu_that_waits_for_data_is_limited_by_the_loader(gpu, clock):
    result = measure_throughput(lambda batch: gpu.give(0.002), Loader(clock, [BATCH] * 50), warmup=1)
    assert result.limit == "loader"
    assert result.gpu_idle_share == pytest.approx(0.8, rel=0.05)


def test_a_gpu_with_nothing_queued_at_the_ends_of_steps_does_not_limit(gpu, clock):
    def slow(batch):
        gpu.give(0.001)
        clock.spend(0.01)

    result = measure_throughput(slow, Loader(clock, [BATCH] * 50, seconds=0.0001), warmup=1)
    assert result.limit == "step"
    assert "the GPU had nothing left to do" in str(result)


def test_the_time_ends_when_the_gpu_has_finished(gpu, clock):
    result = measure_throughput(lambda batch: gpu.give(1.0), Loader(clock, [BATCH] * 4), num_batches=4, warmup=0)
    assert result.seconds == pytest.approx(4.01)


def test_the_end_of_the_loader_is_no_part_of_the_time(clock):
    def loader():
        for _ in range(20):
            clock.spend(0.01)
            yield BATCH
        clock.spend(1.0)

    result = measure_throughput(lambda batch: None, loader(), warmup=0)
    assert result.seconds == pytest.approx(0.2)


def test_what_the_gpu_still_does_counts_when_the_run_is_interrupted(gpu, clock):
    def step(batch):
        if gpu.free > 0.4 + start:
            raise KeyboardInterrupt
        gpu.give(0.01)

    start = clock.now
    result = measure_throughput(step, Loader(clock, [range(8)] * 100, seconds=0.0), num_batches=100, warmup=0)
    assert str(result).startswith("interrupted after ")
    assert float(result) == pytest.approx(800)


def test_an_interval_comes_with_thirty_batches(clock):
    generator = np.random.default_rng(0)
    times = iter(generator.uniform(0.02, 0.04, 200))
    result = measure_throughput(lambda batch: clock.spend(next(times)), Loader(clock, [BATCH] * 100))
    low, high = result.samples_per_second_ci
    assert low < result.samples_per_second < high
    low, high = result.seconds_per_batch_ci
    assert low < result.seconds_per_batch < high


def test_fewer_batches_have_no_interval_and_it_is_told(clock):
    result = measure_throughput(lambda batch: None, Loader(clock, [BATCH] * 29), num_batches=29, warmup=0)
    assert (result.samples_per_second_ci, result.seconds_per_batch_ci) == (None, None)
    assert "no 95 % interval: it takes 30 batches" in result.warnings


def test_it_is_a_number_and_formats_as_one(clock):
    result = measure_throughput(lambda batch: clock.spend(0.03), Loader(clock, [BATCH] * 9))
    assert float(result) == pytest.approx(100)
    assert f"{result:.2f} samples/sec" == "100.00 samples/sec"


def test_the_text_is_one_line_with_rate_and_time_and_one_with_the_conditions(clock):
    text = str(measure_throughput(lambda batch: clock.spend(0.03), Loader(clock, [BATCH] * 50), num_batches=30))
    assert text.startswith("Throughput: 100.00 samples/sec (95 %: 100.00 to 100.00), time per batch: 40.00 ms")
    assert text.splitlines()[1:] == ["conditions: batch 4, float64, CPU"]


def test_json_holds_the_figures(clock):
    read = json.loads(measure_throughput(lambda batch: None, Loader(clock, [BATCH] * 9), num_batches=6).to_json())
    assert read["batches"] == 6


def test_bad_counts_are_refused(clock):
    with pytest.raises(InvalidArgument, match="num_batches is 0; accepted are integers from 1"):
        measure_throughput(lambda batch: None, [BATCH], num_batches=0)
    with pytest.raises(InvalidArgument, match="warmup is -1; accepted are integers from 0"):
        measure_throughput(lambda batch: None, [BATCH], warmup=-1)


def test_a_module_is_trained_with_criterion_and_optimizer():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    before = model.weight.detach().clone()
    loader = [(torch.ones(4, 3), torch.zeros(4, 1))] * 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = measure_throughput(model, loader, 4, criterion=torch.nn.MSELoss(), optimizer=optimizer, warmup=1)
    assert result.samples == 16
    assert not torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_a_module_is_trained_on_mappings_by_their_target():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x)

    model = Model(3, 1)
    loader = [{"x": torch.ones(4, 3), "labels": torch.zeros(4, 1)}] * 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = measure_throughput(model, loader, 2, criterion=torch.nn.MSELoss(), optimizer=optimizer, warmup=1)
    assert result.samples == 8


@pytest.mark.parametrize("output", [SimpleNamespace, dict])
def test_a_model_with_a_loss_of_its_own_needs_no_criterion(output):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Linear):
        def forward(self, x, labels):
            return output(loss=(super().forward(x) - labels).pow(2).mean())

    model = Model(3, 1)
    before = model.weight.detach().clone()
    loader = [{"x": torch.ones(4, 3), "labels": torch.zeros(4, 1)}] * 3
    measure_throughput(model, loader, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), warmup=1)
    assert not torch.equal(model.weight, before)


def test_a_module_alone_runs_in_evaluation_mode_without_gradients_and_is_put_back():
    torch = pytest.importorskip("torch")
    seen = []

    class Model(torch.nn.Linear):
        def forward(self, x):
            seen.append((self.training, torch.is_grad_enabled()))
            return super().forward(x)

    model = Model(3, 1)
    measure_throughput(model, [(torch.ones(4, 3), torch.zeros(4))] * 4)
    assert set(seen) == {(False, False)}
    assert model.training


@pytest.mark.parametrize(
    ("is_trained", "mode"),
    [
        (False, "inference: eval mode, no gradients; pass criterion= and optimizer= to train"),
        (True, "training: train mode, with gradients and optimizer steps"),
    ],
)
def test_the_first_line_says_in_which_mode_a_module_ran(is_trained, mode):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    training = {"criterion": torch.nn.MSELoss(), "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    loader = [(torch.ones(4, 3), torch.zeros(4, 1))] * 5
    result = measure_throughput(model, loader, warmup=1, **(training if is_trained else {}))
    assert str(result).splitlines()[0] == mode
    assert result.to_dict()["mode"] == mode


def test_batches_go_to_the_modules_device():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1, device="meta")
    devices = []
    model.register_forward_hook(lambda module, inputs, output: devices.append(output.device.type))
    measure_throughput(model, [{"input": torch.ones(4, 3)}] * 4)
    assert set(devices) == {"meta"}


def test_a_batch_without_a_target_cannot_be_trained_on():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidArgument, match="loader gives Tensor; accepted with a criterion are"):
        measure_throughput(model, [torch.ones(4, 3)] * 4, criterion=torch.nn.MSELoss(), optimizer=optimizer)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
@pytest.mark.parametrize(
    ("batch", "passed"), [({"x": 1, "y": 2}, "keywords: x"), ((1, 2, 3), "2 positional arguments")]
)
def test_a_batch_that_does_not_fit_the_model_has_a_note_of_how_it_was_passed(batch, passed):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError) as raised:
        measure_throughput(torch.nn.Sequential(torch.nn.ReLU()), [batch])
    (note,) = raised.value.__notes__
    assert note == f"the input was passed as {passed}; pass a function of the batch instead of the module"


@pytest.mark.parametrize("wrap", [lambda data, tensor: data.TensorDataset(tensor), lambda data, tensor: tensor])
def test_single_samples_are_no_loader(wrap):
    torch = pytest.importorskip("torch")
    samples = wrap(torch.utils.data, torch.ones(64, 3))
    name = type(samples).__name__
    with pytest.raises(InvalidArgument, match=f"loader is a {name}, which gives single samples; accepted is a DataL"):
        measure_throughput(lambda batch: None, samples)


def test_an_iterable_dataset_may_give_batches():
    torch = pytest.importorskip("torch")

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter([BATCH] * 5)

    assert measure_throughput(lambda batch: None, Batches(), num_batches=2).samples == 8


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"criterion": "ce", "optimizer": object()}, "criterion is 'ce'; accepted is a function of output and target"),
        ({"criterion": dict, "optimizer": object()}, "criterion is the class dict; accepted is an object, as MSELoss"),
        ({"optimizer": dict}, "optimizer is the class dict; accepted is an object, as Adam"),
    ],
)
def test_a_criterion_or_optimizer_of_another_kind_is_refused(arguments, text):
    with pytest.raises(InvalidArgument, match=text):
        measure_throughput(lambda batch: None, [BATCH], **arguments)


def test_a_criterion_without_an_optimizer_is_refused():
    with pytest.raises(InvalidArgument, match="optimizer is missing"):
        measure_throughput(lambda batch: None, [BATCH], criterion=lambda a, b: a)


def test_an_optimizer_of_no_module_is_refused():
    with pytest.raises(InvalidArgument, match=r"step is no torch.nn.Module"):
        measure_throughput(lambda batch: None, [BATCH], optimizer=object())


def test_a_loader_that_is_none_is_named():
    with pytest.raises(InvalidArgument, match="loader is 3; accepted are a DataLoader and any other iterable"):
        measure_throughput(lambda batch: None, 3)


@pytest.mark.parametrize(
    ("target", "baseline", "met"),
    [
        ("99 samples/s", None, True),
        ("101 samples/s", None, False),
        ("50 ms", None, True),
        ("30 ms", None, False),
        ("+30 %", 50, True),
        ("+30 %", 90.0, False),
    ],
)
def test_a_target_is_of_samples_a_second_or_of_the_time_of_a_batch(clock, target, baseline, met):
    loader = Loader(clock, [BATCH] * 50)
    result = measure_throughput(
        lambda batch: clock.spend(0.03), loader, num_batches=40, target=target, baseline=baseline
    )
    assert result.target.met is met
    assert str(result.target) in str(result)
    assert result.to_dict()["target"]["met"] is met


def test_without_an_interval_no_target_is_certain(clock):
    result = measure_throughput(lambda batch: clock.spend(0.03), iter(Loader(clock, [BATCH] * 9)), target="1 samples/s")
    assert str(result.target) == "target 1 samples/s: not certain (no 95 % interval: it takes 30 batches)"


def test_other_conditions_than_those_of_the_baseline_are_named(clock):
    def measured(batch, **options):
        loader = Loader(clock, [batch] * 50)
        return measure_throughput(lambda batch: clock.spend(0.03), loader, num_batches=40, **options)

    found = measured(np.zeros((8, 2), np.float32), target="+30 %", baseline=measured(BATCH))
    differ = "the conditions differ: batch_size 4 before, 8 after; dtype float64 before, float32 after"
    assert str(found.target).endswith(f"; {differ}")


def test_a_baseline_without_a_relative_target_is_refused(clock):
    with pytest.raises(InvalidArgument, match="accepted is a target as '\\+30 %'"):
        measure_throughput(lambda batch: None, [BATCH], target="20 ms", baseline=5)


@pytest.mark.parametrize("batch", [(np.zeros((4, 2)), np.zeros(4)), {"x": np.zeros((4, 2))}, [np.zeros((4, 2))]])
def test_the_conditions_have_batch_size_and_dtype_of_any_form_of_batch(clock, batch):
    conditions = measure_throughput(lambda batch: None, Loader(clock, [batch] * 9)).conditions
    assert (conditions.batch_size, conditions.dtype, conditions.mode) == (4, "float64", None)


def test_the_conditions_of_training_have_the_mode_and_the_type_of_the_parameters():
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Flatten(), torch.nn.Linear(6, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = [(torch.ones(4, 2, dtype=torch.long), torch.zeros(4, 1, dtype=torch.double))] * 5
    conditions = measure_throughput(model, loader, criterion=torch.nn.MSELoss(), optimizer=optimizer).conditions
    assert (conditions.mode, conditions.dtype, conditions.batch_size) == ("train", "float64", 4)
    assert conditions.gradients is True
