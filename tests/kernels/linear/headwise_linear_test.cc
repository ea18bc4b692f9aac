// Block-diagonal linear layers: the reference against the formula in double, every device against
// the reference.
#include <gtest/gtest.h>

#include "tests/support/kernels/row_values.h"

namespace recurve::testing::headwise_linear_test {

struct Headwise {
  int rows, H, N, K;
};
const Headwise kHeadwise[] = {{1, 1, 1, 1},    {3, 2, 4, 4},    {2, 16, 4, 4},    {3, 200, 4, 4},
                              {5, 3, 7, 11},   {40, 4, 33, 32}, {1, 2, 80, 64},   {9, 3, 4, 4},
                              {2, 5, 4, 3},    {3, 5, 2, 4},    {100, 128, 4, 4}, {60, 3, 65, 70},
                              {40, 3, 64, 96}, {9, 10, 32, 256}};

Floats run_headwise(KernelDevice& device, const Headwise& s, DType type, const Floats& W,
                    const Floats& x, const Floats& bias = {}) {
  const auto weights = device.array(stored(W, type));
  const auto biases = device.array(bias);
  const auto in = device.array(spread(x, s.H * s.K, 3));
  const auto out = device.floats(static_cast<size_t>(s.rows) * (s.H * s.N + 2));
  device.kernels().headwise_linear({s.rows,
                                    s.H,
                                    {type, s.H * s.N, s.K, weights.data()},
                                    s.H * s.K + 3,
                                    s.H * s.N + 2,
                                    in.data(),
                                    out.data(),
                                    bias.empty() ? nullptr : biases.data()},
                                   *device.stream);
  EXPECT_TRUE(out.guards_intact());
  const Floats all = out.read();
  Floats values;
  for (int r = 0; r < s.rows; ++r) {
    const auto row = all.begin() + r * (s.H * s.N + 2);
    values.insert(values.end(), row, row + s.H * s.N);
    EXPECT_TRUE(std::isnan(row[s.H * s.N]));
  }
  return values;
}

// Such that outputs are of size 1.
Floats headwise_weights(const Headwise& s, DType type, std::mt19937_64& random) {
  const float deviation = 1 / std::sqrt(static_cast<float>(s.K));
  return rounded(normal_floats(random, static_cast<size_t>(s.H) * s.N * s.K, deviation), type);
}

TEST(HeadwiseLinearReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(6);
  for (const Headwise& s : kHeadwise) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const Floats W = headwise_weights(s, type, random);
      const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.H * s.K);
      const Floats bias = normal_floats(random, static_cast<size_t>(s.H) * s.N);
      Floats wanted, wanted_biased;
      for (int r = 0; r < s.rows; ++r) {
        for (int h = 0; h < s.H; ++h) {
          for (int o = 0; o < s.N; ++o) {
            double sum = 0;
            for (int k = 0; k < s.K; ++k) {
              sum += double{W[(h * s.N + o) * s.K + k]} * x[(r * s.H + h) * s.K + k];
            }
            wanted.push_back(static_cast<float>(sum));
            wanted_biased.push_back(static_cast<float>(sum + bias[h * s.N + o]));
          }
        }
      }
      EXPECT_TRUE(close(run_headwise(device, s, type, W, x), wanted, kSummed)) << s.K;
      EXPECT_TRUE(close(run_headwise(device, s, type, W, x, bias), wanted_biased, kSummed)) << s.K;
    }
  }
}

class HeadwiseLinearTest : public DeviceTest {};

TEST_P(HeadwiseLinearTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(8);
  for (const Headwise& s : kHeadwise) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const Floats W = headwise_weights(s, type, random);
      const Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.H * s.K);
      const Floats found = run_headwise(device, s, type, W, x);
      EXPECT_TRUE(close(found, run_headwise(reference, s, type, W, x), kSummed)) << s.K;
      const Floats bias = normal_floats(random, static_cast<size_t>(s.H) * s.N);
      EXPECT_TRUE(close(run_headwise(device, s, type, W, x, bias),
                        run_headwise(reference, s, type, W, x, bias), kSummed))
          << s.K;
      const Headwise one{1, s.H, s.N, s.K};  // the last row by itself
      EXPECT_TRUE(bit_equal(run_headwise(device, one, type, W, rows_from(x, s.H * s.K, s.rows - 1)),
                            std::span(found).last(static_cast<size_t>(s.H) * s.N)));
    }
  }
}

TEST_P(HeadwiseLinearTest, NanStaysInItsPart) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(9);
  for (const Headwise& s : kHeadwise) {
    const Floats W = headwise_weights(s, DType::kF32, random);
    Floats x = normal_floats(random, static_cast<size_t>(s.rows) * s.H * s.K);
    x[x.size() / 2] = NAN;
    EXPECT_TRUE(close(run_headwise(device, s, DType::kF32, W, x),
                      run_headwise(reference, s, DType::kF32, W, x), kSummed));
  }
}

RECURVE_ON_EACH_DEVICE(HeadwiseLinearTest);
RECURVE_ON_CUDA(HeadwiseLinearTest);

}  // namespace recurve::testing::headwise_linear_test
