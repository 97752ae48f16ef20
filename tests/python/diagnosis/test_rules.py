# SPDX-License-Identifier: Apache-2.0
"""Each rule on a program that has its fault, where it comes first with the right place, and on one that has not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.loops import ADD, PRODUCT, SMS, Loop
from fakes.recordings import make_trace
from fakes.schemas import offences
from gpuscope._core import FunctionKind, RegionKind
from gpuscope.diagnosis import diagnose
from gpuscope.diagnosis.evidence import QUERIES
from gpuscope.diagnosis.rules import RULES
from gpuscope.exporters.sql import Database

MIB = 1 << 20
NHWC = "void cudnn::engines_precompiled::nchwToNhwcKernel<float>"


def compute(loop, count=10, gpu=100.0, **variant):
    """Kernels that keep the GPU busy while the host is ahead."""
    with loop.at("train.py", 20):
        for _ in range(count):
            loop.launch(gpu=gpu, **variant)


@dataclass
class Fault:
    """A step of a program with a fault and of one without, the place that is to be named, and the share lost."""

    id: str
    fault: Callable[[Loop], None]
    clean: Callable[[Loop], None]
    where: str
    share: tuple[float, float]
    make: Callable[[], Loop] = Loop


FAULTS: list[Fault] = []


def planted(rule, where, low, high, make=Loop):
    """Registers a function that takes whether the fault is there."""

    def register(step):
        name = f"{rule} {step.__name__}"
        FAULTS.append(
            pytest.param(
                Fault(rule, lambda loop: step(loop, True), lambda loop: step(loop, False), where, (low, high), make),
                id=name,
            )
        )
        return step

    return register


@planted("R02", "train.py:48", 0.45, 0.55)
def loader_in_the_training_thread(loop, wrong):
    with loop.at("train.py", 48), loop.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
        loop.work(1000 if wrong else 1)
    compute(loop)
    loop.wait()


@planted("R02", "train.py:7", 0.45, 0.55)
def a_collate_function_in_the_training_thread(loop, wrong):
    since = loop.now
    with (
        loop.at("train.py", 48),
        loop.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        loop.at("/usr/lib/python3.12/site-packages/torch/utils/data/dataloader.py", 733, "__next__"),
        loop.at("train.py", 7, "collate"),
    ):
        loop.work(1000 if wrong else 1)
        loop.sampled(since, 1.0)
    compute(loop)
    loop.wait()


@planted("R01", "train.py:48", 0.45, 0.55)
def slow_workers(loop, wrong):
    with loop.at("train.py", 48), loop.region("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        loop.work(1000 if wrong else 1)
    compute(loop)
    loop.wait()


@planted("R01", "fetch_batch", 0.45, 0.55)
def a_region_that_the_program_named(loop, wrong):
    with loop.region("fetch_batch", RegionKind.REGION):
        loop.work(1000 if wrong else 1)
    compute(loop)
    loop.wait()


NEXT_BATCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def next_batch(loop, us):
    with loop.at("train.py", 48), loop.region(NEXT_BATCH):
        loop.work(us)


@planted("R03", "train.py:48", 0.45, 0.55)
def workers_that_always_work(loop, wrong):
    since = loop.now
    next_batch(loop, 1000 if wrong else 1)
    compute(loop)
    loop.wait()
    loop.process(since, 0.95)
    loop.container(since)


@planted("R04", "train.py:48", 0.45, 0.55)
def workers_that_read_a_slow_disk(loop, wrong):
    since = loop.now
    next_batch(loop, 1000 if wrong else 1)
    compute(loop)
    loop.wait()
    loop.process(since, 0.1, read=(1 << 20) if wrong else 0)
    loop.container(since, io_wait=700 if wrong else 0)


@planted("R06", "collate.py:7", 0.45, 0.55)
def batches_put_together_by_one_thread(loop, wrong):
    since = loop.now
    next_batch(loop, 1000 if wrong else 1)
    with loop.at("collate.py", 7):
        loop.sampled(since, 1.0, thread=1)
    compute(loop)
    loop.wait()
    loop.process(since, 0.2)
    loop.container(since)


@planted("R08", "train.py:48", 0.45, 0.55)
def workers_without_a_cpu(loop, wrong):
    since = loop.now
    next_batch(loop, 1000 if wrong else 1)
    compute(loop)
    loop.wait()
    loop.process(since, 0.5, wait=0.5 if wrong else 0.0)


@planted("R08", "", 0.45, 0.55)
def more_threads_than_cpus(loop, wrong):
    compute(loop)
    loop.wait()
    loop.wait_for_cpu(1000 if wrong else 10)


@planted("R07", "", 0.45, 0.55)
def a_limit_on_cpu_time(loop, wrong):
    since = loop.now
    compute(loop)
    loop.wait()
    loop.wait_for_cpu(1000 if wrong else 10)
    loop.container(since, throttled=1000 if wrong else 0)


@planted("R25", "hashes.py:5", 0.45, 0.55)
def another_thread_holds_the_gil(loop, wrong):
    compute(loop)
    loop.wait()
    since = loop.now
    loop.work(1000 if wrong else 1)
    with loop.at("train.py", 50):
        loop.sampled(since, 0.0)
    with loop.at("hashes.py", 5):
        loop.sampled(since, 1.0, thread=1)


@planted("R09", "train.py:51", 0.2, 0.3)
def pageable_copies(loop, wrong):
    with loop.at("train.py", 51):
        loop.copy(4 * MIB, 400 if wrong else 4, pinned=not wrong)
    compute(loop)


@planted("R10", "train.py:52", 0.25, 0.40)
def pinned_copies_that_are_waited_for(loop, wrong):
    with loop.at("train.py", 52):
        loop.copy(4 * MIB, 5, pinned=True, to_gpu=False)
        if wrong:
            loop.wait()
    loop.work(400)
    compute(loop)


@planted("R11", "train.py:53", 0.08, 0.15)
def many_small_copies(loop, wrong):
    with loop.at("train.py", 53):
        for _ in range(40 if wrong else 1):
            loop.copy(64, 2)
            loop.work(10)
    compute(loop)


@planted("R12", "train.py:54", 0.25, 0.35)
def copies_on_the_stream_that_computes(loop, wrong):
    with loop.at("train.py", 54):
        loop.copy(20 * MIB, 400, pinned=True, stream=7 if wrong else 8)
    compute(loop)


@planted("R13", "train.py:54", 0.30, 0.50)
def a_link_with_a_quarter_of_its_lanes(loop, wrong):
    with loop.at("train.py", 54):
        loop.copy(12 << 20, 1000 if wrong else 250, pinned=True)
    compute(loop)


@planted("R14", "train.py:55", 0.15, 0.35)
def a_round_trip(loop, wrong):
    compute(loop)
    with loop.at("train.py", 55):
        loop.copy(MIB, 150, to_gpu=False, pinned=True)
        if wrong:
            loop.copy(MIB, 150, pinned=True)
    compute(loop, 2)


@planted("R14", "train.py:56", 0.15, 0.40)
def made_on_the_cpu(loop, wrong):
    with loop.at("train.py", 56):
        with loop.region("aten::zeros" if wrong else "aten::view"):
            loop.work(5)
        with loop.region("aten::to"):
            loop.copy(MIB, 300 if wrong else 3, pinned=True)
    compute(loop)


@planted("R15", "train.py:77", 0.15, 0.40)
def a_value_read_each_step(loop, wrong):
    compute(loop)
    if wrong:
        with loop.at("train.py", 77), loop.region("aten::item"), loop.region("aten::_local_scalar_dense"):
            loop.copy(4, 2, to_gpu=False, pinned=True)
            loop.wait()
    loop.work(400)


@planted("R16", "train.py:78", 0.15, 0.40)
def synchronized_each_step(loop, wrong):
    compute(loop)
    if wrong:
        with loop.at("train.py", 78):
            loop.wait()
    loop.work(400)


@planted("R15", "train.py:79", 0.25, 0.45)
def a_value_read_each_layer(loop, wrong):
    for _ in range(60):
        with loop.at("train.py", 20):
            loop.launch(gpu=40, host=8)
        if wrong:
            with loop.at("train.py", 79), loop.region("aten::item"):
                loop.work(6)
                loop.copy(4, 1, to_gpu=False, pinned=True)
                loop.wait()
        loop.work(12)


@planted("R16", "train.py:80", 0.25, 0.45)
def synchronized_each_layer(loop, wrong):
    for _ in range(60):
        with loop.at("train.py", 20):
            loop.launch(gpu=40, host=8)
        if wrong:
            with loop.at("train.py", 80):
                loop.wait()
        loop.work(12)


@planted("R16", "train.py:81", 0.40, 0.55)
def synchronized_each_layer_by_a_slow_host(loop, wrong):
    """From the wait to the next launch it takes longer than it waits; launched at once it would wait all the same."""
    for _ in range(60):
        with loop.at("train.py", 20):
            loop.launch(gpu=20, host=8)
        if wrong:
            with loop.at("train.py", 81):
                loop.wait()
        loop.work(25)


@planted("R17", "train.py:60", 0.15, 0.60)
def memory_given_back_each_step(loop, wrong):
    compute(loop)
    with loop.at("train.py", 60):
        if wrong:
            loop.release(50)
            loop.allocate(400)
    compute(loop, 2)


@planted("R18", "train.py:57", 0.25, 0.35)
def managed_memory(loop, wrong):
    with loop.at("train.py", 57):
        loop.copy(4 * MIB, 400 if wrong else 4, pinned=True)
        row = loop._rows["memcpy"][-1]
        row["source" if wrong else "bytes"] = 5 if wrong else 4096
    compute(loop)


@planted("R19", "train.py:20", 0.60, 0.95)
def small_kernels_launched_one_by_one(loop, wrong):
    compute(loop, 100, 2 if wrong else 60, host=10)


@planted("R19", "train.py:30", 0.30, 0.60)
def graphs_shorter_than_their_launch(loop, wrong):
    with loop.at("train.py", 30):
        loop.graph(10, 5, host=90 if wrong else 10)


@planted("R20", "train.py:21", 0.50, 0.85)
def pointwise_operators_in_a_row(loop, wrong):
    with loop.at("train.py", 21):
        for _ in range(12 if wrong else 1):
            loop.launch(ADD, 50)
    compute(loop, 3)


@planted("R21", "train.py:90", 0.30, 0.95)
def an_optimizer_that_loops_over_tensors(loop, wrong):
    compute(loop, 4)
    with loop.at("train.py", 90), loop.region("Optimizer.step#Adam.step", RegionKind.RANGE):
        for _ in range(80 if wrong else 2):
            loop.launch(ADD if wrong else "void at::native::multi_tensor_apply_kernel", 3 if wrong else 30, 15)


@planted("R22", "train.py:31", 0.20, 0.90)
def kernels_between_graphs(loop, wrong):
    with loop.at("train.py", 30):
        loop.graph(4, 30)
    with loop.at("train.py", 31):
        for _ in range(60 if wrong else 0):
            loop.launch(gpu=3, host=15)
    with loop.at("train.py", 30):
        loop.graph(4, 30)


@planted("R23", "", 0.20, 0.40)
def garbage_collected_each_step(loop, wrong):
    compute(loop)
    loop.wait()
    with loop.function("Garbage collection", FunctionKind.GARBAGE):
        loop.work(500 if wrong else 1)


@planted("R23", "train.py:44", 0.20, 0.40)
def garbage_collected_by_the_program(loop, wrong):
    compute(loop)
    loop.wait()
    since = loop.now
    with loop.function("train.py(43): step"), loop.function("Garbage collection", FunctionKind.GARBAGE):
        loop.work(500 if wrong else 1)
    with loop.at("train.py", 44):
        loop.sampled(since, 1.0)


@planted("R26", "train.py:46", 0.20, 0.40)
def a_checkpoint_of_torch_each_step(loop, wrong):
    compute(loop)
    loop.wait()
    since = loop.now
    with loop.function("train.py(45): step"), loop.function("torch/serialization.py(945): save"):
        loop.work(500 if wrong else 1)
    with loop.at("train.py", 46), loop.at("/usr/lib/python3.12/site-packages/torch/serialization.py", 1004):
        loop.sampled(since, 1.0)


@planted("R24", "train.py:40", 0.40, 0.60)
def a_loop_of_python(loop, wrong):
    with loop.function("train.py(40): augment"):
        loop.work(1000 if wrong else 1)
    compute(loop)
    loop.wait()


def batch_on_the_cpu(loop):
    """Made there by an operator, and copied."""
    since = loop.now
    with loop.at("train.py", 9, "batch"):
        with loop.region("aten::randn"):
            loop.work(300)
        with loop.region("aten::to"):
            loop.copy(MIB, 60, waits=True)
        loop.sampled(since, 1.0, looks=100)


@planted("R24", "train.py:4", 0.50, 0.65)
def data_loaded_before_a_tensor_is_made(loop, wrong):
    since = loop.now
    with loop.at("train.py", 4, "load"):
        loop.work(2000 if wrong else 1)
        loop.sampled(since, 0.0, looks=100)
    batch_on_the_cpu(loop)
    compute(loop)
    loop.wait()


@planted("R26", "train.py:46", 0.65, 0.85)
def a_checkpoint_that_is_mostly_written(loop, wrong):
    since = loop.now
    with loop.function("train.py(45): step"), loop.function("/x/site-packages/library/saving.py(90): save"):
        loop.work(1000 if wrong else 1)
        with loop.function("<built-in method write of _io.FileIO>"):
            loop.work(2000 if wrong else 1)
    with loop.at("train.py", 46):
        loop.sampled(since, 0.9)
    compute(loop)
    loop.wait()


@planted("R26", "train.py:41", 0.20, 0.40)
def a_checkpoint_each_step(loop, wrong):
    compute(loop)
    loop.wait()
    with loop.function("train.py(41): save"), loop.function("<built-in method write of _io.FileIO>"):
        loop.work(500 if wrong else 1)


@planted("R27", "train.py:42", 0.20, 0.40)
def compiled_each_step(loop, wrong):
    compute(loop)
    loop.wait()
    with loop.at("train.py", 42), loop.region("_compile.compile_inner (dynamo_timed)", RegionKind.RANGE):
        loop.work(500 if wrong else 1)


@planted("R27", "train.py:43", 0.20, 0.40)
def code_that_the_driver_loads(loop, wrong):
    compute(loop)
    loop.wait()
    with loop.at("train.py", 43):
        loop.load(500 if wrong else 1)
    compute(loop, 1)


@planted("R29", "nvjet_hsh_128x256", 0.80, 0.95)
def grids_of_eight_blocks(loop, wrong):
    compute(loop, grid_x=8 if wrong else 8 * SMS)


@planted("R30", "nvjet_hsh_128x256", 0.40, 0.55)
def one_block_more_than_fits(loop, wrong):
    compute(loop, grid_x=SMS + 1 if wrong else 2 * SMS, registers=255, block_x=256)


@planted("R31", "nvjet_hsh_128x256", 0.90, 1.0)
def registers_spill(loop, wrong):
    compute(loop, local_bytes=400 if wrong else 0)


@planted("R32", "nvjet_hsh_128x256", 0.45, 0.52)
def blocks_of_33_threads(loop, wrong):
    compute(loop, block_x=33 if wrong else 128)


@planted("R33", "train.py:20", 0.80, 0.90)
def float32_products(loop, wrong):
    compute(loop, name="ampere_sgemm_128x64_tn" if wrong else PRODUCT)


@planted("R34", "train.py:20", 0.90, 1.0)
def sizes_of_4095(loop, wrong):
    with loop.region("aten::mm", shapes="[[4095, 4097], [4097, 4096]]"):
        compute(loop, name=f"cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_tn_align{1 if wrong else 8}")


@planted("R35", "train.py:20", 0.84, 0.88)
def products_in_double_precision(loop, wrong):
    with loop.region("aten::mm", types="['double', 'double']" if wrong else "['float', 'float']"):
        compute(loop)


@planted("R35", "train.py:20", 0.45, 0.52)
def pointwise_in_double_precision(loop, wrong):
    shapes = "[[1000], []]"  # a number of Python is a tensor of float64 without dimensions
    types = "['double', 'double']" if wrong else "['float', 'double']"
    with loop.region("aten::mul", types=types, shapes=shapes):
        compute(loop, name="cunn_SoftMaxForward")


@planted("R35", "train.py:20", 0.95, 1.0, make=lambda: Loop((8, 6)))
def double_precision_without_units_for_it(loop, wrong):
    single = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_stages_32x3_nn"
    compute(loop, name="cutlass_80_simt_dgemm_64x64_8x5_nn_align1" if wrong else single)


@planted("R36", "train.py:22", 0.25, 0.40)
def changes_of_layout(loop, wrong):
    with loop.at("train.py", 22):
        for _ in range(2 if wrong else 0):
            loop.launch(NHWC, 250)
    compute(loop)


@planted("R36", "train.py:23", 0.25, 0.40)
def casts(loop, wrong):
    with loop.at("train.py", 23), loop.region("aten::to"), loop.region("aten::copy_"):
        for _ in range(2 if wrong else 0):
            loop.launch(ADD, 250)
    compute(loop)


@planted("R39", "train.py:24", 0.70, 0.85)
def attention_in_pieces(loop, wrong):
    with loop.at("train.py", 24):
        with loop.region("aten::bmm"):
            loop.launch(gpu=150)
        with loop.region("aten::softmax"), loop.region("aten::_softmax" if wrong else "aten::_log_softmax"):
            loop.launch("cunn_SoftMaxForward", 200)
        with loop.region("aten::bmm"):
            loop.launch(gpu=150)


def counted_kernel(loop, **values):
    """A kernel of 2 ms, and what hardware counters say of it."""
    since = loop.now
    with loop.at("train.py", 27):
        loop.launch("chase_pointers", 2000)
    loop.wait()
    usual = {"DRAM_READ": 5, "DRAM_WRITE": 5, "TENSOR_ACTIVE": 0, "INSTRUCTIONS": 10, "WARPS_ACTIVE": 20}
    loop.counted(since, **(usual | values))


@planted("R37", "train.py:27", 0.90, 1.0)
def kernels_bound_by_memory(loop, wrong):
    counted_kernel(loop, DRAM_READ=50, DRAM_WRITE=40 if wrong else 10, WARPS_ACTIVE=90, INSTRUCTIONS=70)


@planted("R38", "train.py:27", 0.90, 1.0)
def a_kernel_that_waits_for_single_reads(loop, wrong):
    counted_kernel(loop, INSTRUCTIONS=10 if wrong else 70)


@planted("R45", "", 0.25, 0.45)
def another_process_on_the_gpu(loop, wrong):
    """Work is queued and starts 1 ms late, while the GPU is busy."""
    compute(loop, 10, 200)
    since = max(loop._free.values())
    loop._free[7] = since + 1_000_000
    compute(loop, 1)
    loop.wait()
    loop.counted(since + 20_000, SM_ACTIVE=95 if wrong else 0, CONTEXT_SWITCHES=0)


@planted("R05", "train.py:48", 0.30, 0.60)
def workers_that_are_begun_anew_for_each_epoch(loop, wrong):
    since, epoch = loop.now, (loop.turn + 1) // 5
    begins = wrong and (loop.turn + 1) % 5 == 0
    next_batch(loop, 400_000 if begins else 1)
    compute(loop, 10, 10_000)
    loop.wait()
    loop.process(since, 0.5, process=5000 + epoch * wrong)
    loop.container(since)


@planted("R43", "", 0.20, 0.30)
def a_gpu_that_is_too_hot(loop, wrong):
    since = loop.now
    compute(loop)
    loop.wait()
    clock = {"sm_mhz": 1485 if wrong else 1980, "sm_max_mhz": 1980, "throttle_reasons": 0x20 if wrong else 0}
    loop.asked(since, **clock, sw_thermal_slowdown_ns=int(wrong), sw_power_cap_ns=0, hw_thermal_slowdown_ns=0)


@planted("R44", "", 0.20, 0.30)
def a_limit_of_power_that_was_lowered(loop, wrong):
    since = loop.now
    compute(loop)
    loop.wait()
    limits = {"power_limit_mw": 350_000 if wrong else 700_000, "power_limit_default_mw": 700_000}
    loop.asked(since, sm_mhz=1485, sm_max_mhz=1980, **limits, sw_power_cap_ns=1, busy_percent=100, throttle_reasons=4)


@planted("R44", "", 0.20, 0.30)
def a_clock_that_was_set(loop, wrong):
    since = loop.now
    compute(loop)
    loop.wait()
    clocks = {"sm_mhz": 1485, "sm_max_mhz": 1980, "busy_percent": 100, "throttle_reasons": 2 if wrong else 0}
    loop.asked(since, **clocks, sw_power_cap_ns=0)


@planted("R40", "train.py:25", 0.10, 0.60)
def gradients_filled_with_zeros(loop, wrong):
    compute(loop)
    with loop.at("train.py", 25), loop.region("Optimizer.zero_grad#SGD.zero_grad", RegionKind.RANGE):
        for _ in range(20 if wrong else 0):
            loop.fill(20)


@planted("R41", "", 0.50, 0.99)
def a_batch_of_four(loop, wrong):
    loop.held((8 if wrong else 70) << 30)
    compute(loop, 40, 4, host=10, grid_x=16)


@planted("R46", "train.py:26", 0.30, 0.50)
def gradients_reduced_after_the_backward_pass(loop, wrong):
    compute(loop)
    with loop.at("train.py", 26):
        loop.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 700, stream=7 if wrong else 9, grid_x=SMS)


def diagnosis_of(step, make=Loop, count=14):
    loop = make()
    for _ in loop.steps(count):
        step(loop)
    return diagnose(loop.trace())


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("R29", {"grid_x": 1}),
        ("R33", {"name": "ampere_sgemm_128x64_tn"}),
        ("R35", {"name": "dgemm_128x64_tn"}),
        ("R36", {"name": NHWC}),
    ],
)
def test_what_takes_3_percent_is_found_and_what_takes_1_percent_is_not(rule, what):
    def step(loop, share):
        compute(loop, count=10, gpu=100)
        loop.launch(gpu=1000 * share / (1 - share), **what)

    (found,) = diagnosis_of(lambda loop: step(loop, 0.035)).findings
    assert found.id == rule
    assert found.saving == pytest.approx(0.033, abs=0.005)
    assert not diagnosis_of(lambda loop: step(loop, 0.01)).findings


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_comes_first_with_its_place_and_share(fault):
    found = diagnosis_of(fault.fault, fault.make)
    first = found.findings[0]
    assert first.id == fault.id, str(found)
    assert any(fault.where in str(where) for where in first.where) or not fault.where
    low, high = fault.share
    assert low <= first.share <= high
    assert first.advice
    assert first.title in str(found).replace("\n      ", " ") or first.title[:20] in str(found)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_query_of_each_finding_returns_the_rows_behind_its_figures(fault):
    loop = fault.make()
    for _ in loop.steps(14):
        fault.fault(loop)
    trace = loop.trace()
    database = Database(trace)
    for finding in diagnose(trace):
        rows = database.run(finding.query).rows
        assert rows, f"{finding.id}: {finding.query}"
        assert any(value is not None for value in rows[0]), f"{finding.id}: {finding.query}"


@pytest.mark.parametrize("fault", FAULTS)
def test_the_json_of_its_diagnosis_fits_the_schema(fault):
    assert offences("diagnosis", diagnosis_of(fault.fault, fault.make)) == []


def test_each_rule_has_a_query():
    assert {rule.id for rule in RULES} == set(QUERIES)


@pytest.mark.parametrize("fault", FAULTS)
def test_its_clean_counterpart_has_it_not(fault):
    found = diagnosis_of(fault.clean, fault.make)
    assert found.breakdown is not None
    assert fault.id not in [each.id for each in found if each.severity != "info"], str(found)


# Programs whose mended ones do the same work on the same machine. Of others the kernels are as long, or gone as well.
SAME_WORK = (
    *("R01", "R02", "R03", "R04", "R06", "R07", "R08", "R10", "R11", "R12", "R13", "R15", "R16", "R17", "R18", "R20"),
    *("R23", "R24", "R25", "R26", "R27", "R36", "R40", "R46"),
)


@pytest.mark.parametrize("fault", [each for each in FAULTS if each.values[0].id in SAME_WORK])
def test_the_saving_is_what_the_mended_program_saves(fault):
    found, mended = (diagnosis_of(each, fault.make) for each in (fault.fault, fault.clean))
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    assert found.findings[0].saving == pytest.approx(saved, rel=0.1)
    assert found.findings[0].saving is not None


@pytest.mark.parametrize(
    ("rule", "share", "what"),
    [
        ("R31", 1, {"local_bytes": 64}),
        ("R32", 1 - 33 / 64, {"block_x": 33}),
        ("R33", 1 - 1 / 7.4, {"name": "ampere_sgemm_128x64_tn"}),
        ("R34", 1, {"name": "cutlass_bf16_align1"}),
        ("R46", 1, {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}),
    ],
)
def test_kernels_of_several_streams_at_once_take_their_time_once(rule, share, what):
    def step(loop):
        for stream in (7, 8, 9) * 10:
            loop.launch(host=1, stream=stream, **what)

    found = next(each for each in diagnosis_of(step) if each.id == rule)
    assert found.share == pytest.approx(share, abs=0.03)
    assert found.share <= 1


@pytest.mark.parametrize(
    ("rule", "held_up"), [("R08", lambda loop: loop.wait_for_cpu(300)), ("R24", lambda loop: loop.work(300))]
)
def test_a_wait_for_data_is_not_saved_with_what_holds_the_host_up_after_it(rule, held_up):
    def step(loop, wrong=True):
        with loop.region("load", RegionKind.REGION):
            loop.work(200)
        if wrong:
            held_up(loop)
        compute(loop, 10, 20)

    found, mended = diagnosis_of(step), diagnosis_of(lambda loop: step(loop, wrong=False))
    assert [each.id for each in found.findings] == [rule, "R01"]
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    assert found.findings[0].saving == pytest.approx(saved, rel=0.05)


def test_what_is_waited_for_before_a_copy_is_not_saved_with_it():
    def step(loop, made=True):
        with loop.region("load", RegionKind.REGION):
            loop.work(300)
        if made:
            with loop.region("aten::zeros"):
                loop.work(300)
            with loop.region("aten::to"):
                loop.copy(4 * MIB, 330, waits=True)
        compute(loop, 10, 50)
        loop.wait()

    found, mended = diagnosis_of(step), diagnosis_of(lambda loop: step(loop, made=False))
    assert [each.id for each in found.findings] == ["R14", "R01"]
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    assert found.findings[0].saving == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize("rule", ["R09", "R14"])
def test_a_copy_that_its_framework_waits_for_keeps_the_host_from_being_ahead(rule):
    """Without, the GPU still works while the host does what it does after the copy."""

    def step(loop, wrong):
        with loop.region("aten::zeros" if rule == "R14" else "aten::view"):
            loop.work(5)
        with loop.region("aten::to"):
            if wrong:
                loop.copy(4 * MIB, 300, waits=True)
                loop.wait()
            elif rule == "R09":
                loop.copy(4 * MIB, 87, pinned=True)
        loop.work(200)
        compute(loop, 10, 200)

    found, mended = (diagnosis_of(lambda loop: step(loop, wrong)) for wrong in (True, False))  # noqa: B023 - at once
    assert found.findings[0].id == rule
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    assert found.findings[0].saving == pytest.approx(saved, rel=0.05)


def test_what_reading_values_saves_at_most_has_their_copies():
    """They take the GPU 5 us each."""

    def step(loop, wrong=True):
        for _ in range(10):
            compute(loop, 1, 1000)
            with contextlib.ExitStack() as inside:
                if wrong:
                    inside.enter_context(loop.at("train.py", 77))
                    inside.enter_context(loop.region("aten::item"))
                    loop.copy(4, 5, to_gpu=False, pinned=True)
                    loop.wait()

    found, mended = diagnosis_of(step), diagnosis_of(lambda loop: step(loop, wrong=False))
    (finding,) = (each for each in found if each.id == "R15")
    assert finding.share >= 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns - 1e-3


@pytest.mark.parametrize("launch", [lambda loop: loop.launch(gpu=1000), lambda loop: loop.graph(50, 20)])
def test_code_before_the_only_launch_of_a_step_is_no_slow_launch(launch):
    def step(loop):
        with loop.at("train.py", 20):
            loop.work(20_000)
            launch(loop)
        loop.wait()

    found = diagnosis_of(step)
    assert "R19" not in [each.id for each in found]
    assert (found.findings[0].id, str(found.findings[0].where[0])) == ("R24", "train.py:20")


def test_waits_are_counted_that_lie_in_the_steps():
    def step(loop):
        loop.work(2000)
        compute(loop)
        with loop.at("train.py", 31):
            loop.wait()

    (finding,) = (each for each in diagnosis_of(step) if each.id == "R16")
    assert finding.evidence[""] == "1.00 times a step"


@pytest.mark.parametrize("waits", [True, False])
def test_the_wait_for_data_is_that_of_the_steps(waits):
    loop = Loop()
    for _ in loop.steps(14, waits=waits):
        with loop.region("load", RegionKind.REGION):
            loop.work(2000)
        compute(loop)
    (finding,) = (each for each in diagnose(loop.trace()) if each.id == "R01")
    assert finding.evidence["the wait takes"] == "2.00 ms a step"


@pytest.mark.parametrize(("to_gpu", "advice"), [(True, "DataLoader"), (False, ".copy_(tensor, non_blocking=True)")])
def test_the_advice_on_pageable_copies_is_of_their_way(to_gpu, advice):
    def step(loop):
        compute(loop)
        loop.copy(8 * MIB, 700, to_gpu=to_gpu, waits=True)

    (finding,) = (each for each in diagnosis_of(step) if each.id == "R09")
    assert advice in finding.advice


def memory_that_is_full(loop, wrong):
    loop.held((78 if wrong else 8) << 30)
    compute(loop)


@pytest.mark.parametrize(
    ("step", "rule", "advice"),
    [
        (slow_workers, "R01", "up to one per CPU"),
        (slow_workers, "R01", "prefetch_factor"),
        (loader_in_the_training_thread, "R02", "keep a small dataset in memory"),
        (workers_that_always_work, "R03", "augment batches on the GPU (kornia, torchvision.transforms.v2)"),
        (workers_that_read_a_slow_disk, "R04", "local SSD"),
        (workers_without_a_cpu, "R08", "augment batches on the GPU"),
        (a_loop_of_python, "R24", "do it on the GPU"),
        (sizes_of_4095, "R34", "at least of 8 in 16 bits"),
        (kernels_bound_by_memory, "R37", "in-place operations and smaller intermediates"),
        (memory_that_is_full, "R42", "mixed precision, or a smaller batch with gradient accumulation"),
        (a_gpu_that_is_too_hot, "R43", "83 C"),
        (a_gpu_that_is_too_hot, "R43", "nvidia-smi -pl"),
    ],
)
def test_the_advice_names_what_removes_the_cause(step, rule, advice):
    (finding,) = (each for each in diagnosis_of(lambda loop: step(loop, True)) if each.id == rule)
    assert advice in finding.advice


@pytest.mark.parametrize("step", [workers_that_always_work, workers_without_a_cpu])
def test_without_a_gpu_no_advice_moves_work_to_it(step):
    def no_gpu(loop):
        since = loop.now
        next_batch(loop, 1000)
        loop.process(since, 0.5 if step is workers_without_a_cpu else 0.95, wait=0.5 * (step is workers_without_a_cpu))
        loop.container(since)

    found = [each for each in diagnosis_of(no_gpu) if each.id in ("R03", "R08")]
    assert len(found) == 1
    assert "GPU" not in found[0].advice


@pytest.mark.parametrize(
    ("capability", "advice"),
    [
        ((9, 0), "torch.autocast with bfloat16 and memory_format"),
        ((7, 5), "torch.autocast with float16 and memory_format"),
    ],
)
@pytest.mark.parametrize(
    ("region", "kernel"), [("aten::cudnn_convolution", "ampere_sgemm_128x64_tn"), ("f", "implicit_convolve_sgemm")]
)
def test_the_advice_on_convolutions_in_float32_is_autocast_in_channels_last(region, kernel, capability, advice):
    def step(loop):
        with loop.region(region):
            compute(loop, name=kernel)

    (finding,) = (each for each in diagnosis_of(step, lambda: Loop(capability)) if each.id == "R33")
    assert finding.advice.startswith(advice)


def test_a_gpu_that_is_too_hot_has_its_temperature():
    def step(loop):
        since = loop.now
        compute(loop)
        loop.wait()
        loop.asked(since, sm_mhz=1485, sm_max_mhz=1980, temperature_c=87, sw_thermal_slowdown_ns=1)

    (finding,) = (each for each in diagnosis_of(step) if each.id == "R43")
    assert finding.evidence["temperature"] == "up to 87 C"


def test_memory_that_is_nearly_full_is_told_without_a_saving():
    def step(loop):
        loop.held(78 << 30)
        compute(loop)

    (finding,) = diagnosis_of(step).findings
    assert (finding.id, finding.saving) == ("R42", None)
    assert finding.evidence["peak"] == "97.5 % of the GPU's memory"


@pytest.mark.parametrize(
    ("count", "said"), [(1, "1 allocation, of up to 1.00 GiB"), (2, "2 allocations, of up to 1.00 GiB")]
)
def test_allocations_that_failed_are_counted(count, said):
    loop = Loop()
    for _ in loop.steps():
        compute(loop)
    tables = {**loop.tables(), "failed_allocation": {"start_ns": [loop.now] * count, "bytes": [1 << 30] * count}}
    (finding,) = diagnose(make_trace(tables, info=dict(loop.trace().info))).findings
    assert (finding.id, finding.evidence) == ("R42", {"failed": said})


def test_communication_on_few_multiprocessors_is_no_small_grid():
    def step(loop, grid_x):
        compute(loop)
        loop.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 400, grid_x=8)
        loop.launch("softmax_kernel", 400, grid_x=grid_x)

    def small(grid_x):
        return [each for each in diagnosis_of(lambda loop: step(loop, grid_x)) if each.id == "R29"]

    assert small(SMS) == []
    (found,) = small(SMS // 2)
    assert [where.kernel for where in found.where if where.kernel] == ["softmax_kernel"]
    assert found.evidence["kernels fill"] == "86 % of 132 multiprocessors"


def test_a_gpu_without_work_is_told():
    loop = Loop()
    for _ in loop.steps():
        compute(loop)
    tables = loop.tables()
    tables["device"] = {name: values * 2 for name, values in tables["device"].items()}
    tables["device"]["ordinal"] = [0, 1]
    found = diagnose(make_trace(tables, info=dict(loop.trace().info)))
    (finding,) = found.findings
    assert (finding.id, finding.evidence["GPU 1"]) == ("R47", "no work")
    of_a_job = {**loop.trace().info, "process.rank": "0", "process.world_size": "2"}
    assert diagnose(make_trace(tables, info=of_a_job)).verdict == "fine", "another process of the job has it"


@pytest.mark.parametrize(("ranks", "points"), [("1", False), ("2", True)])
def test_communication_of_a_rank_points_to_the_answer_for_all_ranks(ranks, points):
    loop = Loop()
    for _ in loop.steps():
        gradients_reduced_after_the_backward_pass(loop, True)
    tables, info = loop.tables(), {**loop.trace().info, "process.world_size": ranks}
    found = next(each for each in diagnose(make_trace(tables, info=info)) if each.id == "R46")
    assert ("gpuscope fleet" in found.advice) == points


@pytest.mark.parametrize("ordinals", [[1], [0, 1]])
def test_gpus_without_work_in_files_of_other_tools_are_nobodys_fault(ordinals):
    loop = Loop()
    for _ in loop.steps():
        compute(loop)
    tables = loop.tables()
    tables["device"] = {name: values * len(ordinals) for name, values in tables["device"].items()}
    tables["device"]["ordinal"] = ordinals
    info = {**loop.trace().info, "audit.overhead_source": "not recorded by torch.profiler"}
    assert diagnose(make_trace(tables, info=info)).verdict == "fine"


def test_idle_time_of_few_steps_is_in_the_summary():
    loop = Loop()
    for number in loop.steps(13):
        compute(loop)
        if number == 7:
            loop.wait()
            loop.work(1100)
    found = diagnose(loop.trace())
    assert found.verdict == "fine"
    assert "no rule has a finding in the rest, most of which is other program code (" in found.summary


@pytest.mark.parametrize(("pause", "expected"), [(3000, ["R48"]), (0, [])])
def test_steps_that_are_slow_now_and_then_are_told_with_what_makes_them_so(pause, expected):
    loop = Loop()
    for number in loop.steps(24):
        compute(loop)
        loop.wait()
        with loop.region("load", RegionKind.REGION) if number % 4 == 0 else contextlib.nullcontext():
            loop.work(pause if number % 4 == 0 else 0)
    found = [each for each in diagnose(loop.trace()) if each.id == "R48"]
    assert [each.id for each in found] == expected
    assert all("waiting for data" in each.title for each in found)
    assert all(each.advice.startswith("look at steps 4, 8, 12, counted from 0") for each in found)


def ids(found):
    return [each.id for each in found if each.severity != "info"]


def test_start_up_in_the_steps_that_are_judged_is_told():
    def step(loop, number, slow):
        compute(loop, gpu=1000 if number < slow else 100)

    def of(slow):
        loop = Loop()
        for number in loop.steps(20):
            step(loop, number, slow)
        return diagnose(loop.trace())

    first = next(each for each in of(6) if each.id == "R28")
    assert first.saving is None
    assert first.share == pytest.approx(3 * 9 / (3 * 10 + 13), abs=0.01), "the first three of the six are left out"
    assert "R28" not in ids(of(3)), "the first three are left out anyway"
    assert "R28" not in ids(of(0))


def test_of_a_product_in_float32_the_shortest_time_of_a_kernel_remains():
    def step(loop, each=8.0):
        compute(loop, 100, each, host=1, name="ampere_sgemm_32x32_nn")

    finding = next(each for each in diagnosis_of(step) if each.id == "R33")
    assert finding.alone == pytest.approx((8 - 4) / (8 + 1), abs=0.02)
    assert "R33" not in ids(diagnosis_of(lambda loop: step(loop, 3.9)))


@pytest.mark.parametrize("capability", [(8, 6), (0, 0)])
def test_what_is_no_product_is_at_most_twice_as_fast_in_float32(capability):
    def step(loop):
        compute(loop, name="cupy_add__float64_float64_float64")

    finding = next(each for each in diagnosis_of(step, lambda: Loop(capability)) if each.id == "R35")
    assert finding.alone == pytest.approx(0.5, abs=0.02)


def test_copies_are_not_hidden_behind_what_runs_beside_copies_already():
    def step(loop):
        loop.launch(gpu=400, host=5)
        for _ in range(2):
            loop.copy(20 * MIB, 400, pinned=True, stream=8)

    assert "R12" not in [each.id for each in diagnosis_of(step)]


def test_copies_that_share_the_link_are_no_sign_of_a_slow_one():
    def step(loop, gb_per_s, streams):
        for stream in streams:
            loop.copy(16 << 20, (16 << 20) / (1e3 * gb_per_s), pinned=True, stream=stream)
        loop.wait()
        compute(loop)
        loop.wait()

    assert "R13" not in [each.id for each in diagnosis_of(lambda loop: step(loop, 25, (8, 9)))]
    assert "R13" in [each.id for each in diagnosis_of(lambda loop: step(loop, 25, (8, 8)))]


@pytest.mark.parametrize(
    ("size", "streams", "capability"),
    [
        (1 << 20, (7,), (9, 0)),  # small ones do not reach it
        (12 << 20, (7, 9), (9, 0)),  # nor do those that share it
        (12 << 20, (7,), (8, 6)),  # a GPU of this kind may have 8 lanes
    ],
)
def test_copies_that_do_not_show_the_rate_of_the_link_say_nothing_of_it(size, streams, capability):
    def step(loop):
        for stream in streams:
            loop.copy(size, size / 12e3, pinned=True, to_gpu=stream == 7, stream=stream)
        compute(loop)

    assert "R13" not in [each.id for each in diagnosis_of(step, lambda: Loop(capability))]


@pytest.mark.parametrize(
    ("values", "each"),
    [
        ({"TENSOR_ACTIVE": 60}, 2000),  # a product of matrices
        ({"DRAM_READ": 40, "DRAM_WRITE": 40, "INSTRUCTIONS": 10}, 2000),  # memory
        ({"WARPS_ACTIVE": 80}, 2000),  # it waits with all the threads that there is room for
        ({}, 400),  # of too few samples
    ],
)
def test_a_kernel_is_not_slow_where_a_unit_is_busy_or_too_little_is_known(values, each):
    def step(loop):
        for _ in range(2000 // each):
            since = loop.now
            loop.launch("chase_pointers", each)
            loop.wait()
            usual = {"DRAM_READ": 5, "DRAM_WRITE": 5, "TENSOR_ACTIVE": 0, "INSTRUCTIONS": 10, "WARPS_ACTIVE": 20}
            loop.counted(since, **(usual | values))

    assert "R38" not in ids(diagnosis_of(step))


def test_kernels_that_memory_bounds_are_no_fault():
    def step(loop):
        counted_kernel(loop, DRAM_READ=50, DRAM_WRITE=40)

    found = diagnosis_of(step)
    assert found.verdict == "fine"
    assert [(each.id, each.severity) for each in found.findings] == [("R37", "info")]
    assert found.matches(["R37"])
    assert not found.matches(["warn"])


def test_a_gpu_that_goes_back_and_forth_between_processes_is_shared():
    def step(loop):
        since = loop.now
        compute(loop)
        loop.wait()
        loop.counted(since, SM_ACTIVE=100, CONTEXT_SWITCHES=8)

    (finding,) = diagnosis_of(step).findings
    assert (finding.id, finding.saving) == ("R45", None)
    assert finding.share == pytest.approx(0.08, abs=0.001)


def test_what_others_do_while_the_host_keeps_the_gpu_waiting_costs_nothing():
    def step(loop):
        compute(loop)
        loop.wait()
        since = loop.now
        loop.work(1000)
        loop.counted(since + 20_000, SM_ACTIVE=95, CONTEXT_SWITCHES=0)

    assert "R45" not in ids(diagnosis_of(step))


@pytest.mark.parametrize(
    ("inside", "launches", "expected", "alone"),
    [
        (None, False, 1 - 50 / 65, 17 / 65),  # the wait alone: the host then launches each 50 us, the GPU works for 40
        ("torch/cuda/__init__.py(1152): synchronize", False, 1 - 41 / 65, 25 / 65),  # 20 us of the call are no waiting
        ("torch/cuda/__init__.py(1152): synchronize", True, 1 - 50 / 75, 25 / 75),  # one that launches too is needed
        ("train.py(80): settle", False, 1 - 50 / 65, 17 / 65),  # so may be what the program does around
    ],
)
def test_a_wait_that_is_taken_out_takes_with_it_what_its_call_does_besides(inside, launches, expected, alone):
    def step(loop):
        with loop.function("train.py(70): step"):
            for _ in range(60):
                if not launches:
                    loop.launch(gpu=40, host=8)
                loop.work(10)
                with loop.at("train.py", 79), loop.function(inside) if inside else contextlib.nullcontext():
                    if launches:
                        loop.launch(gpu=40, host=8)
                    loop.work(20)
                    loop.wait()
                loop.work(10)

    finding = next(each for each in diagnosis_of(step) if each.id == "R16")
    assert finding.saving == pytest.approx(expected, abs=0.04)
    assert finding.alone == pytest.approx(alone, abs=0.03)
    assert str(finding.where[0]) == "train.py:79"


def test_all_calls_that_synchronize_at_a_line_are_taken_out_also_those_that_find_the_gpu_idle():
    def step(loop, wrong=True):
        for _ in range(60):
            with loop.at("train.py", 20):
                loop.launch(gpu=40, host=8)
            with loop.at("train.py", 80):
                for turn in range(4 if wrong else 0):
                    loop.wait()
                    if turn:
                        loop.work(20)
                        loop._rows["api"][-1]["duration_ns"] += 20_000

    found, mended = diagnosis_of(step), diagnosis_of(lambda loop: step(loop, wrong=False))
    assert found.findings[0].id == "R16"
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    assert found.findings[0].saving == pytest.approx(saved, rel=0.1)


@pytest.mark.parametrize(
    ("silent", "there"),
    [
        (450, "2.45 ms"),  # 2 ms of its own and the first half of the millisecond after, until it launches
        (700, "2.70 ms"),  # for most of which nothing was launched
    ],
)
def test_where_a_thread_was_between_two_looks_is_told_by_what_it_launched_or_half_and_half(silent, there):
    """A row of samples begins with the last look that found the thread elsewhere."""

    def step(loop):
        since = loop.now
        loop.work(2000)
        with loop.at("train.py", 60):
            loop.sampled(since, 1.0)
        since = loop.now
        loop.work(silent)
        with loop.at("train.py", 20):
            for _ in range(40):
                loop.launch(gpu=50)
            loop.work(1000 - 200 - silent)
            loop.sampled(since, 1.0)
        loop.wait()

    found = next(each for each in diagnosis_of(step) if each.id == "R24")
    assert found.evidence[""] == f"{there} a step"


@pytest.mark.parametrize("rule", ["R11", "R19"])
def test_what_launches_while_the_gpu_works_takes_time_of_a_host_that_is_behind(rule):
    """The step's computing hides the first of them; those after it are late by what the first ones took too."""

    def step(loop, wrong=True):
        with loop.at("train.py", 53):
            for _ in range(600 if wrong else 1):
                if rule == "R11":
                    loop.copy(64, 2, pinned=True)
                else:
                    loop.launch(gpu=2, host=5)
                loop.work(12)
        for _ in range(40):
            loop.launch("long", gpu=200, host=60)

    loops = Loop(), Loop()
    for loop, wrong in zip(loops, (True, False), strict=True):
        for _ in loop.steps(14, waits=False):
            step(loop, wrong)
    found, mended = (diagnose(loop.trace()) for loop in loops)
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    gone = 600 * 2 * (rule == "R19") * 1000 * len(found.breakdown.steps) / found.breakdown.wall_ns  # a graph has them
    first = found.findings[0]
    assert first.id == rule
    assert first.saving == pytest.approx(saved - gone, rel=0.1)


