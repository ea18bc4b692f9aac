#include "model/state/state_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "tests/support/engine/held_copies.h"
#include "tests/support/engine/state_bytes.h"
#include "tests/support/kernels/devices.h"

namespace recurve::state_pool_test {

// A host backend on which copies of states are handed over.
constexpr const char* kHeldCopies = "held_copies";

class StatePoolTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kSlots = 3;

  static StateLayout layout() {
    return {.arrays = {{.name = "C", .layer = 0, .shape = {2, 3, 5}},
                       {.name = "m", .layer = 0, .shape = {2}, .piece = "other"},
                       {.name = "conv", .layer = 1, .dtype = DType::kBF16, .shape = {7}}}};
  }

  // A state that differs from every other seed's in each byte's place.
  static StateBytes pattern(unsigned seed) {
    StateBytes image(layout().bytes());
    for (size_t i = 0; i < image.size(); ++i) {
      image[i] = static_cast<std::byte>(1 + (seed * 67 + i * 31) % 255);
    }
    return image;
  }
  static bool all_zero(const StateBytes& image) {
    return std::all_of(image.begin(), image.end(), [](std::byte b) { return b == std::byte{0}; });
  }

  void SetUp() override {
    const std::string device = GetParam() == kHeldCopies ? "reference" : GetParam();
    if (const std::string why = testing::why_unusable(device); !why.empty()) GTEST_SKIP() << why;
    backend_ = make_backend(device, 1);
    if (GetParam() == kHeldCopies) {
      backend_ = std::make_unique<testing::HeldCopies>(std::move(backend_));
    }
    stream_ = backend_->make_stream();
    made_.emplace(*backend_, layout(), kSlots, *stream_);
  }
  StatePool& pool() { return *made_; }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::optional<StatePool> made_;
};

TEST_P(StatePoolTest, BytesAreThoseOfTheArrays) {
  EXPECT_EQ(layout().arrays[0].bytes(), 2u * 3 * 5 * 4);
  EXPECT_EQ(layout().arrays[2].bytes(), 7u * 2);
  EXPECT_EQ(layout().bytes(), 120u + 8 + 14);
}

TEST_P(StatePoolTest, EverySlotIsGivenOnceAndScratchNever) {
  std::vector<StateSlot> held;
  std::set<int32_t> ids;
  while (auto slot = pool().acquire()) {
    ids.insert(slot->id());
    held.push_back(std::move(*slot));
  }
  EXPECT_EQ(ids, (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(pool().free_slots(), 0);
  held.pop_back();
  EXPECT_EQ(pool().free_slots(), 1);
  EXPECT_TRUE(pool().acquire());
  held.clear();
  EXPECT_EQ(pool().free_slots(), kSlots);
}

TEST_P(StatePoolTest, AMovedSlotIsGivenBackOnce) {
  {
    StateSlot a = *pool().acquire();
    const int32_t id = a.id();
    StateSlot b = std::move(a);
    EXPECT_EQ(b.id(), id);
    StateSlot c = *pool().acquire();
    c = std::move(b);
    EXPECT_EQ(c.id(), id);
  }
  EXPECT_EQ(pool().free_slots(), kSlots);
}

TEST_P(StatePoolTest, AcquiredIsZeroWhateverTheSlotHeld) {
  for (int round = 0; round < 2; ++round) {
    std::vector<StateSlot> held;
    for (unsigned s = 0; s < kSlots; ++s) {
      held.push_back(*pool().acquire());
      EXPECT_TRUE(all_zero(state_in(pool(), held.back())));
      put_state(pool(), pattern(s), held.back());
    }
  }
}

TEST_P(StatePoolTest, LoadAndSaveTouchTheirSlotAlone) {
  std::vector<StateSlot> held;
  for (unsigned s = 0; s < kSlots; ++s) {
    held.push_back(*pool().acquire());
    put_state(pool(), pattern(s), held.back());
  }
  for (unsigned s = 0; s < kSlots; ++s) EXPECT_EQ(state_in(pool(), held[s]), pattern(s)) << s;
  pool().copy(held[0], held[2]);
  EXPECT_EQ(state_in(pool(), held[0]), pattern(0));
  EXPECT_EQ(state_in(pool(), held[1]), pattern(1));
  EXPECT_EQ(state_in(pool(), held[2]), pattern(0));
}

// What is of one piece lies together, wherever the layout has it.
TEST_P(StatePoolTest, AnImageIsDividedAsTheLayoutSays) {
  const StateSlot slot = *pool().acquire();
  put_state(pool(), pattern(3), slot);
  const NewImage made = make_image(layout());
  pool().save(slot, made);
  pool().wait_until_ready(slot);
  const auto& pieces = *made.image;
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].name, kRecurrentPiece);
  EXPECT_EQ(pieces[1].name, "other");
  const StateBytes all = pattern(3);
  StateBytes recurrent(all.begin(), all.begin() + 120);
  recurrent.insert(recurrent.end(), all.begin() + 128, all.end());
  EXPECT_EQ(StateBytes(pieces[0].data.get(), pieces[0].data.get() + pieces[0].bytes), recurrent);
  EXPECT_EQ(StateBytes(pieces[1].data.get(), pieces[1].data.get() + pieces[1].bytes),
            StateBytes(all.begin() + 120, all.begin() + 128));
}

// Kernels find array `a` of slot `id` at id times its size; state_in() has the arrays in order.
TEST_P(StatePoolTest, ArraysLieSlotBySlot) {
  const StateSlot slot = *pool().acquire();
  put_state(pool(), pattern(9), slot);
  const StateBytes image = state_in(pool(), slot);
  size_t at = 0;
  for (size_t a = 0; a < layout().arrays.size(); ++a) {
    const size_t bytes = layout().arrays[a].bytes();
    const std::byte* there = pool().array<std::byte>(a) + static_cast<size_t>(slot.id()) * bytes;
    StateBytes found(bytes);
    backend_->download(found.data(), there, bytes, *stream_);
    stream_->wait();
    EXPECT_EQ(std::memcmp(found.data(), image.data() + at, bytes), 0) << a;
    at += bytes;
  }
}

// Not one of them is waited for before the last.
TEST_P(StatePoolTest, CopiesAreInTheOrderInWhichTheyWereAskedFor) {
  const StateSlot a = *pool().acquire();
  put_state(pool(), pattern(5), a);
  const NewImage made = make_image(layout());
  std::optional<StateSlot> b = pool().acquire();
  pool().copy(a, *b);
  pool().save(*b, made);
  b.reset();
  const StateSlot fresh = *pool().acquire(), fresh_too = *pool().acquire();
  pool().copy(fresh, a);
  pool().load(made.image, fresh);
  pool().wait_until_ready(fresh);
  EXPECT_EQ(bytes_in(layout(), made.image), pattern(5));
  EXPECT_EQ(state_in(pool(), fresh), pattern(5));
  EXPECT_TRUE(all_zero(state_in(pool(), fresh_too)));
  EXPECT_TRUE(all_zero(state_in(pool(), a)));
  EXPECT_TRUE(pool().ready(a));
}

std::vector<std::string> all_ways() {
  std::vector<std::string> ways = testing::all_devices();
  ways.push_back(kHeldCopies);
  return ways;
}
INSTANTIATE_TEST_SUITE_P(Backends, StatePoolTest, ::testing::ValuesIn(all_ways()),
                         [](const auto& info) { return testing::test_name(info.param); });

}  // namespace recurve::state_pool_test
