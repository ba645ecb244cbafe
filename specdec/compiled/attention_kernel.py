"""Attention of a few tokens over a cache, as one C++ kernel that inductor compiles into a package.

Inductor's own loops give whole heads to threads, load a key again for every token, and add up one value after another.
Here the threads share the keys of all heads evenly, and a key or value is loaded once for up to eight tokens.
"""

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import lowerings

from specdec.compiled import operations  # noqa: F401, which defines the operation
from specdec.compiled.own_template import OwnTemplate

_ROWS = 8  # at most so many rows at once: their sums stay in the processor's registers
_KEYS = 64  # at once: they stay in its first cache

_KERNEL = r"""
{{template.header().getvalue()}}
{%- set name = kernel.kernel_name ~ "_rows" %}

struct {{name}} {
    using Stored = {{kernel.dtype(key)}};
    using Number = {{number}};
    using Vector = at::vec::Vectorized<Number>;
    static constexpr int64_t LANES = Vector::size(), ROWS = {{rows_at_once}}, KEYS = {{keys_at_once}};
    static constexpr int64_t HEAD = {{kernel.size(query, 3)}}, VALUE = {{kernel.size(value, 3)}};
    static constexpr int64_t HEAD_VECTORS = (HEAD + LANES - 1) / LANES, VALUE_VECTORS = (VALUE + LANES - 1) / LANES;

    // A token and head: its scaled query, and what the keys so far gave. Weights are relative to the largest score.
    struct alignas(64) Row {
        Number query[HEAD_VECTORS * LANES], output[VALUE_VECTORS * LANES], largest, weight;
    };

    static Vector load(const Stored* from) {
{%- if half %}
        Vector wide;
        at::vec::load_fp32_from_{{half}}(from, wide);
        return wide;
{%- else %}
        return Vector::loadu(from);
{%- endif %}
    }

    // Load one of the vectors of SIZE numbers, whose last one ends with zeros.
    template <int64_t SIZE, int64_t INDEX>
    static Vector load_part(const Stored* from) {
        constexpr int64_t LEFT = SIZE - INDEX * LANES;
        if constexpr (LEFT >= LANES) {
            return load(from + INDEX * LANES);
        } else {
            Stored part[LANES] = {};
            std::copy_n(from + INDEX * LANES, LEFT, part);
            return load(part);
        }
    }

    static Number sum(const Vector& vector) {
        return at::vec::vec_reduce_all<Number>([](Vector& x, Vector& y) { return x + y; }, vector);
    }

    static void start(Row& row, const Stored* query) {
        c10::ForcedUnroll<HEAD_VECTORS>{}([&](auto i) {
            (load_part<HEAD, i>(query) * Vector(static_cast<Number>({{scaling}}))).store(row.query + i * LANES);
        });
        std::fill_n(row.output, VALUE_VECTORS * LANES, Number(0));
        row.largest = std::numeric_limits<Number>::lowest();
        row.weight = 0;
    }

    // Ask for a row of SIZE numbers, because products keep the processor from reading far enough ahead.
    template <int64_t SIZE>
    static void prefetch(const Stored* from) {
        for (int64_t i = 0; i < SIZE; i += 64 / sizeof(Stored)) {
            __builtin_prefetch(from + i);
        }
    }

    // Add up to KEYS keys and values to N rows.
    template <int64_t N>
    static void add(
        Row* rows, const Stored* const* masks, const Stored* keys, int64_t key_stride,
        const Stored* values, int64_t value_stride, int64_t count
    ) {
        alignas(64) Number weights[N][KEYS];
        Number kept[N];  // of what a row had before
        for (int64_t s = 0; s < count; s++) {
            prefetch<VALUE>(values + s * value_stride);
            prefetch<HEAD>(keys + (s + KEYS) * key_stride);
            score<N>(rows, keys + s * key_stride, weights[0] + s, std::make_integer_sequence<int64_t, HEAD_VECTORS>());
        }
        const int64_t padded = (count + LANES - 1) / LANES * LANES;
        for (int64_t r = 0; r < N; r++) {
            int64_t masked = 0;
            for (; masked + LANES <= count; masked += LANES) {
                (Vector::loadu(weights[r] + masked) + load(masks[r] + masked)).store(weights[r] + masked);
            }
            for (; masked < count; masked++) {
                weights[r][masked] += static_cast<Number>(masks[r][masked]);
            }
            std::fill(weights[r] + count, weights[r] + padded, -std::numeric_limits<Number>::infinity());
            Vector largest(rows[r].largest), weight(0);
            for (int64_t s = 0; s < padded; s += LANES) {
                largest = at::vec::maximum(largest, Vector::loadu(weights[r] + s));
            }
            const Number before = rows[r].largest;
            rows[r].largest =
                at::vec::vec_reduce_all<Number>([](Vector& x, Vector& y) { return at::vec::maximum(x, y); }, largest);
            for (int64_t s = 0; s < padded; s += LANES) {
                const Vector part = (Vector::loadu(weights[r] + s) - Vector(rows[r].largest)).exp_u20();
                part.store(weights[r] + s);
                weight = weight + part;
            }
            kept[r] = std::exp(before - rows[r].largest);
            rows[r].weight = rows[r].weight * kept[r] + sum(weight);
        }
        c10::ForcedUnroll<VALUE_VECTORS>{}([&](auto i) {
            add_values<i>(
                rows, weights[0], kept, values, value_stride, count, std::make_integer_sequence<int64_t, N>()
            );
        });
    }

    // The scores of N rows by one key, without their masks.
    template <int64_t N, int64_t... I>
    static void score(const Row* rows, const Stored* from, Number* scores, std::integer_sequence<int64_t, I...>) {
        const Vector key[] = {load_part<HEAD, I>(from)...};
        c10::ForcedUnroll<N>{}([&](auto r) {
            Vector products(0);
            ((products = at::vec::fmadd(Vector::loadu(rows[r].query + I * LANES), key[I], products)), ...);
            scores[r * KEYS] = sum(products);
        });
    }

    // Add one of the vectors of each value to the rows R. Packs, because the compiler keeps an array that a loop fills
    // in memory.
    template <int64_t INDEX, int64_t... R>
    static void add_values(
        Row* rows, const Number* weights, const Number* kept, const Stored* values, int64_t stride, int64_t count,
        std::integer_sequence<int64_t, R...>
    ) {
        Vector output[] = {Vector::loadu(rows[R].output + INDEX * LANES) * Vector(kept[R])...};
        for (int64_t s = 0; s < count; s++) {
            const Vector value = load_part<VALUE, INDEX>(values + s * stride);
            ((output[R] = at::vec::fmadd(Vector(weights[R * KEYS + s]), value, output[R])), ...);
        }
        (output[R].store(rows[R].output + INDEX * LANES), ...);
    }

    template <int64_t N = ROWS, typename... Given>
    static void add_to(int64_t number, Given... given) {
        if (number == N) {
            add<N>(given...);
        } else if constexpr (N > 1) {
            add_to<N - 1>(number, given...);
        }
    }

    // Add what another thread found for the same row.
    static void merge(Row& row, const Row& other) {
        const Number largest = std::max(row.largest, other.largest);
        const Number kept = std::exp(row.largest - largest), added = std::exp(other.largest - largest);
        for (int64_t i = 0; i < VALUE_VECTORS * LANES; i++) {
            row.output[i] = row.output[i] * kept + other.output[i] * added;
        }
        row.largest = largest;
        row.weight = row.weight * kept + other.weight * added;
    }
};

extern "C"
{{kernel.def_kernel(inputs={"query": query, "key": key, "value": value, "mask": mask}, outputs={"output": output})}}
{
    {{kernel.maybe_codegen_profile()}}
    using Rows = {{name}};
    constexpr int64_t heads = {{kernel.size(query, 1)}}, groups = {{kernel.size(key, 1)}}, threads = {{threads}};
    const int64_t tokens = {{kernel.size(query, 2)}}, keys = {{kernel.size(key, 2)}};
    const int64_t rows = heads / groups * tokens;  // of a group
    const int64_t share = (groups * keys + threads - 1) / threads;
    // Each thread has rows of its own for each group that it touches.
    std::unique_ptr<Rows::Row[]> found(new Rows::Row[(groups + threads - 1) * rows]);

    #pragma omp parallel for schedule(static, 1)
    for (int64_t thread = 0; thread < threads; thread++) {
        const int64_t end = std::min((thread + 1) * share, groups * keys);
        for (int64_t place = thread * share, next; place < end; place = next) {
            const int64_t g = place / keys, stop = std::min(keys, end - g * keys);
            next = g * keys + stop;
            Rows::Row* const own = found.get() + (g + thread) * rows;
            for (int64_t row = 0; row < rows; row++) {
                const int64_t h = g * (heads / groups) + row / tokens, n = row % tokens;
                Rows::start(own[row], &{{kernel.index(query, [0, "h", "n", 0])}});
            }
            for (int64_t k = place % keys; k < stop; k += Rows::KEYS) {
                for (int64_t row = 0; row < rows; row += Rows::ROWS) {
                    const int64_t number = std::min(Rows::ROWS, rows - row);
                    const Rows::Stored* masks[Rows::ROWS];
                    for (int64_t r = 0; r < number; r++) {
                        const int64_t n = (row + r) % tokens;
                        masks[r] = &{{kernel.index(mask, [0, 0, "n", "k"])}};
                    }
                    Rows::add_to(
                        number, own + row, masks, &{{kernel.index(key, [0, "g", "k", 0])}}, {{kernel.stride(key, 2)}},
                        &{{kernel.index(value, [0, "g", "k", 0])}}, {{kernel.stride(value, 2)}},
                        std::min(Rows::KEYS, stop - k)
                    );
                }
            }
        }
    }
    for (int64_t g = 0; g < groups; g++) {
        const int64_t first = g * keys / share, last = ((g + 1) * keys - 1) / share;
        for (int64_t row = 0; row < rows; row++) {
            const int64_t h = g * (heads / groups) + row / tokens, n = row % tokens;
            Rows::Row& whole = found[(g + first) * rows + row];
            for (int64_t thread = first + 1; thread <= last; thread++) {
                Rows::merge(whole, found[(g + thread) * rows + row]);
            }
            auto to = &{{kernel.index(output, [0, "n", "h", 0])}};
            for (int64_t i = 0; i < Rows::VALUE; i++) {
                to[i] = static_cast<Rows::Stored>(whole.output[i] / whole.weight);
            }
        }
    }
}
"""


def _in_memory(node: Any) -> Any:
    """Return a node that is computed and lies in memory, its last dimension number by number."""
    node = ir.ExternKernel.realize_input(node)
    ir.as_storage_and_layout(node, freeze=True)
    return node if node.get_stride()[-1] == 1 else ir.ExternKernel.require_contiguous(node)


def _lowered(query: Any, key: Any, value: Any, mask: Any, scaling: float) -> Any:
    query, key, value, mask = nodes = [_in_memory(each) for each in (query, key, value, mask)]
    _, heads, tokens, _ = query.get_size()
    template = OwnTemplate(
        "attention",
        _KERNEL,
        nodes,
        [1, tokens, heads, value.get_size()[3]],
        query=query,
        key=key,
        value=value,
        mask=mask,
        half={torch.float16: "fp16", torch.bfloat16: "bf16"}.get(key.get_dtype()),
        scaling=repr(scaling),
        rows_at_once=_ROWS,
        keys_at_once=_KEYS,
    )
    return template.generate().output_node()


# From the import of this module on, inductor compiles the operation as the kernel.
lowerings[torch.ops.specdec.cache_attention.default] = _lowered
