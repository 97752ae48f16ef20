# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs: agreement with torch.profiler, CUDA graphs, living together."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest
from child import SCRIPTS, run, run_code
from reading import Reading

import gpuscope as gs

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)

PROGRAM = """
import torch, gpuscope as gs
from torch.profiler import profile, ProfilerActivity
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(32, 64, device="cuda")
def step():
    with gs.record_function("forward"):
        loss = model(batch).sum()
    with gs.record_function("backward"):
        loss.backward()
    with gs.record_function("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
def theirs():
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    return sum(row.count for row in prof.key_averages() if row.device_type.name == "CUDA")
def ours():
    with gs.profile() as prof:
        for _ in range(10):
            step()
    trace = prof.trace
    return prof, len(trace.kernels) + len(trace.memcpy) + len(trace.memset)
for _ in range(3):
    step()
torch.cuda.synchronize()
"""


def test_nothing_is_lost_after_torch_profiler_ran():
    out = run_code(
        PROGRAM
        + """
expected = theirs()
for _ in range(10):
    prof, count = ours()
    audit = prof.audit()
    assert count == expected, (count, expected, str(audit))
    assert audit.unattributed == 0 and audit.missing == 0, str(audit)
    paths = prof.trace.paths
    regions = {prof.trace.string(int(paths.name[p])) for p in prof.trace.regions.path if paths.kind[p] == 0}
    assert regions == {"forward", "backward", "optimizer"}, regions
assert theirs() == expected
print("tier", prof.trace.info["session.tier"])
"""
    )
    assert "tier cupti" in out


def test_torch_profiler_loses_nothing_after_ours_ran():
    run_code(
        PROGRAM
        + """
first = ours()[1]
assert theirs() == first
assert ours()[1] == first
"""
    )


def test_an_active_torch_profiler_leaves_us_events_and_says_so():
    out = run_code(
        PROGRAM
        + """
with profile(activities=[ProfilerActivity.CUDA]):
    step()
    with gs.profile() as prof:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
rows = {row.key: row for row in prof.key_averages()}
assert prof.trace.info["session.tier"] == "events", prof.trace.info["session.tier"]
assert rows["forward"].device_time_total > 0, prof.key_averages().table()
print(prof.audit().verdict)
"""
    )
    assert "GPU" in out


def test_replayed_graph_nodes_belong_to_the_regions_of_their_capture():
    x = torch.zeros(1024, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        (x + 1).relu()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with gs.profile() as prof:
        with torch.cuda.graph(graph):
            with gs.record_function("captured add"):
                y = x + 1
                y = y + 2
            with gs.record_function("captured relu"):
                y = y.relu()
        for _ in range(1000):
            with gs.record_function("replay"):
                graph.replay()
    audit, reading = prof.audit(), Reading(prof.trace)
    assert audit.complete, audit.reasons
    assert (audit.graph_launches, audit.graph_nodes) == (1000, 3000)
    kernels = reading.graph_kernels()
    assert Counter(path[0] for _, path in kernels) == {"captured add": 2000, "captured relu": 1000}
    regions = prof.trace.kernels.region.tolist()
    assert {"/".join(reading.region(regions[kernel])) for kernel, _ in kernels} == {"replay"}


def test_a_graph_captured_before_profiling_says_so():
    x = torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + 1
    with gs.profile() as prof:
        graph.replay()
    assert len(prof.trace.graph_nodes) == 1
    assert prof.trace.graph_nodes.path[0] == 0xFFFFFFFF
    assert prof.audit().complete


@pytest.mark.parametrize("early", [True, False], ids=["before the context", "in a running process"])
def test_graphs_as_launches_give_one_row_a_launch(early):
    prepare = "import torch, gpuscope as gs\n"
    work = """
x = torch.zeros(1024, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x + 1).relu() * 2
torch.cuda.synchronize()
"""
    replay = """
for _ in range(100):
    graph.replay()
torch.cuda.synchronize()
"""
    start = "prof = gs.profile(graphs='launch'); prof.start()\n"
    check = """
prof.stop()
print(len(prof.trace.graph_launches), len(prof.trace.graph_nodes), prof.audit().complete)
assert (prof.trace.graph_launches.duration_ns > 0).all()
"""
    out = run_code(prepare + (start + work if early else work + start) + replay + check)
    assert out.split() == ["100", "0", "True"]


def test_backward_kernels_are_in_the_region_that_called_backward():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).cuda()
    batch = torch.randn(8, 64, device="cuda")
    model(batch).sum().backward()
    with gs.profile() as prof:
        with gs.record_function("forward"):
            loss = model(batch).sum()
        with gs.record_function("backward"):
            loss.backward()
        torch.cuda.synchronize()
    reading = Reading(prof.trace)
    assert reading.outside() == 0
    names = Counter(reading.region(row)[0] for row in prof.trace.kernels.region.tolist())
    assert names["backward"] > names["forward"] > 0


