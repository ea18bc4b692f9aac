// The feature maps of linear attention: the reference against the formulas in double, every device
// against the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::feature_map_test {

using Floats = std::vector<float>;

// Sums of up to 2 x 64 positive values, and quotients.
constexpr Tolerance kTolerance = {.absolute = 1e-6, .relative = 1e-5};

struct Case {
  FeatureMap map;
  int rows, H, D;
  float sum_eps;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = [] {
    std::vector<Case> all;
    for (const FeatureMap map :
         {FeatureMap::kNone, FeatureMap::kSoftmax, FeatureMap::kProduct, FeatureMap::kDpfp}) {
      for (const auto& [rows, H, D] : {std::tuple{1, 1, 1}, {3, 2, 8}, {5, 3, 7}, {2, 1, 64}}) {
        for (const float sum_eps : {0.0f, 1e-4f}) all.push_back({map, rows, H, D, sum_eps});
      }
    }
    return all;
  }();
  return kCases;
}

int inputs(const Case& c) { return c.map == FeatureMap::kProduct ? 2 * c.D : c.D; }

// Positive where the sum of a row divides it, so that it is not near zero.
Floats random_input(const Case& c, std::mt19937_64& random) {
  Floats x = normal_floats(random, static_cast<size_t>(c.rows) * c.H * inputs(c));
  for (float& value : x) value = c.sum_eps > 0 ? std::fabs(value) : value;
  return x;
}

// Rows with a gap of NaN after each.
Floats run(KernelDevice& device, const Case& c, const Floats& x) {
  constexpr int kGap = 3;
  const int width = c.H * inputs(c);
  Floats spread;
  for (int r = 0; r < c.rows; ++r) {
    spread.insert(spread.end(), x.begin() + r * width, x.begin() + (r + 1) * width);
    spread.resize(spread.size() + kGap, NAN);
  }
  const auto in = device.array(spread);
  const auto out = device.floats(static_cast<size_t>(c.rows) * c.H * c.D * mapped_width(c.map));
  device.kernels().feature_map({.rows = c.rows,
                                .H = c.H,
                                .D = c.D,
                                .map = c.map,
                                .sum_eps = c.sum_eps,
                                .x_stride = width + kGap,
                                .x = in.data(),
                                .y = out.data()},
                               *device.stream);
  EXPECT_TRUE(out.guards_intact());
  return out.read();
}

// Value number i of the map of one head, by its formula.
double value_of(const Case& c, const float* x, int i) {
  const int D = c.D;
  const auto relu = [&](int at) {  // of [x, -x]
    at = (at % (2 * D) + 2 * D) % (2 * D);
    return std::max<double>(at < D ? x[at] : -x[at - D], 0);
  };
  switch (c.map) {
    case FeatureMap::kNone:
      return x[i];
    case FeatureMap::kProduct:
      return double{x[i]} * x[D + i];
    case FeatureMap::kSoftmax: {
      double sum = 0;
      for (int d = 0; d < D; ++d) sum += std::exp(2.0 * x[d]) + std::exp(-2.0 * x[d]);
      return std::exp(i < D ? 2.0 * x[i] : -2.0 * x[i - D]) / sum;
    }
    case FeatureMap::kDpfp:
      return relu(i % (2 * D)) * relu(i % (2 * D) - (i / (2 * D) + 1));
  }
  return NAN;
}

TEST(FeatureMapReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const Case& c : cases()) {
    const Floats x = random_input(c, random);
    Floats wanted;
    for (int head = 0; head < c.rows * c.H; ++head) {
      const int count = c.D * mapped_width(c.map);
      double sum = c.sum_eps;
      for (int i = 0; i < count; ++i) sum += value_of(c, &x[head * inputs(c)], i);
      for (int i = 0; i < count; ++i) {
        const double value = value_of(c, &x[head * inputs(c)], i);
        wanted.push_back(static_cast<float>(c.sum_eps > 0 ? value / sum : value));
      }
    }
    EXPECT_TRUE(close(run(device, c, x), wanted, kTolerance))
        << static_cast<int>(c.map) << " D " << c.D << " eps " << c.sum_eps;
  }
}

TEST(FeatureMapReference, SoftmaxOfLargeValues) {
  KernelDevice device("reference");
  const Case c{FeatureMap::kSoftmax, 1, 1, 2, 0};
  EXPECT_EQ(run(device, c, {1e4f, -3}), (Floats{1, 0, 0, 0}));
}

class FeatureMapTest : public DeviceTest {};

TEST_P(FeatureMapTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(2);
  for (const Case& c : cases()) {
    const Floats x = random_input(c, random);
    const Floats found = run(device, c, x);
    EXPECT_TRUE(close(found, run(reference, c, x), kTolerance)) << static_cast<int>(c.map);
    Case one = c;  // the last row by itself
    one.rows = 1;
    const size_t width = static_cast<size_t>(c.H) * inputs(c);
    const Floats last = run(device, one, {x.end() - static_cast<ptrdiff_t>(width), x.end()});
    EXPECT_TRUE(bit_equal(last, std::span(found).last(last.size())));
  }
}

RECURVE_ON_EACH_DEVICE(FeatureMapTest);
RECURVE_ON_CUDA(FeatureMapTest);

}  // namespace recurve::testing::feature_map_test
