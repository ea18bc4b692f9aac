#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace recurve {

// One id that may still be drawn.
struct Candidate {
  float logit;  // after bias and penalties
  int32_t id;
  double weight;  // exp((logit - max) / temperature), in [0, 1]
  double key;     // typical_p's: distance of -log(p) from the entropy
};

// The most likely first; among equals the lower id.
inline bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

using Candidates = std::vector<Candidate>;

// Reads a row of logits (n): the `k` likeliest ids that are not -infinity, sorted, into `out`;
// without weights. In O(n) for small k; no NaN in the row.
void select_top(std::span<const float> row, size_t k, Candidates* out);

// The filters. Each leaves at least one candidate, in any order.
void keep_top_p(double p, Candidates* candidates);
void keep_typical(double p, Candidates* candidates);
void keep_min_p(double p, Candidates* candidates);

// The id at which the cumulative weight, likeliest first, reaches the fraction u of all of it.
// u in (0, 1); may reorder.
int32_t pick(double u, Candidates* candidates);

}  // namespace recurve
