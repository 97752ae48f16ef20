# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from gpuscope.steps.kernel_classes import KernelClass, kernel_class

# Names as the libraries give them: cuBLAS, cuDNN, CUTLASS, PyTorch, Triton's code of Inductor, XLA, CuPy, NCCL.
NAMES = {
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT": KernelClass.TENSOR_PRODUCT,
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1": KernelClass.TENSOR_PRODUCT,
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn": KernelClass.TENSOR_PRODUCT,
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4>(cutlass::Params)": (
        KernelClass.TENSOR_PRODUCT
    ),
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32": KernelClass.TENSOR_PRODUCT,
    "triton_tem_fused_addmm_relu_0": KernelClass.TENSOR_PRODUCT,
    "ampere_sgemm_128x64_tn": KernelClass.PRODUCT,
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize256x128x8_stage3_warpsize4x2x1_ffma_aligna4_alignc4": (
        KernelClass.PRODUCT
    ),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass::Params)": KernelClass.PRODUCT,
    "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(float)": KernelClass.PRODUCT,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(float)": KernelClass.PRODUCT,
    "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>(int)": KernelClass.PRODUCT,
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(Flash_fwd_params)": (
        KernelClass.ATTENTION
    ),
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)": KernelClass.ATTENTION,
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128": KernelClass.ATTENTION,
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp<float>)": (
        KernelClass.REDUCTION
    ),
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)": KernelClass.REDUCTION,
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, true, false>(float*)": (
        KernelClass.REDUCTION
    ),
    "triton_red_fused_native_layer_norm_3": KernelClass.REDUCTION,
    "triton_per_fused__softmax_1": KernelClass.REDUCTION,
    "cupy_sum": KernelClass.REDUCTION,
    "input_reduce_fusion": KernelClass.REDUCTION,
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)": (
        KernelClass.ELEMENTWISE
    ),
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>()": (
        KernelClass.ELEMENTWISE
    ),
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>()": (
        KernelClass.ELEMENTWISE
    ),
    "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>(cudnn::ops::nchw2nhwc_params_t)": (
        KernelClass.ELEMENTWISE
    ),
    "triton_poi_fused_add_relu_2": KernelClass.ELEMENTWISE,
    "loop_add_fusion": KernelClass.ELEMENTWISE,
    "cupy_multiply__float32_float32_float32": KernelClass.ELEMENTWISE,
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": KernelClass.COMMUNICATION,
    "void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>()": KernelClass.COMMUNICATION,
    "gpuscope_spin": KernelClass.OTHER,
    "my_solver(double*, int)": KernelClass.OTHER,
    "": KernelClass.OTHER,
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items(), ids=range(len(NAMES)))
def test_a_kernel_has_the_class_of_its_name(name, expected):
    assert kernel_class(name) is expected


def test_every_class_has_a_label_of_its_own():
    assert len({each.label for each in KernelClass}) == len(KernelClass)
