#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace recurve {

// A whole regular file mapped read-only into memory.
class MappedFile {
 public:
  // Throws std::runtime_error, naming the file, if it cannot be read or is no regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Throws if the file is now shorter than it was: reading on would end the process by SIGBUS.
  // To be called before each larger read; a file cut between the check and the read still does.
  void check_still_whole() const;

  // Copies `bytes` bytes from `data` on, which points into bytes(): past the mapping, which is how
  // large parts come fastest. False if they cannot be read; nothing ends the process. Any thread.
  bool read(const std::byte* data, size_t bytes, std::byte* to) const;

  // Gives the mapped pages of this range back to the system; reading them again is allowed.
  void release(const std::byte* data, size_t bytes) const;

  // From now on this range is read again and again, in any order, not once from begin to end.
  void expect_reuse(const std::byte* data, size_t bytes) const;

  // The path of the file that is mapped at this address; null if there is none. For a handler of
  // SIGBUS: takes no lock and no memory. Knows the first 4,096 files that are mapped at a time.
  static const char* path_at(const void* address);

 private:
  void open_and_map();
  void unmap();

  std::string path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;  // (size_); null if the file is empty
  size_t size_ = 0;
};

}  // namespace recurve
