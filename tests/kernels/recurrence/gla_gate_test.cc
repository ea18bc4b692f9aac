// GLA's gate: every implementation against the formula in double.
#include <gtest/gtest.h>

#include "tests/support/kernels/row_values.h"

namespace recurve::testing::gla_gate_test {

struct Case {
  int rows, D, R;
  bool bias = true;
  float scale = 1.0f / 16, floor = -INFINITY;
  DType type = DType::kF32;
};

constexpr int kGap = 3;  // behind a row of low

struct Inputs {
  Floats low, W, bias;
};

Inputs random_inputs(const Case& c, std::mt19937_64& random) {
  const size_t weights = static_cast<size_t>(c.D) * c.R;
  return {normal_floats(random, static_cast<size_t>(c.rows) * c.R, 3),
          rounded(normal_floats(random, weights), c.type), normal_floats(random, c.bias ? c.D : 0)};
}

Floats run_gla_gate(KernelDevice& device, const Case& c, const Inputs& in) {
  const auto low = device.array(spread(in.low, c.R, kGap)), bias = device.array(in.bias);
  const auto W = device.array(stored(in.W, c.type));
  const auto g = device.floats(static_cast<size_t>(c.rows) * c.D);
  device.kernels().gla_gate({.rows = c.rows,
                             .W = {c.type, c.D, c.R, W.data()},
                             .bias = c.bias ? bias.data() : nullptr,
                             .scale = c.scale,
                             .floor = c.floor,
                             .low_stride = c.R + kGap,
                             .low = low.data(),
                             .g = g.data()},
                            *device.stream);
  EXPECT_TRUE(g.guards_intact());
  return g.read();
}

Floats exact_gla_gate(const Case& c, const Inputs& in) {
  Floats g;
  for (int row = 0; row < c.rows; ++row) {
    for (int d = 0; d < c.D; ++d) {
      double sum = c.bias ? in.bias[d] : 0;
      for (int r = 0; r < c.R; ++r) sum += double{in.W[d * c.R + r]} * in.low[row * c.R + r];
      const double sigmoid_log =
          sum < 0 ? sum - std::log1p(std::exp(sum)) : -std::log1p(std::exp(-sum));
      g.push_back(static_cast<float>(std::max<double>(sigmoid_log * c.scale, c.floor)));
    }
  }
  return g;
}

class GlaGateTest : public DeviceTest {};

TEST_P(GlaGateTest, IsTheFormula) {
  KernelDevice device = make_device();
  std::mt19937_64 random(1);
  for (const Case& c : {Case{1, 1, 1},
                        {5, 40, 16},
                        {3, 130, 16, true, 1.0f / 16, -1.0f, DType::kBF16},
                        {2, 33, 7, false, 1},
                        {9, 300, 20, true, 0.5f, -INFINITY, DType::kBF16}}) {
    const Inputs in = random_inputs(c, random);
    // A sum of up to 20 products of a few units that may cancel, in fp32.
    EXPECT_TRUE(close(run_gla_gate(device, c, in), exact_gla_gate(c, in),
                      {.absolute = 1e-5, .relative = 1e-5}))
        << c.D << " x " << c.R;
  }
}

TEST_P(GlaGateTest, ARowIsItselfWhereverItStands) {
  KernelDevice device = make_device();
  std::mt19937_64 random(2);
  const Case many{70, 50, 16};
  Case one = many;
  one.rows = 1;
  const Inputs in = random_inputs(many, random);
  const Floats all = run_gla_gate(device, many, in);
  for (const int row : {0, 1, 31, 69}) {
    const auto at = [row](const Floats& v, int width) {
      return Floats(v.begin() + row * width, v.begin() + (row + 1) * width);
    };
    EXPECT_TRUE(bit_equal(run_gla_gate(device, one, {at(in.low, 16), in.W, in.bias}), at(all, 50)))
        << row;
  }
}

TEST_P(GlaGateTest, NanStaysInItsRow) {
  KernelDevice device = make_device();
  std::mt19937_64 random(3);
  const Case c{3, 20, 5, true, 1, -2};
  Inputs in = random_inputs(c, random);
  in.low[7] = NAN;  // of row 1
  const Floats g = run_gla_gate(device, c, in);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(std::isnan(g[i]), i / 20 == 1) << i;
}

RECURVE_ON_EACH_DEVICE(GlaGateTest);
RECURVE_ON_CUDA(GlaGateTest);
INSTANTIATE_TEST_SUITE_P(Reference, GlaGateTest,
                         ::testing::Values(DeviceUnderTest{"reference", 1, 0, "reference"}),
                         name_of_device);

}  // namespace recurve::testing::gla_gate_test
