// Loads of the load generator, closed and open: what it sends, and the latencies it finds.
#include "tests/clients/loadgen_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "clients/loadgen/report/report_table.h"
#include "clients/loadgen/user.h"

namespace recurve::loadgen::loadgen_run_test {

using std::chrono::milliseconds;
using testing::ask;
using testing::FakeServer;
using testing::GenerateWriter;
using ::testing::HasSubstr;
using testing::kSlack;
using testing::options_for;
using testing::run_once;
using testing::run_test;
using testing::ScriptedAnswers;
using Clock = std::chrono::steady_clock;

TEST(LoadgenRunTest, ClosedLoopMeasuresTheDelaysOfTheServer) {
  ScriptedAnswers answers(milliseconds(60), milliseconds(20));
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate(ask(answers));
  Options options = options_for(server, 0.4, 2);
  options.streams = 4;
  const Report report = run_test(options);
  ASSERT_EQ(report.trials.size(), 1u);
  const Trial& trial = report.trials[0];
  const Records& records = trial.result.records;
  // An answer takes 60 + 4 x 20 ms, so 4 streams make at most 28.6 of them a second.
  EXPECT_GT(records.requests, 20u);
  EXPECT_LE(request_rate(trial), 4 / 0.14 * 1.1);
  EXPECT_NEAR(token_rate(trial) / request_rate(trial), 5, 0.7);
  EXPECT_GE(records.ttft.min(), 0.06);
  EXPECT_NEAR(records.ttft.quantile(0.5), answers.ttft(0.5), kSlack);
  EXPECT_GE(records.tpot.quantile(0.5), 0.0195);
  EXPECT_NEAR(records.tpot.quantile(0.5), answers.tpot(0.5), kSlack / 4);
  EXPECT_NEAR(records.gap.quantile(0.5), answers.tpot(0.5), kSlack);
  EXPECT_NEAR(records.total.mean(), records.ttft.mean() + 4 * records.tpot.mean(), kSlack);
  EXPECT_NEAR(records.queue.mean(), 0.125, 1e-6);
  EXPECT_EQ(error_count(trial), 0u);
}

TEST(LoadgenRunTest, RequestsAreIdsOfTheVocabularyAndDoNotEndEarly) {
  FakeServer server;
  Options options = options_for(server, 0, 0.3);
  options.streams = 1;
  run_test(options);
  for (const v1::GenerateRequest& request : server.inference.generate_requests()) {
    ASSERT_EQ(request.ids().ids_size(), 20);
    for (const int32_t id : request.ids().ids()) {
      EXPECT_TRUE(id >= 0 && id < 100 && id != 1 && id != 2 && id != 5) << id;  // bos, eos
    }
    EXPECT_TRUE(request.stop().ignore_eos());
    EXPECT_EQ(request.stop().max_tokens(), 5);
    EXPECT_TRUE(request.sampling().has_seed());
  }
}

// A server that answers no request for a second. A client that waits for each answer before it
// sends the next request would see one slow request of about 25; who counts from the time that a
// request was due sees that the tenth of them that fell into the second all waited.
TEST(LoadgenRunTest, AStallOfTheServerIsSeenByAllWhoWereDueInIt) {
  std::mutex mutex;
  std::optional<Clock::time_point> began;  // with its first request
  FakeServer server;                       // last: its threads use the others
  server.inference.set_on_generate(
      [&](grpc::ServerContext*, const v1::GenerateRequest& request, GenerateWriter* writer) {
        const auto now = Clock::now();
        std::unique_lock lock(mutex);
        if (!began) began = now;
        const auto stall_begin = *began + milliseconds(1500);
        const auto stall_end = stall_begin + milliseconds(1000);
        lock.unlock();
        if (now >= stall_begin && now < stall_end) std::this_thread::sleep_until(stall_end);
        return testing::answer_with({"a"})(nullptr, request, writer);
      });
  Options options = options_for(server, 0, 5);
  options.rate = 25;
  options.arrivals = ArrivalKind::kConstant;
  const Report report = run_test(options, [&] {
    std::lock_guard lock(mutex);
    began.reset();
  });
  const Histogram& ttft = report.trials[0].result.records.ttft;
  EXPECT_EQ(ttft.count(), 125u);
  // 25 of 125 waited between 0 and 1 s, evenly: so a tenth waited at least half a second.
  EXPECT_GT(ttft.max(), 0.9);
  EXPECT_GT(ttft.quantile(0.95), 0.6);
  EXPECT_GT(ttft.quantile(0.9), 0.35);
  EXPECT_LT(ttft.quantile(0.7), 0.2);
  EXPECT_NEAR(good_share(report.trials[0]), 1 - 12.5 / 125, 0.06);
}

TEST(LoadgenRunTest, RefusalsAreCountedByCodeAndNotAsLatencies) {
  std::atomic<int> count = 0;
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate([&](grpc::ServerContext* context,
                                       const v1::GenerateRequest& request, GenerateWriter* writer) {
    if (++count % 4 > 0) return testing::answer_with({"a", "b"})(context, request, writer);
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
  });
  Options options = options_for(server, 0, 2);
  options.rate = 40;
  const Report report = run_test(options);
  const Records& records = report.trials[0].result.records;
  const uint64_t refused = records.errors.at("RESOURCE_EXHAUSTED");
  EXPECT_NEAR(static_cast<double>(refused), static_cast<double>(records.requests) / 4, 2);
  EXPECT_EQ(records.ttft.count(), records.requests - refused);
  EXPECT_LE(good_share(report.trials[0]), 0.8);
  EXPECT_FALSE(holds(report.trials[0], report.options.level));
  EXPECT_THAT(trial_text(report.trials[0], report.options),
              HasSubstr("x RESOURCE_EXHAUSTED: the queue is full"));
}

TEST(LoadgenRunTest, AClosedLoopDoesNotHammerAServerThatRefuses) {
  std::atomic<int> count = 0;
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate([&](grpc::ServerContext* context, const auto&, auto*) {
    ++count;
    context->AddTrailingMetadata("grpc-retry-pushback-ms", "400");
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
  });
  Options options = options_for(server, 0, 1);
  options.streams = 2;
  run_test(options, [&] { count = 0; });
  EXPECT_GE(count, 4);
  EXPECT_LE(count, 2 * 4);  // at 0, 0.4, 0.8 s, and once more while it ends
}

TEST(LoadgenRunTest, WhatDoesNotEndIsCutOffAndCountsWithTheTimeItWaited) {
  std::atomic<int> cancelled = 0;
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate([&](grpc::ServerContext* context, const auto&, auto*) {
    cancelled += testing::wait_for_cancel(context);
    return grpc::Status::CANCELLED;
  });
  Options options = options_for(server, 0, 0.5);
  options.run.cooldown_seconds = 0.5;
  options.rate = 10;
  options.arrivals = ArrivalKind::kConstant;
  size_t sent_before = 0;
  const auto sent = [&] { return server.inference.generate_requests().size(); };
  const Report report = run_test(options, [&] { sent_before = sent(); });
  const Records& records = report.trials[0].result.records;
  EXPECT_EQ(records.requests, 5u);
  EXPECT_EQ(records.errors.at(kUnfinished), 5u);
  EXPECT_GE(records.ttft.max(), 0.99);  // due at 0, cut off after 1 s
  EXPECT_GE(records.ttft.min(), 0.59);
  EXPECT_EQ(records.good, 0u);
  EXPECT_EQ(records.total.count(), 5u);
  EXPECT_GT(sent() - sent_before, 5u);  // those that were not measured too
  const auto all_cancelled = [&] { return static_cast<size_t>(cancelled) == sent(); };
  for (int i = 0; i < 500 && !all_cancelled(); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(all_cancelled()) << cancelled << " of " << sent();
}

// So many are due that no machine begins them in time, and the run ends with its window.
TEST(LoadgenRunTest, WhatWasDueCountsWhereTheGeneratorIsTooLateToSendIt) {
  FakeServer server;
  Options options = options_for(server, 0, 0.01);
  options.run.cooldown_seconds = 0;
  options.rate = 1e8;
  options.arrivals = ArrivalKind::kConstant;
  options.max_running = 0;
  const Report report = run_once(options);
  const Records& records = report.trials[0].result.records;
  EXPECT_EQ(records.requests, 1'000'000u);
  EXPECT_EQ(error_count(report.trials[0]), 1'000'000u);
}

// The pacer is busy from the first answer until the run is over.
TEST(LoadgenRunTest, ALaterTurnCountsWhereTheGeneratorIsTooLateToSendIt) {
  FakeServer server;
  WorkloadOptions options = options_for(server, 0, 0).workload;
  options.turns = 2;
  options.think_seconds = Distribution(0.001);
  const Workload workload(
      options, {.token_count = 100, .max_prompt_tokens = 1000, .max_output_tokens = 1000});
  const Stopwatch watch;
  Worker worker(server.address(), watch, Window{0, 1e9}, {});
  std::promise<void> over, gone;
  Pacer pacer(watch);
  pacer.at(0, [&over] { over.get_future().wait(); });
  const RunOptions run;
  UserContext context{.workload = workload,
                      .watch = watch,
                      .pacer = pacer,
                      .on_end =
                          [&gone](User* user, Worker& its, ConversationEnd) {
                            its.release(user);
                            gone.set_value();
                          },
                      .options = run};
  worker.adopt(std::make_unique<User>(context, worker))->begin(workload.conversation(0), 0);
  const auto answered = [&worker] {
    const Progress progress = worker.recorder().progress();
    return progress.ended + progress.failed > 0;
  };
  while (!answered()) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(2));  // the second turn is due
  context.stopping = true;
  pacer.hurry();
  over.set_value();
  gone.get_future().wait();
  pacer.stop();
  const Records records = worker.recorder().records();
  EXPECT_EQ(records.requests, 2u);
  EXPECT_THAT(records.errors, ::testing::ElementsAre(::testing::Pair(kUnfinished, 1u)));
}

TEST(LoadgenRunTest, DeadlinesAreKeptAndCounted) {
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate([](grpc::ServerContext* context, const auto&, auto*) {
    testing::wait_for_cancel(context);
    return grpc::Status::CANCELLED;
  });
  Options options = options_for(server, 0, 0.5);
  options.run.timeout_seconds = 0.2;
  options.rate = 20;
  const Report report = run_test(options);
  const Records& records = report.trials[0].result.records;
  EXPECT_EQ(records.errors.at("DEADLINE_EXCEEDED"), records.requests);
  EXPECT_NEAR(records.total.quantile(0.5), 0.2, kSlack);
}

}  // namespace recurve::loadgen::loadgen_run_test
