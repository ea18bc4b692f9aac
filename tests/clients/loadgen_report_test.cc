// The load generator's sweep, and its figures as a table, a page and JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "clients/loadgen/report/report_html.h"
#include "clients/loadgen/report/report_json.h"
#include "clients/loadgen/report/report_table.h"
#include "tests/clients/loadgen_run.h"

namespace recurve::loadgen::loadgen_report_test {

using std::chrono::milliseconds;
using testing::ask;
using testing::FakeServer;
using testing::GenerateWriter;
using ::testing::HasSubstr;
using testing::held_up;
using ::testing::Not;
using testing::options_for;
using testing::run_once;
using testing::run_test;
using testing::ScriptedAnswers;
using Clock = std::chrono::steady_clock;

// A server of `kPlaces` that each take 20 ms for an answer, and a queue in front of them.
class Places {
 public:
  static constexpr int kPlaces = 2;
  static constexpr double kCapacity = kPlaces / 0.02;

  grpc::Status operator()(grpc::ServerContext* context, const v1::GenerateRequest& request,
                          GenerateWriter* writer) {
    const auto [place, until] = take();
    while (Clock::now() < until) {
      std::this_thread::sleep_until(std::min(until, Clock::now() + kTime));
      if (context->IsCancelled()) return give_back(place);
    }
    return testing::answer_with({"a"})(context, request, writer);
  }

 private:
  static constexpr milliseconds kTime{20};

  // The place that is free first, and when the answer is there. Places are taken from when they are
  // free, so that a thread that wakes late holds up no other.
  std::pair<size_t, Clock::time_point> take() {
    std::lock_guard lock(mutex_);
    const auto first = std::min_element(free_.begin(), free_.end());
    *first = std::max(*first, Clock::now()) + kTime;
    return {static_cast<size_t>(first - free_.begin()), *first};
  }
  grpc::Status give_back(size_t place) {
    std::lock_guard lock(mutex_);
    free_[place] -= kTime;
    return grpc::Status::CANCELLED;
  }

  std::mutex mutex_;
  std::array<Clock::time_point, kPlaces> free_ = {};
};

// A trial that the machine holds up makes the answer of a sweep too low, never too high; it is
// repeated then, and where the trial at twice that rate was held up.
Report run_sweep(const Options& options, double lowest) {
  for (int left = 4;; --left) {
    Report report = run_once(options);
    const bool measured = report.highest_rate.value_or(0) >= lowest && report.overload_trial &&
                          !held_up(report.trials[*report.overload_trial]);
    if (left == 0 || measured) return report;
  }
}

TEST(LoadgenReportTest, SweepFindsTheCapacityOfAServer) {
  Places places;
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate(
      [&](grpc::ServerContext* context, const v1::GenerateRequest& request,
          GenerateWriter* writer) { return places(context, request, writer); });
  Options options = options_for(server, 0.2, 1.3);
  options.run.cooldown_seconds = 0.5;
  options.run.level.ttft_seconds = 0.2;
  options.arrivals = ArrivalKind::kConstant;
  options.sweep = true;
  options.sweep_first_rate = 60;
  options.sweep_precision = 0.1;
  const Report report = run_sweep(options, 0.85 * Places::kCapacity);
  // With constant arrivals nothing waits below the capacity. Above it, at r a second, the queue
  // grows for 1.5 s: the last waits 1.5 (r / 100 - 1), which is over 0.2 s from 114 on.
  ASSERT_TRUE(report.highest_rate);
  EXPECT_GE(*report.highest_rate, 0.85 * Places::kCapacity);
  EXPECT_LE(*report.highest_rate, 1.16 * Places::kCapacity);
  ASSERT_TRUE(report.overload_trial);
  const Trial& overload = report.trials[*report.overload_trial];
  EXPECT_EQ(overload.rate, 2 * *report.highest_rate);
  EXPECT_FALSE(holds(overload, report.options.level));
  EXPECT_NEAR(request_rate(overload), Places::kCapacity, 10);
  EXPECT_THAT(sweep_text(report), HasSubstr("highest rate with p99 TTFT <= 200 ms"));
  const std::string html = to_html(report);
  EXPECT_THAT(html, HasSubstr("Which rate holds the service level?"));
  EXPECT_THAT(html, HasSubstr("highest that held"));
}

TEST(LoadgenReportTest, JsonAndPageHoldTheFiguresOfTheTable) {
  ScriptedAnswers answers(milliseconds(5), milliseconds(5));
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate(ask(answers));
  Options options = options_for(server, 0.2, 1);
  options.streams = 2;
  Report report = run_test(options);
  report.command = "recurve-loadgen <&>";
  const auto json = to_json(report);
  const Records& records = report.trials[0].result.records;
  const auto& trial = json["trials"][0];
  EXPECT_EQ(json["server"]["model"], "fake-8m");
  EXPECT_EQ(trial["streams"], 2);
  EXPECT_TRUE(trial["rate"].is_null());
  EXPECT_EQ(trial["requests"]["measured"], records.requests);
  EXPECT_EQ(trial["latency"]["ttft"]["p99_ms"], records.ttft.quantile(0.99) * 1e3);
  uint64_t sum = 0;
  for (const auto& bucket : trial["latency"]["inter_token"]["histogram"]) {
    EXPECT_LT(bucket[0], bucket[1]);
    sum += bucket[2].get<uint64_t>();
  }
  EXPECT_EQ(sum, records.gap.count());
  EXPECT_FALSE(json.contains("sweep"));
  const std::string html = to_html(report);
  EXPECT_THAT(html, HasSubstr("recurve-loadgen &lt;&amp;&gt;"));
  EXPECT_THAT(html, HasSubstr("fake-8m"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));  // self-contained
}

}  // namespace recurve::loadgen::loadgen_report_test
