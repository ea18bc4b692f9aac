#include "clients/loadgen/recorder.h"

#include <algorithm>

namespace recurve::loadgen {
namespace {

// The server did not answer in the time it had: what was waited so far is a lower bound.
bool waited_in_vain(const RequestRecord& record) {
  return record.error == kUnfinished || record.error == "DEADLINE_EXCEEDED";
}

}  // namespace

bool is_good(const RequestRecord& record, const ServiceLevel& level) {
  return record.error.empty() && record.ttft() <= level.ttft_seconds &&
         record.tpot <= level.tpot_seconds;
}

void Records::merge(const Records& other) {
  ttft.merge(other.ttft);
  tpot.merge(other.tpot);
  gap.merge(other.gap);
  total.merge(other.total);
  queue.merge(other.queue);
  prefill.merge(other.prefill);
  send_delay.merge(other.send_delay);
  requests += other.requests;
  good += other.good;
  for (const auto& [code, count] : other.errors) errors[code] += count;
  error_examples.insert(other.error_examples.begin(), other.error_examples.end());
  tokens_in_window += other.tokens_in_window;
  prompt_tokens_in_window += other.prompt_tokens_in_window;
  ended_in_window += other.ended_in_window;
  repeated += other.repeated;
  seconds.resize(std::max(seconds.size(), other.seconds.size()));
  for (size_t i = 0; i < other.seconds.size(); ++i) {
    seconds[i].due += other.seconds[i].due;
    seconds[i].ended += other.seconds[i].ended;
    seconds[i].failed += other.seconds[i].failed;
    seconds[i].prompt_tokens += other.seconds[i].prompt_tokens;
    seconds[i].tokens += other.seconds[i].tokens;
  }
  points.insert(points.end(), other.points.begin(), other.points.end());
}

void Recorder::repeated(double due) {
  std::lock_guard lock(mutex_);
  if (window_.holds(due)) ++records_.repeated;
}

void Recorder::tokens(double now, double due, double gap, uint64_t count) {
  std::lock_guard lock(mutex_);
  second(now).tokens += count;
  progress_.tokens += count;
  if (window_.holds(now)) records_.tokens_in_window += count;
  if (!window_.holds(due)) return;
  records_.gap.record(gap);
  records_.gap.record(0, count - 1);
}

void Recorder::first_tokens(double now, uint64_t count, int64_t prompt_tokens) {
  std::lock_guard lock(mutex_);
  second(now).tokens += count;
  second(now).prompt_tokens += static_cast<uint64_t>(prompt_tokens);
  progress_.tokens += count;
  if (!window_.holds(now)) return;
  records_.tokens_in_window += count;
  records_.prompt_tokens_in_window += static_cast<uint64_t>(prompt_tokens);
}

void Recorder::request(const RequestRecord& record, const std::string& sentence) {
  // The end of the run cuts off what the load that went on behind the window was doing.
  if (record.error == kUnfinished && !window_.holds(record.due)) return;
  std::lock_guard lock(mutex_);
  const bool failed = !record.error.empty();
  ++(failed ? progress_.failed : progress_.ended);
  ++(failed ? second(record.end).failed : second(record.end).ended);
  ++second(record.due).due;
  records_.points.push_back({static_cast<float>(record.due), static_cast<float>(record.ttft()),
                             is_good(record, level_), failed});
  if (!failed && window_.holds(record.end)) ++records_.ended_in_window;
  if (!window_.holds(record.due)) return;
  record_outcome(record, sentence);
  record_latencies(record);
}

void Recorder::overdue(double due, double end) {
  request({.due = due, .sent = end, .first = end, .end = end, .error = kUnfinished},
          "the run ended before the load generator had sent it");
}

void Recorder::record_outcome(const RequestRecord& record, const std::string& sentence) {
  ++records_.requests;
  if (is_good(record, level_)) ++records_.good;
  if (record.error.empty()) return;
  ++records_.errors[record.error];
  records_.error_examples.emplace(record.error, sentence);
}

void Recorder::record_latencies(const RequestRecord& record) {
  if (record.error != kNotSent) records_.send_delay.record(record.sent - record.due);
  if (record.error.empty() || waited_in_vain(record)) {
    records_.ttft.record(record.ttft());
    records_.total.record(record.end - record.due);
    if (record.has_tpot) records_.tpot.record(record.tpot);
  }
  if (!record.error.empty()) return;
  records_.queue.record(record.queue_seconds);
  records_.prefill.record(record.prefill_seconds);
}

Second& Recorder::second(double time) {
  const auto index = static_cast<size_t>(std::max(0.0, time));
  if (index >= records_.seconds.size()) records_.seconds.resize(index + 1);
  return records_.seconds[index];
}

Records Recorder::records() const {
  std::lock_guard lock(mutex_);
  return records_;
}

Progress Recorder::progress() const {
  std::lock_guard lock(mutex_);
  Progress progress = progress_;
  progress.ttft_p99 = records_.ttft.quantile(0.99);
  return progress;
}

}  // namespace recurve::loadgen
