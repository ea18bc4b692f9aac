// What kernels/fusion.h does together where a backend can: the same bits as the ops one after the
// other, for any number of rows.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <deque>

#include "kernels/fusion.h"
#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_batch.h"
#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::fused_ops_test {

class FusedOpsTest : public DeviceTest {};

std::vector<float> values(std::mt19937_64& random, int64_t a, int64_t b, float deviation = 1) {
  return normal_floats(random, static_cast<size_t>(a) * static_cast<size_t>(b), deviation);
}

void activate(KernelDevice& device, int rows, int width, Activation f, const float* x, float* y,
              uint16_t* y_bf16) {
  device.kernels().activation({.rows = rows,
                               .width = width,
                               .f = f,
                               .scale = 1,
                               .floor = -INFINITY,
                               .x_stride = width,
                               .y_stride = width,
                               .x = x,
                               .y = y,
                               .y_bf16 = y_bf16},
                              *device.stream);
}

struct Layer {
  int N, K;
  Activation f = Activation::kIdentity;
  bool bias = false, residual = false;
  bool bf16 = false;  // wants its outputs in bf16 where the device's layers take that
};

// Inputs of all layers, of which each begins elsewhere, as large as any of them takes.
struct Inputs {
  static constexpr size_t kWeights = 2560 * 2560, kRows = 130, kStep = 64;
  explicit Inputs(KernelDevice& device) : Inputs(device, std::mt19937_64(1)) {}
  Inputs(KernelDevice& device, std::mt19937_64 random)
      : W(device.array(stored(normal_floats(random, kWeights, 0.05f), DType::kBF16))),
        vectors(device.array(normal_floats(random, kRows * 4096))),
        x(device.array(rounded(normal_floats(random, kRows * 4096), DType::kBF16))),
        x_bf16(device.array(stored(x.read(), DType::kBF16))) {}
  DeviceArray<uint16_t> W;
  DeviceArray<float> vectors, x;  // vectors: biases and residuals
  DeviceArray<uint16_t> x_bf16;
};
struct Outputs {
  Outputs(KernelDevice& device, const Layer& layer, int rows)
      : y(device.floats(static_cast<size_t>(rows) * layer.N)),
        y_bf16(device.array(std::vector<uint16_t>(y.size()))) {}
  DeviceArray<float> y;
  DeviceArray<uint16_t> y_bf16;
};

LinearArgs args_of(const KernelDevice& device, const Layer& layer, size_t index, int rows,
                   const Inputs& in, const Outputs& out) {
  const size_t at = index % 3 * Inputs::kStep;
  const size_t weights = static_cast<size_t>(layer.N) * layer.K;
  LinearArgs args{
      .rows = rows,
      .W = {DType::kBF16, layer.N, layer.K,
            in.W.data() + std::min(index * Inputs::kStep, Inputs::kWeights - weights) / 32 * 32},
      .bias = layer.bias ? in.vectors.data() + at : nullptr,
      .residual = layer.residual ? in.vectors.data() : nullptr,
      .x = in.x.data() + at,
      .y = out.y.data()};
  if (!device.kernels().linear.takes_bf16(args.W)) return args;
  args.x_bf16 = in.x_bf16.data() + at;
  if (layer.bf16) args.y_bf16 = out.y_bf16.data();
  return args;
}

// The layer by itself, and its activation as an op.
void run_alone(KernelDevice& device, LinearArgs args, Activation f) {
  uint16_t* const y_bf16 = args.y_bf16;
  if (f != Activation::kIdentity) args.y_bf16 = nullptr;
  device.kernels().linear(args, *device.stream);
  if (f == Activation::kIdentity) return;
  activate(device, args.rows, static_cast<int>(args.W.N), f, args.y,
           y_bf16 == nullptr ? args.y : nullptr, y_bf16);
}

const std::vector<std::vector<Layer>>& groups() {
  using enum Activation;
  static const std::vector<std::vector<Layer>> kGroups = {
      // Of a small RWKV-7: projections and the first halves of its low-rank pairs; the second.
      {{1024, 1024},
       {1024, 1024},
       {1024, 1024, kIdentity, true},
       {64, 1024, kTanh},
       {64, 1024},
       {128, 1024, kSigmoid},
       {32, 1024}},
      {{1024, 64, kIdentity, true}, {1024, 64, kIdentity, true}, {1024, 128}, {1024, 32}},
      // Of a large one, whose pairs are large matrices.
      {{2560, 2560},
       {2560, 2560, kIdentity, false, true},
       {2560, 2560},
       {96, 2560, kTanh, false, false, true},
       {96, 2560, kIdentity, false, false, true},
       {320, 2560, kSigmoid, false, false, true},
       {64, 2560}},
      {{2560, 96, kIdentity, true}, {2560, 96}, {2560, 320}, {2560, 64, kIdentity, true}},
      // More than a launch has, and outputs and inputs that fill no vectors.
      std::vector<Layer>(9, {520, 768, kSquaredRelu, true}),
      std::vector<Layer>(6, {50, 104, kTanh, true}),
      {{1027, 1000, kIdentity, true, true}, {70, 100, kSigmoid}, {1500, 528}, {3, 1024}},
      {{4096, 1024, kSquaredRelu, false, false, true}},
      // An activation that no kernel of layers knows.
      {{1024, 1024, kGelu}, {64, 1024, kGelu}},
  };
  return kGroups;
}

