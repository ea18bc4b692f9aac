#pragma once
#include <bit>
#include <cstdint>
#include <span>

namespace recurve {

// Passes over one row of logits. All of them give the same bits whatever the vector width they run
// with: elements are independent, and sums go into eight fixed lanes. That is also why the
// exponential is our own: the C library's picks a variant by the machine it runs on.

// exp(x) for x <= 0 to within 2 units in the last place; 0 below -708 (where normal doubles end).
// x = k ln 2 + r; the Taylor series of exp(r), |r| <= ln(2) / 2, to the 13th power; times 2^k.
inline double exp_nonpositive(double x) {
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

struct RowMax {
  float value;  // -infinity for an empty row
  int32_t id;   // the lowest id that has it; -1 for an empty row
  bool nan;     // the row has one somewhere; value and id then mean nothing
};

RowMax row_max(std::span<const float> row);

// Sum over the row of exp((row[i] - max) * inverse_temperature); max is the row's and finite.
// weights: null, or (row.size()) and gets the terms.
double exp_sum(std::span<const float> row, float max, double inverse_temperature, double* weights);

}  // namespace recurve
