# SPDX-License-Identifier: Apache-2.0
"""The memory history on a GPU: agreement with torch's own history, peaks and segments; CuPy's pool."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuscope import _core
from gpuscope.frameworks import torch_memory
from gpuscope.memory.history.events import SOURCES
from gpuscope.memory.history.history import record_memory_history
from gpuscope.memory.history.snapshot_writer import dump_memory_snapshot, torch_snapshot

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)


@pytest.fixture
def step():
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 256, device="cuda")

    def run():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    run()
    torch.cuda.synchronize()
    yield run
    record_memory_history(None)


def on_gpu(events):
    return events.select((events.device == 0) & (events.source == SOURCES.index("torch")))


def test_events_are_those_of_torchs_own_history(step):
    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=100_000)
    with record_memory_history() as history:
        step()
    theirs = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    actions = {"alloc": True, "free_requested": False}
    expected = [(actions[entry["action"]], entry["addr"]) for entry in theirs if entry["action"] in actions]
    ours = on_gpu(history.events())
    assert list(zip((ours.bytes > 0).tolist(), ours.address.tolist(), strict=True)) == expected


def test_what_is_in_use_is_what_torch_says(step):
    with record_memory_history() as history:
        step()
        kept = torch.empty(1 << 20, device="cuda")
    last = on_gpu(history.events())
    assert last.allocated_bytes[-1] == torch.cuda.memory_allocated()
    assert last.reserved_bytes[-1] == torch.cuda.memory_reserved()
    del kept


def test_the_peak_of_a_scope_is_torchs(step):
    torch.cuda.reset_peak_memory_stats()
    assert torch_memory.acquire_reports() == ""
    peak = _core.PeakMemory(0)
    step()
    assert peak.bytes == torch.cuda.max_memory_allocated()
    peak.close()
    torch_memory.release_reports()


def test_blocks_have_the_stacks_of_their_allocations(step):
    with record_memory_history():
        kept = torch.empty(3 << 20, device="cuda")
        snapshot = torch_snapshot()
    blocks = {block["address"]: block for part in snapshot["segments"] for block in part["blocks"]}
    frames = blocks[kept.data_ptr()]["frames"]
    assert frames[0]["name"] == "test_blocks_have_the_stacks_of_their_allocations"
    assert frames[0]["filename"] == __file__


@pytest.mark.parametrize("view", ["stats", "trace", "trace_plot", "segment_plot"])
def test_torchs_reader_opens_the_file(view, step, tmp_path):
    with record_memory_history(max_entries=100):
        step()
        torch.cuda.empty_cache()
        step()
        path = dump_memory_snapshot(tmp_path / "a.pickle")
    output = ["-o", str(tmp_path / "page.html")] if "plot" in view else []
    command = [sys.executable, "-m", "torch.cuda._memory_viz", view, str(path), *output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_cupys_pool_tells_of_its_pieces(step):
    cupy = pytest.importorskip("cupy")
    with record_memory_history() as history:
        array = cupy.empty(1000, dtype=cupy.float32)
        address = array.data.ptr
        del array
    events = history.events()
    ours = events.select(events.source == SOURCES.index("cupy"))
    assert ours.address.tolist() == [address, address]
    assert ours.bytes.tolist() == [4096, -4096]
    assert ours.stack[0] != 0


def test_windows_and_graphs_and_other_streams_go_on_under_a_history(step):
    stream = torch.cuda.Stream()
    with record_memory_history() as history:
        with torch.cuda.stream(stream):
            torch.empty(1000, device="cuda").fill_(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.zeros(1000, device="cuda")
        graph.replay()
        torch.cuda.synchronize()
    assert len(on_gpu(history.events())) >= 2
    assert not any(note.startswith("torch") for note in history.notes)
