# SPDX-License-Identifier: Apache-2.0
"""What is served to Prometheus, and the board and rules that read it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib import resources

import pytest

from fakes.machines import INSTANCES, XIDS, gpu, sample
from fakes.monitors import FakeMonitor, taken
from gpuscope import _core
from gpuscope.errors import GpuscopeError, NotAvailable
from gpuscope.monitor import prometheus

pytest.importorskip("prometheus_client")
NAME = re.compile(r"gpuscope_[a-z0-9_]+")
FILES = resources.files("gpuscope.monitor") / "grafana"


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind((prometheus.ADDRESS, 0))
        return probe.getsockname()[1]


COLLECTORS = (prometheus.Collector, prometheus.DcgmCollector)


def scrape(monitor):
    """Values of what is served, by name and labels."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    registry = CollectorRegistry()
    registry.register(monitor if isinstance(monitor, COLLECTORS) else prometheus.Collector(monitor))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for each in family.samples:
            found[(each.name, *sorted(each.labels.values()))] = each.value
    return found


def test_figures_are_served_in_base_units_under_their_names():
    facts = gpu(sm_active_ratio=0.7, energy_total_j=12.5, pcie_sent_bytes_per_s=3e9)
    found = scrape(FakeMonitor(taken(sample(facts))))
    assert found[("gpuscope_sm_active_ratio", "GPU-0")] == 0.7
    assert found[("gpuscope_energy_joules_total", "GPU-0")] == 12.5
    assert found[("gpuscope_power_watts", "GPU-0", "mean")] == 612.4
    assert found[("gpuscope_pcie_bytes_per_second", "GPU-0", "sent")] == 3e9
    assert found[("gpuscope_throttle_seconds_total", "GPU-0", "sw_power_cap")] == 1.5
    assert found[("gpuscope_up", "GPU-0")] == 1
    assert found[("gpuscope_samples_dropped_total",)] == 2


def test_encoder_decoder_and_bar1_are_served():
    facts = gpu(encoder_busy_ratio=0.31, decoder_busy_ratio=0.12, bar1_used_bytes=2 << 20, bar1_total_bytes=128 << 30)
    found = scrape(FakeMonitor(taken(sample(facts))))
    assert found[("gpuscope_encoder_busy_ratio", "GPU-0")] == 0.31
    assert found[("gpuscope_decoder_busy_ratio", "GPU-0")] == 0.12
    assert found[("gpuscope_bar1_used_bytes", "GPU-0")] == 2 << 20
    assert found[("gpuscope_bar1_total_bytes", "GPU-0")] == 128 << 30


def test_what_is_not_known_is_not_there_and_no_zero():
    found = scrape(FakeMonitor(taken(sample(gpu(busy_ratio=None)))))
    assert not [key for key in found if key[0] in ("gpuscope_gpu_busy_ratio", "gpuscope_tensor_active_ratio")]


def test_counters_of_a_gpu_that_is_lost_stay_and_its_gauges_go():
    monitor = FakeMonitor(taken(sample(gpu(energy_total_j=12.5))))
    collector = prometheus.Collector(monitor)
    scrape(collector)
    absent = dict.fromkeys(["busy_ratio", "power_w", "energy_total_j"])
    monitor.add(*taken(sample(gpu(throttled_s={}, why={"all": "GPU is lost"}, **absent))))
    found = scrape(collector)
    assert found[("gpuscope_up", "GPU-0")] == 0
    assert found[("gpuscope_energy_joules_total", "GPU-0")] == 12.5
    assert found[("gpuscope_throttle_seconds_total", "GPU-0", "sw_power_cap")] == 1.5
    assert ("gpuscope_power_watts", "GPU-0", "mean") not in found


def test_scrapes_at_once_wait_for_each_other():
    monitor, both, met = FakeMonitor(), threading.Barrier(2), []

    def latest():
        with contextlib.suppress(threading.BrokenBarrierError):
            met.append(both.wait(timeout=0.2))
        return []

    monitor.latest = latest
    collector = prometheus.Collector(monitor)
    with ThreadPoolExecutor(2) as threads:
        [*threads.map(lambda _: [*collector.collect()], range(2))]
    assert not met


def test_the_age_of_a_sample_is_on_its_clock(monkeypatch):
    each = sample(gpu())
    monkeypatch.setattr(_core, "now_ns", lambda: each["time_ns"] + 5_000_000_000)
    assert scrape(FakeMonitor(taken(each)))[("gpuscope_sample_age_seconds", "GPU-0")] == 5


def test_errors_are_served_by_number_with_their_time():
    found = scrape(FakeMonitor(taken(sample(gpu(xid_errors=XIDS)))))
    assert found[("gpuscope_xid_errors_total", "31", "GPU-0")] == 2
    assert found[("gpuscope_xid_last_timestamp_seconds", "79", "GPU-0")] == 1_700_000_003.5


