#include "clients/loadgen/report/histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace recurve::loadgen {
namespace {

constexpr int kBits = 10;  // 2^kBits buckets for each doubling
constexpr uint64_t kBuckets = uint64_t{1} << kBits;

// Values below 2 * kBuckets have a bucket each; above, the width doubles with the value.
int shift_of(uint64_t value) {
  return std::max(0, static_cast<int>(std::bit_width(value)) - kBits - 1);
}

size_t index_of(uint64_t value) {
  const int shift = shift_of(value);
  return static_cast<size_t>(shift) * kBuckets + (value >> shift);
}

// The smallest value of a bucket: the inverse of index_of.
uint64_t low_of(size_t index) {
  if (index < 2 * kBuckets) return index;
  const size_t shift = index / kBuckets - 1;
  return (index - shift * kBuckets) << shift;
}

double seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

}  // namespace

void Histogram::record(double value, uint64_t times) {
  if (times == 0) return;
  const auto nanoseconds = static_cast<uint64_t>(std::llround(std::clamp(value, 0.0, 9e9) * 1e9));
  const size_t index = index_of(nanoseconds);
  if (index >= counts_.size()) counts_.resize(index + 1);
  counts_[index] += times;
  count_ += times;
  sum_ += seconds(nanoseconds) * static_cast<double>(times);
  min_ = std::min(min_, nanoseconds);
  max_ = std::max(max_, nanoseconds);
}

void Histogram::merge(const Histogram& other) {
  if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
  for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

double Histogram::mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
double Histogram::min() const { return count_ == 0 ? 0 : seconds(min_); }
double Histogram::max() const { return seconds(max_); }

double Histogram::quantile(double share) const {
  if (count_ == 0) return 0;
  const double wanted = std::ceil(share * static_cast<double>(count_) - 1e-6);
  const auto rank = static_cast<uint64_t>(std::max(1.0, wanted));
  uint64_t seen = 0;
  size_t index = 0;
  while (index + 1 < counts_.size() && seen + counts_[index] < rank) seen += counts_[index++];
  const uint64_t low = low_of(index), high = low_of(index + 1) - 1;
  return seconds(std::clamp(low + (high - low) / 2, min_, max_));
}

std::vector<Histogram::Bucket> Histogram::buckets() const {
  std::vector<Bucket> found;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i] > 0) found.push_back({seconds(low_of(i)), seconds(low_of(i + 1)), counts_[i]});
  }
  return found;
}

}  // namespace recurve::loadgen
