# SPDX-License-Identifier: Apache-2.0
"""The types of torch.profiler's results and enumerations, held against ours by running the torch that is installed.

`test_torch_names.py` has the names of the module and of `profile`.
"""

from __future__ import annotations

import inspect
import json
import pickle
import warnings
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

import torch.profiler as theirs  # noqa: E402
from torch.autograd import profiler_util  # noqa: E402

import gpuscope as ours  # noqa: E402
from fakes.recordings import training  # noqa: E402
from gpuscope.analysis import EventList, Events, event_index, events, key_averages  # noqa: E402
from gpuscope.errors import NotAvailable  # noqa: E402

IMMUTABLE = "torch builds its events with it; ours are read from the recording and do not change"
# Public attributes of torch's that ours lack, with the reason why.
NOT_THERE = {
    "EventList": {},
    "FunctionEvent": dict.fromkeys(("append_kernel", "append_cpu_child", "set_cpu_parent"), IMMUTABLE),
    "FunctionEventAvg": {},
    "Interval": {},
    "Kernel": {},
}
THEIRS = {
    "EventList": profiler_util.EventList,
    "FunctionEvent": lambda: profiler_util.FunctionEvent(1, "name", 1, 0, 1),
    "FunctionEventAvg": profiler_util.FunctionEventAvg,
    "Interval": lambda: profiler_util.Interval(0, 1),
    "Kernel": lambda: profiler_util.Kernel("name", 0, 1),
}


def kernels():
    return next(event.kernels for event in events(training()) if event.kernels)


OURS = {
    "EventList": lambda: events(training()),
    "FunctionEvent": lambda: events(training())[0],
    "FunctionEventAvg": lambda: key_averages(training())[0],
    "Interval": lambda: events(training())[0].time_range,
    "Kernel": lambda: kernels()[0],
}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize("kind", list(THEIRS))
def test_a_result_has_every_attribute_of_torch_or_a_reason(kind):
    assert public(THEIRS[kind]()) - public(OURS[kind]()) == set(NOT_THERE[kind])


def test_every_attribute_of_an_event_can_be_read():
    for event in events(training()):
        for name in public(THEIRS["FunctionEvent"]()) - set(NOT_THERE["FunctionEvent"]):
            getattr(event, name)


def takes(function, of_torch):
    """Whether a function takes torch's arguments, in order; newer ones of torch's may follow."""
    mine, of_torchs = (
        [(p.name, p.default) for p in inspect.signature(each).parameters.values()] for each in (function, of_torch)
    )
    return mine[: len(of_torchs)] == of_torchs


@pytest.mark.parametrize("name", ["table", "key_averages", "total_average", "export_chrome_trace", "export_stacks"])
def test_methods_take_the_arguments_of_torch(name):
    assert takes(getattr(type(events(training())), name), getattr(profiler_util.EventList, name))


def test_key_averages_of_the_profiler_takes_the_arguments_of_torch():
    assert takes(ours.profile.key_averages, theirs.profile.key_averages)


def test_python_functions_may_be_asked_for(both):
    for rows in (both[1].key_averages(include_python_functions=True), both[1].key_averages()):
        assert not any(row.key.endswith(": program") for row in rows)


@pytest.mark.parametrize("key", ["self_cuda_memory_usage", "cuda_time_total", "cpu_memory_usage", "count", "flops"])
def test_the_sort_keys_of_torch_sort(key):
    for rows in (events(training()), key_averages(training())):
        values = [getattr(row, key) for row in rows.sorted_by(key)]
        assert values == sorted(values, reverse=True)


# -- enumerations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ProfilerActivity", "ProfilerAction", "DeviceType"])
def test_an_enumeration_has_the_members_of_torch(name):
    of_torch = getattr(theirs, name).__members__
    mine = getattr(ours, name).__members__
    assert set(of_torch) <= set(mine)
    for member, value in of_torch.items():
        assert mine[member].name == value.name
        assert str(mine[member]) == str(value)
        if name != "ProfilerActivity":  # its numbers changed between versions of torch
            assert mine[member].value == int(getattr(value, "value", value))


