#include "kernels/reference/candidates.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/ops/sample_math.h"

namespace recurve::reference {
namespace {

uint64_t sum_of_weights(std::span<const Candidate> candidates) {
  uint64_t sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

// Reorders so that the first r candidates are the first r in the order `before`, where r, returned,
// is the smallest whose weights reach `target`, at most their sum. A selection by weight instead of
// by rank: halves the range that holds the border until it is small enough to sort. O(n).
template <typename Before>
size_t shortest_prefix(std::span<Candidate> candidates, uint64_t target, Before before) {
  constexpr size_t kSmall = 32;
  size_t begin = 0, end = candidates.size();
  uint64_t reached = 0;  // by [0, begin)
  while (end - begin > kSmall) {
    const size_t half = (end - begin) / 2;
    const auto range = candidates.subspan(begin, end - begin);
    std::nth_element(range.begin(), range.begin() + static_cast<ptrdiff_t>(half), range.end(),
                     before);
    const uint64_t first_half = sum_of_weights(range.first(half));
    if (reached + first_half >= target) {
      end = begin + half;
    } else {
      reached += first_half;
      begin += half;
    }
  }
  const auto range = candidates.subspan(begin, end - begin);
  std::sort(range.begin(), range.end(), before);
  while (reached < target) reached += candidates[begin++].weight;
  return begin;
}

bool likelier(const Candidate& a, const Candidate& b) {
  return a.order != b.order ? a.order < b.order : a.id < b.id;
}

}  // namespace

uint64_t total_weight(const Candidates& candidates) { return sum_of_weights(candidates); }

void keep_top_k(size_t k, Candidates* candidates) {
  if (candidates->size() <= k) return;
  const auto kth = candidates->begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(candidates->begin(), kth, candidates->end(), likelier);
  candidates->resize(k);
}

void keep_typical(double p, Candidates* candidates) {
  uint64_t nats = 0;
  for (const Candidate& c : *candidates) nats += weighted_nats(exp_nonpositive(-c.nats), c.nats);
  const uint64_t total = total_weight(*candidates);
  const double mean = static_cast<double>(nats) / static_cast<double>(total);
  for (Candidate& c : *candidates) c.typical = order_of(std::abs(c.nats - mean));
  const auto more_typical = [](const Candidate& a, const Candidate& b) {
    return a.typical != b.typical ? a.typical < b.typical : a.id < b.id;
  };
  candidates->resize(shortest_prefix(*candidates, share_of(p, total), more_typical));
}

void keep_top_p(double p, uint64_t total, Candidates* candidates) {
  candidates->resize(shortest_prefix(*candidates, share_of(p, total), likelier));
}

void keep_min_p(double p, Candidates* candidates) {
  uint64_t most = 0;
  for (const Candidate& c : *candidates) most = std::max(most, c.weight);
  const uint64_t least = share_of(p, most);
  std::erase_if(*candidates, [&](const Candidate& c) { return c.weight < least; });
}

int32_t pick(double u, Candidates* candidates) {
  const auto lower_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  const uint64_t target = share_of(u, total_weight(*candidates));
  return (*candidates)[shortest_prefix(*candidates, target, lower_id) - 1].id;
}

}  // namespace recurve::reference
