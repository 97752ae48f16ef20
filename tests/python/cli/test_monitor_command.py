# SPDX-License-Identifier: Apache-2.0
"""``gpuscope monitor`` as a program, beside a libnvidia-ml whose GPUs are not there and that fails in every way."""

from __future__ import annotations

import csv
import itertools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

import gpuscope as gs
from fakes.disturbances import least_disturbed
from fakes.machines import gpu, sample
from fakes.monitors import BEGIN_S, nvml_library, series, taken
from gpuscope import _core
from gpuscope.monitor import read_log
from gpuscope.monitor.log import Log
from gpuscope.monitor.programs import StatusPage
from gpuscope.monitor.schema import COLUMNS

HEADER = "#time        gpu  sm tens dram busy enc dec  mem  pwr tmp  clk thr   rx   tx cpu"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return nvml_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def programs_of_the_test(tmp_path, monkeypatch):
    """What other processes of this user say of themselves is not seen."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def monitor(gpuscope, library):
    """Runs ``gpuscope monitor ARGUMENTS`` beside the library; keywords are its variables."""
    return lambda *arguments, **variables: gpuscope("monitor", *arguments, **library, **variables)


@pytest.fixture
def started(library, tmp_path, monkeypatch):
    """Starts ``gpuscope monitor ARGUMENTS``, and ends it after the test."""
    monkeypatch.chdir(tmp_path)
    begun = []

    def start(*arguments, **options):
        command = [sys.executable, "-m", "gpuscope", "monitor", *map(str, arguments)]
        variables = {**os.environ, **library, **options.pop("variables", {})}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options
        begun.append(subprocess.Popen(command, env=variables, **options))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def objects(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_once_is_a_snapshot_of_gpus_and_host(monitor):
    done = monitor("--once", FAKE_GPUS="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "0    H100 80GB HBM3" in done.stdout
    assert "\nhost: " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_once_has_the_programs_that_are_profiled_in_lines_of_80_columns(monitor):
    page = StatusPage()
    page.open("recording")
    page.say(verdict="saves at most 12 %: " + "the GPU waits for the host " * 6)
    try:
        lines = monitor("--once", FAKE_GPUS="1").stdout.splitlines()
    finally:
        page.close()
    first = next(at for at, line in enumerate(lines) if line.startswith("program: "))
    assert max(map(len, lines)) <= 80
    assert " ".join(map(str.strip, lines[first:])).endswith("the GPU waits for the host")


def test_once_for_programs(monitor):
    facts = json.loads(monitor("--once", "--json", FAKE_GPUS="2").stdout)
    assert [each["index"] for each in facts["gpus"]] == [0, 1]
    assert facts["host"]["machine_cpus"] >= 1
    header, row = csv.reader(monitor("--once", "--csv").stdout.splitlines())
    assert (tuple(header), row[1]) == (COLUMNS, "0")


def test_a_name_that_is_no_utf_8_has_a_character_in_its_place(monitor):
    facts = json.loads(monitor("--once", "--json", FAKE_NAME=os.fsdecode(b"NVIDIA RTX \xc4\xe3 1")).stdout)
    assert facts["gpus"][0]["name"] == "NVIDIA RTX \ufffd\ufffd 1"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_once_is_shown_in_any_encoding(monitor, encoding):
    name = os.fsdecode(b"NVIDIA RTX \xc4\xe3 \xe6\xa0\xb8 1")
    done = monitor("--once", FAKE_NAME=name, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"RTX \ufffd\ufffd \u6838 1" in done.stdout


def test_what_nvml_answers_without_knowing_is_not_known(monitor):
    (gpu,) = json.loads(monitor("--once", "--json", FAKE_UNKNOWN="1").stdout)["gpus"]
    assert (gpu["power_w"], gpu["power_limit_w"], gpu["power_limit_default_w"]) == (None, None, None)
    assert gpu["why"]["power_w"] == "NVML does not know it here"
    assert gpu["sm_hz"] > 0


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_once_has_its_moment_in_the_log_too(monitor, tmp_path, form):
    done = monitor("--once", *form, "--log", "gpu.csv", FAKE_GPUS="2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "H100" in done.stdout
    assert [sample.gpu.index for sample in read_log(tmp_path / "gpu.csv").samples] == [0, 1]


@pytest.mark.parametrize("arguments", [("--once",), ("--count", "1")])
def test_a_moment_has_every_gpu_however_slowly_they_answer(monitor, arguments):
    done = monitor("--csv", *arguments, FAKE_GPUS="4", FAKE_SLOW="200")
    _, *rows = csv.reader(done.stdout.splitlines())
    assert [row[1] for row in rows] == ["0", "1", "2", "3"]


def test_elsewhere_than_on_a_terminal_there_are_rows(monitor):
    done = monitor("--count", "3", "--interval", "150ms", FAKE_GPUS="2")
    assert done.returncode == 0
    first, units, *rows = done.stdout.splitlines()
    assert (first, units.split()[1]) == (HEADER, "%")
    assert [row.split()[1] for row in rows] == ["0", "1"] * 3
    assert all(len(row) <= 80 for row in rows)
    assert float(rows[-1].split()[2]) >= 0  # multiprocessors, from the second round on


def test_json_lines_and_csv_are_those_of_logs(monitor, tmp_path):
    for form, name in (("--json", "gpu.jsonl"), ("--csv", "gpu.csv")):
        (tmp_path / name).write_text(monitor(form, "--count", "2", "--interval", "0.2s").stdout)
        assert len(read_log(tmp_path / name).samples) == 2


def test_the_header_comes_again_with_each_screen(gpuscope, tmp_path):
    log = Log(tmp_path / "gpu.jsonl")
    log.append(series(60))
    assert gpuscope("monitor", "gpu.jsonl").stdout.count(HEADER) == 3


@pytest.mark.parametrize("name", ["gpu.csv", "gpu.jsonl", "gpu.parquet"])
def test_a_log_is_written_beside_and_shown_again(monitor, gpuscope, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    assert monitor("--count", "3", "--interval", "100ms", "--log", name).returncode == 0
    done = gpuscope("monitor", name)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) >= 2 + 3
    assert json.loads(gpuscope("monitor", name, "--once", "--json").stdout)["gpu_idx"] == 0


def test_a_log_is_shown_again_for_as_many_moments_as_are_wanted(monitor, gpuscope):
    assert monitor("--count", "3", "--interval", "100ms", "--log", "gpu.jsonl", FAKE_GPUS="2").returncode == 0
    shown = gpuscope("monitor", "gpu.jsonl", "--count", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["gpu_idx"] for line in shown] == [0, 1, 0, 1]


def test_the_last_moment_of_a_log_has_its_rates(gpuscope, tmp_path):
    host = [dict.fromkeys(_core.HOST_FIGURES) | {"machine_cpus": 8, "machine_cpu_s": 4.0 * n} for n in range(4)]
    rows = [sample(gpu(index), BEGIN_S + n, host=host[n]) for n in range(4) for index in range(2)]
    Log(tmp_path / "gpu.jsonl").append(taken(*rows))
    shown = gpuscope("monitor", str(tmp_path / "gpu.jsonl"), "--once").stdout.splitlines()[2:]
    assert [(line.split()[1], line.split()[-1]) for line in shown] == [("0", "50"), ("1", "50")]


@pytest.mark.parametrize("name", ["gpu.csv", "gpu.jsonl", "gpu.parquet", "gpu.gscope"])
@pytest.mark.parametrize("options", [("--count", "9", "--interval", "50ms"), ("--once",)])
def test_a_log_that_could_not_be_written_is_told_at_the_end(library, tmp_path, name, options):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    command = f'ulimit -f 2; exec "$0" -m gpuscope monitor --log {name} {" ".join(options)}'
    (tmp_path / f"{name}{'.part' * name.endswith(('parquet', 'gscope'))}").write_text("\n" * 2048)
    if name.endswith("csv"):
        (tmp_path / name).write_text(",".join(COLUMNS) + "\n" * (2048 - len(",".join(COLUMNS))))
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], cwd=tmp_path, env={**os.environ, **library}, capture_output=True
    )
    *_, last = done.stderr.decode().splitlines()
    assert (done.returncode, last.startswith("gpuscope: cannot write gpu.")) == (1, True)
    assert b"Warning" not in done.stderr
    assert b"H100" in done.stdout or b"#time" in done.stdout  # what was measured is shown


def test_a_log_that_was_cut_says_what_was_left_out(gpuscope, tmp_path):
    log = Log(tmp_path / "gpu.jsonl")
    log.append(series(5))
    (tmp_path / "gpu.jsonl").write_bytes((tmp_path / "gpu.jsonl").read_bytes()[:-9])
    done = gpuscope("monitor", "gpu.jsonl")
    assert done.stderr == "note: 1 lines of gpu.jsonl were cut or damaged, and left out\n"
    assert len(done.stdout.splitlines()) == 2 + 4


@pytest.mark.parametrize("form", [(), ("--json",), ("--csv",)])
def test_ctrl_c_ends_it_with_whole_lines_and_no_traceback(started, form):
    process = started("--interval", "50ms", "--log", "gpu.jsonl", *form)
    assert process.stdout.readline()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (128 + signal.SIGINT, b"")
    assert not out or out.endswith(b"\n")
    with open("gpu.jsonl") as file:
        assert [json.loads(line) for line in file]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("name", ["gpu.jsonl", "gpu.gscope"])
def test_a_service_or_session_that_ends_has_its_log(started, name, sent):
    # Whatever started the tests, as nohup, may have it ignored.
    process = started("--interval", "50ms", "--log", name, preexec_fn=lambda: signal.signal(sent, signal.SIG_DFL))
    assert process.stdout.readline()
    process.stdout.readline()
    process.send_signal(sent)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (-sent, b"")
    assert not out or out.endswith(b"\n")
    assert not os.path.exists(f"{name}.part")
    assert read_log(name).damaged == 0


def test_nohup_keeps_it_from_ending_with_its_session(started):
    process = started(
        "--interval", "50ms", "--count", "40", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    assert process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) == 0


def test_a_reader_that_has_seen_enough_ends_it(started):
    process = started("--interval", "10ms")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(120) == 128 + signal.SIGPIPE
    assert process.stderr.read() == b""
    process.stdout = None


@pytest.mark.parametrize("form", ["rows", "--json", "--csv", "--once"])
def test_a_machine_without_a_gpu_shows_its_host_and_says_so(gpuscope, form):
    if gs.gpu_snapshot().gpus:
        pytest.skip("there is a GPU")
    options = [form] if form.startswith("--") else []
    done = gpuscope("monitor", *options, "--count", "2", "--interval", "100ms")
    assert done.returncode == 0
    if form == "--once":
        assert "no GPU: libnvidia-ml was not found" in done.stdout
        assert "\nhost: " in done.stdout
        assert " % busy\n" in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 80
        return
    assert done.stderr.startswith("note: no GPU: libnvidia-ml was not found")
    assert len(done.stdout.splitlines()) == {"rows": 4, "--json": 2, "--csv": 3}[form]


def test_without_a_gpu_once_has_the_users_processes(monitor, worker):
    lines = monitor("--once", FAKE_GPUS="0").stdout.splitlines()
    (row,) = [line.split() for line in lines if f" {worker.pid} " in line]
    assert float(row[2]) > 0
    assert row[6:] == [os.path.basename(sys.executable), "-c", "while", "True:", "pass"]
    facts = json.loads(monitor("--once", "--json", FAKE_GPUS="0").stdout)["processes"]
    (facts,) = [each for each in facts if each["pid"] == worker.pid]
    assert facts["cpu_ratio"] > 0
    assert facts["command"] == f"{sys.executable} -c while True: pass"
    assert facts["parent"] == os.getpid()


def test_with_a_gpu_once_has_no_processes_of_the_host(monitor, worker):
    assert f"{worker.pid}" not in monitor("--once", FAKE_GPUS="1").stdout
    assert "processes" not in json.loads(monitor("--once", "--json", FAKE_GPUS="1").stdout)


def test_rows_of_a_machine_without_a_gpu_have_columns_of_their_own_and_its_busiest_process(monitor, worker):
    first, units, *rows = monitor("--count", "4", "--interval", "1s", FAKE_GPUS="0").stdout.splitlines()
    assert first == "#time        cpu   ram    of wcpu wdisk wram  your busiest process"
    assert units.split() == ["#", "%", "GiB", "GiB", "%", "%", "%"]
    assert all(len(row) <= 80 for row in rows)
    assert float(rows[-1].split()[1]) > 0
    assert any(row.split()[7:8] for row in rows)


def test_a_log_with_and_without_gpus_has_a_header_before_each(gpuscope, tmp_path):
    log = Log(tmp_path / "gpu.jsonl")
    log.append(taken(sample(None)) + series(2, begin_s=BEGIN_S + 1) + taken(sample(None, BEGIN_S + 9)))
    lines = gpuscope("monitor", "gpu.jsonl").stdout.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("#time")] == [
        ["#time", "cpu"],
        ["#time", "gpu"],
        ["#time", "cpu"],
    ]
    assert "busiest" not in "".join(lines)  # which no log has


# What the library is told to do, and what the monitor says of it.
START_FAULTS = {
    "the versions of driver and library differ": ({"FAKE_INIT": "18"}, "Driver/library version mismatch"),
    "NVML does not start": ({"FAKE_INIT": "9"}, "nvmlInit_v2 failed: "),
    "GPUs cannot be counted": ({"FAKE_COUNT": "4"}, "nvmlDeviceGetCount_v2 failed: Insufficient Permissions"),
    "there are none": ({"FAKE_GPUS": "0"}, "NVML shows no GPU"),
}


@pytest.mark.parametrize("fault", START_FAULTS)
def test_what_keeps_it_from_the_gpus_is_one_sentence_and_the_host_is_shown(monitor, fault):
    variables, said = START_FAULTS[fault]
    done = monitor("--count", "2", "--interval", "100ms", **variables)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_a_gpu_that_is_lost_for_a_while_is_named_and_the_other_goes_on(monitor):
    # It comes back at the search that is made 4 s after it was lost at the latest.
    done = monitor("--json", "--count", "80", "--interval", "100ms", FAKE_GPUS="2", FAKE_LOST="1:10:12")
    rows = objects(done)
    other = [row for row in rows if row["gpu_idx"] == 0]
    lost = [row for row in rows if row["gpu_idx"] == 1 and "power_w" not in row]
    assert (len(other), len(rows)) == (80, 160)
    assert all("power_w" in row for row in other)
    assert lost
    assert lost[0]["why"] == {"all": "GPU is lost"}
    assert "gpu_uuid" in lost[0]
    assert not {"energy_total_j", "memory_total_bytes", "busy_ratio"} & {*lost[0]}
    assert "power_w" in rows[-1]
    assert done.stderr == ""


def test_rows_of_a_gpu_that_is_lost_say_so(monitor):
    done = monitor("--count", "8", "--interval", "50ms", FAKE_GPUS="1", FAKE_LOST="0:3:999999")
    assert done.stdout.splitlines()[-1].endswith("  GPU is lost")


def test_an_error_that_the_driver_tells_is_in_the_log_from_then_on(monitor):
    rows = objects(monitor("--json", "--count", "15", "--interval", "200ms", FAKE_GPUS="2", FAKE_XID="1:31"))
    assert {row["xid_errors"] for row in rows if row["gpu_idx"] == 0} == {"none"}
    assert rows[-1]["xid_errors"].startswith("31x1@")


def test_a_split_gpu_has_figures_of_its_parts_and_the_reason_why_it_has_none_itself(monitor):
    rows = objects(monitor("--json", "--count", "8", "--interval", "200ms", FAKE_MIG="3", FAKE_PID="1"))
    assert (rows[0]["why"]["busy_ratio"], "busy_ratio" in rows[0]) == ("Not Supported", False)
    assert [each["gpu_instance"] for each in rows[-1]["mig_instances"]] == [0, 1, 2]
    assert all(0 < each["figures"]["sm_active_ratio"] < 1 for each in rows[-1]["mig_instances"])
    assert "MIG 1g.10gb (2/0): " in monitor("--once", FAKE_MIG="3").stdout


def test_every_row_says_what_sampling_took(monitor):
    rows = objects(monitor("--json", "--count", "20", "--interval", "10ms", FAKE_GPUS="64"))
    assert rows[-1]["sample_p99_s"] > 0
    assert rows[-1]["sampler_cpu_ratio"] > 0


def test_names_are_of_what_is_served(gpuscope):
    done = gpuscope("monitor", "--names", "dcgm")
    assert (done.returncode, done.stdout) == (2, "")
    assert "give both, or neither" in done.stderr


def test_counters_that_stopped_are_no_zeros(monitor):
    rows = objects(monitor("--json", "--count", "6", "--interval", "600ms", FAKE_GPM="zero"))
    assert "sm_active_ratio" not in rows[-1]
    assert any("read 0 while kernels run" in row.get("why", {}).get("sm_active_ratio", "") for row in rows)


def test_a_gpu_without_performance_counters_says_why_once(monitor):
    rows = objects(monitor("--json", "--count", "3", "--interval", "200ms", FAKE_GPM="absent"))
    assert "Hopper and later" in rows[0]["why"]["sm_active_ratio"]
    assert all("sm_active_ratio" not in row for row in rows)
    assert "why" not in rows[2]


def test_a_counter_of_energy_that_is_absent_leaves_the_rest(monitor):
    rows = objects(monitor("--json", "--count", "2", "--interval", "100ms", FAKE_ENERGY="absent"))
    assert rows[0]["why"]["energy_total_j"] == "Not Supported"
    assert all("power_w" in row and "energy_total_j" not in row for row in rows)


@least_disturbed  # a figure that is read long after the time that it has says another rate
def test_energy_of_a_log_is_that_of_the_gpu(monitor, tmp_path):
    (tmp_path / "gpu.jsonl").write_text(monitor("--json", "--count", "7", "--interval", "500ms").stdout)
    found = gs.monitor.growth(read_log(tmp_path / "gpu.jsonl").samples)
    assert found.energy_j.per_second == pytest.approx(400, rel=0.1)  # which the library has
    assert found.throttled_s["sw_power_cap"].per_second == pytest.approx(0.12, rel=0.1)
    assert "may wrap each 68 ms" in found.why["pcie_sent_bytes"]


def test_bytes_of_a_quick_log_are_exact(monitor, tmp_path):
    (tmp_path / "gpu.jsonl").write_text(monitor("--json", "--count", "100", "--interval", "20ms").stdout)
    samples = read_log(tmp_path / "gpu.jsonl").samples
    gaps = [after.time_ns - before.time_ns for before, after in itertools.pairwise(samples)]
    found = gs.monitor.growth(samples)
    if max(gaps) < 68_000_000:  # else this machine was too busy to say
        assert found.pcie_sent_bytes.per_second == pytest.approx(2e9, rel=0.05)


def test_a_counter_of_energy_that_stands_still_is_told_and_no_zero(monitor, tmp_path):
    (tmp_path / "gpu.jsonl").write_text(
        monitor("--json", "--count", "8", "--interval", "500ms", FAKE_ENERGY="stuck").stdout
    )
    found = gs.monitor.growth(read_log(tmp_path / "gpu.jsonl").samples)
    assert found.energy_j is None
    assert "stands still" in found.why["energy_j"]


def test_a_driver_that_is_loaded_anew_is_read_again_and_its_counters_begin_anew(monitor, tmp_path):
    (tmp_path / "gpu.jsonl").write_text(
        monitor("--json", "--count", "30", "--interval", "100ms", FAKE_RELOAD="10").stdout
    )
    samples = read_log(tmp_path / "gpu.jsonl").samples
    assert samples[-1].gpu.power_w is not None
    found = gs.monitor.growth(samples)
    assert found.energy_j is None
    assert "was reset" in found.why["energy_j"] or "GPU" in found.why["energy_j"] or "Error" in found.why["energy_j"]


def test_what_is_not_permitted_is_named_and_the_rest_goes_on(monitor):
    rows = objects(monitor("--json", "--count", "3", "--interval", "100ms", FAKE_DENIED="4"))
    assert rows[0]["why"]["power_w"] == "Insufficient Permissions"
    assert all("power_w" not in row and "temp_c" in row for row in rows)
    assert "power_w" in rows[-1].get("why", rows[0]["why"])


ENDS_INSIDE_A_SAMPLE = """
import time
import gpuscope as gs
monitor = gs.GPUMonitor("gpu.csv", interval=0.1)
monitor.start()
while not monitor.latest():
    time.sleep(0.01)
{ending}
"""


@pytest.mark.parametrize("ending", ["pass", "1 / 0", "monitor.stop()"])
def test_a_program_that_ends_inside_a_sample_has_its_log(library, tmp_path, monkeypatch, ending):
    monkeypatch.chdir(tmp_path)
    subprocess.run(
        [sys.executable, "-c", ENDS_INSIDE_A_SAMPLE.format(ending=ending)],
        env={**os.environ, **library, "FAKE_SLOW": "700"},
        stderr=subprocess.DEVNULL,
        timeout=300,
    )
    assert read_log(tmp_path / "gpu.csv").samples[0].gpu.busy_ratio is not None


def test_a_program_goes_on_after_stop_where_a_gpu_does_not_answer(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = ENDS_INSIDE_A_SAMPLE.format(ending="monitor.stop()\nprint('goes on')")
    environment = {**os.environ, **library, "FAKE_GPUS": "2", "FAKE_HANG": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "a GPU does not answer" in done.stderr
    assert [sample.gpu.index for sample in read_log("gpu.csv").samples] == [0]


def test_a_child_that_is_forked_while_it_samples_ends_and_the_parent_goes_on(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = """
import os, sys, time
import gpuscope as gs
with gs.GPUMonitor("gpu.jsonl", interval=0.02) as monitor:
    while not monitor.cost.rounds:
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        sys.exit(0 if monitor.take() == [] and not monitor.running else 1)
    code = os.waitpid(child, 0)[1]
    before = monitor.cost.rounds
    while monitor.cost.rounds == before:  # it goes on
        time.sleep(0.01)
