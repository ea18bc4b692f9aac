#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace recurve {

// Memory for what is read from a store and written to it. A thread waits until there is enough; one
// gets all it wants.
class TransferMemory {
 public:
  explicit TransferMemory(int64_t most_bytes) : most_(most_bytes) {}
  class Share {
   public:
    Share(TransferMemory& of, int64_t bytes) : of_(of), bytes_(bytes) {}
    ~Share() { of_.give_back(bytes_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

   private:
    TransferMemory& of_;
    const int64_t bytes_;
  };
  Share take(int64_t bytes) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return used_ == 0 || used_ + bytes <= most_; });
    used_ += bytes;
    return {*this, bytes};
  }

 private:
  void give_back(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    changed_.notify_all();
  }
  const int64_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t used_ = 0;
};

}  // namespace recurve
