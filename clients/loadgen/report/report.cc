#include "clients/loadgen/report/report.h"

#include <fmt/format.h>

#include <cmath>

namespace recurve::loadgen {

const std::array<Metric, 6> kMetrics = {{
    {"ttft", "TTFT", "from when the request was due to be sent to its first token", &Records::ttft},
    {"tpot", "TPOT", "mean time between the tokens of an answer", &Records::tpot},
    {"inter_token", "inter-token", "each gap between two tokens; 0 where they came together",
     &Records::gap},
    {"end_to_end", "end to end", "from when the request was due to the end of its answer",
     &Records::total},
    {"queue", "queue", "as the server reports it: from arrival to the first step", &Records::queue},
    {"prefill", "prefill", "as the server reports it: from the first step to the first token",
     &Records::prefill},
}};

namespace {

double window_seconds(const Trial& trial) {
  return std::max(trial.result.window.end - trial.result.window.begin, 1e-9);
}
double per_second(const Trial& trial, uint64_t count) {
  return static_cast<double>(count) / window_seconds(trial);
}

constexpr double kFewRequests = 100;    // below them a 99th percentile is one of the largest
constexpr double kLateSeconds = 0.005;  // of sending, timers and handling
constexpr double kBusyShare = 0.8;      // of a core, by one thread

}  // namespace

double request_rate(const Trial& trial) {
  return per_second(trial, trial.result.records.ended_in_window);
}
double token_rate(const Trial& trial) {
  return per_second(trial, trial.result.records.tokens_in_window);
}
double prompt_token_rate(const Trial& trial) {
  return per_second(trial, trial.result.records.prompt_tokens_in_window);
}
double goodput(const Trial& trial) { return per_second(trial, trial.result.records.good); }

double good_share(const Trial& trial) {
  const Records& records = trial.result.records;
  if (records.requests == 0) return 0;
  return static_cast<double>(records.good) / static_cast<double>(records.requests);
}

uint64_t error_count(const Trial& trial) {
  uint64_t sum = 0;
  for (const auto& [code, count] : trial.result.records.errors) sum += count;
  return sum;
}

bool only_rates(const Trial& trial) {
  const Records& records = trial.result.records;
  return records.requests == 0 && records.tokens_in_window > 0;
}

bool holds(const Trial& trial, const ServiceLevel& level) {
  const Records& records = trial.result.records;
  return records.requests > 0 && error_count(trial) * 100 <= records.requests &&
         records.ttft.quantile(0.99) <= level.ttft_seconds &&
         records.tpot.quantile(0.99) <= level.tpot_seconds;
}

std::vector<std::string> warnings(const Trial& trial) {
  const Records& records = trial.result.records;
  const ClientCost& client = trial.result.client;
  std::vector<std::string> found;
  const auto late = [&](const Histogram& delays, const char* what, const char* advice) {
    if (delays.quantile(0.99) <= kLateSeconds) return;
    found.push_back(fmt::format("{}: p99 {} ms, at most {} ms. {}", what, ms(delays.quantile(0.99)),
                                ms(delays.max()), advice));
  };
  if (trial.result.interrupted) {
    found.push_back("the run was interrupted: the figures are of the time until then");
  }
  if (only_rates(trial)) {
    found.push_back(
        "no request was due in the measured time, as the answers last longer: the token rates "
        "hold, but there are no latencies. Measure longer (--duration) to have them");
  } else if (records.requests < kFewRequests) {
    found.push_back(
        fmt::format("only {} requests were measured, so p99 is one of the largest of "
                    "them: measure longer (--duration)",
                    records.requests));
  }
  late(records.send_delay, "requests went out late",
       "The latencies include it: give the load generator a separate core");
  late(client.timer_lateness, "this machine ran the load generator's timer late",
       "Its delays are in the figures: give it a separate core, or another machine");
  late(client.handling_delay, "messages waited in the load generator",
       "The latencies include it: use more threads (--workers)");
  if (client.busiest_worker > kBusyShare) {
    found.push_back(
        fmt::format("the busiest thread of the load generator used {:.0f} % of a core: "
                    "use more (--workers), or the client may be what is measured",
                    100 * client.busiest_worker));
  }
  return found;
}

std::string ms(double seconds) {
  const double value = seconds * 1e3;
  if (value == 0) return "0";
  const int digits = std::max(0, 2 - static_cast<int>(std::floor(std::log10(value))));
  return fmt::format("{:.{}f}", value, std::min(digits, 4));
}

}  // namespace recurve::loadgen
