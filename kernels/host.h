#pragma once
#include <cstddef>
#include <filesystem>

namespace recurve {

// What this process may still take of the machine it runs on: the least of what the system has and
// of what control groups (v1, v2 and both at once, each with all that it lies in), resource limits
// and the set of its cores leave it. Read anew by every call. root: where /proc and /sys are, for
// tests.

// Bytes, files that the system only caches not counted.
size_t free_host_memory(const std::filesystem::path& root = "/");

// At least 1. Of a share of a core nothing is counted: threads that wait for each other in short
// turns would all stand still once the quota of a period is used up.
int host_threads(const std::filesystem::path& root = "/");

}  // namespace recurve
