#include "server/identity/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

namespace recurve {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw std::runtime_error(
      fmt::format("\"{}\" cannot be {}: {}", path, what, std::strerror(error)));
}

int open_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  return open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

}  // namespace

FolderLock::FolderLock(const std::string& path, std::chrono::milliseconds patience)
    : folder_(open_folder_of(path)) {
  using Clock = std::chrono::steady_clock;
  if (folder_ < 0) fail(path, "changed", errno);
  const auto end = Clock::now() + patience;
  while (flock(folder_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EWOULDBLOCK && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    close(folder_);
    if (error != EWOULDBLOCK) fail(path, "changed", error);
    throw std::runtime_error(
        fmt::format("\"{}\" cannot be changed: another process has locked its folder. A running "
                    "server locks its --state-dir: move the file to another folder",
                    path));
  }
}

FolderLock::~FolderLock() { close(folder_); }

void write_atomically(const std::string& path, const std::string& text) {
  struct stat old{};
  const mode_t mode = stat(path.c_str(), &old) == 0 ? old.st_mode & 0777 : 0600;
  std::string temporary = path + ".XXXXXX";
  const int file = mkstemp(temporary.data());
  if (file < 0) fail(path, "written", errno);
  bool written = fchmod(file, mode) == 0;
  for (size_t done = 0; written && done < text.size();) {
    const ssize_t more = write(file, text.data() + done, text.size() - done);
    written = more > 0;
    if (written) done += static_cast<size_t>(more);
  }
  written = written && fsync(file) == 0;
  int error = errno;
  close(file);
  if (written && rename(temporary.c_str(), path.c_str()) == 0) {
    return sync_folder_of(path);
  }
  if (written) error = errno;
  unlink(temporary.c_str());
  fail(path, "written", error);
}

void sync_folder_of(const std::string& path) {
  const int folder = open_folder_of(path);
  if (folder < 0) fail(path, "synced", errno);
  const bool synced = fsync(folder) == 0;
  const int error = errno;
  close(folder);
  if (!synced) fail(path, "synced", error);
}

std::string read_whole_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in.is_open() || in.bad()) fail(path, "read", errno);
  return text;
}

}  // namespace recurve
