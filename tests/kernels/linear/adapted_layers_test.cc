// Linear layers whose rows have adapters, with all that backends do in a layer's kernel: norms,
// gates, activations, convolutions, rows in bf16 and norms that are left to the layer behind.
#include <gtest/gtest.h>

#include "kernels/fusion.h"
#include "kernels/step_adapters.h"
#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/lora_case.h"

namespace recurve::testing::adapted_layers_test {

using Floats = std::vector<float>;
using Words = std::vector<uint16_t>;
constexpr int32_t kLayer = 1;

// What a layer asks for; what the device does not do with it is done by other ops, or left out.
struct Layer {
  int64_t N, K;
  bool norm = false, swiglu = false, residual = false, bf16 = false, next = false;
  Activation f = Activation::kIdentity;
  bool conv = false;

  int64_t outputs() const { return swiglu ? N / 2 : N; }
};

std::vector<Layer> layers() {
  using enum Activation;
  std::vector<Layer> all;
  // The first is large, the second small, and the last fills no vectors.
  for (const auto& [N, K] : {std::pair<int64_t, int64_t>{1024, 1032}, {96, 64}, {70, 37}}) {
    for (const bool bf16 : {false, true}) {
      all.push_back({.N = N, .K = K, .norm = true, .bf16 = bf16});
      all.push_back({.N = N, .K = K, .norm = true, .swiglu = true, .bf16 = bf16});
      all.push_back({.N = N, .K = K, .residual = true, .bf16 = bf16, .next = true});
      all.push_back({.N = N, .K = K, .bf16 = bf16, .f = kSquaredRelu});
    }
    all.push_back({.N = N, .K = K, .norm = true, .conv = true});
  }
  return all;
}

// What is there once a layer has run.
struct Outcome {
  Floats y;    // from bf16 where the layer left that
  Words next;  // of the norm behind, if any of it was done
  Floats squares;
  Floats convolved;
};

class AdaptedLayersTest : public DeviceTest {
 protected:
  static constexpr int kWidth = 4, kChannels = 32;  // of the convolution

  // Parts in bf16; one in F32 that leaves out outputs, which begins with whole fours of them; one
  // that begins and ends anywhere.
  enum Kind { kHalves = 5, kSome, kAnywhere };
  static TestAdapter adapter(KernelDevice& device, const Layer& layer, Kind kind) {
    std::mt19937_64 random(kind);
    TestAdapter made;
    const int64_t N = layer.N, K = layer.K;
    const float scale = 0.02f / std::sqrt(static_cast<float>(K));
    if (kind == kHalves) {
      made.parts.emplace_back(device, 16, 0, N / 2, K, scale, DType::kBF16, random);
      made.parts.emplace_back(device, 3, N / 2, N / 2, K, 2 * scale, DType::kBF16, random);
    } else if (kind == kSome) {
      made.parts.emplace_back(device, 5, 4, N / 8 * 4, K, scale, DType::kF32, random);
    } else {
      made.parts.emplace_back(device, 5, 2, N - 5, K, 3 * scale, DType::kF32, random);
    }
    for (TestPart& part : made.parts) part.part.scale *= 20;
    made.finish(kLayer);
    return made;
  }

