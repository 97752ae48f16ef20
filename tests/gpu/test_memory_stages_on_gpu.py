# SPDX-License-Identifier: Apache-2.0
"""The memory of a program's stages on a real GPU: torch's own figures, exactly, and no waiting for the GPU."""

from __future__ import annotations

import gc
import json

import pytest
from child import run_code
from reading import Reading

import gpuscope as gs
from fakes import seeds, seeds_memory
from gpuscope.memory.usage import peak_counters as peaks
from gpuscope.memory.usage import peak_counters as reading
from gpuscope.memory.usage.peak_counters import reset_peak
from gpuscope.memory.usage.summary import memory_summary
from gpuscope.memory.usage.tracking import memory_stages, reset_memory_stages, track_memory
from gpuscope.units import format_bytes

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

MIB = 1 << 20


@pytest.fixture(autouse=True)
def fresh(request, monkeypatch):
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if "cupy" not in request.node.name:  # what other tests have left in other libraries' pools
        monkeypatch.setattr(reading, "_OTHERS", ())
    reset_memory_stages()
    yield
    reset_memory_stages()


@pytest.fixture
def reports():
    """Torch's reports can be had."""
    found = peaks._reports(0)
    if found is None:
        pytest.skip("torch's reports cannot be had here")
    found.end()


@pytest.fixture(params=["reports", "counters"])
def way(request, monkeypatch):
    """How peaks are known: by torch's reports where these can be had, or by torch's own counters."""
    if request.param == "reports":
        request.getfixturevalue("reports")
    else:
        monkeypatch.setattr(peaks, "_reports", lambda device: None)


class Training:
    """A small training, whose phases are methods."""

    def __init__(self, batch=4096):
        torch.manual_seed(0)
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.batch = torch.randn(batch, 1024, device="cuda")
        self.loss = None

    def forward(self):
        self.loss = self.model(self.batch).sum()

    def backward(self):
        self.loss.backward()
        self.loss = None

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def phases(self):
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.step}


def peaks_by_torch(training):
    found = {}
    for name, phase in training.phases.items():
        torch.cuda.reset_peak_memory_stats()
        phase()
        found[name] = torch.cuda.max_memory_allocated()
    return found


def test_peaks_of_a_training_are_torchs(way):
    training = Training()
    for _ in range(2):  # libraries' workspaces, the optimizer's state
        peaks_by_torch(training)
    expected = peaks_by_torch(training)
    found = {}
    for name, phase in training.phases.items():
        with track_memory(name) as stage:
            phase()
        assert stage.allocated_bytes == torch.cuda.memory_allocated()
        assert stage.reserved_bytes == torch.cuda.memory_reserved()
        assert stage.stage.peak_is_exact
        found[name] = stage.peak_bytes
    assert found == expected


def test_an_outer_stage_has_the_highest_of_its_inner_ones(way):
    training = Training()
    peaks_by_torch(training)
    expected = peaks_by_torch(training)
    with track_memory("step") as step:
        for name, phase in training.phases.items():
            with track_memory(name):
                phase()
    assert step.peak_bytes == max(expected.values())
    assert {stage.name: stage.peak_bytes for stage in memory_stages().stages if stage.name != "step"} == expected


def test_reset_keeps_what_open_stages_saw(way):
    with track_memory("x") as stage:
        before = torch.cuda.memory_allocated()
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        reset_peak()
    assert stage.peak_bytes == before + 64 * MIB
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()


def test_by_reports_the_programs_own_peaks_stay_its_own(reports, tmp_path, monkeypatch):
    def run(program):
        gc.collect()
        torch.cuda.empty_cache()
        return seeds.run(program, "cuda", tmp_path, monkeypatch)["peaks"]

    run(seeds_memory.unwatched(seeds_memory.PEAK_MEMORY))  # libraries' workspaces
    expected = run(seeds_memory.unwatched(seeds_memory.PEAK_MEMORY))
    assert run(seeds_memory.watched(seeds_memory.PEAK_MEMORY)) == expected


def test_statements_say_what_the_programs_own_said(tmp_path, monkeypatch, capsys):
    seeds.run(seeds_memory.tracked(seeds_memory.TRACK_MEMORY), "cuda", tmp_path, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" - ")[0].rstrip() for line in lines] == list(seeds_memory.STAGES)
    assert all("Allocated: " in line and "Reserved: " in line and "Peak: " in line for line in lines)
    last = memory_stages().stages[-1]
    assert last.reserved_bytes == torch.cuda.memory_reserved()


def test_a_reading_is_torchs(way):
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    stage = track_memory("x", quiet=True)
    assert stage.allocated_bytes == torch.cuda.memory_allocated() >= kept.numel()
    assert stage.reserved_bytes == torch.cuda.memory_reserved()
    assert stage.stage.device == 0