@pytest.mark.parametrize(("kernels", "gpu"), [(900, 1.3), (900, 10), (100, 1.3)])
def test_kernels_as_short_as_what_lies_between_them_are_worth_a_graph_where_the_host_is_ahead(kernels, gpu):
    """The GPU takes 1 us from one to the next here, and 0.4 us from a node of a graph to the next."""

    def step(loop):
        compute(loop, 20, 500)
        with loop.at("train.py", 20):
            for _ in range(kernels):
                loop.launch(gpu=gpu, host=1)

    found = diagnosis_of(step)
    if (kernels, gpu) != (900, 1.3):  # kernels that are longer, or few
        assert (found.verdict, found.findings) == ("fine", ())
        return
    (first,) = found.findings
    assert (first.id, str(first.where[0])) == ("R19", "train.py:20")
    assert first.saving == pytest.approx(kernels * 600 * len(found.breakdown.steps) / found.breakdown.wall_ns, rel=0.05)
    assert first.evidence["gaps take"] == "1.00 us (p50), in a graph 400 ns"


def test_an_optimizer_s_kernels_are_the_time_of_a_busy_gpu_too():
    def step(loop, wrong=True):
        compute(loop, 40, 200)
        with loop.at("train.py", 90), loop.region("Optimizer.step#Adam.step", RegionKind.RANGE):
            for _ in range(100 if wrong else 1):
                loop.launch(ADD, 1.5)
            loop.launch(ADD, 20)

    found, mended = diagnosis_of(step), diagnosis_of(lambda loop: step(loop, wrong=False))
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    assert [each.id for each in found.findings] == ["R21"]
    assert found.findings[0].saving == pytest.approx(saved, rel=0.1)
    assert str(found.findings[0].where[0]) == "train.py:90"


