#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "clients/loadgen/report/histogram.h"

namespace recurve::loadgen {

// What an answer may take to count as good.
struct ServiceLevel {
  double ttft_seconds = 0.5;
  double tpot_seconds = 0.03;
};

// A request that has ended, one way or the other. Times are seconds since the start of the run.
struct RequestRecord {
  double due = 0;    // when it was to be sent
  double sent = 0;   // when it was
  double first = 0;  // its first token; where none came, its end
  double end = 0;    // its last message or status
  double tpot = 0;   // of its slowest answer; 0 where none has two tokens
  int64_t prompt_tokens = 0;
  double queue_seconds = 0;    // as the server reports them
  double prefill_seconds = 0;  //
  bool has_first = false;      // a token came
  bool has_tpot = false;
  std::string error;  // empty, or a status code's name, or kUnfinished, kNotSent

  double ttft() const { return first - due; }
};

// Cancelled by the load generator, or not sent yet, for the run was over.
inline constexpr const char* kUnfinished = "UNFINISHED";
// Never sent: so many were under way already.
inline constexpr const char* kNotSent = "NOT_SENT";

bool is_good(const RequestRecord& record, const ServiceLevel& level);

// The part of the run that is measured: requests that were due in it, tokens that came in it.
struct Window {
  double begin = 0, end = 0;
  bool holds(double time) const { return time >= begin && time < end; }
};

// What happened in one second of the run.
struct Second {
  uint64_t due = 0;            // requests that were due, whatever became of them
  uint64_t ended = 0;          // with an answer
  uint64_t failed = 0;         // in any other way
  uint64_t prompt_tokens = 0;  // of prompts whose first token of an answer came
  uint64_t tokens = 0;         // generated tokens that came
};

// One point of the timeline.
struct Point {
  float due, ttft;  // seconds
  bool good, failed;
};

// All that was seen. Requests that never ended count in the latencies with the time until the run
// was over, so that a server that answers nothing does not look fast; refused ones do not.
struct Records {
  Histogram ttft, tpot, gap, total, queue, prefill, send_delay;  // of requests in the window
  uint64_t requests = 0;                                         // in the window
  uint64_t good = 0;
  std::map<std::string, uint64_t> errors;  // those in the window by code
  std::map<std::string, std::string> error_examples;
  uint64_t tokens_in_window = 0;  // that came in it, of whatever request
  uint64_t prompt_tokens_in_window = 0;
  uint64_t ended_in_window = 0;  // with an answer
  uint64_t repeated = 0;         // attempts at turns of durable sessions that were repeated
  std::vector<Second> seconds;
  std::vector<Point> points;

  void merge(const Records& other);
};

// For a line while it runs.
struct Progress {
  uint64_t ended = 0, failed = 0, tokens = 0;  // so far
  double ttft_p99 = 0;                         // of the measured ones so far
};

// Takes what happens, from any thread.
class Recorder {
 public:
  Recorder(Window window, ServiceLevel level) : window_(window), level_(level) {}

  const Window& window() const { return window_; }

  // `count` tokens of an answer came at `now`, `gap` seconds after those before them, of a request
  // that was due at `due`. The first of a message has the gap, the others came with it.
  void tokens(double now, double due, double gap, uint64_t count);
  // The first tokens of an answer; `prompt_tokens` is not 0 for the first of a request.
  void first_tokens(double now, uint64_t count, int64_t prompt_tokens);
  void request(const RequestRecord& record, const std::string& sentence);
  // An attempt at a request that was due at `due` failed, and is repeated.
  void repeated(double due);
  // A request that was due at `due` and not sent when the run ended, at `end`: it has waited until
  // then, as what was sent and not answered.
  void overdue(double due, double end);

  Records records() const;
  Progress progress() const;

 private:
  void record_latencies(const RequestRecord& record);
  void record_outcome(const RequestRecord& record, const std::string& sentence);
  Second& second(double time);

  const Window window_;
  const ServiceLevel level_;
  mutable std::mutex mutex_;
  Records records_;
  Progress progress_;
};

}  // namespace recurve::loadgen
