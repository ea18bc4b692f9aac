#pragma once
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/host.h"

namespace recurve::bench {

// The cores that this process may use, in their order.
inline std::vector<int> own_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

// Seconds that `threads` threads, each on a separate core as far as there are so many, take for
// work(thread, threads), from when all have started. threads: 0: one a core.
template <typename Work>
double seconds_on_cores(int threads, const Work& work) {
  using Clock = std::chrono::steady_clock;
  const auto count = static_cast<size_t>(threads > 0 ? threads : host_threads());
  const std::vector<int> cores = own_cores();
  std::atomic<size_t> ready = 0;
  std::vector<Clock::time_point> began(count), ended(count);
  {
    std::vector<std::jthread> workers;
    for (size_t t = 0; t < count; ++t) {
      workers.emplace_back([&, t] {
        if (count <= cores.size()) {
          cpu_set_t one;
          CPU_ZERO(&one);
          CPU_SET(cores[t], &one);
          sched_setaffinity(0, sizeof(one), &one);
        }
        for (++ready; ready < count;) std::this_thread::yield();
        began[t] = Clock::now();
        work(t, count);
        ended[t] = Clock::now();
      });
    }
  }
  return std::chrono::duration<double>(*std::ranges::max_element(ended) -
                                       *std::ranges::min_element(began))
      .count();
}

}  // namespace recurve::bench
