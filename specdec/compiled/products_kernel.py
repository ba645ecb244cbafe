"""Products of a few tokens with weights as they lie in the model, as one C++ kernel that inductor compiles.

A call on a few tokens takes as long as reading the weights, so each row of a weight is read once for all of them, and
asked for long before; products of the same tokens are one. In bfloat16 a processor with AMX multiplies more than a few
tokens by its matrix unit. Many tokens go to torch's own library.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings

from specdec.compiled import operations  # noqa: F401, which defines the operation
from specdec.compiled.own_template import OwnTemplate

FEW = 64  # tokens; the library is faster on more
# Bytes of a weight that lie between what is multiplied and what is asked for. By itself a processor asks for too little
# while it multiplies: on an AMD EPYC five tokens took 1.6 times as long as reading, and 1.0 times so. On a Xeon a call
# of SmolLM2 on one token took 25.7 ms, on two 29.6, and 22.5 and 23.1 so.
# Where caches hold all weights, it is asked for into the first cache, which holds that much: a call of the pocket model
# on one token takes 0.8 to 0.9 of the time that it takes by way of the second (EPYC, bfloat16). What comes from memory
# would keep the first cache from asking for anything else: by the second, calls of SmolLM2 on three to six tokens take
# 0.85 to 0.9 of the time (Xeon, float32).
_AHEAD = 16 << 10

_KERNEL = r"""
{{template.header().getvalue()}}
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#ifndef SPECDEC_PRODUCTS  // once for all products of a program
#define SPECDEC_PRODUCTS
{%- if dtype == "bfloat16" %}
#if defined(__AMX_BF16__) && defined(CPU_CAPABILITY_AVX512) && defined(__linux__)
#define SPECDEC_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif
{%- endif %}
struct Products {
    using Stored = {{kernel.dtype(tokens)}};
    using Number = {{number}};
    using Sums = at::vec::Vectorized<Number>;
    // Where numbers are stored narrower than they are added up, a row is read so fast that it would wait for tokens:
    // these are loaded once for several rows.
    static constexpr bool HALF = sizeof(Stored) < sizeof(Number);
    static constexpr int64_t MOST = HALF ? 6 : 12;  // tokens at a time: their sums stay in the registers
    static constexpr bool CACHED = {{cached}};  // the processor's caches hold all weights
    static constexpr int INTO = CACHED ? 3 : 2;  // the cache into which they are asked for; 3 is the first

    const int64_t number, inputs, outputs;  // tokens, and the numbers in a line of them and of the result
    const Stored* const tokens;
{%- if dtype == "bfloat16" %}
#if defined(__AVX512BF16__) && defined(CPU_CAPABILITY_AVX512)
    // The processor's own dot products: pairs are multiplied and added up in float32.
    using Part = __m512bh;
    static constexpr int64_t LANES = 32;
    static Part load(const Stored* from) { return (__m512bh) _mm512_loadu_si512(from); }
    static Sums add(const Part& a, const Part& b, const Sums& sums) { return _mm512_dpbf16_ps(sums, a, b); }
#else
    using Part = Sums;
    static constexpr int64_t LANES = Sums::size();
    static Part load(const Stored* from) { Part wide; at::vec::load_fp32_from_bf16(from, wide); return wide; }
    static Sums add(const Part& a, const Part& b, const Sums& sums) { return at::vec::fmadd(a, b, sums); }
#endif
{%- else %}
    using Part = Sums;
    static constexpr int64_t LANES = Sums::size();
    static Part load(const Stored* from) {
{%- if dtype == "float16" %}
        Part wide;
        at::vec::load_fp32_from_fp16(from, wide);
        return wide;
{%- else %}
        return Part::loadu(from);
{%- endif %}
    }
    static Sums add(const Part& a, const Part& b, const Sums& sums) { return at::vec::fmadd(a, b, sums); }
{%- endif %}

