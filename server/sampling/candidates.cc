#include "server/sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace recurve {
namespace {

double sum_of_weights(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

// Reorders so that the first r candidates are the first r in the order `before`, where r, returned,
// is the smallest whose weights reach `target`. A selection by weight instead of by rank: halves
// the range that holds the border until it is small enough to sort. O(n).
template <typename Before>
size_t shortest_prefix(std::span<Candidate> candidates, double target, Before before) {
  constexpr size_t kSmall = 32;
  size_t begin = 0, end = candidates.size();
  double reached = 0;  // by [0, begin)
  while (end - begin > kSmall) {
    const size_t half = (end - begin) / 2;
    const auto range = candidates.subspan(begin, end - begin);
    std::nth_element(range.begin(), range.begin() + static_cast<ptrdiff_t>(half), range.end(),
                     before);
    const double first_half = sum_of_weights(range.first(half));
    if (reached + first_half >= target) {
      end = begin + half;
    } else {
      reached += first_half;
      begin += half;
    }
  }
  const auto range = candidates.subspan(begin, end - begin);
  std::sort(range.begin(), range.end(), before);
  for (size_t i = begin; i < end; ++i) {
    reached += candidates[i].weight;
    if (reached >= target) return i + 1;
  }
  return end;  // a rounding error short of the target
}

void keep_first(size_t n, Candidates* candidates) {
  candidates->list.resize(n);
  candidates->total = sum_of_weights(candidates->list);
}

}  // namespace

void select_top(std::span<const float> row, size_t k, std::vector<Candidate>* out) {
  out->clear();
  if (k == 0) return;
  const auto keep_k = [&] {
    const auto kth = out->begin() + static_cast<ptrdiff_t>(k - 1);
    std::nth_element(out->begin(), kth, out->end(), likelier);
    out->resize(k);
  };
  // Ids come in ascending order, so one that equals the k-th best so far loses to it.
  float threshold = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < row.size(); ++i) {
    if (!(row[i] > threshold)) continue;
    out->push_back({.logit = row[i], .id = static_cast<int32_t>(i), .weight = 0, .key = 0});
    if (out->size() == 2 * k + 64) {
      keep_k();
      threshold = out->back().logit;
    }
  }
  if (out->size() > k) keep_k();
}

void keep_typical(double p, Candidates* candidates) {
  const double log_total = std::log(candidates->total);
  double entropy = 0;
  for (Candidate& c : candidates->list) {
    c.key = log_total - std::log(c.weight);  // -log(probability)
    entropy += c.weight / candidates->total * c.key;
  }
  for (Candidate& c : candidates->list) c.key = std::abs(c.key - entropy);
  const auto more_typical = [](const Candidate& a, const Candidate& b) {
    return a.key != b.key ? a.key < b.key : likelier(a, b);
  };
  keep_first(shortest_prefix(candidates->list, p * candidates->total, more_typical), candidates);
}

void keep_top_p(double p, Candidates* candidates) {
  keep_first(shortest_prefix(candidates->list, p * candidates->total, likelier), candidates);
}

void keep_min_p(double p, Candidates* candidates) {
  double most = 0;
  for (const Candidate& c : candidates->list) most = std::max(most, c.weight);
  std::erase_if(candidates->list, [&](const Candidate& c) { return c.weight < p * most; });
  candidates->total = sum_of_weights(candidates->list);
}

int32_t pick(double u, Candidates* candidates) {
  const size_t n = shortest_prefix(candidates->list, u * candidates->total, likelier);
  return candidates->list[n - 1].id;
}

}  // namespace recurve
