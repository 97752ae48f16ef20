# SPDX-License-Identifier: Apache-2.0
"""What operators and ranges were given: numbers, keywords and overloads, as the installed torch records them."""

from __future__ import annotations

import gc
import json
import threading
import warnings

import pytest

import gpuscope as gs
from gpuscope._core import Session
from gpuscope.errors import GpuscopeWarning
from gpuscope.profiler import windows

torch = pytest.importorskip("torch")
theirs = pytest.importorskip("torch.profiler")

experimental = torch._C._profiler._ExperimentalConfig
KEYWORDS = {"stream": 0, "grid": "x + 1", "quoted": 'a"b', "yes": True, "half": 0.5, "less": -3, "list": [1, 2]}
KEYWORDS |= {"none": [], "nothing": None, "complex": 1.5 - 2j, "texts": ["a", "b, c", "\N{SNOWMAN}"]}


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, exact, dims):
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None, None


def program():
    x = torch.ones(2, 6, requires_grad=True)
    with torch.no_grad():
        x.as_strided([4, 3], [1, 4])
        torch.threshold(x, 0.1, -2.5e-12)
        torch.full((1,), 1e16).sum(dim=[0], keepdim=True, dtype=torch.float64)
        torch.full((1,), float("-inf")).clamp(min=0.5)
        torch.add(x, 1 + 2j)
        torch.zeros([1] * 30)
        torch.zeros([1] * 31)
        torch.einsum("ij,kj->ik", x, x)
        torch.nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear")
        torch.quantile(x, 0.5)
    Scale.apply(x, 3, True, [1, 2]).sum().backward()
    torch.conv1d(torch.ones(1, 1, 5), torch.ones(1, 1, 3, requires_grad=True)).sum().backward()
    with torch._C._profiler._RecordFunctionFast("range", [x, 3, "text"], KEYWORDS):
        pass
    with torch._C._profiler._RecordFunctionFast("plain"):
        pass
    with torch._C._profiler._RecordFunctionFast("other", [x], {"stream": "side"}):
        pass
    handle = torch.autograd._record_function_with_args_enter("call", 1, False, 2.5, [x, x], "hello", x)
    torch.autograd._record_function_with_args_exit(handle)


def record(module, **options):
    options.setdefault("record_shapes", True)
    with module.profile(activities=[module.ProfilerActivity.CPU], **options) as prof:
        program()
    return prof


def chrome(prof, path):
    prof.export_chrome_trace(str(path))
    rows = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") in ("cpu_op", "user_annotation")]
    return sorted(rows, key=lambda row: row["ts"])


@pytest.fixture(scope="module")
def both():
    return record(theirs), record(gs)


