#pragma once
#include <array>
#include <bit>
#include <cstdint>

namespace recurve {

// The arithmetic of sampling. Every backend computes just this, without fused multiply-add, so that
// all of them draw the same ids from the same logits. Weights and orders are whole numbers: sums of
// them are the same in any order of addition.

// exp(x) for x <= 0 to within 2 units in the last place; 0 below -708 (where normal doubles end).
// x = k ln 2 + r; the Taylor series of exp(r), |r| <= ln(2) / 2, to the 13th power; times 2^k.
constexpr double exp_nonpositive(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep0;
  constexpr double kLn2High = 0x1.62e42feep-1;  // few enough bits for k * kLn2High to be exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer, in the low bits
  constexpr double kFloor = -708;
  const double rounded = x * kLog2E + kRound;
  const double k = rounded - kRound;
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const double scale = std::bit_cast<double>((std::bit_cast<uint64_t>(rounded) + 1023) << 52);
  // Below the floor all of the above is meaningless; masked, since a branch is not vectorised.
  const uint64_t keep = -static_cast<uint64_t>(x >= kFloor);
  return std::bit_cast<double>(std::bit_cast<uint64_t>(p * scale) & keep);
}

// To the nearest integer, ties to even; 0 <= x < 2^52.
constexpr uint64_t rounded_integer(double x) {
  return std::bit_cast<uint64_t>(x + 0x1p52) & ((uint64_t{1} << 52) - 1);
}

// An id's logit as seen from the greatest one of the row, divided by the temperature: how far
// below, in nats. Ids further below than this have the weight 0 and are never drawn.
constexpr double kFarthest = 32;
constexpr double nats_below(float logit, float max, double inverse_temperature) {
  return (static_cast<double>(max) - static_cast<double>(logit)) * inverse_temperature;
}

// exp(-nats) in units of 2^-44: the weights of 2^18 ids add up to less than 2^63.
constexpr double kWeightUnit = 0x1p44;
constexpr uint64_t weight_of(double exp_of_nats) {
  return rounded_integer(exp_of_nats * kWeightUnit);
}
// exp(-nats) nats, the same way; at most 1 / e.
constexpr uint64_t weighted_nats(double exp_of_nats, double nats) {
  return rounded_integer(exp_of_nats * nats * kWeightUnit);
}

// A place in an order of ids by a distance in [0, kFarthest), in steps of 2^-46.
constexpr int kOrderBits = 51;
constexpr uint64_t order_of(double distance) { return rounded_integer(distance * 0x1p46); }

// The weight that a fraction of `total` asks for, in [1, total]; total > 0, fraction in [0, 1].
constexpr uint64_t share_of(double fraction, uint64_t total) {
  const double share = fraction * static_cast<double>(total);
  const uint64_t whole = static_cast<uint64_t>(share);
  const uint64_t up = whole + (static_cast<double>(whole) < share ? 1 : 0);
  return up < 1 ? 1 : up > total ? total : up;
}

// Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011): ten rounds that scramble a 128-bit counter under a 64-bit
// key. A number is a function of (key, counter) alone.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
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
constexpr uint64_t random_bits(uint64_t seed, uint64_t index, uint32_t stream) {
  const auto x =
      philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{x[1]} << 32 | x[0];
}

// The uniform number of a request's token number `index`, in (0, 1), both ends excluded: 52 bits
// and a half, which a double holds exactly.
constexpr double uniform(uint64_t seed, int64_t index) {
  const uint64_t bits = random_bits(seed, static_cast<uint64_t>(index), 0) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace recurve
