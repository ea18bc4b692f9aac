#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/ops/sample_math.h"

namespace recurve::philox_test {

using Block = std::array<uint32_t, 4>;

// The known answers that Random123 publishes for philox4x32, 10 rounds (kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Seed, index and stream land in the words they are documented to land in: low word first.
TEST(Philox, BitsAreOfTheBlockOfSeedAndIndex) {
  EXPECT_EQ(random_bits(0, 0, 0), 0xe169c58d6627e8d5u);
  const auto block = philox4x32({0x55667788, 0x11223344, 7, 0}, {0xddccbbaa, 0x99887766});
  EXPECT_EQ(random_bits(0x99887766ddccbbaa, 0x1122334455667788, 7),
            uint64_t{block[1]} << 32 | block[0]);
}

TEST(Philox, UniformIsInsideTheOpenUnitInterval) {
  EXPECT_EQ(uniform(0, 0), (static_cast<double>(0xe169c58d6627eu) + 0.5) / 0x1p52);
  EXPECT_GT((0.0 + 0.5) * 0x1p-52, 0.0);
  EXPECT_LT((0x1p52 - 1 + 0.5) * 0x1p-52, 1.0);
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(123, i);
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  // Five standard deviations of the mean and of the mean square.
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
}

TEST(Philox, SeedsAndIndicesDiffer) {
  std::set<double> values;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    for (int64_t index = 0; index < 100; ++index) values.insert(uniform(seed, index));
  }
  EXPECT_EQ(values.size(), 10000u);
  EXPECT_NE(uniform(1, int64_t{1} << 32), uniform(1, 0));
  EXPECT_NE(uniform(uint64_t{1} << 32, 0), uniform(0, 0));
}

}  // namespace recurve::philox_test
