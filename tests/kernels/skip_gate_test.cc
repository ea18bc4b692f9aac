// What leaves the mLSTM block of the xLSTM paper: the reference against the formula in double,
// every device against the reference.
#include <gtest/gtest.h>

#include "tests/support/kernels/row_values.h"

namespace recurve::testing::skip_gate_test {

struct SkipGate {
  int rows, D;
  Floats h, skip, x, z;
};

SkipGate make_skip_gate(int rows, int D, std::mt19937_64& random) {
  const size_t count = static_cast<size_t>(rows) * D;
  return {rows,
          D,
          normal_floats(random, count),
          normal_floats(random, D),
          normal_floats(random, count),
          normal_floats(random, count, 4)};
}

Floats run_skip_gate(KernelDevice& device, const SkipGate& in, bool in_place = false) {
  const auto h = device.array(in.h), skip = device.array(in.skip);
  const auto x = device.array(spread(in.x, in.D, 2)), z = device.array(spread(in.z, in.D, 7));
  const auto out = device.floats(in.h.size());
  const auto& y = in_place ? h : out;
  device.kernels().skip_gate(
      {in.rows, in.D, in.D + 2, in.D + 7, h.data(), skip.data(), x.data(), z.data(), y.data()},
      *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(SkipGateReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(11);
  for (const auto& [rows, D] : {std::pair{1, 1}, {3, 17}, {40, 64}}) {
    const SkipGate in = make_skip_gate(rows, D, random);
    Floats wanted;
    for (size_t at = 0; at < in.h.size(); ++at) {
      const double sum = in.h[at] + double{in.skip[at % D]} * in.x[at];
      wanted.push_back(static_cast<float>(sum * in.z[at] * exact_sigmoid(in.z[at])));
    }
    EXPECT_TRUE(close(run_skip_gate(device, in), wanted, {.absolute = 2e-6, .relative = 1e-6}));
  }
}

class SkipGateTest : public DeviceTest {};

TEST_P(SkipGateTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(12);
  for (const auto& [rows, D] : {std::pair{1, 1}, {7, 33}, {2, 16}, {300, 70}}) {
    const SkipGate in = make_skip_gate(rows, D, random);
    const Floats found = run_skip_gate(device, in);
    EXPECT_TRUE(close(found, run_skip_gate(reference, in), {.absolute = 2e-6, .relative = 1e-6}));
    EXPECT_TRUE(bit_equal(run_skip_gate(device, in, true), found));
    const SkipGate last{1,
                        D,
                        rows_from(in.h, D, rows - 1),
                        in.skip,
                        rows_from(in.x, D, rows - 1),
                        rows_from(in.z, D, rows - 1)};
    EXPECT_TRUE(bit_equal(run_skip_gate(device, last), std::span(found).last(D)));
  }
}

RECURVE_ON_EACH_DEVICE(SkipGateTest);
RECURVE_ON_CUDA(SkipGateTest);

}  // namespace recurve::testing::skip_gate_test
