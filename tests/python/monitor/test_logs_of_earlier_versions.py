# SPDX-License-Identifier: Apache-2.0
"""Logs that an earlier version wrote: `tests/golden/logs`, with the samples that it read from them.

They contain two GPUs and a sample of only the host. The second GPU is lost for a second.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gpuscope.monitor import read_log
from gpuscope.monitor.lines import csv_line, json_line
from gpuscope.monitor.log import Log

LOGS = Path(__file__).resolve().parents[2] / "golden" / "logs"
NOT_LOGGED = "it is not in the log"


def plain(value: Any) -> Any:
    """Without unknown values, as JSON."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if each not in (None, NOT_LOGGED)}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def samples_of(name: str) -> list[dict[str, Any]]:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    found = read_log(LOGS / name)
    assert found.damaged == 0
    return [plain(asdict(sample)) for sample in found.samples]


def expected(name: str) -> list[dict[str, Any]]:
    return json.loads((LOGS / name).read_text())


@pytest.mark.parametrize("name", ["gpu.jsonl", "gpu.parquet"])
def test_samples_of_an_earlier_version_are_read_as_it_read_them(name):
    assert samples_of(name) == expected("gpu.json")


def test_a_csv_of_an_earlier_version_is_read_except_for_reasons():
    without = expected("gpu.json")
    for sample in without:
        if "gpu" in sample:
            sample["gpu"]["why"] = {}
            if sample["gpu"].get("throttle_reasons") == []:  # an empty cell is an unknown value
                del sample["gpu"]["throttle_reasons"]
    assert samples_of("gpu.csv") == without


def test_a_recording_of_an_earlier_version_has_the_figures_of_recordings():
    assert samples_of("gpu.gscope") == expected("gpu_of_gscope.json")


def test_csv_lines_are_written_as_before():
    with (LOGS / "gpu.csv").open() as file:
        header, *before = csv.reader(file)
    assert header[0] == "timestamp"
    written = csv.reader(map(csv_line, read_log(LOGS / "gpu.jsonl").samples))
    assert [cells[1:] for cells in written] == [cells[1:] for cells in before]


def test_json_lines_are_written_as_before():
    def parts(line: str) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in json.loads(line).items() if name not in ("timestamp", "why")]

    before = (LOGS / "gpu.jsonl").read_text().splitlines()
    written = [json_line(sample, {}) for sample in read_log(LOGS / "gpu.jsonl").samples]
    assert [*map(parts, written)] == [*map(parts, before)]


@pytest.mark.parametrize("name", ["gpu.csv", "gpu.jsonl", "gpu.parquet", "gpu.gscope"])
def test_a_log_of_an_earlier_version_is_appended_to(name, tmp_path):
    samples = samples_of(name)
    (tmp_path / name).write_bytes((LOGS / name).read_bytes())
    log = Log(tmp_path / name)
    log.append(read_log(LOGS / name).samples[-1:])
    log.close()
    found = [plain(asdict(sample)) for sample in read_log(tmp_path / name).samples]
    assert (found[:-1], found[-1]) == (samples, samples[-1])
