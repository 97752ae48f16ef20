# SPDX-License-Identifier: Apache-2.0
"""Every public name of torch.profiler has its counterpart here, or a reason why not.

Checked against the torch that is installed: names of other versions are in the table too, and fail nothing.
"""

from __future__ import annotations

import inspect
import json
import warnings

import pytest

import gpuscope as ours

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torch.profiler")

# Names of torch.profiler that are not in gpuscope.
ABSENT = {
    "profiler": "a module of torch's own, of which torch.profiler shows the public names",
}

# Attributes of a profile object that torch shows and gpuscope does not.
ABSENT_ATTRIBUTES = {
    "action_map": "torch's table from pairs of actions to its own methods",
    "activity_filters": "torch's reading of lists of event names",
    "has_cudagraphs": "a workaround of torch's for CUPTI's teardown, which gpuscope does not do",
    "mem_tl": "what torch's export_memory_timeline keeps",
    "preset_metadata": "presets are metadata here: preset_metadata_json",
}

FUNCTIONS = ("schedule", "supported_activities", "tensorboard_trace_handler", "kineto_available", "profile")


def parameters(function):
    return {
        name: parameter for name, parameter in inspect.signature(function).parameters.items() if name not in ("self",)
    }


def same_parameters(name, mine, of_torch):
    for parameter in of_torch.values():
        assert parameter.name in mine, f"{name} lacks {parameter.name}"
        assert mine[parameter.name].kind == parameter.kind, (name, parameter.name)
        assert mine[parameter.name].default == parameter.default, (name, parameter.name)
    # Positions must agree too, and what is ours alone must not be required.
    in_order = [parameter.name for parameter in of_torch.values() if parameter.kind is not parameter.KEYWORD_ONLY]
    assert list(mine)[: len(in_order)] == in_order, name
    for parameter in mine.values():
        assert parameter.name in of_torch or parameter.default is not parameter.empty, (name, parameter.name)


@pytest.mark.parametrize("name", [*theirs.__all__, "itt"])
def test_a_name_of_torch_exists(name):
    assert name in ABSENT or name in ours.__all__


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_takes_what_it_takes_in_torch(name):
    try:
        of_torch = parameters(getattr(theirs, name))
    except ValueError:  # written in C++: it takes nothing
        of_torch = {}
    same_parameters(name, parameters(getattr(ours, name)), of_torch)


@pytest.mark.parametrize("name", [name for name in dir(theirs.profile) if not name.startswith("_")])
def test_a_method_takes_what_it_takes_in_torch(name):
    if name in ABSENT_ATTRIBUTES:
        assert not hasattr(ours.profile, name)
        return
    of_torch = getattr(theirs.profile, name)
    mine = getattr(ours.profile, name)
    if callable(of_torch):
        same_parameters(name, parameters(mine), parameters(of_torch))


def test_a_profile_object_has_the_attributes_of_torch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of_torch = vars(theirs.profile(activities=[theirs.ProfilerActivity.CPU]))
    mine = ours.profile(activities=[ours.ProfilerActivity.CPU])
    for name, value in of_torch.items():
        if name.startswith("_") or name in ABSENT_ATTRIBUTES:
            continue
        assert hasattr(mine, name), name
        if isinstance(value, (bool, int, type(None))):
            assert getattr(mine, name) == value, name


class Kineto(theirs._KinetoProfile):
    pass


class Ours(ours._KinetoProfile):
    pass


@pytest.mark.parametrize("kind", [Kineto, Ours])
def test_a_library_builds_its_own_upon_the_profiler_without_steps(kind, tmp_path):
    prof = kind(activities=[theirs.ProfilerActivity.CPU], record_shapes=True)
    assert isinstance(prof, kind.__base__)
    prof.start()
    torch.ones(2)
    prof.stop()
    prof.export_chrome_trace(str(tmp_path / "a.json"))
    rows = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    names = {row["name"] for row in rows if row.get("cat") in ("cpu_op", "user_annotation")}
    assert "aten::ones" in names
    assert not any(name.startswith("ProfilerStep") for name in names)


def test_a_profile_is_one_without_steps_too_as_in_torch():
    assert isinstance(theirs.profile(activities=[theirs.ProfilerActivity.CPU]), theirs._KinetoProfile)
    assert isinstance(ours.profile(), ours._KinetoProfile)


def test_a_profile_lists_its_own_names():
    prof = ours.profile()
    assert {name for name in dir(ours.profile) if not name.startswith("_")} | {"step_num"} <= set(dir(prof))


def test_the_profiler_without_steps_takes_what_it_takes_in_torch():
    same_parameters("_KinetoProfile", parameters(ours._KinetoProfile), parameters(theirs._KinetoProfile))


def test_reasons_are_given_for_what_is_absent_alone():
    mine = ours.profile()
    assert [name for name in ABSENT_ATTRIBUTES if hasattr(mine, name)] == []
    assert [name for name in ABSENT if name in ours.__all__] == []


@pytest.mark.parametrize("record_function", [ours.record_function, theirs.record_function], ids=["ours", "torch's"])
def test_a_region_is_made_as_in_torch(record_function):
    for region in (
        record_function("a"),
        record_function("a", None),
        record_function(name="a", args="lr=0.1"),
    ):
        with region as entered:
            assert entered is region

    @record_function("decorated")
    def twice(value):
        return 2 * value

    assert twice(4) == 8
    with pytest.raises(ZeroDivisionError), record_function("raises"):
        _ = 1 / 0


@pytest.mark.parametrize("attribute", ["step_num", "current_action"])
def test_the_handler_of_torch_writes_a_profile_of_ours(attribute, tmp_path):
    handler = theirs.tensorboard_trace_handler(str(tmp_path), worker_name="w")
    with ours.profile(on_trace_ready=handler) as prof, ours.record_function("work"):
        pass
    assert hasattr(prof, attribute)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("w.")
    assert '"work"' in path.read_text()


PLANS = (
    {"wait": 1, "warmup": 1, "active": 2, "repeat": 2},
    {"wait": 0, "warmup": 1, "active": 1},
    {"wait": 2, "warmup": 0, "active": 3, "repeat": 1, "skip_first": 3},
    {"wait": 3, "warmup": 1, "active": 1, "repeat": 2, "skip_first": 2, "skip_first_wait": 1},
)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: ",".join(f"{name}={value}" for name, value in plan.items()))
def test_one_script_calls_back_at_the_same_steps(plan):
    seen = {}
    for module in (theirs, ours):
        calls = seen[module] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with module.profile(
                activities=[module.ProfilerActivity.CPU],
                schedule=module.schedule(**plan),
                on_trace_ready=lambda prof, calls=calls: calls.append(("ready", prof.step_num)),
            ) as prof:
                for step in range(14):
                    calls.append((step, prof.step_num, prof.current_action.name))
                    with module.record_function("work"):
                        pass
                    prof.step()
            calls.append((prof.step_num, prof.current_action.name))
    assert seen[ours] == seen[theirs]
