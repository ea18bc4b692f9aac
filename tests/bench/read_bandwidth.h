#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/fetch.h"
#include "tests/bench/core_threads.h"
#include "tests/bench/report.h"

namespace recurve::bench {

// The rate at which so many threads together read memory that no cache holds and that lies in pages
// as large as those of weights. It changes from second to second where others use the same memory,
// so it is measured with each row.
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

  // GB/s: the median of seven passes in the fastest of three ways: as the processor fetches by
  // itself, and with lines asked for ahead as linear layers ask for theirs. Some processors reach
  // little more than half of their memory's rate by themselves.
  double measure() const {
    return std::max(
        {median_rate(0), median_rate(cpu::FetchNear::kAhead), median_rate(cpu::FetchFar::kAhead)});
  }

 private:
  static constexpr size_t kBytes = size_t{512} << 20;

  // ahead: bytes from what is read to what is asked for; 0: nothing is.
  double median_rate(int64_t ahead) const {
    std::vector<double> seconds;
    for (int pass = 0; pass < 7; ++pass) {
      std::atomic<uint64_t> sum = 0;
      seconds.push_back(seconds_on_cores(threads_, [&](size_t t, size_t count) {
        const size_t begin = words_.size() * t / count, end = words_.size() * (t + 1) / count;
        sum += ahead == 0 ? sum_of(words_.subspan(begin, end - begin))
                          : fetched_sum_of(words_.subspan(begin, end - begin), ahead);
      }));
      CHECK(sum == words_.size());
    }
    return static_cast<double>(kBytes) / median(seconds) / 1e9;
  }

  static uint64_t sum_of(std::span<const uint64_t> words) {
    return std::reduce(words.begin(), words.end());  // in any order: many loads at once
  }
  static uint64_t fetched_sum_of(std::span<const uint64_t> words, int64_t ahead) {
    constexpr size_t kLineWords = cpu::kLine / sizeof(uint64_t);
    uint64_t sum = 0;
    size_t at = 0;
    for (; at + kLineWords <= words.size(); at += kLineWords) {
      const auto line = words.subspan(at, kLineWords);
      __builtin_prefetch(reinterpret_cast<const std::byte*>(line.data()) + ahead);
      sum += std::reduce(line.begin(), line.end());
    }
    return sum + sum_of(words.subspan(at));
  }

  const int threads_;
  std::span<uint64_t> words_;
};

}  // namespace recurve::bench
