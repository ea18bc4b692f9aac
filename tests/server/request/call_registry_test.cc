#include "server/request/call_registry.h"

#include <gtest/gtest.h>

#include <thread>

namespace recurve::testing::call_registry_test {

struct Call final : CallRegistry::Call {
  void abort(CallRegistry::Reason) override {}
};

constexpr auto kNow = std::chrono::milliseconds(0);
constexpr auto kLong = std::chrono::minutes(10);

// Clients that are refused and try again at once would hold up a drain for ever.
TEST(CallRegistryTest, RefusedCallsAreNotWaitedFor) {
  CallRegistry registry;
  Call served, refused;
  registry.enter(&served);
  registry.enter(&refused);
  registry.refused();
  EXPECT_EQ(registry.count(), 2);
  EXPECT_FALSE(registry.wait_until_all_served(Clock::now() + kNow));

  std::thread end([&] {
    registry.leave(&served);
    registry.gone(false);
  });
  EXPECT_TRUE(registry.wait_until_all_served(Clock::now() + kLong));
  end.join();
  EXPECT_FALSE(registry.wait_until_empty(Clock::now() + kNow));
  registry.leave(&refused);
  registry.gone(true);
  EXPECT_TRUE(registry.wait_until_empty(Clock::now() + kNow));
}

TEST(CallRegistryTest, TheLastCallToBeRefusedEndsTheWait) {
  CallRegistry registry;
  Call call;
  registry.enter(&call);
  std::thread refuse([&] { registry.refused(); });
  EXPECT_TRUE(registry.wait_until_all_served(Clock::now() + kLong));
  refuse.join();
}

// An earlier deadline also ends a wait that has begun; a later one delays nothing.
TEST(CallRegistryTest, TheEndOfTheWaitIsBroughtForward) {
  CallRegistry registry;
  Call call;
  registry.enter(&call);
  registry.end_by(Clock::now() + kLong);
  std::thread sooner([&] { registry.end_by(Clock::now()); });
  EXPECT_FALSE(registry.wait_until_all_served(Clock::now() + kLong));
  sooner.join();
  registry.end_by(Clock::now() + kLong);
  EXPECT_FALSE(registry.wait_until_all_served(Clock::now() + kLong));
}

// One that was served goes after others that were refused have come and gone.
TEST(CallRegistryTest, CountsWhatIsServedAmongRefusals) {
  CallRegistry registry;
  Call served;
  registry.enter(&served);
  for (int i = 0; i < 3; ++i) {
    Call refused;
    registry.enter(&refused);
    registry.refused();
    registry.leave(&refused);
    registry.gone(true);
    EXPECT_FALSE(registry.wait_until_all_served(Clock::now() + kNow)) << i;
  }
  registry.leave(&served);
  registry.gone(false);
  EXPECT_TRUE(registry.wait_until_all_served(Clock::now() + kNow));
}

}  // namespace recurve::testing::call_registry_test