def test_what_is_made_on_the_cpu_takes_with_it_what_making_it_and_giving_it_back_cost():
    def step(loop, wrong=True):
        with loop.at("train.py", 56):
            since = loop.now
            with loop.region("aten::zeros"):
                loop.work(900 if wrong else 5)
            with loop.region("aten::to"):
                if wrong:
                    loop.copy(8 * MIB, 300, waits=True)
            loop.work(200 if wrong else 5)
            loop.sampled(since, 1.0)
        compute(loop)

    found, mended = diagnosis_of(step), diagnosis_of(lambda loop: step(loop, wrong=False))
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    first = found.findings[0]
    assert (first.id, str(first.where[0])) == ("R14", "train.py:56")
    assert first.saving == pytest.approx(saved, rel=0.1)


def test_fused_attention_neither_writes_its_scores_nor_reads_them_in_its_products():
    """Kernels and times of an H100: 347 heads, 2048 tokens, 64 columns in bfloat16."""

    def step(loop, wrong=True):
        with loop.at("train.py", 24):
            if wrong:
                for operator, name, each in (
                    ("aten::bmm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", [1157]),
                    ("aten::div", ADD, [960, 960]),
                    ("aten::_softmax", "softmax_warp_forward", [2488, 888]),
                    ("aten::bmm", "nvjet_sm90_tst_64x512_64x2_1x2_h_bz_coopB_NNT", [1092]),
                ):
                    with loop.region(operator):
                        for gpu in each:
                            loop.launch(name, gpu)
            else:
                loop.launch("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", 767)
        compute(loop, 108, 91)

    found, mended = diagnosis_of(step), diagnosis_of(lambda loop: step(loop, wrong=False))
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    assert found.findings[0].id == "R39"
    assert found.findings[0].saving == pytest.approx(saved, rel=0.05)


