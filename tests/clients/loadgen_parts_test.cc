// The parts of the load generator that need no server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "clients/loadgen/arrivals.h"
#include "clients/loadgen/pacer.h"
#include "clients/loadgen/recorder.h"
#include "clients/loadgen/report/distribution.h"
#include "clients/loadgen/report/histogram.h"
#include "clients/loadgen/report/svg_chart.h"
#include "clients/loadgen/sweep.h"
#include "clients/loadgen/trace.h"
#include "clients/loadgen/workload.h"

namespace recurve::loadgen::loadgen_parts_test {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HistogramTest, QuantilesAreThoseOfTheSortedValuesToATenthOfAPercent) {
  Rng rng(7);
  std::lognormal_distribution<double> draw(-3, 2);
  Histogram histogram, half, other_half;
  std::vector<double> values;
  for (int i = 0; i < 50'000; ++i) {
    values.push_back(draw(rng));
    histogram.record(values.back());
    (i % 2 ? half : other_half).record(values.back());
  }
  half.merge(other_half);
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += value;
  for (const double share : {0.0001, 0.01, 0.5, 0.9, 0.99, 0.9999}) {
    const auto rank = static_cast<size_t>(std::ceil(share * 50'000)) - 1;
    EXPECT_NEAR(histogram.quantile(share), values[rank], values[rank] * 1e-3) << share;
    EXPECT_EQ(half.quantile(share), histogram.quantile(share)) << share;
  }
  EXPECT_NEAR(histogram.mean(), sum / 50'000, 1e-8 * sum);
  EXPECT_NEAR(histogram.max(), values.back(), 1e-9);
  EXPECT_NEAR(histogram.min(), values.front(), 1e-9);
  EXPECT_NEAR(histogram.quantile(1), values.back(), 1e-3 * values.back());
}

TEST(HistogramTest, BucketsHoldEveryValueOnceAndDoNotOverlap) {
  Histogram histogram;
  const std::vector<double> values = {0, 1e-9, 2.047e-6, 2.048e-6, 4.096e-6, 0.3, 500, 3600};
  for (const double value : values) histogram.record(value, 3);
  const auto buckets = histogram.buckets();
  ASSERT_EQ(buckets.size(), values.size());
  for (size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_EQ(buckets[i].count, 3u);
    EXPECT_LE(buckets[i].low, values[i] + 1e-12);
    EXPECT_GT(buckets[i].high, values[i]);
    EXPECT_LE(buckets[i].high - buckets[i].low, 1.1e-9 + values[i] / 1024);
    if (i > 0) {
      EXPECT_GE(buckets[i].low, buckets[i - 1].high);
    }
  }
  EXPECT_EQ(Histogram().quantile(0.5), 0);
}

TEST(DistributionTest, MeanAndSpreadAreThoseAskedFor) {
  Rng rng(1);
  const auto uniform = Distribution::parse("uniform:16-48", "x");
  const auto lognormal = Distribution::parse("lognormal:1000,0.5", "x");
  double uniform_sum = 0, log_sum = 0, log_squares = 0;
  constexpr int kDraws = 40'000;
  std::set<int64_t> seen;
  for (int i = 0; i < kDraws; ++i) {
    const int64_t tokens = uniform.draw_tokens(rng, 1, 1000);
    seen.insert(tokens);
    uniform_sum += static_cast<double>(tokens);
    const double logarithm = std::log(lognormal.draw(rng) / 1000);
    log_sum += logarithm;
    log_squares += logarithm * logarithm;
  }
  EXPECT_EQ(seen.size(), 33u);  // both ends too
  // Within 5 standard errors.
  EXPECT_NEAR(uniform_sum / kDraws, 32, 5 * 9.6 / std::sqrt(kDraws));
  EXPECT_NEAR(log_sum / kDraws, 0, 5 * 0.5 / std::sqrt(kDraws));
  EXPECT_NEAR(std::sqrt(log_squares / kDraws), 0.5, 5 * 0.5 / std::sqrt(2 * kDraws));
  EXPECT_EQ(Distribution::parse("64", "x").draw_tokens(rng, 1, 1000), 64);
  EXPECT_EQ(Distribution::parse("64", "x").draw_tokens(rng, 1, 10), 10);
}

TEST(DistributionTest, WhatCannotBeReadIsRefusedWithTheForms) {
  for (const char* text : {"", "x", "-3", "uniform:5", "uniform:9-2", "lognormal:0,1",
                           "lognormal:10", "lognormal:10,99", "nan", "64 "}) {
    try {
      Distribution::parse(text, "--think");
      FAIL() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr("--think is a number"));
      EXPECT_THAT(error.what(), HasSubstr(std::string("not '") + text + "'"));
    }
  }
  for (const char* text : {"64", "uniform:16-256", "lognormal:1024,0.5"}) {
    EXPECT_EQ(Distribution::parse(text, "x").text(), text);
  }
}

TEST(ArrivalsTest, PoissonGapsHaveTheMeanAndVarianceOfAnExponential) {
  constexpr double kRate = 40;
  constexpr int kCount = 40'000;
  Arrivals arrivals = Arrivals::poisson(kRate, 3);
  double last = 0, sum = 0, squares = 0;
  std::vector<int> in_second(kCount / static_cast<int>(kRate) + 100);
  for (int i = 0; i < kCount; ++i) {
    const double time = arrivals.next(), gap = time - last;
    ASSERT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
    last = time;
    if (time < static_cast<double>(in_second.size())) ++in_second[static_cast<size_t>(time)];
  }
  const double mean = sum / kCount, variance = squares / kCount - mean * mean;
  // Standard errors: mean / sqrt(n), and for the variance sqrt(8 / n) of it.
  EXPECT_NEAR(mean * kRate, 1, 5 / std::sqrt(kCount));
  EXPECT_NEAR(variance * kRate * kRate, 1, 5 * std::sqrt(8.0 / kCount));
  // Counts of a second are Poisson: their variance is their mean.
  const int seconds = static_cast<int>(last);
  double count_squares = 0;
  for (int s = 0; s < seconds; ++s) {
    count_squares += std::pow(in_second[static_cast<size_t>(s)] - kRate, 2);
  }
  EXPECT_NEAR(count_squares / seconds / kRate, 1, 5 * std::sqrt(2.0 / seconds));
}

// What follows a long action is late, whether it is begun in its turn, in a hurry or not at all.
TEST(PacerTest, LatenessIsNotedHoweverItEnds) {
  for (const bool hurry : {false, true}) {
    const Stopwatch watch;
    Pacer pacer(watch);
    std::promise<void> begun;
    const auto is_begun = begun.get_future();
    pacer.at(0, [&] {
      begun.set_value();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    });
    pacer.at(0.01, [] {});
    pacer.at(1000, [] {});
    is_begun.wait();
    if (hurry) {
      pacer.hurry();
      std::this_thread::sleep_for(std::chrono::milliseconds(110));
    }
    pacer.stop();
    EXPECT_EQ(pacer.lateness().count(), 2u);
    EXPECT_GE(pacer.lateness().max(), 0.09);
  }
}

TEST(ArrivalsTest, ConstantAndTraceAreExactAndASeedGivesTheSame) {
  Arrivals constant = Arrivals::constant(4);
  EXPECT_EQ(constant.next(), 0);
  EXPECT_EQ(constant.next(), 0.25);
  EXPECT_EQ(constant.next(), 0.5);
  Arrivals trace = Arrivals::trace({{0, 1, 1}, {1, 1, 1}, {4, 1, 1}}, 2);
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) times.push_back(trace.next());
  EXPECT_THAT(times, ElementsAre(0, 0.5, 2, 3, 3.5, 5));  // its mean gap of 2 s between the passes
  Arrivals one = Arrivals::poisson(9, 5), same = Arrivals::poisson(9, 5);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(one.next(), same.next());
}

class TraceTest : public ::testing::Test {
 protected:
  std::string file_of(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ =
      std::filesystem::temp_directory_path() / ("loadgen-trace-" + std::to_string(getpid()));
};

TEST_F(TraceTest, ReadsBothFormsInTheOrderOfArrival) {
  const auto rows =
      read_trace(file_of("arrival,prompt,output\n# a comment\n10.5,100,20\r\n\n"
                         "{\"arrival\": 10, \"prompt_tokens\": 7, "
                         "\"output_tokens\": 3, \"user\": \"x\"}\n"));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].arrival, 0);
  EXPECT_EQ(rows[0].prompt_tokens, 7);
  EXPECT_EQ(rows[0].output_tokens, 3);
  EXPECT_EQ(rows[1].arrival, 0.5);
  EXPECT_EQ(rows[1].prompt_tokens, 100);
}

