#include "server/observe/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

#include "server/observe/process_memory.h"

namespace recurve {
namespace {

// Clock ticks since the start of the machine at which the process started: field 22 of its stat.
// The second field is a name in parentheses, which may have any characters.
double start_ticks() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  fields >> ticks;
  return ticks;
}

// When the machine started, in seconds since 1970.
double boot_time() {
  std::ifstream file("/proc/stat");
  for (std::string name; file >> name; file.ignore(1 << 20, '\n')) {
    double seconds = 0;
    if (name == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

ProcessMetrics::ProcessMetrics(const MetricGroup& of)
    : cpu_(of.counter("process_cpu_seconds_total",
                      "Processor time of the process, user and system")),
      start_(of.gauge("process_start_time_seconds",
                      "When the process started, in seconds since 1970")),
      resident_(of.gauge("process_resident_memory_bytes", "Resident memory of the process")),
      virtual_(of.gauge("process_virtual_memory_bytes", "Address space of the process")),
      open_(of.gauge("process_open_fds", "Open file descriptors")),
      most_open_(of.gauge("process_max_fds", "Limit of open file descriptors")) {
  const double ticks = start_ticks();
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (ticks > 0) start_.Set(boot_time() + ticks / ticks_per_second);
}

void ProcessMetrics::update() const {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const double seconds = seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
  cpu_.Increment(std::max(0.0, seconds - cpu_.Value()));

  const ProcessMemory memory = process_memory();
  virtual_.Set(static_cast<double>(memory.address_space));
  resident_.Set(static_cast<double>(memory.resident));

  std::error_code none;
  const auto files = std::filesystem::directory_iterator("/proc/self/fd", none);
  open_.Set(static_cast<double>(std::distance(begin(files), end(files))));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  most_open_.Set(static_cast<double>(limit.rlim_cur));
}

}  // namespace recurve
