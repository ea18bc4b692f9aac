#include "model/state/state_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "tests/support/devices.h"
#include "tests/support/state_bytes.h"

namespace recurve::state_pool_test {

class StatePoolTest : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kSlots = 3;

  static StateLayout layout() {
    return {.arrays = {{.name = "C", .layer = 0, .shape = {2, 3, 5}},
                       {.name = "m", .layer = 0, .shape = {2}},
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

  std::unique_ptr<Backend> backend_ = make_backend(GetParam(), 1);
  std::unique_ptr<Stream> stream_ = backend_->make_stream();
  StatePool pool_{*backend_, layout(), kSlots, *stream_};
};

TEST_P(StatePoolTest, BytesAreThoseOfTheArrays) {
  EXPECT_EQ(layout().arrays[0].bytes(), 2u * 3 * 5 * 4);
  EXPECT_EQ(layout().arrays[2].bytes(), 7u * 2);
  EXPECT_EQ(layout().bytes(), 120u + 8 + 14);
}

TEST_P(StatePoolTest, EverySlotIsGivenOnceAndScratchNever) {
  std::vector<StateSlot> held;
  std::set<int32_t> ids;
  while (auto slot = pool_.acquire()) {
    ids.insert(slot->id());
    held.push_back(std::move(*slot));
  }
  EXPECT_EQ(ids, (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(pool_.free_slots(), 0);
  held.pop_back();
  EXPECT_EQ(pool_.free_slots(), 1);
  EXPECT_TRUE(pool_.acquire());
  held.clear();
  EXPECT_EQ(pool_.free_slots(), kSlots);
}

TEST_P(StatePoolTest, AMovedSlotIsGivenBackOnce) {
  {
    StateSlot a = *pool_.acquire();
    const int32_t id = a.id();
    StateSlot b = std::move(a);
    EXPECT_EQ(b.id(), id);
    StateSlot c = *pool_.acquire();
    c = std::move(b);
    EXPECT_EQ(c.id(), id);
  }
  EXPECT_EQ(pool_.free_slots(), kSlots);
}

TEST_P(StatePoolTest, AcquiredIsZeroWhateverTheSlotHeld) {
  for (int round = 0; round < 2; ++round) {
    std::vector<StateSlot> held;
    for (unsigned s = 0; s < kSlots; ++s) {
      held.push_back(*pool_.acquire());
      EXPECT_TRUE(all_zero(state_in(pool_, held.back())));
      pool_.load(pattern(s), held.back());
    }
  }
}

TEST_P(StatePoolTest, LoadAndSaveTouchTheirSlotAlone) {
  std::vector<StateSlot> held;
  for (unsigned s = 0; s < kSlots; ++s) {
    held.push_back(*pool_.acquire());
    pool_.load(pattern(s), held.back());
  }
  for (unsigned s = 0; s < kSlots; ++s) EXPECT_EQ(state_in(pool_, held[s]), pattern(s)) << s;
  pool_.copy(held[0], held[2]);
  EXPECT_EQ(state_in(pool_, held[0]), pattern(0));
  EXPECT_EQ(state_in(pool_, held[1]), pattern(1));
  EXPECT_EQ(state_in(pool_, held[2]), pattern(0));
}

// Kernels find array `a` of slot `id` at id times its size; the image has the arrays in order.
TEST_P(StatePoolTest, ArraysLieSlotBySlot) {
  const StateSlot slot = *pool_.acquire();
  pool_.load(pattern(9), slot);
  const StateBytes image = state_in(pool_, slot);
  size_t at = 0;
  for (size_t a = 0; a < layout().arrays.size(); ++a) {
    const size_t bytes = layout().arrays[a].bytes();
    const std::byte* there = pool_.array<std::byte>(a) + static_cast<size_t>(slot.id()) * bytes;
    EXPECT_EQ(std::memcmp(there, image.data() + at, bytes), 0) << a;
    at += bytes;
  }
}

TEST_P(StatePoolTest, AnImageOfAnotherModelIsABug) {
  const StateSlot slot = *pool_.acquire();
  EXPECT_DEATH(pool_.load(StateBytes(3), slot), "CHECK failed");
}

INSTANTIATE_TEST_SUITE_P(Backends, StatePoolTest, ::testing::ValuesIn(testing::host_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace recurve::state_pool_test
