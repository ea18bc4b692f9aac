#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace recurve::reference {

// One id that may still be drawn.
struct Candidate {
  uint64_t order;  // by its logit
  uint64_t weight;
  int32_t id;
  double nats;
  uint64_t typical;  // order by typicality
};

// In any order: nothing is sorted but the few around a border.
using Candidates = std::vector<Candidate>;

uint64_t total_weight(const Candidates& candidates);

// The filters; each leaves at least one of its candidates.
void keep_top_k(size_t k, Candidates* candidates);
void keep_typical(double p, Candidates* candidates);
// total: what p refers to; at least the weight of the candidates, where unlikely ids are left out.
void keep_top_p(double p, uint64_t total, Candidates* candidates);
void keep_min_p(double p, Candidates* candidates);

// The id at which the cumulative weight, in the order of ids, reaches u of the total; u in (0, 1).
int32_t pick(double u, Candidates* candidates);

}  // namespace recurve::reference
