#pragma once
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <string>

namespace recurve {

// Metrics with the same constant labels, and their families in the registry.
struct MetricGroup {
  prometheus::Registry& registry;
  std::map<std::string, std::string> labels = {};

  prometheus::Family<prometheus::Counter>& counter_family(const char* name,
                                                          const char* help) const {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(labels).Register(registry);
  }
  prometheus::Family<prometheus::Gauge>& gauge_family(const char* name, const char* help) const {
    return prometheus::BuildGauge().Name(name).Help(help).Labels(labels).Register(registry);
  }
  prometheus::Family<prometheus::Histogram>& histogram_family(const char* name,
                                                              const char* help) const {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(labels).Register(registry);
  }
  prometheus::Counter& counter(const char* name, const char* help) const {
    return counter_family(name, help).Add({});
  }
  prometheus::Gauge& gauge(const char* name, const char* help) const {
    return gauge_family(name, help).Add({});
  }
};

}  // namespace recurve
