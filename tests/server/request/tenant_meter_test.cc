#include "server/request/tenant_meter.h"

#include <gtest/gtest.h>

namespace recurve::tenant_meter_test {

constexpr Identity kAlice{.tenant = 1, .limits = {.waiting = 2, .tokens_per_minute = 600}};
constexpr Identity kBob{.tenant = 2};

TEST(TenantMeter, CountsWhatEachTenantHasUnderWay) {
  TenantMeter meter;
  EXPECT_TRUE(meter.enter(kAlice));
  EXPECT_TRUE(meter.enter(kAlice));
  EXPECT_FALSE(meter.enter(kAlice));
  EXPECT_TRUE(meter.enter(kBob));
  meter.leave(kAlice.tenant);
  EXPECT_TRUE(meter.enter(kAlice));
}

TEST(TenantMeter, AMinutesTokensMayBeSpentAheadAndComeBack) {
  TenantMeter meter;
  const Clock::time_point start = Clock::now();
  const auto at = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  EXPECT_EQ(meter.seconds_to_wait(kAlice, start), 0);
  meter.spend(kAlice, 599, start);
  EXPECT_EQ(meter.seconds_to_wait(kAlice, start), 0);
  meter.spend(kAlice, 101, start);  // an answer goes on, past what there is
  EXPECT_NEAR(meter.seconds_to_wait(kAlice, start), 10.1, 1e-6);  // ten a second come back
  EXPECT_EQ(meter.seconds_to_wait(kAlice, at(11)), 0);
  EXPECT_EQ(meter.seconds_to_wait(kBob, start), 0);
  meter.spend(kBob, 1 << 30, start);
  EXPECT_EQ(meter.seconds_to_wait(kBob, start), 0);
}

}  // namespace recurve::tenant_meter_test
