// HGRN2's gate: the reference against the formula in double, every device against the reference.
#include <gtest/gtest.h>

#include "tests/support/kernels/row_values.h"

namespace recurve::testing::hgrn_gate_test {

struct HgrnGate {
  Floats g, k;
};

HgrnGate run_hgrn_gate(KernelDevice& device, int rows, const Floats& f, const Floats& bound) {
  const int D = static_cast<int>(f.size()) / rows;
  const auto in = device.array(spread(f, D, 2)), bounds = device.array(bound);
  const auto g = device.floats(f.size()), k = device.floats(f.size());
  device.kernels().hgrn_gate(
      {rows, D, D + 2, in.data(), bound.empty() ? nullptr : bounds.data(), g.data(), k.data()},
      *device.stream);
  EXPECT_TRUE(g.guards_intact());
  EXPECT_TRUE(k.guards_intact());
  return {g.read(), k.read()};
}

TEST(HgrnGateReference, IsTheFormula) {
  KernelDevice device("reference");
  const Floats f = values_around_zero();
  for (const float b : {0.0f, 1e-4f, 0.3f, 0.999f}) {
    Floats g, k;
    for (const float x : f) {
      // exp(g) = b + (1 - b) exact_sigmoid(x), and 1 - exp(g) without cancellation.
      const double key = (1 - double{b}) / (1 + std::exp(double{x}));
      k.push_back(static_cast<float>(key));
      if (b == 0 && x < 0) {
        g.push_back(static_cast<float>(x - std::log1p(std::exp(double{x}))));
      } else {
        g.push_back(static_cast<float>(key > 0.5 ? std::log(b + (1 - double{b}) * exact_sigmoid(x))
                                                 : std::log1p(-key)));
      }
    }
    const HgrnGate found = run_hgrn_gate(device, 1, f, Floats(f.size(), b));
    EXPECT_TRUE(close(found.k, k, kFewUlp)) << b;
    // A decay near 1 given as its logarithm is only as exact as the decay: 2^-24.
    EXPECT_TRUE(close(found.g, g, {.absolute = b == 0 ? 1e-37 : 2e-7, .relative = 2e-6})) << b;
    if (b == 0) {
      EXPECT_TRUE(bit_equal(run_hgrn_gate(device, 1, f, {}).g, found.g));
    }
  }
}

class HgrnGateTest : public DeviceTest {};

TEST_P(HgrnGateTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  Floats f = values_around_zero();
  f.push_back(NAN);
  for (const float b : {0.0f, 1e-4f, 0.3f, 0.999f}) {
    const int D = static_cast<int>(f.size());
    const Floats bound(f.size(), b);
    const HgrnGate found = run_hgrn_gate(device, 1, f, bound);
    const HgrnGate wanted = run_hgrn_gate(reference, 1, f, bound);
    EXPECT_TRUE(close(found.k, wanted.k, kFewUlp)) << b;
    EXPECT_TRUE(close(found.g, wanted.g, {.absolute = b == 0 ? 1e-37 : 2e-7, .relative = 2e-6}))
        << b;
    Floats twice = f;
    twice.insert(twice.end(), f.begin(), f.end());
    const HgrnGate both = run_hgrn_gate(device, 2, twice, bound);
    EXPECT_TRUE(bit_equal(std::span(both.g).last(D), found.g)) << b;
    EXPECT_TRUE(bit_equal(std::span(both.k).last(D), found.k)) << b;
    if (b == 0) {
      EXPECT_TRUE(bit_equal(run_hgrn_gate(device, 1, f, {}).g, found.g));
    }
  }
}

RECURVE_ON_EACH_DEVICE(HgrnGateTest);
RECURVE_ON_CUDA(HgrnGateTest);

}  // namespace recurve::testing::hgrn_gate_test
