# SPDX-License-Identifier: Apache-2.0
"""Several GPUs in one process."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import gpuscope as gs
from gpuscope import _core

if len(_core.environment()["devices"]) < 2:
    pytest.skip("one GPU only", allow_module_level=True)


def test_kernels_of_every_device_are_on_tracks_of_their_own():
    devices = [_core.Kernels(number) for number in range(2)]

    def work(number: int) -> None:
        with gs.record_function(f"device {number}"):
            devices[number].spin(1, count=5000 * (number + 1))

    with gs.profile() as prof:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    trace, audit = prof.trace, prof.audit()
    assert audit.complete, str(audit)
    assert (audit.launches, audit.kernels) == (15_000, 15_000)
    on = Counter(trace.tracks.device[trace.kernels.track].tolist())
    assert on == {0: 5000, 1: 10_000}
    for device in range(2):
        regions = set(trace.kernels.region[trace.tracks.device[trace.kernels.track] == device].tolist())
        names = {trace.string(int(trace.paths.name[trace.regions.path[row]])) for row in regions}
        assert names == {f"device {device}"}


def test_peer_copies_are_recorded():
    torch = pytest.importorskip("torch")
    source = torch.ones(1 << 20, device="cuda:0")
    source.to("cuda:1")
    with gs.profile() as prof, gs.record_function("peer"):
        copy = source.to("cuda:1")
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
    assert copy.sum().item() == 1 << 20
    trace = prof.trace
    sizes = trace.memcpy.bytes[trace.memcpy.kind == 10].tolist() + trace.memcpy.bytes[trace.memcpy.kind == 8].tolist()
    assert 4 << 20 in sizes
    assert (trace.memcpy.region != 0xFFFFFFFF).all()
