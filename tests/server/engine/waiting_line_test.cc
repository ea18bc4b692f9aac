// What the line of waiting requests tells the scheduler of them.
#include "server/engine/waiting_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/scheduler/forecast.h"

namespace recurve::waiting_line_test {

using ::testing::ElementsAre;
using namespace std::chrono_literals;

constexpr Identity kOne{.tenant = 1, .tenant_name = "one"};
constexpr Identity kOther{.tenant = 2, .tenant_name = "other"};

class WaitingLineTest : public ::testing::Test {
 protected:
  static constexpr int kSlots = 2;

  void push(const Identity& caller, int choices = 1, int priority = 0) {
    Request request{.caller = caller,
                    .prompt = {1, 2, 3},
                    .sampling = {.max_tokens = 4},
                    .priority = priority,
                    .arrival = now_};
    now_ += 1ms;
    for (int c = 0; c < choices; ++c) request.streams.push_back(std::make_shared<TokenStream>());
    ASSERT_EQ(queue_.push(std::move(request)), AdmissionQueue::Admission::kAccepted);
  }
  void arrive() { line_.take_arrivals({.running = {}, .pace = pace_, .holds = holds_}, now_); }
  std::vector<TenantId> tenants() const {
    std::vector<TenantId> tenants;
    for (const Waiter& waiter : line_.waiters()) tenants.push_back(waiter.tenant);
    return tenants;
  }

  std::unique_ptr<Backend> backend_ = make_backend("reference");
  std::unique_ptr<Stream> stream_ = backend_->make_stream();
  StatePool pool_{*backend_, {.arrays = {{.name = "x", .shape = {2}}}}, kSlots, *stream_};
  StateCache states_{*backend_, pool_, int64_t{1} << 40};
  SessionStore sessions_{states_, pool_, {.host_bytes = 0, .default_ttl_seconds = 0}, 1000};
  PrefixCache prefixes_{states_, pool_, 64, {}};
  AdmissionQueue queue_{10};
  EngineMetrics metrics_;
  Pace pace_{64, 0};
  HoldTimeEstimator holds_;
  Clock::time_point now_ = Clock::now();
  WaitingLine line_{queue_, sessions_, prefixes_, pool_, metrics_, /*bound=*/{}};
};

TEST_F(WaitingLineTest, TheSchedulerSeesWhoseEachRequestIs) {
  push(kOther);
  push(kOne);
  push(kOther, 1, /*priority=*/5);
  arrive();
  EXPECT_THAT(tenants(), ElementsAre(2, 2, 1)) << "by their places";
  ASSERT_NE(line_.admit_next(now_), nullptr);
  EXPECT_THAT(tenants(), ElementsAre(2, 1));
}

TEST_F(WaitingLineTest, ChoicesThatWaitAgainAreStillTheirTenants) {
  push(kOther, /*choices=*/2);
  push(kOne);
  arrive();
  const std::unique_ptr<Sequence> first = line_.admit_next(now_);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->request.caller.tenant, kOther.tenant);
  EXPECT_THAT(tenants(), ElementsAre(1));
  line_.requeue(*first, 0);
  EXPECT_THAT(tenants(), ElementsAre(2, 1)) << "in their place";
  std::unique_ptr<Sequence> next = line_.admit_next(now_);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->request.caller.tenant, kOne.tenant) << "who has had no slot yet";
  EXPECT_THAT(tenants(), ElementsAre(2));
  next = nullptr;  // its slot is free again
  next = line_.admit_next(now_);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->request.caller.tenant, kOther.tenant);
  line_.drop_all(EndReason::kDraining, now_);
}

}  // namespace recurve::waiting_line_test