TEST_F(TraceTest, RefusesWithFileAndLine) {
  for (const char* line : {"1,2", "1,x,3", "1,0,3", "1,2,3,4", "{\"arrival\": 1}", "{", "nan,1,1",
                           "{\"arrival\": \"1\", \"prompt_tokens\": 1, \"output_tokens\": 1}"}) {
    try {
      read_trace(file_of(std::string("0,1,1\n") + line + "\n"));
      FAIL() << line;
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_ + ":2: a line of a trace is")) << line;
    }
  }
  EXPECT_THROW(read_trace(file_of("# nothing\n")), std::runtime_error);
  EXPECT_THROW(read_trace("/nowhere/at/all"), std::runtime_error);
  EXPECT_THROW(read_prompts("/nowhere/at/all"), std::runtime_error);
}

WorkloadLimits limits() {
  return {
      .token_count = 50, .reserved = {0, 7}, .max_prompt_tokens = 1000, .max_output_tokens = 1000};
}

TEST(WorkloadTest, PromptsAreRandomButTheSameForASeed) {
  WorkloadOptions options;
  options.prompt_tokens = Distribution::parse("uniform:10-900", "x");
  options.turns = 3;
  options.think_seconds = Distribution::parse("2", "x");
  const Workload workload(options, limits()), same(options, limits());
  options.seed = 2;
  const Workload other(options, limits());
  const Conversation conversation = workload.conversation(5);
  ASSERT_EQ(conversation.turns.size(), 3u);
  EXPECT_EQ(conversation.turns[0].think_seconds, 0);
  EXPECT_EQ(conversation.turns[1].think_seconds, 2);
  const auto ids = workload.prompt_ids(conversation, 1);
  EXPECT_EQ(static_cast<int64_t>(ids.size()), conversation.turns[1].prompt_tokens);
  EXPECT_EQ(ids, same.prompt_ids(same.conversation(5), 1));
  EXPECT_NE(ids, other.prompt_ids(other.conversation(5), 1));
  EXPECT_NE(ids, workload.prompt_ids(workload.conversation(6), 1));
  EXPECT_THAT(ids, Each(::testing::AllOf(::testing::Ge(1), ::testing::Lt(50), ::testing::Ne(7))));
}