@pytest.mark.parametrize("name", ["ProfilerActivity", "ProfilerAction", "DeviceType"])
def test_a_member_equals_that_of_torch_alone(name):
    of_torch = getattr(theirs, name).__members__
    for member in getattr(ours, name):
        equal = [other for other, value in of_torch.items() if member == value]
        assert equal == ([member.name] if member.name in of_torch else [])


@pytest.mark.parametrize("container", [set, list, tuple, dict.fromkeys])
@pytest.mark.parametrize("name", ["ProfilerActivity", "ProfilerAction", "DeviceType"])
def test_a_member_of_torch_is_found_among_ours(name, container):
    # Not the other way round: torch's own, written in C++, say that they equal nothing of another type.
    for member, value in getattr(theirs, name).__members__.items():
        mine = getattr(ours, name)
        assert value in container([mine[member]])
        assert value not in container(other for other in mine if other.name != member)


def test_members_of_torch_are_found_among_the_activities():
    prof = ours.profile(activities=[theirs.ProfilerActivity.CPU])
    assert theirs.ProfilerActivity.CPU in prof.activities
    assert theirs.ProfilerActivity.CUDA not in prof.activities
    assert theirs.ProfilerActivity.CPU in ours.supported_activities()


@pytest.mark.parametrize("name", list(theirs.ProfilerActivity.__members__))
def test_every_activity_of_torch_is_accepted(name):
    activities = [ours.ProfilerActivity.CPU]
    if name != "CPU":
        activities.append(getattr(theirs.ProfilerActivity, name))
    with ours.profile(activities=activities) as prof:
        torch.ones(3) + 1
    assert (f"{name}: not recorded" in str(prof.audit())) == (name not in ("CPU", "CUDA"))
    assert any(event.name == "aten::add" for event in prof.events())


@pytest.mark.parametrize("events_of", ["CPU", "CUDA"])
def test_names_of_events_are_refused_where_torch_refuses_them(events_of):
    with pytest.raises(RuntimeError, match="NO_SUCH_EVENT; accepted are"):
        ours.profile(activities=[{ours.ProfilerActivity[events_of]: ["NO_SUCH_EVENT"]}])


def test_no_schedule_returns_what_torch_sets_itself():
    for module in (theirs, ours):
        with pytest.raises(ValueError, match="DEVICE_STOPPED is set internally"):
            module.profile(
                activities=[module.ProfilerActivity.CPU], schedule=lambda step: theirs.ProfilerAction.DEVICE_STOPPED
            )


# -- one program -----------------------------------------------------------------------------------------------------


def program(module):
    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(5, 6)
    with module.record_function("outer"), module.record_function("outer"):
        z = torch.mm(x, y) * torch.randn(4, 1)
    torch.randn(1, 3) + torch.randn(4, 1)
    torch.nn.functional.conv2d(torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3), stride=2, padding=1, groups=2)
    z.sum().backward()


