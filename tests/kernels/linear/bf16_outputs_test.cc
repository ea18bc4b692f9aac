// Ops that leave their outputs in bf16 for a linear layer: the same bits as the rounded fp32 ones.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_batch.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::bf16_outputs_test {

class Bf16OutputsTest : public DeviceTest {};

const std::vector<std::vector<int>> kBatches = {{1}, {1, 1, 1, 1, 1}, {3, 1, 40}};

TEST_P(Bf16OutputsTest, OfTheConvolution) {
  KernelDevice device = make_device();
  std::mt19937_64 random(1);
  for (const auto& [D, width] : {std::pair{40, 4}, {37, 4}, {16, 3}}) {
    for (const std::vector<int>& lengths : kBatches) {
      const Batch batch(device, lengths);
      const size_t count = static_cast<size_t>(batch.rows) * D;
      const auto x = device.array(normal_floats(random, count));
      const auto w = device.array(normal_floats(random, static_cast<size_t>(D) * width));
      const auto state =
          device.array(normal_floats(random, batch.slots() * static_cast<size_t>(D) * (width - 1)));
      const auto y = device.floats(count);
      const auto y_bf16 = device.array(std::vector<uint16_t>(count));
      device.kernels().causal_conv1d({.seqs = batch.seqs(),
                                      .D = D,
                                      .width = width,
                                      .silu = true,
                                      .x_stride = D,
                                      .x = x.data(),
                                      .w = w.data(),
                                      .bias = nullptr,
                                      .state = state.data(),
                                      .y = y.data(),
                                      .y_bf16 = y_bf16.data()},
                                     *device.stream);
      EXPECT_EQ(y_bf16.read(), stored(y.read(), DType::kBF16)) << D << " x " << width;
      EXPECT_TRUE(y_bf16.guards_intact());
    }
  }
}

TEST_P(Bf16OutputsTest, OfTheLayerNorm) {
  KernelDevice device = make_device();
  std::mt19937_64 random(3);
  for (const int D : {70, 768, 2560}) {
    const size_t count = 3 * static_cast<size_t>(D);
    const auto x = device.array(normal_floats(random, count));
    const auto w = device.array(normal_floats(random, D));
    const auto y = device.floats(count);
    const auto y_bf16 = device.array(std::vector<uint16_t>(count));
    for (const bool rounds : {false, true}) {
      device.kernels().layer_norm({.rows = 3,
                                   .D = D,
                                   .G = 1,
                                   .eps = 1e-5f,
                                   .x = x.data(),
                                   .w = w.data(),
                                   .b = nullptr,
                                   .residual = nullptr,
                                   .y = rounds ? nullptr : y.data(),
                                   .y_bf16 = rounds ? y_bf16.data() : nullptr},
                                  *device.stream);
    }
    EXPECT_EQ(y_bf16.read(), stored(y.read(), DType::kBF16)) << D;
    EXPECT_TRUE(y_bf16.guards_intact());
  }
}

TEST_P(Bf16OutputsTest, OfTheNormsOfGroupsAndHeads) {
  KernelDevice device = make_device();
  std::mt19937_64 random(4);
  for (const int size : {7, 64, 640, 1300, 5120}) {
    const int D = 2 * size;
    const size_t count = 3 * static_cast<size_t>(D);
    const auto x = device.array(normal_floats(random, count));
    const auto z = device.array(normal_floats(random, count));
    const auto w = device.array(normal_floats(random, D));
    const auto y = device.floats(count), head_y = device.floats(count);
    const auto y_bf16 = device.array(std::vector<uint16_t>(count));
    const auto head_y_bf16 = device.array(std::vector<uint16_t>(count));
    for (const bool rounds : {false, true}) {
      device.kernels().gated_rms_norm({.rows = 3,
                                       .D = D,
                                       .G = 2,
                                       .eps = 1e-5f,
                                       .x_stride = D,
                                       .z_stride = D,
                                       .y_stride = D,
                                       .x = x.data(),
                                       .z = z.data(),
                                       .w = w.data(),
                                       .y = rounds ? nullptr : y.data(),
                                       .y_bf16 = rounds ? y_bf16.data() : nullptr},
                                      *device.stream);
      device.kernels().head_rms_norm({.rows = 3,
                                      .H = 2,
                                      .DV = size,
                                      .eps = 1e-5f,
                                      .gate_stride = D,
                                      .x = x.data(),
                                      .w = w.data(),
                                      .gate = z.data(),
                                      .y = rounds ? nullptr : head_y.data(),
                                      .y_bf16 = rounds ? head_y_bf16.data() : nullptr},
                                     *device.stream);
    }
    EXPECT_EQ(y_bf16.read(), stored(y.read(), DType::kBF16)) << size;
    EXPECT_EQ(head_y_bf16.read(), stored(head_y.read(), DType::kBF16)) << size;
    EXPECT_TRUE(y_bf16.guards_intact() && head_y_bf16.guards_intact());
  }
}

