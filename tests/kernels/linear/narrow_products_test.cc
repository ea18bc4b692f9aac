// Linear layers of the CPU on instructions for narrow types: those that round x to bf16 or to eight
// bits, against the reference over x as it is after rounding, which is done here a second time from
// its description, and those that keep it in fp32. All that this machine has, also what a backend
// finds to be slower.
#include "kernels/cpu/products/narrow_products.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/activation_type.h"
#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"
#include "tests/support/kernels/packed.h"

namespace recurve::testing::narrow_products_test {

using ::testing::HasSubstr;

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

#if RECURVE_CPU
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

using cpu::LinearProducts;

// Products with weights of a format, and what x is rounded to for them.
struct Kind {
  const char* name;
  const LinearProducts* (*products)();
  const WeightFormat* format;
  ActivationType activations;
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

constexpr Kind kKinds[] = {
    {"AmxF32", cpu::amx_f32_products, &kBf16Weights, ActivationType::kF32},
    {"AmxInt8", cpu::amx_int8_products, &kInt8Weights, ActivationType::kF32},
    {"AmxInt4", cpu::amx_int4_products, &kInt4Weights, ActivationType::kF32},
    {"AmxBf16", cpu::amx_bf16_products, &kBf16Weights, ActivationType::kBF16},
    {"Avx512Bf16", cpu::bf16_products, &kBf16Weights, ActivationType::kBF16},
    {"VnniInt8", cpu::int8_products, &kInt8Weights, ActivationType::kInt8},
    {"VnniInt4", cpu::int4_products, &kInt4Weights, ActivationType::kInt8}};

// Those that this machine has the instructions for, or those that it has not.
std::vector<Kind> kinds(bool here = true) {
  std::vector<Kind> kinds;
  for (const Kind& kind : kKinds) {
    if ((kind.products() != nullptr) == here) kinds.push_back(kind);
  }
  return kinds;
}
std::vector<Kind> kinds_in_f32_with_zeros() {  // in int4 no weight is zero
  std::vector<Kind> some = kinds();
  std::erase_if(some, [](const Kind& kind) {
    return kind.activations != ActivationType::kF32 || kind.format == &kInt4Weights;
  });
  return some;
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
    x = normal_floats(random, static_cast<size_t>(c.rows) * c.K);
    bias = normal_floats(random, c.N);
    residual = normal_floats(random, static_cast<size_t>(c.rows) * c.N);
  }
  std::vector<float> x, bias, residual;
};

// With the products; null: with those that the backend has chosen.
std::vector<float> run(Backend& backend, const LinearProducts* products, const Case& c,
                       const Inputs& in, const Packed& packed, const std::vector<float>& x,
                       size_t shift = 0) {
  std::vector<std::byte> data(shift), scales(shift);
  data.insert(data.end(), packed.data.begin(), packed.data.end());
  scales.insert(scales.end(), packed.scales.begin(), packed.scales.end());
  Matrix W = packed.matrix(data.data() + shift, scales.data() + shift);
  if (!packed.format->packed()) W = {packed.format->dtype, c.N, c.K, W.data};
  std::vector<float> y(static_cast<size_t>(c.rows) * (c.parts ? c.N / 2 : c.N));
  const LinearArgs args = {.rows = c.rows,
                           .W = W,
                           .bias = c.parts ? in.bias.data() : nullptr,
                           .residual = c.parts ? nullptr : in.residual.data(),
                           .x = x.data(),
                           .y = y.data(),
                           .swiglu = c.parts};
  const auto stream = backend.make_stream();
  if (products != nullptr) {
    cpu::linear_with(*products, args, *stream);
  } else {
    backend.kernels().linear(args, *stream);
  }
  return y;
}

std::string describe(const Case& c) {
  return "rows " + std::to_string(c.rows) + " N " + std::to_string(c.N) + " K " +
         std::to_string(c.K) + (c.parts ? ", parts" : "");
}

class NarrowProductsTest : public ::testing::TestWithParam<Kind> {
 protected:
  std::vector<float> multiply(Backend& backend, const Case& c, const Inputs& in,
                              const Packed& packed, const std::vector<float>& x, size_t shift = 0) {
    return run(backend, products_, c, in, packed, x, shift);
  }
  const Kind kind_ = GetParam();
  const LinearProducts* const products_ = kind_.products();
  const std::unique_ptr<Backend> one_thread_ = make_backend("cpu", 1),
                                 three_threads_ = make_backend("cpu", 3),
                                 reference_ = make_backend("reference");
};

TEST_P(NarrowProductsTest, MatchTheReferenceOverRoundedRows) {
  for (const Case& c : cases()) {
    const Inputs in(c, 3);
    const Packed& packed = packed_normal(*kind_.format, c.N, c.K);
    const double steps = 64 * std::sqrt(static_cast<double>(c.K) + 4);
    const std::vector<float> wanted =
        run(*reference_, nullptr, c, in, packed, rounded_x(kind_, in.x, c.K));
    for (Backend* backend : {one_thread_.get(), three_threads_.get()}) {
      ASSERT_TRUE(close(multiply(*backend, c, in, packed, in.x), wanted,
                        {.absolute = steps * 0x1p-24, .relative = 0x1p-20}))
          << describe(c);
    }
  }
}

TEST_P(NarrowProductsTest, RowsDoNotDependOnNeighboursThreadsOrAlignment) {
  for (const int K : {200, 384, 1300}) {
    const Case many{70, 150, K, false};
    const Inputs in(many, 5);
    const Packed& packed = packed_normal(*kind_.format, many.N, K);
    const std::vector<float> together = multiply(*three_threads_, many, in, packed, in.x);
    ASSERT_TRUE(bit_equal(multiply(*one_thread_, many, in, packed, in.x), together)) << K;
    ASSERT_TRUE(bit_equal(multiply(*three_threads_, many, in, packed, in.x, 1), together)) << K;
    for (const int rows : {1, 3, 8}) {
      const Case few{rows, many.N, K, false};
      for (int first = 0; first + rows <= many.rows; first += 11) {
        Inputs part = in;
        part.x.assign(in.x.begin() + first * K, in.x.begin() + (first + rows) * K);
        part.residual.assign(in.residual.begin() + first * many.N,
                             in.residual.begin() + (first + rows) * many.N);
        const std::vector<float> wanted(together.begin() + first * many.N,
                                        together.begin() + (first + rows) * many.N);
        for (Backend* backend : {one_thread_.get(), three_threads_.get()}) {
          ASSERT_TRUE(bit_equal(multiply(*backend, few, part, packed, part.x), wanted))
              << describe(few) << " from row " << first;
        }
      }
    }
  }
}

TEST_P(NarrowProductsTest, ZerosStayAndWhatIsNotFiniteIsSeen) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const int rows : {1, 4}) {
    const Case c{rows, 20, 130, false};
    Inputs in(c, 7);
    in.residual.assign(in.residual.size(), 0);
    const Packed& packed = packed_normal(*kind_.format, c.N, c.K);
    for (Backend* backend : {one_thread_.get(), three_threads_.get()}) {
      const std::vector<float> zeros(in.x.size());
      for (const float value : multiply(*backend, c, in, packed, zeros)) ASSERT_EQ(value, 0);
      for (const float bad : {kNan, kInfinity}) {
        std::vector<float> x = in.x;
        x[70] = bad;
        const std::vector<float> y = multiply(*backend, c, in, packed, x);
        for (int n = 0; n < c.N; ++n) ASSERT_FALSE(std::isfinite(y[n]));
        for (size_t i = c.N; i < y.size(); ++i) ASSERT_TRUE(std::isfinite(y[i]));
      }
    }
  }
}

