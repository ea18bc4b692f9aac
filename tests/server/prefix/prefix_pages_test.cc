// States of prompts that grow share pages.
#include <gtest/gtest.h>

#include <numeric>

#include "server/prefix/prefix_cache.h"

namespace recurve::prefix_pages_test {

// The full pages of the nearest state before it are not copied again.
TEST(PrefixPages, AreSharedWithTheStateBefore) {
  StateLayout layout;
  layout.arrays = {{.name = "n", .shape = {4}},
                   {.name = "K", .layer = 1, .shape = {4}, .growth = StateGrowth::kPerToken}};
  const auto backend = make_backend("reference", 1);
  const auto stream = backend->make_stream();
  StatePool pool(*backend, layout, 1, *stream, {}, {.pages = 8, .most_tokens = 512});
  StateCache states(*backend, pool, int64_t{1} << 24);
  PrefixCache cache(states, pool, 32, {.bytes = int64_t{1} << 24});
  std::vector<int32_t> ids(300);
  std::iota(ids.begin(), ids.end(), 0);
  const StateSlot slot = *pool.acquire();
  cache.start(kAnyone, ids, PrefixMode::kUseAndStore);
  const auto store = [&](size_t tokens) {
    ASSERT_TRUE(pool.grow(slot, 0, static_cast<int64_t>(tokens)));
    cache.store(kAnyone, std::span(ids).first(tokens), slot);
  };
  store(160);
  store(288);
  pool.wait_for_copies();
  const auto image = [&](size_t tokens) {
    const PrefixCache::Start start =
        cache.start(kAnyone, std::span(ids).first(tokens + 1), PrefixMode::kUse);
    EXPECT_EQ(start.use.tokens, static_cast<int64_t>(tokens));
    return start.image;
  };
  const StateImage first = image(160), second = image(288);
  ASSERT_EQ(first->size(), 1u + 3);
  ASSERT_EQ(second->size(), 1u + 5);
  for (size_t p = 0; p < first->size(); ++p) {
    const bool full = p == 1 || p == 2;
    EXPECT_EQ((*first)[p].data == (*second)[p].data, full) << (*first)[p].name;
  }
}

}  // namespace recurve::prefix_pages_test
