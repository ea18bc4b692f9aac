#pragma once
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "clients/cpp/call.h"

namespace recurve {

// Ctrl-C. While a Canceller is armed the first SIGINT cancels its call, and one more ends the
// process with 130; while none is armed SIGINT ends the process with 130, or goes to the caller
// that called deliver_to_fd(). A SIGINT within kSameStop of one that cancelled a call has no
// effect. A SIGINT that was ignored when the process started stays ignored.
class Interrupts {
 public:
  Interrupts() = default;
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Blocks SIGINT in this thread and all it starts, and waits for it in a separate one. Called
  // once, before any other thread.
  void start();

  bool seen() const { return seen_; }  // whether a call was cancelled by SIGINT
  // From now on SIGINT without an armed Canceller makes fd() readable instead of ending the
  // process.
  void deliver_to_fd();
  int fd() const { return pipe_[0]; }
  void clear_fd();  // takes what has arrived

  // Arms a Canceller for its lifetime.
  class Scope {
   public:
    explicit Scope(Interrupts& interrupts);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    Canceller* canceller() { return &canceller_; }
    bool interrupted() const { return canceller_.cancelled(); }

   private:
    Interrupts& interrupts_;
    Canceller canceller_;
  };

 private:
  void wait_for_signals();
  void handle();

  std::mutex mutex_;
  Canceller* armed_ = nullptr;
  bool to_fd_ = false;
  int pipe_[2] = {-1, -1};
  std::optional<std::chrono::steady_clock::time_point> cancelled_at_;  // a call, by SIGINT
  std::atomic<bool> seen_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace recurve
