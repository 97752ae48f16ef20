# SPDX-License-Identifier: Apache-2.0
"""Programs written for torch.profiler run with only their import changed; those that measure agree with gpuscope."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gpuscope
from fakes import seeds, seeds_cuda, seeds_measuring, seeds_memory

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

# A data loader forks its workers; Python 3.12 warns of it in every program that has threads.
# torch warns of the name that guides use for autocast, and as it compiles that TF32 is off.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.cuda.amp.autocast:FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
]

PROGRAMS = seeds.ANYWHERE | seeds_cuda.ON_A_GPU
WITHOUT_WORK = {"too many iterations", "a few iterations"}  # they profile an empty loop
THEIRS = seeds_measuring.TIMINGS | seeds_memory.THEIR_OWN
ROUNDS = 5


@pytest.fixture
def run(tmp_path, monkeypatch):
    if importlib.util.find_spec("kornia") is None:
        for name, module in seeds_measuring.stand_in_for_kornia().items():
            monkeypatch.setitem(sys.modules, name, module)

    def run(program, **names):
        if "nvidia-smi" in program and shutil.which("nvidia-smi") is None:
            pytest.skip("there is no nvidia-smi")
        return seeds.run(program, "cuda", tmp_path, monkeypatch, **names)

    return run


@pytest.fixture
def heavy():
    """Names for the programs whose step keeps the GPU busy for some ms."""
    torch.manual_seed(0)
    layers = torch.nn
    model = layers.Sequential(
        *(layers.Conv2d(3, 64, 3, padding=1), layers.ReLU(), layers.Conv2d(64, 64, 3, padding=1), layers.ReLU()),
        *(layers.AdaptiveAvgPool2d(1), layers.Flatten(), layers.Linear(64, 10)),
    ).cuda()
    data, target = torch.randn(128, 3, 96, 96), torch.randint(0, 10, (128,))
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "dataloader": [(data, target)] * 24,
        "data": data.cuda(),
        "target": target.cuda(),
    }


@pytest.fixture
def small_memory():
    """A GPU of which this process may have 1 GiB more than it has."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 30)) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def in_turns(theirs, ours):
    """The medians of what two functions return, called in turns; their first calls warm up."""
    found = [(theirs(), ours()) for _ in range(ROUNDS + 1)][1:]
    return tuple(statistics.median(map(float, each)) for each in zip(*found, strict=True))


@pytest.mark.parametrize("everywhere", [False, True], ids=["import only", "every mention"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_and_its_recording_is_complete(run, name, everywhere):
    prof = run(seeds.changed(PROGRAMS[name], everywhere)).get("prof")
    if prof is None:  # it keeps its profiler to itself
        return
    audit = prof.audit()
    assert audit.complete, audit
    if name not in WITHOUT_WORK:
        assert any(row.cuda_time_total > 0 for row in prof.key_averages())


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("find bottlenecks", "trace.json"),
        ("operations in detail", "detailed_trace.json"),
        ("comprehensive", "detailed_trace.json"),
        ("training step", "profiler_logs/*.pt.trace.json"),
        ("train ResNet", "profiler_logs/*.pt.trace.json"),
    ],
)
def test_a_program_writes_its_trace(run, tmp_path, name, file):
    run(seeds.changed(PROGRAMS[name]))
    (path,) = Path(tmp_path).glob(file)
    assert any(event.get("cat") == "kernel" for event in json.loads(path.read_text())["traceEvents"])


def test_the_phases_of_a_training_have_their_gpu_time(run):
    prof = run(seeds.changed(seeds_cuda.TRAIN_RESNET))["prof"]
    rows = {row.key: row for row in prof.key_averages()}
    for phase in ("data_transfer", "forward", "backward", "optimizer"):
        assert rows[phase].count == 3, phase
        assert rows[phase].cuda_time_total > 0, phase


def test_the_busiest_work_on_the_gpu_is_named(run, capsys):
    events = run(seeds.changed(seeds_cuda.GPU_BOTTLENECK))["cuda_events"]
    assert events == sorted(events, key=lambda event: -event[1])
    assert " 1. " in capsys.readouterr().out


def test_operators_have_the_gpu_time_of_their_kernels(run):
    prof = run(seeds.changed(seeds_cuda.FIND_BOTTLENECKS))["prof"]
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["aten::addmm"].count == 20
    assert rows["aten::addmm"].cuda_time_total > 0


