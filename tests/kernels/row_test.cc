#include "kernels/reference/row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace recurve::reference::row_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_row(size_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, 5);
  std::vector<float> row(n);
  for (float& x : row) x = normal(generator);
  return row;
}

TEST(Exp, AgreesWithTheLibraryInLongDouble) {
  EXPECT_EQ(exp_nonpositive(0.0), 1.0);
  EXPECT_EQ(exp_nonpositive(-0.0), 1.0);
  double worst = 0;
  for (int i = 0; i <= 200000; ++i) {
    const double x = -708.0 * i / 200000;
    const long double wanted = std::exp(static_cast<long double>(x));
    worst = std::max(worst, static_cast<double>(std::abs(exp_nonpositive(x) / wanted - 1)));
  }
  EXPECT_LT(worst, 0x1p-51);  // two units in the last place
  for (int i = 1; i < 1000; ++i) {
    EXPECT_NEAR(exp_nonpositive(-0x1p-30 * i), std::exp(-0x1p-30 * i), 0x1p-52);
  }
}

TEST(Exp, BelowTheFloorIsZero) {
  EXPECT_GT(exp_nonpositive(-708.0), 0.0);
  for (const double x :
       {-708.1, -745.0, -1e4, -1e46, -1e308, -std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(exp_nonpositive(x), 0.0) << x;
  }
}

TEST(Weigh, IsTheScalarFormAndItsSum) {
  for (const size_t n : {1, 2, 15, 16, 17, 255, 256, 257, 1000, 4096, 50277}) {
    auto row = random_row(n, static_cast<uint32_t>(n));
    const float max = row_max(row).value;
    for (size_t i = 7; i < n; i += 11) row[i] = -kInfinity;
    std::vector<uint64_t> weights(n, 7);
    const uint64_t sum = weigh(row, max, 1 / 0.7, weights.data());
    uint64_t wanted = 0;
    for (size_t i = 0; i < n; ++i) {
      // The vector form computes what the scalar one does, bit for bit.
      ASSERT_EQ(weights[i], weight_of(exp_nonpositive(-nats_below(row[i], max, 1 / 0.7)))) << i;
      const long double weight =
          std::exp((static_cast<long double>(row[i]) - max) / 0.7L) * 0x1p44L;
      ASSERT_NEAR(static_cast<double>(weights[i] - weight), 0, 0.5 + 0x1p-6) << i;
      wanted += weights[i];
    }
    EXPECT_EQ(sum, wanted) << n;
    EXPECT_EQ(sum, weigh(row, max, 1 / 0.7, nullptr)) << n;
  }
}

TEST(Shares, AreTheLeastWholeWeightsThatReachThem) {
  EXPECT_EQ(share_of(0, 10), 1u);
  EXPECT_EQ(share_of(1, 10), 10u);
  EXPECT_EQ(share_of(0.5, 10), 5u);
  EXPECT_EQ(share_of(0.51, 10), 6u);
  EXPECT_EQ(share_of(0x1p-60, uint64_t{1} << 61), 2u);
  EXPECT_LE(share_of(1 - 0x1p-53, (uint64_t{1} << 62) - 1), (uint64_t{1} << 62) - 1);
}

TEST(RowMax, FindsTheFirstOfTheGreatest) {
  for (const size_t n : {1, 2, 3, 4, 15, 16, 17, 63, 255, 256, 257, 300, 511, 513, 5000}) {
    auto row = random_row(n, static_cast<uint32_t>(n));
    for (size_t at = 0; at < n; at += 1 + n / 37) {
      for (size_t again = at; again < n; again += 1 + n / 11) {
        const float old_at = row[at], old_again = row[again];
        row[at] = row[again] = 1000;
        const RowMax max = row_max(row);
        EXPECT_EQ(max.id, static_cast<int32_t>(at)) << n;
        EXPECT_EQ(max.value, 1000) << n;
        EXPECT_FALSE(max.nan);
        row[again] = old_again;
        row[at] = old_at;
      }
    }
  }
}

TEST(RowMax, SeesANanAnywhere) {
  for (const size_t n : {1, 16, 17, 256, 300, 1000}) {
    auto row = random_row(n, 7);
    EXPECT_FALSE(row_max(row).nan);
    for (size_t at = 0; at < n; ++at) {
      const float old = row[at];
      row[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_TRUE(row_max(row).nan) << n << ' ' << at;
      row[at] = old;
    }
  }
}

TEST(RowMax, InfinitiesAndEmptiness) {
  EXPECT_EQ(row_max({}).id, -1);
  const std::vector<float> none(300, -kInfinity);
  EXPECT_EQ(row_max(none).value, -kInfinity);
  EXPECT_EQ(row_max(none).id, 0);
  std::vector<float> one = none;
  one[299] = -1e38f;
  EXPECT_EQ(row_max(one).id, 299);
  one[5] = kInfinity;
  EXPECT_EQ(row_max(one).value, kInfinity);
  EXPECT_EQ(row_max(std::vector<float>{-0.0f, 0.0f}).id, 0);
}

}  // namespace recurve::reference::row_test
