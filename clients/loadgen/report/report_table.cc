#include "clients/loadgen/report/report_table.h"

#include <fmt/format.h>

#include <iterator>

namespace recurve::loadgen {
namespace {

void append_latencies(std::string& text, const Records& records) {
  if (records.requests == 0) return;
  text += fmt::format("  {:<14}{:>9}{:>9}{:>9}{:>9}{:>9}   {}\n", "milliseconds", "mean", "p50",
                      "p90", "p99", "max", "what it is");
  for (const Metric& metric : kMetrics) {
    const Histogram& h = records.*metric.histogram;
    if (h.count() == 0) continue;
    text += fmt::format("  {:<14}{:>9}{:>9}{:>9}{:>9}{:>9}   {}\n", metric.title, ms(h.mean()),
                        ms(h.quantile(0.5)), ms(h.quantile(0.9)), ms(h.quantile(0.99)), ms(h.max()),
                        metric.meaning);
  }
}

void append_errors(std::string& text, const Records& records) {
  for (const auto& [code, count] : records.errors) {
    text +=
        fmt::format("  failed        {} x {}: {}\n", count, code, records.error_examples.at(code));
  }
}

std::string client_text(const RunResult& result) {
  const ClientCost& client = result.client;
  return fmt::format(
      "  client        sent {} ms late (p99, at most {}); a message waited {} ms (p99, at most "
      "{}); "
      "{:.2f} cores, busiest thread {:.0f} %\n",
      ms(result.records.send_delay.quantile(0.99)), ms(result.records.send_delay.max()),
      ms(client.handling_delay.quantile(0.99)), ms(client.handling_delay.max()), client.cpu_cores,
      100 * client.busiest_worker);
}

std::string level_text(const ServiceLevel& level) {
  return fmt::format("TTFT <= {} ms and TPOT <= {} ms", ms(level.ttft_seconds),
                     ms(level.tpot_seconds));
}

}  // namespace

std::string head_text(const Report& report) {
  return fmt::format("server    {}: {}\nworkload  {}\n", report.server.address,
                     describe(report.server), report.workload);
}

std::string trial_text(const Trial& trial, const RunOptions& options) {
  const RunResult& result = trial.result;
  const Records& records = result.records;
  const uint64_t errors = error_count(trial);
  std::string text = fmt::format("\n{}; measured {:.1f} s after {:g} s of warm-up\n", trial.load,
                                 result.window.end - result.window.begin, result.window.begin);
  text += fmt::format("  requests      {} measured, {} failed; {:.2f} answers/s\n",
                      records.requests, errors, request_rate(trial));
  if (records.repeated > 0) {
    text +=
        fmt::format("  repeated      {} attempts at turns of durable sessions\n", records.repeated);
  }
  text += fmt::format("  tokens        {:.1f}/s generated, {:.1f}/s of prompts\n",
                      token_rate(trial), prompt_token_rate(trial));
  if (!only_rates(trial)) {
    text += fmt::format("  goodput       {:.2f} requests/s, {:.1f} % of them, within {}\n",
                        goodput(trial), 100 * good_share(trial), level_text(options.level));
  }
  append_latencies(text, records);
  append_errors(text, records);
  text += client_text(result);
  for (const std::string& warning : warnings(trial)) {
    text += fmt::format("  warning: {}\n", warning);
  }
  return text;
}

std::string sweep_text(const Report& report) {
  std::string text =
      fmt::format("\n{:>10}{:>12}{:>10}{:>12}{:>12}{:>12}{:>9}   held\n", "rate /s", "answers /s",
                  "good /s", "tokens /s", "TTFT p99", "TPOT p99", "failed");
  for (const Trial& trial : report.trials) {
    const Records& records = trial.result.records;
    text +=
        fmt::format("{:>10.2f}{:>12.2f}{:>10.2f}{:>12.0f}{:>9} ms{:>9} ms{:>9}   {}\n",
                    trial.rate.value_or(0), request_rate(trial), goodput(trial), token_rate(trial),
                    ms(records.ttft.quantile(0.99)), ms(records.tpot.quantile(0.99)),
                    error_count(trial), holds(trial, report.options.level) ? "yes" : "no");
  }
  const std::string level = level_text(report.options.level);
  if (report.highest_rate.value_or(0) > 0) {
    text += fmt::format("highest rate with p99 {}: {:.2f} conversations/s\n", level,
                        *report.highest_rate);
  } else {
    text += fmt::format("no rate that was tried held p99 {}\n", level);
  }
  return text;
}

std::string progress_text(const RunProgress& p) {
  const double planned = p.options.warmup_seconds + p.options.measured_seconds;
  const char* phase = p.now < p.options.warmup_seconds ? "warm-up"
                      : p.now < planned                ? "measuring"
                                                       : "last answers";
  return fmt::format(
      "{:5.1f} of {:g} s, {}: {} answered, {} failed, {} running, {} tokens, "
      "TTFT p99 {} ms",
      p.now, planned, phase, p.seen.ended, p.seen.failed, p.running, p.seen.tokens,
      ms(p.seen.ttft_p99));
}

}  // namespace recurve::loadgen
