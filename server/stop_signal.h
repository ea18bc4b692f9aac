#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace recurve {

// Waits for SIGTERM, SIGINT or a Drain call. Made first in main, so that every later thread has the
// signals blocked. A second signal ends the process at once.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();

  // Any thread: as a signal would, but with a time limit of its own.
  void raise(double drain_seconds);
  bool raised() const;
  // Returns the time limit of raise(), nothing for a signal.
  std::optional<double> wait();

 private:
  void watch();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
  bool leaving_ = false;
  std::optional<double> drain_seconds_;
  std::thread watcher_;
};

}  // namespace recurve