TEST_P(Bf16OutputsTest, OfTheSelectiveScan) {
  KernelDevice device = make_device();
  std::mt19937_64 random(2);
  for (const auto& [D, N, R] : {std::tuple{64, 16, 32}, {128, 16, 160}, {37, 7, 3}, {5, 20, 8}}) {
    const auto dt_proj =
        device.array(stored(normal_floats(random, static_cast<size_t>(D) * R, 0.1f), DType::kBF16));
    const auto bias = device.array(normal_floats(random, D)),
               skip = device.array(normal_floats(random, D));
    const auto A = device.array(normal_floats(random, static_cast<size_t>(D) * N, 0.2f, -1));
    for (const std::vector<int>& lengths : kBatches) {
      const Batch batch(device, lengths);
      const size_t rows = batch.rows, count = rows * D;
      const auto x = device.array(normal_floats(random, count));
      const auto z = device.array(normal_floats(random, count));
      const auto params = device.array(normal_floats(random, rows * (R + 2 * N)));
      const auto scratch = device.floats(rows * (D + R + 2 * N));
      const std::vector<float> start =
          normal_floats(random, batch.slots() * static_cast<size_t>(D) * N);
      const auto y = device.floats(count);
      const auto y_bf16 = device.array(std::vector<uint16_t>(count));
      for (const bool rounds : {false, true}) {
        const auto h = device.array(start);
        device.kernels().selective_scan({.seqs = batch.seqs(),
                                         .D = D,
                                         .N = N,
                                         .R = R,
                                         .chunk = 8,
                                         .norm_eps = 0,
                                         .x_stride = D,
                                         .params_stride = R + 2 * N,
                                         .z_stride = D,
                                         .x = x.data(),
                                         .params = params.data(),
                                         .z = z.data(),
                                         .dt_proj = {DType::kBF16, D, R, dt_proj.data()},
                                         .dt_bias = bias.data(),
                                         .A = A.data(),
                                         .skip = skip.data(),
                                         .h = h.data(),
                                         .scratch = scratch.data(),
                                         .y = rounds ? nullptr : y.data(),
                                         .y_bf16 = rounds ? y_bf16.data() : nullptr},
                                        *device.stream);
        device.stream->wait();  // while the state is there
      }
      EXPECT_EQ(y_bf16.read(), stored(y.read(), DType::kBF16)) << D << " x " << N;
      EXPECT_TRUE(y_bf16.guards_intact());
    }
  }
}

TEST_P(Bf16OutputsTest, OfTheMlstm) {
  KernelDevice device = make_device();
  std::mt19937_64 random(5);
  for (const auto& [H, DK, DV] :
       {std::tuple{2, 64, 128}, {3, 5, 37}, {2, 256, 512}, {1, 16, 1300}}) {
    const int stride = H * (2 * DK + 2 * DV + 2);
    const auto norm = device.array(normal_floats(random, static_cast<size_t>(H) * DV));
    for (const std::vector<int>& lengths : kBatches) {
      const Batch batch(device, lengths);
      const size_t rows = batch.rows, count = rows * H * DV, heads = batch.slots() * size_t(H);
      const auto x = device.array(normal_floats(random, rows * stride));
      const std::vector<float> start = normal_floats(random, heads * DK * DV);
      const auto h = device.floats(count);
      const auto h_bf16 = device.array(std::vector<uint16_t>(count));
      std::vector<float> wanted;
      for (const bool rounds : {false, true}) {
        const auto C = device.array(start), n = device.array(std::vector<float>(heads * DK, 1));
        const auto m = device.array(std::vector<float>(heads));
        const float* v = x.data() + 2 * H * DK;
        device.kernels().mlstm({.seqs = batch.seqs(),
                                .H = H,
                                .DK = DK,
                                .DV = DV,
                                .chunk = 8,
                                .gate_soft_cap = 15,
                                .eps = 1e-6f,
                                .stride = stride,
                                .q = x.data(),
                                .k = x.data() + H * DK,
                                .v = v,
                                .i = v + 2 * H * DV,
                                .f = v + 2 * H * DV + H,
                                .C = C.data(),
                                .n = n.data(),
                                .m = m.data(),
                                .h = h.data(),
                                .o = v + H * DV,
                                .head_norm = norm.data(),
                                .head_norm_eps = 1e-6f,
                                .h_bf16 = rounds ? h_bf16.data() : nullptr},
                               *device.stream);
        if (!rounds) wanted = h.read();
        device.stream->wait();  // while the state is there
      }
      EXPECT_EQ(h_bf16.read(), stored(wanted, DType::kBF16)) << H << " x " << DK << " x " << DV;
      EXPECT_TRUE(h.guards_intact() && h_bf16.guards_intact());
    }
  }
}

