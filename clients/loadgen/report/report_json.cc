#include "clients/loadgen/report/report_json.h"

#include <nlohmann/json.hpp>

namespace recurve::loadgen {
namespace {

using nlohmann::json;

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

json server_json(const ServerFacts& server) {
  return {{"address", server.address},
          {"version", server.version},
          {"model", server.model},
          {"family", server.family},
          {"parameters", server.parameters},
          {"weight_type", server.weight_type},
          {"weight_bytes", server.weight_bytes},
          {"state_bytes", server.state_bytes},
          {"backend", server.backend},
          {"slots", server.slots},
          {"max_queue", server.max_queue}};
}

json histogram_json(const Histogram& histogram) {
  json buckets = json::array();
  for (const auto& [low, high, count] : histogram.buckets()) {
    buckets.push_back({low * 1e3, high * 1e3, count});
  }
  return {{"count", histogram.count()},
          {"mean_ms", histogram.mean() * 1e3},
          {"p50_ms", histogram.quantile(0.5) * 1e3},
          {"p90_ms", histogram.quantile(0.9) * 1e3},
          {"p99_ms", histogram.quantile(0.99) * 1e3},
          {"max_ms", histogram.max() * 1e3},
          {"histogram", buckets}};
}

json timeline_json(const Records& records) {
  json timeline = json::array();
  for (size_t s = 0; s < records.seconds.size(); ++s) {
    const Second& second = records.seconds[s];
    timeline.push_back({{"second", s},
                        {"due", second.due},
                        {"ended", second.ended},
                        {"failed", second.failed},
                        {"tokens", second.tokens},
                        {"prompt_tokens", second.prompt_tokens}});
  }
  return timeline;
}

json client_json(const RunResult& result) {
  const ClientCost& client = result.client;
  json out = {{"cpu_cores", client.cpu_cores}, {"busiest_worker", client.busiest_worker}};
  const auto add = [&](const std::string& name, const Histogram& delays) {
    out[name + "_p99_ms"] = delays.quantile(0.99) * 1e3;
    out[name + "_max_ms"] = delays.max() * 1e3;
  };
  add("send_delay", result.records.send_delay);
  add("timer_lateness", client.timer_lateness);
  add("handling_delay", client.handling_delay);
  return out;
}

json trial_json(const Trial& trial, const ServiceLevel& level) {
  const Records& records = trial.result.records;
  json latency = json::object();
  for (const Metric& metric : kMetrics) {
    latency[metric.key] = histogram_json(records.*metric.histogram);
  }
  return {{"load", trial.load},
          {"rate", or_null(trial.rate)},
          {"streams", or_null(trial.streams)},
          {"window_s", {{"begin", trial.result.window.begin}, {"end", trial.result.window.end}}},
          {"requests",
           {{"measured", records.requests},
            {"good", records.good},
            {"failed", error_count(trial)},
            {"repeated", records.repeated},
            {"errors", json(records.errors)}}},
          {"throughput",
           {{"answers_per_s", request_rate(trial)},
            {"tokens_per_s", token_rate(trial)},
            {"prompt_tokens_per_s", prompt_token_rate(trial)},
            {"good_requests_per_s", goodput(trial)},
            {"good_share", good_share(trial)}}},
          {"holds_service_level", holds(trial, level)},
          {"latency", latency},
          {"timeline", timeline_json(records)},
          {"client", client_json(trial.result)},
          {"interrupted", trial.result.interrupted},
          {"warnings", warnings(trial)}};
}

}  // namespace

json to_json(const Report& report) {
  json trials = json::array();
  const ServiceLevel& level = report.options.level;
  for (const Trial& trial : report.trials) trials.push_back(trial_json(trial, level));
  json out = {{"format", 1},
              {"date", report.date},
              {"command", report.command},
              {"server", server_json(report.server)},
              {"workload", report.workload},
              {"service_level",
               {{"ttft_ms", level.ttft_seconds * 1e3}, {"tpot_ms", level.tpot_seconds * 1e3}}},
              {"warmup_s", report.options.warmup_seconds},
              {"duration_s", report.options.measured_seconds},
              {"trials", trials}};
  if (report.highest_rate) {
    out["sweep"] = {
        {"highest_rate", *report.highest_rate > 0 ? json(*report.highest_rate) : json()},
        {"overload_trial", or_null(report.overload_trial)}};
  }
  return out;
}

}  // namespace recurve::loadgen
