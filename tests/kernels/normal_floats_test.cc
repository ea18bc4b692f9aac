#include "tests/support/kernels/normal_floats.h"

#include <gtest/gtest.h>

#include <random>

namespace recurve::testing::normal_floats_test {

TEST(NormalFloats, AreThoseOfTheStandardLibrary) {
  for (const size_t count : {1, 2, 100'001}) {
    std::mt19937_64 random(count), same(count);
    std::normal_distribution<float> normal(0.25f, 3);
    std::vector<float> wanted(count);
    for (float& value : wanted) value = normal(same);
    EXPECT_EQ(normal_floats(random, count, 3, 0.25f), wanted) << count;
    EXPECT_EQ(random(), same()) << "after " << count;
  }
}

}  // namespace recurve::testing::normal_floats_test
