// Linear layers over weights in every format with scales, against the layer in fp32 over the values
// that the format gives back, or the one in bf16 where a device rounds them: the bits are the same.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/kernels/compare.h"
#include "tests/support/kernels/kernel_device.h"
#include "tests/support/kernels/packed.h"

namespace recurve::testing::packed_linear_test {

struct Case {
  int rows, N, K;
  bool parts;  // norm, gate and bias; else a residual
};

std::string describe(const WeightFormat& format, const Case& c) {
  return std::string(format.name) + " rows " + std::to_string(c.rows) + " N " +
         std::to_string(c.N) + " K " + std::to_string(c.K) + (c.parts ? ", parts" : "");
}

// Odd shapes; rows that are unpacked for and rows that are not; a matrix that comes from memory.
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const int K : {1, 17, 63, 64, 65, 200, 384}) {
    for (const int N : {2, 6, 34}) {
      for (const int rows : {1, 2, 3, 5, 6, 7, 13, 50}) cases.push_back({rows, N, K, N == 6});
    }
  }
  cases.push_back({1, 2051, 4160, false});
  cases.push_back({7, 2051, 4160, false});
  cases.push_back({50, 34, 4200, false});
  return cases;
}

struct Inputs {
  Inputs(const Case& c, uint64_t seed) {
    std::mt19937_64 random(seed);
    x = normal_floats(random, static_cast<size_t>(c.rows) * c.K);
    bias = normal_floats(random, c.N);
    norm = normal_floats(random, c.K, 0.3f, 1);
    residual = normal_floats(random, static_cast<size_t>(c.rows) * c.N);
  }
  std::vector<float> x, bias, norm, residual;
};

std::vector<float> run(KernelDevice& device, const Case& c, const Inputs& in, const Matrix& W) {
  const auto x = device.array(in.x), bias = device.array(in.bias), norm = device.array(in.norm);
  const auto residual = device.array(in.residual);
  const auto y = device.floats(static_cast<size_t>(c.rows) * (c.parts ? c.N / 2 : c.N));
  device.kernels().linear({.rows = c.rows,
                           .W = W,
                           .bias = c.parts ? bias.data() : nullptr,
                           .residual = c.parts ? nullptr : residual.data(),
                           .x = x.data(),
                           .y = y.data(),
                           .norm = c.parts ? norm.data() : nullptr,
                           .norm_eps = 1e-5f,
                           .swiglu = c.parts},
                          *device.stream);
  EXPECT_TRUE(y.guards_intact());
  return y.read();
}

std::vector<float> run_packed(KernelDevice& device, const Case& c, const Inputs& in,
                              const Packed& packed) {
  const auto data = device.array(packed.data), scales = device.array(packed.scales);
  return run(device, c, in, packed.matrix(data.data(), scales.data()));
}

class PackedLinearTest : public DeviceTest {};

TEST_P(PackedLinearTest, HasTheBitsOfTheUnpackedMatrix) {
  KernelDevice device = make_device();
  for (const Case& c : cases()) {
    const Inputs in(c, 3);
    for (const WeightFormat* format : packed_formats()) {
      if (!multiplies_unpacked(device.kernels(), *format)) continue;
      const Packed& packed = packed_normal(*format, c.N, c.K);
      const DType type = packed.multiplied_as(device);
      const auto W = device.array(stored(packed.unpacked, type));
      ASSERT_TRUE(bit_equal(run_packed(device, c, in, packed),
                            run(device, c, in, {type, c.N, c.K, W.data()})))
          << describe(*format, c);
    }
  }
}

TEST_P(PackedLinearTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  for (const Case& c : cases()) {
    if (c.N > 1000) continue;
    const Inputs in(c, 4);
    for (const WeightFormat* format : packed_formats()) {
      const Packed& packed = packed_normal(*format, c.N, c.K);
      const double steps = 64 * std::sqrt(static_cast<double>(c.K) + 4);
      ASSERT_TRUE(close(run_packed(device, c, in, packed), run_packed(reference, c, in, packed),
                        {.absolute = steps * 0x1p-24, .relative = 0x1p-20}))
          << describe(*format, c);
    }
  }
}

TEST_P(PackedLinearTest, NeighboursDoNotChangeARow) {
  KernelDevice device = make_device();
  for (const WeightFormat* format : packed_formats()) {
    for (const int K : {200, 384}) {
      const Case many{70, 34, K, false};
      const Inputs in(many, 5);
      const Packed& packed = packed_normal(*format, many.N, K);
      const std::vector<float> together = run_packed(device, many, in, packed);
      for (const int rows : {1, 3, 8}) {
        const Case few{rows, 34, K, false};
        for (int first = 0; first + rows <= many.rows; first += 11) {
          Inputs part = in;
          part.x.assign(in.x.begin() + first * K, in.x.begin() + (first + rows) * K);
          part.residual.assign(in.residual.begin() + first * many.N,
                               in.residual.begin() + (first + rows) * many.N);
          ASSERT_TRUE(bit_equal(
              run_packed(device, few, part, packed),
              {together.begin() + first * many.N, together.begin() + (first + rows) * many.N}))
              << describe(*format, few) << " from row " << first;
        }
      }
    }
  }
}

