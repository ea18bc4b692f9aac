#pragma once
#include <array>
#include <cstdint>

namespace recurve {

// Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011): ten rounds that scramble a 128-bit counter under a 64-bit
// key. A number is a function of (key, counter) alone.
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Two words of the block numbered `index` in stream `stream` of `seed`.
inline uint64_t random_bits(uint64_t seed, uint64_t index, uint32_t stream) {
  const auto x =
      philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{x[1]} << 32 | x[0];
}

// The uniform number of a request's token number `index`, in (0, 1), both ends excluded: 52 bits
// and a half, which a double holds exactly.
inline double uniform(uint64_t seed, int64_t index) {
  const uint64_t bits = random_bits(seed, static_cast<uint64_t>(index), 0) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace recurve
