// Depth reads on a CPU: one pass over the sources of a token while they lie in its core's cache.
//
//   forward    z_qi = < q_q, k_i > / rms(k_i) + prior_i,   a = softmax_i(z),   mixed_q = sum_i a_qi v_i,   lse_q
//   backward   dz_qi = a_qi (dlse_q + < dmixed_q, v_i > - sum_j a_qj < dmixed_q, v_j >)
//              dv_i  = sum_q a_qi dmixed_q
//              dk_i  = sum_q dz_qi (q_q / rms(k_i) - (z_qi - prior_i) k_i / (rank rms(k_i)^2))
//              dq_q  = sum_tokens sum_i dz_qi k_i / rms(k_i),     dprior_i = sum_tokens sum_q dz_qi
//
// A read may go on from an earlier one of other sources: `before` is then one more entry of the softmax, whose logit is
// the earlier lse and whose value the earlier mixture. Gains are folded into the queries by the caller. Sums over tokens
// are taken chunk by chunk, in the same order for any number of threads, so that they repeat to the bit.
//
// Sources, mixtures and their gradients are stored in S; all else is computed and stored in T: fp32 where S is a half,
// else S itself. Rows are widened one token at a time, and what is written is rounded once.
//
// And writes, for those who keep their sources in one place: a source becomes an output, or grows by it.
//
//   write      v = y or v += y,   k = RMSNorm(u) or k += RMSNorm(u)        of a value y and the key rows u beside it

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "rows.h"

namespace {

constexpr int64_t kChunks = 16;

template <typename S, typename T>
struct Read {
    int64_t tokens, width, rank, sources, queries;
    int threads;
    T eps;
    const T* query;            // [query, rank]
    const T* prior;            // [source] or null
    Rows<S> const* key;        // a source each
    Rows<S> const* value;
    const S* mixed_before;     // [query, token, width] or null
    const T* lse_before;       // [query, token] or null