  // rounded_norm: rows are normed here, and rounded to bf16 as devices do that say so.
  static Outcome run(KernelDevice& device, const Layer& l, int rows,
                     std::span<const LoraRows> groups, bool rounded_norm = false) {
    std::mt19937_64 random(7);
    const auto draw = [&](int64_t count, float deviation, float mean = 0) {
      return normal_floats(random, static_cast<size_t>(count), deviation, mean);
    };
    const Kernels& kernels = device.kernels();
    const Floats x_values = rounded(draw(rows * l.K, 1), DType::kBF16);
    const Floats norm_values = draw(l.K, 0.3f, 1);
    const bool norms_here = l.norm && rounded_norm;
    const auto x = device.array(norms_here ? normed(x_values, norm_values) : x_values);
    const auto norm = device.array(norm_values);
    const auto x_bf16 = device.array(stored(x_values, DType::kBF16));
    const auto W = device.array(stored(draw(l.N * l.K, 0.05f), DType::kBF16));
    const auto bias = device.array(draw(l.N, 1)), next_norm = device.array(draw(l.N, 0.3f, 1));
    const int64_t outputs = rows * l.outputs();
    const auto y = device.array(draw(outputs, 1));  // the residual
    const auto y_bf16 = device.array(Words(static_cast<size_t>(outputs)));
    const auto next = device.array(Words(static_cast<size_t>(outputs)));
    const auto squares = device.array(Floats(static_cast<size_t>(outputs / 8 + 1)));
    const auto scales = device.array(Floats(static_cast<size_t>(rows)));
    LinearArgs args{.rows = rows,
                    .W = {.dtype = DType::kBF16, .N = l.N, .K = l.K, .data = W.data()},
                    .bias = bias.data(),
                    .residual = l.residual ? y.data() : nullptr,
                    .x = x.data(),
                    .y = y.data(),
                    .norm = l.norm && !norms_here ? norm.data() : nullptr,
                    .norm_eps = 1e-5f,
                    .swiglu = l.swiglu,
                    .activation = l.f};
    args.W.layer = kLayer;
    const bool bf16 = l.bf16 && kernels.linear.takes_bf16(args.W);
    if (bf16 && !l.norm) args.x_bf16 = x_bf16.data();
    if (bf16 && !l.next) args.y_bf16 = y_bf16.data();
    const bool defers = l.next && kernels.linear.defers_norm(
                                      args.W, {.dtype = DType::kBF16, .N = 4096, .K = l.N}, rows);
    if (defers) {
      args.next_norm = next_norm.data();
      args.next = {next.data(), squares.data(), scales.data()};
    }
    const auto between = device.floats(
        static_cast<size_t>(rows * StepAdapters::floats_of_row(kernels, l.N + l.K, 2)));
    const StepAdapters step(kernels, rows, groups, between.data());
    device.stream->set_adapters(groups.empty() ? nullptr : &step);
    Outcome outcome;
    if (l.conv) {
      outcome.convolved = run_conv(device, args);
    } else {
      linear_group(kernels, {{args}}, *device.stream);
    }
    device.stream->set_adapters(nullptr);
    EXPECT_TRUE(y.guards_intact() && y_bf16.guards_intact() && between.guards_intact());
    EXPECT_TRUE(next.guards_intact() && squares.guards_intact() && scales.guards_intact());
    outcome.y = y.read();
    if (args.y_bf16 != nullptr) {
      std::ranges::transform(y_bf16.read(), outcome.y.begin(), from_bf16);
    }
    if (l.conv) outcome.y.clear();  // of fewer columns where the layer convolves
    if (!defers) return outcome;
    outcome.next = next.read();
    outcome.squares = squares.read();
    // What is left for the next layer is of the y that is there.
    const Floats weights = next_norm.read();
    Floats weighted = outcome.y;
    for (size_t i = 0; i < weighted.size(); ++i) weighted[i] *= weights[i % weights.size()];
    EXPECT_EQ(outcome.next, stored(weighted, DType::kBF16));
    return outcome;
  }

  // Rows times the norm's weights, rounded, and then scaled.
  static Floats normed(const Floats& x, const Floats& norm) {
    const size_t K = norm.size();
    Floats y = x;
    for (size_t i = 0; i < x.size(); ++i) y[i] *= norm[i % K];
    y = rounded(std::move(y), DType::kBF16);
    for (size_t row = 0; row < x.size() / K; ++row) {
      double squares = 0;
      for (size_t k = 0; k < K; ++k) squares += square(x[row * K + k]);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(K) + 1e-5);
      for (size_t k = 0; k < K; ++k) y[row * K + k] = static_cast<float>(y[row * K + k] * scale);
    }
    return y;
  }

  // Of the last columns; each row is a sequence.
  static Floats run_conv(KernelDevice& device, const LinearArgs& args) {
    std::mt19937_64 random(8);
    const auto count = static_cast<size_t>(args.rows);
    std::vector<int32_t> begin{0}, slot;
    for (int32_t row = 0; row < args.rows; ++row) {
      begin.push_back(row + 1);
      slot.push_back(row);
    }
    const auto begins = device.array(begin), slots = device.array(slot);
    const auto w = device.array(normal_floats(random, kChannels * kWidth));
    const auto bias = device.array(normal_floats(random, kChannels));
    const auto state = device.array(normal_floats(random, count * kChannels * (kWidth - 1)));
    const auto y = device.floats(count * kChannels);
    linear_conv(device.kernels(), args,
                {.seqs = {.num_seqs = args.rows,
                          .rows = args.rows,
                          .max_len = 1,
                          .begin = begins.data(),
                          .slot = slots.data()},
                 .D = kChannels,
                 .width = kWidth,
                 .silu = true,
                 .x_stride = static_cast<int>(args.W.N),
                 .x = args.y + args.W.N / 8 * 4,
                 .w = w.data(),
                 .bias = bias.data(),
                 .state = state.data(),
                 .y = y.data()},
                *device.stream);
    Floats all = y.read();
    const Floats after = state.read();
    all.insert(all.end(), after.begin(), after.end());
    EXPECT_TRUE(y.guards_intact() && state.guards_intact());
    return all;
  }

