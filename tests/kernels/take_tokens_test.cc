// Which tokens and slots a step works on, and the copies around it that do not hold up the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/kernels/kernel_device.h"

namespace recurve::testing::take_tokens_test {

using ::testing::ElementsAre;

class TakeTokens : public DeviceTest {};

TEST_P(TakeTokens, WhoDecodesGetsTheTokenOfItsSlotUnlessItHasEnded) {
  KernelDevice device = make_device();
  const auto progress = device.array(std::vector<SampleProgress>{
      {.token = 5, .generated = 9, .ended = 1},  // slot 0
      {.token = 11, .generated = 1, .ended = 0},
      {.token = 12, .generated = 4, .ended = 1},
      {.token = 13, .generated = 2, .ended = 1},  // of the request before
  });
  const auto begin = device.array(std::vector<int32_t>{0, 1, 4, 5, 6});
  const auto planned = device.array(std::vector<int32_t>{1, 3, 2, 0});
  const auto decodes = device.array(std::vector<int32_t>{1, 0, 1, 1});
  const auto slot = device.array(std::vector<int32_t>{-1, -1, -1, -1});
  const auto tokens = device.array(std::vector<int32_t>{90, 91, 92, 93, 94, 95});
  device.kernels().take_tokens({.num_seqs = 4,
                                .begin = begin.data(),
                                .planned = planned.data(),
                                .decodes = decodes.data(),
                                .progress = progress.data(),
                                .slot = slot.data(),
                                .tokens = tokens.data()},
                               *device.stream);
  EXPECT_THAT(slot.read(), ElementsAre(1, 3, 0, 0));
  EXPECT_THAT(tokens.read(), ElementsAre(11, 91, 92, 93, 0, 0));
  EXPECT_TRUE(slot.guards_intact());
  EXPECT_TRUE(tokens.guards_intact());
}

TEST_P(TakeTokens, ADownloadIsThereWhenItsEventHasPassed) {
  KernelDevice device = make_device();
  constexpr size_t kBytes = size_t{8} << 20;
  const HostMemory from = device.backend->allocate_host(kBytes);
  const HostMemory to = device.backend->allocate_host(kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(to.get()) % 64, 0u);
  const Buffer memory = device.backend->allocate(kBytes);
  const auto event = device.backend->make_event();
  for (int round = 1; round <= 5; ++round) {
    std::memset(from.get(), round, kBytes);
    device.backend->upload(memory.data(), from.get(), kBytes, *device.stream);
    device.backend->download(to.get(), memory.data(), kBytes, *device.stream);
    event->record(*device.stream);
    event->wait();
    ASSERT_EQ(std::memcmp(from.get(), to.get(), kBytes), 0) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, TakeTokens,
                         ::testing::Values(DeviceUnderTest{"reference", 1, 0, "reference"}),
                         name_of_device);
RECURVE_ON_EACH_DEVICE(TakeTokens);
RECURVE_ON_CUDA(TakeTokens);

}  // namespace recurve::testing::take_tokens_test