TEST_P(FusedOpsTest, AGroupOfLayersIsOneAfterTheOther) {
  KernelDevice device = make_device();
  const Inputs in(device);
  const LinearOp& linear = device.kernels().linear;
  const bool fuses = linear.run_group != nullptr || linear.activates != nullptr;
  for (const std::vector<Layer>& group : groups()) {
    for (const int rows :
         fuses ? std::vector<int>{1, 3, 8, 9, 16, 17, 33, 64, 65, 130} : std::vector<int>{1, 3}) {
      std::deque<Outputs> alone, grouped;
      std::vector<LinearArgs> layers;
      for (size_t i = 0; i < group.size(); ++i) {
        const Outputs& wanted = alone.emplace_back(device, group[i], rows);
        run_alone(device, args_of(device, group[i], i, rows, in, wanted), group[i].f);
        const Outputs& found = grouped.emplace_back(device, group[i], rows);
        layers.push_back(args_of(device, group[i], i, rows, in, found));
        layers.back().activation = group[i].f;
      }
      linear_group(device.kernels(), layers, *device.stream);
      for (size_t i = 0; i < group.size(); ++i) {
        SCOPED_TRACE(::testing::Message() << rows << " rows, layer " << i << " of " << group.size()
                                          << ", " << group[i].N << " x " << group[i].K);
        if (layers[i].y_bf16 == nullptr) {
          ASSERT_TRUE(bit_equal(grouped[i].y.read(), alone[i].y.read()));
        } else {
          ASSERT_EQ(grouped[i].y_bf16.read(), alone[i].y_bf16.read());
        }
        ASSERT_TRUE(grouped[i].y.guards_intact() && grouped[i].y_bf16.guards_intact());
      }
    }
  }
}

const std::vector<std::vector<int>> kBatches = {{1}, std::vector<int>(40, 1), {3, 1, 40}};

TEST_P(FusedOpsTest, ANormAndATokenShiftAreOneAfterTheOther) {
  KernelDevice device = make_device();
  std::mt19937_64 random(2);
  constexpr int kReaders = TokenShiftArgs::kMost;
  for (const int D : {37, 768, 1024, 2048, 2560, 4096, 4160}) {
    for (const std::vector<int>& lengths : kBatches) {
      const Batch batch(device, lengths);
      const size_t count = static_cast<size_t>(batch.rows) * D;
      const auto x = device.array(values(random, batch.rows, D));
      const auto w = device.array(values(random, kReaders + 2, D));  // mixes; norm, its bias
      const std::vector<float> past = values(random, static_cast<int64_t>(batch.slots()), D);
      struct Results {
        std::vector<float> y, state;
        std::vector<uint16_t> y_bf16;
      };
      const auto run = [&](bool together) {
        const auto normed = device.floats(count), y = device.floats(kReaders * count);
        const auto y_bf16 = device.array(std::vector<uint16_t>(kReaders * count));
        const auto state = device.array(past);
        const LayerNormArgs norm{.rows = batch.rows,
                                 .D = D,
                                 .G = 1,
                                 .eps = 1e-5f,
                                 .x = x.data(),
                                 .w = w.data() + kReaders * D,
                                 .b = w.data() + (kReaders + 1) * D,
                                 .residual = nullptr,
                                 .y = normed.data()};
        TokenShiftArgs shift{.seqs = batch.seqs(),
                             .D = D,
                             .n = kReaders,
                             .x_stride = D,
                             .x = normed.data(),
                             .mu = {},
                             .state = state.data(),
                             .y = {}};
        for (int i = 0; i < kReaders; ++i) {
          shift.mu[i] = w.data() + i * D;
          shift.y[i] = y.data() + i * count;
          if (i % 2 == 1) shift.y_bf16[i] = y_bf16.data() + i * count;
        }
        if (together) {
          norm_shift(device.kernels(), norm, shift, *device.stream);
        } else {
          device.kernels().layer_norm(norm, *device.stream);
          device.kernels().token_shift(shift, *device.stream);
        }
        EXPECT_TRUE(y.guards_intact() && y_bf16.guards_intact() && state.guards_intact());
        return Results{y.read(), state.read(), y_bf16.read()};
      };
      const Results wanted = run(false), found = run(true);
      ASSERT_TRUE(bit_equal(found.y, wanted.y)) << D << ", rows " << batch.rows;
      ASSERT_TRUE(bit_equal(found.state, wanted.state)) << D << ", rows " << batch.rows;
      ASSERT_EQ(found.y_bf16, wanted.y_bf16) << D << ", rows " << batch.rows;
    }
  }
}

