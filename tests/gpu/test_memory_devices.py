# SPDX-License-Identifier: Apache-2.0
"""The memory of several GPUs in one process. Each program has a process of its own."""

from __future__ import annotations

import pytest
from child import last_facts, run_code

from gpuscope import _core

MIB = 1 << 20

if len(_core.environment()["devices"]) < 2:
    pytest.skip("one GPU only", allow_module_level=True)

HOLDS = """
import json, sys, torch, gpuscope
MIB = 1 << 20
history = gpuscope.record_memory_history()
kept = []
for device in (0, 1):
    with gpuscope.record_function(f"device {device}"):
        kept.append(torch.empty((100 + 60 * device) * MIB, dtype=torch.uint8, device=device))
"""


def test_each_gpu_has_a_ledger_of_its_own():
    found = last_facts(
        run_code(
            HOLDS + "ledgers = [gpuscope.memory_ledger(device) for device in (0, 1)]\n"
            "for ledger in ledgers: print(ledger)\n"
            "print(json.dumps({'ledgers': [ledger.to_dict() for ledger in ledgers]}))"
        )
    )
    for device, ledger in enumerate(found["ledgers"]):
        rows = {row["region"]: row["bytes"] for row in ledger["rows"] if row["what"] == "allocated"}
        assert rows == {f"device {device}": (100 + 60 * device) * MIB}
        if ledger["process_bytes"] is not None:
            assert abs(ledger["process_bytes"] - ledger["explained_bytes"]) <= 64 * MIB, ledger["rows"]


def test_a_history_and_its_file_tell_gpus_apart(tmp_path):
    path = tmp_path / "memory.pickle"
    found = last_facts(
        run_code(
            HOLDS + f"gpuscope.dump_memory_snapshot({str(path)!r})\n"
            f"events = gpuscope.load_memory_snapshot({str(path)!r}).events\n"
            "sizes = [int(events.bytes[events.device == device].max()) for device in (0, 1)]\n"
            "print(json.dumps({'sizes': sizes}))"
        )
    )
    assert found["sizes"] == [100 * MIB, 160 * MIB]


def test_a_stage_has_the_peak_of_its_gpu():
    found = last_facts(
        run_code(
            "import json, torch, gpuscope\n"
            "MIB = 1 << 20\n"
            "torch.empty(1, device=0), torch.empty(1, device=1)\n"
            "with gpuscope.track_memory('both', 0) as first, gpuscope.track_memory('both', 1) as second:\n"
            "    for device in (0, 1):\n"
            "        torch.empty((100 + 60 * device) * MIB, dtype=torch.uint8, device=device)\n"
            "print(json.dumps({'peaks': [stage.peak_bytes for stage in (first, second)]}))"
        )
    )
    assert [peak // MIB for peak in found["peaks"]] == [100, 160]


def test_a_leak_on_another_gpu_is_found():
    found = last_facts(
        run_code(
            "import json, torch, gpuscope\n"
            "kept = []\n"
            "def step():\n"
            "    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device=1))\n"
            "    return torch.ones(1 << 20, device=0).sum().item()\n"
            "report = gpuscope.find_leaks(step, steps=10)\n"
            "print(report)\n"
            "print(json.dumps({'devices': [leak.device for leak in report.leaks]}))"
        )
    )
    assert found["devices"] == [1]


def test_the_largest_batch_is_of_the_gpu_that_the_model_is_on():
    found = last_facts(
        run_code(
            "import json, torch, gpuscope\n"
            "torch.cuda.set_per_process_memory_fraction(0.02, 1)\n"
            "limit = int(0.02 * torch.cuda.mem_get_info(1)[1])\n"
            "work = lambda size: torch.empty(size * (1 << 24), dtype=torch.uint8, device=1)\n"
            "largest = gpuscope.find_max_batch_size(work, limit=100_000, device=1)\n"
            "print(largest)\n"
            "print(json.dumps({'largest': int(largest), 'room': limit // (1 << 24)}))"
        )
    )
    assert found["room"] - 3 <= found["largest"] <= found["room"] + 1, found
