// Products with the matrices of experts, of every format of weights: against double precision over
// the values that the format gives back, and row by row, to the bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/activation_type.h"
#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/packed.h"

namespace recurve::testing::expert_linear_test {

struct Case {
  int rows, E, top, N, K;
  bool gated;
};

// Odd shapes; experts without rows, with one, and with more than are multiplied at once; outputs
// that are divided among tasks.
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const bool gated : {true, false}) {
    for (const int K : {1, 40, 64, 200}) {
      cases.push_back({1, 5, 2, 14, K, gated});
      cases.push_back({9, 17, 5, 34, K, gated});
      cases.push_back({40, 3, 1, 128, K, gated});
    }
    cases.push_back({500, 3, 2, 34, 65, gated});
    cases.push_back({30, 4, 3, 1040, 256, gated});
    cases.push_back({6, 1, 1, 130, 72, gated});
    // Large enough for a GPU to round x.
    cases.push_back({130, 16, 4, 192, 256, gated});
    cases.push_back({150, 12, 3, 160, 520, gated});
    // With few rows an expert: on a GPU, parts of eight rows or of 16, and several for a block.
    cases.push_back({5, 3, 2, 1536, 512, gated});
    cases.push_back({40, 16, 4, 128, 1024, gated});
    cases.push_back({24, 16, 4, 256, 1024, gated});
    cases.push_back({20, 12, 4, 4096, 256, gated});
    cases.push_back({150, 600, 8, 32, 256, gated});
  }
  return cases;
}

struct Inputs {
  explicit Inputs(const Case& c) {
    std::mt19937_64 random(static_cast<uint64_t>(c.rows * 1000 + c.K));
    x = normal_floats(random, static_cast<size_t>(c.rows) * (c.gated ? 1 : c.top) * c.K);
    weight = normal_floats(random, static_cast<size_t>(c.rows) * c.top);
    y = normal_floats(random, static_cast<size_t>(c.rows) * c.N);
    std::vector<int32_t> experts(c.E), pairs(static_cast<size_t>(c.rows) * c.top);
    std::iota(experts.begin(), experts.end(), 0);
    for (int r = 0; r < c.rows; ++r) {  // some more often than others
      std::shuffle(experts.begin() + (r % 3 == 0 && c.top < c.E), experts.end(), random);
      std::copy_n(experts.begin(), c.top, expert.insert(expert.end(), c.top, 0));
      std::sort(expert.end() - c.top, expert.end());
    }
    sort(c.E);
  }
  // The pairs by expert.
  void sort(int E) {
    begin.assign(1, 0);
    pair.clear();
    for (int e = 0; e < E; ++e) {
      for (size_t p = 0; p < expert.size(); ++p) {
        if (expert[p] == e) pair.push_back(static_cast<int32_t>(p));
      }
      begin.push_back(static_cast<int32_t>(pair.size()));
    }
  }
  std::vector<float> x, weight, y;
  std::vector<int32_t> expert, begin, pair;
};

