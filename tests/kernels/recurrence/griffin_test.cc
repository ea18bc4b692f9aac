// Griffin's recurrence and its attention over a ring on every device that has them against their
// formulas in double; recurrence_test.cc has them against the reference.
#include <gtest/gtest.h>

#include "tests/support/kernels/devices.h"
#include "tests/support/kernels/griffin_ops.h"
#include "tests/support/kernels/row_values.h"

namespace recurve::testing::griffin_test {

class GriffinTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_unusable(GetParam()); !why.empty()) GTEST_SKIP() << why;
  }
};

// A state whose session has seen so many rows.
Floats at_place(Floats state, int32_t place) {
  state.back() = std::bit_cast<float>(place);
  return state;
}

TEST_P(GriffinTest, RgLruIsTheFormula) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(1);
  const int D = 19, L = 30;
  const RecurrenceOp op = rg_lru_op(D, random);
  for (const int32_t place : {0, 1, 5000}) {
    // What is in a state that has seen nothing is not looked at.
    const Floats begin = place == 0 ? Floats(D + 1, NAN) : op.start(random);
    const Floats rows = op.inputs(L, random), start = at_place(begin, place);
    const RecurrenceResult found = run_alone(device, op, rows, start);
    Floats wanted;
    std::vector<double> h(start.begin(), start.begin() + D);
    for (int t = 0; t < L; ++t) {
      for (int d = 0; d < D; ++d) {
        const auto at = [&](int part) { return double{rows[(t * 4 + part) * D + d]}; };
        const double a = std::exp(op.weights[0][d] * exact_sigmoid(at(2)));
        const double put = exact_sigmoid(at(1)) * at(0);
        h[d] = place + t == 0 ? put : a * h[d] + std::sqrt(1 - a * a) * put;
        const double z = at(3);
        const double branch =
            0.5 * z * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
        wanted.push_back(static_cast<float>(branch * h[d]));
      }
    }
    EXPECT_TRUE(close(found.y, wanted, {.absolute = 2e-6, .relative = 2e-5})) << place;
    EXPECT_EQ(std::bit_cast<int32_t>(found.state.back()), place + L);
  }
}

// A state that hardly fades takes in little, but not nothing: 1 - a^2 itself would be zero.
TEST_P(GriffinTest, RgLruTakesALittleInWhereNothingFades) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(2);
  RecurrenceOp op = rg_lru_op(8, random);
  op.weights = {Floats(8, -1e-9f)};
  Floats rows(4 * 8, 0.0f);
  std::fill_n(rows.begin(), 8, 1.0f);  // u
  const RecurrenceResult found = run_alone(device, op, rows, at_place(Floats(9), 7));
  const Floats wanted(8, static_cast<float>(0.5 * std::sqrt(1e-9)));
  EXPECT_TRUE(close({found.state.begin(), found.state.begin() + 8}, wanted, kSummed));
}

// All that a session has seen, in double, without a ring.
Floats attention(const RingSize& c, const Floats& rows, int first_row) {
  const int width = c.HK * c.D, stride = c.H * c.D + 2 * width;
  const int L = static_cast<int>(rows.size()) / stride;
  Floats o;
  for (int t = first_row; t < L; ++t) {
    for (int head = 0; head < c.H; ++head) {
      const float* q = &rows[static_cast<size_t>(t) * stride + head * c.D];
      const int shared = head / (c.H / c.HK) * c.D;
      std::vector<double> weights, sums(c.D);
      double sum = 0;
      for (int x = std::max(0, t - c.W + 1); x <= t; ++x) {
        const float* k = &rows[static_cast<size_t>(x) * stride + c.H * c.D + shared];
        double product = 0;
        for (int d = 0; d < c.D; ++d) product += double{q[d]} * k[d];
        const double weight = std::exp(product / std::sqrt(double{1.0 * c.D}));
        sum += weight;
        for (int d = 0; d < c.D; ++d) sums[d] += weight * k[width + d];
      }
      for (int d = 0; d < c.D; ++d) o.push_back(static_cast<float>(sums[d] / sum));
    }
  }
  return o;
}

// Sessions that are shorter than the window, as long, and several times as long, absorbed whole,
// row by row and in odd parts: every row sees the W rows that end with itself.
TEST_P(GriffinTest, RingAttentionSeesItsWindow) {
  KernelDevice device(GetParam());
  std::mt19937_64 random(3);
  for (const RingSize& c : {RingSize{1, 1, 1, 1}, {4, 1, 6, 5}, {4, 2, 16, 16}, {2, 1, 3, 64}}) {
    const RecurrenceOp op = ring_attention_op(c);
    const int L = 70;
    const Floats rows = op.inputs(L, random);
    // What is in a ring that has seen nothing is not looked at.
    const Floats start = at_place(Floats(op.state_size(), NAN), 0);
    const Floats wanted = attention(c, rows, 0);
    for (const std::vector<int>& parts : std::vector<std::vector<int>>{
             {L}, std::vector<int>(L, 1), {3, 1, 20, 5, 40, 1}, {c.W, L - c.W}}) {
      const RecurrenceResult found = run_split(device, op, rows, start, parts);
      EXPECT_TRUE(close(found.y, wanted, {.absolute = 3e-6, .relative = 3e-6}))
          << op.name << ", " << parts.size() << " parts";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, GriffinTest, ::testing::ValuesIn(all_devices()),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace recurve::testing::griffin_test
