#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace recurve {

// Returns freed memory of the heap to the system after a peak. It has a thread that checks every
// `period`. One a process, created before other threads: with a limit of addresses, those share
// few heaps.
class HeapTrimmer {
 public:
  explicit HeapTrimmer(std::chrono::milliseconds period = std::chrono::seconds(10));
  ~HeapTrimmer();
  HeapTrimmer(const HeapTrimmer&) = delete;
  HeapTrimmer& operator=(const HeapTrimmer&) = delete;

 private:
  void work();

  const std::chrono::milliseconds period_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace recurve
