# SPDX-License-Identifier: Apache-2.0
"""Kernels of known bytes and operations against peaks that are given."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fakes.gscope import make_store
from fakes.recordings import make_trace
from gpuscope import _core
from gpuscope._core import Flag, RegionKind
from gpuscope.benchmarking.roofline import Peak
from gpuscope.costs.roofline import roofline
from gpuscope.errors import InvalidArgument, NotAvailable
from gpuscope.recording import Recording
from gpuscope.trace import NONE

MS = 1_000_000
PEAKS = {"bandwidth": 2e12, "bfloat16": 5e14, "float32": 5e13, "tf32": 2e14}
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_tn_n_tilesize128x128x64"
SGEMM = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, add>(int)"
SPLIT = "splitKreduce_kernel"
BF16 = "['c10::BFloat16', 'c10::BFloat16']"
FLOAT = "['float', 'float', 'Scalar']"

OPERATORS = {
    "mm": ("aten::mm", "[[1000, 2000], [2000, 500]]", BF16),
    "float mm": ("aten::mm", "[[1000, 2000], [2000, 500]]", FLOAT),
    "add": ("aten::add", "[[1000, 1000], [1000, 1000], []]", FLOAT),
    "unknown": ("custom::op", "[[1000, 1000]]", "['float']"),
}


def trace_of(kernels, samples=None, info=None, uuid="GPU-0", shapes=True):
    """`kernels`: (operator or None, name, ms, flags); `samples`: (bytes read, written a sample of 0.1 ms, tensor %)."""
    operators = [name for name, *_ in kernels if name != "same"]
    names = list(dict.fromkeys(name for _, name, *_ in kernels))
    lengths = [round(each[2] * MS) for each in kernels]
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])) + 1000
    regions = [("step", NONE)] + [(OPERATORS[name][0], 0) for name in operators if name is not None]
    texts = [OPERATORS[name] for name in operators if name is not None]
    region_of = []
    for name, *_ in kernels:  # "same": launched by the operator of the kernel before
        last = max(region_of, default=0)
        region_of.append(0 if name is None else last if name == "same" else last + 1)
    tables = {
        "device": {"ordinal": [0], "name": ["NVIDIA Test"], "uuid": [uuid], "multiprocessors": [132]},
        "thread": {"system_id": [1]},
        "track": {"device": [0]},
        "variant": {"name": names},
        "path": {
            "name": [name for name, _ in regions],
            "parent": [parent for _, parent in regions],
            "kind": [int(RegionKind.REGION)] + [int(RegionKind.OP)] * len(texts),
        },
        "region": {
            "start_ns": list(range(len(regions))),
            "duration_ns": [1000] + [1] * len(texts),
            "path": list(range(len(regions))),
            "parent": [parent for _, parent in regions],
        },
        "detail": {
            "region": list(range(1, len(regions))),
            "shapes": [shape for _, shape, _ in texts],
            "types": [types for *_, types in texts],
            "sequence": [-1] * len(texts),
        },
        "kernel": {
            "start_ns": starts.tolist(),
            "duration_ns": lengths,
            "variant": [names.index(name) for _, name, *_ in kernels],
            "region": region_of,
            "flags": [int(each[3]) if len(each) > 3 else 0 for each in kernels],
        },
    }
    if not texts or not shapes:
        del tables["detail"]
    if samples is not None:
        count = int(sum(lengths) // 100_000) + 1
        tables["counter"] = {
            "name": [
                "dram__bytes_read.sum",
                "dram__bytes_write.sum",
                "sm__pipe_tensor_cycles_active_realtime.avg.pct_of_peak_sustained_elapsed",
            ],
            "unit": ["byte", "byte", "percent"],
            "description": [""] * 3,
        }
        tables["counter_sample"] = {
            "start_ns": [1000 + 100_000 * at for at in range(count)],
            "duration_ns": [100_000] * count,
        }
        tables["counter_value"] = {
            "sample": np.repeat(np.arange(count), 3).tolist(),
            "counter": [0, 1, 2] * count,
            "value": list(samples) * count,
        }
    return make_trace(tables, info={"session.mode": "full", **(info or {})})


def one(found, kind="kernels", name=None):
    points = [each for each in getattr(found, kind) if name is None or each.name.endswith(name)]
    assert len(points) == 1, points
    return points[0]


def test_a_product_has_its_operations_and_the_bytes_of_its_shapes():
    point = one(roofline(trace_of([("mm", GEMM, 0.01)]), peaks=PEAKS))
    assert point.compute == pytest.approx(2 * 1000 * 2000 * 500 / 10e-6)
    assert point.bandwidth == pytest.approx((2_000_000 + 1_000_000 + 500_000) * 2 / 10e-6)
    assert point.bandwidth_from == "shapes"
    assert point.dtype == "bfloat16"
    assert point.share_of_compute == pytest.approx(2e14 / 5e14)
    assert point.share_of_bandwidth == pytest.approx(7e11 / 2e12)
    assert point.intensity == pytest.approx(2e14 / 7e11)
    assert point.limit == "latency-bound"


@pytest.mark.parametrize(
    ("ms", "limit"), [(0.005, "compute-bound"), (0.0062, "compute-bound"), (0.01, "latency-bound")]
)
def test_the_limit_is_the_peak_that_is_near(ms, limit):
    assert one(roofline(trace_of([("mm", GEMM, ms)]), peaks=PEAKS)).limit == limit


def test_an_elementwise_kernel_is_bound_by_memory():
    point = one(roofline(trace_of([("add", ADD, 0.008)]), peaks=PEAKS))
    assert point.bandwidth == pytest.approx(3 * 4_000_000 / 8e-6)
    assert point.compute == pytest.approx(1_000_000 / 8e-6)
    assert point.limit == "memory-bound"


def test_float32_on_tensor_cores_is_tensorfloat_32():
    tensor = "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16"
    assert one(roofline(trace_of([("float mm", tensor, 1)]), peaks=PEAKS)).dtype == "tf32"
    assert one(roofline(trace_of([("float mm", SGEMM, 1)]), peaks=PEAKS)).dtype == "float32"


def test_counters_come_before_shapes():
    point = one(roofline(trace_of([("mm", GEMM, 1)], samples=(1e8, 5e7, 75)), peaks=PEAKS))
    assert point.bandwidth == pytest.approx(1.5e8 / 100e-6)
    assert (point.bandwidth_from, point.tensor_active) == ("counters", pytest.approx(0.75))
    assert point.share_of_bandwidth == pytest.approx(0.75)
    assert point.limit == "memory-bound"


def test_without_shapes_the_tensor_cores_say_whether_it_computes():
    point = one(roofline(trace_of([(None, GEMM, 1)], samples=(1e7, 0, 75)), peaks=PEAKS))
    assert point.compute is None
    assert (point.share_of_bandwidth, point.limit) == (pytest.approx(0.05), "compute-bound")


def test_a_kernel_shorter_than_samples_has_the_bytes_of_its_shapes_and_its_region_those_counted():
    found = roofline(trace_of([("add", ADD, 0.3)] * 4, samples=(1e8, 0, 0)), peaks=PEAKS)
    assert one(found).bandwidth_from == "shapes"
    step = one(found, "regions", "step")
    assert (step.bandwidth_from, step.bandwidth) == ("counters", pytest.approx(1e12))


def test_a_region_of_few_samples_has_the_bytes_of_its_shapes():
    found = roofline(trace_of([("add", ADD, 0.2), ("mm", GEMM, 2)], samples=(1e8, 0, 0)), peaks=PEAKS)
    assert one(found, "regions", "aten::add").bandwidth_from == "shapes"
    assert one(found, "regions", "aten::mm").bandwidth_from == "counters"


def test_the_work_of_an_operator_is_that_of_its_longest_kernel():
    trace = trace_of([("mm", GEMM, 0.01), ("same", SPLIT, 0.001)])
    assert trace.kernels.region.tolist() == [1, 1]
    found = roofline(trace, peaks=PEAKS)
    assert one(found, name="splitKreduce_kernel").compute is None
    assert one(found, name=found.kernels[0].name).compute == pytest.approx(2e9 / 10e-6)
    step = one(found, "regions", "step")
    assert step.compute == pytest.approx(2e9 / 11e-6)  # over all of its time
    assert step.seconds == pytest.approx(11e-6)
    assert step.bandwidth_from == "shapes"  # of 91 % of it


def test_regions_of_several_types_need_each_peak_for_its_part():
    found = roofline(trace_of([("mm", GEMM, 1), ("float mm", SGEMM, 1)]), peaks=PEAKS)
    step = one(found, "regions", "step")
    assert step.share_of_compute == pytest.approx((2e9 / 5e14 + 2e9 / 5e13) / 2e-3)


def test_a_region_of_which_a_part_is_not_known_has_no_bytes():
    found = roofline(trace_of([("mm", GEMM, 1), ("unknown", "other", 1)]), peaks=PEAKS)
    step = one(found, "regions", "step")
    assert (step.bandwidth, step.limit) == (None, "")
    assert step.compute == pytest.approx(2e9 / 2e-3)


def test_kernels_of_graphs_have_no_shapes_of_their_own():
    found = roofline(trace_of([("mm", GEMM, 1, Flag.IN_GRAPH)]), peaks=PEAKS)
    assert one(found).compute is None


def test_what_was_not_recorded_is_named_with_the_option():
    found = roofline(trace_of([("mm", GEMM, 1)], shapes=False, info={"counters.why": "administrators alone"}))
    assert found.unseen == (
        "operations: record_shapes=True, --record-shapes",
        "bytes by counters: administrators alone",
    )
    assert "administrators alone" in str(found)


def test_shapes_that_no_operator_had_are_not_asked_for_again():
    info = {"metadata.record_shapes": "1", "counters.why": "administrators alone"}
    found = roofline(trace_of([("mm", GEMM, 1)], shapes=False, info=info))
    assert found.unseen[0] == "operations: no operator has shapes"


def test_peaks_are_measured_where_the_gpu_is_in_this_machine(monkeypatch):
    asked = []

    def measure(kind, device):
        asked.append((kind, device))
        value = {"bandwidth": 2e12}.get(kind)
        return Peak(kind, "B/s", value, None, "" if value else "torch has not used the GPU here")

    monkeypatch.setattr("gpuscope.benchmarking.roofline.peak", measure)
    monkeypatch.setattr(_core, "environment", lambda: {"devices": [{"ordinal": 3, "uuid": "GPU-0"}]})
    found = roofline(trace_of([("mm", GEMM, 1)]))
    assert sorted(asked) == [("bandwidth", 3), ("bfloat16", 3)]
    assert found.peaks == {"bandwidth": 2e12}
    assert found.reasons == {"bfloat16": "torch has not used the GPU here"}
    assert "no peak of bfloat16: torch has not used" in str(found)
    assert one(found).share_of_compute is None
    assert one(found).limit == ""


def test_peaks_of_another_machines_gpu_are_not_known():
    found = roofline(trace_of([("mm", GEMM, 1)], uuid="GPU-of-another-machine"))
    assert found.peaks == {}
    assert set(found.reasons) == {"bandwidth", "bfloat16"}
    assert "not in this machine" in found.reasons["bandwidth"]
    assert "measured peaks are not known" in str(found)


def test_the_text_and_the_json_have_each_kernel_and_region():
    found = Recording(trace_of([("mm", GEMM, 1), ("add", ADD, 1)]).store).roofline(peaks=PEAKS)
    text = str(found)
    assert "roofline of GPU 0 NVIDIA Test: measured peaks bandwidth 2.00 TB/s" in text
    assert "step/mm" in text.replace("aten::", "")
    assert "bytes from shapes: the least that operators must move" in text
    saved = json.loads(found.to_json())
    assert saved["kernels"][0]["intensity"] == pytest.approx(found.kernels[0].intensity)
    assert {each["name"] for each in saved["regions"]} == {"step", "step/aten::mm", "step/aten::add"}


@pytest.mark.parametrize(
    ("peaks", "words"),
    [
        ({"bandwith": 1e12}, "peaks has 'bandwith'; accepted are bandwidth, float32"),
        ({"bandwidth": 0}, "peaks has 0 for bandwidth"),
        ({"float32": float("nan")}, "peaks has nan for float32"),
    ],
)
def test_wrong_peaks_get_a_sentence(peaks, words):
    with pytest.raises(InvalidArgument, match=words):
        roofline(trace_of([("mm", GEMM, 1)]), peaks=peaks)


def test_recordings_without_kernels_say_so():
    with pytest.raises(NotAvailable, match="none was recorded"):
        roofline(make_trace({"thread": {"system_id": [1]}}, info={"session.mode": "full"}))
    with pytest.raises(NotAvailable, match="GPU 4, which ran no kernels"):
        roofline(trace_of([("mm", GEMM, 1)]), device=4)
    with pytest.raises(NotAvailable, match="mode='aggregate'"):
        Recording(make_store({}, info={"session.mode": "aggregate"})).roofline()


def test_the_gpu_of_kernels_may_be_lost():
    tables = {
        "track": {"device": [NONE]},
        "variant": {"name": [GEMM]},
        "kernel": {"start_ns": [0], "duration_ns": [MS]},
    }
    assert len(roofline(make_trace(tables), peaks=PEAKS).kernels) == 1
