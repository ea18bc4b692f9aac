#include "server/scheduler/shares.h"

#include <algorithm>

namespace recurve {
namespace {

constexpr int kLeastToKeepOne = 4;  // slots; of fewer one is too large a part

double slots_for_weight(const TenantUse& use, const Waiter& waiter) {
  return (use.slots + 1) / waiter.weight;
}

}  // namespace

bool several_are_known(std::span<const TenantUse> uses, double now) {
  return std::ranges::count_if(uses, [&](const TenantUse& use) {
           return use.slots > 0 || now - use.asked < kKnown;
         }) > 1;
}

int most_slots(const Identity& who, int slots, bool several) {
  const bool alone = who.network != 0 && !several;
  const double share = alone ? 1 : who.limits.slot_share;
  return std::max(1, std::min({who.limits.slots, static_cast<int>(share * slots), slots}));
}

bool is_around(const TenantUse& use, double now) {
  return use.slots > 0 || now - use.asked < kAround;
}

bool several_are_around(std::span<const TenantUse> uses, double now) {
  return std::ranges::count_if(uses, [&](const TenantUse& use) { return is_around(use, now); }) > 1;
}

bool last_is_kept(std::span<const TenantUse> uses, int slots, double now) {
  if (slots < kLeastToKeepOne) return false;
  int in_use = 0;
  bool awaited = false;
  for (const TenantUse& use : uses) {
    in_use += use.slots;
    awaited |= use.slots == 0 && is_around(use, now);
  }
  return awaited && in_use >= slots - 1;
}

bool may_have_more(const TenantUse& use, int most) { return use.slots < most; }

std::optional<TenantId> tenant_in_turn(std::span<const Waiter> line,
                                       std::span<const TenantUse> uses, int slots, double now) {
  const bool kept = last_is_kept(uses, slots, now);
  std::optional<TenantId> best;
  double fewest = 0;
  uint64_t longest_ago = 0;
  for (const Waiter& waiter : line) {
    if (waiter.tenant == best) continue;
    const auto use = std::ranges::find(uses, waiter.tenant, &TenantUse::tenant);
    if (use == uses.end() || !may_have_more(*use, waiter.most_slots)) continue;
    if (kept && use->slots > 0) continue;
    const double its = slots_for_weight(*use, waiter);
    const bool better = !best || its < fewest || (its == fewest && use->turn < longest_ago);
    if (!better) continue;
    best = waiter.tenant;
    fewest = its;
    longest_ago = use->turn;
  }
  return best;
}

}  // namespace recurve