def test_the_time_of_an_error_is_on_the_clock_of_the_system(monkeypatch):
    """Samples keep to the clock that was when the program began, which may have been set since."""
    now_ns = _core.now_ns() - 7200 * 10**9
    monkeypatch.setattr(_core, "now_ns", lambda: now_ns)
    found = scrape(FakeMonitor(taken(sample(gpu(xid_errors=[(79, 1, 1_700_000_003_500_000_000)])))))
    assert found[("gpuscope_xid_last_timestamp_seconds", "79", "GPU-0")] == pytest.approx(1_700_007_203.5, abs=60)


def test_instances_are_served_by_their_numbers():
    found = scrape(FakeMonitor(taken(sample(gpu(mig=True, instances=INSTANCES)))))
    assert found[("gpuscope_mig_sm_active_ratio", "0", "7", "GPU-0")] == 0.25
    assert found[("gpuscope_mig_memory_used_bytes", "0", "8", "GPU-0")] == 3 << 30
    assert not [key for key in found if key[0] == "gpuscope_mig_dram_bandwidth_ratio"]


def test_its_own_cost_is_served():
    found = scrape(FakeMonitor())
    assert found[("gpuscope_sampler_cpu_seconds_total",)] == 0.01
    assert found[("gpuscope_sample_seconds", "mean")] == 3e-05


def test_names_and_units_of_dcgm_exporter():
    facts = gpu(3, sm_active_ratio=0.7, energy_total_j=12.5, memory_temperature_c=None, xid_errors=XIDS)
    found = scrape(prometheus.DcgmCollector(FakeMonitor(taken(sample(facts)))))
    values = {key[0]: value for key, value in found.items()}
    assert values["DCGM_FI_DEV_GPU_UTIL"] == pytest.approx(99)
    assert values["DCGM_FI_DEV_FB_USED"] == 61 * 1024
    assert values["DCGM_FI_DEV_SM_CLOCK"] == 1755
    assert values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == pytest.approx(12500)
    assert values["DCGM_FI_PROF_SM_ACTIVE"] == 0.7
    assert values["DCGM_FI_DEV_XID_ERRORS"] == 79  # the last one
    assert "DCGM_FI_DEV_MEMORY_TEMP" not in values
    assert {"3", "GPU-3", "nvidia3", "NVIDIA H100 80GB HBM3"} <= {*next(iter(found))[1:]}


def test_instances_by_the_labels_of_dcgm_exporter():
    found = scrape(prometheus.DcgmCollector(FakeMonitor(taken(sample(gpu(mig=True, instances=INSTANCES))))))
    of_parts = [key for key in found if key[0] == "DCGM_FI_PROF_SM_ACTIVE"]
    assert [{"1g.10gb", number} <= {*key} for key, number in zip(of_parts, "78", strict=True)] == [True, True]


def test_compute_instances_of_one_gpu_instance_are_one_series_of_dcgm_exporter():
    first, other = INSTANCES
    parts = [first | {"name": "NVIDIA H100 MIG 1c.2g.20gb", "compute_instance": number} for number in range(2)]
    found = scrape(prometheus.DcgmCollector(FakeMonitor(taken(sample(gpu(mig=True, instances=[*parts, other]))))))
    of_parts = [key for key in found if key[0] == "DCGM_FI_DEV_FB_USED" and "" not in key]
    assert [
        {profile, number} <= {*key} for key, profile, number in zip(of_parts, ("2g.20gb", "1g.10gb"), "78", strict=True)
    ]


def test_a_machine_without_a_gpu_serves_its_host():
    host = {"machine_cpus": 8, "io_pressure_s": 2.5, "why": {}}
    found = scrape(FakeMonitor(taken(sample(None, host=host))))
    assert found[("gpuscope_host_cpus",)] == 8
    assert found[("gpuscope_host_pressure_seconds_total", "io", "some")] == 2.5
    assert not [key for key in found if key[0] == "gpuscope_up"]


def test_every_name_that_is_served_is_listed_and_follows_the_rules():
    every = dict.fromkeys([series.figure for series in prometheus._OF_GPU], 1.0)
    host = dict.fromkeys([series.figure for series in prometheus._OF_HOST], 1.0) | {"why": {}}
    parts = [{**INSTANCES[0], "figures": dict.fromkeys(_core.GPM_FIGURES, 1.0)}]
    facts = gpu(**every, xid_errors=XIDS, instances=parts)
    found = {key[0] for key in scrape(FakeMonitor(taken(sample(facts, host=host))))}
    assert found == {*prometheus.metric_names()}
    assert not [name for name in found if re.search(r"_(ms|us|mib|gib|mhz|percent|pct)(_|$)", name)]


