# SPDX-License-Identifier: Apache-2.0
"""Sampled hardware counters in Chrome's format; those of Perfetto's are with the rest of it."""

from __future__ import annotations

import json

import pytest

from fakes.gscope import make_store
from fakes.stores import INFO, START, training_tables
from gpuscope import _core


def counter_store(device=0, values=(50.0, 100.0, float("nan"), 200.0), starts=(0, 1000)):
    tables = training_tables()
    tables["counter"] = {
        "name": ["sm__busy.pct", "dram__bytes.sum"],
        "unit": ["percent", "byte"],
        "description": ["", ""],
    }
    tables["counter_sample"] = {
        "start_ns": [START + start for start in starts],
        "duration_ns": [1000, 1000],
        "device": [device, device],
    }
    tables["counter_value"] = {"sample": [0, 0, 1, 1], "counter": [0, 1, 0, 1], "value": list(values)}
    return make_store(tables, info=INFO)


def events(store):
    pieces = []
    _core.write_chrome(store, pieces.append)
    return json.loads(b"".join(pieces))


def counted(store):
    """By process and name, the unit and the value at each time, in ns after START."""
    counters = {}
    trace = events(store)
    for event in trace["traceEvents"]:
        if event["ph"] == "C" and "__" in event["name"]:
            at_ns = round(event["ts"] * 1000) + trace["baseTimeNanoseconds"] - START
            ((unit, value),) = event["args"].items()
            counters.setdefault((event["pid"], event["name"]), []).append((at_ns, unit, value))
    return counters


def test_each_counter_is_a_track_of_its_device_with_its_unit():
    found = counted(counter_store())
    assert found[0, "sm__busy.pct"] == [(0, "percent", 50), (1000, "percent", 0)]  # the second has no value
    assert found[0, "dram__bytes.sum"] == [
        (0, "byte/s", pytest.approx(1e8)),
        (1000, "byte/s", pytest.approx(2e8)),
        (2000, "byte/s", 0),
    ]


def test_what_was_not_sampled_is_drawn_as_nothing():
    found = counted(counter_store(values=(50, 1, 60, 2), starts=(0, 5000)))
    assert [(at, value) for at, _, value in found[0, "sm__busy.pct"]] == [(0, 50), (1000, 0), (5000, 60), (6000, 0)]


def test_samples_are_in_the_order_of_time():
    found = counted(counter_store(values=(50, 1, 60, 2), starts=(1000, 0)))
    assert [(at, value) for at, _, value in found[0, "sm__busy.pct"]] == [(0, 60), (1000, 50), (2000, 0)]


def test_a_device_that_ran_nothing_is_named_for_its_counters():
    store = counter_store(device=3)
    labels = [each["args"] for each in events(store)["traceEvents"] if each["ph"] == "M" and each["pid"] == 3]
    assert {"labels": "GPU 3"} in labels
    assert (3, "sm__busy.pct") in counted(store)


def test_every_other_event_is_as_without_them():
    def others(store):
        return [event for event in events(store)["traceEvents"] if event["ph"] != "C"]

    assert others(counter_store()) == others(make_store(training_tables(), info=INFO))


# -- what NVML told ----------------------------------------------------------------------------------------------------


def device_store(**columns):
    tables = training_tables()
    count = len(columns["start_ns"])
    names = next([each.name for each in table.columns] for table in _core.schema() if table.name == "device_sample")
    blank = {name: [-1] * count for name in names} | {"device": [0] * count}
    tables["device_sample"] = blank | columns
    return make_store(tables, info=INFO)


def told(store):
    """By process and name, the unit and the value at each time, in ns after START."""
    counters = {}
    trace = events(store)
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            at_ns = round(event["ts"] * 1000) + trace["baseTimeNanoseconds"] - START
            ((unit, value),) = event["args"].items()
            counters.setdefault((event["pid"], event["name"]), []).append((at_ns, unit, value))
    return counters


def test_power_clocks_temperature_use_and_memory_are_tracks_of_their_device():
    store = device_store(
        start_ns=[START + 1000, START + 2000],
        power_mw=[312_500, 700_000],
        power_limit_mw=[700_000, -1],
        sm_mhz=[1980, 1755],
        memory_mhz=[2619, 2619],
        temperature_c=[41, 42],
        busy_percent=[99, 100],
        memory_busy_percent=[25, 30],
        memory_used_bytes=[1 << 30, 2 << 30],
        device=[1, 1],
    )
    assert told(store) == {
        (1, "power"): [(1000, "W", 312.5), (2000, "W", 700)],
        (1, "power limit"): [(1000, "W", 700)],
        (1, "SM clock"): [(1000, "MHz", 1980), (2000, "MHz", 1755)],
        (1, "memory clock"): [(1000, "MHz", 2619), (2000, "MHz", 2619)],
        (1, "temperature"): [(1000, "C", 41), (2000, "C", 42)],
        (1, "busy"): [(1000, "%", 99), (2000, "%", 100)],
        (1, "memory busy"): [(1000, "%", 25), (2000, "%", 30)],
        (1, "memory used, all processes"): [(1000, "bytes", 1 << 30), (2000, "bytes", 2 << 30)],
    }


def test_what_was_not_told_is_no_track():
    assert told(device_store(start_ns=[START + 1000], power_mw=[1000])) == {(0, "power"): [(1000, "W", 1)]}


def test_what_nvml_told_is_in_the_order_of_time():
    store = device_store(start_ns=[START + 2000, START + 1000], sm_mhz=[1755, 1980])
    assert [value for _, _, value in told(store)[0, "SM clock"]] == [1980, 1755]


def test_perfetto_has_the_same_tracks():
    pieces = []
    _core.write_perfetto(device_store(start_ns=[START + 1000], power_mw=[312_500], sm_mhz=[1980]), pieces.append)
    data = b"".join(pieces)
    assert b"power" in data
    assert b"SM clock" in data
