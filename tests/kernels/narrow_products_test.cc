// Linear layers of the CPU on instructions for narrow types: those that round x to bf16 or to eight
// bits, against the reference over x as it is after rounding, which is done here a second time from
// its description, and those that keep it in fp32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/activation_type.h"
#include "tests/support/compare.h"
#include "tests/support/kernel_device.h"
#include "tests/support/packed.h"

namespace recurve::testing::narrow_products_test {

using ::testing::HasSubstr;

struct Case {
  int rows, N, K;
  bool parts;  // gate and bias; else a residual
};

// Odd shapes; one row and tiles of several; more groups, outputs and rows than are taken at once; a
// matrix that comes from memory.
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const int K : {1, 17, 32, 63, 64, 65, 200, 384}) {
    for (const int N : {2, 6, 34}) {
      for (const int rows : {1, 2, 5, 7, 13}) cases.push_back({rows, N, K, N == 6});
    }
  }
  for (const int rows : {1, 2, 50}) cases.push_back({rows, 150, 1300, false});
  cases.push_back({1, 2051, 2080, false});
  cases.push_back({7, 2051, 2080, false});
  return cases;
}

// A format of weights, and what x is rounded to beside it.
struct Kind {
  const WeightFormat* format;
  ActivationType activations;

  std::string name() const {
    return std::string(format->name) + ", activations in " + name_of(activations);
  }
};

std::vector<Kind> kinds() {
  return {{&kBf16Weights, ActivationType::kF32},  {&kInt8Weights, ActivationType::kF32},
          {&kInt4Weights, ActivationType::kF32},  {&kBf16Weights, ActivationType::kBF16},
          {&kBf16Weights, ActivationType::kInt8},  // whose x is rounded to bf16 too
          {&kInt8Weights, ActivationType::kInt8}, {&kInt4Weights, ActivationType::kInt8}};
}

// x as the kind's layers read it.
std::vector<float> rounded_x(const Kind& kind, std::vector<float> x, int K) {
  if (kind.activations == ActivationType::kF32) return x;
  if (!kind.format->packed()) return rounded(std::move(x), DType::kBF16);
  for (size_t row = 0; row < x.size(); row += static_cast<size_t>(K)) {
    for (size_t k = 0; k < static_cast<size_t>(K); k += 64) {
      const auto group =
          std::span(x).subspan(row + k, std::min<size_t>(64, static_cast<size_t>(K) - k));
      float largest = 0;
      for (const float value : group) largest = std::max(largest, std::fabs(value));
      if (largest == 0) continue;
      const float inverse = 127 / largest;
      for (float& value : group) value = std::nearbyint(value * inverse) * (largest / 127);
    }
  }
  return x;
}

struct Inputs {
  Inputs(const Case& c, uint64_t seed) {
    std::mt19937_64 random(seed);
    W = normal_floats(random, static_cast<size_t>(c.N) * c.K,
                      1 / std::sqrt(static_cast<float>(c.K)));
    x = normal_floats(random, static_cast<size_t>(c.rows) * c.K);
    bias = normal_floats(random, c.N);
    residual = normal_floats(random, static_cast<size_t>(c.rows) * c.N);
  }
  std::vector<float> W, x, bias, residual;
};

std::vector<float> run(Backend& backend, const Case& c, const Inputs& in, const Packed& packed,
                       const std::vector<float>& x, size_t shift = 0) {
  std::vector<std::byte> data(shift), scales(shift);
  data.insert(data.end(), packed.data.begin(), packed.data.end());
  scales.insert(scales.end(), packed.scales.begin(), packed.scales.end());
  Matrix W = packed.matrix(data.data() + shift, scales.data() + shift);
  if (!packed.format->packed()) W = {packed.format->dtype, c.N, c.K, W.data};
  std::vector<float> y(static_cast<size_t>(c.rows) * (c.parts ? c.N / 2 : c.N));
  const auto stream = backend.make_stream();
  backend.kernels().linear({.rows = c.rows,
                            .W = W,
                            .bias = c.parts ? in.bias.data() : nullptr,
                            .residual = c.parts ? nullptr : in.residual.data(),
                            .x = x.data(),
                            .y = y.data(),
                            .swiglu = c.parts},
                           *stream);
  return y;
}

std::string describe(const Kind& kind, const Case& c) {
  return kind.name() + ", rows " + std::to_string(c.rows) + " N " + std::to_string(c.N) + " K " +
         std::to_string(c.K) + (c.parts ? ", parts" : "");
}