TEST(WorkloadTest, TraceAndTextsAreTakenInTurn) {
  WorkloadOptions options;
  options.trace = {{0, 10, 1}, {1, 20, 5000}};
  const Workload traced(options, limits());
  EXPECT_EQ(traced.conversation(2).turns[0].prompt_tokens, 10);
  EXPECT_EQ(traced.conversation(3).turns[0].prompt_tokens, 20);
  EXPECT_EQ(traced.conversation(3).turns[0].output_tokens, 1000);  // the server's limit
  options.prompts = {"a", "b", "c"};
  const Workload texts(options, limits());
  EXPECT_TRUE(texts.asks_in_text());
  EXPECT_EQ(texts.prompt_text(4, 0), "b");
  EXPECT_THROW(Workload(options, {.token_count = 1, .reserved = {0}}), std::invalid_argument);
}

TEST(SweepTest, FindsAKnownCapacityFromAnywhere) {
  for (const double capacity : {0.3, 7.0, 900.0}) {
    for (const double first : {0.5, 20.0, 600.0}) {
      int trials = 0;
      const double found = find_highest_rate(
          {.first_rate = first, .precision = 0.05, .max_trials = 60}, [&](double rate) {
            ++trials;
            return rate <= capacity;
          });
      EXPECT_LE(found, capacity);
      EXPECT_GT(found * 1.05, capacity) << "from " << first;
      EXPECT_LE(trials, 5 + std::abs(std::log(capacity / first)) / std::log(1.5) + 1);
    }
  }
  const auto never = [](double) { return false; };
  EXPECT_EQ(find_highest_rate({.max_trials = 8}, never), 0);
}

