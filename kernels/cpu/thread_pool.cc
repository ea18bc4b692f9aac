#include "kernels/cpu/thread_pool.h"

#include <hwy/cache_control.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/check.h"
#include "kernels/host.h"

namespace recurve::cpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kMaxThreads = 1000;

// Spins until done() or until `limit` has passed; says whether it is done.
template <typename Done>
bool spin_until(Done done, Clock::duration limit) {
  const Clock::time_point end = Clock::now() + limit;
  do {
    for (int spin = 0; spin < 32; ++spin) {
      if (done()) return true;
      hwy::Pause();
    }
  } while (Clock::now() < end);
  return done();
}

// Says when this thread had better give its core away by itself: it has been taken away lately, and
// the time that it then gets at a stretch, some milliseconds, may soon be over.
class CoreShare {
 public:
  bool leave() {
    const Clock::time_point now = Clock::now();
    if (now - began_ < kStretch) return false;
    began_ = now;
    if (taken_away()) crowded_until_ = now + kCrowded;
    return now < crowded_until_;
  }
  void give_away() {
    std::this_thread::yield();  // counts as taken away where others have waited
    began_ = Clock::now();
  }

 private:
  static constexpr auto kStretch = std::chrono::milliseconds(2);
  static constexpr auto kCrowded = std::chrono::milliseconds(50);

  bool taken_away() {
    rusage usage = {};
    getrusage(RUSAGE_THREAD, &usage);
    return std::exchange(switches_, usage.ru_nivcsw) != usage.ru_nivcsw;
  }

  Clock::time_point began_ = Clock::now(), crowded_until_ = began_;
  long switches_ = 0;
};

}  // namespace

int ThreadPool::default_threads() { return host_threads(); }

ThreadPool::ThreadPool(int threads)
    : parts_(static_cast<size_t>(std::clamp(threads, 1, kMaxThreads))) {
  try {
    for (size_t t = 1; t < parts_.size(); ++t) workers_.emplace_back([this, t] { work(t); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  state_.fetch_or(kStop);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, const void* context, Function function) {
  CHECK(count < int64_t{1} << 32);
  context_ = context;
  function_ = function;
  const auto indices = static_cast<uint64_t>(count), threads = uint64_t{parts_.size()};
  for (uint64_t t = 0; t < threads; ++t) {
    const uint64_t begin = indices * t / threads, end = indices * (t + 1) / threads;
    parts_[t].left.store(end << 32 | begin, std::memory_order_relaxed);
  }
  state_.fetch_add(kLoop + kOpen);
  state_.notify_all();  // costs a load where no thread sleeps

  take_indices(0, [] { return false; });
  state_.fetch_and(~kOpen);
  const auto empty = [this] { return (state_.load(std::memory_order_acquire) & kInside) == 0; };
  while (!spin_until(empty, kSpin)) std::this_thread::yield();
}

// Until none is left, or leave(), which is asked before each.
template <typename Leave>
void ThreadPool::take_indices(size_t thread, Leave leave) {
  const auto take_all = [&](Part& part, auto take) {
    while (!leave()) {
      const std::optional<uint32_t> index = (part.*take)();
      if (!index) return true;
      function_(context_, *index);
    }
    return false;
  };
  if (!take_all(parts_[thread], &Part::take_first)) return;
  for (size_t other = 1; other < parts_.size(); ++other) {
    if (!take_all(parts_[(thread + other) % parts_.size()], &Part::take_last)) return;
  }
}

std::optional<uint32_t> ThreadPool::Part::take_first() {
  uint64_t old = left.load(std::memory_order_relaxed);
  for (;;) {
    const auto begin = static_cast<uint32_t>(old), end = static_cast<uint32_t>(old >> 32);
    if (begin >= end) return std::nullopt;
    if (left.compare_exchange_weak(old, old + 1, std::memory_order_relaxed)) return begin;
  }
}

std::optional<uint32_t> ThreadPool::Part::take_last() {
  uint64_t old = left.load(std::memory_order_relaxed);
  for (;;) {
    const auto begin = static_cast<uint32_t>(old), end = static_cast<uint32_t>(old >> 32);
    if (begin >= end) return std::nullopt;
    const uint64_t rest = old - (uint64_t{1} << 32);
    if (left.compare_exchange_weak(old, rest, std::memory_order_relaxed)) return end - 1;
  }
}

void ThreadPool::work(size_t thread) {
  uint32_t last = 0;
  CoreShare core;
  for (;;) {
    uint32_t state = wait_for_loop(last);
    if ((state & kStop) != 0) return;
    if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire)) continue;
    last = state;
    bool left = false;
    take_indices(thread, [&] { return left = core.leave(); });
    state_.fetch_sub(1, std::memory_order_release);
    if (left) {
      core.give_away();
      last = state - kLoop;  // what is left of the loop is open to it as any other
    }
  }
}

// The state once it shows an open loop other than that of `last`, or the end.
uint32_t ThreadPool::wait_for_loop(uint32_t last) {
  uint32_t state;
  const auto ready = [&] {
    state = state_.load(std::memory_order_relaxed);
    return (state & kStop) != 0 || ((state & kOpen) != 0 && state / kLoop != last / kLoop);
  };
  while (!spin_until(ready, kSpin)) state_.wait(state, std::memory_order_relaxed);
  return state;
}

}  // namespace recurve::cpu
