# SPDX-License-Identifier: Apache-2.0
"""Logs of GPUs that are recordings, and recordings of programs that are shown as logs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

import gpuscope as gs
from fakes.gscope import make_store
from fakes.machines import gpu, sample
from fakes.monitors import BEGIN_S, series, taken
from fakes.powered import MS, PoweredGpu
from gpuscope import _core, cli
from gpuscope.errors import InvalidArgument
from gpuscope.exporters import save
from gpuscope.monitor import read_log
from gpuscope.monitor.log import Log

FIGURES = (
    *("power_w", "power_limit_w", "power_limit_default_w", "sm_hz", "sm_max_hz", "memory_hz", "temperature_c"),
    *("busy_ratio", "memory_busy_ratio", "memory_used_bytes", "memory_total_bytes", "energy_total_j"),
)


def write(path, written):
    log = Log(path)
    log.append(written)
    log.close()
    return path


def test_figures_of_recordings_come_back_as_they_were(tmp_path):
    facts = gpu(
        1, throttle_reasons=["sw_power_cap", "gpu_idle"], energy_total_j=1234.5, throttled_s={"sync_boost": 2.5}
    )
    written = taken(sample(facts, BEGIN_S, slow_time_ns=round((BEGIN_S - 0.25) * 1e9)))
    (found,) = read_log(write(tmp_path / "gpu.gscope", written)).samples
    (before,) = written
    for name in FIGURES:
        assert getattr(found.gpu, name) == pytest.approx(getattr(before.gpu, name)), name
    assert (found.gpu.index, found.gpu.name, found.gpu.uuid) == (1, before.gpu.name, before.gpu.uuid)
    assert set(found.gpu.throttle_reasons) == {"sw_power_cap", "gpu_idle"}
    assert found.gpu.throttled_s == {"sync_boost": 2.5}
    assert found.time_ns - found.slow_time_ns == pytest.approx(250_000_000, abs=1_000_000)
    assert found.gpu.fan_ratio is None
    assert found.gpu.why["fan_ratio"] == "it is not in the log"


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("device_sample", "start_ns", 0),
        ("device_sample", "device", (1 << 31) - 1),
        ("device_counter", "start_ns", 0),
        ("device_counter", "energy_mj", (1 << 63) - 1),
        ("device", "memory_bytes", (1 << 63) - 1),
    ],
)
def test_one_odd_value_of_a_recording_costs_one_sample_at_most(table, column, value, tmp_path, capsys):
    names = {each.name: [column.name for column in each.columns] for each in _core.schema()}
    tables = {each: {name: [7, 7, 7] for name in names[each]} for each in ("device_sample", "device_counter")}
    for rows in tables.values():
        rows |= {"start_ns": [(int(BEGIN_S) + n) * 10**9 for n in range(3)], "device": [0, 0, 0]}
    tables["device"] = {"ordinal": [0], "name": [1], "uuid": [1], "memory_bytes": [80 << 30]}
    tables[table][column][len(tables[table][column]) // 2] = value
    path = tmp_path / "gpu.gscope"
    save(make_store(tables, ["", "a\0\x1b[31m"], {"monitor.log": "1"}), path)
    for form in ("--rows", "--json", "--csv"):
        assert cli.main(["monitor", str(path), form]) == 0
        assert len(capsys.readouterr().out.splitlines()) >= 2
    assert len(read_log(path).samples) >= 2


HOST = dict.fromkeys(_core.HOST_FIGURES) | {"machine_cpus": 8, "memory_limit_bytes": 1 << 40, "why": {}}


def hosts(count, begin_s=BEGIN_S):
    """Samples of a machine without a GPU, the last of which knows less."""
    every = [HOST | {"machine_cpu_s": begin_s + n} for n in range(count)] + [HOST | {"machine_cpus": None}]
    return taken(*(sample(None, begin_s + n, host=host, cost=None) for n, host in enumerate(every)))


def test_a_log_without_a_gpu_has_the_host_as_other_logs_have_it(tmp_path):
    written = hosts(3)
    found, other = (read_log(write(tmp_path / name, written)) for name in ("gpu.gscope", "gpu.jsonl"))
    assert found.damaged == 0
    assert found.samples == other.samples
    assert [each.host.machine_cpu_s for each in found.samples] == [BEGIN_S, BEGIN_S + 1, BEGIN_S + 2, None]


def test_a_log_without_a_gpu_is_appended_to_and_may_have_gpus_later(tmp_path):
    path = write(tmp_path / "gpu.gscope", hosts(2))
    write(path, hosts(1, BEGIN_S + 10))
    write(path, series(2, begin_s=BEGIN_S + 20))
    assert [each.gpu is None for each in read_log(path).samples] == [True] * 5 + [False] * 2


@pytest.mark.parametrize("form", ["--rows", "--json", "--csv", "--once"])
def test_a_log_without_a_gpu_is_shown_in_every_form(form, tmp_path, capsys):
    path = write(tmp_path / "gpu.gscope", hosts(3))
    assert cli.main(["monitor", str(path), form]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert len([line for line in out.splitlines() if not line.startswith(("#", "timestamp"))]) == 1 + 3 * (
        form != "--once"
    )


def test_a_log_of_an_older_version_that_has_nothing_of_the_host_says_so(tmp_path):
    path = tmp_path / "gpu.gscope"
    save(make_store({}, [""], {"monitor.log": "1"}), path)
    with pytest.raises(InvalidArgument, match="has no sample that can be read"):
        read_log(path)


@pytest.mark.parametrize(
    "text", ["{", "[]", "7", '{"time_ns": 1}', '{"time_ns": [1], "took_s": []}', "[" * 50_000, '{"time_ns": [[]]}']
)
def test_damaged_samples_of_the_host_get_one_sentence(text, tmp_path):
    path = tmp_path / "gpu.gscope"
    save(make_store({}, [""], {"monitor.log": "1", "monitor.host": text}), path)
    with pytest.raises(InvalidArgument, match="read"):
        read_log(path)


@pytest.mark.parametrize("cut", [0, 1, 40, 200])
@pytest.mark.parametrize("written", [hosts(3), series(3)])
def test_a_log_that_is_empty_or_was_cut_gets_one_sentence(written, cut, tmp_path):
    path = write(tmp_path / "gpu.gscope", written)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InvalidArgument, match=r"no (recording|sample) that can be read"):
        read_log(path)


def test_a_log_that_lost_rows_when_it_was_cut_says_so(tmp_path):
    path = write(tmp_path / "gpu.gscope", series(3))
    whole = path.read_bytes()
    found = []
    for cut in range(1, len(whole), 16):
        path.write_bytes(whole[:cut])
        with contextlib.suppress(InvalidArgument):
            found.append(read_log(path))
    assert {(len(each.samples), each.damaged) for each in found} >= {(3, 1), (3, 0)}


def test_a_log_is_appended_to(tmp_path):
    path = write(tmp_path / "gpu.gscope", series(3))
    write(path, series(2, begin_s=BEGIN_S + 10))
    assert len(read_log(path).samples) == 5
    assert not path.with_name("gpu.gscope.part").exists()


def test_what_a_killed_process_left_is_taken_over(tmp_path):
    path = tmp_path / "gpu.gscope"
    Log(path).append(series(3))
    write(path, series(2, begin_s=BEGIN_S + 10))
    assert len(read_log(path).samples) == 5


def test_a_counter_that_is_read_seldom_is_one_row_for_all_its_samples(tmp_path):
    rows = [sample(gpu(), BEGIN_S + n / 10, slow_time_ns=round(BEGIN_S * 1e9)) for n in range(10)]
    path = write(tmp_path / "gpu.gscope", taken(*rows))
    trace = gs.load(path).trace
    assert (len(trace.device_samples), len(trace.device_counters)) == (10, 1)


def test_counters_that_are_read_at_two_moments_are_two_rows(tmp_path):
    facts = gpu(energy_total_j=5.0, throttled_s={"sw_power_cap": 1.5})
    moments = {"slow_time_ns": round(BEGIN_S * 1e9), "rare_time_ns": round((BEGIN_S - 4) * 1e9)}
    path = write(tmp_path / "gpu.gscope", taken(*(sample(facts, BEGIN_S + n / 10, **moments) for n in range(3))))
    table = gs.load(path).trace.device_counters
    assert table.start_ns.tolist() == [moments["rare_time_ns"], moments["slow_time_ns"]]
    assert (table.energy_mj.tolist(), table.sw_power_cap_ns.tolist()) == ([5000, -1], [-1, 1_500_000_000])
    found = read_log(path).samples[-1]
    assert found.slow_time_ns - found.rare_time_ns == 4_000_000_000


def lost_and_back():
    """GPU 1 is lost after three seconds, and is back after six."""
    lost = dict.fromkeys([*gpu()["figures"], "throttle_reasons"]) | {"throttled_s": {}}
    lost_rows = (sample(gpu(1, why={"all": "GPU is lost"}, **lost), BEGIN_S + n) for n in range(3, 6))
    return taken(
        *(sample(gpu(1), BEGIN_S + n) for n in range(3)),
        *lost_rows,
        *(sample(gpu(1), BEGIN_S + n) for n in range(6, 8)),
    )


def test_a_gpu_that_is_lost_is_lost_in_a_log_too(tmp_path):
    found = [each.gpu for each in read_log(write(tmp_path / "gpu.gscope", lost_and_back())).samples]
    assert ["all" in each.why for each in found] == [False] * 3 + [True] * 3 + [False] * 2
    assert [each.power_w for each in found] == [612.4] * 3 + [None] * 3 + [612.4] * 2


def test_throttle_reasons_that_were_not_read_are_not_those_of_the_sample_before(tmp_path):
    reasons = [["sw_power_cap"], None, []]
    written = taken(*(sample(gpu(throttle_reasons=each), BEGIN_S + n) for n, each in enumerate(reasons)))
    found = read_log(write(tmp_path / "gpu.gscope", written)).samples
    assert [each.gpu.throttle_reasons for each in found] == [("sw_power_cap",), None, ()]


def test_a_gpu_that_is_lost_keeps_the_size_of_its_memory(tmp_path):
    found = read_log(write(tmp_path / "gpu.gscope", lost_and_back()[:5])).samples
    assert found[0].gpu.memory_total_bytes == gpu()["figures"]["memory_total_bytes"]


def test_lines_that_no_monitor_has_written_are_left_out(tmp_path):
    path = tmp_path / "gpu.gscope"
    log = Log(path)
    log.append(series(2))
    wrong = [{"gpu_idx": "x"}, {"gpu_idx": -1}, {"gpu_idx": 0, "power_w": [1]}, {"gpu_idx": 0, "power_w": 1e300}]
    with path.with_name("gpu.gscope.part").open("a") as file:
        file.writelines(json.dumps({"timestamp": "2026-01-01T00:00:00Z"} | row) + "\n" for row in wrong)
    log.close()
    assert len(read_log(path).samples) == 3  # the last is of a wrong number alone


def test_the_recording_of_a_program_is_no_log_to_append_to(tmp_path):
    path = tmp_path / "run.gscope"
    save(PoweredGpu().trace(device_counter={"start_ns": [5]}).store, path)
    with pytest.raises(InvalidArgument, match="the recording of a program"):
        Log(path)
    path.write_bytes(b"no recording")
    with pytest.raises(InvalidArgument, match="no recording that can be read"):
        Log(path)


def test_the_recording_of_a_program_is_shown_as_a_log(tmp_path):
    machine = PoweredGpu()
    for _ in range(20):
        machine.run("gemm", 100 * MS, 600, "forward")
    readings = machine.readings()
    moments = readings["start_ns"]
    fast = {name: [-1] * len(moments) for name in ("memory_used_bytes", "throttle_reasons", "power_limit_default_mw")}
    fast |= {"start_ns": moments, "power_mw": [600_000] * len(moments), "sm_mhz": [1980] * len(moments)}
    path = tmp_path / "run.gscope"
    save(machine.trace(device_sample=fast).store, path)
    found = read_log(path).samples
    assert len(found) == len(moments)
    assert found[-1].gpu.power_w == 600
    assert found[-1].gpu.energy_total_j > found[1].gpu.energy_total_j
    assert found[-1].gpu.name == "NVIDIA H100"
    assert found[-1].gpu.memory_used_bytes is None


def test_a_recording_without_samples_of_gpus_says_how_to_get_them(tmp_path):
    path = tmp_path / "run.gscope"
    save(PoweredGpu().trace(device_counter={"start_ns": [5]}).store, path)
    with pytest.raises(InvalidArgument, match="device_samples=True"):
        read_log(path)


def test_a_recording_of_a_program_with_samples_of_its_gpu_is_shown_again():
    found = read_log(Path(__file__).resolve().parents[3] / "docs" / "recordings" / "watched.gscope").samples
    assert len(found) == 135
    assert {each.gpu.name for each in found} == {"NVIDIA H200"}
    assert max(each.gpu.power_w for each in found) > 600