std::vector<float> run(KernelDevice& device, const Case& c, const Inputs& in, const Matrix& W,
                       bool sorted = true) {
  const auto x = device.array(in.x), weight = device.array(in.weight);
  const auto begin = device.array(in.begin), pair = device.array(in.pair);
  const auto y =
      c.gated ? device.floats(static_cast<size_t>(c.rows) * c.top * (c.N / 2)) : device.array(in.y);
  device.kernels().expert_linear({.rows = c.rows,
                                  .top = c.top,
                                  .E = c.E,
                                  .W = W,
                                  .begin = sorted ? begin.data() : nullptr,
                                  .pair = sorted ? pair.data() : nullptr,
                                  .weight = c.gated ? nullptr : weight.data(),
                                  .x = x.data(),
                                  .y = y.data()},
                                 *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

std::vector<float> in_double(const Case& c, const Inputs& in, const std::vector<float>& W) {
  const auto dot = [&](int e, int n, const float* x) {
    const float* w = W.data() + (static_cast<size_t>(e) * c.N + n) * c.K;
    return std::inner_product(w, w + c.K, x, 0.0, std::plus(),
                              [](double a, double b) { return a * b; });
  };
  std::vector<double> y(in.y.begin(), in.y.end());
  std::vector<float> gated;
  for (size_t i = 0; i < in.pair.size(); ++i) {
    const int p = in.pair[i], e = in.expert[p], r = p / c.top;
    if (c.gated) {
      const float* x = in.x.data() + static_cast<size_t>(r) * c.K;
      for (int n = 0; n < c.N / 2; ++n) {
        const double z = dot(e, n, x);
        gated.push_back(static_cast<float>(z / (1 + std::exp(-z)) * dot(e, c.N / 2 + n, x)));
      }
    } else {
      for (int n = 0; n < c.N; ++n) {
        y[static_cast<size_t>(r) * c.N + n] += in.weight[p] * dot(e, n, in.x.data() + i * c.K);
      }
    }
  }
  return c.gated ? gated : std::vector<float>(y.begin(), y.end());
}

std::string describe(const Case& c, std::string_view format) {
  return std::string(format) + ", " + std::to_string(c.rows) + " rows, " + std::to_string(c.top) +
         " of " + std::to_string(c.E) + ", " + std::to_string(c.N) + " x " + std::to_string(c.K);
}

// Calls visit(name, W, the values that it stands for) with a matrix of each format.
template <typename Visit>
void with_formats(KernelDevice& device, const Case& c, const Visit& visit) {
  for (const WeightFormat* format : packed_formats()) {
    const Packed& packed = packed_normal(*format, c.E * c.N, c.K);
    const auto data = device.array(packed.data), scales = device.array(packed.scales);
    visit(format->name, packed.matrix(data.data(), scales.data()), packed.unpacked);
  }
  const std::vector<float>& values = packed_normal(kInt8Weights, c.E * c.N, c.K).unpacked;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const auto W = device.array(stored(values, type));
    visit(std::string_view(name_of(type)), Matrix{type, c.E * c.N, c.K, W.data()},
          rounded(values, type));
  }
}

void expect_formula(KernelDevice& device) {
  for (const Case& c : cases()) {
    with_formats(device, c, [&](auto name, const Matrix& W, const std::vector<float>& values) {
      Inputs in(c);
      const bool rounds = device.kernels().expert_linear.takes_bf16(W);
      if (rounds) in.x = rounded(in.x, DType::kBF16);
      const double steps = 64 * std::sqrt(static_cast<double>(c.K) + 4);
      ASSERT_TRUE(close(run(device, c, in, W), in_double(c, in, values),
                        {.absolute = steps * 0x1p-24, .relative = 0x1p-19}))
          << describe(c, name);
    });
  }
}

TEST(ExpertLinearReference, IsTheFormula) {
  KernelDevice device("reference");
  expect_formula(device);
}

class ExpertLinearTest : public DeviceTest {};

TEST_P(ExpertLinearTest, IsTheFormula) {
  KernelDevice device = make_device();
  expect_formula(device);
}

// Alone, a row is the only one of each of its experts.
TEST_P(ExpertLinearTest, NeighboursDoNotChangeARow) {
  KernelDevice device = make_device();
  for (const Case& c : cases()) {
    const Inputs in(c);
    with_formats(device, c, [&](auto name, const Matrix& W, const std::vector<float>&) {
      const std::vector<float> together = run(device, c, in, W);
      Case one = c;
      one.rows = 1;
      for (int r = 0; r < c.rows; r += c.rows / 7 + 1) {
        Inputs alone = in;
        const auto cut = [&](auto& values, int width) {
          values.assign(values.begin() + r * width, values.begin() + (r + 1) * width);
        };
        cut(alone.expert, c.top);
        alone.sort(c.E);
        cut(alone.weight, c.top);
        cut(alone.y, c.N);
        std::vector<float> wanted;
        if (c.gated) {
          cut(alone.x, c.K);
        } else {
          alone.x.clear();
          wanted.assign(together.begin() + r * c.N, together.begin() + (r + 1) * c.N);
        }
        for (size_t i = 0; i < in.pair.size(); ++i) {  // the row's own, in their order
          if (in.pair[i] / c.top != r) continue;
          const auto rows = [&](const std::vector<float>& from, int width) {
            return from.begin() + static_cast<ptrdiff_t>(i) * width;
          };
          if (c.gated) {
            const auto at = rows(together, c.N / 2);
            wanted.insert(wanted.end(), at, at + c.N / 2);
          } else {
            const auto at = rows(in.x, c.K);
            alone.x.insert(alone.x.end(), at, at + c.K);
          }
        }
        ASSERT_TRUE(bit_equal(run(device, one, alone, W), wanted))
            << describe(c, name) << ", row " << r;
      }
    });
  }
}

// One expert that all rows go to needs no list of them.
TEST_P(ExpertLinearTest, OneExpertHasAllRows) {
  KernelDevice device = make_device();
  for (Case c : cases()) {
    c.E = c.top = 1;
    const Inputs in(c);
    with_formats(device, c, [&](auto name, const Matrix& W, const std::vector<float>&) {
      ASSERT_TRUE(bit_equal(run(device, c, in, W, false), run(device, c, in, W)))
          << describe(c, name);
    });
  }
}

RECURVE_ON_EACH_DEVICE(ExpertLinearTest);
RECURVE_ON_CUDA(ExpertLinearTest);

// Whatever x is rounded to: those of a linear layer of the expert's matrix alone.
TEST(ExpertLinear, HasTheBitsOfLinearLayers) {
  if (const std::string why = why_unusable("cpu"); !why.empty()) GTEST_SKIP() << why;
  for (const ActivationType type :
       {ActivationType::kF32, ActivationType::kBF16, ActivationType::kInt8}) {
    KernelDevice device("cpu", 2);
    device.stream.reset();
    device.backend = make_backend("cpu", 2, type);
    device.stream = device.backend->make_stream();
    for (const Case& c : cases()) {
      Inputs in(c);
      in.y.assign(in.y.size(), 0);
      in.weight.assign(in.weight.size(), 1);
      if (!c.gated && c.top > 1) continue;  // which adds several
      with_formats(device, c, [&](auto name, const Matrix& W, const std::vector<float>&) {
        const std::vector<float> found = run(device, c, in, W);
        const int width = c.gated ? c.N / 2 : c.N;
        const auto x = device.array(in.x);
        for (size_t i = 0; i < in.pair.size(); ++i) {
          const int p = in.pair[i], r = p / c.top;
          const auto y = device.floats(width);
          device.kernels().linear({.rows = 1,
                                   .W = rows_of(W, int64_t{in.expert[p]} * c.N, c.N),
                                   .x = x.data() + (c.gated ? r : static_cast<int>(i)) * c.K,
                                   .y = y.data(),
                                   .swiglu = c.gated},
                                  *device.stream);
          const auto at = found.begin() + (c.gated ? static_cast<ptrdiff_t>(i) : r) * width;
          ASSERT_TRUE(bit_equal(y.read(), {at, at + width})) << describe(c, name) << ", pair " << p;
        }
      });
    }
  }
}

}  // namespace recurve::testing::expert_linear_test
