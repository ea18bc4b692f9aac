#pragma once
#include "server/observe/metric_group.h"

namespace recurve {

// What Prometheus' client libraries tell of every process, under their names and in their units:
// process_cpu_seconds_total, process_start_time_seconds, process_resident_memory_bytes,
// process_virtual_memory_bytes, process_open_fds, process_max_fds. Read from /proc by update(), one
// call at a time; without /proc they stay zero.
class ProcessMetrics {
 public:
  explicit ProcessMetrics(const MetricGroup& of);
  void update() const;

 private:
  prometheus::Counter& cpu_;
  prometheus::Gauge &start_, &resident_, &virtual_, &open_, &most_open_;
};

}  // namespace recurve