def busy_ns(start_ns, duration_ns):
    """For how long there was a kernel.

    Not the sum of durations: cuDNN launches some kernels so that they begin before their predecessor has ended
    (programmatic dependent launch), and how long they wait for it is how far the CPU is ahead, which each profiler
    changes in its own way.
    """
    order = np.argsort(start_ns, kind="stable")
    start = start_ns[order].astype(np.int64)
    end = start + duration_ns[order].astype(np.int64)
    before = np.maximum.accumulate(np.concatenate([[0], end[:-1]]))
    return int(np.maximum(end - np.maximum(start, before), 0).sum())


def test_run_agrees_with_torch_profiler_on_a_real_training_script(tmp_path):
    pytest.importorskip("torchvision")
    script = SCRIPTS / "train_resnet.py"
    out = tmp_path / "train.gscope"
    theirs, ours, counts = [], [], set()
    for _ in range(3):
        text = run(sys.executable, script, "--torch-profiler")
        counts.add(int(text.rsplit("kernel count", 1)[1].split()[0]))
        theirs.append(float(text.rsplit("kernel busy", 1)[1].split()[0]))
        assert "loss" in run(sys.executable, "-m", "gpuscope", "run", "-o", out, script)
        recording = gs.load(out)
        assert recording.audit().complete, recording.audit().reasons
        trace = recording.trace
        reading = Reading(trace)
        measured = [row for row in range(len(trace.regions)) if reading.region(row)[0] == "measured"]
        inside = np.isin(trace.kernels.region, measured)
        counts.add(int(inside.sum()))
        ours.append(busy_ns(trace.kernels.start_ns[inside], trace.kernels.duration_ns[inside]) / 1e3)
    assert len(counts) == 1, counts
    # In some processes all kernels take 1 % longer than in others, whoever watches: 112.4 to 112.7 or 113.1 to 113.8 ms
    # in twelve on an H100.
    assert np.median(ours) == pytest.approx(np.median(theirs), rel=0.02)


def test_an_allocation_for_which_there_is_no_memory_is_a_row_and_an_event_of_the_trace():
    out = run_code(
        """
import json, tempfile, torch, gpuscope as gs
from gpuscope.trace import NONE
torch.ones(1, device="cuda")
with gs.profile(profile_memory=True) as prof, gs.record_function("too much"):
    try:
        torch.empty(1 << 40, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
trace = prof.trace
(row,) = range(len(trace.failed_allocations))
region = int(trace.failed_allocations.region[row])
while trace.regions.parent[region] != NONE:
    region = int(trace.regions.parent[region])
print(trace.string(int(trace.paths.name[trace.regions.path[region]])))
print(int(trace.failed_allocations.bytes[row]) >= 1 << 42, int(trace.failed_allocations.ordinal[row]))
with tempfile.TemporaryDirectory() as folder:
    prof.export_chrome_trace(folder + "/trace.json")
    events = json.load(open(folder + "/trace.json"))["traceEvents"]
    print([event["args"]["Device Id"] for event in events if event["name"] == "[OutOfMemory]"])
"""
    )
    assert out.split("\n")[:3] == ["too much", "True 0", "[0]"]


def test_torchs_own_switch_has_waits_recorded():
    out = run_code(
        """
import torch, gpuscope as gs
x = torch.ones(1, device="cuda")
for on in (True, False):
    torch._C._profiler._set_cuda_sync_enabled_val(on)
    with gs.profile() as prof:
        torch.add(x, x)
        torch.cuda.synchronize()
    print(len(prof.trace.sync) > 0)
"""
    )
    assert out.split() == ["True", "False"]


def test_kernels_of_the_event_tree_lie_in_the_calls_of_their_operators():
    out = run_code(
        """
import torch, gpuscope as gs
x = torch.ones(64, 64, device="cuda")
with gs.profile(with_stack=True) as prof:
    x + x
def walk(nodes):
    for node in nodes:
        yield node
        yield from walk(node.children)
tree = prof.profiler.kineto_results.experimental_event_tree()
(kernel,) = [node for node in walk(tree) if "elementwise_kernel" in node.name]
print(kernel.parent.name, kernel.parent.parent.name)
"""
    )
    assert out.split() == ["cudaLaunchKernel", "aten::add"]
