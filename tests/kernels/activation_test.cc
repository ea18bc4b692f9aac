// Functions of single values, by themselves and as gates of a feed-forward layer: the reference
// against the formula in double, every device against the reference.
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/kernels/row_values.h"

namespace recurve::testing::activation_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const Activation kActivations[] = {Activation::kIdentity,    Activation::kSilu,
                                   Activation::kSigmoid,     Activation::kLogSigmoid,
                                   Activation::kTanh,        Activation::kRelu,
                                   Activation::kEluPlusOne,  Activation::kGelu,
                                   Activation::kSquaredRelu, Activation::kGeluTanh};

double exact(Activation f, double x) {
  switch (f) {
    case Activation::kIdentity:
      return x;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kSigmoid:
      return exact_sigmoid(x);
    case Activation::kLogSigmoid:
      return x < -30 ? x : -std::log1p(std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kEluPlusOne:
      return x > 0 ? x + 1 : std::exp(x);
    case Activation::kGelu:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::kGeluTanh:
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  }
  return NAN;
}

Floats run_activation(KernelDevice& device, Activation f, float scale, float floor, int rows,
                      const Floats& x, bool in_place = false) {
  const int width = static_cast<int>(x.size()) / rows, stride = width + 3;
  const auto in = device.array(spread(x, width, 3));
  const auto out = device.floats(in.size());
  const auto& y = in_place ? in : out;
  device.kernels().activation({rows, width, f, scale, floor, stride, stride, in.data(), y.data()},
                              *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return gathered(y.read(), width, 3);
}

// The tail of gelu is a product with erfc of an argument that is rounded: it is off by 2^-24 times
// the square of the argument, 60^2 / 2 at most. The other function is a power of a rounded
// number.
Tolerance tolerance_of(Activation f) {
  if (f == Activation::kGelu || f == Activation::kGeluTanh)
    return {.absolute = 1e-9, .relative = 1e-5};
  return kFewUlp;
}

TEST(ActivationReference, IsTheFormula) {
  KernelDevice device("reference");
  const Floats x = values_around_zero();
  for (const Activation f : kActivations) {
    for (const auto& [scale, floor] : {std::pair{1.0f, -kInfinity}, {0.0625f, -0.2f}}) {
      Floats wanted;
      for (const float value : x) {
        const double y = double{scale} * exact(f, value);
        wanted.push_back(static_cast<float>(std::max(y, double{floor})));
      }
      EXPECT_TRUE(close(run_activation(device, f, scale, floor, 1, x), wanted, tolerance_of(f)))
          << static_cast<int>(f);
    }
  }
}

// ---- glu

Floats run_glu(KernelDevice& device, Activation f, int rows, const Floats& gate_up) {
  const int F = static_cast<int>(gate_up.size()) / rows / 2;
  const auto in = device.array(gate_up);
  const auto y = device.floats(gate_up.size() / 2);
  device.kernels().glu({rows, F, f, in.data(), y.data()}, *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(GluReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(10);
  for (const Activation f : kActivations) {
    const Floats in = normal_floats(random, 3 * 2 * 17, 3);
    Floats wanted;
    for (int r = 0; r < 3; ++r) {
      for (int d = 0; d < 17; ++d) {
        wanted.push_back(static_cast<float>(exact(f, in[r * 34 + d]) * in[r * 34 + 17 + d]));
      }
    }
    EXPECT_TRUE(close(run_glu(device, f, 3, in), wanted, tolerance_of(f))) << static_cast<int>(f);
  }
}

// ---- every device

class ActivationTest : public DeviceTest {};

TEST_P(ActivationTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  Floats x = values_around_zero();
  x.resize(x.size() / 3 * 3);
  for (const Activation f : kActivations) {
    const Floats found = run_activation(device, f, 0.5f, -3, 3, x);
    EXPECT_TRUE(close(found, run_activation(reference, f, 0.5f, -3, 3, x), tolerance_of(f)))
        << static_cast<int>(f);
    EXPECT_TRUE(bit_equal(run_activation(device, f, 0.5f, -3, 3, x, true), found));
  }
}

// Also far from zero, and in arrays of any length.
TEST_P(ActivationTest, AValueDoesNotDependOnItsIndex) {
  KernelDevice reference("reference"), device = make_device();
  for (const Activation f : kActivations) {
    for (const float x : {-kInfinity, -1e30f, -100.0f, -15.5f, -14.5f, -0.3f, 0.0f, 0.7f, 14.5f,
                          100.0f, 1e30f, kInfinity, NAN}) {
      const Floats one = run_activation(device, f, 1, -kInfinity, 1, {x});
      EXPECT_TRUE(close(one, run_activation(reference, f, 1, -kInfinity, 1, {x}), tolerance_of(f)))
          << static_cast<int>(f) << " of " << x;
      const Floats many = run_activation(device, f, 1, -kInfinity, 1, Floats(37, x));
      EXPECT_TRUE(bit_equal(many, Floats(37, one[0]))) << static_cast<int>(f) << " of " << x;
    }
  }
}

// Large enough to be split over threads.
TEST_P(ActivationTest, ThreadsChangeNothing) {
  KernelDevice device = make_device(), alone(GetParam().device, 1);
  std::mt19937_64 random(14);
  const Floats x = normal_floats(random, 300 * 514, 3);
  EXPECT_TRUE(bit_equal(run_activation(device, Activation::kTanh, 1, -kInfinity, 300, x),
                        run_activation(alone, Activation::kTanh, 1, -kInfinity, 300, x)));
  EXPECT_TRUE(bit_equal(run_glu(device, Activation::kGelu, 300, x),
                        run_glu(alone, Activation::kGelu, 300, x)));
}

TEST_P(ActivationTest, GluMatches) {
  KernelDevice reference("reference"), device = make_device();
  const Floats x = values_around_zero();
  for (const Activation f : kActivations) {
    Floats gate_up = x;
    gate_up.resize(2 * x.size(), 0.7f);
    const Floats found = run_glu(device, f, 1, gate_up);
    EXPECT_TRUE(close(found, run_glu(reference, f, 1, gate_up), tolerance_of(f)));
    Floats twice = gate_up;  // the same row, and again after it
    twice.insert(twice.end(), gate_up.begin(), gate_up.end());
    EXPECT_TRUE(
        bit_equal(rows_from(run_glu(device, f, 2, twice), static_cast<int>(x.size()), 1), found));
  }
}

RECURVE_ON_EACH_DEVICE(ActivationTest);
RECURVE_ON_CUDA(ActivationTest);

}  // namespace recurve::testing::activation_test