@pytest.fixture(scope="module")
def traces(both, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    return [chrome(prof, folder / f"{index}.json") for index, prof in enumerate(both)]


@pytest.mark.parametrize("argument", ["Concrete Inputs", "Input type", "Input Dims", *KEYWORDS])
def test_rows_of_traces_have_the_arguments_of_torchs(traces, argument):
    of_torch, ours = ([(row["name"], row["args"].get(argument)) for row in rows] for rows in traces)
    assert ours == of_torch


def arguments(prof, *attributes):
    """Of the first event of each name and shapes: torch leaves one out that is all that another of its name has."""
    found = {}
    for event in prof.events():
        key = (event.name, str(event.input_shapes))
        found.setdefault(key, [getattr(event, attribute) for attribute in attributes])
    return found


def test_events_have_the_inputs_and_keywords_of_torchs(both):
    of_torch, ours = (arguments(prof, "concrete_inputs", "kwinputs", "input_dtypes") for prof in both)
    assert {key: ours.get(key) for key in of_torch} == of_torch


def test_records_of_kineto_have_them_too(both):
    ranges = ([event for event in prof.profiler.kineto_results.events() if event.name() == "range"] for prof in both)
    of_torch, ours = ([(event.concrete_inputs(), event.kwinputs()) for event in events] for events in ranges)
    assert ours == of_torch == [([None, 3, None], KEYWORDS)]


def test_texts_of_a_list_are_those_given_where_torchs_file_is_no_json(tmp_path):
    texts = ['say "a"', "back\\slash", "two\nlines", ""]
    with gs.profile(record_shapes=True) as prof, torch._C._profiler._RecordFunctionFast("range", [], {"texts": texts}):
        pass
    assert [event.kwinputs for event in prof.events() if event.name == "range"] == [{"texts": texts}]
    assert [row["args"]["texts"] for row in chrome(prof, tmp_path / "a.json") if row["name"] == "range"] == [texts]


def test_a_list_of_too_many_texts_is_left_out():
    texts = ["a" * 100] * 30
    with gs.profile(record_shapes=True) as prof, torch._C._profiler._RecordFunctionFast("range", [], {"texts": texts}):
        pass
    assert [event.kwinputs for event in prof.events() if event.name == "range"] == [{}]


def test_of_operators_alone_there_are_shapes_and_types_and_no_more():
    prof = record(gs, record_shapes="operators")
    named = {event.name: event for event in prof.events()}
    assert named["aten::threshold"].input_shapes[0] == [2, 6]
    assert named["aten::threshold"].input_dtypes[0] == "float"
    assert not any(event.concrete_inputs for event in prof.events())
    assert (named["range"].input_shapes, named["range"].kwinputs) == ([], {})
    assert prof.trace.info["metadata.record_shapes"] == '"operators"'


def test_they_are_kept_in_a_file(both, tmp_path):
    both[1].save(tmp_path / "a.gscope")
    event = next(event for event in gs.load(tmp_path / "a.gscope").events() if event.name == "range")
    assert (event.concrete_inputs, event.kwinputs) == ([None, 3, None], KEYWORDS)


def test_without_shapes_there_are_none():
    for event in record(gs, record_shapes=False).events():
        assert (event.concrete_inputs, event.kwinputs, event.input_shapes) == ([], {}, [])


def test_the_switch_of_torch_leaves_the_numbers_out():
    torch._C._profiler._set_record_concrete_inputs_enabled_val(False)
    try:
        events = [event for event in record(gs).events() if event.name == "aten::as_strided"]
    finally:
        torch._C._profiler._set_record_concrete_inputs_enabled_val(True)
    assert events[0].input_shapes[0] == [2, 6]
    assert not any(event.concrete_inputs for event in events)


# -- overloads ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def overloads():
    with warnings.catch_warnings():
        warnings.simplefilter("error", GpuscopeWarning)
        return [
            record(module, experimental_config=experimental(capture_overload_names=True)) for module in (theirs, gs)
        ]


def test_events_have_the_overloads_of_torchs(overloads):
    of_torch, ours = (arguments(prof, "overload_name", "trace_name") for prof in overloads)
    assert {key: ours.get(key) for key in of_torch} == of_torch
    assert ["Tensor", "aten::add"] in ours.values()


def test_overloads_stand_behind_the_names_in_traces(overloads, tmp_path):
    of_torch, ours = (
        [row["name"] for row in chrome(prof, tmp_path / f"{index}.json")] for index, prof in enumerate(overloads)
    )
    assert ours == of_torch
    assert "aten::add.Tensor" in ours


def test_rows_are_grouped_by_overload_where_that_is_asked_for(overloads):
    of_torch, ours = (
        {(row.key, row.overload_name, row.count) for row in prof.key_averages(group_by_overload_name=True)}
        for prof in overloads
    )
    assert ours == of_torch
    assert {row.overload_name for row in overloads[1].key_averages()} == {""}


def test_a_table_of_overloads_has_their_column(overloads):
    averages = overloads[1].key_averages(group_by_overload_name=True)
    assert "Overload Name" in averages.table()
    assert "Overload Name" not in overloads[1].key_averages().table()


def test_without_the_option_overloads_have_no_names(both):
    assert {event.overload_name for event in both[1].events()} == {""}


# -- the rest of torch's experimental configuration --------------------------------------------------------------------


def test_options_without_effect_are_named():
    with pytest.warns(GpuscopeWarning, match=r"experimental_config\.profiler_measure_per_kernel$"):
        gs.profile(experimental_config=experimental(profiler_measure_per_kernel=True))


def test_a_configuration_that_changes_nothing_is_taken_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for config in (experimental(), experimental(verbose=True, profile_all_threads=True)):
            gs.profile(experimental_config=config)


@pytest.mark.parametrize("asked", [True, False])
def test_garbage_collections_are_there_as_a_configuration_says(asked):
    seen = []
    for module in (theirs, gs):
        config = experimental(record_python_gc_info=asked)
        activities = [module.ProfilerActivity.CPU]
        with module.profile(activities=activities, with_stack=True, experimental_config=config) as prof:
            gc.collect()
        seen.append(any(event.name == "Python GC" for event in prof.events()))
    assert seen == [asked, asked]


def threads_recorded(module, **options):
    """Which of three threads operators and regions were recorded of: the profiler's, one that ran, one that began."""
    started, done = threading.Event(), threading.Event()

    def work():
        with module.record_function("region"):
            torch.ones(2, requires_grad=True).sum().backward()

    def preexisting():
        started.wait()
        work()
        done.set()

    threads = [threading.Thread(target=preexisting), threading.Thread(target=work)]
    threads[0].start()
    with module.profile(activities=[module.ProfilerActivity.CPU], **options) as prof:
        threads[1].start()
        started.set()
        work()
        done.wait()
        threads[1].join()
    threads[0].join()
    found = prof.events()
    return {name: len({event.thread for event in found if event.name == name}) for name in ("region", "aten::sum")}


def test_a_configuration_records_all_threads_or_those_of_torch_as_it_says():
    for every, count in ((True, 3), (False, 1)):
        config = experimental(profile_all_threads=every)
        found = [threads_recorded(module, experimental_config=config) for module in (theirs, gs)]
        assert found[0] == found[1] == {"region": count, "aten::sum": count}


def test_without_a_configuration_all_threads_are_recorded():
    assert threads_recorded(gs) == {"region": 3, "aten::sum": 3}


def test_that_a_configuration_leaves_out_threads_is_noted():
    prof = record(gs, experimental_config=experimental())
    assert any("profile_all_threads is False" in note for note in prof.audit().remarks)


def test_what_autograd_does_on_another_thread_is_recorded_where_threads_are_left_out():
    with gs.profile(activities=[gs.ProfilerActivity.CPU], experimental_config=experimental()) as prof:
        torch.ones(2, requires_grad=True).sum().backward()
    assert any("SumBackward0" in event.name for event in prof.events())


def test_a_window_after_one_that_left_out_threads_has_all():
    threads_recorded(gs, experimental_config=experimental())
    assert threads_recorded(gs) == {"region": 3, "aten::sum": 3}


@pytest.mark.filterwarnings("ignore:Profiler won't be using warmup")
def test_steps_begin_in_the_function_that_they_end_in_where_a_configuration_asks_for_it(tmp_path):
    def step_at_the_end(prof):
        torch.ones(2)
        prof.step()

    nested = []
    for module in (theirs, gs):
        for asked in (False, True):
            activities = [module.ProfilerActivity.CPU]
            schedule = module.schedule(wait=0, warmup=0, active=3, repeat=1)
            config = experimental(adjust_profiler_step=asked)
            with module.profile(
                activities=activities, schedule=schedule, with_stack=True, experimental_config=config
            ) as prof:
                for _ in range(3):
                    step_at_the_end(prof)
            prof.export_chrome_trace(str(tmp_path / "trace.json"))
            traced = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
            steps = [event for event in traced if event["name"].startswith("ProfilerStep#")]
            functions = [event for event in traced if event["name"].endswith(": step_at_the_end")]
            begin = zip(sorted(e["ts"] for e in steps), sorted(e["ts"] for e in functions), strict=True)
            nested.append([step > function for step, function in begin])
    assert nested == [[False] * 3, [True] * 3] * 2


def test_the_switch_of_torch_has_waits_recorded(monkeypatch):
    asked = []
    monkeypatch.setattr(windows._core, "Session", lambda **options: asked.append(options["sync"]) or Session(**options))
    torch._C._profiler._set_cuda_sync_enabled_val(True)
    try:
        with gs.profile(activities=[gs.ProfilerActivity.CPU, gs.ProfilerActivity.CUDA]):
            pass
    finally:
        torch._C._profiler._set_cuda_sync_enabled_val(False)
    with gs.profile(activities=[gs.ProfilerActivity.CPU, gs.ProfilerActivity.CUDA]):
        pass
    assert asked == [True, False]


# -- arguments of regions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [True, False])
def test_a_region_with_text_has_one_input_as_in_torch(shapes):
    given = []
    for module in (theirs, gs):
        with module.profile(activities=[module.ProfilerActivity.CPU], record_shapes=shapes) as prof:
            with module.record_function("with", "1, 2, 3"):
                pass
            with module.record_function("without"):
                pass
        given.append(
            [
                (event.input_shapes, event.input_dtypes, event.concrete_inputs, event.structured_input_strides)
                for event in prof.events()
            ]
        )
    assert given[1] == given[0]
    assert given[0][0][0] == ([[]] if shapes else [])


def test_a_recording_for_its_trace_alone_gives_no_events():
    for module in (theirs, gs):
        prof = record(module, experimental_config=experimental(trace_only=True))
        with pytest.raises(RuntimeError, match="trace_only"):
            prof.events()


def test_stacks_take_precedence_over_a_recording_for_its_trace_alone():
    for module in (theirs, gs):
        activities = [module.ProfilerActivity.CPU]
        with pytest.warns(UserWarning, match="trace_only"):
            prof = module.profile(
                activities=activities, with_stack=True, experimental_config=experimental(trace_only=True)
            )
        with prof:
            torch.ones(2)
        assert prof.events()


def test_the_switch_of_torch_leaves_arrows_to_backward_operators_out(tmp_path):
    torch._C._profiler._set_fwd_bwd_enabled_val(False)
    try:
        prof = record(gs)
    finally:
        torch._C._profiler._set_fwd_bwd_enabled_val(True)
    prof.export_chrome_trace(tmp_path / "a.json")
    rows = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert [row for row in rows if row.get("cat") == "fwdbwd"] == []
    assert {event.flow_id for event in prof.events()} == {0}


# -- what torch is told ------------------------------------------------------------------------------------------------


def profiler_types(module):
    kind = torch._C._autograd._profiler_type
    seen = [kind()]
    for options in ({}, {"record_shapes": True, "profile_memory": True}):
        with module.profile(activities=[module.ProfilerActivity.CPU], **options):
            seen.append(kind())
        seen.append(kind())
    return seen


def test_the_active_profiler_is_of_the_kind_of_torchs():
    assert profiler_types(gs) == profiler_types(theirs)


def test_numbers_of_records_are_unique_among_recordings():
    seen = set()
    for _ in range(3):
        results = record(gs).profiler.kineto_results
        numbers = [event.correlation_id() for event in results.events()]
        assert numbers == [event.correlation_id() for event in results.events()]
        assert not seen & set(numbers)
        assert min(numbers) > 0
        assert max(numbers) < 2**32 - 1
        seen |= set(numbers)


def test_what_the_profiler_took_itself_is_known_under_torchs_names():
    with gs.profile() as prof:
        torch.ones(2)
    stats = prof._stats()
    assert set(vars(stats)) == set(vars(torch.autograd.profiler._ProfilerStats()))
    assert stats.number_of_events == stats.function_events_build_tree_call_duration_us == 0
    assert stats.number_of_events + len(prof.events()) == stats.number_of_events
    assert min(vars(stats).values()) > 0


def test_members_of_device_types_differ_as_torchs_do():
    ours, of_torch = gs.DeviceType, torch.autograd.DeviceType
    assert [kind for kind in ours if kind != of_torch.CUDA] == [kind for kind in ours if kind is not ours.CUDA]
