#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace recurve {

// Tells versions of a file apart.
struct FileStamp {
  uint64_t inode = 0, size = 0;
  int64_t changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

// All zeros for a file that cannot be found.
inline FileStamp stamp_of(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) return {};
  return {status.st_ino, static_cast<uint64_t>(status.st_size),
          int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

}  // namespace recurve
