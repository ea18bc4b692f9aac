#include "model/weights/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
}

void MappedFile::unmap() {
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

void MappedFile::release(const std::byte* data, size_t bytes) const {
  if (bytes == 0) return;
  // Outward to whole pages: a neighbour's page that goes too is read again from the file.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace recurve
