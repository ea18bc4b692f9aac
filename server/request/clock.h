#pragma once
#include <atomic>
#include <chrono>

namespace recurve {

// The time by which requests are served: the steady clock's. A test may hold it still and move it,
// so that what takes time need not, and ends the same on every machine.
struct Clock {
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now() {
    const rep held = held_;
    return held == 0 ? std::chrono::steady_clock::now() : time_point(duration(held));
  }

  // For tests, which hold and release it while no other thread reads it.
  static void hold() { held_ = std::chrono::steady_clock::now().time_since_epoch().count(); }
  static void pass(duration time) { held_ += time.count(); }
  static void release() { held_ = 0; }

 private:
  static inline std::atomic<rep> held_{0};  // 0: it goes on by itself
};

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace recurve
