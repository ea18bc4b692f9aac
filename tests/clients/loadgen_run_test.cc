// The load generator's figures against a server whose delays are known: each answer is scripted,
// and the server notes when it really wrote, so that a busy machine does not blur what is compared.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "clients/loadgen/load_test.h"
#include "clients/loadgen/report_html.h"
#include "clients/loadgen/report_json.h"
#include "clients/loadgen/report_table.h"
#include "clients/loadgen/user.h"
#include "tests/clients/fake_server.h"

namespace recurve::loadgen::loadgen_run_test {

using std::chrono::milliseconds;
using testing::FakeServer;
using testing::GenerateWriter;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

// What this process adds to a latency on a busy machine, at the median.
constexpr double kSlack = 0.015;

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

// Answers with one token a message: the first after `first`, each further one after `each`.
class ScriptedAnswers {
 public:
  ScriptedAnswers(milliseconds first, milliseconds each) : first_(first), each_(each) {}

  grpc::Status operator()(const v1::GenerateRequest& request, GenerateWriter* writer) {
    const Clock::time_point began = Clock::now();
    writer->Write(testing::prompt_message(request));
    std::this_thread::sleep_until(began + first_);
    const double ttft = seconds_since(began);
    const int tokens = request.stop().max_tokens(), choices = std::max(1, request.n());
    for (int t = 0; t < tokens; ++t) {
      if (t > 0) std::this_thread::sleep_for(each_);
      for (int c = 0; c < choices; ++c) writer->Write(testing::chunk_message("", c));
    }
    const double tpot = (seconds_since(began) - ttft) / std::max(1, tokens - 1);
    auto last = testing::final_message(choices);
    last.mutable_final()->mutable_usage()->set_queue_seconds(0.125);
    writer->Write(last);
    std::lock_guard lock(mutex_);
    ttft_.record(ttft);
    tpot_.record(tpot);
    return grpc::Status::OK;
  }

  double ttft(double share) const { return quantile(ttft_, share); }
  double tpot(double share) const { return quantile(tpot_, share); }

 private:
  double quantile(const Histogram& histogram, double share) const {
    std::lock_guard lock(mutex_);
    return histogram.quantile(share);
  }