    bool keyed(int64_t i) const {
        return key[i].data != value[i].data + (width - rank) || key[i].stride != value[i].stride;
    }
};

template <typename S, typename T>
void forward(const Read<S, T>& r, S* mixed, T* lse, T* logit, T* scale) {
    const int64_t entries = r.sources + (r.lse_before != nullptr);
#pragma omp parallel num_threads(r.threads)
    {
        std::vector<T> weight(entries), product(r.queries + 1);
        std::vector<const T*> row(entries), with(r.queries + 1);
        Widened<S, T> widened(entries, r.width), widened_key(1, r.rank);
        for (int64_t q = 0; q < r.queries; ++q) with[q] = r.query + q * r.rank;
#pragma omp for schedule(static)
        for (int64_t t = 0; t < r.tokens; ++t) {
            for (int64_t i = 0; i < r.sources && t + 1 < r.tokens; ++i) fetch(r.value[i][t + 1], r.width);
            for (int64_t i = 0; i < r.sources; ++i) {
                row[i] = widened(r.value[i][t], r.width, i);
                const T* key = r.keyed(i) ? widened_key(r.key[i][t], r.rank, 0) : row[i] + (r.width - r.rank);
                with[r.queries] = key;
                dots(key, with.data(), r.queries + 1, r.rank, product.data());
                const T inverse = 1 / std::sqrt(product[r.queries] / r.rank + r.eps);
                scale[i * r.tokens + t] = inverse;
                for (int64_t q = 0; q < r.queries; ++q)
                    logit[(q * r.sources + i) * r.tokens + t] = product[q] * inverse + (r.prior ? r.prior[i] : T(0));
            }
            for (int64_t q = 0; q < r.queries; ++q) {
                for (int64_t i = 0; i < r.sources; ++i) weight[i] = logit[(q * r.sources + i) * r.tokens + t];
                if (r.lse_before) {
                    weight[r.sources] = r.lse_before[q * r.tokens + t];
                    row[r.sources] = widened(r.mixed_before + (q * r.tokens + t) * r.width, r.width, r.sources);
                }
                const T top = *std::max_element(weight.begin(), weight.end());
                T total = 0;
                for (T& w : weight) total += w = std::exp(w - top);
                for (T& w : weight) w /= total;
                lse[q * r.tokens + t] = top + std::log(total);
                mix(weight.data(), row.data(), entries, mixed + (q * r.tokens + t) * r.width, r.width);
            }
        }
    }
}

template <typename S, typename T>
struct Gradients {
    const S* mixed;            // [query, token, width], of the loss by the mixture
    const T* lse;              // [query, token]
    S* const* key;             // a source each, contiguous; null entries where keys are part of the values
    S* const* value;
    T* query;                  // [query, rank]
    T* prior;                  // [source] or null
    S* mixed_before;           // [query, token, width] or null
    T* lse_before;
};

template <typename S, typename T>
void backward(const Read<S, T>& r, const T* lse, const T* logit, const T* scale, const Gradients<S, T>& g) {
    const int64_t offset = r.width - r.rank, wide = r.queries * r.rank;
    std::vector<T> query_sums(kChunks * wide, T(0)), prior_sums(kChunks * r.sources, T(0));
#pragma omp parallel num_threads(r.threads)
    {
        const int64_t pairs = r.queries * r.sources;
        std::vector<T> weight(pairs), slope(pairs), c(2 * r.queries + 1);
        std::vector<const T*> row(r.queries), value(r.sources), with(2 * r.queries + 1);
        Widened<S, T> widened(r.sources + 1, r.width), widened_key(1, r.rank), widened_mixed(r.queries, r.width);
#pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
            T* query_sum = query_sums.data() + chunk * wide;
            T* prior_sum = prior_sums.data() + chunk * r.sources;
            const int64_t stop = r.tokens * (chunk + 1) / kChunks;
            for (int64_t t = r.tokens * chunk / kChunks; t < stop; ++t) {
                for (int64_t i = 0; i < r.sources && t + 1 < stop; ++i) fetch(r.value[i][t + 1], r.width);
                for (int64_t q = 0; q < r.queries; ++q)
                    row[q] = widened_mixed(g.mixed + (q * r.tokens + t) * r.width, r.width, q);
                for (int64_t i = 0; i < r.sources; ++i) {
                    value[i] = widened(r.value[i][t], r.width, i);
                    dots(value[i], row.data(), r.queries, r.width, slope.data() + i * r.queries);
                }
                for (int64_t q = 0; q < r.queries; ++q) {
                    const int64_t place = q * r.tokens + t;
                    T mean = 0, weight_before = 0, slope_before = 0;
                    if (r.lse_before) {
                        const T* mixed_before = widened(r.mixed_before + place * r.width, r.width, r.sources);
                        weight_before = std::exp(r.lse_before[place] - lse[place]);
                        some_dots<1>(row[q], &mixed_before, r.width, &slope_before);
                        mean = weight_before * slope_before;
                    }
                    for (int64_t i = 0; i < r.sources; ++i) {
                        const int64_t pair = i * r.queries + q;
                        weight[pair] = std::exp(logit[(q * r.sources + i) * r.tokens + t] - lse[place]);
                        mean += weight[pair] * slope[pair];
                    }
                    const T shift = g.lse[place] - mean;
                    for (int64_t i = 0; i < r.sources; ++i) {
                        const int64_t pair = i * r.queries + q;
                        slope[pair] = weight[pair] * (slope[pair] + shift);
                    }
                    if (r.lse_before) {
                        g.lse_before[place] = weight_before * (slope_before + shift);
                        mix(&weight_before, &row[q], 1, g.mixed_before + place * r.width, r.width);
                    }
                }
                for (int64_t i = 0; i < r.sources; ++i) {
                    const T* key = g.key[i] ? widened_key(r.key[i][t], r.rank, 0) : value[i] + offset;
                    const T inverse = scale[i * r.tokens + t];
                    const T* dz = slope.data() + i * r.queries;
                    T along = 0;
                    for (int64_t q = 0; q < r.queries; ++q) {
                        const T z = logit[(q * r.sources + i) * r.tokens + t] - (r.prior ? r.prior[i] : T(0));
                        // A source that its prior hides has no logit, and no gradient.
                        if (dz[q] != 0) along += dz[q] * z;
                        prior_sum[i] += dz[q];
                        add(dz[q] * inverse, key, query_sum + q * r.rank, r.rank);
                    }
                    // [weights . dmixed] + [dz . queries / rms] - along . key / (rank rms^2), where keys are values at once.
                    const T* a = weight.data() + i * r.queries;
                    for (int64_t q = 0; q < r.queries; ++q) c[q] = dz[q] * inverse;
                    c[r.queries] = -along * inverse * inverse / r.rank;
                    for (int64_t q = 0; q < r.queries; ++q) with[q] = r.query + q * r.rank;
                    with[r.queries] = key;
                    S* dvalue = g.value[i] + t * r.width;
                    if (g.key[i]) {
                        mix(a, row.data(), r.queries, dvalue, r.width);
                        mix(c.data(), with.data(), r.queries + 1, g.key[i] + t * r.rank, r.rank);
                    } else {
                        mix(a, row.data(), r.queries, dvalue, offset);
                        for (int64_t q = 0; q < r.queries; ++q) {
                            c[r.queries + 1 + q] = a[q];
                            with[r.queries + 1 + q] = row[q] + offset;
                        }
                        mix(c.data(), with.data(), 2 * r.queries + 1, dvalue + offset, r.rank);
                    }
                }
            }
        }
    }
    std::fill(g.query, g.query + wide, T(0));
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) add(T(1), query_sums.data() + chunk * wide, g.query, wide);
    if (!g.prior) return;
    std::fill(g.prior, g.prior + r.sources, T(0));
    for (int64_t chunk = 0; chunk < kChunks; ++chunk) add(T(1), prior_sums.data() + chunk * r.sources, g.prior, r.sources);
}

