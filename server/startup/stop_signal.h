#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace recurve {

// Waits for SIGTERM, SIGINT or a Drain call. Created first in main, so that the signals are blocked
// in every later thread. The first signal starts a drain, unless Drain has started one; the second
// ends the process at once, with a message. SIGHUP and SIGPIPE are ignored: the server continues
// when its terminal or the reader of its log goes away.
class StopSignal {
 public:
  // A signal within this time of the first one is the same request to stop, which may reach the
  // process twice: once itself and once through its process group.
  static constexpr std::chrono::seconds kSameStop{1};

  StopSignal();
  ~StopSignal();

  // Stops as a signal does, but with this time limit. No effect if the server stops already. Any
  // thread.
  void raise(double drain_seconds);
  bool raised() const;
  // Returns the time limit of raise(), or nothing after a signal.
  std::optional<double> wait();

 private:
  void watch();
  void on_signal(int signal);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
  bool leaving_ = false;
  // When the first signal came. Used by the watcher only.
  std::optional<std::chrono::steady_clock::time_point> first_signal_;
  std::optional<double> drain_seconds_;
  std::thread watcher_;
};

}  // namespace recurve
