// States that grow: what is written to the rows of tokens is there again after forks, saves, loads
// and truncations, each state against a plain list of rows.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <vector>

#include "model/state/state_pool.h"
#include "tests/support/engine/held_copies.h"
#include "tests/support/kernels/devices.h"

namespace recurve::growing_state_test {

constexpr const char* kHeldCopies =
    "held_copies";  // a host backend on which copies are handed over

class GrowingStateTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kSlots = 4;
  static constexpr int32_t kPages = 12;
  static constexpr int64_t kMostTokens = 5 * kPageTokens;

  static StateLayout layout() {
    return {.arrays = {{.name = "h", .layer = 0, .shape = {3}},
                       {.name = "k", .layer = 1, .shape = {2, 2}, .growth = StateGrowth::kPerToken},
                       {.name = "v",
                        .layer = 1,
                        .dtype = DType::kBF16,
                        .shape = {3},
                        .growth = StateGrowth::kPerToken}}};
  }

  void SetUp() override {
    const std::string device = GetParam() == kHeldCopies ? "reference" : GetParam();
    if (const std::string why = testing::why_unusable(device); !why.empty()) GTEST_SKIP() << why;
    backend_ = make_backend(device, 1);
    if (GetParam() == kHeldCopies) {
      backend_ = std::make_unique<testing::HeldCopies>(std::move(backend_));
    }
    stream_ = backend_->make_stream();
    made_.emplace(*backend_, layout(), kSlots, *stream_, nullptr, PageLimits{kPages, kMostTokens});
  }
  StatePool& pool() { return *made_; }

