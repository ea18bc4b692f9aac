// A linear layer with the convolution over some of its outputs: the same bits as one after the
// other.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_batch.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::linear_conv_test {

class LinearConvTest : public DeviceTest {};

std::vector<float> values(std::mt19937_64& random, int64_t a, int64_t b) {
  return normal_floats(random, static_cast<size_t>(a) * static_cast<size_t>(b));
}

TEST_P(LinearConvTest, IsOneAfterTheOther) {
  KernelDevice device = make_device();
  const auto& [linear, causal_conv1d] =
      std::tie(device.kernels().linear, device.kernels().causal_conv1d);
  if (linear.convolves == nullptr) GTEST_SKIP() << "never done here";
  constexpr int kWidth = 4;
  std::mt19937_64 random(2);
  for (const auto& [N, K, first, D] :
       {std::tuple{1312, 1056, 0, 656}, {1312, 1056, 400, 820}, {10240, 64, 96, 5000}}) {
    for (const int rows : {1, 8, 9, 16}) {
      const Batch batch(device, std::vector<int>(static_cast<size_t>(rows), 1));
      const auto W = device.array(stored(values(random, N, K), DType::kBF16));
      const auto bias = device.array(values(random, 1, N));
      const auto norm = device.array(values(random, 1, K)),
                 x = device.array(values(random, rows, K));
      const auto w = device.array(values(random, D, kWidth));
      const auto conv_bias = device.array(values(random, 1, D));
      const std::vector<float> past = values(random, rows + 1, D * (kWidth - 1));
      struct Results {
        std::vector<float> y, u, state;
        std::vector<uint16_t> u_bf16;
      };
      const auto run = [&](bool together) {
        const size_t outputs = static_cast<size_t>(rows) * N,
                     channels = static_cast<size_t>(rows) * D;
        const auto y = device.array(std::vector<float>(outputs));
        const auto u = device.floats(channels), state = device.array(past);
        const auto u_bf16 = device.array(std::vector<uint16_t>(channels));
        LinearArgs args{.rows = rows,
                        .W = {DType::kBF16, N, K, W.data()},
                        .bias = rows % 2 == 1 ? bias.data() : nullptr,
                        .x = x.data(),
                        .y = y.data(),
                        .norm = norm.data(),
                        .norm_eps = 1e-5f};
        const CausalConv1dArgs conv{.seqs = batch.seqs(),
                                    .D = D,
                                    .width = kWidth,
                                    .silu = true,
                                    .x_stride = N,
                                    .x = y.data() + first,
                                    .w = w.data(),
                                    .bias = conv_bias.data(),
                                    .state = state.data(),
                                    .y = u.data(),
                                    .y_bf16 = u_bf16.data()};
        EXPECT_TRUE(linear.takes_conv(args, conv));
        if (together) args.conv = conv;
        linear(args, *device.stream);
        if (!together) causal_conv1d(conv, *device.stream);
        EXPECT_TRUE(y.guards_intact() && u.guards_intact() && u_bf16.guards_intact() &&
                    state.guards_intact());
        Results results{y.read(), u.read(), state.read(), u_bf16.read()};
        for (int row = 0; row < rows; ++row) {  // not left there
          std::fill_n(results.y.begin() + int64_t{row} * N + first, D, 0.0f);
        }
        return results;
      };
      const Results wanted = run(false), found = run(true);
      ASSERT_TRUE(bit_equal(found.y, wanted.y)) << rows << " rows of " << N;
      ASSERT_TRUE(bit_equal(found.u, wanted.u)) << rows << " rows of " << N;
      ASSERT_TRUE(bit_equal(found.state, wanted.state)) << rows << " rows of " << N;
      ASSERT_EQ(found.u_bf16, wanted.u_bf16) << rows << " rows of " << N;
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LinearConvTest);
RECURVE_ON_CUDA(LinearConvTest);

}  // namespace recurve::testing::linear_conv_test
