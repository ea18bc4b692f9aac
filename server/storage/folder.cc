// The folder of a store in a file system of Linux.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
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

// Repeats a call that returns -1 if it fails, while a signal has interrupted it.
template <typename Call>
auto retried(const char* what, const std::string& path, const Call& call) {
  while (true) {
    const auto result = call();
    if (result != -1) return result;
    if (errno != EINTR) fail(what, path, errno);
  }
}

constexpr size_t kBlock = 4096;  // the unit of direct reads and writes
constexpr size_t kMegabyte = size_t{1} << 20, kLarge = 8 * kMegabyte;

bool is_aligned(uint64_t offset, const void* memory) {
  return offset % kBlock == 0 && reinterpret_cast<uintptr_t>(memory) % kBlock == 0;
}

class Descriptor {
 public:
  Descriptor(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~Descriptor() {
    if (fd_ != -1) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  const std::string& path() const { return path_; }

 private:
  const int fd_;
  const std::string path_;
};

// Large aligned data is written to the disk past the page cache: that takes a tenth of the
// processor time, and data that is written to free memory does not fill it again as page cache.
class FolderWriter final : public FileSystem::Writer {
 public:
  FolderWriter(int fd, std::string path) : file_(fd, std::move(path)) {}

  void append(std::string_view bytes) override {
    if (bytes.size() >= kLarge) append_past_cache(&bytes);
    while (!bytes.empty()) append_some(&bytes, bytes.size());
  }
  void sync() override {
    retried("sync", file_.path(), [&] { return fdatasync(file_.get()); });
  }

 private:
  // From the front on; nothing if the file system does not support it.
  void append_past_cache(std::string_view* bytes) {
    const auto whole_blocks = [&] {
      return is_aligned(bytes_, bytes->data()) ? bytes->size() / kBlock * kBlock : 0;
    };
    if (whole_blocks() == 0 || !set_direct(true)) return;
    try {
      while (const size_t most = std::min(whole_blocks(), kLarge)) append_some(bytes, most);
    } catch (const std::system_error& error) {
      set_direct(false);
      if (error.code().value() != EINVAL) throw;
    }
    set_direct(false);
  }
  void append_some(std::string_view* bytes, size_t most) {
    const auto written = static_cast<size_t>(
        retried("write", file_.path(), [&] { return write(file_.get(), bytes->data(), most); }));
    bytes->remove_prefix(written);
    bytes_ += written;
  }
  bool set_direct(bool on) {
    const int flags = fcntl(file_.get(), F_GETFL);
    return flags != -1 &&
           fcntl(file_.get(), F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  }

  const Descriptor file_;
  uint64_t bytes_ = 0;
};

// Large data that is not in the page cache is read without it, as it was written: it is not read
// twice.
class FolderReader final : public FileSystem::Reader {
 public:
  // direct: the same file, opened without the page cache; -1: not supported.
  FolderReader(int fd, int direct, std::string path)
      : file_(fd, std::move(path)), direct_(direct, file_.path()) {
    struct stat status;
    retried("look at", file_.path(), [&] { return fstat(file_.get(), &status); });
    bytes_ = static_cast<uint64_t>(status.st_size);
  }

  uint64_t bytes() const override { return bytes_; }
  void read(uint64_t offset, std::span<std::byte> to) const override {
    while (!to.empty()) {
      ssize_t got = direct_.get() == -1 ? 0 : read_large(offset, to);
      if (got <= 0) {
        got = retried("read", file_.path(), [&] {
          return pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
        });
      }
      if (got == 0) {
        throw FileDamaged(EIO, std::generic_category(), "cannot read all of " + file_.path());
      }
      to = to.subspan(static_cast<size_t>(got));
      offset += static_cast<uint64_t>(got);
    }
  }

 private:
  // Reads from the page cache, or directly from the disk if the range is aligned. 0 or -1: read it
  // in the ordinary way, which reports the error.
  ssize_t read_large(uint64_t offset, std::span<std::byte> to) const {
    if (to.size() < kMegabyte) return 0;
    const iovec place{to.data(), to.size()};
    const auto at = static_cast<off_t>(offset);
    const ssize_t cached = preadv2(file_.get(), &place, 1, at, RWF_NOWAIT);
    if (cached > 0 || errno != EAGAIN || !is_aligned(offset, to.data())) return cached;
    return pread(direct_.get(), to.data(), to.size() / kBlock * kBlock, at);
  }

  const Descriptor file_, direct_;
  uint64_t bytes_ = 0;
};

class Folder final : public FileSystem {
 public:
  explicit Folder(const std::string& path)
      : folder_(make_and_open(path), path), lock_(take_lock(path), path + "/lock") {
    // A lock file can be deleted, and created again by another server. So the folder itself is
    // locked too, if the file system has such locks.
    if (flock(folder_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) refuse_second(path);
  }

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
    const int file = open_file(name, O_RDONLY);
    struct stat status;
    const bool large = fstat(file, &status) == 0 && status.st_size >= off_t{kLarge};
    const int direct =
        large ? openat(folder_.get(), name.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC) : -1;
    return std::make_unique<FolderReader>(file, direct, path_of(name));
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
  std::string lost() override {
    const auto is_of = [](const Descriptor& file, const std::string& path) {
      struct stat ours, named;
      return fstat(file.get(), &ours) == 0 && stat(path.c_str(), &named) == 0 &&
             ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
    };
    for (const Descriptor* file : {&folder_, &lock_}) {
      if (is_of(*file, file->path())) continue;
      return fmt::format(
          "{} was deleted or replaced while the server ran: restart the server to have durable "
          "sessions",
          file->path());
    }
    return {};
  }

 private:
  static int make_and_open(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail("make", path, error.value());
    return retried("open", path,
                   [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  }
  // Held until the file is closed, also if the process crashes.
  static int take_lock(const std::string& folder) {
    const std::string path = folder + "/lock";
    const int fd = retried(
        "open", path, [&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); });
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    const int error = errno;
    close(fd);
    if (error != EWOULDBLOCK) fail("lock", path, error);
    refuse_second(folder);
  }
  [[noreturn]] static void refuse_second(const std::string& folder) {
    throw std::runtime_error(fmt::format(
        "--state-dir {}: another server uses it: stop that one, or choose another folder", folder));
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
