# SPDX-License-Identifier: Apache-2.0
"""Programs that measure by themselves run in a profile, and gpuscope's functions take the place of theirs."""

from __future__ import annotations

import csv
import sys
import time

import numpy as np
import pytest

import gpuscope
from fakes import seeds, seeds_cuda, seeds_measuring, seeds_memory
from fakes.loaders import Clock, Loader
from gpuscope.benchmarking import dataloader, latency, throughput

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a GPU here: tests/gpu runs them on it", allow_module_level=True)

# A data loader forks its workers; Python 3.12 warns of it in every program that has threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning"),
]

# One compiles; the others need memory of a GPU.
ON_A_GPU = {"faster kernels", "snapshot file", "largest batch"}
THEIRS = seeds_measuring.TIMINGS | seeds_memory.THEIR_OWN


@pytest.fixture
def clock(monkeypatch):
    """Moved by loaders and models only; what measures, theirs and ours, reads it."""
    clock = Clock()
    for module in (throughput, latency, dataloader):
        monkeypatch.setattr(module, "now", clock)
    for module in (throughput, latency):
        monkeypatch.setattr(module, "marks_of_process", lambda stream=None, device=None: None)
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def run(tmp_path, monkeypatch):
    seeds_measuring.stand_in_for_cuda(monkeypatch, time.perf_counter)
    seeds_measuring.stand_in_for_nvidia_smi(tmp_path, monkeypatch)
    for name, module in seeds_measuring.stand_in_for_kornia().items():
        monkeypatch.setitem(sys.modules, name, module)

    def run(program, **names):
        return seeds.run(seeds_measuring.on_cpu(program), "cpu", tmp_path, monkeypatch, **names)

    return run


@pytest.fixture
def run_slowly(run, clock, monkeypatch):
    """Runs a program whose batches take 1 ms each, and whose model takes 3 ms forward, on the clock."""
    seeds_measuring.stand_in_for_cuda(monkeypatch, clock)

    def run_slowly(program):
        names = seeds.surroundings("cpu")
        names["model"].register_forward_hook(lambda *_: clock.spend(0.003))
        names["dataloader"] = Loader(clock, list(names["dataloader"]), seconds=0.001)
        return run(program, **names)

    return run_slowly


@pytest.mark.parametrize("name", [name for name in THEIRS if name not in ON_A_GPU])
def test_a_program_that_measures_runs_in_a_profile(run, name):
    with gpuscope.profile() as prof:
        run(THEIRS[name])
    assert prof.audit().complete


@pytest.mark.parametrize("name", [name for name in seeds_cuda.ON_A_GPU if name != "GPU bottleneck"])
def test_a_program_for_a_gpu_runs_without_one(run, name):
    """Its import is changed, and its CUDA calls do nothing. One names its first kernel, and there is none."""
    prof = run(seeds.changed(seeds_cuda.ON_A_GPU[name])).get("prof")
    assert prof is None or prof.audit().complete


def test_the_phases_of_a_program_are_rows_of_the_table(run):
    with gpuscope.profile() as prof:
        phases = run(seeds.changed(seeds_cuda.TRAINING_PHASES))["phases"]
    rows = {row.key: row for row in prof.key_averages()}
    for phase, row in zip(phases, ("forward_pass", "backward_pass", "optimizer_step"), strict=True):
        assert row.startswith(phase)
        assert rows[row].count == 1


@pytest.mark.filterwarnings("ignore:GPUMonitor samples no GPU")
@pytest.mark.filterwarnings("ignore:gpu_snapshot:gpuscope.errors.GpuscopeWarning")
@pytest.mark.parametrize("name", seeds_measuring.WITH_OURS)
def test_a_program_runs_with_the_function_of_gpuscope(run, name):
    program = seeds_measuring.with_ours(name)
    assert f"def {seeds_measuring.WITH_OURS[name][0]}" not in program
    run(program)