  // Those of a row in one of the outcome's arrays.
  template <typename T>
  static std::span<const T> of_row(const std::vector<T>& values, int rows, int row) {
    const size_t width = values.size() / static_cast<size_t>(rows);
    return std::span(values).subspan(static_cast<size_t>(row) * width, width);
  }
  static void expect_same_row(const Outcome& found, const Outcome& wanted, int rows, int row) {
    EXPECT_TRUE(bit_equal(of_row(found.y, rows, row), of_row(wanted.y, rows, row))) << row;
    EXPECT_TRUE(std::ranges::equal(of_row(found.next, rows, row), of_row(wanted.next, rows, row)));
    const auto [mine, other] =
        std::pair(of_row(found.squares, rows, row), of_row(wanted.squares, rows, row));
    EXPECT_TRUE(bit_equal(mine, other)) << row;
    // First the outputs, then the states of all rows.
    const auto outputs = static_cast<ptrdiff_t>(rows * kChannels);
    if (found.convolved.empty()) return;
    for (const bool states : {false, true}) {
      const auto part = [&](const Floats& v) {
        return states ? Floats(v.begin() + outputs, v.end())
                      : Floats(v.begin(), v.begin() + outputs);
      };
      const Floats a = part(found.convolved), b = part(wanted.convolved);
      EXPECT_TRUE(bit_equal(of_row(a, rows, row), of_row(b, rows, row))) << row;
    }
  }
};

std::vector<int32_t> every_third(int rows, int32_t first) {
  std::vector<int32_t> some;
  for (int32_t row = first; row < rows; row += 3) some.push_back(row);
  return some;
}

TEST_P(AdaptedLayersTest, OtherRowsKeepTheirBitsAndNeighboursChangeNone) {
  KernelDevice device = make_device();
  for (const Layer& layer : layers()) {
    const TestAdapter one = adapter(device, layer, kHalves);
    const TestAdapter some = adapter(device, layer, kSome);
    const TestAdapter other = adapter(device, layer, kAnywhere);
    const bool is_gpu = device.kernels().lora.shrink != nullptr;
    for (const int rows : is_gpu ? std::vector{1, 14, 40, 130, 300} : std::vector{1, 14, 40}) {
      SCOPED_TRACE(::testing::Message()
                   << rows << " rows, " << layer.N << " x " << layer.K << " norm " << layer.norm
                   << " swiglu " << layer.swiglu << " next " << layer.next << " bf16 " << layer.bf16
                   << " conv " << layer.conv);
      const auto of_one = every_third(rows, 0), of_other = every_third(rows, 1);
      const LoraRows both[] = {{one.layers, of_one}, {other.layers, of_other}};
      const Outcome base = run(device, layer, rows, {}), mixed = run(device, layer, rows, both);
      for (int row = 2; row < rows; row += 3) expect_same_row(mixed, base, rows, row);
      const std::vector<int32_t> alone = {of_one.back()};
      const LoraRows single[] = {{one.layers, alone}};
      expect_same_row(run(device, layer, rows, single), mixed, rows, alone.back());
      // Of these, layers of few rows end with what is added.
      const LoraRows aligned[] = {{some.layers, of_other}, {one.layers, of_one}};
      const Outcome joined = run(device, layer, rows, aligned);
      for (int row = 0; row < rows; row += 3) expect_same_row(joined, mixed, rows, row);
      for (int row = 2; row < rows; row += 3) expect_same_row(joined, base, rows, row);
      if (layer.conv) continue;
      EXPECT_FALSE(bit_equal(of_row(mixed.y, rows, 0), of_row(base.y, rows, 0)));
    }
  }
}