// Of each kind that this machine has products for, faster ones: otherwise they are those of fp32
// that linear_test.cc has.
class NarrowProductsTest : public ::testing::TestWithParam<int /* threads */> {
 protected:
  std::unique_ptr<Backend> backend(const Kind& kind) {
    auto made = make_backend("cpu", GetParam(), kind.activations);
    const std::string type = kind.activations == ActivationType::kF32 ? ", amx"
                             : kind.format->packed()                  ? ", int8"
                                                                      : ", bf16";
    if (made->name().find(type) == std::string::npos) made.reset();
    return made;
  }
  void SetUp() override {
    const std::string why = why_unusable("cpu");
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

TEST_P(NarrowProductsTest, MatchTheReferenceOverRoundedRows) {
  const auto reference = make_backend("reference");
  for (const Kind& kind : kinds()) {
    const auto device = backend(kind);
    if (device == nullptr) continue;
    for (const Case& c : cases()) {
      const Inputs in(c, 3);
      const Packed packed(*kind.format, in.W, c.N, c.K);
      const double steps = 64 * std::sqrt(static_cast<double>(c.K) + 4);
      ASSERT_TRUE(close(run(*device, c, in, packed, in.x),
                        run(*reference, c, in, packed, rounded_x(kind, in.x, c.K)),
                        {.absolute = steps * 0x1p-24, .relative = 0x1p-20}))
          << describe(kind, c);
    }
  }
}

TEST_P(NarrowProductsTest, RowsDoNotDependOnNeighboursThreadsOrAlignment) {
  const auto one_thread = [](const Kind& kind) { return make_backend("cpu", 1, kind.activations); };
  for (const Kind& kind : kinds()) {
    const auto device = backend(kind), single = one_thread(kind);
    if (device == nullptr) continue;
    for (const int K : {200, 384, 1300}) {
      const Case many{70, 150, K, false};
      const Inputs in(many, 5);
      const Packed packed(*kind.format, in.W, many.N, K);
      const std::vector<float> together = run(*device, many, in, packed, in.x);
      ASSERT_TRUE(bit_equal(run(*single, many, in, packed, in.x), together)) << kind.name();
      ASSERT_TRUE(bit_equal(run(*device, many, in, packed, in.x, 1), together)) << kind.name();
      for (const int rows : {1, 3, 8}) {
        const Case few{rows, many.N, K, false};
        for (int first = 0; first + rows <= many.rows; first += 11) {
          Inputs part = in;
          part.x.assign(in.x.begin() + first * K, in.x.begin() + (first + rows) * K);
          part.residual.assign(in.residual.begin() + first * many.N,
                               in.residual.begin() + (first + rows) * many.N);
          ASSERT_TRUE(bit_equal(
              run(*device, few, part, packed, part.x),
              {together.begin() + first * many.N, together.begin() + (first + rows) * many.N}))
              << describe(kind, few) << " from row " << first;
        }
      }
    }
  }
}

TEST_P(NarrowProductsTest, ZerosStayAndWhatIsNotFiniteIsSeen) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Kind& kind : kinds()) {
    const auto device = backend(kind);
    if (device == nullptr) continue;
    for (const int rows : {1, 4}) {
      const Case c{rows, 20, 130, false};
      Inputs in(c, 7);
      in.residual.assign(in.residual.size(), 0);
      const Packed packed(*kind.format, in.W, c.N, c.K);
      for (const float value : run(*device, c, in, packed, std::vector<float>(in.x.size()))) {
        ASSERT_EQ(value, 0) << kind.name();
      }
      for (const float bad : {kNan, kInfinity}) {
        std::vector<float> x = in.x;
        x[70] = bad;
        const std::vector<float> y = run(*device, c, in, packed, x);
        for (int n = 0; n < c.N; ++n) ASSERT_FALSE(std::isfinite(y[n])) << kind.name();
        for (size_t i = c.N; i < y.size(); ++i) ASSERT_TRUE(std::isfinite(y[i])) << kind.name();
      }
    }
  }
}

// A column whose weights are zeros has a value far above the others, which keep what fp32 has of
// them: a 2^30th of the largest is lost of each at most.
TEST_P(NarrowProductsTest, WithoutRoundingASmallValueBesideALargeOneIsKept) {
  const auto reference = make_backend("reference");
  constexpr float kLarge = 0x1p20f;
  for (const Kind& kind : kinds()) {
    const auto device = backend(kind);
    const bool has_zeros = kind.format != &kInt4Weights;
    if (device == nullptr || kind.activations != ActivationType::kF32 || !has_zeros) continue;
    for (const int rows : {1, 4}) {
      const Case c{rows, 34, 200, false};
      Inputs in(c, 11);
      for (int k = 0; k < c.K; k += 50) {
        for (int n = 0; n < c.N; ++n) in.W[static_cast<size_t>(n * c.K + k)] = 0;
        for (int row = 0; row < rows; ++row) in.x[static_cast<size_t>(row * c.K + k)] = kLarge;
      }
      in.residual.assign(in.residual.size(), 0);
      const Packed packed(*kind.format, in.W, c.N, c.K);
      double weights = 0;
      for (int n = 0; n < c.N; ++n) {
        double sum = 0;
        for (int k = 0; k < c.K; ++k) sum += std::fabs(in.W[static_cast<size_t>(n * c.K + k)]);
        weights = std::max(weights, sum);
      }
      const double lost = weights * kLarge * 0x1p-30;
      ASSERT_TRUE(close(run(*device, c, in, packed, in.x), run(*reference, c, in, packed, in.x),
                        {.absolute = lost, .relative = 0x1p-20}))
          << describe(kind, c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, NarrowProductsTest, ::testing::Values(1, 3));

TEST(ActivationType, AreRoundedOnTheCpuAloneAndWhereThatIsAskedFor) {
  try {
    make_backend("reference", 0, ActivationType::kBF16);
    ADD_FAILURE() << "the reference took it";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'reference'"));
  }
  if (!why_unusable("cpu").empty()) return;
  EXPECT_THAT(make_backend("cpu", 1)->name(), ::testing::Not(HasSubstr("activations")));
  EXPECT_THAT(make_backend("cpu", 1, ActivationType::kInt8)->name(),
              HasSubstr("activations in f32"));
}

}  // namespace recurve::testing::narrow_products_test