def test_the_throughput_is_that_of_the_program(run_slowly):
    theirs = run_slowly(seeds_measuring.THROUGHPUT)["throughput"]
    ours = run_slowly(seeds_measuring.with_ours("throughput"))["throughput"]
    assert float(ours) == pytest.approx(theirs, rel=0.02)  # theirs asks for one batch more than it measures
    assert (ours.batches, ours.samples) == (20, 80)


def test_the_latencies_are_those_of_the_program(run_slowly):
    theirs = run_slowly(seeds_measuring.LATENCY)["latencies"]
    ours = run_slowly(seeds_measuring.with_ours("latency"))["latencies"]
    assert np.asarray(ours) == pytest.approx(theirs)
    assert theirs == pytest.approx([3.0] * 30)


def test_the_first_line_of_a_latency_is_that_of_the_program(run_slowly, capsys):
    run_slowly(seeds_measuring.LATENCY)
    (theirs,) = capsys.readouterr().out.splitlines()
    run_slowly(seeds_measuring.with_ours("latency"))
    assert theirs in capsys.readouterr().out.splitlines()


def test_the_figures_of_a_loader_are_those_of_the_program(run_slowly):
    theirs = run_slowly(seeds_measuring.LOADER_ALONE)["stats"]
    ours = run_slowly(seeds_measuring.with_ours("loader alone"))["stats"]
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs)


def test_the_wait_for_data_is_the_loading_time_of_the_program(run_slowly):
    theirs = run_slowly(seeds_measuring.LOADER_AGAINST_MODEL)
    ours = run_slowly(seeds_measuring.with_ours("throughput"))["throughput"]
    assert 1000 * ours.wait_seconds / ours.batches == pytest.approx(theirs["data_ms"])
    assert 1000 * (ours.seconds - ours.wait_seconds) / ours.batches == pytest.approx(theirs["compute_ms"])


@pytest.mark.filterwarnings("ignore:GPUMonitor samples no GPU")
def test_a_log_begins_with_the_columns_of_the_program(run, tmp_path):
    run(seeds_measuring.MONITOR)
    with open(tmp_path / "gpu_metrics.csv", encoding="utf-8") as file:
        theirs = next(csv.reader(file))
    (tmp_path / "gpu_metrics.csv").unlink()
    run(seeds_measuring.with_ours("monitor"))
    with open(tmp_path / "gpu_metrics.csv", encoding="utf-8") as file:
        ours = next(csv.reader(file))
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize(("kept", "leaks"), [("loss", 1), ("loss.item()", 0)])
def test_losses_that_are_kept_are_found(run, kept, leaks):
    assert f"losses.append({kept})" in seeds_memory.KEPT_LOSSES
    namespace = run(f"losses = []\ndef step(loss):\n    losses.append({kept})\n")
    model, criterion = namespace["model"], namespace["criterion"]
    with gpuscope.find_leaks() as found:
        for data, target in namespace["dataloader"]:
            namespace["step"](criterion(model(data), target))
            found.step()
    assert len(found.report().leaks) == leaks


def trained(layer, training):
    """The diagnosis of a program that trains a model with the layer."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), layer).train(training)
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof:
        for _ in range(4):
            model(torch.ones(4, 8)).sum().backward()
            prof.step()
    return prof.diagnose()


@pytest.mark.parametrize("layer", [torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)])
def test_a_diagnosis_names_training_in_evaluation_mode(layer):
    (sentence,) = trained(layer, training=False).conditions
    assert "call model.train()" in sentence
    assert not any("model.train()" in each for each in trained(layer, training=True).conditions)


def test_inference_in_evaluation_mode_is_as_it_should_be():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5)).eval()
    with gpuscope.profile(activities=[gpuscope.ProfilerActivity.CPU]) as prof, torch.no_grad():
        for _ in range(4):
            model(torch.ones(4, 8))
            prof.step()
    assert not any("model.train()" in each for each in prof.diagnose().conditions)