// Matrices within larger ones begin anywhere.
TEST_P(PackedLinearTest, TakesMatricesOfAnyAlignment) {
  KernelDevice device = make_device();
  const Case c{7, 34, 200, false};
  const Inputs in(c, 6);
  for (const WeightFormat* format : packed_formats()) {
    const Packed& packed = packed_normal(*format, c.N, c.K);
    const std::vector<float> expected = run_packed(device, c, in, packed);
    for (const size_t shift : {1, 3}) {
      std::vector<std::byte> data(shift), scales(shift);
      data.insert(data.end(), packed.data.begin(), packed.data.end());
      scales.insert(scales.end(), packed.scales.begin(), packed.scales.end());
      const auto there = device.array(data), scales_there = device.array(scales);
      ASSERT_TRUE(bit_equal(
          run(device, c, in, packed.matrix(there.data() + shift, scales_there.data() + shift)),
          expected))
          << format->name;
    }
  }
}

TEST_P(PackedLinearTest, EmbeddingsAreTheUnpackedRows) {
  KernelDevice device = make_device();
  constexpr int kN = 34, kK = 200;
  const std::vector<int32_t> tokens = {3, 33, 0, 3};
  for (const WeightFormat* format : packed_formats()) {
    const Packed& packed = packed_normal(*format, kN, kK);
    const auto data = device.array(packed.data), scales = device.array(packed.scales);
    const auto ids = device.array(tokens);
    const auto x = device.floats(tokens.size() * kK);
    device.kernels().embed({.rows = static_cast<int>(tokens.size()),
                            .E = packed.matrix(data.data(), scales.data()),
                            .token = ids.data(),
                            .x = x.data()},
                           *device.stream);
    const std::vector<float> found = x.read();
    for (size_t r = 0; r < tokens.size(); ++r) {
      for (int k = 0; k < kK; ++k) {
        ASSERT_EQ(found[r * kK + k], packed.unpacked[static_cast<size_t>(tokens[r]) * kK + k]);
      }
    }
  }
}

RECURVE_ON_EACH_DEVICE(PackedLinearTest);
RECURVE_ON_CUDA(PackedLinearTest);

// Root of the mean square of the error, of a matrix of normal values of deviation 1.
double error_of(const WeightFormat& format, int64_t K) {
  std::mt19937_64 random(8);
  const std::vector<float> values = normal_floats(random, static_cast<size_t>(64 * K));
  const Packed packed(format, values, 64, K);
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += square(static_cast<double>(packed.unpacked[i]) - values[i]);
  }
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// Sixty-four normal values reach 2.4 deviations: of 254 and of 15 equal steps over their range the
// rounding error is a step over the root of 12.
TEST(WeightFormats, LoseWhatTheirStepsAreWide) {
  EXPECT_NEAR(error_of(kInt8Weights, 640), 2 * 2.4 / 254 / std::sqrt(12.0), 0.0008);
  EXPECT_LT(error_of(kInt4Weights, 640), 2 * 2.4 / 15 / std::sqrt(12.0));
  EXPECT_GT(error_of(kInt4Weights, 640), 0.07);
}

TEST(WeightFormats, KeepWhatTheyCanSayExactly) {
  for (const WeightFormat* format : packed_formats()) {
    std::vector<float> values(130, 0.0f);
    for (size_t k = 64; k < 128; ++k) values[k] = static_cast<float>(k % 16) * 0.5f - 4;
    values[128] = -3;
    if (format == &kInt8Weights) {
      for (size_t k = 64; k < 128; ++k)
        values[k] = static_cast<float>(static_cast<int>(k * 4) - 381);
    }
    const Packed packed(*format, values, 1, 130);
    EXPECT_EQ(std::vector(packed.unpacked.begin(), packed.unpacked.begin() + 64),
              std::vector<float>(64, 0.0f));
    EXPECT_NEAR(packed.unpacked[128], -3, 0.02) << format->name;
    for (size_t k = 64; k < 128; ++k) EXPECT_NEAR(packed.unpacked[k], values[k], 1.01) << k;
  }
}

// What cannot be packed spoils its group and nothing else; extreme values stay what they are.
TEST(WeightFormats, WhatIsNotFiniteIsNotANumber) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const WeightFormat* format : packed_formats()) {
    for (const float bad : {kInfinity, -kInfinity, std::nanf(""), 3e38f}) {
      std::vector<float> values(128, 1.0f);
      values[70] = bad;
      const Packed packed(*format, values, 1, 128);
      for (size_t k = 0; k < 64; ++k) EXPECT_NEAR(packed.unpacked[k], 1, 0.01);
      for (size_t k = 64; k < 128; ++k) EXPECT_TRUE(std::isnan(packed.unpacked[k]));
    }
    for (const float extreme : {1e-40f, 1e-30f, 1e30f, -5e33f}) {
      const Packed packed(*format, std::vector<float>(64, extreme), 1, 64);
      for (const float value : packed.unpacked) {
        EXPECT_NEAR(value, extreme, std::max(0.01f * std::abs(extreme), 1e-38f)) << format->name;
      }
    }
  }
}

TEST(WeightFormats, AreFoundByName) {
  for (const WeightFormat* format : kWeightFormats) {
    EXPECT_EQ(find_weight_format(format->name), format);
  }
  EXPECT_EQ(find_weight_format("int3"), nullptr);
  EXPECT_EQ(weight_format_names(), "f32, bf16, int8, int4");
}

}  // namespace recurve::testing::packed_linear_test
