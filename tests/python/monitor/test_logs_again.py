# SPDX-License-Identifier: Apache-2.0
"""Logs read again: what was written is what comes back, whatever happened to the file."""

from __future__ import annotations

import csv
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fakes.machines import COST, INSTANCES, gpu, sample
from fakes.monitors import BEGIN_S, series, taken
from gpuscope import GPUMonitor, cli
from gpuscope.errors import GpuscopeError, InvalidArgument, NotAvailable
from gpuscope.monitor import parquet, read_log
from gpuscope.monitor.lines import json_line
from gpuscope.monitor.log import Log

SUFFIXES = ["csv", "jsonl", "parquet"]
NONE_OF_A_LOG = ("why", "processes", "mig", "pci_address", "throttle_reasons")
HOST = {"machine_cpus": 8, "io_pressure_s": 2.5, "memory_limit_bytes": 1 << 40, "why": {}}


def facts(index=0, **figures):
    figures = {"energy_total_j": 1234567.891, "remapping_pending": True, "ecc_corrected": 3} | figures
    return gpu(index, throttle_reasons=["sw_power_cap", "gpu_idle"], throttle_faults=["sw_power_cap"], **figures)


def samples(count=3):
    rows = [
        sample(
            facts(n % 2),
            BEGIN_S + n + 0.123,
            host=HOST,
            slow_time_ns=round((BEGIN_S + n) * 1e9),
            rare_time_ns=round((BEGIN_S + n - 3) * 1e9),
        )
        for n in range(count)
    ]
    return taken(*rows)


def write(path, written):
    log = Log(path)
    log.append(written)
    log.close()
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_samples_come_back_as_they_were(suffix, tmp_path):
    written = samples()
    found = read_log(write(tmp_path / f"gpu.{suffix}", written))
    assert (len(found.samples), found.damaged) == (3, 0)
    for before, after in zip(written, found.samples, strict=True):
        assert abs(before.time_ns - after.time_ns) <= 1_000_000  # logs have ms
        for moment in ("slow_time_ns", "rare_time_ns"):
            age_ns = before.time_ns - getattr(before, moment)
            assert after.time_ns - getattr(after, moment) == pytest.approx(age_ns, abs=1000), moment
        for name in before.gpu.__dataclass_fields__:
            if name not in NONE_OF_A_LOG:
                assert getattr(after.gpu, name) == pytest.approx(getattr(before.gpu, name)), name
        assert after.gpu.throttle_reasons == before.gpu.throttle_reasons
        assert (after.host.machine_cpus, after.host.io_pressure_s) == (8, 2.5)
        assert (after.took_s, after.process_resident_bytes) == (before.took_s, before.process_resident_bytes)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_not_known_is_not_known_again(suffix, tmp_path):
    found = read_log(write(tmp_path / f"gpu.{suffix}", taken(sample(gpu(why={"fan_ratio": "Not Supported"})))))
    state = found.samples[0].gpu
    assert state.fan_ratio is None
    assert state.why["fan_ratio"] == ("it is not in the log" if suffix == "csv" else "Not Supported")


@pytest.mark.parametrize("suffix", [*SUFFIXES, "gscope"])
def test_a_log_of_a_machine_without_a_gpu_comes_back(suffix, tmp_path):
    found = read_log(write(tmp_path / f"gpu.{suffix}", taken(sample(None, host=HOST))))
    assert (found.samples[0].gpu, found.samples[0].host.machine_cpus) == (None, 8)


