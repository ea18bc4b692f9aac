// The op lora, and linear layers of a step whose rows have adapters.
#include <gtest/gtest.h>

#include "kernels/step_adapters.h"
#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/lora_case.h"
#include "tests/support/kernels/packed.h"

namespace recurve::testing::lora_test {

using Floats = std::vector<float>;

// What an adapter adds to a row, x: (K).
void add_by_formula(const TestAdapter& adapter, const float* x, int64_t K, double* y) {
  for (const TestPart& one : adapter.parts) {
    const LoraPart& part = one.part;
    for (int64_t j = 0; j < part.r; ++j) {
      double inner = 0;
      for (int64_t k = 0; k < K; ++k) inner += double{one.A[j * K + k]} * x[k];
      // B in panels: the panels that come before, then rows of this one.
      for (int64_t n = 0; n < part.N; ++n) {
        const int64_t panel = n / 64, width = std::min<int64_t>(64, part.N - panel * 64);
        const float value = one.B[panel * 64 * part.r + j * width + n % 64];
        y[part.first + n] += double{part.scale} * value * inner;
      }
    }
  }
}

struct Case {
  int64_t K, N;
  std::vector<std::array<int64_t, 3>> parts;  // r, first, N
  int rows;
  DType type = DType::kF32;
};

std::vector<Case> cases() {
  return {{16, 16, {{1, 0, 16}}, 1},
          {1, 1, {{1, 0, 1}}, 3},
          {37, 111, {{3, 0, 111}}, 5},
          {64, 200, {{16, 0, 64}, {5, 64, 100}}, 7, DType::kBF16},
          {100, 67, {{4, 1, 63}, {9, 66, 1}}, 13},
          {96, 130, {{8, 0, 65}, {256, 65, 65}}, 70},
          {130, 64, {{7, 0, 64}}, 30, DType::kBF16},
          {1032, 264, {{16, 0, 128}, {6, 128, 136}}, 300},
          {2304, 72, {{33, 0, 72}}, 20, DType::kBF16}};
}

class LoraTest : public DeviceTest {
 protected:
  static constexpr int32_t kLayer = 2;
  static TestAdapter adapter(KernelDevice& device, const Case& c, std::mt19937_64& random) {
    TestAdapter made;
    for (const auto& [r, first, N] : c.parts) {
      made.parts.emplace_back(device, r, first, N, c.K, 0.5f + 1 / static_cast<float>(r), c.type,
                              random);
    }
    made.finish(kLayer);
    return made;
  }
  static Floats run(KernelDevice& device, const Case& c, std::span<const LoraRows> groups,
                    const Floats& x, const Floats& y) {
    const auto x_array = device.array(x), y_array = device.array(y);
    device.kernels().lora({.layer = kLayer,
                           .K = c.K,
                           .N = c.N,
                           .groups = groups,
                           .x = x_array.data(),
                           .y = y_array.data()},
                          *device.stream);
    EXPECT_TRUE(x_array.guards_intact() && y_array.guards_intact());
    return y_array.read();
  }
};

// Two adapters and rows without one.
TEST_P(LoraTest, IsTheFormula) {
  KernelDevice device = make_device();
  std::mt19937_64 random(1);
  for (const Case& c : cases()) {
    const TestAdapter one = adapter(device, c, random), other = adapter(device, c, random);
    const Floats x = normal_floats(random, c.rows * c.K), y = normal_floats(random, c.rows * c.N);
    std::vector<int32_t> of_one, of_other;
    std::vector<double> wanted(y.begin(), y.end());
    for (int32_t row = 0; row < c.rows; ++row) {
      if (row % 5 == 4) continue;
      (row % 3 == 0 ? of_one : of_other).push_back(row);
      add_by_formula(row % 3 == 0 ? one : other, &x[row * c.K], c.K, &wanted[row * c.N]);
    }
    const LoraRows groups[] = {{one.layers, of_one}, {other.layers, of_other}};
    // Sums of up to 2,304, then 256, products of about 1.
    const Tolerance tolerance = {.absolute = 2e-3, .relative = 4e-6};
    EXPECT_TRUE(
        close(run(device, c, groups, x, y), Floats(wanted.begin(), wanted.end()), tolerance))
        << c.K << " to " << c.N;
  }
}

TEST_P(LoraTest, ARowIsItselfWhateverItsNeighbours) {
  KernelDevice device = make_device();
  std::mt19937_64 random(2);
  for (const Case& c : cases()) {
    const TestAdapter one = adapter(device, c, random), other = adapter(device, c, random);
    const Floats x = normal_floats(random, c.rows * c.K), y = normal_floats(random, c.rows * c.N);
    std::vector<int32_t> rows;
    for (int32_t row = 0; row < c.rows; ++row) rows.push_back(row);
    const LoraRows all[] = {{one.layers, rows}};
    const Floats together = run(device, c, all, x, y);
    for (const int32_t row : {0, c.rows / 2, c.rows - 1}) {
      const std::vector<int32_t> alone = {row};
      std::vector<int32_t> others = rows;
      std::erase(others, row);
      const LoraRows groups[] = {{other.layers, others}, {one.layers, alone}};
      const Floats mixed = run(device, c, groups, x, y);
      const auto of_row = [&](const Floats& v) {
        return std::span(v).subspan(static_cast<size_t>(row * c.N), static_cast<size_t>(c.N));
      };
      EXPECT_TRUE(bit_equal(of_row(mixed), of_row(together))) << row << " of " << c.rows;
    }
  }
}

TEST_P(LoraTest, AnAdapterWithoutThatLayerAddsNothing) {
  KernelDevice device = make_device();
  std::mt19937_64 random(3);
  const Case c = cases()[2];
  TestAdapter none;
  none.finish(kLayer);
  const Floats x = normal_floats(random, c.rows * c.K), y = normal_floats(random, c.rows * c.N);
  const std::vector<int32_t> rows = {0, 2};
  const LoraRows groups[] = {{none.layers, rows}};
  EXPECT_TRUE(bit_equal(run(device, c, groups, x, y), y));
}

RECURVE_ON_EACH_DEVICE(LoraTest);
RECURVE_ON_CUDA(LoraTest);
INSTANTIATE_TEST_SUITE_P(Reference, LoraTest,
                         ::testing::Values(DeviceUnderTest{"reference", 1, 0, "reference"}),
                         name_of_device);

// ---- layers of a step

class AdaptedLinearTest : public LoraTest {
 protected:
  static constexpr int kRows = 9, kK = 70, kN = 66;
  struct Layer {
    Matrix W;
    bool norm, residual, swiglu;
  };
  // What the layer gives, with the adapters of `step` or none.
  Floats outputs(KernelDevice& device, const Layer& layer, std::span<const LoraRows> groups) {
    const bool halves = layer.swiglu;
    std::mt19937_64 random(7);
    const auto x = device.array(normal_floats(random, kRows * kK));
    const auto norm = device.array(normal_floats(random, kK, 0.3f, 1));
    const auto bias = device.array(normal_floats(random, kN));
    const auto residual = device.array(normal_floats(random, kRows * kN));
    const auto y = device.floats(kRows * (halves ? kN / 2 : kN));
    const auto between = device.floats(static_cast<size_t>(
        kRows * StepAdapters::floats_of_row(device.kernels(), kN + kK, /*parts=*/2)));
    const StepAdapters step(device.kernels(), kRows, groups, between.data());
    device.stream->set_adapters(groups.empty() ? nullptr : &step);
    device.kernels().linear({.rows = kRows,
                             .W = layer.W,
                             .bias = bias.data(),
                             .residual = layer.residual ? residual.data() : nullptr,
                             .x = x.data(),
                             .y = y.data(),
                             .norm = layer.norm ? norm.data() : nullptr,
                             .norm_eps = 1e-5f,
                             .swiglu = layer.swiglu},
                            *device.stream);
    device.stream->set_adapters(nullptr);
    EXPECT_TRUE(y.guards_intact() && between.guards_intact());
    return y.read();
  }
  // z = W norm(x) + bias + residual of row 4, without a gate.
  std::vector<double> z_of_row(const Layer& layer, const Floats& W, const TestAdapter* adapter) {
    std::mt19937_64 random(7);
    const Floats xs = normal_floats(random, kRows * kK), norm = normal_floats(random, kK, 0.3f, 1);
    const Floats bias = normal_floats(random, kN), residual = normal_floats(random, kRows * kN);
    Floats x(xs.begin() + 4 * kK, xs.begin() + 5 * kK);
    double squares = 0;
    for (const float value : x) squares += square(value);
    const double scale = 1 / std::sqrt(squares / kK + 1e-5);
    for (int k = 0; layer.norm && k < kK; ++k) x[k] = static_cast<float>(x[k] * scale * norm[k]);
    std::vector<double> z(kN);
    for (int n = 0; n < kN; ++n) {
      z[n] = bias[n] + (layer.residual ? residual[4 * kN + n] : 0);
      for (int k = 0; k < kK; ++k) z[n] += double{W[n * kK + k]} * x[k];
    }
    if (adapter != nullptr) add_by_formula(*adapter, x.data(), kK, z.data());
    return z;
  }
};

TEST_P(AdaptedLinearTest, RowsWithOneAreTheFormulaAndOthersKeepTheirBits) {
  KernelDevice device = make_device();
  std::mt19937_64 random(4);
  const Floats W = rounded(normal_floats(random, kN * kK, 0.1f), DType::kBF16);
  const auto array = device.array(stored(W, DType::kBF16));
  Matrix matrix{.dtype = DType::kBF16, .N = kN, .K = kK, .data = array.data()};
  matrix.layer = kLayer;
  TestAdapter adapter;
  adapter.parts.emplace_back(device, 3, 0, 33, kK, 0.1f, DType::kF32, random);
  adapter.parts.emplace_back(device, 5, 33, 33, kK, 0.1f, DType::kF32, random);
  adapter.finish(kLayer);
  const std::vector<int32_t> rows = {4, 7};
  const LoraRows groups[] = {{adapter.layers, rows}};
  for (const Layer& layer : {Layer{matrix, false, false, false}, Layer{matrix, true, false, false},
                             Layer{matrix, false, true, false}, Layer{matrix, true, false, true}}) {
    const Floats base = outputs(device, layer, {}), found = outputs(device, layer, groups);
    const auto outputs_of_row = static_cast<int>(base.size()) / kRows;
    Floats without(base), with_base(found);
    for (const int row : {4, 7}) {
      for (Floats* one : {&without, &with_base}) {
        std::fill_n(one->begin() + row * outputs_of_row, outputs_of_row, 0.0f);
      }
    }
    EXPECT_TRUE(bit_equal(with_base, without));
    std::vector<double> z = z_of_row(layer, W, &adapter);
    Floats wanted;
    for (int n = 0; n < outputs_of_row; ++n) {
      const double gate = layer.swiglu ? z[n] / (1 + std::exp(-z[n])) * z[n + kN / 2] : z[n];
      wanted.push_back(static_cast<float>(gate));
    }
    const auto of_row = std::span(found).subspan(static_cast<size_t>(4 * outputs_of_row),
                                                 static_cast<size_t>(outputs_of_row));
    EXPECT_TRUE(close(of_row, wanted, {.absolute = 2e-4, .relative = 1e-5}));
  }
}

RECURVE_ON_EACH_DEVICE(AdaptedLinearTest);
RECURVE_ON_CUDA(AdaptedLinearTest);
INSTANTIATE_TEST_SUITE_P(Reference, AdaptedLinearTest,
                         ::testing::Values(DeviceUnderTest{"reference", 1, 0, "reference"}),
                         name_of_device);

}  // namespace recurve::testing::lora_test
