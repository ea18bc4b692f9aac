#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace recurve {
namespace {

// The step while it is being laid out.
struct Draft {
  const StepBounds& bounds;
  std::span<const Pending> pending;
  std::vector<int> rows;
  int rows_left, logits_left;
  uint64_t turn;

  int left(size_t i) const { return pending[i].tokens - rows[i]; }
  int piece(size_t i) const { return std::min(left(i), bounds.chunk); }
  int logits(size_t i) const {
    if (pending[i].scored) return piece(i);
    return left(i) == piece(i) ? 1 : 0;
  }
  bool wants(size_t i) const {
    return pending[i].prompt && left(i) > 0 && rows[i] < pending[i].most;
  }
  bool fits(size_t i) const {
    return wants(i) && piece(i) <= rows_left && logits(i) <= logits_left;
  }
  void give_chunk(size_t i) {
    const int piece = this->piece(i);
    logits_left -= logits(i);
    rows_left -= piece;
    rows[i] += piece;
  }
};

bool came_first(const Draft& plan, size_t a, size_t b) {
  return plan.pending[a].place < plan.pending[b].place;
}

bool is_shorter(const Draft& plan, size_t a, size_t b) {
  if (plan.left(a) != plan.left(b)) return plan.left(a) < plan.left(b);
  return came_first(plan, a, b);
}

// The one of those for which `may` holds that came first, or is the shortest; the number of
// sequences if there is none.
template <typename May>
size_t pick(const Draft& plan, bool shortest, const May& may) {
  size_t best = plan.pending.size();
  for (size_t i = 0; i < plan.pending.size(); ++i) {
    if (!may(i)) continue;
    const bool better = best == plan.pending.size() ||
                        (shortest ? is_shorter(plan, i, best) : came_first(plan, i, best));
    if (better) best = i;
  }
  return best;
}

// The tenant next in the order of their numbers that has a prompt; nothing behind the last.
std::optional<TenantId> tenant_behind(const Draft& plan, std::optional<TenantId> last) {
  std::optional<TenantId> next;
  for (size_t i = 0; i < plan.pending.size(); ++i) {
    const TenantId tenant = plan.pending[i].tenant;
    if (plan.wants(i) && (!last || tenant > *last) && (!next || tenant < *next)) next = tenant;
  }
  return next;
}

TenantId tenant_of_turn(const Draft& plan) {
  uint64_t count = 0;
  for (auto one = tenant_behind(plan, {}); one; one = tenant_behind(plan, one)) ++count;
  std::optional<TenantId> tenant = tenant_behind(plan, {});
  if (count < 2) return tenant.value_or(0);
  for (uint64_t i = plan.turn / 2 % count; i > 0; --i) tenant = tenant_behind(plan, tenant);
  return *tenant;
}

// The tenant's one that came first; by turns the shortest, if that is far shorter.
size_t whose_turn(const Draft& plan) {
  const TenantId tenant = tenant_of_turn(plan);
  const auto wants = [&](size_t i) { return plan.wants(i) && plan.pending[i].tenant == tenant; };
  const size_t first = pick(plan, false, wants);
  if (plan.turn % 2 == 0 || first == plan.pending.size()) return first;
  const size_t shortest = pick(plan, true, wants);
  return is_far_shorter(plan.left(shortest), plan.left(first)) ? shortest : first;
}

// Chunk by chunk to whose turn it is, as long as that fits; then what is left to whom it fits.
// Whose chunk did not fit has the first turn of the next step.
void share_among_prompts(Draft& plan) {
  const size_t none = plan.pending.size();
  while (true) {
    const size_t owner = whose_turn(plan);
    if (owner == none || !plan.fits(owner)) break;
    plan.give_chunk(owner);
    ++plan.turn;
  }
  while (true) {
    const size_t other = pick(plan, true, [&](size_t i) { return plan.fits(i); });
    if (other == none) break;
    plan.give_chunk(other);
  }
}

}  // namespace

StepPlan plan_step(const StepBounds& bounds, std::span<const Pending> pending, uint64_t turn) {
  Draft plan{bounds,      pending,       std::vector<int>(pending.size(), 0),
             bounds.rows, bounds.logits, turn};
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].prompt || pending[i].tokens == 0) continue;
    plan.rows[i] = 1;
    --plan.rows_left;
    --plan.logits_left;
  }
  plan.rows_left = std::min(plan.rows_left, std::max(bounds.prompt_rows, bounds.chunk));
  share_among_prompts(plan);
  return {.rows = std::move(plan.rows), .next_turn = plan.turn};
}

}  // namespace recurve