def run(module, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with module.profile(activities=[module.ProfilerActivity.CPU], **options) as prof:
            program(module)
    return prof


@pytest.fixture(scope="module")
def both():
    return run(theirs, with_flops=True), run(ours, with_flops=True)


def first(prof, name):
    return next(event for event in prof.events() if event.name == name)


SAME = (
    *("name", "trace_name", "overload_name", "key", "count", "node_id", "is_async", "is_remote", "is_legacy", "scope"),
    *("is_user_annotation", "is_python_function", "activity_type", "input_shapes", "structured_input_shapes", "flops"),
    *("use_device", "cpu_memory_usage", "device_memory_usage", "linked_correlation_id", "event_metadata", "flow_type"),
    *("flow_start", "python_id", "python_parent_id", "python_module_id", "kwinputs", "device_time_total"),
    "concrete_inputs",
)


@pytest.mark.parametrize("attribute", SAME)
@pytest.mark.parametrize("name", ["aten::mul", "aten::conv2d", "MulBackward0"])
def test_an_event_says_what_it_says_in_torch(both, name, attribute):
    of_torch, mine = (getattr(first(prof, name), attribute) for prof in both)
    assert mine == of_torch


def test_tensors_have_the_types_that_torch_gives_them(both):
    of_torch, mine = (first(prof, "aten::conv2d").input_dtypes[:2] for prof in both)
    assert mine == of_torch == ["float", "float"]


def test_an_event_on_the_cpu_has_the_device_type_of_torch(both):
    _, prof = both
    event = prof.events()[0]
    assert event.device_type == torch.autograd.DeviceType.CPU == theirs.DeviceType.CPU
    assert event.device_type != torch.autograd.DeviceType.CUDA
    assert str(event.device_type) == str(torch.autograd.DeviceType.CPU)


@pytest.mark.parametrize("rows", [events, key_averages])
def test_device_types_of_results_are_found_among_torchs(rows):
    found = next(row.device_type for row in rows(training()) if row.device_type == ours.analysis.DeviceType.CUDA)
    assert torch.autograd.DeviceType.CUDA == found  # noqa: SIM300
    assert torch.autograd.DeviceType.CPU != found  # noqa: SIM300
    assert found in [torch.autograd.DeviceType.CUDA]
    assert {torch.autograd.DeviceType.CUDA: "there"}[found] == "there"
    assert found == ours.analysis.DeviceType.CUDA == found != ours.analysis.DeviceType.CPU
    assert pickle.loads(pickle.dumps(found)) == found


def test_plain_values_of_rows_are_ready_for_json():
    rows = json.loads(json.dumps(key_averages(training()).to_dict()))["events"]
    assert {row["device_type"] for row in rows} == {0, 1}


def test_torchs_own_list_writes_a_table_of_our_events():
    mine = events(training())
    kernel = next(event.name for event in mine if event.device_type == torch.autograd.DeviceType.CUDA)
    assert kernel in profiler_util.EventList(mine).table()


def test_flows_lead_from_forward_to_backward(both):
    for prof in both:
        assert first(prof, "aten::mul").flow_id == first(prof, "MulBackward0").flow_id != 0


def test_flows_are_numbered_as_in_torch(both):
    def flows(prof):
        return [(event.name, event.flow_id, event.flow_start) for event in prof.events() if event.flow_id]

    of_torch, mine = map(flows, both)
    assert mine == of_torch
    assert {number for _, number, _ in mine} == set(range(1, len(mine) // 2 + 1))


@pytest.fixture(scope="module")
def traces(both, tmp_path_factory):
    def rows(prof):
        path = tmp_path_factory.mktemp("trace") / "a.json"
        prof.export_chrome_trace(str(path))  # torch writes it once
        return json.loads(path.read_text())["traceEvents"]

    return [rows(prof) for prof in both]


def test_events_have_the_numbers_of_the_trace(both, traces):
    for prof, rows in zip(both, traces, strict=True):
        numbered = {(row["name"], row["args"]["External id"]) for row in rows if "External id" in str(row)}
        assert {(event.name, event.external_id) for event in prof.events()} <= numbered
        for starts in (True, False):
            drawn = {row["id"] for row in rows if row["ph"] == ("s" if starts else "f")}
            assert {event.flow_id for event in prof.events() if event.flow_id and event.flow_start == starts} == drawn


def test_operators_have_a_record_function_id_in_the_trace(traces):
    for rows in traces:
        assert {row["args"]["Record function id"] for row in rows if row.get("cat") == "cpu_op"} == {0}


def test_metadata_of_an_operator_is_its_place():
    config = torch._C._profiler._ExperimentalConfig(expose_kineto_event_metadata=True)
    for module in (theirs, ours):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            event = first(run(module, experimental_config=config), "aten::mm")
            assert json.loads("{" + event.metadata_json + "}").keys() == {"Ev Idx"}


def test_metadata_of_gpu_work_has_the_names_of_torchs():
    work = [event for event in events(training()) if event.event_metadata is not None]
    assert {event.activity_type for event in work} == {"kernel", "gpu_memcpy"}
    for event in work:
        assert set(event.event_metadata._fields) == set(profiler_util.EventMetadata._fields)
        named = json.loads("{" + event.metadata_json + "}")
        assert set(named) <= set(profiler_util._EVENT_METADATA_KEYS)
        read = {profiler_util._EVENT_METADATA_KEYS[name][0]: value for name, value in named.items()}
        assert read == {name: value for name, value in event.event_metadata._asdict().items() if value is not None}


def test_regions_of_one_name_that_hold_nothing_else_count_once(both):
    of_torch, mine = ({row.key: row.count for row in prof.key_averages() if row.is_user_annotation} for prof in both)
    assert mine == of_torch == {"outer": 1}


def test_operators_of_torchs_formulas_have_its_flops(both):
    of_torch, mine = (
        {(row.key, str(row.input_shapes)): row.flops for row in prof.key_averages(group_by_input_shape=True)}
        for prof in both
    )
    counted = {key: flops for key, flops in of_torch.items() if flops}
    assert {key: mine[key] for key in counted} == counted
    assert {name for name, _ in counted} == {"aten::mm", "aten::mul", "aten::add", "aten::conv2d"}


@pytest.mark.parametrize("with_flops", [False, True])
def test_tables_have_the_column_of_flops_where_torchs_have(with_flops):
    for module in (theirs, ours):
        table = run(module, record_shapes=True, with_flops=with_flops).key_averages().table()
        assert ("FLOPs" in table) == with_flops


def test_a_list_of_events_can_be_made_as_torchs_is(both):
    for prof in both:
        make = profiler_util.EventList if prof is both[0] else EventList
        some = [row for row in prof.key_averages() if row.key.startswith("aten::")]
        table = make(some, use_device=None, profile_memory=False, with_flops=True).table(row_limit=1)
        assert "Self CPU time total" in table
        assert make(some).self_cpu_time_total == pytest.approx(sum(row.self_cpu_time_total for row in some))


def test_the_list_of_torch_takes_our_events(both, tmp_path):
    of_torch = profiler_util.EventList(both[1].events())
    assert "aten::mm" in of_torch.table(row_limit=-1)
    of_torch.export_chrome_trace(str(tmp_path / "trace.json"))
    assert '"aten::mm"' in (tmp_path / "trace.json").read_text()


# -- what libraries read although torch keeps it private ---------------------------------------------------------------


def test_the_records_of_kineto_have_their_names(both):
    of_torch, mine = (prof.profiler.kineto_results for prof in both)
    assert public(of_torch) - public(mine) == {"trace_activities"}
    assert public(of_torch.events()[0]) - public(mine.events()[0]) == set()


def test_the_records_of_kineto_say_what_torchs_say(both):
    def counts(prof):
        return Counter(
            (record.name(), record.scope(), str(record.shapes()), record.flops() > 0 and record.name() == "aten::mm")
            for record in prof.profiler.kineto_results.events()
            if record.name().startswith("aten::")
        )

    of_torch, mine = map(counts, both)
    assert mine == of_torch


def test_the_records_of_kineto_lie_in_the_recording(both):
    for prof in both:
        results = prof.profiler.kineto_results
        for record in results.events():
            assert results.trace_start_ns() <= record.start_ns() <= record.end_ns()
            assert record.end_ns() - record.start_ns() == record.duration_ns()


def test_the_inner_profiler_answers_as_torchs(both):
    for prof in both:
        assert len(prof.profiler.function_events) == len(prof.events())
        assert prof.profiler.total_average().key == "Total"
        assert "aten::mm" in prof.profiler.table()
        assert prof.profiler.self_cpu_time_total == pytest.approx(prof.key_averages().self_cpu_time_total)


def test_what_cannot_be_given_says_what_to_use(both):
    with pytest.raises(NotAvailable, match=r"prof\.trace\.memory"):
        both[1]._memory_profile()


# -- steps and arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [1, 2])
def test_steps_alone_record_as_in_torch(wait):
    seen = {}
    for module in (theirs, ours):
        ready = seen[module] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prof = module.profile(
                activities=[module.ProfilerActivity.CPU],
                schedule=module.schedule(wait=wait, warmup=1, active=2, repeat=1),
                on_trace_ready=lambda prof, ready=ready: ready.append(
                    [event.trace_name for event in prof.events() if event.is_user_annotation]
                ),
            )
            for _ in range(6):
                prof.step()
                torch.ones(2)
            prof.stop()
        ready.append((prof.step_num, prof.current_action.name))
    assert seen[ours] == seen[theirs]


@pytest.mark.parametrize("daemon", ["", "1"])
def test_torch_counts_our_steps_as_its_own(daemon, monkeypatch):
    monkeypatch.setenv("KINETO_USE_DAEMON", daemon)
    tracker = torch.autograd.profiler.KinetoStepTracker
    taken, forgotten = [], []
    for profiler in (theirs, ours):
        before = tracker.current_step()
        prof = profiler.profile(
            activities=[theirs.ProfilerActivity.CPU], schedule=profiler.schedule(wait=0, warmup=1, active=3)
        )
        tracker.increment_step("an optimizer's")
        with prof:
            for _ in range(3):
                prof.step()
        tracker.erase_step_count("an optimizer's")
        taken.append(tracker.current_step() - before)
        forgotten.append(tracker.erase_step_count("ProfilerStep"))
    assert taken[0] == taken[1]
    assert forgotten == [False, False]


def test_a_step_that_the_schedule_cannot_name_ends_its_region():
    for module in (theirs, ours):
        actions = [module.ProfilerAction.WARMUP, module.ProfilerAction.DEVICE_STOPPED]
        prof = module.profile(activities=[module.ProfilerActivity.CPU], schedule=actions.__getitem__)
        prof.start()
        assert prof.step_rec_fn is not None
        with pytest.raises(ValueError, match="DEVICE_STOPPED"):
            prof.step()
        assert (prof.step_num, prof.current_action, prof.step_rec_fn) == (0, actions[0], None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prof.stop()


def test_the_inner_profilers_events_count_for_the_statistics():
    for module in (theirs, ours):
        prof = run(module)
        assert prof.profiler.function_events
        assert prof._stats().function_events_build_tree_call_duration_us > 0


@pytest.mark.parametrize("timeout", [0, 0.5, 3])
def test_a_timeout_that_torch_takes_is_taken(timeout):
    run(theirs, post_processing_timeout_s=timeout)
    prof = run(ours, post_processing_timeout_s=timeout)
    assert prof.post_processing_timeout_s == timeout


def test_events_are_cut_short_as_in_torch(caplog):
    for module in (theirs, ours):
        caplog.clear()
        prof = run(module, post_processing_timeout_s=0)
        with caplog.at_level("WARNING", logger="torch.autograd.profiler"):
            found = prof.events()
        assert ["timed out" in text and "partial results" in text for text in caplog.messages] == [True]
    assert (len(found), found.cut) == (0, len(events(prof.trace)))


def test_tables_are_whole_where_events_are_cut_short():
    prof = run(ours, post_processing_timeout_s=0)
    assert "aten::mm" in {row.key for row in prof.key_averages()}


def test_the_earliest_events_are_given_where_time_ends(monkeypatch):
    trace = run(ours).trace
    whole = events(trace)
    monkeypatch.setattr(event_index, "_BLOCK", 2)
    clock = iter([0, 100_000_000, 200_000_000, 9_000_000_000])
    monkeypatch.setattr(event_index._core, "monotonic_ns", lambda: next(clock))
    found = Events(trace, 1.0)
    monkeypatch.undo()
    assert [event.name for event in found] == [event.name for event in whole[:4]]
    assert all(child.id < 4 for event in found for child in event.cpu_children)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda module: module.profile(no_such_argument=1),
        lambda module: module.profile(activities=[module.ProfilerActivity.CPU], post_processing_timeout_s=-1).start(),
        lambda module: module.profile(activities=[module.ProfilerActivity.CPU] * 2),
        lambda module: run(module).no_such_name,
    ],
    ids=["argument", "timeout", "twice", "name"],
)
def test_what_torch_refuses_is_refused_by_the_same_exception(wrong):
    raised = []
    for module in (theirs, ours):
        with pytest.raises((TypeError, ValueError, AttributeError)) as caught:
            wrong(module)
        raised.append(caught.type)
    assert issubclass(raised[1], raised[0])
