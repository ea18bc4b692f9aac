// The ops of RWKV-7 that leave their outputs in bf16 for a linear layer: the same bits as the
// rounded fp32 ones. bf16_outputs_test.cc has the ops of other families.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_batch.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::rwkv7_bf16_outputs_test {

class Rwkv7Bf16OutputsTest : public DeviceTest {};

// Reader 0 has its rows in fp32, 1 in bf16, 2 in both; all mix alike.
TEST_P(Rwkv7Bf16OutputsTest, OfTheTokenShift) {
  KernelDevice device = make_device();
  std::mt19937_64 random(1);
  for (const int D : {37, 40, 4096}) {
    for (const std::vector<int>& lengths :
         std::vector<std::vector<int>>{{1}, {1, 1, 1}, {40, 1, 3}}) {
      const Batch batch(device, lengths);
      const size_t count = static_cast<size_t>(batch.rows) * D;
      const auto x = device.array(normal_floats(random, count));
      const auto mu = device.array(normal_floats(random, D));
      const auto state = device.array(normal_floats(random, batch.slots() * D));
      const auto y = device.floats(count), also_y = device.floats(count);
      const auto y_bf16 = device.array(std::vector<uint16_t>(count));
      const auto also_y_bf16 = device.array(std::vector<uint16_t>(count));
      device.kernels().token_shift({.seqs = batch.seqs(),
                                    .D = D,
                                    .n = 3,
                                    .x_stride = D,
                                    .x = x.data(),
                                    .mu = {mu.data(), mu.data(), mu.data()},
                                    .state = state.data(),
                                    .y = {y.data(), nullptr, also_y.data()},
                                    .y_bf16 = {nullptr, y_bf16.data(), also_y_bf16.data()}},
                                   *device.stream);
      const std::vector<uint16_t> wanted = stored(y.read(), DType::kBF16);
      EXPECT_EQ(y_bf16.read(), wanted) << D;
      EXPECT_EQ(also_y_bf16.read(), wanted) << D;
      EXPECT_TRUE(bit_equal(also_y.read(), y.read())) << D;
      EXPECT_TRUE(y_bf16.guards_intact() && also_y_bf16.guards_intact());
    }
  }
}

TEST_P(Rwkv7Bf16OutputsTest, OfTheNormWithBonus) {
  KernelDevice device = make_device();
  std::mt19937_64 random(2);
  for (const auto& [H, N] : {std::pair{2, 5}, {3, 64}, {1, 130}}) {
    const size_t D = static_cast<size_t>(H) * N, count = 3 * D;
    const auto x = device.array(normal_floats(random, 5 * count));  // o, r, k, v, g
    const auto w = device.array(normal_floats(random, 3 * D));      // r_k, w, b
    const auto y = device.floats(count);
    const auto y_bf16 = device.array(std::vector<uint16_t>(count));
    for (const bool rounds : {false, true}) {
      device.kernels().head_norm_bonus({.rows = 3,
                                        .H = H,
                                        .N = N,
                                        .eps = 64e-5f,
                                        .o = x.data(),
                                        .r = x.data() + count,
                                        .k = x.data() + 2 * count,
                                        .v = x.data() + 3 * count,
                                        .g = x.data() + 4 * count,
                                        .r_k = w.data(),
                                        .w = w.data() + D,
                                        .b = w.data() + 2 * D,
                                        .y = rounds ? nullptr : y.data(),
                                        .y_bf16 = rounds ? y_bf16.data() : nullptr},
                                       *device.stream);
    }
    EXPECT_EQ(y_bf16.read(), stored(y.read(), DType::kBF16)) << N;
    EXPECT_TRUE(y_bf16.guards_intact());
  }
}

// Rows with gaps between them, which rows in bf16 do not have.
TEST_P(Rwkv7Bf16OutputsTest, OfTheActivation) {
  KernelDevice device = make_device();
  std::mt19937_64 random(3);
  for (const int width : {37, 96, 4100}) {
    const int stride = width + 4;
    const auto x = device.array(normal_floats(random, 3 * static_cast<size_t>(stride)));
    const size_t count = 3 * static_cast<size_t>(width);
    const auto y = device.floats(count);
    const auto y_bf16 = device.array(std::vector<uint16_t>(count));
    for (const bool rounds : {false, true}) {
      device.kernels().activation({.rows = 3,
                                   .width = width,
                                   .f = Activation::kSquaredRelu,
                                   .scale = 1,
                                   .floor = -INFINITY,
                                   .x_stride = stride,
                                   .y_stride = rounds ? stride : width,
                                   .x = x.data(),
                                   .y = rounds ? nullptr : y.data(),
                                   .y_bf16 = rounds ? y_bf16.data() : nullptr},
                                  *device.stream);
    }
    EXPECT_EQ(y_bf16.read(), stored(y.read(), DType::kBF16)) << width;
    EXPECT_TRUE(y_bf16.guards_intact());
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Rwkv7Bf16OutputsTest);
RECURVE_ON_CUDA(Rwkv7Bf16OutputsTest);

}  // namespace recurve::testing::rwkv7_bf16_outputs_test
