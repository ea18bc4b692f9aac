#include "kernels/host.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <string>

namespace recurve {
namespace {

namespace fs = std::filesystem;
constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();

// The number behind the word in a file of the system, or with no word the first thing there;
// nothing if that is no number ("max"), or negative (v1's word for no quota).
std::optional<uint64_t> number_after(const fs::path& path, const std::string& word) {
  std::ifstream file(path);
  std::string found;
  while (!word.empty() && file >> found && found != word) {
  }
  int64_t number = -1;
  if (!(file >> number) || number < 0) return std::nullopt;
  return static_cast<uint64_t>(number);
}
std::optional<uint64_t> number_in(const fs::path& path) { return number_after(path, ""); }

// Calls `look` with the folder of each control group that this process is in, of the controller,
// from the innermost outwards. In a container the path may be one of the host's, of which only the
// end, or nothing, is to be seen.
void for_each_group(const fs::path& root, const std::string& controller,
                    const std::function<void(const fs::path&)>& look) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/a/b", v2: "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos)
      continue;
    const fs::path mount = root / "sys/fs/cgroup" / controllers;
    for (fs::path group = fs::path(line.substr(second + 1)).lexically_normal();;
         group = group.parent_path()) {
      const fs::path folder = mount / group.relative_path();
      if (fs::is_directory(folder)) look(folder);
      if (!group.has_relative_path()) break;
    }
  }
}

// What the group leaves; both versions' files, of which a group has one kind.
size_t free_in(const fs::path& group) {
  struct Files {
    const char *limit, *used, *files_word;
  };
  size_t free = kUnlimited;
  for (const Files& files :
       {Files{"memory.max", "memory.current", "inactive_file"},
        Files{"memory.high", "memory.current", "inactive_file"},
        Files{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}}) {
    const auto limit = number_in(group / files.limit);
    if (!limit) continue;
    const uint64_t used = number_in(group / files.used).value_or(0);
    const uint64_t cached = number_after(group / "memory.stat", files.files_word).value_or(0);
    const uint64_t held = used - std::min(used, cached);
    free = std::min<size_t>(free, *limit - std::min(*limit, held));
  }
  return free;
}

// Cores; v2 has quota and period in one file.
std::optional<double> quota_of(const fs::path& group) {
  std::ifstream file(group / "cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && period > 0) return quota / period;
  const auto v1_quota = number_in(group / "cpu.cfs_quota_us");
  const auto v1_period = number_in(group / "cpu.cfs_period_us");
  if (!v1_quota || v1_period.value_or(0) == 0) return std::nullopt;
  return static_cast<double>(*v1_quota) / static_cast<double>(*v1_period);
}

// What a resource limit leaves of what the process has already.
size_t left_of(int resource, const fs::path& status, const char* word) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return kUnlimited;
  if (limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  const uint64_t used = number_after(status, word).value_or(0) << 10;
  return limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used);
}

// Cores of which this process may use a hardware thread. Where the system does not say which of
// these share a core, each has one.
int cores(const fs::path& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  std::set<std::string> found;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    const std::string folder = "cpu" + std::to_string(cpu);
    std::ifstream file(root / "sys/devices/system/cpu" / folder / "topology/thread_siblings_list");
    std::string siblings;  // "0,64": the same for all of a core
    found.insert(file >> siblings ? siblings : folder);
  }
  return static_cast<int>(found.size());
}

}  // namespace

size_t free_host_memory(const fs::path& root) {
  size_t free = kUnlimited;
  if (const auto available = number_after(root / "proc/meminfo", "MemAvailable:")) {
    free = *available << 10;
  }
  for_each_group(root, "memory",
                 [&](const fs::path& group) { free = std::min(free, free_in(group)); });
  const fs::path status = root / "proc/self/status";
  free = std::min(free, left_of(RLIMIT_AS, status, "VmSize:"));
  return std::min(free, left_of(RLIMIT_DATA, status, "VmData:"));
}

int host_threads(const fs::path& root) {
  double most = cores(root);
  for_each_group(root, "cpu", [&](const fs::path& group) {
    most = std::min(most, quota_of(group).value_or(most));
  });
  return std::max(1, static_cast<int>(std::floor(most)));
}

}  // namespace recurve
