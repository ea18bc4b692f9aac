#include "tests/bench/report.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

namespace recurve::bench {
namespace {

std::string cell(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_float()) return value.dump();
  const double number = value.get<double>();
  return std::abs(number) >= 1000 ? fmt::format("{:.0f}", number) : fmt::format("{:.4g}", number);
}

}  // namespace

void Report::add(nlohmann::ordered_json row) {
  if (json_) {
    fmt::print("{}\n", row.dump());
    std::fflush(stdout);
  } else {
    rows_.push_back(std::move(row));
  }
}

Report::~Report() {
  std::vector<std::string> columns;
  std::map<std::string, size_t> width;
  for (const auto& row : rows_) {
    for (const auto& [name, value] : row.items()) {
      if (!width.contains(name)) columns.push_back(name), width[name] = name.size();
      width[name] = std::max(width[name], cell(value).size());
    }
  }
  for (const auto& name : columns) fmt::print("{:>{}}  ", name, width[name]);
  if (!columns.empty()) fmt::print("\n");
  for (const auto& row : rows_) {
    for (const auto& name : columns) {
      fmt::print("{:>{}}  ", row.contains(name) ? cell(row[name]) : "", width[name]);
    }
    fmt::print("\n");
  }
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const size_t at = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t resident_bytes() {
  int64_t all = 0, resident = 0;  // pages
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace recurve::bench
