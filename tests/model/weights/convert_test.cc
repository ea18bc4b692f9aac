#include "model/weights/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "model/weights/checkpoint.h"
#include "model/weights/safetensors.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::convert_test {

// IEEE 754 binary16 as the standard writes it down.
double f16_by_definition(uint16_t bits) {
  const int sign = bits >> 15;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  }
  return sign ? -magnitude : magnitude;
}

// The nearest of the bfloat16 around the value, found by distance; ties to the even one.
uint16_t bf16_by_search(float value) {
  const auto magnitude = static_cast<double>(std::fabs(value));
  const auto number = [](uint32_t bits) {  // 0x7f80 counts as the power of two it would be
    return bits == 0x7f80 ? 0x1p128 : std::bit_cast<float>(bits << 16);
  };
  uint32_t below = 0, above = 0x7f80;
  while (above - below > 1) {
    const uint32_t middle = (below + above) / 2;
    (number(middle) <= magnitude ? below : above) = middle;
  }
  const double down = magnitude - number(below), up = number(above) - magnitude;
  const uint32_t nearest = down < up ? below : up < down ? above : (below % 2 == 0 ? below : above);
  return static_cast<uint16_t>(nearest | (std::signbit(value) ? 0x8000u : 0u));
}

TEST(Convert, F16OfAllValuesIsItsDefinition) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double wanted = f16_by_definition(static_cast<uint16_t>(bits));
    const float found = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(found)) << bits;
      ASSERT_EQ(std::bit_cast<uint32_t>(found) >> 13 & 1023, bits & 1023) << "payload of " << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(found), std::bit_cast<uint32_t>(static_cast<float>(wanted)))
          << bits;
    }
  }
}

TEST(Convert, Bf16OfAllValuesIsTheUpperHalf) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = bf16_to_f32(static_cast<uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (!std::isnan(value)) {
      ASSERT_EQ(f32_to_bf16(value), bits);
    }
  }
}

TEST(Convert, F16ToBf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isfinite(value)) {
      ASSERT_EQ(f32_to_bf16(value), bf16_by_search(value)) << value;
    }
  }
}

TEST(Convert, F32ToBf16RoundsToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(value)) {
      ASSERT_EQ(f32_to_bf16(value), bf16_by_search(value)) << value;
    }
  }
  // Ties and their neighbours, for odd and even halves, small, normal and large.
  for (const uint32_t upper : {0x0000u, 0x0001u, 0x007fu, 0x3f80u, 0x3f81u, 0x7f7eu, 0x7f7fu}) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      for (const uint32_t sign : {0u, 0x80000000u}) {
        const auto value = std::bit_cast<float>(sign | upper << 16 | lower);
        ASSERT_EQ(f32_to_bf16(value), bf16_by_search(value)) << std::hex << upper << lower;
      }
    }
  }
  EXPECT_EQ(f32_to_bf16(1.00390625f), 0x3f80);  // 1 + 2^-8: a tie, down to the even one
  EXPECT_EQ(f32_to_bf16(1.01171875f), 0x3f82);  // 1 + 3 * 2^-8: a tie, up to the even one
}

TEST(Convert, KeepsNanAndInfinity) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0x7fc00000u, 0xffffffffu}) {
    const uint16_t half = f32_to_bf16(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(bf16_to_f32(half))) << std::hex << bits;
    EXPECT_EQ(half >> 15, bits >> 31);
  }
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(f32_to_bf16(-std::numeric_limits<float>::infinity()), 0xff80);
}

// A tensor of each stored type, larger than a piece and than a thread's share, to each type; every
// row range must be the same bits as the element functions give, with nothing written beyond.
class ConvertRows : public ::testing::TestWithParam<std::tuple<const char*, DType>> {};

TEST_P(ConvertRows, EqualsElementByElement) {
  const auto [stored, to] = GetParam();
  const int64_t rows = 4801, K = 1021;
  const bool wide = std::string(stored) == "F32";
  std::vector<uint16_t> source(static_cast<size_t>(rows * K) * (wide ? 2 : 1));
  std::mt19937 random(2);
  for (uint16_t& half : source) half = static_cast<uint16_t>(random());
  const TempDir dir;
  SafetensorsWriter()
      .add("shift", "U8", {1}, "x")
      .add("w", stored, {rows, K}, bytes_of(source))
      .write(dir / "w.safetensors");
  const SafetensorsFile file(dir / "w.safetensors");
  const TensorView& view = *file.find("w");

  // All elements, converted one by one.
  const auto count_of = [&](int64_t of_rows) { return static_cast<size_t>(of_rows * K); };
  std::vector<std::byte> wanted(count_of(rows) * size_of(to));
  const bool half = std::string(stored) == "F16";
  std::byte* next = wanted.data();
  for (size_t i = 0; i < count_of(rows); ++i, next += size_of(to)) {
    float value;
    if (wide) {
      std::memcpy(&value, &source[2 * i], 4);
    } else {
      value = half ? f16_to_f32(source[i]) : bf16_to_f32(source[i]);
    }
    const uint16_t rounded = wide || half ? f32_to_bf16(value) : source[i];
    if (to == DType::kF32) {
      std::memcpy(next, &value, sizeof(value));
    } else {
      std::memcpy(next, &rounded, sizeof(rounded));
    }
  }
  for (const auto& [begin, end] :
       {std::pair<int64_t, int64_t>{0, rows}, {0, 0}, {17, 18}, {rows - 1, rows}, {100, 700}}) {
    const size_t bytes = count_of(end - begin) * size_of(to);
    std::vector<std::byte> out(bytes + 8, std::byte{0xab});
    convert_elements(view, begin * K, end * K, to, out.data());
    const std::byte* expected = wanted.data() + count_of(begin) * size_of(to);
    EXPECT_EQ(std::memcmp(out.data(), expected, bytes), 0) << "rows " << begin << " to " << end;
    EXPECT_THAT(std::span(out).subspan(bytes), ::testing::Each(std::byte{0xab}));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ConvertRows,
                         ::testing::Combine(::testing::Values("F32", "F16", "BF16"),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_to_" +
                                  name_of(std::get<1>(info.param));
                         });

TEST(Convert, GeneratedValuesAreNormalAndTheSameInAnyOrder) {
  Checkpoint random = Checkpoint::random(nlohmann::json::object(), 7);
  const TensorView view = random.take("w", {1500, 1024});
  const std::vector<float> values = host_values(view);
  double sum = 0, squares = 0;
  for (const float v : values) sum += v, squares += static_cast<double>(v) * v;
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 5 / 32.0 / std::sqrt(n));  // five standard errors
  EXPECT_NEAR(std::sqrt(squares / n) * 32, 1, 0.005);

  std::vector<float> row(1024);
  convert_elements(view, 1234 * 1024, 1235 * 1024, DType::kF32,
                   reinterpret_cast<std::byte*>(row.data()));
  EXPECT_EQ(row, std::vector<float>(values.begin() + 1234 * 1024, values.begin() + 1235 * 1024));
  EXPECT_EQ(host_values(Checkpoint::random({}, 7).take("w", {1500, 1024})), values);
  EXPECT_NE(host_values(Checkpoint::random({}, 8).take("w", {1500, 1024})), values);
  EXPECT_NE(host_values(random.take("v", {1500, 1024})), values);
}

}  // namespace recurve::convert_test
