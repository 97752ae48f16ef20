# SPDX-License-Identifier: Apache-2.0
"""The verdicts on a change: by interval, with and without the promise of a finding."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from fakes.versions import version
from gpuscope.diffing.verifying import ACCEPT, INCONCLUSIVE, REJECT, Claim, judged, looks, verify
from gpuscope.errors import InvalidArgument

MS = 1e6
PROMISED = Claim("R09", None, "a value is read", 0.30, (0.25, 0.35))
UNKNOWN = Claim("R09", None, "a value is read", None, None)


def runs(count, factor=1.0, seed=0, **how):
    return [version({"gemm": 4 * MS * factor}, seed=seed + number, steps=12, **how) for number in range(count)]


@pytest.mark.parametrize(
    ("low", "high", "claim", "expected"),
    [
        (-0.03, 0.015, None, ACCEPT),
        (0.005, 0.015, None, ACCEPT),  # slower by less than the margin
        (-0.03, 0.03, None, INCONCLUSIVE),
        (0.005, 0.03, None, REJECT),
        (-float("inf"), float("inf"), None, INCONCLUSIVE),
        (-0.32, -0.28, PROMISED, ACCEPT),
        (-0.60, -0.50, PROMISED, ACCEPT),  # more than promised
        (-0.20, -0.15, PROMISED, INCONCLUSIVE),  # less than promised, but not less than half
        (-0.10, -0.05, PROMISED, REJECT),
        (-0.30, 0.01, PROMISED, INCONCLUSIVE),
        (0.001, 0.01, PROMISED, REJECT),
        (-0.02, -0.01, UNKNOWN, ACCEPT),
        (-0.02, 0.01, UNKNOWN, INCONCLUSIVE),
        (0.01, 0.02, UNKNOWN, REJECT),
        (-float("inf"), float("inf"), PROMISED, INCONCLUSIVE),
    ],
)
def test_the_verdict_follows_from_the_interval(low, high, claim, expected):
    assert judged((low, high), 0.02, claim, "step")[0] == expected


def test_pairs_find_a_program_5_percent_slower():
    found = verify(runs(10), runs(10, 1.05, seed=50), pairs=True)
    assert (found.verdict, found.runs, found.margin) == (REJECT, 10, 0.02)
    assert found.interval[0] < 0.05 < found.interval[1]


def test_pairs_of_one_program_are_accepted():
    assert verify(runs(10), runs(10, seed=50), pairs=True).verdict == ACCEPT


def test_a_drift_of_the_machine_is_in_both_of_a_pair():
    levels = [1 + 0.05 * number for number in range(10)]
    sides = [
        [runs(1, level * factor, seed=seed + place)[0] for place, level in enumerate(levels)]
        for factor, seed in ((1.0, 0), (1.05, 50))
    ]
    assert verify(*sides, pairs=True).verdict == REJECT


def test_the_interval_of_runs_contains_how_they_differ():
    scattered = [runs(1, factor, seed=9)[0] for factor in (1.0, 1.3, 1.6)]
    assert verify(runs(1), scattered).verdict == INCONCLUSIVE
    assert verify(runs(1), runs(3, 1.3, seed=9)).verdict == REJECT


def test_other_gpus_and_other_programs_have_no_verdict():
    found = verify(runs(1), runs(3, device="NVIDIA A100"))
    assert (found.verdict, "different GPUs" in found.why) == (INCONCLUSIVE, True)
    other = [version({"softmax": 8 * MS, "norm": MS}, seed=number, steps=12) for number in range(3)]
    found = verify(runs(1), other)
    assert (found.verdict, "not comparable" in found.why) == (INCONCLUSIVE, True)


def test_a_claim_is_shown_next_to_what_was_measured():
    found = verify(runs(1), runs(5, 0.7, seed=9), claim=PROMISED)
    assert found.verdict == ACCEPT
    assert "promised  saves 30 % (25 % to 35 %)  R09 a value is read" in str(found)
    values = json.loads(found.to_json())
    assert values["promised"]["saving"] == 0.30
    assert values["got"]["saving"] == pytest.approx(0.3, abs=0.02)
    assert values["got"]["interval"][0] < values["got"]["saving"] < values["got"]["interval"][1]


def finding(**values):
    usual = {"id": "R09", "title": "t", "saving": 0.2, "interval": (0.15, 0.25), "alone": 0.22, "parts": ()}
    return SimpleNamespace(**(usual | values))


def test_a_claim_whose_line_was_changed_is_the_only_one_of_its_rule():
    diagnosis = SimpleNamespace(findings=(finding(key="R09-11111111"),), small=())
    assert Claim.of(diagnosis, "R09-33333333").key == "R09-11111111"


def test_a_claim_is_named_by_its_number():
    diagnosis = SimpleNamespace(findings=(finding(key="R09-11111111"), finding(key="R10-22222222", id="R10")), small=())
    assert Claim.of(diagnosis, "2").key == "R10-22222222"


def test_a_claim_is_named_by_rule_or_key():
    large, small = finding(key="R09-11111111"), finding(key="R09-22222222", saving=0.05, interval=None, alone=0.1)
    diagnosis = SimpleNamespace(findings=(large,), small=(small,))
    assert Claim.of(diagnosis, "r09").key == "R09-11111111"
    assert Claim.of(diagnosis, "R09-22222222").interval == (0.05, 0.1)
    with pytest.raises(InvalidArgument, match=r"R10.*R09-11111111, R09-22222222"):
        Claim.of(diagnosis, "R10")


def test_runs_end_at_half_only_if_half_can_be_sure():
    assert (looks(30), looks(17)) == ((15, 30), (17,))