@pytest.mark.parametrize(("blocks", "is_found"), [(120, False), (112, True)])
def test_a_grid_that_fills_nine_tenths_of_the_gpu_is_no_small_one(blocks, is_found):
    """That of a persistent kernel in clusters, of which an H100 has room for 120 blocks on 132 multiprocessors."""
    found = diagnosis_of(lambda loop: compute(loop, grid_x=blocks))
    assert [each.id for each in found.findings] == ["R29"] * is_found


def test_after_a_wait_for_data_the_first_launch_is_late_as_well():
    def step(loop, wrong=True):
        since = loop.now
        next_batch(loop, 1030 if wrong else 1)
        with loop.at("train.py", 20):
            loop.work(30)
            loop.launch(gpu=100, host=30)
        compute(loop, 9)
        loop.process(since, 0.95)
        loop.container(since)

    def of(wrong):
        loop = Loop()
        for _ in loop.steps(14, waits=False):
            step(loop, wrong)
        return diagnose(loop.trace())

    found, mended = of(True), of(False)
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    assert 0.1 < saved < 0.15
    assert found.findings[0].id == "R03"
    assert found.findings[0].share == pytest.approx(saved, rel=0.1)
    assert found.findings[0].saving == pytest.approx(saved, rel=0.1)


def test_each_new_worker_is_waited_for_and_beginning_them_takes_time_too():
    """Two begin while the host is in a step that the GPU comes to later; the first batch of each is late."""
    loop = Loop()
    for turn in loop.steps(40):
        since, begins = loop.now, turn == 20
        loop.work(60_000 if begins else 0)
        if begins:
            since = loop.now
        loop.work(40_000 if begins else 0)
        next_batch(loop, 80_000 if turn in (20, 21) else 1)
        compute(loop, 10, 2000)
        for worker in range(2):
            loop.process(since, 0.5, process=5000 + 10 * (turn >= 20) + worker)
        loop.container(since)
    found = diagnose(loop.trace())
    durations = found.breakdown.steps.durations_ns
    lost = float((durations - np.median(durations)).sum()) / found.breakdown.wall_ns
    first = found.findings[0]
    assert (first.id, first.evidence["slow steps"].split()[0]) == ("R05", "2")
    assert first.saving == pytest.approx(lost, rel=0.1)


