#pragma once
#include <cstdint>
#include <vector>

namespace recurve::loadgen {

// Every value that was recorded, to 0.1 %: counts in buckets that are 1 / 1024 to 1 / 2048 of their
// values wide (log-linear, as Gil Tene's HDR histogram). Values are seconds, kept in nanoseconds;
// negative ones count as 0. Not for several threads at once.
class Histogram {
 public:
  void record(double seconds, uint64_t times = 1);
  void merge(const Histogram& other);

  uint64_t count() const { return count_; }
  double mean() const;  // exact; 0 where nothing was recorded, as all below
  double min() const;   // exact
  double max() const;   // exact
  // The smallest value that at least `share` in [0, 1] of all do not exceed.
  double quantile(double share) const;

  struct Bucket {
    double low, high;  // [low, high) in seconds
    uint64_t count;
  };
  std::vector<Bucket> buckets() const;  // those that hold something, ascending

 private:
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;  // seconds
  uint64_t min_ = UINT64_MAX, max_ = 0;
};

}  // namespace recurve::loadgen
