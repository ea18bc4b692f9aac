// Layer norm and norms of groups: the reference against the formula in double, every device against
// the reference.
#include <gtest/gtest.h>

#include "tests/support/row_values.h"

namespace recurve::testing::layer_norm_test {

struct NormShape {
  int rows, D, G;
};
const NormShape kNormShapes[] = {{1, 2, 1},    {3, 17, 1},   {2, 64, 4},   {1, 66, 2},
                                 {40, 99, 3},  {2, 1000, 1}, {2, 2560, 1}, {2, 1500, 1},
                                 {300, 50, 1}, {5, 9, 9},    {2, 5000, 1}};

Floats run_layer_norm(KernelDevice& device, const NormShape& s, const Floats& x, const Floats& w,
                      const Floats& b, bool in_place = false, const Floats& residual = {}) {
  const auto in = device.array(x), weight = device.array(w), bias = device.array(b);
  const auto before = device.array(residual);
  const auto out = device.floats(x.size());
  const auto& y = in_place ? in : out;
  device.kernels().layer_norm(
      {s.rows, s.D, s.G, 1e-5f, in.data(), weight.data(), b.empty() ? nullptr : bias.data(),
       residual.empty() ? nullptr : before.data(), y.data()},
      *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(LayerNormReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const NormShape& s : kNormShapes) {
    const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.D, 2, 0.5f);
    const Floats w = normal_floats(random, s.D), b = normal_floats(random, s.D);
    for (const bool biased : {false, true}) {
      Floats wanted;
      const int size = s.D / s.G;
      for (int at = 0; at < s.rows * s.D; ++at) {
        const float* group = &x[at / size * size];
        double mean = 0, variance = 0;
        for (int d = 0; d < size; ++d) mean += double{group[d]} / size;
        for (int d = 0; d < size; ++d) variance += std::pow(group[d] - mean, 2.0) / size;
        const double y = (x[at] - mean) / std::sqrt(variance + 1e-5) * w[at % s.D];
        wanted.push_back(static_cast<float>(y + (biased ? b[at % s.D] : 0)));
      }
      EXPECT_TRUE(close(run_layer_norm(device, s, x, w, biased ? b : Floats()), wanted, kSummed))
          << s.rows << " " << s.D << " " << s.G;
    }
  }
}

TEST(LayerNormReference, AddsTheResidual) {
  KernelDevice device("reference");
  std::mt19937_64 random(9);
  const NormShape s{3, 12, 4};
  const Floats x = normal_floats(random, 36), w = normal_floats(random, 12);
  const Floats residual = normal_floats(random, 36);
  Floats wanted = run_layer_norm(device, s, x, w, {});
  for (size_t at = 0; at < wanted.size(); ++at) wanted[at] += residual[at];
  EXPECT_TRUE(close(run_layer_norm(device, s, x, w, {}, false, residual), wanted, kSummed));
}

// Of a sum that it leaves behind: the same bits as of the sum made before.
void expect_norm_of_sum(KernelDevice& device) {
  std::mt19937_64 random(10);
  const NormShape s{3, 70, 2};
  const Floats x = normal_floats(random, 210), before = normal_floats(random, 210);
  const Floats w = normal_floats(random, 70);
  Floats total = before;
  for (size_t at = 0; at < x.size(); ++at) total[at] += x[at];
  const auto in = device.array(x), sum = device.array(before), weight = device.array(w);
  const auto y = device.floats(x.size());
  device.kernels().layer_norm({.rows = s.rows,
                               .D = s.D,
                               .G = s.G,
                               .eps = 1e-5f,
                               .x = in.data(),
                               .w = weight.data(),
                               .b = nullptr,
                               .residual = nullptr,
                               .y = y.data(),
                               .sum = sum.data()},
                              *device.stream);
  EXPECT_TRUE(bit_equal(sum.read(), total));
  EXPECT_TRUE(bit_equal(y.read(), run_layer_norm(device, s, total, w, {})));
}

TEST(LayerNormReference, NormsASum) {
  KernelDevice device("reference");
  expect_norm_of_sum(device);
}

class LayerNormTest : public DeviceTest {};

TEST_P(LayerNormTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(7);
  for (const NormShape& s : kNormShapes) {
    const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.D, 2, 0.5f);
    const Floats w = normal_floats(random, s.D), b = normal_floats(random, s.D);
    const Floats found = run_layer_norm(device, s, x, w, b);
    // The reference adds up one after the other, which is off by more in long rows.
    auto tolerance = kSummed;
    if (s.D / s.G > 4096) tolerance.absolute *= 4;
    EXPECT_TRUE(close(found, run_layer_norm(reference, s, x, w, b), tolerance)) << s.D;
    EXPECT_TRUE(bit_equal(run_layer_norm(device, s, x, w, b, true), found)) << s.D;
    EXPECT_TRUE(close(run_layer_norm(device, s, x, w, {}, false, x),
                      run_layer_norm(reference, s, x, w, {}, false, x), tolerance))
        << s.D;
    const NormShape one{1, s.D, s.G};  // the last row by itself
    EXPECT_TRUE(bit_equal(run_layer_norm(device, one, rows_from(x, s.D, s.rows - 1), w, b),
                          std::span(found).last(s.D)))
        << s.D;
  }
}

TEST_P(LayerNormTest, NormsASum) {
  KernelDevice device = make_device();
  expect_norm_of_sum(device);
}

TEST_P(LayerNormTest, NanStaysInItsGroup) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(8);
  const NormShape s{3, 66, 2};
  Floats x = normal_floats(random, 3 * 66);
  x[66 + 40] = NAN;  // row 1, group 1
  const Floats w = normal_floats(random, 66);
  EXPECT_TRUE(
      close(run_layer_norm(device, s, x, w, {}), run_layer_norm(reference, s, x, w, {}), kSummed));
}

RECURVE_ON_EACH_DEVICE(LayerNormTest);
RECURVE_ON_CUDA(LayerNormTest);

}  // namespace recurve::testing::layer_norm_test