def test_a_value_that_is_no_longer_read_needs_no_operator_that_reads_it():
    def step(loop, us=25):
        for _ in range(60):
            loop.launch(gpu=40, host=8)
            with loop.at("train.py", 79), loop.region("aten::item"):
                loop.work(us)
                loop.copy(4, 1, to_gpu=False, pinned=True)
                loop.wait()
            loop.work(20)

    finding = next(each for each in diagnosis_of(step) if each.id == "R15")
    assert finding.saving == pytest.approx(1 - 41 / 76, abs=0.05), "the GPU is the limit then"


def test_kernels_have_the_line_that_launched_them():
    def step(loop):
        compute(loop, grid_x=8)

    assert [str(where) for where in diagnosis_of(step).findings[0].where] == ["train.py:20", "nvjet_hsh_128x256"]


def test_without_samples_a_library_s_function_has_the_place_of_the_one_of_the_program_that_called_it():
    def step(loop):
        compute(loop)
        loop.wait()
        with loop.function("train.py(45): step"), loop.function("torch/serialization.py(945): save"):
            loop.work(300)
        with loop.function("loop.py(7): tidy"), loop.function("Python GC", FunctionKind.GARBAGE):
            loop.work(300)

    found = {each.id: [str(where) for where in each.where] for each in diagnosis_of(step)}
    assert found["R26"] == ["train.py:45"]
    assert found["R23"] == ["loop.py:7"]


