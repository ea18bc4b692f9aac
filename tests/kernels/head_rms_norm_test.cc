// The norm of heads with its gate: the reference against the formula in double, every device
// against the reference.
#include <gtest/gtest.h>

#include "tests/support/kernels/row_values.h"

namespace recurve::testing::head_rms_norm_test {

struct HeadShape {
  int rows, H, DV;
};
const HeadShape kHeadShapes[] = {{1, 1, 1},   {3, 2, 15},   {2, 4, 16},
                                 {40, 3, 33}, {2, 1, 1000}, {300, 4, 16}};

Floats run_head_rms_norm(KernelDevice& device, const HeadShape& s, const Floats& x, const Floats& w,
                         const Floats& gate, bool in_place = false,
                         Activation f = Activation::kSilu) {
  const int width = s.H * s.DV;
  const auto in = device.array(x), weight = device.array(w);
  const auto gates = device.array(spread(gate, width, 5));
  const auto out = device.floats(x.size());
  const auto& y = in_place ? in : out;
  device.kernels().head_rms_norm(
      {s.rows, s.H, s.DV, 1e-6f, width + 5, in.data(), w.empty() ? nullptr : weight.data(),
       gate.empty() ? nullptr : gates.data(), y.data(), nullptr, f},
      *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

TEST(HeadRmsNormReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const HeadShape& s : kHeadShapes) {
    const size_t count = static_cast<size_t>(s.rows) * s.H * s.DV;
    const Floats x = normal_floats(random, count, 2), gate = normal_floats(random, count, 4);
    const Floats w = normal_floats(random, s.DV);
    Floats bare, silu, sigmoid;
    for (size_t at = 0; at < count; ++at) {
      double squares = 0;
      for (int d = 0; d < s.DV; ++d) squares += square(x[at / s.DV * s.DV + d]) / s.DV;
      const double y = x[at] / std::sqrt(squares + 1e-6);
      const double gated = y * w[at % s.DV] * exact_sigmoid(gate[at]);
      bare.push_back(static_cast<float>(y));
      silu.push_back(static_cast<float>(gated * gate[at]));
      sigmoid.push_back(static_cast<float>(gated));
    }
    EXPECT_TRUE(close(run_head_rms_norm(device, s, x, {}, {}), bare, kSummed)) << s.DV;
    for (const auto& [f, wanted] :
         {std::pair(Activation::kSilu, silu), {Activation::kSigmoid, sigmoid}}) {
      EXPECT_TRUE(close(run_head_rms_norm(device, s, x, w, gate, false, f), wanted, kSummed))
          << s.rows << " " << s.H << " " << s.DV;
    }
  }
}

class HeadRmsNormTest : public DeviceTest {};

TEST_P(HeadRmsNormTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(7);
  for (const HeadShape& s : kHeadShapes) {
    const int width = s.H * s.DV;
    const size_t count = static_cast<size_t>(s.rows) * width;
    const Floats x = normal_floats(random, count, 2), gate = normal_floats(random, count, 4);
    const Floats w = normal_floats(random, s.DV);
    constexpr Activation kSigmoid = Activation::kSigmoid;
    EXPECT_TRUE(close(run_head_rms_norm(device, s, x, w, gate, false, kSigmoid),
                      run_head_rms_norm(reference, s, x, w, gate, false, kSigmoid), kSummed))
        << s.DV;
    const Floats found = run_head_rms_norm(device, s, x, w, gate);
    EXPECT_TRUE(close(found, run_head_rms_norm(reference, s, x, w, gate), kSummed)) << s.DV;
    EXPECT_TRUE(bit_equal(run_head_rms_norm(device, s, x, w, gate, true), found)) << s.DV;
    for (const bool weighted : {false, true}) {
      const Floats some_w = weighted ? w : Floats();
      EXPECT_TRUE(close(run_head_rms_norm(device, s, x, some_w, {}),
                        run_head_rms_norm(reference, s, x, some_w, {}), kSummed))
          << s.DV;
    }
    const HeadShape one{1, s.H, s.DV};  // the last row by itself
    const int last = s.rows - 1;
    EXPECT_TRUE(bit_equal(
        run_head_rms_norm(device, one, rows_from(x, width, last), w, rows_from(gate, width, last)),
        std::span(found).last(width)))
        << s.DV;
  }
}

// Heads that others lie between, as queries and their gates do.
TEST_P(HeadRmsNormTest, HeadsMayBeApart) {
  KernelDevice device = make_device();
  std::mt19937_64 random(9);
  for (const HeadShape& s : kHeadShapes) {
    const int between = 2 * s.DV + 1, stride = s.H * between + 3;
    const Floats wide = normal_floats(random, static_cast<size_t>(s.rows) * stride);
    const Floats w = normal_floats(random, s.DV);
    Floats dense;
    for (int r = 0; r < s.rows; ++r) {
      for (int head = 0; head < s.H; ++head) {
        const auto at = wide.begin() + r * stride + head * between;
        dense.insert(dense.end(), at, at + s.DV);
      }
    }
    const auto in = device.array(wide), weight = device.array(w);
    const auto out = device.floats(dense.size());
    device.kernels().head_rms_norm({.rows = s.rows,
                                    .H = s.H,
                                    .DV = s.DV,
                                    .eps = 1e-6f,
                                    .gate_stride = 0,
                                    .x = in.data(),
                                    .w = weight.data(),
                                    .gate = nullptr,
                                    .y = out.data(),
                                    .x_stride = stride,
                                    .x_head_stride = between},
                                   *device.stream);
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(bit_equal(out.read(), run_head_rms_norm(device, s, dense, w, {}))) << s.DV;
  }
}

TEST_P(HeadRmsNormTest, NanStaysInItsHead) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(8);
  const HeadShape s{3, 2, 33};
  Floats x = normal_floats(random, 3 * 66), gate = normal_floats(random, 3 * 66);
  x[66 + 40] = NAN;  // row 1, head 1
  gate[7] = NAN;     // one value of row 0
  EXPECT_TRUE(close(run_head_rms_norm(device, s, x, {}, gate),
                    run_head_rms_norm(reference, s, x, {}, gate), kSummed));
}

RECURVE_ON_EACH_DEVICE(HeadRmsNormTest);
RECURVE_ON_CUDA(HeadRmsNormTest);

}  // namespace recurve::testing::head_rms_norm_test
