#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "clients/loadgen/report/histogram.h"

namespace recurve::loadgen {

// Seconds since the start of a run.
class Stopwatch {
 public:
  using Clock = std::chrono::steady_clock;
  void restart() { start_ = Clock::now(); }
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  Clock::time_point at(double seconds) const {
    return start_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  Clock::time_point start_ = Clock::now();
};

// A thread that does things when they are due, in the order of their times, and notes how late it
// was: a machine that does not run this program in time shows there.
class Pacer {
 public:
  explicit Pacer(const Stopwatch& watch) : watch_(watch), thread_([this] { run(); }) {}
  ~Pacer() { stop(); }

  // From any thread. `action` should be short: it holds up the next.
  void at(double time, std::function<void()> action);
  // What is not due yet is done at once, and so is what comes after this.
  void hurry();
  // Ends the thread, without the remaining tasks.
  void stop();

  // How late it began what was due, and how late it was where it stopped. Call after stop().
  const Histogram& lateness() const { return lateness_; }

 private:
  struct Entry {
    double time;
    uint64_t number;  // of equal times the first to come is the first to go
    std::function<void()> action;
  };
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };

  void run();
  void note_lateness(double due);

  const Stopwatch& watch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::priority_queue<Entry, std::vector<Entry>, Later> entries_;
  uint64_t count_ = 0;
  bool hurry_ = false, stopping_ = false;
  Histogram lateness_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace recurve::loadgen