    // Multiply tokens I / R by rows I % R of a weight. Packs, because the compiler keeps an array that a loop fills in
    // memory.
    template <int64_t R, int64_t... I>
    void lines(
        const Stored* token, const Stored* weight, int64_t ahead, Sums* found, std::integer_sequence<int64_t, I...>
    ) const {
        Sums sums[] = {((void) I, Sums(0))...};
        int64_t k = 0;
        if constexpr (sizeof...(I) == 1) {  // a single sum would wait for itself at every number
            Sums second(0), third(0), fourth(0);
            for (; k + 4 * LANES <= inputs; k += 4 * LANES) {
                for (int64_t part = 0; part < 4; part++) {
                    __builtin_prefetch(weight + ahead + k + part * LANES, 0, INTO);
                }
                sums[0] = add(load(weight + k), load(token + k), sums[0]);
                second = add(load(weight + k + LANES), load(token + k + LANES), second);
                third = add(load(weight + k + 2 * LANES), load(token + k + 2 * LANES), third);
                fourth = add(load(weight + k + 3 * LANES), load(token + k + 3 * LANES), fourth);
            }
            sums[0] = (sums[0] + second) + (third + fourth);
        }
        for (; k + LANES <= inputs; k += LANES) {
            for (int64_t r = 0; r < R; r++) {
                __builtin_prefetch(weight + ahead + r * inputs + k, 0, INTO);
            }
            ((sums[I] = add(load(weight + I % R * inputs + k), load(token + I / R * inputs + k), sums[I])), ...);
        }
        if (k < inputs) {  // what is left, behind which zeros stand
            Stored rest[sizeof...(I)][LANES] = {}, of_token[sizeof...(I)][LANES] = {};
            (std::copy_n(weight + I % R * inputs + k, inputs - k, rest[I]), ...);
            (std::copy_n(token + I / R * inputs + k, inputs - k, of_token[I]), ...);
            ((sums[I] = add(load(rest[I]), load(of_token[I]), sums[I])), ...);
        }
        ((found[I] = sums[I]), ...);
    }