@pytest.mark.parametrize("name", prometheus.BOARD_FILES)
def test_every_metric_of_the_board_and_the_rules_exists(name):
    named = {*NAME.findall((FILES / name).read_text())}
    assert len(named) > 5
    assert named <= {*prometheus.metric_names()}


def test_every_label_of_the_board_and_the_rules_exists():
    labels = {
        "uuid",
        "name",
        "index",
        "pci",
        "instance",
        "resource",
        "tasks",
        "reason",
        "kind",
        "sensor",
        "direction",
        "xid",
    }
    for name in prometheus.BOARD_FILES:
        text = (FILES / name).read_text()
        used = {*re.findall(r"\{\{\s*\$?(?:labels\.)?([a-z]+)\s*\}\}", text)} - {"value"}
        assert used <= labels


def test_the_board_is_one_that_grafana_opens():
    board = json.loads((FILES / "board.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) >= 10
    assert all(target["expr"] for panel in board["panels"] for target in panel["targets"])
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


@pytest.fixture
def rules():
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    return group["rules"]


def expression(rules, alert):
    return next(rule["expr"] for rule in rules if rule["alert"] == alert)


def test_reasons_that_hold_at_once_are_no_more_than_the_time_that_went_by(rules):
    assert expression(rules, "GpuThrottled").startswith("max by (uuid)")


def test_samples_that_are_to_come_seldom_are_not_old(rules):
    assert (
        expression(rules, "GpuSamplesOld") == "gpuscope_sample_age_seconds > 60 + 2 * gpuscope_sample_interval_seconds"
    )
    assert scrape(FakeMonitor(taken(sample(gpu()))))[("gpuscope_sample_interval_seconds", "GPU-0")] == 0.5


def test_the_rules_are_those_of_prometheus(rules):
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert (
            {"alert", "expr", "labels", "annotations"} <= {*rule} <= {"alert", "expr", "for", "labels", "annotations"}
        )
        assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_it_is_served_on_this_machine_alone_and_ends(port):
    with prometheus.serve(FakeMonitor(taken(sample(gpu()))), port):
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        assert 'gpuscope_gpu_busy_ratio{uuid="GPU-0"} 0.99' in text
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((prometheus.ADDRESS, port))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((prometheus.ADDRESS, port))


def status_of(port, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers=headers)
        return connection.getresponse().status


@pytest.mark.parametrize("path", ["/metrics", "/"])
def test_head_is_answered_like_get_without_a_body(port, path):
    def ask(method):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head, _, body = b"".join(iter(lambda: connection.recv(1 << 16), b"")).partition(b"\r\n\r\n")
        return [line for line in head.splitlines() if not line.startswith(b"Date")], body

    with prometheus.serve(FakeMonitor(taken(sample(gpu()))), port):
        (asked, body), (got, whole) = ask("HEAD"), ask("GET")
    assert got[0].split()[1] == b"200"
    assert (asked, body) == (got, b"")
    assert b"gpuscope_gpu_busy_ratio" in whole


def test_requests_name_the_machine_and_no_page_of_others_reads_the_figures(port):
    with prometheus.serve(FakeMonitor(taken(sample(gpu()))), port):
        for host in (f"localhost:{port}", "127.0.0.1:9401", "10.0.0.7:9400", f"{socket.gethostname()}:{port}"):
            assert status_of(port, Host=host) == 200
        assert status_of(port, Host=f"evil.example:{port}") == 404


def test_figures_are_served_beside_connections_that_stand_still(port):
    with prometheus.serve(FakeMonitor(taken(sample(gpu()))), port), contextlib.ExitStack() as open_things:
        for _ in range(100):
            held = open_things.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            held.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert status_of(port) == 200


def test_a_header_that_the_library_cannot_read_writes_nothing_on_the_terminal(port, capfd):
    with prometheus.serve(FakeMonitor(taken(sample(gpu()))), port):
        assert status_of(port, Accept="application/openmetrics-text; version=x.y") in (200, 500)
        assert status_of(port) == 200
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_told_in_a_sentence():
    with socket.socket() as other:
        other.bind((prometheus.ADDRESS, 0))
        other.listen()
        number = other.getsockname()[1]
        with (
            pytest.raises(GpuscopeError, match=f"cannot serve at 127.0.0.1:{number}: "),
            prometheus.serve(FakeMonitor(), number),
        ):
            pass


def test_without_the_library_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(NotAvailable, match=r"pip install prometheus-client"), prometheus.serve(FakeMonitor(), 1):
        pass


def test_board_and_rules_are_written_where_they_are_wanted(tmp_path):
    for path in prometheus.write_board(tmp_path):
        assert NAME.search(path.read_text())
    with pytest.raises(GpuscopeError, match="does not exist"):
        prometheus.write_board(tmp_path / "none")