// What Python gives: six sizes, the row strides of every key and then of every value, and addresses: query, prior, mixed
// and lse before, every key, every value; for backward lse, logit, scale and the gradients of mixed and lse; the outputs.
void* const* addresses(const int64_t* sizes) { return reinterpret_cast<void* const*>(sizes + 6 + 2 * sizes[3]); }

template <typename S, typename T>
Read<S, T> read_of(const int64_t* sizes, double eps, std::vector<Rows<S>>& rows) {
    Read<S, T> r;
    void* const* in = addresses(sizes);
    r.tokens = sizes[0], r.width = sizes[1], r.rank = sizes[2], r.sources = sizes[3], r.queries = sizes[4];
    r.threads = static_cast<int>(sizes[5]), r.eps = static_cast<T>(eps);
    r.query = static_cast<const T*>(in[0]), r.prior = static_cast<const T*>(in[1]);
    r.mixed_before = static_cast<const S*>(in[2]), r.lse_before = static_cast<const T*>(in[3]);
    rows.resize(2 * r.sources);
    for (int64_t i = 0; i < 2 * r.sources; ++i) rows[i] = {static_cast<const S*>(in[4 + i]), sizes[6 + i]};
    r.key = rows.data(), r.value = rows.data() + r.sources;
    return r;
}

template <typename S, typename T>
void forward_of(const int64_t* sizes, double eps) {
    std::vector<Rows<S>> rows;
    const Read<S, T> r = read_of<S, T>(sizes, eps, rows);
    void* const* out = addresses(sizes) + 4 + 2 * r.sources;
    T* const* to = reinterpret_cast<T* const*>(out);
    forward(r, static_cast<S*>(out[0]), to[1], to[2], to[3]);
}

template <typename S, typename T>
void backward_of(const int64_t* sizes, double eps) {
    std::vector<Rows<S>> rows;
    const Read<S, T> r = read_of<S, T>(sizes, eps, rows);
    void* const* saved = addresses(sizes) + 4 + 2 * r.sources;
    void* const* out = saved + 5;
    T* const* from = reinterpret_cast<T* const*>(saved);
    T* const* to = reinterpret_cast<T* const*>(out);
    S* const* wide = reinterpret_cast<S* const*>(out);
    const S* mixed = static_cast<const S*>(saved[3]);
    const Gradients<S, T> g{mixed, from[4], wide + 4, wide + 4 + r.sources, to[0], to[1], wide[2], to[3]};
    backward(r, from[0], from[1], from[2], g);
}

// place = c x, or place += c x
template <typename S, typename T>
void put(T c, const S* x, bool opens, S* __restrict place, int64_t n) {
    for (int64_t d = 0; d < n; ++d) {
        const T output = c * widen(x[d]);
        narrow(opens ? output : widen(place[d]) + output, place[d]);
    }
}

// What Python gives: tokens, width, rank (0: no keys), whether the output opens a source, the row strides of value and
// key rows, and addresses: the source's value and key, the output's value and key rows.
template <typename S, typename T>
void write_of(const int64_t* sizes, double eps) {
    const int64_t tokens = sizes[0], width = sizes[1], rank = sizes[2];
    const bool opens = sizes[3];
    void* const* at = reinterpret_cast<void* const*>(sizes + 6);
    S *const value = static_cast<S*>(at[0]), *const key = static_cast<S*>(at[1]);
    const Rows<S> output{static_cast<const S*>(at[2]), sizes[4]}, u{static_cast<const S*>(at[3]), sizes[5]};
    for (int64_t t = 0; t < tokens; ++t) {
        put(T(1), output[t], opens, value + t * width, width);
        if (!rank) continue;
        T square = 0;
#pragma omp simd reduction(+ : square)
        for (int64_t d = 0; d < rank; ++d) square += widen(u[t][d]) * widen(u[t][d]);
        put(1 / std::sqrt(square / rank + static_cast<T>(eps)), u[t], opens, key + t * rank, rank);
    }
}

}  // namespace

// What Python gives: a count, then of each piece of memory its bytes, its address and that of its copy.
extern "C" int64_t unchanged(const int64_t* numbers) {
    for (int64_t i = 0; i < numbers[0]; ++i) {
        const int64_t* piece = numbers + 1 + 3 * i;
        void* const* at = reinterpret_cast<void* const*>(piece + 1);
        if (std::memcmp(at[0], at[1], piece[0])) return 0;
    }
    return 1;
}

#define EXPORT(name, S, T)                                                                                \
    extern "C" void attend_##name(const int64_t* sizes, double eps) { forward_of<S, T>(sizes, eps); }     \
    extern "C" void gradients_##name(const int64_t* sizes, double eps) { backward_of<S, T>(sizes, eps); } \
    extern "C" void write_##name(const int64_t* sizes, double eps) { write_of<S, T>(sizes, eps); }

EXPORT(float, float, float)
EXPORT(double, double, double)
EXPORT(bfloat16, Bfloat16, float)
EXPORT(float16, Float16, float)
