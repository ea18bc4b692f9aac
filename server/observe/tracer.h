#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "server/observe/metrics.h"
#include "server/observe/otlp.h"
#include "server/observe/trace.h"

namespace recurve {

struct TracerOptions {
  OtlpTarget target = {};
  OtlpSource source = {};
  // Sampling ratio of calls without a trace context, [0, 1]. A trace context has its own flag.
  double ratio = 1;
};

// Sends spans to a collector on a separate thread; record() does not wait. Spans that the collector
// does not accept are sent again. If more than kMostSpans wait, new ones are dropped and counted:
// recurve_trace_spans_total{result}. Thread-safe.
class Tracer {
 public:
  static constexpr size_t kMostSpans = 16384;
  static constexpr size_t kBatch = 512;  // spans per request

  Tracer(TracerOptions options, Metrics& metrics);  // metrics outlives it
  // Tries once to send the waiting spans.
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // Whether to trace a call without a trace context.
  bool begins_trace() const;
  void record(std::vector<TraceSpan> spans);

 private:
  void run();
  bool await_batch(std::vector<TraceSpan>* batch);
  bool send(const std::vector<TraceSpan>& batch);
  bool sleep_for(std::chrono::milliseconds time);

  const TracerOptions options_;
  Metrics& metrics_;
  bool failing_ = false;  // used by the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TraceSpan> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace recurve
