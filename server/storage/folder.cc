// The folder of a store in a file system of Linux.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "server/storage/file_system.h"

namespace recurve {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path, int error) {
  throw std::system_error(error, std::generic_category(), fmt::format("cannot {} {}", what, path));
}

// A call that says -1 where it fails, made again where a signal has interrupted it.
template <typename Call>
auto retried(const char* what, const std::string& path, const Call& call) {
  while (true) {
    const auto result = call();
    if (result != -1) return result;
    if (errno != EINTR) fail(what, path, errno);
  }
}

class Descriptor {
 public:
  Descriptor(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  const std::string& path() const { return path_; }

 private:
  const int fd_;
  const std::string path_;
};

class FolderWriter final : public FileSystem::Writer {
 public:
  FolderWriter(int fd, std::string path) : file_(fd, std::move(path)) {}

  void append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const auto written = retried("write", file_.path(),
                                   [&] { return write(file_.get(), bytes.data(), bytes.size()); });
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  void sync() override {
    retried("sync", file_.path(), [&] { return fdatasync(file_.get()); });
  }

 private:
  const Descriptor file_;
};

class FolderReader final : public FileSystem::Reader {
 public:
  FolderReader(int fd, std::string path) : file_(fd, std::move(path)) {
    struct stat status;
    retried("look at", file_.path(), [&] { return fstat(file_.get(), &status); });
    bytes_ = static_cast<uint64_t>(status.st_size);
  }

  uint64_t bytes() const override { return bytes_; }
  void read(uint64_t offset, std::span<std::byte> to) const override {
    while (!to.empty()) {
      const auto got = retried("read", file_.path(), [&] {
        return pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
      });
      if (got == 0) fail("read all of", file_.path(), EIO);
      to = to.subspan(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
  }

 private:
  const Descriptor file_;
  uint64_t bytes_ = 0;
};

class Folder final : public FileSystem {
 public:
  explicit Folder(const std::string& path)
      : folder_(make_and_open(path), path), lock_(take_lock(path), path + "/lock") {}

  std::vector<Entry> list() override {
    std::vector<Entry> entries;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (!entry.is_regular_file()) continue;
      entries.push_back({entry.path().filename().string(), entry.file_size()});
    }
    return entries;
  }
  std::unique_ptr<Writer> create(const std::string& name) override {
    return std::make_unique<FolderWriter>(open_file(name, O_WRONLY | O_CREAT | O_TRUNC),
                                          path_of(name));
  }
  std::unique_ptr<Reader> open(const std::string& name) override {
    return std::make_unique<FolderReader>(open_file(name, O_RDONLY), path_of(name));
  }
  void rename(const std::string& from, const std::string& to) override {
    retried("rename", path_of(from),
            [&] { return renameat(folder_.get(), from.c_str(), folder_.get(), to.c_str()); });
  }
  void remove(const std::string& name) override {
    retried("remove", path_of(name), [&] { return unlinkat(folder_.get(), name.c_str(), 0); });
  }
  void sync_folder() override {
    retried("sync", folder_.path(), [&] { return fsync(folder_.get()); });
  }

 private:
  static int make_and_open(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail("make", path, error.value());
    return retried("open", path,
                   [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  }
  // Held until the file is closed, whichever way the process ends.
  static int take_lock(const std::string& folder) {
    const std::string path = folder + "/lock";
    const int fd = retried(
        "open", path, [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); });
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    const int error = errno;
    close(fd);
    if (error != EWOULDBLOCK) fail("lock", path, error);
    throw std::runtime_error(fmt::format(
        "--state-dir {}: another server uses it: stop that one, or take another folder", folder));
  }
  std::string path_of(const std::string& name) const { return folder_.path() + "/" + name; }
  int open_file(const std::string& name, int flags) {
    return retried("open", path_of(name),
                   [&] { return openat(folder_.get(), name.c_str(), flags | O_CLOEXEC, 0600); });
  }

  const Descriptor folder_;
  const Descriptor lock_;
};

}  // namespace

std::unique_ptr<FileSystem> open_folder(const std::string& path) {
  return std::make_unique<Folder>(path);
}

}  // namespace recurve