struct CellSize {
  int H, N;
  bool mixes;  // the values of the first layer are mixed in
  DType state = DType::kF32;
};

// The outputs of RWKV-7's gate, recurrence and norm, and the states after it.
struct CellResults {
  std::vector<float> y;
  std::vector<uint16_t> y_bf16, state;  // state: as it is stored
};
CellResults run_cell(KernelDevice& device, const CellSize& size, const Batch& batch, bool together,
                     uint64_t seed) {
  std::mt19937_64 random(seed);
  const int D = size.H * size.N;
  const auto slots = static_cast<int64_t>(batch.slots());
  enum { kR, kW, kK, kV, kAlpha, kG, kM, kFirst, kArrays };
  std::deque<DeviceArray<float>> in;
  for (int i = 0; i < kArrays; ++i) in.push_back(device.array(values(random, batch.rows, D)));
  const auto w = device.array(values(random, 5, D));  // k_k, k_a; r_k, norm, bias
  const std::vector<float> past = values(random, slots, D * size.N);
  const auto S = device.array(stored(past, size.state));
  const size_t count = in[0].size();
  const auto kk = device.floats(count), o = device.floats(count);
  const auto y = device.array(std::vector<float>(count));
  const auto y_bf16 = device.array(std::vector<uint16_t>(count));
  const bool rounds = size.H % 2 == 0 && device.kernels().linear.rounds != nullptr;
  const Rwkv7GateArgs gate{.rows = batch.rows,
                           .H = size.H,
                           .N = size.N,
                           .k_k = w.data(),
                           .k_a = w.data() + D,
                           .v_first = size.mixes ? in[kFirst].data() : nullptr,
                           .m = size.mixes ? in[kM].data() : nullptr,
                           .w = in[kW].data(),
                           .a = in[kAlpha].data(),
                           .k = in[kK].data(),
                           .v = in[kV].data(),
                           .kk = kk.data()};
  const Rwkv7Args recurrence{.seqs = batch.seqs(),
                             .H = size.H,
                             .N = size.N,
                             .chunk = 16,
                             .stride = D,
                             .r = in[kR].data(),
                             .lw = in[kW].data(),
                             .k = in[kK].data(),
                             .v = in[kV].data(),
                             .kk = kk.data(),
                             .alpha = in[kAlpha].data(),
                             .S = {S.data(), size.state},
                             .o = o.data()};
  const HeadNormBonusArgs out{.rows = batch.rows,
                              .H = size.H,
                              .N = size.N,
                              .eps = 64e-5f,
                              .o = o.data(),
                              .r = in[kR].data(),
                              .k = in[kK].data(),
                              .v = in[kV].data(),
                              .g = in[kG].data(),
                              .r_k = w.data() + 2 * D,
                              .w = w.data() + 3 * D,
                              .b = w.data() + 4 * D,
                              .y = y.data(),
                              .y_bf16 = rounds ? y_bf16.data() : nullptr};
  if (together) {
    rwkv7_cell(device.kernels(), gate, recurrence, out, *device.stream);
  } else {
    device.kernels().rwkv7_gate(gate, *device.stream);
    device.kernels().rwkv7(recurrence, *device.stream);
    device.kernels().head_norm_bonus(out, *device.stream);
  }
  EXPECT_TRUE(y.guards_intact() && y_bf16.guards_intact() && S.guards_intact());
  return {y.read(), y_bf16.read(), S.read()};
}

TEST_P(FusedOpsTest, TheCellOfRwkv7IsOneOpAfterTheOther) {
  KernelDevice device = make_device();
  std::vector<CellSize> sizes = {{1, 64, false}, {2, 64, true}, {16, 64, true}, {3, 40, true}};
  if (device.kernels().rwkv7.bf16_state) sizes.push_back({4, 64, true, DType::kBF16});
  for (const CellSize& size : sizes) {
    for (const std::vector<int>& lengths : kBatches) {
      const Batch batch(device, lengths);
      const CellResults wanted = run_cell(device, size, batch, false, 3),
                        found = run_cell(device, size, batch, true, 3);
      SCOPED_TRACE(::testing::Message() << size.H << " x " << size.N << ", rows " << batch.rows);
      ASSERT_TRUE(bit_equal(found.y, wanted.y));
      ASSERT_EQ(found.y_bf16, wanted.y_bf16);
      ASSERT_EQ(found.state, wanted.state);
    }
  }
}

RECURVE_ON_EACH_DEVICE(FusedOpsTest);
RECURVE_ON_CUDA(FusedOpsTest);

}  // namespace recurve::testing::fused_ops_test
