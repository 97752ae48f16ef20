# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

import numpy as np
import pytest

import gpuscope as gs
from gpuscope.benchmarking import DataLoaderWorkers
from gpuscope.errors import GpuscopeError
from gpuscope.results import Result, json_text


def test_what_json_lacks_becomes_null():
    text = json_text({"ends": [-math.inf, math.inf], "value": math.nan, "kept": (1.5, 2, "x", None, True)})
    assert json.loads(text) == {"ends": [None, None], "value": None, "kept": [1.5, 2, "x", None, True]}


def test_the_file_holds_the_text(tmp_path):
    text = json_text({"n": 1}, tmp_path / "result.json")
    assert (tmp_path / "result.json").read_text() == text + "\n"


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(GpuscopeError, match=r"cannot write .*/result\.json: the folder .*missing does not exist"):
        json_text({}, tmp_path / "missing" / "result.json")


def results():
    """One of each kind that measuring gives, with samples enough that NumPy would print lines of them."""
    batches = [np.zeros(3)] * 2000
    point = gs.sweep(lambda n: int, n=[1, 2], budget=0.1)
    crossed = gs.crossover(lambda n: int, lambda n: int, n=[1, 2], budget=0.1)
    measured = gs.benchmark(int, budget=0.05)
    delivered = gs.benchmark_dataloader(range(2000), 1000)
    several = DataLoaderWorkers({0: delivered, 2: delivered}, 0, "the fastest", ("a warning",))
    return [
        measured,
        measured.headline,
        gs.compare(int, int, budget=0.05),
        point,
        point.best(),
        gs.sweep(lambda n: 1 / 0, n=[1], budget=0.1).points[0],
        crossed,
        crossed.curves["cpu"][0],
        gs.measure_latency(int, 1, 1000),
        gs.measure_throughput(lambda batch: None, batches, 1000),
        delivered,
        several,
        delivered.times,
    ]


def test_a_result_is_shown_in_one_line_without_its_arrays():
    for result in results():
        text = repr(result)
        assert "\n" not in text
        assert "array(" not in text
        assert len(text) < 400
        assert type(result).__name__ in text or text == str(result)


def test_a_result_is_shown_by_the_first_line_of_its_text():
    class Two(Result):
        def to_dict(self):
            return {}

        def __str__(self):
            return "first \x1b[31m\nsecond"

    assert repr(Two()) == r"<Two: first \x1b[31m>"


def test_every_kind_of_result_has_a_text():
    kinds = [Result]
    for kind in kinds:
        kinds += kind.__subclasses__()
    package = [kind for kind in kinds[1:] if kind.__module__.startswith("gpuscope.")]
    assert package
    assert all(kind.__str__ is not object.__str__ or kind.__repr__ is not Result.__repr__ for kind in package)