@pytest.mark.parametrize(("collections", "is_found"), [(1, False), (2, True)])
def test_a_single_collection_in_a_single_step_is_no_finding(collections, is_found):
    loop = Loop()
    with loop.region("all"):
        loop.work(3000)
        for _ in range(collections):
            with loop.function("Python GC", FunctionKind.GARBAGE):
                loop.work(1000)
            loop.work(1000)
    found = diagnose(loop.trace())
    assert len(found.breakdown.steps) == 1
    assert ("R23" in [each.id for each in found.findings]) == is_found


def test_what_comes_in_each_step_has_a_saving_that_is_no_bound():
    def step(loop, number=0):
        compute(loop)
        loop.wait()
        with loop.function("Python GC", FunctionKind.GARBAGE):
            loop.work(1000)

    finding = diagnosis_of(step).findings[0]
    assert (finding.id, finding.saving is None) == ("R23", False)
    assert finding.saving == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(
    ("rule", "stands_still"),
    [
        ("R23", lambda loop: loop.function("Python GC", FunctionKind.GARBAGE)),
        ("R26", lambda loop: loop.function("torch/serialization.py(945): save")),
    ],
)
def test_a_pause_that_began_while_the_gpu_had_work_costs_also_what_the_host_is_late_with_after_it(rule, stands_still):
    def step(loop, number=0):
        compute(loop)
        with stands_still(loop):
            loop.work(970)
        loop.work(60)

    finding = next(each for each in diagnosis_of(step).findings if each.id == rule)
    assert finding.share == pytest.approx(0.06, abs=0.01)  # all that the GPU is idle, not what lies within the pause