@pytest.mark.parametrize("cut", range(1, 200, 13))
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_line_that_was_cut_is_left_out_and_counted(suffix, cut, tmp_path):
    path = write(tmp_path / f"gpu.{suffix}", samples(2))
    path.write_bytes(path.read_bytes()[:-cut])
    found = read_log(path)
    assert (len(found.samples), found.damaged) == ((2, 0) if (suffix, cut) == ("jsonl", 1) else (1, 1))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("remapping_pending", "maybe"),
        ("gpu_idx", "inf"),
        ("slow_age_s", "inf"),
        ("xid_errors", "31x1@inf"),
        ("timestamp", "9999-12-31T23:59:59-12:00"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_value_that_no_monitor_has_written_spoils_one_line(suffix, column, value, tmp_path):
    path = tmp_path / f"gpu.{suffix}"
    if suffix == "csv":
        header, first, second, *_ = write(path, samples(2)).read_text().split("\n")
        cells = next(csv.reader([second]))
        cells[header.split(",").index(column)] = value
        path.write_text("\n".join([header, first, ",".join(f'"{cell}"' for cell in cells), ""]))
    else:
        first, second, *_ = write(path, samples(2)).read_text().split("\n")
        path.write_text("\n".join([first, json.dumps(json.loads(second) | {column: value}), ""]))
    found = read_log(path)
    assert (len(found.samples), found.damaged) == (1, 1)


DEEP = "[" * 50_000
ODD = [
    ("why", DEEP),
    ("why", {"power_w": []}),
    ("mig_instances", DEEP),
    ("mig_instances", [{"gpu_instance": 1}]),
    ("timestamp", "0001-01-01T00:00:00+00:00"),
    ("timestamp", "9999-12-31T23:59:59+00:00"),
    ("timestamp", 1_700_000_000),
    ("timestamp", None),
    ("xid_errors", "31x2@1e300"),
    ("xid_errors", "31x99999999999999999999@1700000000"),
    ("power_w", float("nan")),
    ("power_w", 12345678901234567890),
    ("power_w", "9" * 5000),
    ("power_w", {"a": 1}),
    ("power_w", True),
    ("took_s", float("nan")),
    ("slow_age_s", 1e200),
    ("rare_age_s", 1e15),
    ("process_resident_bytes", 1e300),
    ("gpu_idx", 10**20),
    ("gpu_idx", -1),
    ("gpu_name", "\ud800"),
    ("gpu_name", "a\0b"),
    ("gpu_name", 5),
    ("throttle_reasons", []),
]


def lines_with(column, value, count=3):
    """JSON lines, of which the second has another value."""
    rows = [sample(gpu(0), BEGIN_S + n, cost=COST, host=HOST) for n in range(count)]
    lines = [json.loads(json_line(each, {})) for each in taken(*rows)]
    lines[1] |= {column: value}
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize("form", ["--rows", "--json", "--csv"])
@pytest.mark.parametrize(("column", "value"), ODD)
def test_one_odd_value_costs_one_line_in_every_form(column, value, form, tmp_path, capsys):
    path = tmp_path / "gpu.jsonl"
    path.write_text(lines_with(column, value))
    assert cli.main(["monitor", str(path), form]) == 0
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "1 lines of" in err
    assert len([line for line in out.splitlines() if line.strip() and not line.startswith(("#", "timestamp"))]) == 2


@pytest.mark.parametrize("suffix", ["parquet", "gscope"])
@pytest.mark.parametrize(("column", "value"), ODD)
def test_one_odd_value_spoils_no_log_that_is_made_of_lines(suffix, column, value, tmp_path):
    path = tmp_path / f"gpu.{suffix}"
    path.with_name(f"{path.name}.part").write_text(lines_with(column, value))
    Log(path).close()
    assert not path.with_name(f"{path.name}.part").exists()
    power = [each.gpu.power_w for each in read_log(path).samples]
    assert len(power) >= 2
    assert power.count(612.4) >= 2


@pytest.mark.parametrize("column", ["power_w", "timestamp", "gpu_name"])
def test_a_frame_has_the_other_lines(column, tmp_path):
    pytest.importorskip("pandas")
    path = tmp_path / "gpu.jsonl"
    path.write_text(lines_with(column, "\ud800"))
    assert len(GPUMonitor(path).to_pandas()) == 2


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_files_with_a_byte_order_mark_are_read_whole(suffix, encoding, tmp_path):
    path = write(tmp_path / f"gpu.{suffix}", samples(3))
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    path.write_bytes(mark + path.read_text().replace("\n", "\r\n").encode(encoding))
    found = read_log(path)
    assert (len(found.samples), found.damaged) == (3, 0)


def test_logs_with_marks_that_were_joined_are_read_whole(tmp_path):
    path = write(tmp_path / "gpu.jsonl", samples(3))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\xef\xbb\xbf" + path.read_bytes())
    found = read_log(path)
    assert (len(found.samples), found.damaged) == (6, 0)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "bad",
    [b"x" * (5 << 20), b"\0" * 300, b"\xff\xfe\xfd", b'{"timestamp": ', b'"' * 999, b" " * (3 << 20) + b"{}", b"null"],
)
def test_a_line_of_anything_is_left_out_once(suffix, bad, tmp_path):
    path = write(tmp_path / f"gpu.{suffix}", samples(3))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], bad + b"\n", lines[-1]]))
    found = read_log(path)
    assert (len(found.samples), found.damaged) == (3, 1)


