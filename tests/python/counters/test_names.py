# SPDX-License-Identifier: Apache-2.0
"""Names of hardware counters, with a libcupti that knows one chip."""

from __future__ import annotations

import json

import pytest

from gpuscope import _core
from gpuscope.cli import main
from gpuscope.counters.names import OVERVIEW, WHY, Counter, check_names, list_counters, parse_counters
from gpuscope.errors import InvalidArgument, NotAvailable

LISTED = [
    ("sm__cycles_active", 0, "sm", "cycle", "# of cycles with at least one warp in flight"),
    ("dram__bytes_read", 0, "dram", "byte", "# of bytes read from DRAM"),
    ("TPC.Triage.sm__inst", 0, "sm", "inst", "# of instructions"),
    ("lts__hit_rate", 1, "lts", "percent", "hits of the L2 cache"),
    ("sm__throughput", 2, "", "percent", ""),
]
ENDINGS = {0: [".sum", ".avg", ".avg.per_second"], 1: [".pct", ".ratio"], 2: [".avg.pct_of_peak_sustained_elapsed"]}


@pytest.fixture
def chip(monkeypatch):
    monkeypatch.setattr(_core, "counter_chip", lambda device=0: "GH100")
    monkeypatch.setattr(_core, "counter_chips", lambda: ["GA100", "GH100"])
    monkeypatch.setattr(_core, "list_counters", lambda chip, sampling: LISTED[: 3 if sampling else None])
    monkeypatch.setattr(_core, "counter_endings", lambda chip, sampling, name, kind: ENDINGS[kind])


def test_a_set_is_as_many_as_fit_and_names_are_all():
    assert parse_counters("why") == (list(WHY), False)
    assert parse_counters("overview", "metrics", ("overview",)) == (list(OVERVIEW), False)
    assert parse_counters(["b.sum", "a.sum", "b.sum"]) == (["b.sum", "a.sum"], True)


def test_sets_name_each_metric_once():
    assert len(set(WHY)) == len(WHY)
    assert len(set(OVERVIEW)) == len(OVERVIEW)


def test_a_set_that_may_not_be_sampled_is_refused():
    with pytest.raises(InvalidArgument, match=r"counters is 'overview'; accepted is 'why', or a list"):
        parse_counters("overview")


@pytest.mark.parametrize("given", [[], [""], ["a.sum", 1], [["a.sum"]], 5, None, b"a.sum"])
def test_what_is_no_list_of_names_is_refused(given):
    with pytest.raises(InvalidArgument, match="accepted is 'why', or a list"):
        parse_counters(given)


def test_counters_are_listed_by_name(chip):
    found = list_counters()
    assert [counter.name for counter in found] == sorted(name for name, *_ in LISTED)
    assert found[1] == Counter("dram__bytes_read", "counter", "dram", "byte", "# of bytes read from DRAM")
    assert len(list_counters(sampling=True)) == 3


def test_another_chip_is_one_that_cupti_knows(chip):
    assert list_counters("GA100")
    with pytest.raises(InvalidArgument, match="chip is 'gh100x'; nearest are GH100"):
        list_counters("gh100x")


@pytest.mark.parametrize(
    "name", ["dram__bytes_read.sum", "TPC.Triage.sm__inst.avg.per_second", "lts__hit_rate.pct", "sm__cycles_active.avg"]
)
def test_names_with_an_ending_of_theirs_are_known(chip, name):
    check_names([name], "metrics", sampling=False)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("dram__byte_read.sum", "dram__bytes_read"),
        ("TPC.Triage.sm__insts.sum", "TPC.Triage.sm__inst"),
        ("dram__bytes_read.summ", r"dram__bytes_read\.sum"),
        ("dram__bytes_read", r"dram__bytes_read\.(sum|avg)"),
    ],
)
def test_unknown_names_are_offered_the_nearest(chip, name, nearest):
    with pytest.raises(InvalidArgument, match=f"metrics has '{name}'.*nearest are .*{nearest}"):
        check_names(["sm__cycles_active.sum", name], "metrics", sampling=False)


def test_names_are_not_judged_where_there_is_no_gpu(monkeypatch):
    def refuse(device):
        raise NotAvailable("no driver")

    monkeypatch.setattr(_core, "counter_chip", refuse)
    check_names(["nonsense"], "metrics", sampling=False)


def test_the_command_lists_what_matches(chip, capsys):
    assert main(["counters", "dram"]) == 0
    assert capsys.readouterr().out == "dram__bytes_read  # of bytes read from DRAM [byte]  counter of dram\n"
    assert main(["counters", "--json", "*active"]) == 0
    (counter,) = json.loads(capsys.readouterr().out)
    assert counter["name"] == "sm__cycles_active"
    assert (counter["unit"], counter["kind"]) == ("cycle", "counter")
    assert main(["counters", "--sampling", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_the_command_says_when_nothing_matches(chip, capsys):
    assert main(["counters", "nothing"]) == 2
    assert "none of 5 counters matches" in capsys.readouterr().err


def test_a_device_beyond_the_drivers_type_gets_one_sentence(capsys):
    assert main(["counters", "--device", "99999999999"]) == 2
    assert capsys.readouterr().err == ("gpuscope: device is 99999999999; accepted are integers from 0 to 2147483647\n")


def test_the_command_says_why_there_are_none(monkeypatch, capsys):
    def refuse(device):
        raise NotAvailable("reading hardware counters is not available: no driver")

    monkeypatch.setattr(_core, "counter_chip", refuse)
    assert main(["counters"]) == 1
    assert "no driver" in capsys.readouterr().err
