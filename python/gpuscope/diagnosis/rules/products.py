# SPDX-License-Identifier: Apache-2.0
"""Data types and shapes: matrix products without tensor cores, casts, layout changes, unfused attention."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from gpuscope.diagnosis.context import Context
from gpuscope.diagnosis.rules.rule import LEAST, LEAST_OF_KERNELS, Cause, Rule, kernel_edit, needs, places
from gpuscope.steps.kernel_classes import KernelClass
from gpuscope.steps.steps import Array
from gpuscope.trace import NONE
from gpuscope.units import format_digits, format_share

# Matrix products in float32 without tensor cores, by names of cuBLAS, cuDNN and CUTLASS. gemv is memory-bound.
_FLOAT_PRODUCT = re.compile(
    r"sgemm|simt_s|f32f32_f32f32_f32.*ffma|implicit_convolve_sgemm|winograd.*fp32", re.IGNORECASE
)
_DOUBLE = re.compile(r"dgemm|float64|_f64|f64f64|d884gemm|<double|, double", re.IGNORECASE)
_MISALIGNED = re.compile(r"align([12])(?![0-9])")
_HALF = re.compile(r"f16|h16|half|bf16|hmma|s1688gemm", re.IGNORECASE)
_LAYOUT = re.compile(r"nchwtonhwc|nhwctonchw|transpose", re.IGNORECASE)
_CONVOLUTION = re.compile(r"conv(?!ert)|fprop|dgrad|wgrad|winograd", re.IGNORECASE)
_COPIES = re.compile(r"^aten::(_to_copy|copy_|contiguous|clone|to)$")
_BATCHED = re.compile(r"^aten::(bmm|baddbmm|matmul|einsum)$|BmmBackward")
_SOFTMAX = re.compile(r"^aten::(_softmax|_softmax_backward_data)$")
# Tensor cores compute scores of 64 columns in a quarter of the time of writing them in 16 bits (H100: 800 TFLOP/s,
# 3.3 TB/s). More columns take longer.
_LEAST_OF_PRODUCTS = 0.25
_BETWEEN = 6  # kernels between the softmax of attention and its products: scale, mask, dropout, a cast

# The largest speedup of tensor cores over products in float32 without them: TF32 or, before compute capability 8, half
# precision (NVIDIA's data sheets: V100 125/15.7, T4 65/8.1, A100 156/19.5, H100 494/67 dense;
# GeForce and L4, L40S: 1 to 2 in TF32, 2 in half).
_TENSOR_SPEEDUP = {(7, 0): 8.0, (7, 5): 8.0, (8, 0): 8.0, (9, 0): 7.4, (10, 0): 14.0}
_OTHER_SPEEDUP = 2.0
# float32 is 2 times as fast as float64 on these data center GPUs, 64 times on others. Matrix products differ: tensor
# cores multiply in float64 as fast as other units in float32 (A100 19.5 and 19.5, H100 67 and 67); only TF32 is faster.
_FAST_DOUBLE = ((7, 0), (8, 0), (9, 0), (10, 0))
_SHORTEST_PRODUCT_NS = 4_000  # the smallest products on tensor cores of an H100 take 3 to 5 us


def _busy_ns(context: Context) -> float:
    return float(context.duration_ns[context.kernels].sum())


def _of_busy(context: Context, work: Array) -> str:
    share = float(context.duration_ns[work].sum()) / max(_busy_ns(context), 1.0)
    return f"{format_share(share)} of kernel time"


def _named(context: Context, pattern: re.Pattern[str]) -> Array:
    """The kernels of the steps whose name matches."""
    if len(context.kernels) == 0 or len(context.trace.variants) == 0:
        return np.zeros(0, np.int64)
    meant = np.array([bool(pattern.search(name)) for name in context.kernel_names])
    found: Array = context.kernels[meant[context.kernel_variant]]
    return found


def _cause(
    context: Context, work: Array, factor: float | Array, title: str, advice: str, evidence: dict[str, str]
) -> Cause:
    """A cause for kernels; `factor` is the share of their time that remains."""
    assert context.device is not None
    duration = context.duration_ns[work]
    where = places(*context.places_of(context.work_launch[work], duration)[:2])
    factors = np.broadcast_to(np.asarray(factor, np.float64), len(work))
    edit = kernel_edit(context, work, factors)
    evidence = {"": _of_busy(context, work), **evidence}
    return Cause(title, advice, edit, where, evidence)


def _on_tensor_cores(context: Context, work: Array) -> Array:
    """The share of the time of float32 products that remains on tensor cores."""
    least = _SHORTEST_PRODUCT_NS / np.maximum(context.duration_ns[work], 1)
    speedup = _TENSOR_SPEEDUP.get(context.capability, _OTHER_SPEEDUP)
    factors: Array = np.minimum(np.maximum(1 / speedup, least), 1.0)
    return factors


def _convolve(context: Context, work: Array) -> bool:
    """Whether convolutions have most of the time of this work, by names of kernels and operators."""
    chosen = np.isin(work, _named(context, _CONVOLUTION)) | context.work_inside(_CONVOLUTION.search, work)
    duration = context.duration_ns[work]
    return bool(2 * duration[chosen].sum() > duration.sum())


def shortened_by(context: Context, limit: str) -> str:
    """What shortens the kernels that limit a program without findings, by the label of their class; "" if unknown."""
    if limit in (KernelClass.REDUCTION.label, KernelClass.ELEMENTWISE.label):
        return "fused kernels (torch.compile), in-place operations, smaller intermediates"
    products = next((each for each in (KernelClass.TENSOR_PRODUCT, KernelClass.PRODUCT) if each.label == limit), None)
    if products is None:
        return ""
    if _convolve(context, context.kernels_of_class(products)):
        return "torch.backends.cudnn.benchmark = True for inputs of one size, depthwise separable convolutions"
    return "bfloat16 or FP8 if not used yet, smaller layers"


def _without_tensor_cores(context: Context) -> Iterator[Cause]:
    if context.device is None or context.capability < (7, 0):
        return
    work = _named(context, _FLOAT_PRODUCT)
    work = work[context.device.work.classes[work] == int(KernelClass.PRODUCT)]
    if len(work) == 0:
        return
    tf32 = context.capability >= (8, 0)
    advice = "torch.autocast with float16"
    if tf32:
        advice = 'torch.set_float32_matmul_precision("high") for TF32, or torch.autocast with bfloat16'
    if _convolve(context, work):
        half = "bfloat16" if tf32 else "float16"
        advice = f"torch.autocast with {half} and memory_format=torch.channels_last"
        advice += ", or torch.backends.cudnn.allow_tf32 = True" if tf32 else ""
    yield _cause(
        context,
        work,
        _on_tensor_cores(context, work),
        "matrix products in float32 do not use the tensor cores",
        advice,
        {},
    )


def _misaligned(context: Context) -> Iterator[Cause]:
    """Kernels that read one or two elements at a time: libraries choose them for sizes that are not multiples of 8."""
    named = _named(context, _MISALIGNED)
    if len(named) == 0:
        return
    assert context.device is not None
    work = named[context.device.work.classes[named] <= int(KernelClass.PRODUCT)]
    variants = context.column("kernels", "variant", work)
    names = context.kernel_names
    half = np.array([bool(_HALF.search(names[variant])) for variant in variants.tolist()], bool)
    one = np.array([_is_one(names[variant]) for variant in variants.tolist()], bool)
    work = work[half | one]
    if len(work) == 0:
        return
    duration = context.duration_ns[work]
    where = places(*context.places_of(context.work_launch[work], duration)[:2])
    sizes = _odd_sizes(context, work)
    evidence = {"sizes": ", ".join(map(str, sizes))} if sizes else {}
    yield Cause(
        "sizes of matrix products are misaligned for tensor cores",
        "pad them to multiples of 64 (vocabulary, heads, channels), or at least of 8 in 16 bits",
        where=where,
        evidence={
            "": f"{format_share(float(duration.sum()) / max(_busy_ns(context), 1))} of kernel time",
            **evidence,
        },
        share=context.share_of(work),
    )


def _is_one(name: str) -> bool:
    match = _MISALIGNED.search(name)
    return match is not None and match[1] == "1"


def _odd_sizes(context: Context, work: Array) -> list[int]:
    """Sizes that are not multiples of 8 in the operators that launched this work, most frequent first."""
    regions = context.region_of_call[context.work_launch[work]]
    details = context.trace.details
    counts: dict[int, int] = {}
    for region in np.unique(regions[regions < len(context.trace.regions)])[:64].tolist():
        row = int(context.detail_of_region[region])
        if row < 0 or int(details.shapes[row]) == NONE:
            continue
        for size in _numbers(_texts(context, int(details.shapes[row]))):
            if size > 8 and size % 8:
                counts[size] = counts.get(size, 0) + 1
    return sorted(counts, key=lambda size: -counts[size])[:3]


def _numbers(shapes: list[object]) -> list[int]:
    rows = [shape for shape in shapes if isinstance(shape, list)]
    return [size for shape in rows for size in shape if isinstance(size, int)]


def _double(context: Context) -> Iterator[Cause]:
    if context.device is None:
        return
    named = _named(context, _DOUBLE)
    known, types = _double_operators(context, context.kernels)
    work = np.union1d(np.setdiff1d(named, context.kernels[known]), context.kernels[types]).astype(np.int64)
    if len(work) == 0:
        return
    # Other kernels are mostly memory-bound, and move half as many bytes in float32.
    is_product = context.device.work.classes[work] <= int(KernelClass.PRODUCT)
    if context.capability in _FAST_DOUBLE:
        of_products = _on_tensor_cores(context, work)
    else:
        slow = 1 / 64 if context.capability >= (7, 0) else 1 / 2  # the smaller speedup if the GPU is not known
        of_products = np.maximum(slow, np.minimum(_SHORTEST_PRODUCT_NS / np.maximum(context.duration_ns[work], 1), 1))
    factors = np.where(is_product, of_products, 1 / 2)
    advice = "use float32 if the result allows it: dtype=torch.float32, array.astype(np.float32)"
    if is_product.any() and context.capability in _FAST_DOUBLE:
        advice += '; for products also torch.set_float32_matmul_precision("high"), or bfloat16'
    yield _cause(context, work, factors, "kernels compute in double precision", advice, {})


def _double_operators(context: Context, work: Array) -> tuple[Array, Array]:
    """Whether the types of each kernel's operator are known, and whether the operator computes in float64.

    A Python number is recorded as a float64 tensor without dimensions and does not count. Without recorded shapes, all
    types must be float64.
    """
    if not (context.trace.details.types != NONE).any():
        return np.zeros(len(work), bool), np.zeros(len(work), bool)
    regions = context.region_of_call[context.work_launch[work]]
    rows = np.append(context.detail_of_region, -1)[np.minimum(regions, len(context.trace.regions))]
    types, shapes = (
        np.where(rows >= 0, np.append(context.trace.details[name], NONE)[rows], NONE).astype(np.uint64)
        for name in ("types", "shapes")
    )
    each, place = np.unique(types << np.uint64(32) | shapes, return_inverse=True)
    double = [
        key >> 32 != NONE and _is_double(*(_texts(context, text) for text in (key >> 32, key & NONE)))
        for key in each.tolist()
    ]
    known: Array = types != NONE
    return known, np.array(double, bool)[place.reshape(-1)]


def _texts(context: Context, text: int) -> list[object]:
    """A list that was recorded as text; empty if there is none."""
    try:
        found = ast.literal_eval(context.trace.string(text)) if text != NONE else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # a file may hold any text
        found = []
    return found if isinstance(found, list) else []


def _is_double(types: list[object], shapes: list[object]) -> bool:
    if len(shapes) != len(types):
        return {each for each in types if each != "Scalar" and each != ""} == {"double"}
    return any(each == "double" and shape != [] for each, shape in zip(types, shapes, strict=True))


def _casts(context: Context) -> Iterator[Cause]:
    if context.device is None:
        return
    copying = context.kernels_of_class(KernelClass.ELEMENTWISE)
    copying = copying[_inside_innermost(context, _COPIES, copying)]
    of_layout = _named(context, _LAYOUT)
    work = np.union1d(copying, of_layout).astype(np.int64)
    if len(work) == 0:
        return
    layout = np.isin(work, of_layout)
    share = float(context.duration_ns[work[layout]].sum()) / max(float(context.duration_ns[work].sum()), 1.0)
    yield _cause(
        context,
        work,
        0.0,
        "kernels only cast, copy or change layouts",
        "use memory_format=torch.channels_last for model and input, keep weights in the compute type, use views "
        "instead of copies",
        {"layout changes": format_share(share)} if layout.any() else {},
    )


def _inside_innermost(context: Context, pattern: re.Pattern[str], work: Array) -> Array:
    """Whether the name of the innermost region around each launch matches."""
    meant = np.array([bool(pattern.search(name)) for name in context.path_names] + [False])
    found: Array = meant[context.path_of_call[context.work_launch[work]]]
    return found


def _attention(context: Context) -> Iterator[Cause]:
    """The kernels between two batched products with a softmax in between."""
    rows = context.kernels
    if len(rows) < 3 or not any(map(_SOFTMAX.search, context.path_names)):
        return
    rows = rows[np.lexsort((context.start_ns[rows], context.column("kernels", "track", rows)))]
    assert context.device is not None
    product = context.device.work.classes[rows] <= int(KernelClass.PRODUCT)
    product &= context.work_inside(_BATCHED.search, rows)
    chosen, products = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    for at in np.flatnonzero(_inside_innermost(context, _SOFTMAX, rows)).tolist():
        before = np.flatnonzero(product[max(at - _BETWEEN, 0) : at])
        after = np.flatnonzero(product[at + 1 : at + 1 + _BETWEEN])
        if len(before) and len(after):
            first, last = max(at - _BETWEEN, 0) + before[-1], at + 1 + after[0]
            chosen[first + 1 : last] = True
            products[[first, last]] = True
    if not chosen.any():
        return
    between, products = rows[chosen], rows[products & ~chosen]
    remains = _without_scores(context, between, products)
    yield _cause(
        context,
        np.append(between, products),
        np.append(np.zeros(len(between)), remains),
        "unfused attention: its scores are written to memory and read again",
        "use torch.nn.functional.scaled_dot_product_attention, or a model's attn_implementation='sdpa'",
        {"kernels": f"{format_digits(chosen.sum() / len(context.steps))} a step between the products"},
    )


def _without_scores(context: Context, between: Array, products: Array) -> Array:
    """The share of the products' time that remains if they neither write scores nor read them.

    Each operator between the products reads and writes the scores: half of the shortest is about the time of one
    transfer. An operator needs several kernels for large scores.
    """
    launches = context.work_launch[between]
    regions = context.region_of_call[launches]
    _, operator = np.unique(np.where(regions == NONE, NONE + 1 + np.arange(len(regions)), regions), return_inverse=True)
    once_ns = float(np.bincount(operator.reshape(-1), context.duration_ns[between]).min()) / 2
    left = 1 - once_ns / np.maximum(context.duration_ns[products], 1)
    found: Array = np.clip(left, _LEAST_OF_PRODUCTS, 1.0)
    return found


def _has_shapes(context: Context) -> bool:
    shapes = context.trace.details.shapes
    return "metadata.record_shapes" in context.trace.info or len(shapes) == 0 or bool((shapes != NONE).any())


_SHAPES = needs("shapes and types of operators: record_shapes=True, --record-shapes", _has_shapes)


RULES = (
    Rule("R33", "products in float32 without tensor cores", _without_tensor_cores, LEAST_OF_KERNELS),
    Rule("R34", "sizes misaligned for tensor cores", _misaligned, 0.05, _SHAPES),
    Rule("R35", "double precision", _double, LEAST_OF_KERNELS),
    Rule("R36", "casts and layout changes", _casts, LEAST),
    Rule("R39", "unfused attention", _attention, LEAST),
)
