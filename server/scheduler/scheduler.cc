#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <utility>

namespace recurve {
namespace {

// The step while it is planned.
struct Draft {
  const StepBounds& bounds;
  std::span<const StepCandidate> candidates;
  std::vector<int> rows;
  int remaining_rows, remaining_logits;
  std::vector<Served> served;  // of all tenants that have prompts

  int remaining(size_t i) const { return candidates[i].tokens - rows[i]; }
  int piece(size_t i) const { return std::min(remaining(i), bounds.chunk); }
  int logits(size_t i) const {
    if (candidates[i].scored) return piece(i);
    return remaining(i) == piece(i) ? 1 : 0;
  }
  bool wants(size_t i) const {
    return candidates[i].prompt && remaining(i) > 0 && rows[i] < candidates[i].most;
  }
  bool fits(size_t i) const {
    return wants(i) && piece(i) <= remaining_rows && logits(i) <= remaining_logits;
  }
  Served& served_at(size_t i) {
    return *std::ranges::find(served, candidates[i].tenant, &Served::tenant);
  }
  void give_chunk(size_t i) {
    const int piece = this->piece(i);
    remaining_logits -= logits(i);
    remaining_rows -= piece;
    rows[i] += piece;
    served_at(i).rows += piece / candidates[i].weight;
  }
};

bool came_first(const Draft& plan, size_t a, size_t b) {
  return plan.candidates[a].rank < plan.candidates[b].rank;
}

bool is_shorter(const Draft& plan, size_t a, size_t b) {
  if (plan.remaining(a) != plan.remaining(b)) return plan.remaining(a) < plan.remaining(b);
  return came_first(plan, a, b);
}

// The index of the candidate of smallest rank, or the shortest, for which `may` is true; the number
// of candidates if there is none.
template <typename May>
size_t pick(const Draft& plan, bool shortest, const May& may) {
  size_t best = plan.candidates.size();
  for (size_t i = 0; i < plan.candidates.size(); ++i) {
    if (!may(i)) continue;
    const bool better = best == plan.candidates.size() ||
                        (shortest ? is_shorter(plan, i, best) : came_first(plan, i, best));
    if (better) best = i;
  }
  return best;
}

const Served* served_of(std::span<const Served> served, TenantId tenant) {
  const auto found = std::ranges::find(served, tenant, &Served::tenant);
  return found == served.end() ? nullptr : &*found;
}

// The tenants with prompts; a new one begins with the smallest count of the others.
std::vector<Served> who_has_prompts(std::span<const StepCandidate> candidates,
                                    std::span<const Served> before) {
  std::vector<Served> served;
  for (const bool anew : {false, true}) {
    const auto least = std::ranges::min_element(served, {}, &Served::rows);
    const double begins = least == served.end() ? 0 : least->rows;
    for (const StepCandidate& one : candidates) {
      if (!one.prompt || one.tokens == 0 || served_of(served, one.tenant) != nullptr) continue;
      const Served* known = served_of(before, one.tenant);
      if (known != nullptr) served.push_back(*known);
      if (known == nullptr && anew) served.push_back({.tenant = one.tenant, .rows = begins});
    }
  }
  return served;
}

// Null if no tenant wants further chunks.
const Served* tenant_in_turn(const Draft& plan) {
  const auto wants = [&](TenantId tenant) {
    for (size_t i = 0; i < plan.candidates.size(); ++i) {
      if (plan.candidates[i].tenant == tenant && plan.wants(i)) return true;
    }
    return false;
  };
  const auto sequences = [&](const Served* one) {
    return std::ranges::count(plan.candidates, one->tenant, &StepCandidate::tenant);
  };
  const Served* best = nullptr;
  for (const Served& one : plan.served) {
    if (!wants(one.tenant)) continue;
    const bool better = best == nullptr || one.rows < best->rows ||
                        (one.rows == best->rows && sequences(&one) < sequences(best));
    if (better) best = &one;
  }
  return best;
}

// The prompt of smallest rank of the tenant whose turn it is; every second time its shortest, if
// that is far shorter.
size_t whose_turn(const Draft& plan) {
  const Served* served = tenant_in_turn(plan);
  if (served == nullptr) return plan.candidates.size();
  const auto wants = [&](size_t i) {
    return plan.wants(i) && plan.candidates[i].tenant == served->tenant;
  };
  const size_t first = pick(plan, false, wants);
  if (served->chunks % 2 == 0) return first;
  const size_t shortest = pick(plan, true, wants);
  return is_far_shorter(plan.remaining(shortest), plan.remaining(first)) ? shortest : first;
}

bool is_decode(const StepCandidate& one) { return !one.prompt && one.tokens > 0; }

// Which sequences are in the step.
enum class Part { kAll, kDecodes, kPrompts };

Part part_of(const Draft& plan, size_t owner, int prompt_only_steps) {
  if (owner == plan.candidates.size() || std::ranges::none_of(plan.candidates, is_decode)) {
    return Part::kAll;
  }
  const bool has_decodes = std::ranges::any_of(plan.candidates, [&](const StepCandidate& one) {
    return !one.prompt && one.tenant == plan.candidates[owner].tenant;
  });
  const bool is_new_tenant = plan.bounds.separate_new_tenants && !has_decodes;
  if (!is_new_tenant && plan.piece(owner) <= plan.bounds.max_prompt_rows_with_decodes)
    return Part::kAll;
  if (prompt_only_steps == 0) return Part::kPrompts;
  return prompt_only_steps > 1 || has_decodes ? Part::kDecodes : Part::kPrompts;
}

void add_decodes(Draft& plan) {
  for (size_t i = 0; i < plan.candidates.size(); ++i) {
    if (!is_decode(plan.candidates[i])) continue;
    plan.rows[i] = 1;
    --plan.remaining_rows;
    --plan.remaining_logits;
  }
}

// Gives chunks by turns as long as they fit, then the remaining rows to prompts whose chunks fit. A
// prompt whose chunk did not fit has the first turn of the next step.
void share_among_prompts(Draft& plan) {
  const size_t none = plan.candidates.size();
  while (true) {
    const size_t owner = whose_turn(plan);
    if (owner == none || !plan.fits(owner)) break;
    plan.give_chunk(owner);
    ++plan.served_at(owner).chunks;
  }
  while (true) {
    const size_t other = pick(plan, true, [&](size_t i) { return plan.fits(i); });
    if (other == none) break;
    plan.give_chunk(other);
  }
}

}  // namespace

StepPlan plan_step(const StepBounds& bounds, std::span<const StepCandidate> candidates,
                   const Turns& before) {
  Draft plan{bounds,      candidates,    std::vector<int>(candidates.size(), 0),
             bounds.rows, bounds.logits, who_has_prompts(candidates, before.served)};
  const size_t owner = whose_turn(plan);
  const Part part = part_of(plan, owner, before.prompt_only_steps);
  if (part != Part::kPrompts) add_decodes(plan);
  if (part != Part::kDecodes) {
    // The first chunk may exceed the bound of prompt rows.
    const int first = owner == candidates.size() ? 0 : plan.piece(owner);
    const int most = part == Part::kPrompts ? 0 : bounds.prompt_rows;
    plan.remaining_rows = std::min(plan.remaining_rows, std::max(most, first));
    share_among_prompts(plan);
  }
  const int prompt_only_steps = part == Part::kPrompts ? before.prompt_only_steps + 1 : 0;
  return {.rows = std::move(plan.rows), .turns = {std::move(plan.served), prompt_only_steps}};
}

}  // namespace recurve