RequestRecord request(double due, double ttft, double tpot, std::string error = "") {
  return {.due = due,
          .sent = due,
          .first = due + ttft,
          .end = due + ttft + 10 * tpot,
          .tpot = tpot,
          .has_first = true,
          .has_tpot = true,
          .error = std::move(error)};
}

TEST(RecorderTest, GoodputCountsWhatWasDueInTheWindowAndBothLimits) {
  Recorder recorder({.begin = 1, .end = 3}, {.ttft_seconds = 0.5, .tpot_seconds = 0.03});
  recorder.request(request(0.9, 0.1, 0.01), "");  // before the window
  recorder.request(request(1.0, 0.1, 0.01), "");  // good
  recorder.request(request(2.0, 0.6, 0.01), "");  // first token too late
  recorder.request(request(2.5, 0.1, 0.04), "");  // the others too slow
  recorder.request(request(2.9, 0.5, 0.03), "");  // good, just so
  recorder.request(request(2.8, 0.1, 0.01, "RESOURCE_EXHAUSTED"), "full");
  recorder.request(request(2.7, 9.0, 0, kUnfinished), "over");
  recorder.request(request(3.0, 0.1, 0.01), "");  // behind the window
  const Records records = recorder.records();
  EXPECT_EQ(records.requests, 6u);
  EXPECT_EQ(records.good, 2u);
  EXPECT_EQ(records.errors.at("RESOURCE_EXHAUSTED"), 1u);
  EXPECT_EQ(records.error_examples.at("RESOURCE_EXHAUSTED"), "full");
  // What was refused has no latency; what never ended has at least what it had waited.
  EXPECT_EQ(records.ttft.count(), 5u);
  EXPECT_NEAR(records.ttft.max(), 9.0, 1e-6);
  EXPECT_EQ(records.points.size(), 8u);
  EXPECT_EQ(records.seconds[2].due, 5u);
}

TEST(RecorderTest, TokensCountWhenTheyCome) {
  Recorder recorder({.begin = 1, .end = 2}, {});
  recorder.first_tokens(0.5, 3, 100);
  recorder.first_tokens(1.5, 1, 10);
  recorder.tokens(1.6, 0.4, 0.1, 4);  // of a request that is not measured
  recorder.tokens(1.7, 1.5, 0.2, 2);
  recorder.tokens(2.5, 1.5, 0.8, 1);
  const Records records = recorder.records();
  EXPECT_EQ(records.tokens_in_window, 1u + 4 + 2);
  EXPECT_EQ(records.prompt_tokens_in_window, 10u);
  EXPECT_EQ(records.gap.count(), 3u);  // 0.2, 0 and 0.8
  EXPECT_EQ(records.gap.min(), 0);
  EXPECT_NEAR(records.gap.mean(), 1.0 / 3, 1e-9);
}

TEST(AxisTest, EndsAndTicksAreRound) {
  const Axis linear = Axis::linear("", 8.7);
  EXPECT_EQ(linear.high, 10);
  EXPECT_THAT(linear.ticks(), ElementsAre(0, 2, 4, 6, 8, 10));
  const Axis log = Axis::log("", 3, 45);
  EXPECT_EQ(log.low, 2);
  EXPECT_EQ(log.high, 50);
  EXPECT_THAT(log.ticks(), ElementsAre(2, 5, 10, 20, 50));
  EXPECT_EQ(log.position(2), 0);
  EXPECT_NEAR(log.position(10), 0.5, 1e-9);
  EXPECT_EQ(log.position(1000), 1);
  EXPECT_EQ(html_escape("<a & \"b\">"), "&lt;a &amp; &quot;b&quot;&gt;");
}

}  // namespace recurve::loadgen::loadgen_parts_test