std::string name_of_kind(const ::testing::TestParamInfo<Kind>& info) { return info.param.name; }
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(NarrowProductsTest);
INSTANTIATE_TEST_SUITE_P(Kinds, NarrowProductsTest, ::testing::ValuesIn(kinds()), name_of_kind);

// A column whose weights are zeros has a value far above the others, which keep what fp32 has of
// them: a 2^30th of the largest is lost of each at most.
using ProductsInF32Test = NarrowProductsTest;
TEST_P(ProductsInF32Test, KeepASmallValueNextToALargeOne) {
  constexpr float kLarge = 0x1p20f;
  for (const int rows : {1, 4}) {
    const Case c{rows, 34, 200, false};
    Inputs in(c, 11);
    std::mt19937_64 random(12);
    std::vector<float> W = normal_floats(random, static_cast<size_t>(c.N) * c.K, 0.07f);
    for (int k = 0; k < c.K; k += 50) {
      for (int n = 0; n < c.N; ++n) W[static_cast<size_t>(n * c.K + k)] = 0;
      for (int row = 0; row < rows; ++row) in.x[static_cast<size_t>(row * c.K + k)] = kLarge;
    }
    in.residual.assign(in.residual.size(), 0);
    const Packed packed(*kind_.format, W, c.N, c.K);
    double weights = 0;
    for (int n = 0; n < c.N; ++n) {
      double sum = 0;
      for (int k = 0; k < c.K; ++k) sum += std::fabs(W[static_cast<size_t>(n * c.K + k)]);
      weights = std::max(weights, sum);
    }
    const double lost = weights * kLarge * 0x1p-30;
    const std::vector<float> wanted = run(*reference_, nullptr, c, in, packed, in.x);
    for (Backend* backend : {one_thread_.get(), three_threads_.get()}) {
      ASSERT_TRUE(close(multiply(*backend, c, in, packed, in.x), wanted,
                        {.absolute = lost, .relative = 0x1p-20}))
          << describe(c);
    }
  }
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProductsInF32Test);
INSTANTIATE_TEST_SUITE_P(Kinds, ProductsInF32Test, ::testing::ValuesIn(kinds_in_f32_with_zeros()),
                         name_of_kind);

