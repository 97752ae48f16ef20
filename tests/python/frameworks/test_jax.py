# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib.util
import sys
import warnings

import pytest

from gpuscope import profile
from gpuscope.trace import Trace

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")


@pytest.fixture(scope="module", autouse=True)
def annotations():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jax.profiler

        yield jax.profiler


def ranges(trace: Trace) -> list[str]:
    kinds = trace.paths.kind
    names = [trace.string(name) for name in trace.paths.name]
    return [names[path] for path in trace.regions.path if kinds[path] == 2]


def test_annotations_are_ranges(annotations):
    @annotations.annotate_function
    def train():
        pass

    with profile() as profiler:
        with annotations.TraceAnnotation("forward", other=1):
            pass
        train()
    assert ranges(profiler.trace)[0] == "forward"
    assert "train" in ranges(profiler.trace)[1]


def test_steps_that_are_annotated_are_the_steps(annotations):
    with profile() as profiler:
        for number in range(8):
            with annotations.StepTraceAnnotation("train", step_num=number), annotations.TraceAnnotation("forward"):
                pass
    found = profiler.step_breakdown()
    assert (len(found.steps) + found.left_out, found.steps.source) == (8, 'the region "train"')


def test_the_class_is_as_jax_made_it_when_the_window_is_over(annotations):
    before = dict(vars(annotations.TraceAnnotation))
    with profile():
        assert dict(vars(annotations.TraceAnnotation)) != before
        left = annotations.TraceAnnotation("entered within, left behind")
        left.__enter__()
    assert dict(vars(annotations.TraceAnnotation)) == before
    left.__exit__(None, None, None)
    with annotations.TraceAnnotation("without a profiler"):
        pass


def test_annotations_made_before_the_window_do_no_harm(annotations):
    early = annotations.TraceAnnotation("early")
    with profile() as profiler, early:
        pass
    assert ranges(profiler.trace) == []


def test_exceptions_pass_through_and_close_the_range(annotations):
    with profile() as profiler:
        with pytest.raises(KeyError), annotations.TraceAnnotation("fails"):
            raise KeyError
        with pytest.raises(TypeError):
            annotations.TraceAnnotation()
    assert ranges(profiler.trace) == ["fails"]
    assert profiler.audit().complete


def test_jax_that_is_imported_within_the_window_is_hooked(monkeypatch):
    module = sys.modules["jax.profiler"]
    monkeypatch.delitem(sys.modules, "jax.profiler")
    with profile() as profiler:
        import jax.profiler

        with jax.profiler.TraceAnnotation("late"):
            pass
    sys.modules["jax.profiler"] = module
    assert ranges(profiler.trace) == ["late"]
