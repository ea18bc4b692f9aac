#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace recurve {

// Waits for SIGTERM, SIGINT or a Drain call. Made first in main, so that every later thread has the
// signals blocked. The first signal begins a drain, or leaves the one that Drain began as it is; a
// second one ends the process at once, with a sentence. SIGHUP and SIGPIPE are ignored: neither a
// terminal nor a reader of the log that goes takes the server with it.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();

  // Any thread: as a signal would, but with a time limit of its own. Changes nothing where the
  // server stops already.
  void raise(double drain_seconds);
  bool raised() const;
  // Returns the time limit of raise(), nothing for a signal.
  std::optional<double> wait();

 private:
  void watch();
  void on_signal(int signal);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
  bool leaving_ = false;
  bool signalled_ = false;  // read and written by the watcher alone
  std::optional<double> drain_seconds_;
  std::thread watcher_;
};

}  // namespace recurve
