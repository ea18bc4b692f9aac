#include "server/scheduler/shares.h"

#include <algorithm>

namespace recurve {
namespace {

double slots_for_weight(const TenantUse& use, const Waiter& waiter) {
  return (use.slots + 1) / waiter.weight;
}

}  // namespace

int most_slots(const TenantLimits& limits, int slots) {
  const int share = static_cast<int>(limits.slot_share * slots);
  return std::max(1, std::min({limits.slots, share, slots}));
}

bool may_have_more(const TenantUse& use, int most) { return use.slots < most; }

std::optional<TenantId> tenant_in_turn(std::span<const Waiter> line,
                                       std::span<const TenantUse> uses) {
  std::optional<TenantId> best;
  double fewest = 0;
  uint64_t longest_ago = 0;
  for (const Waiter& waiter : line) {
    if (waiter.tenant == best) continue;
    const auto use = std::ranges::find(uses, waiter.tenant, &TenantUse::tenant);
    if (use == uses.end() || !may_have_more(*use, waiter.most_slots)) continue;
    const double slots = slots_for_weight(*use, waiter);
    const bool better = !best || slots < fewest || (slots == fewest && use->turn < longest_ago);
    if (!better) continue;
    best = waiter.tenant;
    fewest = slots;
    longest_ago = use->turn;
  }
  return best;
}

}  // namespace recurve
