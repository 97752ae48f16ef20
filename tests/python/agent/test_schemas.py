# SPDX-License-Identifier: Apache-2.0
"""Schemas of results: each result fits its own, and no schema accepts more than results have."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import gpuscope as gs
from fakes.benchmark_results import Canned
from fakes.explorations import exploration
from fakes.loops import Loop
from fakes.rank_tables import MS, job_tables
from fakes.results import recording
from fakes.schemas import offences
from gpuscope.agent.schemas import SCHEMAS, schema_of
from gpuscope.cli import main
from gpuscope.errors import InvalidArgument
from gpuscope.fleet.job import Fleet
from gpuscope.recording import Recording
from gpuscope.results import SCHEMA_VERSION

REPOSITORY = Path(__file__).resolve().parents[3]
GOLDEN = sorted((REPOSITORY / "tests" / "golden" / "gscope").glob("*.gscope"))
TRACES = sorted((REPOSITORY / "tests" / "golden" / "traces").iterdir())


def reading(work_us: float = 500.0, gpu: float = 100.0) -> Recording:
    loop = Loop()
    for _ in loop.steps(14):
        with loop.at("train.py", 30):
            for _ in range(10):
                loop.launch(gpu=gpu)
            loop.copy(4, 2, to_gpu=False, waits=True)
            loop.work(work_us)
    return Recording(loop.trace().store)


RESULTS: dict[str, tuple[str, Any]] = {
    "diagnosis of a loop": ("diagnosis", lambda: reading().diagnose()),
    "diagnosis of all kinds of events": ("diagnosis", lambda: recording().diagnose()),
    "diff": ("diff", lambda: gs.diff(reading(), reading(work_us=5.0))),
    "diff of equal recordings": ("diff", lambda: gs.diff(reading(), reading())),
    "diff with a target": ("diff", lambda: gs.diff(reading(), reading(), target="1ms")),
    "diff of jobs": ("diff", lambda: Fleet(job_tables()).diff(Fleet(job_tables(noise=0.02)))),
    "audit": ("audit", lambda: reading().audit()),
    "job": ("fleet", lambda: Fleet(job_tables()).diagnose()),
    "job with a late rank": ("fleet", lambda: Fleet(job_tables(idle_ns={3: 8 * MS})).diagnose()),
    "job with a slow rank": ("fleet", lambda: Fleet(job_tables(slower={5: 0.5})).diagnose()),
    "what if": ("fleet", lambda: Fleet(job_tables(slower={5: 0.5})).what_if()),
    "benchmark": ("benchmark", lambda: Canned().result(None, True)),
    "benchmark without convergence": ("benchmark", lambda: Canned(converged=False).result(None, True)),
    "comparison": ("benchmark", lambda: Canned().comparison(1.2, None, 0.01)),
    "exploration": ("benchmark", exploration),
    "exploration without a GPU": ("benchmark", lambda: exploration(gpu=False)),
}


@pytest.mark.parametrize("what", RESULTS)
def test_a_result_fits_its_schema(what):
    name, make = RESULTS[what]
    assert offences(name, make()) == []


@pytest.mark.parametrize("what", RESULTS)
def test_a_result_names_its_schema_and_version(what):
    found = RESULTS[what][1]().to_dict()
    assert found["schema"].startswith("gpuscope.")
    assert found["schema_version"] == SCHEMA_VERSION


@pytest.mark.parametrize("what", RESULTS)
def test_a_key_that_no_result_has_is_refused(what):
    name, make = RESULTS[what]
    assert offences(name, json.loads(make().to_json()) | {"unknown": 1})


@pytest.mark.parametrize("path", [*GOLDEN, *TRACES], ids=lambda path: path.name)
@pytest.mark.parametrize("name", ["diagnosis", "audit"])
def test_results_of_committed_recordings_fit_their_schemas(path, name):
    found = gs.load(path)
    assert offences(name, found.diagnose() if name == "diagnosis" else found.audit()) == []


def _results_in(value: Any) -> list[dict[str, Any]]:
    """The results of gpuscope anywhere in a file."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [each for one in inner for each in _results_in(one)]
    is_result = isinstance(value, dict) and str(value.get("schema", "")).startswith("gpuscope.")
    return [value, *found] if is_result else found


def test_results_in_committed_measurements_fit_a_schema():
    files = sorted((REPOSITORY / "benchmarks" / "results").glob("*.json"))
    assert files
    for each in itertools.chain(*(_results_in(json.loads(path.read_text(encoding="utf-8"))) for path in files)):
        assert any(not offences(name, each) for name in SCHEMAS), each["schema"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_of_the_dialect_that_it_names(name):
    from jsonschema import Draft202012Validator

    found = schema_of(name)
    assert found["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    Draft202012Validator.check_schema(found)


def test_attributes_are_described_by_their_docstrings():
    finding = schema_of("diagnosis")["$defs"]["Finding"]["properties"]
    assert [name for name, schema in finding.items() if "description" not in schema] == []


def test_an_unknown_schema_is_refused_with_the_known_ones():
    with pytest.raises(InvalidArgument, match="'trace'; accepted are diagnosis, diff, audit, fleet, benchmark"):
        schema_of("trace")


def test_the_hash_of_a_recording_is_the_same_before_saving_and_after_loading(tmp_path):
    saved = reading()
    saved.save(tmp_path / "run.gscope")
    assert gs.load(tmp_path / "run.gscope").diagnose().recording == saved.diagnose().recording != ""


def test_an_audit_is_pickled_without_its_recording():
    found = reading().audit()
    assert pickle.loads(pickle.dumps(found)) == found
    assert len(pickle.dumps(found)) < 10_000


def test_another_recording_has_another_hash():
    assert reading(gpu=101.0).trace.content_hash != reading().trace.content_hash


def test_both_sides_of_a_diff_have_the_hashes_of_their_recordings():
    before, after = reading(), reading(work_us=5.0)
    found = gs.diff(before, after).to_dict()
    assert found["before"]["recordings"] == [before.trace.content_hash]
    assert found["after"]["recordings"] == [after.trace.content_hash]


def test_a_job_has_a_hash_that_does_not_depend_on_names_of_hosts():
    known, anonymous = job_tables(), job_tables()
    anonymous["rank"]["host"][:] = "host"
    assert Fleet(known).diagnose().recording == Fleet(anonymous).diagnose().recording


def test_what_is_left_open_is_at_one_place_with_its_reason():
    found = reading().diagnose()
    why = [each["why"] for each in found.to_dict()["abstained"]]
    assert why == [*found.doubts, *found.unseen]


def test_omitted_checks_name_their_rules():
    found = reading().diagnose()
    assert any(each["what"] == "R37, R38, R45" for each in found.to_dict()["abstained"])


def test_nothing_left_open_is_null():
    assert Canned().result(None, True).to_dict()["abstained"] is None


def test_schemas_are_listed(capsys):
    assert main(["schema"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_command_prints_a_schema(name, capsys):
    assert main(["schema", name]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of(name)