print(monitor.cost.rounds)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **library}, timeout=300, capture_output=True)
    assert done.returncode == 0, done.stderr
    times = [sample.time_ns for sample in read_log("gpu.jsonl").samples]
    assert times == sorted(times)
    assert len(times) == int(done.stdout)  # the child wrote none of the parent's again


def test_64_gpus(monitor):
    rows = objects(monitor("--json", "--count", "2", "--interval", "200ms", FAKE_GPUS="64"))
    assert [row["gpu_idx"] for row in rows] == [*range(64)] * 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--interval", "0"), "is not a time above 0"),
        (("--interval", "1"), "'1' is not a time above 0 with its unit, as 5ms"),
        (("--interval", "-1"), "is not a time above 0"),
        (("--interval", "nan"), "is not a time above 0"),
        (("--interval", "1ms"), "is not between 10ms and 60min"),
        (("--interval", "2h"), "is not a time above 0"),
        (("--interval", "soon"), "is not a time above 0"),
        (("--count", "0"), "is not an integer of at least 1"),
        (("--json", "--csv"), "not allowed with argument"),
        (("--prometheus", "99999"), "accepted are 1 to 65535"),
        (("--log", "none/gpu.csv"), "the folder "),
        (("--log", "none/gpu.csv", "--once"), "the folder "),
        (("--board", "none"), "the folder "),
        (("--once", "--prometheus", "9777"), "--once ends at once; leave one out"),
        (("--log", "gpu.txt"), ".csv or .parquet or .jsonl or .ndjson or .gscope"),
        (("none.csv",), "there is no such file"),
        (("none.txt",), "accepted are logs"),
        (("gpu.csv", "--interval", "1s"), "is of samples that are taken, and gpu.csv has been"),
    ],
)
def test_wrong_arguments_get_one_sentence(gpuscope, arguments, said):
    done = gpuscope("monitor", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_log_with_other_columns_is_refused_before_anything_is_read(monitor, tmp_path):
    (tmp_path / "gpu.csv").write_text("timestamp,gpu_idx,mine\n")
    done = monitor("--log", "gpu.csv", "--count", "1")
    assert done.returncode == 2
    assert "a file with other columns ('mine')" in done.stderr


def test_board_and_rules_are_written(gpuscope, tmp_path):
    done = gpuscope("monitor", "--board", ".")
    assert done.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpuscope-alerts.yml", "gpuscope-board.json"]


def on_terminal(library, seconds, *arguments, keys=b"q", sent=None, when=b"q end", **variables):
    """What a terminal of 80 by 24 is given until keys or a signal, `when` that was seen, have ended it; exit status."""
    master, slave = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, **library, "TERM": "xterm-256color", "LANG": "C.UTF-8", **variables}
    command = [sys.executable, "-m", "gpuscope", "monitor", *arguments]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen, pressed = b"", False
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            seen += os.read(master, 1 << 16)
        except OSError:  # it has ended
            break
        if when in seen and not pressed:
            pressed = True
            os.write(master, keys) if sent is None else process.send_signal(sent)
    try:
        code = process.wait(max(1, until - time.monotonic()))
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return seen.decode(errors="replace"), code


