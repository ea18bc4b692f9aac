#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "server/observe/metrics.h"
#include "server/observe/otlp.h"
#include "server/observe/trace_span.h"

namespace recurve {

struct TracerOptions {
  OtlpTarget target = {};
  OtlpSource source = {};
  // Of calls whose client has no trace, the part that begins one, [0, 1]. A client that has one
  // decides for itself.
  double ratio = 1;
};

// Sends spans to a collector, from a thread of its own: whoever records one waits for nothing. What
// the collector does not take waits and is sent again; where more than kMostSpans wait, further
// ones are dropped, and counted: recurve_trace_spans_total{result}. Thread-safe.
class Tracer {
 public:
  static constexpr size_t kMostSpans = 16384;
  static constexpr size_t kBatch = 512;  // spans a request

  Tracer(TracerOptions options, Metrics& metrics);  // which outlives it
  // Tries once to send what waits.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Whether a call is traced whose client says nothing of it.
  bool begins_trace() const;
  void record(std::vector<TraceSpan> spans);

 private:
  void run();
  bool await_batch(std::vector<TraceSpan>* batch);
  bool send(const std::vector<TraceSpan>& batch);
  bool sleep_for(std::chrono::milliseconds time);

  const TracerOptions options_;
  Metrics& metrics_;
  bool failing_ = false;  // of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TraceSpan> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace recurve
