#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace recurve {

// Gives the memory of peaks back to the system: what was freed in between, page by page, which the
// heap keeps by itself. Looks every so often, on a thread of its own. One a process, made before
// its other threads: where addresses are limited these share few heaps.
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
