// The cost of an operation on one session does not grow with a hundred thousand others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::many_sessions_test {

using Kind = SessionCommand::Kind;
using Seconds = std::chrono::duration<double>;

constexpr int kSessions = 100'000;

// With times to live that all differ and lie far ahead.
void open_all(EngineHarness& harness) {
  for (int i = 0; i < kSessions; ++i) {
    harness.queue().post({.kind = Kind::kOpen,
                          .name = "s" + std::to_string(i),
                          .ttl_seconds = 1000.0 + i,
                          .done = [](const SessionResult& result) {
                            ASSERT_EQ(result.reason, EndReason::kDone) << result.message;
                          }});
    if (i % 1000 == 999) harness.step();
  }
}

// Of a whole turn of the engine that carries out the command; the least of some.
double seconds_for(EngineHarness& harness, const SessionCommand& command) {
  double least = 1e9;
  for (int i = 0; i < 10; ++i) {
    SessionCommand copy = command;
    const auto began = std::chrono::steady_clock::now();
    const SessionResult result = harness.command(std::move(copy));
    least = std::min(least, Seconds(std::chrono::steady_clock::now() - began).count());
    EXPECT_EQ(result.reason, EndReason::kDone);
  }
  return least;
}

TEST(ManySessions, GetAndListTakeLessThanAMillisecond) {
  NullHarness harness({.host_bytes = int64_t{1} << 40, .ttl_seconds = 0});
  open_all(*harness);
  ASSERT_EQ(harness->stats().sessions, kSessions);
  const double get = seconds_for(*harness, {.kind = Kind::kGet, .name = "s77777"});
  const double list =
      seconds_for(*harness, {.kind = Kind::kList, .name = "s7", .other = "s70", .limit = 100});
  std::printf("Get %.3f ms, List %.3f ms\n", 1e3 * get, 1e3 * list);
  EXPECT_LT(get, 1e-3);
  EXPECT_LT(list, 1e-3);
}

// All at once; requests go on between.
TEST(ManySessions, ExpireALittleAtATime) {
  const HeldClock held;
  NullHarness harness({.host_bytes = int64_t{1} << 40});
  open_all(*harness);
  AnswerPtr running = harness->submit(NullHarness::request(3, 100'000));
  harness->step();
  Clock::pass(std::chrono::hours(48));
  harness->step();
  const int left = harness->stats().sessions;
  EXPECT_LT(left, kSessions);
  EXPECT_GT(left, kSessions - 1000) << "a step waited for all of them";
  running->stream()->cancel();
  harness->step();
  for (int i = 0; i < kSessions && harness->stats().sessions > 0; ++i) harness->step();
  EXPECT_EQ(harness->stats().sessions, 0);
  EXPECT_EQ(harness->stats().slots_free, harness->stats().slots);
}

}  // namespace recurve::testing::many_sessions_test