# -- programs that measure by themselves -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", THEIRS)
def test_a_program_that_measures_runs_in_a_profile(run, name, small_memory):
    with gpuscope.profile() as prof:
        run(THEIRS[name])
    audit = prof.audit()
    assert audit.complete, audit


@pytest.mark.parametrize("name", seeds_measuring.WITH_OURS)
def test_a_program_runs_with_the_function_of_gpuscope(run, name):
    run(seeds_measuring.with_ours(name))


def test_the_throughput_is_that_of_the_program(run, heavy):
    theirs, ours = in_turns(
        lambda: run(seeds_measuring.THROUGHPUT, **heavy)["throughput"],
        lambda: run(seeds_measuring.with_ours("throughput"), **heavy)["throughput"],
    )
    assert ours == pytest.approx(theirs, rel=0.15)


def test_the_latency_is_that_of_the_program(run, heavy):
    theirs, ours = in_turns(
        lambda: np.median(run(seeds_measuring.LATENCY, **heavy)["latencies"]),
        lambda: 1000 * run(seeds_measuring.with_ours("latency"), **heavy)["latencies"].gpu.median,
    )
    assert ours == pytest.approx(theirs, rel=0.10)


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_time_of_a_phase_is_that_of_the_program(run, heavy, phase):
    timed = seeds_cuda.TRAINING_PHASES.replace(
        "torch.profiler import record_function", "gpuscope import timed as record_function"
    )
    assert timed != seeds_cuda.TRAINING_PHASES

    def both():
        gpuscope.reset_timings()
        theirs = run(timed, **heavy)["phases"][phase]
        return theirs, 1000 * gpuscope.timings()[f"{phase}_pass"].gpu.median

    found = [both() for _ in range(ROUNDS + 1)][1:]
    theirs, ours = (statistics.median(each) for each in zip(*found, strict=True))
    assert ours == pytest.approx(theirs, rel=0.10)


def test_the_peak_of_memory_is_that_of_the_program(run, heavy):
    run(seeds_memory.PEAK_OF_A_STEP, **heavy)  # libraries' workspaces
    with gpuscope.track_memory("step") as stage:
        theirs = run(seeds_memory.PEAK_OF_A_STEP, **heavy)["peak_gb"]
    assert stage.peak_bytes / 1e9 == pytest.approx(theirs, rel=0.02)


def test_the_largest_batch_is_that_of_the_program(run, small_memory):
    theirs = run(seeds_memory.LARGEST_BATCH)["max_bs"]
    torch.cuda.empty_cache()
    ours = run(seeds_memory.with_largest_batch(seeds_memory.LARGEST_BATCH))["max_bs"]
    # The program keeps the output of its last try while it runs the next one.
    assert 0.95 * theirs < int(ours) < 1.4 * theirs


def test_the_figures_of_a_loader_are_those_of_the_program(run):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 120

        def __getitem__(self, index):
            time.sleep(0.002)
            return index

    loader = torch.utils.data.DataLoader(Slow(), batch_size=4)
    theirs, ours = in_turns(
        lambda: run(seeds_measuring.LOADER_ALONE, dataloader=loader)["stats"]["avg_batch_time_ms"],
        lambda: run(seeds_measuring.with_ours("loader alone"), dataloader=loader)["stats"]["avg_batch_time_ms"],
    )
    assert ours == pytest.approx(theirs, rel=0.15)


def test_the_snapshot_of_a_gpu_is_that_of_the_program(run):
    theirs, ours = (run(each)["stats"] for each in (seeds_measuring.SNAPSHOT, seeds_measuring.with_ours("snapshot")))
    assert len(ours) == len(theirs)
    for ours_gpu, their_gpu in zip(ours, theirs, strict=True):
        assert set(their_gpu) <= set(ours_gpu.keys())
        assert (ours_gpu["index"], ours_gpu["name"]) == (their_gpu["index"], their_gpu["name"])
        assert ours_gpu["mem_total_mb"] == pytest.approx(their_gpu["mem_total_mb"], rel=0.01)


def test_a_log_begins_with_the_columns_of_the_program(run, tmp_path):
    columns = []
    for program in (seeds_measuring.MONITOR, seeds_measuring.with_ours("monitor")):
        run(program)
        with open(tmp_path / "gpu_metrics.csv", encoding="utf-8") as file:
            columns.append(next(csv.reader(file)))
        (tmp_path / "gpu_metrics.csv").unlink()
    theirs, ours = columns
    assert ours[: len(theirs)] == theirs
