#include "model/weights/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace recurve {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", path, what));
}

[[noreturn]] void fail_with_errno(const std::string& path) {
  fail(path, fmt::format("wanted a readable file, found: {}", std::strerror(errno)));
}

size_t regular_file_size(int fd, const std::string& path) {
  struct stat status;
  if (fstat(fd, &status) != 0) fail_with_errno(path);
  if (S_ISDIR(status.st_mode)) fail(path, "wanted a file, found a directory");
  if (!S_ISREG(status.st_mode)) fail(path, "wanted a regular file, found a device or pipe");
  return static_cast<size_t>(status.st_size);
}

// What is mapped, for MappedFile::path_at().
std::array<std::atomic<const MappedFile*>, 4096> all_mapped;

// Puts `to` where `from` is.
void replace_mapped(const MappedFile* from, const MappedFile* to) {
  std::ranges::find_if(all_mapped, [&](std::atomic<const MappedFile*>& one) {
    const MappedFile* expected = from;
    return one.compare_exchange_strong(expected, to);
  });
}

// Outward to whole pages.
void advise(const std::byte* data, size_t bytes, int advice) {
  if (bytes == 0) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  try {
    open_and_map();
  } catch (...) {
    unmap();
    throw;
  }
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::open_and_map() {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block
  if (fd_ < 0) fail_with_errno(path_);
  size_ = regular_file_size(fd_, path_);
  if (size_ == 0) return;
  void* mapping = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_, 0);
  if (mapping == MAP_FAILED) fail_with_errno(path_);
  data_ = static_cast<const std::byte*>(mapping);
  madvise(mapping, size_, MADV_SEQUENTIAL);  // a hint: read ahead
  replace_mapped(nullptr, this);
}

void MappedFile::unmap() {
  replace_mapped(this, nullptr);
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::check_still_whole() const {
  const size_t now = regular_file_size(fd_, path_);
  if (now < size_) {
    fail(path_, fmt::format("wanted its {} bytes, found that it was cut to {} while being read",
                            size_, now));
  }
}

bool MappedFile::read(const std::byte* data, size_t bytes, std::byte* to) const {
  auto offset = static_cast<off_t>(data - data_);
  while (bytes > 0) {
    const ssize_t got = pread(fd_, to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    offset += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

// A neighbour's page that is released too is read again from the file.
void MappedFile::release(const std::byte* data, size_t bytes) const {
  advise(data, bytes, MADV_DONTNEED);
}

void MappedFile::expect_reuse(const std::byte* data, size_t bytes) const {
  advise(data, bytes, MADV_NORMAL);
  advise(data, bytes, MADV_HUGEPAGE);  // where the file system has them
}

const char* MappedFile::path_at(const void* address) {
  const auto* const at = static_cast<const std::byte*>(address);
  for (const std::atomic<const MappedFile*>& one : all_mapped) {
    const MappedFile* const file = one.load();
    if (file == nullptr || at < file->data_) continue;
    // To the end of the last page, which is mapped too.
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (at < file->data_ + (file->size_ + page - 1) / page * page) return file->path_.c_str();
  }
  return nullptr;
}

}  // namespace recurve
