#pragma once
#include <chrono>
#include <cstdint>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "kernels/host.h"
#include "tests/bench/report.h"

namespace recurve::bench {

// GB/s at which so many threads together read memory that no cache holds: the median of seven
// passes over 512 MiB. threads: 0: one a core.
inline double read_bandwidth(int threads) {
  constexpr size_t kWords = size_t{64} << 20;
  const size_t count = static_cast<size_t>(threads > 0 ? threads : host_threads());
  const std::vector<uint64_t> memory(kWords, 1);
  std::vector<uint64_t> sums(count);
  std::vector<double> seconds;
  for (int pass = 0; pass < 7; ++pass) {
    const auto began = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> readers;
      for (size_t t = 0; t < count; ++t) {
        readers.emplace_back([&, t] {
          const auto part = std::span(memory).subspan(kWords / count * t, kWords / count);
          sums[t] = std::reduce(part.begin(), part.end());  // in any order: many loads at once
        });
      }
    }
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  const uint64_t sum = std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  const double bytes = static_cast<double>(sum) * sizeof(uint64_t);  // every word is 1
  return bytes / median(seconds) / 1e9;
}

}  // namespace recurve::bench
