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
  meter.leave(kAlice);
  EXPECT_TRUE(meter.enter(kAlice));
}

Identity visitor(TenantId address, TenantId connection) {
  Identity visitor = kAnyone;
  visitor.visitor = kVisitors | address << kConnectionBits | connection;
  return visitor;
}

// Without keys all are one tenant, and each connection has its own share.
TEST(TenantMeter, CountsConnectionsAndTheirAddressesWhereTheyStandForTenants) {
  const Identity first = visitor(1, 1), second = visitor(1, 2), elsewhere = visitor(2, 3);
  TenantMeter meter;
  EXPECT_TRUE(meter.enter(first, {.most = 2}));
  EXPECT_TRUE(meter.enter(first, {.most = 2}));
  EXPECT_FALSE(meter.enter(first, {.most = 2}));
  EXPECT_FALSE(meter.enter(second, {.most_of_group = 2})) << "its address has two";
  EXPECT_TRUE(meter.enter(second, {.most_of_group = 3}));
  EXPECT_TRUE(meter.enter(elsewhere, {.most_of_group = 2}));
  EXPECT_TRUE(meter.enter(kAnyone));
  meter.leave(first);
  EXPECT_TRUE(meter.enter(second, {.most_of_group = 3}));
}

TEST(TenantMeter, TheRestIsForThoseWhoHaveNothing) {
  const Identity first = visitor(1, 1), second = visitor(1, 2);
  TenantMeter meter;
  EXPECT_TRUE(meter.enter(first, {.first_only = true}));
  EXPECT_FALSE(meter.enter(first, {.first_only = true}));
  EXPECT_TRUE(meter.enter(second, {.first_only = true}));
  EXPECT_TRUE(meter.enter(first));
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