// Not y but what a norm begins with, which follows from y to the bit: of decodes, and of prompts
// whose heads fill tiles.
struct BegunSize {
  int H, P, N, chunk;
  DType type;
  std::vector<int> lengths;
};

TEST_P(Bf16OutputsTest, OfSsdBeforeANorm) {
  KernelDevice device = make_device();
  std::mt19937_64 random(6);
  constexpr int kSquares = DeferredRmsNorm::kSquares;
  const std::vector<int> decodes(5, 1), prompts = {200, 1, 65, 2, 64};
  int sizes = 0;
  for (const BegunSize& s : {BegunSize{3, 16, 128, 1, DType::kF32, decodes},
                             {2, 24, 20, 1, DType::kF32, decodes},
                             {5, 64, 128, 1, DType::kBF16, decodes},
                             {2, 8, 16, 1, DType::kBF16, decodes},
                             {4, 64, 128, 64, DType::kF32, prompts},
                             {2, 128, 64, 128, DType::kBF16, prompts}}) {
    const Batch batch(device, s.lengths);
    const int rows = batch.seqs().rows, D = s.H * s.P, inputs = D + 2 * s.N;
    const size_t count = static_cast<size_t>(rows) * D;
    const std::vector<float> w = normal_floats(random, D);
    const auto xBC = device.array(normal_floats(random, static_cast<size_t>(rows) * inputs));
    const auto dt = device.array(normal_floats(random, static_cast<size_t>(rows) * s.H));
    const auto z = device.array(normal_floats(random, count)), norm = device.array(w);
    const auto dt_bias = device.array(normal_floats(random, s.H));
    const auto A = device.array(normal_floats(random, s.H, 0.2f, -1));
    const auto skip = device.array(normal_floats(random, s.H));
    const auto start =
        stored(normal_floats(random, batch.slots() * static_cast<size_t>(D) * s.N), s.type);
    const auto y = device.floats(count), squares = device.floats(count / kSquares);
    const auto deferred = device.array(std::vector<uint16_t>(count));
    const auto scales = device.array(std::vector<float>(rows, 5.0f));
    bool can = false;
    for (const bool defers : {false, true}) {
      const auto h = device.array(start);
      SsdArgs args{.seqs = batch.seqs(),
                   .H = s.H,
                   .P = s.P,
                   .N = s.N,
                   .G = 1,
                   .chunk = s.chunk,
                   .dt_min = 0,
                   .dt_max = 10,
                   .xBC_stride = inputs,
                   .dt_stride = s.H,
                   .z_stride = D,
                   .x = xBC.data(),
                   .B = xBC.data() + D,
                   .C = xBC.data() + D + s.N,
                   .dt = dt.data(),
                   .z = z.data(),
                   .dt_bias = dt_bias.data(),
                   .A = A.data(),
                   .skip = skip.data(),
                   .h = {h.data(), s.type},
                   .y = y.data(),
                   .next_norm = norm.data()};
      can = device.kernels().ssd.defers_norm(args);
      if (defers && !can) break;
      if (defers) {
        ++sizes;
        args.y = nullptr;
        args.next = {deferred.data(), squares.data(), scales.data()};
      }
      device.kernels().ssd(args, *device.stream);
      device.stream->wait();  // while the state is there
    }
    if (!can) continue;
    const std::vector<float> made = y.read();
    std::vector<float> weighted(count), sums(count / kSquares);
    for (size_t i = 0; i < count; ++i) weighted[i] = made[i] * w[i % D];
    for (size_t i = 0; i < count; i += 4) {
      float sum = made[i] * made[i];
      for (int j = 1; j < 4; ++j) sum = std::fma(made[i + j], made[i + j], sum);
      sums[i / kSquares] += sum;
    }
    EXPECT_EQ(deferred.read(), stored(weighted, DType::kBF16))
        << s.H << " x " << s.P << " x " << s.N;
    EXPECT_TRUE(bit_equal(squares.read(), sums)) << s.H << " x " << s.P << " x " << s.N;
    EXPECT_EQ(scales.read(), std::vector<float>(rows));
    EXPECT_TRUE(deferred.guards_intact() && squares.guards_intact() && scales.guards_intact());
  }
  if (sizes == 0) GTEST_SKIP() << "no norm is deferred here";
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Bf16OutputsTest);
RECURVE_ON_CUDA(Bf16OutputsTest);

}  // namespace recurve::testing::bf16_outputs_test
