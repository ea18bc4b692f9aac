#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

namespace recurve::bench {

// Collects rows of named values and prints them: aligned columns, or one JSON object a line.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  // A JSON row is printed at once.
  void add(nlohmann::ordered_json row);
  // Prints the table.
  ~Report();

 private:
  const bool json_;
  std::vector<nlohmann::ordered_json> rows_;
};

// Median of the values; 0 of none.
double median(std::vector<double> values);
// The q-quantile, q in [0, 1].
double quantile(std::vector<double> values, double q);

// Seconds of the processor that this process has had until now, on all its threads.
double cpu_seconds();
// Bytes of its memory that are resident.
int64_t resident_bytes();

}  // namespace recurve::bench
