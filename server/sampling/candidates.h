#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace recurve {

// One id that may still be drawn.
struct Candidate {
  float logit;    // after bias and penalties
  int32_t id;     // unique among the candidates
  double weight;  // exp((logit - max) / temperature), in (0, 1]
  double key;     // keep_typical's own
};

// The most likely first; among equals the lower id.
inline bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The ids that may still be drawn, in any order: nothing is sorted but the few around a border.
struct Candidates {
  std::vector<Candidate> list;
  double total = 0;  // weight that the probabilities refer to; at least that of the list
};

// The `k` likeliest ids of a row of logits (n) that are not -infinity, in any order, weight and key
// unset. The row has no NaN. O(n).
void select_top(std::span<const float> row, size_t k, std::vector<Candidate>* out);

// The filters; each leaves at least one of its candidates, and sets the total to what it leaves.
void keep_typical(double p, Candidates* candidates);
void keep_top_p(double p, Candidates* candidates);
void keep_min_p(double p, Candidates* candidates);

// The id at which the cumulative weight, likeliest first, reaches u * total; u in (0, 1).
int32_t pick(double u, Candidates* candidates);

}  // namespace recurve
