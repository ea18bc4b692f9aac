#include <gtest/gtest.h>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::gated_rms_norm_test {

// A sum of squares of up to 5120 values, and a product of five: 1e-6 relatively, with room.
constexpr Tolerance kTolerance = {.absolute = 1e-6, .relative = 4e-6};

struct Case {
  int rows, D, G;
  bool gate, weight;
  float eps = 1e-5f;
  bool aligned = false;  // rows begin at multiples of 16 bytes, if their width lets them
};

std::vector<float> oracle(const Case& c, const std::vector<float>& x, const std::vector<float>& z,
                          const std::vector<float>& w) {
  const int size = c.D / c.G;
  std::vector<float> y;
  for (int group = 0; group < c.rows * c.G; ++group) {
    const auto gated = [&](int i) {
      const double value = x[group * size + i], gate = z[group * size + i];
      return c.gate ? value * gate / (1 + std::exp(-gate)) : value;
    };
    double squares = 0;
    for (int i = 0; i < size; ++i) squares += square(gated(i));
    for (int i = 0; i < size; ++i) {
      const double weight = c.weight ? w[group % c.G * size + i] : 1;
      y.push_back(static_cast<float>(gated(i) / std::sqrt(squares / size + c.eps) * weight));
    }
  }
  return y;
}

// Rows of x, with a gap of NaN behind each: (rows, D + gap).
std::vector<float> with_gaps(const std::vector<float>& x, int D, int gap) {
  std::vector<float> result;
  for (size_t at = 0; at < x.size(); at += D) {
    result.insert(result.end(), x.begin() + at, x.begin() + at + D);
    result.insert(result.end(), gap, NAN);
  }
  return result;
}

std::vector<float> run(KernelDevice& device, const Case& c, const std::vector<float>& x,
                       const std::vector<float>& z, const std::vector<float>& w, bool in_place) {
  const int x_gap = c.aligned ? 8 : 5, z_gap = c.aligned ? 4 : 2;
  const int y_gap = in_place ? x_gap : (c.aligned ? 12 : 1);
  const auto x_array = device.array(with_gaps(x, c.D, x_gap));
  const auto z_array = device.array(with_gaps(z, c.D, z_gap)), w_array = device.array(w);
  const auto y_array = device.array(std::vector<float>(c.rows * (c.D + y_gap), NAN));
  float* y = in_place ? x_array.data() : y_array.data();
  device.kernels().gated_rms_norm({.rows = c.rows,
                                   .D = c.D,
                                   .G = c.G,
                                   .eps = c.eps,
                                   .x_stride = c.D + x_gap,
                                   .z_stride = c.D + z_gap,
                                   .y_stride = c.D + y_gap,
                                   .x = x_array.data(),
                                   .z = c.gate ? z_array.data() : nullptr,
                                   .w = c.weight ? w_array.data() : nullptr,
                                   .y = y},
                                  *device.stream);
  EXPECT_TRUE(x_array.guards_intact() && y_array.guards_intact());
  const std::vector<float> all = in_place ? x_array.read() : y_array.read();
  std::vector<float> result;
  for (int r = 0; r < c.rows; ++r) {
    const auto row = all.begin() + r * (c.D + y_gap);
    result.insert(result.end(), row, row + c.D);
    for (int i = c.D; i < c.D + y_gap; ++i) EXPECT_TRUE(std::isnan(row[i])) << "gap was written";
  }
  return result;
}

class GatedRmsNormTest : public DeviceTest {};

TEST_P(GatedRmsNormTest, IsTheFormula) {
  KernelDevice device = make_device();
  std::mt19937_64 random(1);
  for (const Case& c : {Case{3, 16, 1, true, true},
                        {1, 1, 1, true, true},
                        {2, 300, 4, true, true},
                        {5, 37, 1, true, false},
                        {4, 32, 2, false, false},
                        {2, 66, 6, false, true},
                        {2, 24, 24, true, true},
                        {3, 40, 8, true, true, 0.5f},
                        {3, 40, 2, true, true, 1e-5f, true},
                        {2, 300, 1, false, false, 1e-5f, true},
                        {2, 5120, 1, true, true, 1e-5f, true},
                        {2, 2048, 2, true, true}}) {
    const auto x = normal_floats(random, c.rows * c.D), z = normal_floats(random, c.rows * c.D, 3);
    const auto w = normal_floats(random, c.D, 0.3f, 1);
    for (const bool in_place : {false, true}) {
      EXPECT_TRUE(close(run(device, c, x, z, w, in_place), oracle(c, x, z, w), kTolerance))
          << c.D << " in " << c.G << (in_place ? " in place" : "");
    }
  }
}

TEST_P(GatedRmsNormTest, ARowIsItselfWhereverItStands) {
  KernelDevice device = make_device();
  std::mt19937_64 random(2);
  const Case many{200, 70, 2, true, true}, one{1, 70, 2, true, true};
  const auto x = normal_floats(random, 200 * 70), z = normal_floats(random, 200 * 70);
  const auto w = normal_floats(random, 70);
  const auto all = run(device, many, x, z, w, false);
  for (const int r : {0, 1, 99, 199}) {
    const auto row = [&](const std::vector<float>& v) {
      return std::vector<float>(v.begin() + r * 70, v.begin() + (r + 1) * 70);
    };
    EXPECT_TRUE(bit_equal(run(device, one, row(x), row(z), w, false), row(all))) << r;
  }
}

TEST_P(GatedRmsNormTest, NanStaysInItsGroup) {
  KernelDevice device = make_device();
  std::mt19937_64 random(3);
  const Case c{2, 40, 2, true, true};
  auto x = normal_floats(random, 80);
  x[25] = NAN;  // row 0, group 1
  const auto y = run(device, c, x, normal_floats(random, 80), normal_floats(random, 40), false);
  for (int i = 0; i < 80; ++i) EXPECT_EQ(std::isnan(y[i]), i >= 20 && i < 40) << i;
}

RECURVE_ON_EACH_DEVICE(GatedRmsNormTest);
RECURVE_ON_CUDA(GatedRmsNormTest);
INSTANTIATE_TEST_SUITE_P(Reference, GatedRmsNormTest,
                         ::testing::Values(DeviceUnderTest{"reference", 1, 0, "reference"}),
                         name_of_device);

}  // namespace recurve::testing::gated_rms_norm_test