def test_nothing_waits_for_the_gpu(way, kernels):
    x = torch.ones(16, device="cuda")
    with track_memory("warm"):
        x += 1
    torch.cuda.synchronize()
    end = torch.cuda.Event()
    with gs.profile(sync=True) as prof:
        kernels.spin(200_000_000)
        end.record()
        with gs.record_function("tracked"), track_memory("outer"):
            track_memory("statement", quiet=True)
            with track_memory("inner"):
                x += 1
        still_busy = not end.query()
    assert still_busy
    (row,) = Reading(prof.trace).rows("tracked")
    begin = prof.trace.regions.start_ns[row]
    since = prof.trace.sync.start_ns.astype("int64") - int(begin)
    assert not ((since >= 0) & (since < int(prof.trace.regions.duration_ns[row]))).any()


def test_the_first_stage_may_be_the_one_that_moves_to_the_gpu(way):
    with track_memory("model to GPU") as stage:
        kept = torch.nn.Linear(1024, 1024).cuda()
    assert stage.delta_bytes == torch.cuda.memory_allocated() - stage.stage.before_bytes
    assert stage.delta_bytes >= sum(p.numel() * p.element_size() for p in kept.parameters())


def test_cupy_counts_too(way):
    cupy = pytest.importorskip("cupy")
    with track_memory("cupy") as stage:
        kept = cupy.zeros(8 * MIB, dtype=cupy.uint8)
        torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    assert stage.delta_bytes == kept.nbytes
    assert stage.peak_bytes >= stage.stage.before_bytes + kept.nbytes + 16 * MIB
    del kept


def test_a_decorated_step_counts_every_call(way):
    training = Training()

    @track_memory("step")
    def step():
        for phase in training.phases.values():
            phase()

    for _ in range(3):
        step()
    (stage,) = memory_stages().stages
    assert stage.count == 3
    assert stage.peak_is_exact
    assert stage.first_delta_bytes > stage.delta_bytes  # the optimizer's state


def test_the_table_tells_where_the_peak_is():
    training = Training(batch=65536)  # activations of 2 GiB: large beside all that other tests may have left
    for _ in range(3):
        for name, phase in training.phases.items():
            with track_memory(name):
                phase()
    text = str(memory_stages())
    assert text.count("<- highest peak") == 1
    assert "most likely activations" in text


def test_the_summary_has_torchs_figures():
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    expected = format_bytes(torch.cuda.memory_allocated())
    lines = memory_summary(0).splitlines()
    assert lines[0].startswith("GPU 0: ")
    assert expected in next(line for line in lines if line.startswith("  Allocated"))
    assert any(line.startswith("This process: ") and "outside these allocators" in line for line in lines)
    assert kept.numel() == 64 * MIB


def test_the_programs_summary_prints(tmp_path, monkeypatch, capsys):
    seeds.run(seeds_memory.summed_up(seeds_memory.SUMMARY), "cuda", tmp_path, monkeypatch)
    assert "torch: 0 allocations retried" in capsys.readouterr().out


def test_a_block_makes_no_context():
    out = run_code(
        """
import torch
from gpuscope.memory.usage.tracking import track_memory
with track_memory("x") as stage:
    pass
assert not torch.cuda.is_initialized()
print(stage)
"""
    )
    assert "Allocated:        0 B" in out


@pytest.mark.parametrize("model_is", ["older than the history", "in the history"])
def test_the_peak_of_a_training_has_its_categories(model_is, tmp_path):
    out = run_code(
        f"""
import json
import torch
import gpuscope as gs

def make():
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(4)]).cuda()
    return model, torch.optim.Adam(model.parameters())

if {model_is == "older than the history"}:
    model, optimizer = make()
with gs.record_memory_history():
    if {model_is == "in the history"}:
        model, optimizer = make()
    for _ in range(3):
        output = model(torch.randn(256, 4096, device="cuda"))
        output.square().mean().backward()
        optimizer.step()  # where most is in use: it takes as much again for a moment
        optimizer.zero_grad()
peak = gs.peak_memory()
print(peak)
gs.dump_memory_snapshot({str(tmp_path / "memory.pickle")!r})
of_file = gs.peak_memory(gs.load_memory_snapshot({str(tmp_path / "memory.pickle")!r}).events, peak.device)
found = {{
    "weights": sum(each.nbytes for each in model.parameters()),
    "peak": {{one.name: one.bytes for one in peak.categories}},
    "file": {{one.name: one.bytes for one in of_file.categories}},
    "bytes": peak.bytes,
}}
print(json.dumps(found))
"""
    )
    found = json.loads(out.splitlines()[-1])
    sizes, weights = found["peak"], found["weights"]
    assert sizes["parameter"] == pytest.approx(weights, rel=0.02), out
    assert sizes["gradient"] == pytest.approx(weights, rel=0.02), out
    assert sizes["optimizer state"] == pytest.approx(2 * weights, rel=0.02), out
    assert sizes["activation"] >= 4 * 256 * 4096, out
    assert sum(sizes.values()) == found["bytes"]
    # The file has memory of unknown use among the libraries.
    sizes["libraries"] += sizes.pop("unknown", 0)
    assert found["file"] == pytest.approx(sizes, rel=0.02), out
