#include "server/request/admission_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace recurve::admission_queue_test {

using Admission = AdmissionQueue::Admission;
using namespace std::chrono_literals;

Request named(const std::string& id) { return {.id = id}; }

TEST(AdmissionQueue, HoldsNoMoreThanItsBoundUntilSomeHaveLeft) {
  AdmissionQueue queue(2);
  EXPECT_EQ(queue.push(named("a")), Admission::kAccepted);
  EXPECT_EQ(queue.push(named("b")), Admission::kAccepted);
  EXPECT_EQ(queue.push(named("c")), Admission::kFull);
  EXPECT_EQ(queue.take().requests.size(), 2u);
  EXPECT_EQ(queue.push(named("c")), Admission::kFull) << "taken requests still wait for a slot";
  EXPECT_EQ(queue.waiting(), 2);
  queue.count_removed(1);
  EXPECT_EQ(queue.push(named("c")), Admission::kAccepted);
  EXPECT_EQ(queue.push(named("d")), Admission::kFull);
}

TEST(AdmissionQueue, GivesRequestsInTheirOrderAndOnce) {
  AdmissionQueue queue(10);
  for (const char* id : {"a", "b", "c"}) queue.push(named(id));
  queue.post({.kind = SessionCommand::Kind::kGet, .name = "s"});
  const AdmissionQueue::Arrivals arrivals = queue.take();
  ASSERT_EQ(arrivals.requests.size(), 3u);
  EXPECT_EQ(arrivals.requests[0].id, "a");
  EXPECT_EQ(arrivals.requests[2].id, "c");
  ASSERT_EQ(arrivals.commands.size(), 1u);
  const AdmissionQueue::Arrivals none = queue.take();
  EXPECT_TRUE(none.requests.empty() && none.commands.empty());
}

TEST(AdmissionQueue, CommandsDoNotCountAsWaitingButAreBoundToo) {
  AdmissionQueue queue(1);
  int accepted = 0;
  while (queue.post({}) == Admission::kAccepted) ASSERT_LT(++accepted, 100000);
  EXPECT_GE(accepted, 1000);
  EXPECT_EQ(queue.post({}), Admission::kFull);
  EXPECT_EQ(queue.waiting(), 0);
  EXPECT_EQ(queue.push({}), Admission::kAccepted);
}

TEST(AdmissionQueue, ClosedRefusesAndKeepsWhatIsInside) {
  AdmissionQueue queue(1);
  queue.push(named("a"));
  EXPECT_FALSE(queue.done());
  queue.close();
  EXPECT_FALSE(queue.done()) << "one is still inside";
  EXPECT_EQ(queue.push(named("b")), Admission::kClosed) << "closed comes before full";
  EXPECT_EQ(queue.post({}), Admission::kClosed);
  EXPECT_EQ(queue.take().requests.size(), 1u);
  EXPECT_TRUE(queue.done());
}

// Whether wait() comes back before `limit`.
bool returns_at_once(AdmissionQueue& queue) {
  const Clock::time_point limit = Clock::now() + 30s;
  queue.wait(limit);
  return Clock::now() < limit;
}

TEST(AdmissionQueue, NewsBeforeWaitIsNotMissed) {
  AdmissionQueue queue(4);
  queue.wake();
  EXPECT_TRUE(returns_at_once(queue));
  queue.take();  // which ends the news
  queue.push({});
  EXPECT_TRUE(returns_at_once(queue));
  queue.take();
  queue.post({});
  EXPECT_TRUE(returns_at_once(queue));
  queue.take();
  queue.close();
  EXPECT_TRUE(returns_at_once(queue));
}

TEST(AdmissionQueue, WaitSleepsUntilItsTimeOnceAllIsTaken) {
  AdmissionQueue queue(4);
  queue.push({});
  queue.take();
  const Clock::time_point until = Clock::now() + 20ms;
  queue.wait(until);
  EXPECT_GE(Clock::now(), until);
}

TEST(AdmissionQueue, WakesAWaitingThread) {
  for (const auto& news : std::vector<std::function<void(AdmissionQueue&)>>{
           [](AdmissionQueue& queue) { queue.push({}); },
           [](AdmissionQueue& queue) { queue.post({}); },
           [](AdmissionQueue& queue) { queue.wake(); },
           [](AdmissionQueue& queue) { queue.close(); }}) {
    AdmissionQueue queue(4);
    std::thread waiter([&] { queue.wait(std::nullopt); });
    std::this_thread::sleep_for(2ms);
    news(queue);
    waiter.join();  // or the test runs into its time limit
  }
}

TEST(AdmissionQueue, ManyThreadsPushAndNothingIsLost) {
  constexpr int kThreads = 4, kEach = 500;
  AdmissionQueue queue(8);
  std::vector<std::thread> producers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&queue, t] {
      for (int i = 0; i < kEach; ++i) {
        while (queue.push(named(std::to_string(t))) == Admission::kFull) std::this_thread::yield();
      }
    });
  }
  std::vector<int> received(kThreads, 0);
  for (int left = kThreads * kEach; left > 0;) {
    queue.wait(std::nullopt);
    const AdmissionQueue::Arrivals arrivals = queue.take();
    EXPECT_LE(arrivals.requests.size(), 8u);
    for (const Request& request : arrivals.requests) ++received[std::stoul(request.id)];
    queue.count_removed(static_cast<int>(arrivals.requests.size()));
    left -= static_cast<int>(arrivals.requests.size());
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(received, std::vector<int>(kThreads, kEach));
  EXPECT_EQ(queue.waiting(), 0);
}

}  // namespace recurve::admission_queue_test