    // Add up the numbers of four vectors, and a bias each.
    static void finish(const Sums& a, const Sums& b, const Sums& c, const Sums& d, const Stored* bias, Stored* output) {
        alignas(16) Number sums[4];
{%- if number == "float" %}
#if defined(CPU_CAPABILITY_AVX512)
        const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
        const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
        _mm_store_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(CPU_CAPABILITY_AVX2)
        const __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        _mm_store_ps(sums, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
        for (int i = 0; i < 4; i++) sums[i] = sum(i == 0 ? a : i == 1 ? b : i == 2 ? c : d);
#endif
{%- else %}
        for (int i = 0; i < 4; i++) sums[i] = sum(i == 0 ? a : i == 1 ? b : i == 2 ? c : d);
{%- endif %}
        for (int i = 0; bias != nullptr && i < 4; i++) {
            sums[i] += static_cast<Number>(bias[i]);
        }
{%- if dtype == "bfloat16" %}
#if defined(__AVX512BF16__)
        const __m128bh rounded = _mm_cvtneps_pbh(_mm_load_ps(sums));
        std::memcpy(output, &rounded, 4 * sizeof(Stored));
        return;
#endif
{%- endif %}
        for (int i = 0; i < 4; i++) {
            output[i] = static_cast<Stored>(sums[i]);
        }
    }

    static Number sum(const Sums& sums) {
        return at::vec::vec_reduce_all<Number>([](Sums& x, Sums& y) { return x + y; }, sums);
    }

    // Multiply N tokens by rows of a weight, R rows at once, and ask for what lies `ahead` of them.
    template <int64_t N, int64_t R>
    void multiply(
        const Stored* token, const Stored* weight, int64_t ahead, const Stored* bias, Stored* output, int64_t rows
    ) const {
        int64_t row = 0;
        for (; row + 4 <= rows; row += 4) {
            Sums sums[4][N];  // a block of R rows by N tokens behind another
            for (int64_t r = 0; r < 4; r += R) {
                const Stored* const first = weight + (row + r) * inputs;
                lines<R>(token, first, ahead, sums[r], std::make_integer_sequence<int64_t, R * N>());
            }
            const Sums* const all = sums[0];
            c10::ForcedUnroll<N>{}([&](auto n) {
                auto of = [&](int64_t r) { return all[r / R * R * N + n * R + r % R]; };
                finish(of(0), of(1), of(2), of(3), bias ? bias + row : bias, output + n * outputs + row);
            });
        }
        for (; row < rows; row++) {
            Sums sums[N];
            lines<1>(token, weight + row * inputs, 0, sums, std::make_integer_sequence<int64_t, N>());
            c10::ForcedUnroll<N>{}([&](auto n) {
                const Number added = bias == nullptr ? Number(0) : static_cast<Number>(bias[row]);
                output[n * outputs + row] = static_cast<Stored>(added + sum(sums[n]));
            });
        }
    }

    template <int64_t N = MOST>
    void multiply_some(
        int64_t some, const Stored* token, const Stored* weight, int64_t ahead, const Stored* bias, Stored* output,
        int64_t rows
    ) const {
        if (some == N) {
            // Memory is read fastest in order, one row after another, or for three tokens or more, where they would be
            // waited for, as many rows at once as the processor has registers for their sums.
            constexpr int64_t registers = Sums::size() * sizeof(Number) == 64 ? 32 : 16;
            constexpr auto fits = [](int64_t R) { return HALF && N > 2 && R * N + R + 1 <= registers; };
            multiply<N, (fits(4) ? 4 : fits(2) ? 2 : 1)>(token, weight, ahead, bias, output, rows);
        } else if constexpr (N > 1) {
            multiply_some<N - 1>(some, token, weight, ahead, bias, output, rows);
        }
    }

    // Few tokens: some rows of a weight at a time, which stay in the processor's first cache while all tokens pass.
    void few(const Stored* weight, const Stored* bias, Stored* output, int64_t rows) const {
        int64_t row = 0;
#ifdef SPECDEC_TILES
        row = several(weight, bias, output, rows);
#endif
        const int64_t parts = (number + MOST - 1) / MOST, most = (number + parts - 1) / parts;
        const int64_t step = parts == 1 ? rows : 4;
        for (; row < rows; row += step) {
            for (int64_t n = 0; n < number; n += most) {
                multiply_some(
                    std::min(most, number - n), tokens + n * inputs, weight + row * inputs,
                    n > 0 ? 0 : {{ahead}} / sizeof(Stored), bias ? bias + row : bias, output + n * outputs + row,
                    std::min(step, rows - row)
                );
            }
        }
    }

#ifdef SPECDEC_TILES
    // AMX multiplies 16 rows of a weight, as they lie, by up to 16 tokens, 32 numbers of each at a time. On a Xeon, of
    // the time by vectors a call of two models takes 0.8 on 9 tokens, 0.65 on 17 and 0.4 to 0.5 on 64. On 5 and 6 it
    // takes 0.9 where caches hold all weights, and 1.07 and 1.02 where these come from memory. What is not read yet the
    // processor asks for by itself in time.
    static constexpr int64_t SIDE = 16, DEEP = 32, LEAST = CACHED ? 5 : MOST + 1;
    static bool tiles_allowed() {
        static const bool allowed = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, for tile data
        return allowed;
    }

    // Multiply tokens, as pairs of numbers [inputs / 2, width], of which `some` are real, by T times 16 rows.
    template <int64_t T>
    void tiles(
        const Stored* weight, const uint32_t* pairs, int64_t width, const Stored* bias, Stored* output, int64_t some
    ) const {
        const int64_t line = inputs * sizeof(Stored);
        _tile_zero(0);
        if constexpr (T > 1) { _tile_zero(1); _tile_zero(2); _tile_zero(3); }
        for (int64_t k = 0; k < inputs; k += DEEP) {
            _tile_loadd(6, pairs + k / 2 * width, width * sizeof(uint32_t));
            _tile_loadd(4, weight + k, line);
            _tile_dpbf16ps(0, 4, 6);
            if constexpr (T > 1) {
                _tile_loadd(5, weight + SIDE * inputs + k, line);
                _tile_dpbf16ps(1, 5, 6);
                _tile_loadd(4, weight + 2 * SIDE * inputs + k, line);
                _tile_dpbf16ps(2, 4, 6);
                _tile_loadd(5, weight + 3 * SIDE * inputs + k, line);
                _tile_dpbf16ps(3, 5, 6);
            }
        }
        alignas(64) float sums[T][SIDE][SIDE];  // of rows and tokens
        _tile_stored(0, sums[0], sizeof(sums[0][0]));
        if constexpr (T > 1) {
            _tile_stored(1, sums[1], sizeof(sums[0][0]));
            _tile_stored(2, sums[2], sizeof(sums[0][0]));
            _tile_stored(3, sums[3], sizeof(sums[0][0]));
        }
        const __m512i starts = _mm512_mullo_epi32(
            _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(SIDE)
        );
        for (int64_t t = 0; t < T; t++) {
            Sums added(0);
            if (bias != nullptr) {
                at::vec::load_fp32_from_bf16(bias + t * SIDE, added);
            }
            for (int64_t n = 0; n < some; n++) {
                const __m512 sum = _mm512_add_ps(_mm512_i32gather_ps(starts, sums[t][0] + n, 4), added);
                const __m256bh rounded = _mm512_cvtneps_pbh(sum);
                std::memcpy(output + n * outputs + t * SIDE, &rounded, sizeof(rounded));
            }
        }
    }

    // Several tokens by tiles; returns the number of rows that are done, all but the last few.
    int64_t several(const Stored* weight, const Stored* bias, Stored* output, int64_t rows) const {
        if (number < LEAST || rows < SIDE || inputs % DEEP != 0 || !tiles_allowed()) {
            return 0;
        }
        const int64_t parts = (number + SIDE - 1) / SIDE, width = (number + parts - 1) / parts;
        std::vector<uint32_t> pairs(parts * inputs / 2 * width);
        for (int64_t n = 0; n < number; n++) {
            uint32_t* const to = pairs.data() + n / width * (inputs / 2 * width) + n % width;
            const char* const from = (const char*) (tokens + n * inputs);
            for (int64_t k = 0; k < inputs / 2; k++) {
                std::memcpy(to + k * width, from + k * sizeof(uint32_t), sizeof(uint32_t));
            }
        }
        struct alignas(64) {
            uint8_t palette = 1, rest[15] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int64_t tile = 0; tile < 7; tile++) {  // sums, parts of a weight, and tokens
            shape.rows[tile] = SIDE;
            shape.bytes[tile] = (tile == 4 || tile == 5 ? SIDE : width) * sizeof(uint32_t);
        }
        _tile_loadconfig(&shape);
        int64_t row = 0;
        for (int64_t step = 4 * SIDE; row + SIDE <= rows; row += step) {
            step = row + step <= rows ? step : SIDE;
            for (int64_t part = 0; part < parts; part++) {
                const int64_t n = part * width;
                const Stored* const of = weight + row * inputs;
                const uint32_t* const by = pairs.data() + part * (inputs / 2 * width);
                Stored* const to = output + n * outputs + row;
                const int64_t some = std::min(width, number - n);
                if (step > SIDE) {
                    tiles<4>(of, by, width, bias ? bias + row : bias, to, some);
                } else {
                    tiles<1>(of, by, width, bias ? bias + row : bias, to, some);
                }
            }
        }
        _tile_release();
        return row;
    }
#endif

    static AtenTensorHandle tensor(const Stored* data, int64_t rows, int64_t columns, int64_t row, int64_t column) {
        const int64_t sizes[] = {rows, columns}, strides[] = {row, column};
        AtenTensorHandle made;
        aoti_torch_create_tensor_from_blob(
            const_cast<Stored*>(data), 2, sizes, strides, 0, aoti_torch_dtype_{{dtype}}(),
            aoti_torch_device_type_cpu(), 0, &made
        );
        return made;
    }

    // Many tokens, by torch's library.
    void many(const Stored* weight, const Stored* bias, Stored* output, int64_t rows) const {
        AtenTensorHandle made[] = {
            tensor(output, number, rows, outputs, 1), tensor(tokens, number, inputs, inputs, 1),
            tensor(weight, inputs, rows, 1, inputs), tensor(bias ? bias : weight, number, rows, 0, 1)
        };
        if (bias == nullptr) {
            aoti_torch_cpu_mm_out(made[0], made[1], made[2]);
        } else {
            aoti_torch_cpu_addmm_out(made[0], made[3], made[1], made[2], 1.0, 1.0);
        }
        for (AtenTensorHandle each : made) {
            aoti_torch_delete_tensor_object(each);
        }
    }
};
#endif

extern "C"
{{kernel.def_kernel(inputs=given, outputs={"output": output})}}
{
    {{kernel.maybe_codegen_profile()}}
    constexpr int64_t threads = {{threads}}, rows[] = { {{rows|join(", ")}} };
    const Products::Stored* const weights[] = { {{weights|join(", ")}} };
    const Products::Stored* const biases[] = { {{biases|join(", ")}} };
    const Products of{ {{kernel.size(tokens, 1)}}, {{inputs}}, {{outputs}}, tokens};
    if (of.number > {{few}}) {
        for (int64_t i = 0, begin = 0; i < {{rows|length}}; begin += rows[i++]) {
            of.many(weights[i], biases[i], output + begin, rows[i]);
        }
        return;
    }
    #pragma omp parallel for schedule(static, 1)
    for (int64_t thread = 0; thread < threads; thread++) {
        for (int64_t i = 0, begin = 0; i < {{rows|length}}; begin += rows[i++]) {
            const int64_t share = (rows[i] / threads + 15) / 16 * 16;  // whole lines of memory
            const int64_t first = std::min(thread * share, rows[i]);
            const int64_t last = thread + 1 == threads ? rows[i] : std::min(first + share, rows[i]);
            of.few(
                weights[i] + first * of.inputs, biases[i] ? biases[i] + first : biases[i], output + begin + first,
                last - first
            );
        }
    }
}
"""


def _lowered(tokens: Any, weights: Sequence[Any], biases: Sequence[Any], cached: bool) -> Any:
    nodes = [
        ir.ExternKernel.require_contiguous(ir.ExternKernel.realize_input(each)) for each in (tokens, *weights, *biases)
    ]
    tokens, dtype = nodes[0], nodes[0].get_dtype()
    rows = [node.get_size()[0] for node in nodes[1 : len(weights) + 1]]
    names = [f"weight{number}" for number in range(len(weights))]
    names_of_biases = [f"bias{number}" for number in range(len(biases))]
    template = OwnTemplate(
        "products",
        _KERNEL,
        nodes,
        [*tokens.get_size()[:-1], sum(rows)],
        tokens=tokens,
        given=dict(zip(["tokens", *names, *names_of_biases], nodes, strict=True)),
        dtype=str(dtype).removeprefix("torch."),
        inputs=tokens.get_size()[-1],
        outputs=sum(rows),
        rows=rows,
        weights=names,
        biases=names_of_biases or ["nullptr"] * len(weights),
        few=FEW,
        ahead=_AHEAD,
        cached=str(cached).lower(),
    )
    return template.generate().output_node()


# From the import of this module on, inductor compiles the operation as the kernel.
lowerings[torch.ops.specdec.products.default] = _lowered