def parquet_of(path, times, kind, **columns):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    columns = {"timestamp": arrow.array(times, kind(arrow)), "gpu_idx": [0] * len(times), **columns}
    files.write_table(arrow.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("times", "kind"),
    [
        ([1_700_000_000_000, 253_402_300_799_000, 1_700_000_001_000], lambda arrow: arrow.timestamp("ms", "UTC")),
        ([1_700_000_000, 1 << 50, 1_700_000_001], lambda arrow: arrow.timestamp("s")),
        ([1_700_000_000, None, 1_700_000_001], lambda arrow: arrow.timestamp("s")),
        (["2026-01-01T00:00:00Z", "yesterday", "2026-01-01T00:00:01Z"], lambda arrow: arrow.string()),
    ],
)
def test_one_odd_time_costs_one_row_of_parquet(times, kind, tmp_path):
    found = read_log(parquet_of(tmp_path / "gpu.parquet", times, kind, power_w=[1.0, 2.0, 3.0]))
    assert ([each.gpu.power_w for each in found.samples], found.damaged) == ([1.0, 3.0], 1)


def test_text_that_is_none_costs_one_row_of_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    names = arrow.array([b"A", b"\xff\xfe", b"A"], arrow.binary()).cast(arrow.string(), safe=False)
    name = arrow.StringArray.from_buffers(3, *names.buffers()[1:])
    times = [1_700_000_000, 1_700_000_001, 1_700_000_002]
    path = parquet_of(tmp_path / "gpu.parquet", times, lambda arrow: arrow.timestamp("s"), gpu_name=name)
    found = read_log(path)
    assert (len(found.samples), found.damaged) == (2, 1)


def test_words_for_yes_are_read_as_other_tools_spell_them(tmp_path):
    path = write(tmp_path / "gpu.csv", samples(2))
    path.write_text(path.read_text().replace(",True,", ",true,", 1).replace(",True,", ",TRUE,", 1))
    assert [each.gpu.remapping_pending for each in read_log(path).samples] == [True, True]


def test_a_frame_has_all_lines_but_those_that_were_cut(tmp_path):
    pytest.importorskip("pandas")
    path = write(tmp_path / "gpu.csv", taken(*(sample(gpu(n, instances=INSTANCES), BEGIN_S) for n in range(3))))
    header, first, second, third, _ = path.read_text().split("\n")
    cut = second[: second.index("gpu_instance")]
    for lines in ([header, first, cut], [header, first, cut, third, ""]):
        path.write_text("\n".join(lines))
        frame = GPUMonitor(path).to_pandas()
        assert frame["gpu_idx"].tolist() == [0, 2][: len(lines) - 2]
        assert frame["power_w"].tolist()[0] == 612.4


