#include "kernels/cpu/thread_pool.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <chrono>

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

}  // namespace

int ThreadPool::default_threads() { return host_threads(); }

ThreadPool::ThreadPool(int threads) {
  for (int t = 1; t < std::min(threads, kMaxThreads); ++t) {
    workers_.emplace_back([this] { work(); });
  }
}

ThreadPool::~ThreadPool() {
  state_.fetch_or(kStop);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, const void* context, Function function) {
  count_ = count;
  context_ = context;
  function_ = function;
  next_.store(0, std::memory_order_relaxed);
  state_.fetch_add(kLoop + kOpen);
  state_.notify_all();  // costs a load where nobody sleeps

  take_indices();
  state_.fetch_and(~kOpen);
  const auto empty = [this] { return (state_.load(std::memory_order_acquire) & kInside) == 0; };
  while (!spin_until(empty, kSpin)) std::this_thread::yield();
}

void ThreadPool::take_indices() {
  for (;;) {
    const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= count_) return;
    function_(context_, index);
  }
}

void ThreadPool::work() {
  uint32_t last = 0;
  for (;;) {
    uint32_t state = wait_for_loop(last);
    if ((state & kStop) != 0) return;
    if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire)) continue;
    last = state;
    take_indices();
    state_.fetch_sub(1, std::memory_order_release);
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
