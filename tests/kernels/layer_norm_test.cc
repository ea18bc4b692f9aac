// Layer norm and norms of groups: the reference and every device against the formula in double.
#include <gtest/gtest.h>

#include "tests/support/kernels/row_values.h"

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

// The formula in double: a sum in fp32, one value after the other, is off by more than a device is.
Floats formula(const NormShape& s, const Floats& x, const Floats& w, const Floats& b,
               const Floats& residual = {}) {
  Floats y;
  const int size = s.D / s.G;
  for (int at = 0; at < s.rows * s.D; ++at) {
    const float* group = &x[at / size * size];
    double mean = 0, variance = 0;
    for (int d = 0; d < size; ++d) mean += double{group[d]} / size;
    for (int d = 0; d < size; ++d) variance += square(group[d] - mean) / size;
    const double normed = (x[at] - mean) / std::sqrt(variance + 1e-5) * w[at % s.D];
    y.push_back(static_cast<float>(normed + (b.empty() ? 0 : b[at % s.D]) +
                                   (residual.empty() ? 0 : residual[at])));
  }
  return y;
}

TEST(LayerNormReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(1);
  for (const NormShape& s : kNormShapes) {
    const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.D, 2, 0.5f);
    const Floats w = normal_floats(random, s.D), b = normal_floats(random, s.D);
    for (const Floats& bias : {b, Floats()}) {
      EXPECT_TRUE(close(run_layer_norm(device, s, x, w, bias), formula(s, x, w, bias), kSummed))
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

TEST_P(LayerNormTest, IsTheFormula) {
  KernelDevice device = make_device();
  std::mt19937_64 random(7);
  for (const NormShape& s : kNormShapes) {
    const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.D, 2, 0.5f);
    const Floats w = normal_floats(random, s.D), b = normal_floats(random, s.D);
    const Floats found = run_layer_norm(device, s, x, w, b);
    EXPECT_TRUE(close(found, formula(s, x, w, b), kSummed)) << s.D;
    EXPECT_TRUE(bit_equal(run_layer_norm(device, s, x, w, b, true), found)) << s.D;
    EXPECT_TRUE(
        close(run_layer_norm(device, s, x, w, {}, false, x), formula(s, x, w, {}, x), kSummed))
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
