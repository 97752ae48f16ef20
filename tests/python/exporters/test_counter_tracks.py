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