  void send_table() {
    std::vector<int32_t> staged(pool().table_words());
    pool().send_table(staged);
    stream_->wait();
  }
  int32_t page_of(const StateSlot& slot, int64_t token) {
    const PagedData array = pool().paged(1);
    int32_t page = 0;
    backend_->download(&page, array.table + slot.id() * array.most + token / kPageTokens,
                       sizeof(page), *stream_);
    stream_->wait();
    return page;
  }
  // The row of a token of array a, as an op finds it.
  std::byte* row(const StateSlot& slot, size_t a, int64_t token) {
    const PagedData array = pool().paged(a);
    return static_cast<std::byte*>(array.data) + page_of(slot, token) * array.page_bytes +
           (token % kPageTokens) * static_cast<int64_t>(layout().arrays[a].bytes());
  }
  // A value in each array, of each token.
  void write(const StateSlot& slot, int64_t token, uint8_t value) {
    for (const size_t a : {1, 2}) {
      const std::vector<uint8_t> bytes(layout().arrays[a].bytes(), static_cast<uint8_t>(value + a));
      backend_->upload(row(slot, a, token), bytes.data(), bytes.size(), *stream_);
      stream_->wait();
    }
  }
  std::vector<uint8_t> rows(const StateSlot& slot, int64_t tokens) {
    std::vector<uint8_t> values;
    for (int64_t token = 0; token < tokens; ++token) {
      for (const size_t a : {1, 2}) {
        std::vector<uint8_t> bytes(layout().arrays[a].bytes());
        backend_->download(bytes.data(), row(slot, a, token), bytes.size(), *stream_);
        stream_->wait();
        for (const uint8_t byte : bytes) EXPECT_EQ(byte, bytes[0]);
        if (a == 1) values.push_back(static_cast<uint8_t>(bytes[0] - a));
        EXPECT_EQ(static_cast<uint8_t>(bytes[0] - a), values.back());
      }
    }
    return values;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::optional<StatePool> made_;
};

TEST_P(GrowingStateTest, SizesAreThoseOfTheSlotAndOfItsPages) {
  EXPECT_EQ(layout().page_bytes(), 64u * (16 + 6));
  EXPECT_EQ(layout().bytes(), 12u);
  EXPECT_EQ(layout().bytes(65), 12u + 2 * 64 * 22);
  EXPECT_EQ(layout().pieces(65).size(), 3u);
  EXPECT_EQ(pool().pages(), kPages);
}

TEST_P(GrowingStateTest, WhatDoesNotFitChangesNothing) {
  const StateSlot a = *pool().acquire(), b = *pool().acquire(), c = *pool().acquire();
  ASSERT_TRUE(pool().grow(a, 0, kMostTokens));
  ASSERT_TRUE(pool().grow(b, 0, kMostTokens));
  EXPECT_EQ(pool().free_pages(), 2);
  EXPECT_FALSE(pool().grow(c, 0, 3 * kPageTokens));
  EXPECT_TRUE(pool().grow(c, 0, 2 * kPageTokens));
  const StateSlot d = *pool().acquire();
  EXPECT_FALSE(pool().share_pages(a, d, kPageTokens + 1)) << "a page that is not full is copied";
  EXPECT_TRUE(pool().share_pages(a, d, kPageTokens));
  EXPECT_EQ(pool().free_pages(), 0);
  EXPECT_FALSE(pool().grow(d, 5, 6)) << "the page is shared, and none is free for its own";
}

// A random history of a few states, each against the list of its rows.
TEST_P(GrowingStateTest, EachStateHasItsOwnRows) {
  struct Known {
    StateSlot slot;
    std::vector<uint8_t> rows;
  };
  std::map<int, Known> states;
  struct Saved {
    StateImage image;
    std::vector<uint8_t> rows;
  };
  std::optional<Saved> saved;
  std::mt19937 random(5);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  uint8_t next = 0;
  for (int round = 0; round < 300; ++round) {
    const int which = static_cast<int>(below(kSlots));
    const auto found = states.find(which);
    if (found == states.end()) {
      StateSlot slot = *pool().acquire();
      pool().wait_until_ready(slot);
      std::vector<uint8_t> rows;
      if (saved && below(2) == 0 &&
          pool().grow(slot, 0, static_cast<int64_t>(saved->rows.size()))) {
        pool().load(saved->image, slot);
        pool().wait_until_ready(slot);
        rows = saved->rows;
      }
      states.emplace(which, Known{std::move(slot), std::move(rows)});
      continue;
    }
    Known& state = found->second;
    const auto tokens = static_cast<int64_t>(state.rows.size());
    switch (below(5)) {
      case 0: {  // it absorbs some
        const int64_t more =
            std::min<int64_t>(1 + static_cast<int64_t>(below(70)), kMostTokens - tokens);
        if (!pool().grow(state.slot, tokens, tokens + more)) break;
        pool().wait_until_ready(state.slot);
        send_table();
        for (int64_t t = 0; t < more; ++t) {
          write(state.slot, tokens + t, next);
          state.rows.push_back(next++);
        }
        break;
      }
      case 1: {  // a fork
        const int other = (which + 1) % kSlots;
        if (states.contains(other)) break;
        StateSlot slot = *pool().acquire();
        if (!pool().share_pages(state.slot, slot, tokens)) break;
        pool().copy(state.slot, slot, tokens);
        pool().wait_until_ready(slot);
        states.emplace(other, Known{std::move(slot), state.rows});
        break;
      }
      case 2: {  // it is saved
        const NewImage made = make_image(layout(), tokens);
        pool().save(state.slot, made);
        pool().wait_until_ready(state.slot);
        saved = Saved{made.image, state.rows};
        break;
      }
      case 3: {  // it forgets its end
        const auto left = static_cast<int64_t>(below(state.rows.size() + 1));
        pool().truncate(state.slot, left);
        state.rows.resize(static_cast<size_t>(left));
        break;
      }
      default:
        states.erase(found);
    }
    send_table();
    if (round % 10 != 0) continue;
    for (auto& [_, known] : states) {
      ASSERT_EQ(rows(known.slot, static_cast<int64_t>(known.rows.size())), known.rows) << round;
    }
  }
  states.clear();
  EXPECT_EQ(pool().free_pages(), kPages);
}

std::vector<std::string> all_ways() {
  std::vector<std::string> ways = testing::all_devices();
  ways.push_back(kHeldCopies);
  return ways;
}
INSTANTIATE_TEST_SUITE_P(Backends, GrowingStateTest, ::testing::ValuesIn(all_ways()),
                         [](const auto& info) { return testing::test_name(info.param); });

}  // namespace recurve::growing_state_test
