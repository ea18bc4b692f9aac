#include "tests/bench/disk_speed.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "server/request/clock.h"
#include "tests/bench/report.h"

namespace recurve::bench {
namespace {

class File {
 public:
  explicit File(std::filesystem::path path)
      : path_(std::move(path)), fd_(open(path_.c_str(), O_CREAT | O_TRUNC | O_RDWR, 0600)) {
    CHECK(fd_ >= 0);
  }
  ~File() {
    close(fd_);
    std::filesystem::remove(path_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void append_and_sync(const std::vector<char>& bytes) const {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t written = write(fd_, bytes.data() + done, bytes.size() - done);
      CHECK(written > 0);
      done += static_cast<size_t>(written);
    }
    CHECK(fdatasync(fd_) == 0);
  }
  void read_into(std::vector<char>* to) const {
    for (size_t done = 0; done < to->size();) {
      const ssize_t got =
          pread(fd_, to->data() + done, to->size() - done, static_cast<off_t>(done));
      CHECK(got > 0);
      done += static_cast<size_t>(got);
    }
  }
  void drop_from_cache() const { posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED); }

 private:
  const std::filesystem::path path_;
  const int fd_;
};

}  // namespace

double median_seconds(int times, const std::function<void()>& act,
                      const std::function<void()>& before) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) {
    if (before) before();
    const auto began = Clock::now();
    act();
    all.push_back(seconds_between(began, Clock::now()));
  }
  return median(std::move(all));
}

DiskSpeed measure_disk_speed(const std::filesystem::path& folder, size_t bytes, int rounds) {
  const File file(folder / "raw"), small(folder / "raw-small");
  std::vector<char> memory(bytes, 'x'), other(bytes, 'y');
  const std::vector<char> little(512, 'z');
  DiskSpeed speed;
  speed.copy = median_seconds(3 * rounds, [&] { std::memcpy(other.data(), memory.data(), bytes); });
  speed.sync = median_seconds(rounds, [&] { file.append_and_sync(memory); });
  speed.small_sync = median_seconds(3 * rounds, [&] { small.append_and_sync(little); });
  const auto read = [&] { file.read_into(&other); };
  speed.cached = median_seconds(3 * rounds, read);
  speed.cold = median_seconds(rounds, read, [&] { file.drop_from_cache(); });
  return speed;
}

void drop_from_cache(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) continue;  // it has gone meanwhile
    if (file < 0) throw std::runtime_error(entry.path().string() + ": cannot be opened");
    fdatasync(file);  // pages that are still to be written would stay
    const int failed = posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    if (failed != 0) {
      throw std::runtime_error(entry.path().string() + ": its pages cannot be dropped");
    }
  }
}

}  // namespace recurve::bench