TEST_P(AdaptedLayersTest, AreThoseOfTheReference) {
  KernelDevice device = make_device(), reference("reference");
  for (const Layer& layer : layers()) {
    SCOPED_TRACE(::testing::Message() << layer.N << " x " << layer.K << " norm " << layer.norm
                                      << " swiglu " << layer.swiglu << " next " << layer.next
                                      << " bf16 " << layer.bf16 << " conv " << layer.conv);
    constexpr int kRows = 40;
    const auto of_one = every_third(kRows, 0), of_other = every_third(kRows, 1);
    const bool rounds = device.kernels().linear.takes_bf16(
        {.dtype = DType::kBF16, .N = layer.N, .K = layer.K, .data = &device});
    for (const Kind other : {kSome, kAnywhere}) {
      const auto outcome_on = [&](KernelDevice& on, bool rounded_norm) {
        const TestAdapter one = adapter(on, layer, kHalves), two = adapter(on, layer, other);
        const LoraRows both[] = {{one.layers, of_one}, {two.layers, of_other}};
        return run(on, layer, kRows, both, rounded_norm);
      };
      const Outcome found = outcome_on(device, false), wanted = outcome_on(reference, rounds);
      const Tolerance in_f32{2e-4, 2e-5}, in_bf16{2e-4, 0x1.02p-8, 1e-5};
      const Tolerance tolerance = rounds && layer.bf16 && !layer.next ? in_bf16 : in_f32;
      EXPECT_TRUE(close(found.y, wanted.y, tolerance));
      EXPECT_TRUE(close(found.convolved, wanted.convolved, tolerance));
    }
  }
}

// Layers of a group, of which one has no adapter and one an adapter that ends anywhere.
TEST_P(AdaptedLayersTest, OfAGroupAreThemselves) {
  KernelDevice device = make_device();
  const Kernels& kernels = device.kernels();
  constexpr int kRows = 40, kCount = 4;
  constexpr int64_t kN = 1024, kK = 1536;
  std::mt19937_64 random(10);
  const auto W = device.array(stored(normal_floats(random, kCount * kN * kK, 0.05f), DType::kBF16));
  const Floats x = rounded(normal_floats(random, kCount * kRows * kK), DType::kBF16);
  const auto x_array = device.array(x);
  const auto x_bf16 = device.array(stored(x, DType::kBF16));
  const Layer layer{.N = kN, .K = kK};
  const TestAdapter halves = adapter(device, layer, kHalves), some = adapter(device, layer, kSome);
  const TestAdapter anywhere = adapter(device, layer, kAnywhere);
  // Of the layers 1 to 3; the layer 0 has none.
  std::vector<std::span<const LoraPart>> of_one(kCount), of_other(kCount);
  of_one[1] = halves.table;
  of_other[1] = some.table;
  of_one[2] = some.table;
  of_one[3] = halves.table;
  of_other[3] = anywhere.table;
  const auto rows_of_one = every_third(kRows, 0), rows_of_other = every_third(kRows, 1);
  const LoraRows groups[] = {{of_one, rows_of_one}, {of_other, rows_of_other}};
  const auto between =
      device.floats(static_cast<size_t>(kRows * StepAdapters::floats_of_row(kernels, kN + kK, 2)));
  const StepAdapters step(kernels, kRows, groups, between.data());
  device.stream->set_adapters(&step);
  const auto y = device.floats(kCount * kRows * kN);
  std::vector<LinearArgs> args;
  for (int32_t i = 0; i < kCount; ++i) {
    LinearArgs& one = args.emplace_back(
        LinearArgs{.rows = kRows,
                   .W = {.dtype = DType::kBF16, .N = kN, .K = kK, .data = W.data() + i * kN * kK},
                   .x = x_array.data() + i * kRows * kK,
                   .y = y.data() + i * kRows * kN});
    one.W.layer = i;
    if (kernels.linear.takes_bf16(one.W)) one.x_bf16 = x_bf16.data() + i * kRows * kK;
  }
  kernels.linear(args, *device.stream);
  const Floats together = y.read();
  for (const LinearArgs& one : args) kernels.linear(one, *device.stream);
  device.stream->set_adapters(nullptr);
  EXPECT_TRUE(bit_equal(y.read(), together));
  EXPECT_TRUE(y.guards_intact() && between.guards_intact());
}

