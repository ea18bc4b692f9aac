#include "tests/support/kernels/normal_floats.h"

#include <algorithm>
#include <cmath>

namespace recurve::testing {
namespace {

// Of [-1, 1).
float uniform(std::mt19937_64& random) {
  constexpr float kLargestBelowOne = 1 - 0x1p-24f;
  const float unit = std::min(static_cast<float>(random()) * 0x1p-64f, kLargestBelowOne);
  return static_cast<float>(2.0f * unit - 1.0);
}

}  // namespace

// Marsaglia's polar method: a point within the unit circle gives two values.
std::vector<float> normal_floats(std::mt19937_64& random, size_t count, float deviation,
                                 float mean) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; i += 2) {
    float x, y, r2;
    do {
      x = uniform(random);
      y = uniform(random);
      r2 = x * x + y * y;
    } while (r2 > 1 || r2 == 0);
    const float scale = std::sqrt(-2 * std::log(r2) / r2);
    values[i] = y * scale * deviation + mean;
    if (i + 1 < count) values[i + 1] = x * scale * deviation + mean;
  }
  return values;
}

}  // namespace recurve::testing
