// Loops over the coordinates of rows, in the processor's vectors. Rows are stored in S and computed with in T: fp32 where
// S is a half, else S itself.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "halves.h"

namespace {

template <typename S>
struct Rows {
    const S* data;
    int64_t stride;
    const S* operator[](int64_t token) const { return data + token * stride; }
};

// A few coordinates side by side; compilers turn it into whatever registers the processor has.
template <typename T>
using Lanes __attribute__((vector_size(64))) = T;
template <typename T>
constexpr int64_t kLanes = 64 / sizeof(T);

template <typename T>
Lanes<T> load(const T* from) {
    Lanes<T> lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

template <typename T, typename S>
void store(S* to, Lanes<T> lanes) {
    if constexpr (std::is_same_v<S, T>)
        std::memcpy(to, &lanes, sizeof lanes);
    else
        for (int64_t lane = 0; lane < kLanes<T>; ++lane) narrow(lanes[lane], to[lane]);
}

// Rows in T: where they lie, if they are stored so, else in memory of one thread that stays in its core's cache.
template <typename S, typename T>
class Widened {
    // Rows begin where a load does not meet two lines of the cache: a read of halves takes a tenth less time so.
    struct alignas(64) Line {
        T lanes[kLanes<T>];
    };
    int64_t lines;
    std::vector<Line> memory;

  public:
    Widened(int64_t rows, int64_t width)
        : lines((width + kLanes<T> - 1) / kLanes<T>), memory(std::is_same_v<S, T> ? 0 : rows * lines) {}

    const T* operator()(const S* row, int64_t n, int64_t place) {
        if constexpr (std::is_same_v<S, T>) {
            return row;
        } else {
            T* __restrict to = reinterpret_cast<T*>(memory.data() + place * lines);
            for (int64_t d = 0; d < n; ++d) to[d] = widen(row[d]);
            return to;
        }
    }
};

// sums[j] = < x, ys[j] > for j < N: x is read once for all of them, and the sums do not wait for each other.
template <int N, typename T>
void some_dots(const T* x, const T* const* ys, int64_t n, T* sums) {
    constexpr int64_t step = 2 * kLanes<T>;
    Lanes<T> even[N] = {}, odd[N] = {};
    int64_t d = 0;
    for (; d + step <= n; d += step) {
        const Lanes<T> x0 = load<T>(x + d), x1 = load<T>(x + d + kLanes<T>);
        for (int j = 0; j < N; ++j) {
            even[j] += x0 * load<T>(ys[j] + d);
            odd[j] += x1 * load<T>(ys[j] + d + kLanes<T>);
        }
    }
    for (int j = 0; j < N; ++j) {
        const Lanes<T> both = even[j] + odd[j];
        T sum = 0;
        for (int64_t lane = 0; lane < kLanes<T>; ++lane) sum += both[lane];
        for (int64_t e = d; e < n; ++e) sum += x[e] * ys[j][e];
        sums[j] = sum;
    }
}

template <typename T>
void dots(const T* x, const T* const* ys, int64_t count, int64_t n, T* sums) {
    for (; count >= 4; count -= 4, ys += 4, sums += 4) some_dots<4>(x, ys, n, sums);
    if (count == 3) some_dots<3>(x, ys, n, sums);
    if (count == 2) some_dots<2>(x, ys, n, sums);
    if (count == 1) some_dots<1>(x, ys, n, sums);
}

// out = sum_i weights[i] rows[i]: the sum stays in registers over a stretch of coordinates.
template <typename T, typename S>
void mix(const T* weights, const T* const* rows, int64_t count, S* __restrict out, int64_t n) {
    constexpr int64_t step = 4 * kLanes<T>;
    int64_t d = 0;
    for (; d + step <= n; d += step) {
        Lanes<T> sum[4] = {};
        for (int64_t i = 0; i < count; ++i)
            for (int part = 0; part < 4; ++part) sum[part] += weights[i] * load<T>(rows[i] + d + part * kLanes<T>);
        for (int part = 0; part < 4; ++part) store<T>(out + d + part * kLanes<T>, sum[part]);
    }
    for (; d < n; ++d) {
        T sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += weights[i] * rows[i][d];
        narrow(sum, out[d]);
    }
}

// The rows of one token lie far apart, too short for the processor to see where the next ones are.
template <typename S>
void fetch(const S* row, int64_t n) {
    for (int64_t d = 0; d < n; d += kLanes<S>) __builtin_prefetch(row + d);
}

// y += c x
template <typename T>
void add(T c, const T* __restrict x, T* __restrict y, int64_t n) {
#pragma omp simd
    for (int64_t d = 0; d < n; ++d) y[d] += c * x[d];
}

}  // namespace
