#include "server/startup/model_root.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <utility>

#include "server/text/cut.h"

namespace recurve {
namespace {

constexpr size_t kMostBytes = 1024;   // of a path
constexpr int kMostEntries = 10'000;  // of the directory of a checkpoint

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

// glibc has no function for it.
File open_beneath(int root, const std::string& path, int flags, uint64_t further) {
  const open_how how{.flags = static_cast<uint64_t>(flags | O_CLOEXEC),
                     .mode = 0,
                     .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | further};
  return File(static_cast<int>(syscall(SYS_openat2, root, path.c_str(), &how, sizeof how)));
}

bool is_printable(const std::string& path) {
  return std::ranges::none_of(path, [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

int open_root(const std::string& folder) {
  const int root = open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root >= 0) return root;
  throw std::runtime_error(
      fmt::format("--model-root {}: wanted a directory: {}", folder, std::strerror(errno)));
}

}  // namespace

ModelRoot::ModelRoot(const std::string& folder)
    : folder_(std::filesystem::absolute(folder).string()), root_(open_root(folder)) {}

ModelRoot::~ModelRoot() { close(root_); }

Refused ModelRoot::find(const std::string& below, std::string* path) const {
  if (below.empty() || below.size() > kMostBytes || !is_printable(below)) {
    return invalid("path", "path must have 1 to {} bytes without control characters", kMostBytes);
  }
  const File directory = open_beneath(root_, below, O_RDONLY | O_DIRECTORY, RESOLVE_NO_SYMLINKS);
  if (!directory.is_open()) return refusal(below, errno);
  if (Refused refused = check_entries(below, directory.get())) return refused;
  *path = (std::filesystem::path(folder_) / below).string();
  return {};
}

Refused ModelRoot::check_entries(const std::string& below, int directory) const {
  File copy(dup(directory));
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(copy.get()), closedir);
  if (entries == nullptr) return refusal(below, errno);
  copy.release();
  int count = 0;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (++count > kMostEntries) {
      return invalid("path", "path {}: a checkpoint has at most {} files", cut(below),
                     kMostEntries);
    }
    const File file = open_beneath(root_, below + "/" + name, O_PATH, 0);
    struct stat status{};
    const bool exists = file.is_open() && fstat(file.get(), &status) == 0;
    if (!exists && errno == EXDEV) {
      return invalid("path", "path {}: the link {} leads out of --model-root", cut(below),
                     cut(name));
    }
    if (exists && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
      return invalid("path", "path {}: {} is neither a file nor a directory", cut(below),
                     cut(name));
    }
  }
  return {};
}

Refused ModelRoot::refusal(const std::string& below, int error) const {
  struct stat status{};
  if (fstat(root_, &status) == 0 && status.st_nlink == 0) {
    return refuse(EndReason::kNotLoaded,
                  fmt::format("the folder of --model-root, {}, was removed: restore it and start "
                              "the server again",
                              folder_));
  }
  switch (error) {
    case EXDEV:
      return invalid("path", "path must be below --model-root, got {}", cut(below));
    case ELOOP:
      return invalid("path", "path must have no symbolic link, got {}", cut(below));
    case ENOENT:
    case ENOTDIR:
      return Refusal{.reason = EndReason::kNotFound,
                     .message = fmt::format("--model-root has no directory {}", cut(below)),
                     .field = "path"};
    case ENOSYS:
    case EPERM:
      return refuse(EndReason::kUnsupported,
                    "loading a model needs openat2 of Linux 5.6, which this system does not allow");
    default:
      return invalid("path", "path {} cannot be opened: {}", cut(below), std::strerror(error));
  }
}

}  // namespace recurve
