# SPDX-License-Identifier: Apache-2.0
"""Programs written for torch.profiler run with only their import changed, and find the GPU's work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import seeds, seeds_cuda

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

# A data loader forks its workers; Python 3.12 warns of it in every program that has threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

PROGRAMS = seeds.ANYWHERE | seeds_cuda.ON_A_GPU
WITHOUT_WORK = {"too many iterations", "a few iterations"}  # they profile an empty loop


@pytest.fixture
def run(tmp_path, monkeypatch):
    return lambda program: seeds.run(program, "cuda", tmp_path, monkeypatch)


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
