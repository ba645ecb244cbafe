"""Products in bfloat16 by the processor's own dot products (AVX512-BF16).

Inductor's templates use AMX or else convert every weight to float32, which takes longer than reading it.
"""

from typing import Any

import torch
import torch._inductor.kernel.mm  # first, because the templates and the products import each other
from torch._inductor.codegen.cpp_micro_gemm import (
    CppMicroGemmConfig,
    CppMicroGemmFP32Vec,
    LayoutType,
    generate_gemm_config,
    register_micro_gemm,
)
from torch._inductor.cpu_vec_isa import VecAVX512


def _fits(config: CppMicroGemmConfig, m: Any, n: Any, k: Any, alpha: float, threads: int, **options: Any) -> bool:
    return options["vec_isa"].is_avx512_bf16_supported() and k % 2 == 0 and alpha == 1


# From the import of this module on, inductor has the kernel among its own.
@register_micro_gemm(
    *generate_gemm_config(
        VecAVX512,
        [(8, 48, 2), (8, 32, 2), (16, 16, 2)],
        input_dtype=torch.bfloat16,
        output_dtype=torch.float,
        extra_check=_fits,
    )
)
class DotProducts(CppMicroGemmFP32Vec):
    """A kernel for a block of a product: weights lie as pairs of rows, which one instruction multiplies and adds up in
    float32.
    """

    TEMPLATE_KERNEL = r"""
template <int64_t BLOCK_M, int64_t BLOCK_N, bool accum, bool prefetch=false>
inline void {{kernel_name}}_kernel(
    const {{input_t}}* {{restrict_keyword}} A,
    const {{input2_t}}* {{restrict_keyword}} B,
    {{output_t}}* {{restrict_keyword}} C,
    int64_t K,
    int64_t lda,
    int64_t ldb,
    int64_t ldc
) {
    constexpr int COLS = BLOCK_N / 16;
    __m512bh a, b[COLS];
    __m512 c[BLOCK_M * COLS];

    c10::ForcedUnroll<BLOCK_M * COLS>{}([&](auto i) {
        c[i] = accum ? _mm512_loadu_ps(C + i / COLS * ldc + i % COLS * 16) : _mm512_setzero_ps();
    });
    auto compute = [&](auto i, int64_t k) {
        constexpr int row = i / COLS, col = i % COLS;
        if constexpr (col == 0) {
            int32_t pair;
            std::memcpy(&pair, A + row * lda + k, sizeof(pair));
            a = (__m512bh) _mm512_set1_epi32(pair);
        }
        if constexpr (row == 0) {
            // [K / 2, N, 2]
            const {{input2_t}}* weights = B + k * ldb + col * 32;
            b[col] = (__m512bh) _mm512_loadu_si512(weights);
        }
        c[i] = _mm512_dpbf16_ps(c[i], a, b[col]);
    };
    for (int64_t k = 0; k < K; k += 2) {
        c10::ForcedUnroll<BLOCK_M * COLS>{}(compute, k);
    }
    c10::ForcedUnroll<BLOCK_M * COLS>{}([&](auto i) {
        _mm512_storeu_ps(C + i / COLS * ldc + i % COLS * 16, c[i]);
    });
}
"""

    def get_b_layout(self) -> LayoutType:
        """Return the layout of the weights: two rows after one another, column by column."""
        return LayoutType.VNNI2
