#pragma once
// For the tests of ops that take rows one by one.
#include <cmath>
#include <vector>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing {

using Floats = std::vector<float>;

// Sums of up to 1000 values in fp32 and then a few operations, each within 3 ulp.
inline constexpr Tolerance kSummed = {.absolute = 2e-6, .relative = 1e-5};
// Nothing but a few operations within 3 ulp.
inline constexpr Tolerance kFewUlp = {.absolute = 1e-37, .relative = 8 * 0x1p-23};

inline double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Rows of `width` with `gap` unused floats after each, which are NaN.
inline Floats spread(const Floats& x, int width, int gap) {
  Floats out;
  for (size_t at = 0; at < x.size(); at += width) {
    out.insert(out.end(), x.begin() + at, x.begin() + at + width);
    out.resize(out.size() + gap, NAN);
  }
  return out;
}

// The rows again without the gaps, which must still be NaN.
inline Floats gathered(const Floats& x, int width, int gap) {
  Floats out;
  for (size_t at = 0; at < x.size(); at += width + gap) {
    out.insert(out.end(), x.begin() + at, x.begin() + at + width);
    for (int past = 0; past < gap; ++past) EXPECT_TRUE(std::isnan(x[at + width + past]));
  }
  return out;
}

// Rows from `first` on.
inline Floats rows_from(const Floats& x, int width, int first) {
  return {x.begin() + static_cast<ptrdiff_t>(first) * width, x.end()};
}

// From where nothing is left of a sigmoid to where nothing is left of its complement.
inline Floats values_around_zero() {
  Floats values = {0.0f, -0.0f};
  for (float x = -60; x < 60; x += 0.37f) values.push_back(x);
  for (float size = 1e-20f; size < 1; size *= 3) {
    values.push_back(size);
    values.push_back(-size);
  }
  return values;
}

}  // namespace recurve::testing