TEST(NarrowProducts, ThatThisMachineLacksAreNotTested) {
  const std::vector<Kind> lacking = kinds(false);
  if (lacking.empty()) return;
  GTEST_SKIP() << "no instructions here: " << ::testing::PrintToString(lacking);
}

// What a backend says of itself is what it multiplies with: x for weights in bf16 is rounded to
// eight bits by nothing.
TEST(NarrowProducts, AreThoseThatABackendNames) {
  for (const ActivationType narrowest :
       {ActivationType::kF32, ActivationType::kBF16, ActivationType::kInt8}) {
    const auto backend = make_backend("cpu", 1, narrowest);
    const auto says = [&](const char* type) {
      return backend->name().find(type) != std::string::npos;
    };
    for (const WeightFormat* format : {&kBf16Weights, &kInt8Weights, &kInt4Weights}) {
      const auto [type, narrow] = format->packed() ? std::pair(", int8", ActivationType::kInt8)
                                                   : std::pair(", bf16", ActivationType::kBF16);
      const ActivationType activations = says(type) ? narrow : ActivationType::kF32;
      if (activations == ActivationType::kF32 && !says(", amx")) continue;
      const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) {
        return k.format == format && k.activations == activations && k.products() != nullptr;
      });
      ASSERT_NE(kind, std::end(kKinds)) << backend->name();
      const Case c{13, 34, 384, false};
      const Inputs in(c, 13);
      const Packed& packed = packed_normal(*format, c.N, c.K);
      EXPECT_TRUE(bit_equal(run(*backend, nullptr, c, in, packed, in.x),
                            run(*backend, kind->products(), c, in, packed, in.x)))
          << backend->name() << ": " << format->name;
    }
  }
}

#endif
}  // namespace recurve::testing::narrow_products_test
