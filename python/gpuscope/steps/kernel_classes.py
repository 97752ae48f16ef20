# SPDX-License-Identifier: Apache-2.0
"""Classes of kernels, by the names that their libraries give them."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache


class KernelClass(IntEnum):
    """The class of a kernel. Of kernels that run at once, the lowest counts."""

    TENSOR_PRODUCT = 0
    PRODUCT = 1
    ATTENTION = 2
    REDUCTION = 3
    ELEMENTWISE = 4
    OTHER = 5
    COMMUNICATION = 6

    @property
    def label(self) -> str:
        """Its name in results."""
        return _LABELS[self]


_LABELS = {
    KernelClass.TENSOR_PRODUCT: "matmul, conv on tensor cores",
    KernelClass.PRODUCT: "other matmul, conv",
    KernelClass.ATTENTION: "attention",
    KernelClass.REDUCTION: "norms, reductions, sorting",
    KernelClass.ELEMENTWISE: "elementwise, copying kernels",
    KernelClass.OTHER: "other kernels",
    KernelClass.COMMUNICATION: "communication",
}

# Of NCCL, NVSHMEM, DeepEP, torch's symmetric memory and vLLM.
_COMMUNICATION = re.compile(
    r"nccl|nvshmem|deep_ep::|symm_mem|symmetric_memory|(one|two)_shot_all_?reduce|cross_device_reduce"
)
# FlashAttention, xFormers and cuDNN's, and the templates of compilers.
_ATTENTION = re.compile(r"flash_?(fwd|bwd|attn|attention)|fmha|sdpa|attention|attn_(fwd|bwd)|_attn_|mha_(fwd|bwd)")
# cuBLAS: gemm, gemv, nvjet, splitK. cuDNN: fprop, dgrad, wgrad, xmma, winograd. CUTLASS, Triton and XLA: the others.
_PRODUCT = re.compile(
    r"gemm|gemv|gemmk|nvjet|split_?k|cutlass|xmma|fprop|dgrad|wgrad|winograd|convolve|conv\dd|conv_|_conv|implicit_con"
    r"|matmul|triton_tem|triton_mm|\bdot_kernel|bmm|_dot_|^dot_|884cudnn|scaled_mm|wgmma"
)
# Shapes and types of mma instructions in the names of cuBLAS, cuDNN and CUTLASS. nvjet is only for tensor cores.
_TENSOR = re.compile(
    r"nvjet|[shi]?(16816|1688|16832|884|161616|8816|16864)|tensorop|hmma|imma|dmma|qmma|wgmma|utcmma|bf16bf16|f16f16"
    r"|tensor\d+x\d+x\d+|e4m3|e5m2|tf32f32|_tf32|bf16_s|_s16|(?<!x)mma_|triton_tem|triton_mm|sm(90|100|120)_"
)
# "ffma" is the multiply-add of the ordinary units; "xmma" is a family of kernels for either.
_NOT_TENSOR = re.compile(r"simt|ffma|sgemm(?!.*tensorop)|dgemm(?!.*tensorop)|gemv")
_REDUCTION = re.compile(
    r"norm|softmax|reduc|triton_(red|per)_|welford|cumsum|scan|sort|topk|argm(ax|in)|histogram|nll_loss|cross_entropy"
    r"|cupy_(sum|prod|mean|var|min|max|dot|amax|amin)|segmented|unique"
)
_ELEMENTWISE = re.compile(
    r"elementwise|vectorized|unrolled|triton_poi_|fill|copy|transpose|nchw|nhwc|index|gather|scatter|embedding|cat_?array"
    r"|multi_tensor_apply|dropout|cupy_|loop_|wrapped_|pointwise|where|arange|cast|convert|im2col|pad|pool|upsample"
    r"|distribution|random|bernoulli|relu|gelu|silu|sigmoid|tanh|adam|sgd"
)


@lru_cache(maxsize=1 << 14)
def kernel_class(name: str) -> KernelClass:
    """The class of a kernel by its demangled name; OTHER if the name has no known part.

    The name is no proof: a product is on tensor cores if its name has the shape or type of such an instruction.
    """
    text = name.lower()
    if _COMMUNICATION.search(text):
        return KernelClass.COMMUNICATION
    if _ATTENTION.search(text):
        return KernelClass.ATTENTION
    if "tonhwc" in text or "tonchw" in text:  # cuDNN's changes of layout are named after its engines
        return KernelClass.ELEMENTWISE
    if _PRODUCT.search(text):
        on_tensor_cores = _TENSOR.search(text) and not _NOT_TENSOR.search(text)
        return KernelClass.TENSOR_PRODUCT if on_tensor_cores else KernelClass.PRODUCT
    if _REDUCTION.search(text):
        return KernelClass.REDUCTION
    return KernelClass.ELEMENTWISE if _ELEMENTWISE.search(text) else KernelClass.OTHER
