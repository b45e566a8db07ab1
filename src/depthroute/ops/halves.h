// Numbers of 16 bits as fp32 and back, by their bits: not every compiler knows the types, and a loop over these
// functions becomes vector code. Narrowing rounds to nearest, ties to even; NaN stays NaN.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

struct Bfloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

inline float float_of(uint32_t bits) {
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

inline uint32_t bits_of(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

inline float widen(Bfloat16 half) { return float_of(uint32_t(half.bits) << 16); }

inline float widen(Float16 half) {
    const uint32_t sign = (half.bits & 0x8000u) << 16, rest = half.bits & 0x7fffu;
    // Exponents count from -15 instead of -127; that of infinity and NaN is the highest in both.
    const uint32_t normal = (rest << 13) + ((rest < 0x7c00u ? 112u : 224u) << 23);
    const uint32_t subnormal = bits_of(static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f);
    return float_of(sign | (rest < 0x400u ? subnormal : normal));
}

inline void narrow(float number, Bfloat16& half) {
    const uint32_t bits = bits_of(number), rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    half.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

inline void narrow(float number, Float16& half) {
    const uint32_t bits = bits_of(number), rest = bits & 0x7fffffffu;
    const uint32_t normal = std::min((rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13, 0x7c00u);
    // The last bit of a number from 1/2 to 1 is worth what that of a subnormal is: adding 1/2 rounds to it.
    const uint32_t subnormal = bits_of(float_of(rest) + 0.5f) - bits_of(0.5f);
    const uint32_t rounded = rest < 113u << 23 ? subnormal : normal;
    half.bits = static_cast<uint16_t>((bits >> 16 & 0x8000u) | (rest > 0x7f800000u ? 0x7e00u : rounded));
}

// What has the right width already.
template <typename T>
T widen(T same) {
    return same;
}

template <typename T>
void narrow(T number, T& same) {
    same = number;
}
