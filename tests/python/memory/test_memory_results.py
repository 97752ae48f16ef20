# SPDX-License-Identifier: Apache-2.0
"""What every result of memory has: JSON, a repr that says something, and a DataFrame where it is a table."""

from __future__ import annotations

import json

import pytest

from fakes.frameworks import MIB, segment
from fakes.memory_events import events
from gpuscope.frameworks.torch_memory import segments
from gpuscope.memory.history.fragments import fragmentation_of
from gpuscope.memory.history.leaks import LeakReport
from gpuscope.memory.history.peak import peak_memory
from gpuscope.memory.limits.batch_size import MaxBatchSize
from gpuscope.memory.usage.ledger import memory_ledger
from gpuscope.memory.usage.snapshot import memory_snapshot
from gpuscope.memory.usage.stages import MemoryStage, MemoryStages

STAGE = MemoryStage("load", 0, 1, MIB, 2 * MIB, 0, MIB, MIB, MIB, MIB, 5 * MIB)
STACK = {1: (("step", "/me/train.py", 41),)}


@pytest.fixture
def results(machine):
    machine.use_torch(segment(0x1000, MIB, -3 * MIB))
    machine.process[0] = 4 * MIB
    history = events(("alloc", 0x1000, MIB, {"stack": 1}), frames=STACK)
    return {
        "<MemorySnapshot: GPU 0 4.00 MiB held, host ": memory_snapshot(),
        "<MemoryDifference in ": memory_snapshot() - memory_snapshot(),
        "<MemoryLedger of GPU 0: explained 100.0 % of 4.00 MiB": memory_ledger(measure_context=False),
        "<Fragmentation of GPU 0: 4.00 MiB reserved, 3.00 MiB free in 1 piece>": fragmentation_of(segments(0)),
        '<MemoryStages: 1 stage, the highest peak 1.00 MiB in "load">': MemoryStages((STAGE,)),
        "<PeakReport: peak of GPU 0: 1.00 MiB, 0.000 s after the first event>": peak_memory(history),
        "<LeakReport: no leaks in 9 steps": LeakReport((), 9, 3, 100),
        "<MaxBatchSize 3, limited by memory, 0 tries>": MaxBatchSize(3),
    }


def test_results_have_a_telling_repr_and_json(results, tmp_path):
    for begin, result in results.items():
        assert repr(result).startswith(begin)
        path = tmp_path / "result.json"
        assert json.loads(result.to_json(path)) == json.loads(path.read_text())
        assert set(json.loads(path.read_text())) == set(result.to_dict())


def test_tables_are_data_frames():
    pytest.importorskip("pandas")
    history = events(("alloc", 0x1000, MIB, {"stack": 1}), frames=STACK)
    assert history.to_pandas().loc[0, ["bytes", "source", "region"]].tolist() == [MIB, "torch", ""]
    assert peak_memory(history).to_pandas().loc[0, ["place", "bytes", "count"]].tolist() == ["train.py:41 step", MIB, 1]
    assert MemoryStages((STAGE,)).to_pandas().loc[0, ["name", "peak_bytes"]].tolist() == ["load", MIB]


def test_the_ledgers_rows_are_a_data_frame(machine):
    pytest.importorskip("pandas")
    machine.take(MIB, "libcublas.so")
    machine.process[0] = MIB
    frame = memory_ledger(measure_context=False).to_pandas()
    assert frame.loc[0, ["library", "bytes"]].tolist() == ["libcublas.so", MIB]
