// What is kept for clients goes by who has most of it, and then by what was used longest ago.
#include "server/constraint/fair_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace recurve::fair_cache_test {
namespace {

using Cache = FairCache<std::string, int>;
constexpr size_t kOne = 10;  // bytes of an entry
constexpr uint64_t kHonest = 1, kHostile = 2, kThird = 3;

std::string name(uint64_t client, int number) {
  return std::to_string(client) + " " + std::to_string(number);
}
void keep(Cache* cache, uint64_t client, int first, int last) {
  for (int number = first; number <= last; ++number) {
    cache->put(name(client, number), number, kOne, client);
  }
}
// Those that are there; they have been used then.
std::vector<int> kept(Cache* cache, uint64_t client, int last) {
  std::vector<int> found;
  for (int number = 0; number <= last; ++number) {
    if (cache->find(name(client, number), client) != nullptr) found.push_back(number);
  }
  return found;
}

TEST(FairCache, OfOneClientWhatWasUsedLongestAgoGoes) {
  Cache cache(3 * kOne);
  keep(&cache, kHonest, 0, 2);
  ASSERT_NE(cache.find(name(kHonest, 0), kHonest), nullptr);
  EXPECT_EQ(*cache.find(name(kHonest, 0), kHonest), 0);
  keep(&cache, kHonest, 3, 3);
  EXPECT_THAT(kept(&cache, kHonest, 3), ::testing::ElementsAre(0, 2, 3));
  EXPECT_EQ(cache.bytes(), 3 * kOne);
  cache.put(name(kHonest, 0), 7, kOne, kHonest);
  EXPECT_EQ(*cache.find(name(kHonest, 0), kHonest), 0) << "it was there before";
}

TEST(FairCache, AClientThatAsksForEverNewThingsPushesOutItsOwn) {
  Cache cache(10 * kOne);
  keep(&cache, kHonest, 0, 3);
  keep(&cache, kHostile, 0, 1000);
  EXPECT_THAT(kept(&cache, kHonest, 3), ::testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(kept(&cache, kHostile, 1000), ::testing::SizeIs(6));
  // Who has more than a fair share makes room, down to it.
  keep(&cache, kThird, 0, 99);
  EXPECT_THAT(kept(&cache, kHonest, 3), ::testing::SizeIs(::testing::Ge(3)));
  EXPECT_THAT(kept(&cache, kHostile, 1000), ::testing::SizeIs(3));
  EXPECT_THAT(kept(&cache, kThird, 99), ::testing::SizeIs(::testing::Ge(3)));
}

TEST(FairCache, WhatDoesNotFitAtAllEvictsNothing) {
  Cache cache(10 * kOne);
  keep(&cache, kHonest, 0, 3);
  cache.put("large", 1, 11 * kOne, kHostile);
  EXPECT_EQ(cache.find("large", kHostile), nullptr);
  EXPECT_THAT(kept(&cache, kHonest, 3), ::testing::SizeIs(4));
}

TEST(FairCache, WhatTwoUseBelongsToWhoHasLess) {
  Cache cache(10 * kOne);
  keep(&cache, kHostile, 0, 7);
  keep(&cache, kHonest, 0, 0);
  // The hostile one was the first to ask for it.
  EXPECT_NE(cache.find(name(kHostile, 0), kHonest), nullptr);
  EXPECT_NE(cache.find(name(kHostile, 0), kHostile), nullptr);
  keep(&cache, kHostile, 8, 1000);
  EXPECT_NE(cache.find(name(kHostile, 0), kHonest), nullptr);
  EXPECT_EQ(cache.find(name(kHostile, 1), kHonest), nullptr);
  EXPECT_EQ(cache.bytes(), 10 * kOne);
}

TEST(FairCache, WhoHasUsedNothingForLongMakesRoom) {
  Cache cache(10 * kOne, /*idle=*/std::chrono::nanoseconds(0));
  keep(&cache, kHonest, 0, 3);
  keep(&cache, kHostile, 0, 5);
  EXPECT_EQ(cache.bytes(), 10 * kOne);
  keep(&cache, kHostile, 6, 9);
  EXPECT_THAT(kept(&cache, kHonest, 3), ::testing::IsEmpty());
  EXPECT_THAT(kept(&cache, kHostile, 9), ::testing::SizeIs(10));
}

}  // namespace
}  // namespace recurve::fair_cache_test