def test_null_in_a_json_line_is_an_unknown_value(tmp_path):
    path = tmp_path / "gpu.jsonl"
    path.write_text(lines_with("power_w", None))
    assert [each.gpu.power_w for each in read_log(path).samples] == [612.4, None, 612.4]


def test_a_log_of_scripts_around_nvidia_smi_is_read(tmp_path):
    path = tmp_path / "gpu_metrics.csv"
    path.write_text(
        "timestamp,gpu_idx,util_pct,mem_used_mb,mem_total_mb,temp_c,power_w\r\n"
        "2026-01-02T03:04:05.678901,0,97,40960,81920,63,512.5\r\n"
    )
    state = read_log(path).samples[0].gpu
    assert (state.busy_ratio, state.memory_used_bytes, state.power_w) == (pytest.approx(0.97), 40 << 30, 512.5)
    assert (state.energy_total_j, state.why["energy_total_j"]) == (None, "it is not in the log")


@pytest.mark.parametrize("word", ["N/A", "[N/A]", "[Not Supported]"])
def test_what_nvidia_smi_does_not_know_spoils_no_line(word, tmp_path):
    path = tmp_path / "gpu_metrics.csv"
    path.write_text(f"timestamp,gpu_idx,util_pct,power_w\n2026-01-02T03:04:05,0,97,{word}\n")
    state = read_log(path).samples[0].gpu
    assert (state.busy_ratio, state.power_w) == (pytest.approx(0.97), None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("gpu.csv", "a,b\n1,2\n", "first line does not name timestamp and gpu_idx"),
        ("gpu.csv", "", "first line does not name"),
        ("gpu.csv", "timestamp,gpu_idx," + "x" * 200_000 + "\n", "first line does not name"),
        ("gpu.csv", "timestamp,gpu_idx\n", "no sample that can be read"),
        ("gpu.csv", "timestamp,gpu_idx\nyesterday,0\n", "no sample that can be read"),
        ("gpu.jsonl", "[]\n7\n\x00\n", "no sample that can be read"),
        ("gpu.jsonl", '{"timestamp": "2026-01-02T03:04:05", "gpu_idx": "x"}\n', "no sample that can be read"),
        ("gpu.jsonl", '{"timestamp": "2026-01-02T03:04:05", "gpu_idx": 0, "power_w": 1e999}\n', "no sample"),
        ("gpu.parquet", "no parquet", "no Parquet file that can be read"),
        ("gpu.txt", "", "accepted are logs: .csv, .parquet, .jsonl, .ndjson, .gscope"),
    ],
)
def test_files_that_are_no_logs_get_one_sentence(name, text, said, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidArgument, match=said):
        read_log(tmp_path / name)


def test_a_parquet_log_whose_bytes_were_overwritten_gets_one_sentence(tmp_path):
    path = tmp_path / "gpu.parquet"
    write(path, samples(50))
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(range(196))
    path.write_bytes(data)
    with pytest.raises(InvalidArgument, match=r"no Parquet file that can be read \([^\n]+\)$"):
        read_log(path)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InvalidArgument, match="there is no such file"):
        read_log(tmp_path / "gpu.csv")


def test_a_parquet_file_is_appended_to(tmp_path):
    path = tmp_path / "gpu.parquet"
    write(path, samples(2))
    write(path, samples(3))
    assert len(read_log(path).samples) == 5
    assert [*tmp_path.iterdir()] == [path]


def test_a_process_that_was_killed_loses_no_line_of_a_parquet_log(tmp_path):
    path = tmp_path / "gpu.parquet"
    Log(path).append(samples(2))  # and no close
    assert not path.exists()
    lines = path.with_name("gpu.parquet.part")
    lines.write_bytes(lines.read_bytes() + b'{"timestamp": "2026')  # cut in a line
    write(path, samples(1))
    assert len(read_log(path).samples) == 3
    assert not lines.exists()


