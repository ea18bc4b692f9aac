#pragma once
#include <atomic>
#include <chrono>

namespace recurve {

// The steady clock. A test may stop and advance it, so that tests of timeouts are fast and have the
// same result on every machine.
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

  // For tests. Call hold() and release() while no other thread reads the clock.
  static void hold() { held_ = std::chrono::steady_clock::now().time_since_epoch().count(); }
  static void pass(duration time) { held_ += time.count(); }
  static void release() { held_ = 0; }

 private:
  static inline std::atomic<rep> held_{0};  // 0: not stopped
};

// Since the clock's epoch.
inline double seconds_of(Clock::time_point when) {
  return std::chrono::duration<double>(when.time_since_epoch()).count();
}

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace recurve