  const milliseconds first_, each_;
  mutable std::mutex mutex_;
  Histogram ttft_, tpot_;  // as they really were
};

Options options_for(const FakeServer& server, double warmup, double measured) {
  Options options;
  options.server = server.address();
  options.workload.prompt_tokens = Distribution(20);
  options.workload.output_tokens = Distribution(5);
  options.run.warmup_seconds = warmup;
  options.run.measured_seconds = measured;
  return options;
}

Report run_once(const Options& options) {
  const std::atomic<bool> interrupted = false;
  return run_load_test(options,
                       {.on_begin = [](const Report&) {},
                        .on_progress = [](const RunProgress&) {},
                        .on_trial = [](const Trial&) {}},
                       interrupted);
}

// The generator's own timers say where the machine did not run this process in time: the figures
// are those of the machine then.
bool held_up(const Trial& trial) {
  constexpr double kHeldUpSeconds = 0.05;
  const ClientCost& client = trial.result.client;
  return client.timer_lateness.max() > kHeldUpSeconds ||
         client.handling_delay.max() > kHeldUpSeconds;
}

// A run that the machine did not hold up, or the last of ten. `reset` forgets the runs before.
Report run_test(
    const Options& options, const std::function<void()>& reset = [] {}) {
  for (int left = 9;; --left) {
    reset();
    Report report = run_once(options);
    if (left == 0 || std::none_of(report.trials.begin(), report.trials.end(), held_up)) {
      return report;
    }
  }
}

// A request handler that shares `answers` with the test.
template <class Answers>
testing::OnGenerate ask(Answers& answers) {
  return [&answers](grpc::ServerContext*, const v1::GenerateRequest& request,
                    GenerateWriter* writer) { return answers(request, writer); };
}

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

// A server that answers nobody for a second. A client that waits for each answer before it sends
// the next request would see one slow request of about 25; who counts from the time that a request
// was due sees that the tenth of them that fell into the second all waited.
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
  UserContext context{.workload = workload,
                      .watch = watch,
                      .pacer = pacer,
                      .on_end = [&gone](User* user, Worker& its, ConversationEnd) {
                        its.release(user);
                        gone.set_value();
                      }};
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

TEST(LoadgenRunTest, ForksAreOneRequestWithTheSlowestAnswersTpot) {
  ScriptedAnswers answers(milliseconds(20), milliseconds(10));
  FakeServer server;  // last: its threads use the others
  server.inference.set_on_generate(ask(answers));
  Options options = options_for(server, 0, 1);
  options.streams = 1;
  options.workload.forks = 3;
  const Report report = run_test(options);
  EXPECT_EQ(server.inference.generate_requests()[0].n(), 3);
  const Trial& trial = report.trials[0];
  EXPECT_NEAR(token_rate(trial) / request_rate(trial), 15, 3);
  EXPECT_NEAR(trial.result.records.tpot.quantile(0.5), answers.tpot(0.5), kSlack / 4);
  options.workload.forks = 17;
  EXPECT_THROW(run_test(options), std::invalid_argument);  // over the server's limit
}

TEST(LoadgenRunTest, TurnsShareASessionThinkAndCloseIt) {
  FakeServer server;
  Options options = options_for(server, 0, 1);
  options.streams = 2;
  options.workload.turns = 3;
  options.workload.think_seconds = Distribution(0.1);
  size_t asked_before = 0;
  int opened_before = 0;
  const Report report = run_test(options, [&] {
    asked_before = server.inference.generate_requests().size();
    opened_before = server.sessions.opened();
  });
  const auto requests = server.inference.generate_requests();
  for (const auto& request : requests) EXPECT_NE(request.session(), "");
  // Three requests a session, but for the two that the end of the run cut off.
  const auto opened = static_cast<size_t>(server.sessions.opened() - opened_before);
  const size_t asked = requests.size() - asked_before;
  EXPECT_GE(opened, 4u);
  EXPECT_LE(asked, 3 * opened);
  EXPECT_GE(asked + 2 * 3, 3 * opened);
  EXPECT_THAT(server.sessions.sessions(), ::testing::IsEmpty());
  // 2 users, 3 turns in at least 0.2 s.
  EXPECT_LE(request_rate(report.trials[0]), 2 * 3 / 0.2 * 1.1);
  EXPECT_THAT(report.trials[0].result.records.errors, ::testing::IsEmpty());
}

// The server ends a cancelled request with its next step, and keeps the session until then.
TEST(LoadgenRunTest, ASessionThatIsBusyStillIsClosedOnceItIsNot) {
  FakeServer server;
  server.inference.set_on_generate([&](grpc::ServerContext* context,
                                       const v1::GenerateRequest& request, GenerateWriter* writer) {
    server.sessions.set_busy(request.session(), true);
    writer->Write(testing::prompt_message(request));
    testing::wait_for_cancel(context);
    std::this_thread::sleep_for(milliseconds(100));
    server.sessions.set_busy(request.session(), false);
    return grpc::Status::CANCELLED;
  });
  Options options = options_for(server, 0, 0.2);
  options.streams = 3;
  options.workload.turns = 2;
  options.run.cooldown_seconds = 0;
  run_once(options);
  EXPECT_EQ(server.sessions.opened(), 3);
  EXPECT_THAT(server.sessions.sessions(), ::testing::IsEmpty());
}

TEST(LoadgenRunTest, ASessionThatIsBeingOpenedAtTheEndIsClosed) {
  FakeServer server;
  server.sessions.set_opening_time(milliseconds(500));
  Options options = options_for(server, 0, 0.2);
  options.streams = 3;
  options.workload.turns = 2;
  options.run.cooldown_seconds = 0;
  run_once(options);
  EXPECT_THAT(server.sessions.sessions(), ::testing::IsEmpty());
  EXPECT_EQ(server.sessions.opened(), 3);
}

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

TEST(LoadgenRunTest, SweepFindsTheCapacityOfAServer) {
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

TEST(LoadgenRunTest, JsonAndPageHoldTheFiguresOfTheTable) {
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

}  // namespace recurve::loadgen::loadgen_run_test
