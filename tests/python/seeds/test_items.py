# SPDX-License-Identifier: Apache-2.0
"""Where each item of common profiling guides is: a test that shows it, a heading of a page, or a public name."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from fakes import seeds, seeds_cuda, seeds_measuring, seeds_memory

REPOSITORY = Path(__file__).resolve().parents[3]
MEASURING = "tests/python/seeds/test_seed_measuring.py"
PROGRAMS = "tests/python/seeds/test_seed_programs.py"
MEMORY = "tests/python/seeds/test_seed_memory.py"
ON_GPU = "tests/gpu/test_seeds.py"
RULES = "tests/python/diagnosis/test_rules.py"
DIAGNOSE = "tests/python/diagnosis/test_diagnose.py"
ADVICE = f"{RULES}::test_the_advice_names_what_removes_the_cause"
GUIDES = "docs/coming_from/profiling_guides.md"
METHODS, SYMPTOMS, PITFALLS = (f"{GUIDES}#{heading}" for heading in ("methods", "symptoms", "pitfalls"))

ITEMS = [
    # -- timing
    ("calls on a GPU return at once; time.time() times the launch", PITFALLS),
    ("synchronize before and after a timed region", f"{MEASURING}::test_a_program_that_measures_runs_in_a_profile"),
    ("the equivalent of CuPy: wait for a stream or a device", "gpuscope.synchronize"),
    ("CUDA events", "gpuscope.Event"),
    ("time a block or a function", "tests/python/timing/test_timer.py::test_gpu_time_is_the_time_between_the_events"),
    ("a timer as a decorator", "tests/python/timing/test_timer.py::test_a_decorated_function_is_timed_at_each_call"),
    (
        "warm-up is left out",
        "tests/python/benchmarking/test_benchmarks.py::test_what_changes_while_it_warms_up_is_left_out",
    ),
    (
        "the first iterations are slower",
        "tests/python/benchmarking/test_latency.py::test_a_latency_that_falls_asks_for_a_longer_warm_up",
    ),
    ("median, std, min, max, P95, P99", f"{MEASURING}::test_the_first_line_of_a_latency_is_that_of_the_program"),
    ("a robust benchmark", "gpuscope.benchmark"),
    ("CPU against GPU, by operation and size", "gpuscope.crossover"),
    ("waiting in the loop costs throughput", f"{RULES}::synchronized_each_layer"),
    # -- baseline
    ("throughput of training", f"{MEASURING}::test_the_throughput_is_that_of_the_program"),
    ("latency of inference", f"{MEASURING}::test_the_latencies_are_those_of_the_program"),
    ("peak memory of a step", f"{ON_GPU}::test_the_peak_of_memory_is_that_of_the_program"),
    ("document the conditions", "gpuscope.environment"),
    ("compare before and after", "gpuscope.diff"),
    ("compare implementations", "gpuscope.compare"),
    ("phases in order: baseline, kind, component, operation", "docs/tutorials/slow_to_fast.md#phase-1-the-baseline"),
    # -- the kind of bottleneck
    ("utilization and memory at this moment", f"{ON_GPU}::test_the_snapshot_of_a_gpu_is_that_of_the_program"),
    ("nvidia-smi, dmon, watch, nvitop", "docs/coming_from/nvitop.md#nvitop-nvidia-smi-dcgm-exporter"),
    ("a monitor that logs to CSV", f"{MEASURING}::test_a_log_begins_with_the_columns_of_the_program"),
    ("data loading against computing", f"{MEASURING}::test_the_wait_for_data_is_the_loading_time_of_the_program"),
    ("the loader alone", f"{MEASURING}::test_the_figures_of_a_loader_are_those_of_the_program"),
    ("the loader by number of workers", f"{MEASURING}::test_a_program_runs_with_the_function_of_gpuscope"),
    (
        "how long the GPU idles for a slow loader",
        "tests/python/benchmarking/test_dataloader.py::test_a_step_tells_how_long_the_gpu_would_wait",
    ),
    ("CPU-bound, GPU-bound, memory-bound, I/O-bound", "gpuscope.profile.diagnose"),
    ("utilization below 70 %, above 90 %, between", SYMPTOMS),
    ("bandwidth of operations", "gpuscope.profile.roofline"),
    # -- component
    ("a schedule: wait, warm-up, active, repeat", f"{PROGRAMS}::test_a_schedule_records_the_steps_that_it_names"),
    ("a handler that writes a trace for TensorBoard", "gpuscope.tensorboard_trace_handler"),
    ("phases: transfer, forward, backward, optimizer", f"{ON_GPU}::test_the_phases_of_a_training_have_their_gpu_time"),
    ("phases timed by events", f"{ON_GPU}::test_the_time_of_a_phase_is_that_of_the_program"),
    ("markers in the trace", f"{PROGRAMS}::test_the_region_of_a_program_is_a_row_of_its_table"),
    ("modules", "gpuscope.profile.modules"),
    # -- operation
    ("operations by GPU time", f"{ON_GPU}::test_the_busiest_work_on_the_gpu_is_named"),
    ("operations by memory and by shape", f"{MEASURING}::test_a_program_for_a_gpu_runs_without_one"),
    ("columns: Self CPU, CPU total, Self CUDA, number of calls", f"{GUIDES}#the-table"),
    ("the trace view: gaps, thin bars, overlap", f"{GUIDES}#the-trace-view"),
    ("a trace for Chrome", f"{ON_GPU}::test_a_program_writes_its_trace"),
    ("nsys", "docs/coming_from/nsys.md#nsight-systems"),
    ("TensorBoard", "docs/coming_from/tensorboard.md#tensorboards-profiler-plugin"),
    # -- patterns
    ("aten::copy_ of 40 %", f"{RULES}::pageable_copies"),
    ("copies that do not overlap", f"{RULES}::copies_on_the_stream_that_computes"),
    ("cudaLaunchKernel takes long", f"{RULES}::small_kernels_launched_one_by_one"),
    ("many small operations", f"{RULES}::pointwise_operators_in_a_row"),
    ("convolutions dominate", f"{DIAGNOSE}::test_a_gpu_that_works_is_told_what_shortens_its_limit"),
    ("matrix products dominate", f"{DIAGNOSE}::test_a_gpu_that_works_is_fine_and_the_limit_is_named"),
    ("high CPU time, low CUDA time", f"{RULES}::a_loop_of_python"),
    ("cudaMalloc in the steps", f"{RULES}::memory_given_back_each_step"),
    ("the GPU is at 0 % while it runs", SYMPTOMS),
    ("utilization goes up and down", f"{RULES}::slow_workers"),
    ("much memory, low utilization", SYMPTOMS),
    ("memory grows", f"{MEASURING}::test_losses_that_are_kept_are_found"),
    ("throttling", f"{RULES}::a_gpu_that_is_too_hot"),
    ("a lowered power limit", f"{RULES}::a_limit_of_power_that_was_lowered"),
    ("the batch is too small", f"{RULES}::a_batch_of_four"),
    # -- advice
    ("more workers", f"{RULES}::workers_that_always_work"),
    ("pin_memory", f"{RULES}::test_the_advice_on_pageable_copies_is_of_their_way"),
    ("persistent_workers", f"{RULES}::workers_that_are_begun_anew_for_each_epoch"),
    ("prefetch_factor", ADVICE),
    ("a dataset in memory", ADVICE),
    ("faster storage", ADVICE),
    ("augmentation and preprocessing on the GPU", ADVICE),
    ("mixed precision, TF32", f"{RULES}::float32_products"),
    ("sizes in multiples of 8", ADVICE),
    ("channels_last, no needless layout changes", f"{RULES}::changes_of_layout"),
    ("convolutions in 16 bits", f"{RULES}::test_the_advice_on_convolutions_in_float32_is_autocast_in_channels_last"),
    (
        "depthwise separable convolutions, cudnn.benchmark",
        f"{DIAGNOSE}::test_a_gpu_that_works_is_told_what_shortens_its_limit",
    ),
    ("other batch sizes", "gpuscope.sweep"),
    ("torch.compile, fusing", f"{RULES}::pointwise_operators_in_a_row"),
    ("in-place operations, smaller intermediates, tiles", ADVICE),
    ("fewer copies between host and GPU", f"{RULES}::a_round_trip"),
    ("gradient checkpointing, gradient accumulation", ADVICE),
    ("cooling, power limit", ADVICE),
    # -- memory
    ("allocated and reserved by phase", f"{MEMORY}::test_every_phase_of_a_training_prints_its_line"),
    (
        "the peak by phase",
        "tests/gpu/test_memory_stages_on_gpu.py::test_by_reports_the_programs_own_peaks_stay_its_own",
    ),
    ("a summary of memory", "gpuscope.memory_summary"),
    ("a report of memory", "gpuscope.memory_snapshot"),
    ("a snapshot file for memory_viz", "gpuscope.dump_memory_snapshot"),
    ("fragmentation", "tests/python/memory/test_fragmentation.py::test_gaps_call_for_segments_that_grow"),
    (
        "an unused cache",
        "tests/python/memory/test_fragmentation.py::test_unused_segments_after_a_peak_call_for_emptying_the_cache",
    ),
    ("parameters, gradients, optimizer state, activations", "gpuscope.peak_memory"),
    ("leaks", "gpuscope.find_leaks"),
    ("the largest batch", f"{ON_GPU}::test_the_largest_batch_is_that_of_the_program"),
    # -- mistakes and rules
    ("too many iterations", PITFALLS),
    ("no warm-up", PITFALLS),
    ("synchronization in the loop", PITFALLS),
    ("wrong granularity", f"{PROGRAMS}::test_a_program_runs_and_leaves_a_complete_recording"),
    ("memory ignored", PITFALLS),
    (
        "the wrong mode",
        "tests/python/seeds/test_seed_measuring.py::test_a_diagnosis_names_training_in_evaluation_mode",
    ),
    ("red flags and excuses", f"{GUIDES}#red-flags-and-excuses"),
    ("the checklist", f"{GUIDES}#before-you-say-profiled"),
]


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def is_there(place: str) -> bool:
    if "::" in place:
        path, name = place.split("::")
        return re.search(rf"^ *def {name}\(", (REPOSITORY / path).read_text(encoding="utf-8"), re.MULTILINE) is not None
    if "#" in place:
        path, anchor = place.split("#")
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        return anchor in map(slug, re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    module, *names = place.split(".")
    found = importlib.import_module(module)
    for name in names:
        found = getattr(found, name)
    return callable(found)


@pytest.mark.parametrize(("item", "place"), ITEMS, ids=[item for item, _ in ITEMS])
def test_an_item_of_the_guides_has_its_place(item, place):
    assert is_there(place), f"{item}: {place} does not exist"


def test_each_item_is_listed_once():
    items = [item for item, _ in ITEMS]
    assert len(set(items)) == len(items)


def test_every_program_of_the_guides_is_run():
    programs = (seeds.ANYWHERE, seeds_cuda.ON_A_GPU, seeds_measuring.TIMINGS, seeds_memory.THEIR_OWN)
    assert [len(each) for each in programs] == [9, 9, 20, 7]


def test_findings_that_pages_name_exist():
    from gpuscope.diagnosis.diagnose import known_findings

    pages = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs").rglob("*.md")]
    named = {name for text in pages for name in re.findall(r"\bR\d\d\b", text)}
    assert named - set(known_findings()) == set()