// Each reads what the one before leaves, so it must not begin before that is there.
TEST_P(AdaptedLayersTest, InSuccessionAreThoseThatWait) {
  KernelDevice device = make_device();
  const Kernels& kernels = device.kernels();
  constexpr int kRows = 40, kCount = 6, kTimes = 20;
  constexpr int64_t kN = 1024;
  std::mt19937_64 random(11);
  const auto W = device.array(stored(normal_floats(random, kCount * kN * kN, 0.03f), DType::kBF16));
  const Floats x = rounded(normal_floats(random, kRows * kN), DType::kBF16);
  const Layer layer{.N = kN, .K = kN};
  const TestAdapter halves = adapter(device, layer, kHalves), some = adapter(device, layer, kSome);
  const std::vector<std::span<const LoraPart>> of_one(kCount, halves.table);
  const std::vector<std::span<const LoraPart>> of_other(kCount, some.table);
  const auto rows_of_one = every_third(kRows, 0), rows_of_other = every_third(kRows, 1);
  const LoraRows groups[] = {{of_one, rows_of_one}, {of_other, rows_of_other}};
  const auto between =
      device.floats(static_cast<size_t>(kRows * StepAdapters::floats_of_row(kernels, 2 * kN, 2)));
  const StepAdapters step(kernels, kRows, groups, between.data());
  device.stream->set_adapters(&step);
  const auto last = [&](bool waits) {
    const auto f32 = device.array(x);
    const auto bf16 = device.array(stored(x, DType::kBF16));
    const auto next_f32 = device.floats(kRows * kN);
    const auto next_bf16 = device.array(Words(static_cast<size_t>(kRows * kN)));
    for (int32_t i = 0; i < kCount; ++i) {
      const bool odd = i % 2 != 0;
      LinearArgs args{
          .rows = kRows,
          .W = {.dtype = DType::kBF16, .N = kN, .K = kN, .data = W.data() + i * kN * kN},
          .x = odd ? next_f32.data() : f32.data(),
          .y = odd ? f32.data() : next_f32.data()};
      args.W.layer = i;
      if (kernels.linear.takes_bf16(args.W)) {
        args.x_bf16 = odd ? next_bf16.data() : bf16.data();
        args.y_bf16 = odd ? bf16.data() : next_bf16.data();
      }
      kernels.linear(args, *device.stream);
      if (waits) device.stream->wait();
    }
    return std::pair(f32.read(), bf16.read());
  };
  const auto wanted = last(true);
  for (int i = 0; i < kTimes; ++i) EXPECT_EQ(last(false), wanted);
  device.stream->set_adapters(nullptr);
}

// A norm that was deferred to a layer and that which it makes itself, of the same rows.
TEST_P(AdaptedLayersTest, ADeferredNormIsTheNorm) {
  KernelDevice device = make_device();
  const Kernels& kernels = device.kernels();
  constexpr int kRows = 40;
  constexpr int64_t kN = 1024, kK = 1536;
  std::mt19937_64 random(9);
  const auto W = device.array(stored(normal_floats(random, kN * kK, 0.05f), DType::kBF16));
  Matrix matrix{.dtype = DType::kBF16, .N = kN, .K = kK, .data = W.data()};
  matrix.layer = kLayer;
  if (!kernels.linear.takes_deferred_norm(matrix)) GTEST_SKIP() << "no norm is deferred here";
  const Floats x = normal_floats(random, kRows * kK), norm = normal_floats(random, kK, 0.3f, 1);
  Floats weighted = x, squares;
  for (size_t i = 0; i < x.size(); ++i) weighted[i] *= norm[i % kK];
  const auto four = [&](size_t i) {
    return std::fma(x[i + 3], x[i + 3],
                    std::fma(x[i + 2], x[i + 2], std::fma(x[i + 1], x[i + 1], x[i] * x[i])));
  };
  for (size_t i = 0; i < x.size(); i += 8) squares.push_back(four(i) + four(i + 4));
  const auto x_array = device.array(x), norm_array = device.array(norm);
  const auto weighted_array = device.array(stored(weighted, DType::kBF16));
  const auto squares_array = device.array(squares), scales = device.array(Floats(kRows));
  const Layer layer{.N = kN, .K = kK};
  const TestAdapter one = adapter(device, layer, kHalves);
  const std::vector<int32_t> rows = every_third(kRows, 0);
  const LoraRows groups[] = {{one.layers, rows}};
  const auto between =
      device.floats(static_cast<size_t>(kRows * StepAdapters::floats_of_row(kernels, kN + kK, 2)));
  const StepAdapters step(kernels, kRows, groups, between.data());
  device.stream->set_adapters(&step);
  LinearArgs args{.rows = kRows, .W = matrix, .x = x_array.data(), .norm = norm_array.data()};
  args.norm_eps = 1e-5f;
  Floats found[2];
  for (const bool deferred : {false, true}) {
    const auto y = device.floats(kRows * kN);
    args.y = y.data();
    if (deferred) args.deferred = {weighted_array.data(), squares_array.data(), scales.data()};
    kernels.linear(args, *device.stream);
    found[deferred] = y.read();
  }
  device.stream->set_adapters(nullptr);
  EXPECT_TRUE(bit_equal(found[true], found[false]));
}

RECURVE_ON_EACH_DEVICE(AdaptedLayersTest);
RECURVE_ON_CUDA(AdaptedLayersTest);

}  // namespace recurve::testing::adapted_layers_test
