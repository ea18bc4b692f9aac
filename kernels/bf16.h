#pragma once
#include <bit>
#include <cstdint>

namespace recurve {

// bf16 is the upper half of an fp32.
inline float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Rounds to nearest, ties to even; too large becomes infinity. NaN stays NaN.
inline uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const uint32_t quiet_nan = bits >> 16 | 0x0040;  // rounding could carry a NaN into infinity
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

}  // namespace recurve
