#pragma once
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace recurve {

using MetricLabels = std::map<std::string, std::string>;

// Metrics with the same labels, which may share their families with other groups of the registry.
struct MetricGroup {
  prometheus::Registry& registry;
  MetricLabels labels = {};
  // What removes each series of the group from its family; null: they stay.
  std::vector<std::function<void()>>* removals = nullptr;

  prometheus::Family<prometheus::Counter>& counter_family(const char* name,
                                                          const char* help) const {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<prometheus::Gauge>& gauge_family(const char* name, const char* help) const {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<prometheus::Histogram>& histogram_family(const char* name,
                                                              const char* help) const {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }
  prometheus::Counter& counter(const char* name, const char* help) const {
    return add(counter_family(name, help), labels);
  }
  prometheus::Gauge& gauge(const char* name, const char* help) const {
    return add(gauge_family(name, help), labels);
  }
  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const prometheus::Histogram::BucketBoundaries& buckets) const {
    return add(histogram_family(name, help), labels, buckets);
  }

  template <typename Metric, typename... Args>
  Metric& add(prometheus::Family<Metric>& family, const MetricLabels& of,
              const Args&... args) const {
    Metric& metric = family.Add(of, args...);
    if (removals != nullptr) removals->push_back([&] { family.Remove(&metric); });
    return metric;
  }
  MetricLabels with(const char* label, const std::string& value) const {
    MetricLabels all = labels;
    all[label] = value;
    return all;
  }
  // A series of the family for each value of its label.
  template <typename Metric, size_t N, typename... Args>
  std::array<Metric*, N> add_series(prometheus::Family<Metric>& family, const char* label,
                                    const std::array<const char*, N>& values,
                                    const Args&... args) const {
    std::array<Metric*, N> all;
    for (size_t i = 0; i < N; ++i) all[i] = &add(family, with(label, values[i]), args...);
    return all;
  }
  template <size_t N>
  std::array<prometheus::Counter*, N> counters(const char* name, const char* help,
                                               const char* label,
                                               const std::array<const char*, N>& values) const {
    return add_series(counter_family(name, help), label, values);
  }
  template <size_t N>
  std::array<prometheus::Gauge*, N> gauges(const char* name, const char* help, const char* label,
                                           const std::array<const char*, N>& values) const {
    return add_series(gauge_family(name, help), label, values);
  }
};

inline const prometheus::Histogram::BucketBoundaries kRequestSeconds = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500};

inline const prometheus::Histogram::BucketBoundaries kTokenSeconds = {
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03,
    0.05,   0.075,   0.1,    0.15,  0.25,   0.5,   1,    2.5,  5};

// One thread at a time.
inline void count_up_to(prometheus::Counter& counter, int64_t count) {
  counter.Increment(static_cast<double>(count) - counter.Value());
}

}  // namespace recurve
