#pragma once
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/check.h"
#include "tests/bench/core_threads.h"
#include "tests/bench/report.h"

namespace recurve::bench {

// The rate at which so many threads together read memory that no cache holds and that lies in pages
// as large as those of weights. It changes from second to second where others use the same memory,
// so it is measured beside each row.
class ReadBandwidth {
 public:
  // threads: 0: one a core.
  explicit ReadBandwidth(int threads) : threads_(threads) {
    void* memory =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    madvise(memory, kBytes, MADV_HUGEPAGE);
    words_ = {static_cast<uint64_t*>(memory), kBytes / sizeof(uint64_t)};
    std::ranges::fill(words_, 1);
  }
  ~ReadBandwidth() { munmap(words_.data(), kBytes); }
  ReadBandwidth(const ReadBandwidth&) = delete;
  ReadBandwidth& operator=(const ReadBandwidth&) = delete;

  // GB/s: the median of seven passes.
  double measure() const {
    std::vector<double> seconds;
    for (int pass = 0; pass < 7; ++pass) {
      std::atomic<uint64_t> sum = 0;
      seconds.push_back(seconds_on_cores(threads_, [&](size_t t, size_t count) {
        const size_t begin = words_.size() * t / count, end = words_.size() * (t + 1) / count;
        const auto part = words_.subspan(begin, end - begin);
        sum += std::reduce(part.begin(), part.end());  // in any order: many loads at once
      }));
      CHECK(sum == words_.size());
    }
    return static_cast<double>(kBytes) / median(seconds) / 1e9;
  }

 private:
  static constexpr size_t kBytes = size_t{512} << 20;
  const int threads_;
  std::span<uint64_t> words_;
};

}  // namespace recurve::bench
