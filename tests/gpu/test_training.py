# SPDX-License-Identifier: Apache-2.0
"""Programs around the training step: autograd's threads, servers, generators, call stacks, scripts that import late."""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter

import pytest
from child import SCRIPTS, facts, run
from reading import OP, RANGE, Reading

import gpuscope as gs

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("this torch has no CUDA", allow_module_level=True)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(64, 64)
        self.head = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(64, 8))

    def forward(self, x):
        return self.head(self.encoder(x))


@pytest.fixture
def net():
    model = Net().cuda()
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    return model


@pytest.fixture
def backward(net):
    """A forward and a backward, each in its region."""
    batch = torch.randn(8, 64, device="cuda")
    with gs.profile() as prof:
        with gs.record_function("forward"):
            loss = net(batch).sum()
        with gs.record_function("backward"):
            loss.backward()
        torch.cuda.synchronize()
    return prof


def test_backward_operators_know_their_forward_operator(backward):
    reading = Reading(backward.trace)
    forward = dict(zip(backward.trace.details.region.tolist(), backward.trace.details.forward.tolist(), strict=True))
    rows = reading.rows("AddmmBackward0")
    assert len(rows) == 2
    joined = [reading.region(forward[row]) for row in rows]
    assert all(path[0] == "forward" and path[-1] == "aten::addmm" for path in joined), joined
    assert len({forward[row] for row in rows}) == 2
    events = [event for event in backward.events() if event.name == "AddmmBackward0"]
    assert [event.forward.name for event in events] == ["aten::addmm"] * 2


def test_backward_runs_on_autograds_thread_in_the_region_that_asked_for_it(backward):
    trace, reading = backward.trace, Reading(backward.trace)
    threads = trace.threads.system_id[trace.regions.thread]
    own = threading.get_native_id()
    rows = reading.rows("AddmmBackward0")
    assert {int(threads[row]) for row in rows}.isdisjoint({own})
    assert {int(threads[row]) for row in reading.rows("backward")} == {own}
    assert all(reading.region(row)[0] == "backward" for row in rows)


def test_kernels_of_backward_are_in_its_operators_and_region(backward):
    reading = Reading(backward.trace)
    paths = [reading.region(row) for row in backward.trace.kernels.region.tolist()]
    assert {path[0] for path in paths} == {"forward", "backward"}
    assert Counter(path[0] for path in paths)["backward"] > Counter(path[0] for path in paths)["forward"] > 0
    assert any("AddmmBackward0" in path and path[-1] == "aten::mm" for path in paths), paths


def test_kernels_of_four_serving_threads_are_in_the_regions_of_their_requests(net):
    batch = torch.randn(8, 64, device="cuda")

    def answer():
        with torch.inference_mode():
            return net(batch)

    with gs.profile() as alone:
        answer()
        torch.cuda.synchronize()
    each = len(alone.trace.kernels)

    def serve(number):
        for _ in range(5):
            with gs.record_function(f"request of {number}"):
                answer()

    with gs.profile() as prof:
        threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
    reading = Reading(prof.trace)
    assert {f"request of {n}": reading.kernels_under(f"request of {n}") for n in range(4)} == {
        f"request of {n}": 5 * each for n in range(4)
    }
    assert reading.outside() == 0
    assert prof.audit().complete, prof.audit().reasons


def test_a_generators_kernels_are_in_its_region_and_the_readers_in_none(net):
    def words(count):
        state = torch.zeros(64, device="cuda")
        for _ in range(count):
            with gs.record_function("word"):
                state = state + 1
            yield state

    torch.zeros(64, device="cuda").add(1).mul(2)
    with gs.profile() as prof:
        for state in words(5):
            state.mul(2)
        torch.cuda.synchronize()
    reading = Reading(prof.trace)
    paths = Counter("/".join(reading.region(row)) for row in prof.trace.kernels.region.tolist())
    assert paths["word/aten::add"] == 5
    assert paths["aten::mul"] == 5


def test_the_launch_of_a_kernel_has_the_line_that_called_for_it():
    x = torch.ones(64, 64, device="cuda")
    x @ x
    with gs.profile(with_stack=True) as prof:
        x @ x
        line = inspect.currentframe().f_lineno - 1
        torch.cuda.synchronize()
    trace, reading = prof.trace, Reading(prof.trace)
    correlation = int(trace.kernels.correlation[reading.work_rows("aten::mm")[0]])
    stack = {
        int(trace.api.correlation[api]): stack
        for api, stack in zip(trace.call_stacks.api.tolist(), trace.call_stacks.stack.tolist(), strict=True)
    }[correlation]
    assert (__file__, line) in [(file, number) for file, number, _ in reading.frames(stack)], reading.frames(stack)


def test_kernels_are_in_the_modules_that_launched_them(net):
    batch = torch.randn(8, 64, device="cuda")
    with gs.profile(with_modules=True) as prof:
        net(batch)
        torch.cuda.synchronize()
    reading = Reading(prof.trace)
    for module in ("Net.encoder", "Net.head", "Net.head.1"):
        assert reading.kernels_under(module) > 0, module
    assert reading.kernels_under("Net") == len(prof.trace.kernels)


def test_batches_of_worker_processes_arrive_in_ranges_of_the_data_loader():
    found = facts("compare_training.py", "mixed")["ranges"]
    assert any("DataLoader" in name and "__next__" in name for name in found), found


def test_a_script_that_imports_torch_late_has_its_operators(tmp_path):
    out = tmp_path / "late.gscope"
    run(sys.executable, "-m", "gpuscope", "run", "-o", out, SCRIPTS / "late_torch.py")
    recording = gs.load(out)
    reading = Reading(recording.trace)
    assert reading.named(OP)["aten::mm"] == 7
    assert reading.named(RANGE)["halves"] == 7
    assert reading.kernels_under("aten::mm") >= 7
    assert recording.audit().complete, recording.audit().reasons