@pytest.mark.parametrize("suffix", ["parquet", "gscope"])
def test_a_log_is_read_before_its_run_has_ended(suffix, tmp_path):
    path = tmp_path / f"gpu.{suffix}"
    Log(path).append(samples(2))
    assert len(read_log(path).samples) == 2
    write(path, samples(1))
    Log(path).append(samples(2))
    assert len(read_log(path).samples) == 5


@pytest.mark.parametrize("suffix", ["parquet", "gscope"])
def test_logs_that_end_together_on_one_file_lose_no_row(suffix, tmp_path):
    path = tmp_path / f"gpu.{suffix}"
    logs, rounds = [Log(path) for _ in range(4)], 6

    def run(log, begin_s):
        log.append(series(2, begin_s=begin_s))
        log.close()

    with ThreadPoolExecutor(len(logs)) as threads:
        for turn in range(rounds):
            begins = [BEGIN_S + 10 * (len(logs) * turn + number) for number in range(len(logs))]
            [*threads.map(run, logs, begins)]
    assert len(read_log(path).samples) == 2 * rounds * len(logs)
    assert [*tmp_path.iterdir()] == [path]


def test_a_parquet_file_that_cannot_be_made_leaves_the_lines(tmp_path, monkeypatch):
    path = tmp_path / "gpu.parquet"
    log = Log(path)
    log.append(samples(2))
    path.mkdir()
    with pytest.raises(GpuscopeError, match="is a directory"):
        log.close()
    path.rmdir()
    log.close()
    assert len(read_log(path).samples) == 2


def test_other_tools_read_the_parquet_file(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(write(tmp_path / "gpu.parquet", samples(2)))
    assert frame["gpu_idx"].tolist() == [0, 1]
    assert str(frame["timestamp"].dtype) == "datetime64[ms, UTC]"
    assert frame["timestamp"][0].year == 2001


def test_a_parquet_file_of_others_is_refused_and_kept(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    path = tmp_path / "gpu.parquet"
    files.write_table(arrow.table({"mine": [1]}), path)
    with pytest.raises(InvalidArgument, match="a file with other columns \\('mine'\\)"):
        Log(path)
    with pytest.raises(InvalidArgument, match="has no column 'gpu_idx'"):
        read_log(path)


def test_without_pyarrow_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotAvailable, match=r"pip install pyarrow, or name the log .csv or .jsonl"):
        Log(tmp_path / "gpu.parquet")


def test_rows_are_written_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_ROWS_A_GROUP", 10)
    path = write(tmp_path / "gpu.parquet", series(35))
    write(path, series(5))
    assert len(read_log(path).samples) == 40


def test_logs_of_two_hosts_are_put_in_order(tmp_path):
    path = tmp_path / "gpu.jsonl"
    write(path, series(3, begin_s=BEGIN_S + 100))
    write(path, series(3))
    times = [each.time_ns for each in read_log(path).samples]
    assert times == sorted(times)


def test_a_monitor_writes_parquet_when_it_stops(tmp_path, monkeypatch):
    from gpuscope import _core

    class Sampler:
        why = ""

        def __init__(self, interval_ns):
            self.samples = [sample(facts())]

        def take(self):
            taken, self.samples = self.samples, []
            return taken

        def cost(self):
            return COST

        def stop(self):
            return True

    monkeypatch.setattr(_core, "GpuSampler", Sampler)
    path = tmp_path / "gpu.parquet"
    monitor = GPUMonitor(path)
    for _ in range(2):
        with monitor:
            pass
    assert len(read_log(path).samples) == 2
    assert monitor.error == ""


def test_reasons_are_json_in_parquet(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    path = write(tmp_path / "gpu.parquet", taken(sample(gpu(why={"fan_ratio": "Not Supported"}))))
    assert json.loads(pq.read_table(path)["why"][0].as_py()) == {"fan_ratio": "Not Supported"}