def test_a_cause_of_each_step_is_found_where_single_steps_were_held_up_by_much_of_it():
    def step(loop):
        with loop.at("train.py", 48), loop.region("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            loop.work(8000 if loop.turn in (5, 9) else 60)
        compute(loop)
        loop.wait()

    assert ids(diagnosis_of(step))[:1] == ["R02"]


def test_what_launches_cost_is_not_what_the_waits_between_them_cost():
    def step(loop):
        for _ in range(100):
            with loop.at("train.py", 20):
                loop.launch(gpu=10, host=15)
            with loop.at("train.py", 80):
                loop.wait()

    found = diagnosis_of(step)
    first, second = found.findings[:2]
    assert {first.id, second.id} == {"R16", "R19"}
    assert first.saving + second.saving <= 0.75, "15 us of host and a wait of 14 us for 10 us of the GPU"


@pytest.mark.parametrize(
    ("on_cpu", "read", "io_wait", "expected"),
    [
        (0.1, 4 << 20, 0, "R04"),  # it reads
        (0.1, 0, 400, "R04"),  # or tasks of the container waited for storage
        (0.1, 1 << 10, 100, "R01"),  # neither, to speak of
        (0.6, 4 << 20, 400, "R01"),  # it reads, and is on a CPU
    ],
)
def test_workers_wait_for_storage_where_they_read_much_or_something_waits_for_it(on_cpu, read, io_wait, expected):
    def step(loop):
        since = loop.now
        next_batch(loop, 1000)
        compute(loop)
        loop.wait()
        loop.process(since, on_cpu, read=int(read * (loop.now - since) / 1e9))
        loop.container(since, io_wait=io_wait)

    assert diagnosis_of(step).findings[0].id == expected


def test_workers_that_rest_while_nothing_is_waited_for_are_no_finding():
    def step(loop):
        since = loop.now
        next_batch(loop, 1)
        compute(loop)
        loop.process(since, 0.05, wait=0.5, read=10 << 20)
        loop.container(since, io_wait=900)

    assert not {"R03", "R04", "R06", "R08"} & set(ids(diagnosis_of(step)))


def test_of_workers_that_wait_for_storage_a_busy_thread_is_not_the_limit():
    def step(loop):
        since = loop.now
        next_batch(loop, 1000)
        with loop.at("collate.py", 7):
            loop.sampled(since, 1.0, thread=1)
        compute(loop)
        loop.wait()
        loop.process(since, 0.1, read=1 << 20)

    found = diagnosis_of(step)
    every = [part.id for each in found for part in (each, *each.parts)]
    assert found.findings[0].id == "R04"
    assert "R06" not in every


def test_a_thread_that_runs_beside_the_launching_one_holds_nothing_up():
    def step(loop):
        compute(loop)
        loop.wait()
        since = loop.now
        loop.work(1000)
        with loop.at("train.py", 50):
            loop.sampled(since, 1.0)
        with loop.at("writer.py", 5):
            loop.sampled(since, 1.0, thread=1)

    assert "R25" not in ids(diagnosis_of(step))


def test_a_bit_of_a_mask_without_time_is_no_throttling():
    def step(loop):
        since = loop.now
        compute(loop)
        loop.wait()
        loop.asked(
            since, sm_mhz=1485, sm_max_mhz=1980, busy_percent=100, throttle_reasons=0x60, sw_thermal_slowdown_ns=0
        )

    assert not {"R43", "R44"} & set(ids(diagnosis_of(step)))


def test_a_gpu_that_reaches_the_power_it_was_built_for_has_no_fault():
    def step(loop):
        since = loop.now
        compute(loop)
        loop.wait()
        limits = {"power_limit_mw": 700_000, "power_limit_default_mw": 700_000}
        loop.asked(since, sm_mhz=1485, sm_max_mhz=1980, **limits, sw_power_cap_ns=1, sw_thermal_slowdown_ns=0)

    assert not {"R43", "R44"} & set(ids(diagnosis_of(step)))


def test_what_holds_clocks_back_while_nothing_runs_costs_nothing():
    def step(loop):
        compute(loop)
        loop.wait()
        since = loop.now
        loop.work(1000)
        loop._asked_at = since
        loop.asked(since, sm_mhz=345, sm_max_mhz=1980, sw_thermal_slowdown_ns=1)

    assert "R43" not in ids(diagnosis_of(step))


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({}, "clock throttling: NVML was not asked: device_samples=True, --device-samples 100ms"),
        (
            {"audit.device_samples": "9", "device_samples.0.sw_thermal_slowdown_ns": "Not Supported"},
            "clock throttling: Not Supported",
        ),
    ],
)
def test_what_is_not_known_of_clocks_is_said(info, said):
    loop = Loop(info=info)
    for _ in loop.steps(14):
        compute(loop)
    assert said in diagnose(loop.trace()).unseen