@pytest.mark.parametrize("keys", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_on_a_terminal_there_is_the_page(library, keys):
    pytest.importorskip("textual")
    seen, code = on_terminal(library, 120, keys=keys)
    assert code == 0
    assert "GiB" in seen
    assert "Traceback" not in seen


def test_sigterm_gives_the_terminal_back(library):
    pytest.importorskip("textual")
    seen, code = on_terminal(library, 120, sent=signal.SIGTERM)
    assert code == -signal.SIGTERM
    assert seen.rindex("\x1b[?1049l") > seen.rindex("\x1b[?1049h")
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")
    assert "Traceback" not in seen


# What a handler raises while a lock of the output's is held leaves it locked.
SIGTERM_WHILE_IT_WRITES = """
import os, queue, signal, sys
put = queue.Queue.put
def put_and_be_ended(self, *arguments):
    if "textual.drivers._writer_thread" in sys.modules:
        queue.Queue.put = put
        self.mutex.acquire()
        os.kill(os.getpid(), signal.SIGTERM)
        self.mutex.release()
    put(self, *arguments)
queue.Queue.put = put_and_be_ended
"""


def test_sigterm_while_it_writes_ends_it(library, tmp_path):
    pytest.importorskip("textual")
    (tmp_path / "sitecustomize.py").write_text(SIGTERM_WHILE_IT_WRITES)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    seen, code = on_terminal(library, 60, when=b"nothing", PYTHONPATH=path)
    assert code == -signal.SIGTERM
    assert seen.rindex("\x1b[?1049l") > seen.rindex("\x1b[?1049h")
    assert "Traceback" not in seen


def test_its_first_frame_is_there_before_textual(library, tmp_path):
    (tmp_path / "textual").mkdir()
    (tmp_path / "textual/__init__.py").write_text("raise KeyboardInterrupt  # while it is imported")
    (tmp_path / "sitecustomize.py").write_text(  # on a busy machine the first sample may come late
        "import gpuscope.monitor.layout as layout\nlayout._FIRST_SAMPLE_S = 60\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    seen, code = on_terminal(library, 120, PYTHONPATH=path)
    assert code == 128 + signal.SIGINT
    assert seen.index("looking for GPUs") < seen.index("useful") < seen.index("GiB")
    assert seen.count("\x1b[?1049h") == seen.count("\x1b[?1049l") == 1  # the terminal is as it was
    assert "Traceback" not in seen


def test_without_textual_one_sentence_says_what_to_install(library, tmp_path):
    (tmp_path / "textual").mkdir()
    (tmp_path / "textual/__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'textual'\", name='textual')"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    seen, code = on_terminal(library, 120, PYTHONPATH=path)
    assert code == 1
    seen = " ".join(seen.split())  # it is wrapped
    assert "textual is not installed; pip install textual, or gpuscope monitor --rows" in seen
    assert "Traceback" not in seen
