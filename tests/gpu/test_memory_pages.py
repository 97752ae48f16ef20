# SPDX-License-Identifier: Apache-2.0
"""Categories, torch's own snapshots and ``gpuscope memory`` on a GPU. Each program has a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gpuscope.memory.history.snapshot_reader import load_memory_snapshot

TRAINING = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)

    def forward(self, batch):
        return self.last(torch.nn.functional.gelu(self.first(batch)))

def train(steps):
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        batch, target = torch.randn(2048, 1024, device="cuda"), torch.randn(2048, 1024, device="cuda")
        loss = torch.nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer
"""
MIB = 1 << 20
WEIGHTS = 4 * (2 * 1024 * 4096 + 4096 + 1024)


@pytest.fixture
def run(tmp_path):
    pytest.importorskip("torch")

    def run_it(source, *command):
        (tmp_path / "script.py").write_text(TRAINING + source)
        return subprocess.run(
            [sys.executable, *command, "script.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )

    return run_it


def test_a_training_has_its_categories_at_the_peak(run, tmp_path):
    run("train(3)\n", "-m", "gpuscope", "memory", "-o", "memory.json")
    sizes = json.loads((tmp_path / "memory.json").read_text())["peak_by_category"]
    # The caching allocator rounds to 512 bytes, and small pieces come from blocks of 2 MiB.
    for name, expected in (("parameter", WEIGHTS), ("optimizer_state", 2 * WEIGHTS)):
        assert expected <= sizes[name] <= expected + MIB, name
    batch, hidden = 4 * 2048 * 1024, 4 * 2048 * 4096
    assert sizes["input"] in range(2 * batch, 2 * batch + MIB)
    # The peak lies in a backward: what is left of both hidden tensors, the output and what the loss keeps.
    assert sizes["activation"] >= hidden
    assert sizes.get("unknown", 0) <= MIB


def test_torchs_own_snapshot_is_read(run, tmp_path):
    source = """
torch.cuda.memory._record_memory_history(stacks="python")
kept = train(2)
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated())
torch.cuda.memory._dump_snapshot("memory.pickle")
"""
    allocated, reserved, most = map(int, run(source).stdout.split())
    found = load_memory_snapshot(tmp_path / "memory.pickle")
    assert sum(piece.allocated_bytes for piece in found.segments) == allocated
    assert sum(piece.bytes for piece in found.segments) == reserved
    assert (found.events.allocated_bytes[-1], found.events.reserved_bytes[-1]) == (allocated, reserved)
    assert found.events.allocated_bytes.max() == most  # of whole blocks, though torch's trace has the sizes asked for
    assert any(frame.function.endswith("train") for frame in found.events.frames(int(found.events.stack[0])))


def test_torchs_snapshot_is_shown_with_a_page(run, tmp_path):
    run("torch.cuda.memory._record_memory_history()\ntrain(2)\ntorch.cuda.memory._dump_snapshot('memory.pickle')\n")
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "memory", "show", "memory.pickle", "--html", "memory.html"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "peak of GPU 0" in done.stdout
    assert "script.py:" in done.stdout
    assert (tmp_path / "memory.html").stat().st_size < 4_000_000


def test_the_command_tells_who_holds_the_memory_and_where(run, tmp_path):
    done = run("train(3)\n", "-m", "gpuscope", "memory", "-o", "memory.html", "-o", "memory.pickle")
    assert "torch" in done.stderr
    assert "peak of GPU 0" in done.stderr
    assert "script.py:" in done.stderr
    assert "could not be had" not in done.stderr
    assert "from the driver directly is unexplained" not in done.stderr
    assert len(load_memory_snapshot(tmp_path / "memory.pickle").events) > 0


def test_a_program_that_runs_out_of_memory_is_told_of(tmp_path, run):
    source = "kept = train(1)\ntorch.empty(1 << 45, dtype=torch.uint8, device='cuda')\n"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run(source, "-m", "gpuscope", "memory")
    assert caught.value.returncode == 1
    assert "OutOfMemoryError" in caught.value.stderr
    assert "peak of GPU 0" in caught.value.stderr