def test_a_limit_that_was_not_reached_is_not_the_reason_of_a_wait():
    def step(loop):
        since = loop.now
        compute(loop)
        loop.wait()
        loop.wait_for_cpu(1000)
        loop.container(since, throttled=0)

    found = ids(diagnosis_of(step))
    assert found[0] == "R08"
    assert "R07" not in found


def test_a_wait_for_a_cpu_while_the_gpu_works_costs_nothing():
    def step(loop):
        loop.wait_for_cpu(300)
        compute(loop)

    assert "R08" not in ids(diagnosis_of(step))


def test_a_pause_is_at_the_line_that_samples_saw():
    def step(loop):
        since = loop.now
        loop.work(1000)
        with loop.at("train.py", 43):
            loop.sampled(since, 1.0)
        compute(loop)
        loop.wait()

    first = diagnosis_of(step).findings[0]
    assert (first.id, str(first.where[0])) == ("R24", "train.py:43")


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({}, "waits for CPUs, locks and worker processes: python_samples=True, --python-samples 1ms"),
        (
            {"host.thread_waits": "this kernel does not count", "host.process_usages": "recorded"},
            "waits for a CPU: this kernel does not count",
        ),
    ],
)
def test_what_was_not_recorded_of_the_host_is_said(info, said):
    loop = Loop(info=info)
    for _ in loop.steps(14):
        compute(loop)
    assert said in diagnose(loop.trace()).unseen


@pytest.mark.parametrize(("info", "is_said"), [({}, True), ({"metadata.record_shapes": '"operators"'}, False)])
def test_shapes_that_were_asked_for_are_not_asked_for_again_where_no_operator_ran(info, is_said):
    loop = Loop(info=info)
    for _ in loop.steps(14):
        with loop.region("aten::relu", types="['float']"):
            compute(loop)
    assert any("record_shapes=True" in each for each in diagnose(loop.trace()).unseen) is is_said


def test_a_machine_that_says_all_of_the_host_lacks_nothing():
    sources = (
        "thread_waits",
        "process_usages",
        *(f"control_group_usages.{what}_ns" for what in ("throttled", "io_wait")),
    )
    loop = Loop(info={f"host.{source}": "recorded" for source in sources})
    for _ in loop.steps(14):
        since = loop.now
        compute(loop)
        with loop.at("train.py", 20):
            loop.sampled(since, 1.0)
    assert not any("waits for" in each or "worker" in each for each in diagnose(loop.trace()).unseen)


# -- one launch a step -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("launches", "host_us", "expected"), [(1, 300, "R24"), (1, 40, "R19"), (12, 25, "R19")])
def test_what_a_program_does_between_single_launches_is_no_launching(launches, host_us, expected):
    """A graph of one kernel in place of one kernel saves nothing."""

    def step(loop):
        with loop.at("train.py", 40):
            for _ in range(launches):
                loop.work(host_us)
                loop.launch(gpu=10)

    assert ids(diagnosis_of(step)) == [expected]


@pytest.mark.parametrize(("launches", "steps_in_one"), [(1, True), (12, False)])
def test_a_graph_of_a_single_launch_is_one_of_several_steps(launches, steps_in_one):
    def step(loop):
        for _ in range(launches):
            loop.work(20)
            loop.launch(gpu=5)

    (finding,) = diagnosis_of(step).findings
    assert ("graph of several steps" in finding.advice) == steps_in_one


# -- without a GPU -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_gpu", "thread"), [(True, "the launching thread"), (False, "the main thread")])
def test_where_nothing_is_launched_no_thread_launches(has_gpu, thread):
    def step(loop):
        if has_gpu:
            compute(loop)
            loop.wait()
        loop.wait_for_cpu(1000)

    (finding,) = (each for each in diagnosis_of(step).findings if each.id == "R08")
    assert thread in finding.title
    assert any(thread in fact for fact in finding.facts())


def test_a_tensor_made_on_the_cpu_takes_only_its_own_time_of_a_gap():
    def step(loop, wrong=True):
        if wrong:
            batch_on_the_cpu(loop)
        since = loop.now
        compute(loop, 3)
        loop.wait()
        with loop.at("train.py", 4, "load"):
            loop.work(2000)
            loop.sampled(since, 0.0, looks=100)

    found, mended = diagnosis_of(step), diagnosis_of(lambda loop: step(loop, wrong=False))
    saved = 1 - mended.breakdown.wall_ns / found.breakdown.wall_ns
    (finding,) = (each for each in found if each.id == "R14")
    assert finding.alone == pytest.approx(saved, rel=0.1)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from([3, 4, 5]), st.integers(300, 4000)), min_size=1, max_size=5),
    st.integers(1, 12),
    st.booleans(),
)
def test_host_time_is_divided_among_the_lines_that_took_it(activities, kernels, waits):
    """Each line is promised what it takes, no more than the GPU would wait, and all together no more than the gap."""

    def step(loop):
        for line, us in activities:
            since = loop.now
            with loop.at("train.py", line, f"function_{line}"):
                loop.work(us)
                loop.sampled(since, 1.0, looks=us)
        since = loop.now
        compute(loop, kernels)
        with loop.at("train.py", 20):
            if waits:
                loop.wait()
            loop.sampled(since, 0.5, looks=100)

    found = diagnosis_of(step)
    spent = {line: sum(us for each, us in activities if each == line) / 1e6 for line, _ in activities}
    named = {each.where[0].line: each for each in found if each.id == "R24" and each.where}
    assert set(named) <= {*spent, 20}
    for line, finding in named.items():
        if line in spent:
            value, unit = finding.evidence[""].removesuffix(" a step").split()
            assert float(value) * {"us": 1e-6, "ms": 1e-3}[unit] == pytest.approx(spent[line], rel=0.01)
    step_s = found.breakdown.wall_ns / len(found.breakdown.steps) / 1e9
    assert sum(each.saving or 0.0 for each in found if each.id == "R24") <= min(sum(spent.values()) / step_s, 1) + 1e-3
    longest = max(spent, key=lambda line: spent[line])
    if sum(spent.values()) > 0.5 * step_s and found.findings:
        assert longest in named
