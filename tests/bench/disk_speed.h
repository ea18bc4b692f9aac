#pragma once
#include <cstddef>
#include <filesystem>
#include <functional>

namespace recurve::bench {

// What this machine does with so many bytes, in memory and in a folder: seconds, medians.
struct DiskSpeed {
  double copy = 0;        // memcpy
  double cached = 0;      // a read of a file in the page cache
  double cold = 0;        // a read from the disk
  double sync = 0;        // a write behind a file's end, and its sync
  double small_sync = 0;  // the same of 512 bytes
};
// rounds: of each. The folder is as it was afterwards.
DiskSpeed measure_disk_speed(const std::filesystem::path& folder, size_t bytes, int rounds);

// What the page cache has of the folder's files goes, once the disk has it.
void drop_from_cache(const std::filesystem::path& folder);

// Of so many times. before: what comes before each of them, and is not counted; or none.
double median_seconds(int times, const std::function<void()>& act,
                      const std::function<void()>& before = {});

}  // namespace recurve::bench
