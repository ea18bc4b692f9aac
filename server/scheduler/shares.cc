#include "server/scheduler/shares.h"

#include <algorithm>

#include "server/identity/tenants.h"

namespace recurve {
namespace {

constexpr int kLeastToReserveOne = 4;  // with fewer slots, one is too large a part
// Slots reserved for connections without one: this part of all, and a maximum.
constexpr int kReservedPart = 8, kMostReserved = 4;

template <typename Counts>
bool several_groups(std::span<const TenantUse> uses, const Counts& counts) {
  std::optional<TenantId> first;
  return std::ranges::any_of(uses, [&](const TenantUse& use) {
    if (!counts(use)) return false;
    if (!first) first = group_of(use.tenant);
    return *first != group_of(use.tenant);
  });
}

}  // namespace

bool several_are_known(std::span<const TenantUse> uses, double now) {
  return several_groups(
      uses, [&](const TenantUse& use) { return use.slots > 0 || now - use.asked < kKnownSeconds; });
}

int most_slots(const Identity& who, int slots) {
  const int share = static_cast<int>(who.limits.slot_share * slots);
  return std::max(1, std::min({who.limits.slots, share, slots}));
}

bool is_active(const TenantUse& use, double now) {
  return use.slots > 0 || now - use.asked < kActiveSeconds;
}

bool several_are_active(std::span<const TenantUse> uses, double now) {
  return several_groups(uses, [&](const TenantUse& use) { return is_active(use, now); });
}

int slots_for_new_tenants(TenantId tenant, int slots) {
  const bool some = is_visitor(tenant) && slots >= kLeastToReserveOne;
  return some ? std::clamp(slots / kReservedPart, 1, kMostReserved) : 0;
}

SlotUse::SlotUse(std::span<const TenantUse> uses, int slots, double now)
    : uses_(uses), slots_(slots), several_known_(several_are_known(uses, now)) {
  for (const TenantUse& use : uses) {
    in_use_ += use.slots;
    if (use.slots == 0) continue;
    const TenantId group = group_of(use.tenant);
    const auto at = std::ranges::lower_bound(groups_, group, {}, &std::pair<TenantId, int>::first);
    if (at != groups_.end() && at->first == group) {
      at->second += use.slots;
    } else {
      groups_.insert(at, {group, use.slots});
    }
  }
  for (const TenantUse& use : uses) {
    const bool has_reserve = use.slots == 0 && is_visitor(use.tenant);
    if (has_reserve || use.slots >= use.most || !is_active(use, now)) continue;
    const Rank its = use.slots == 0 ? Rank{} : rank(use);
    if (!first_ || its < *first_) first_ = its;
  }
}

const TenantUse* SlotUse::of(TenantId tenant) const {
  const auto found = std::ranges::find(uses_, tenant, &TenantUse::tenant);
  return found == uses_.end() ? nullptr : &*found;
}

int SlotUse::of_group(TenantId tenant) const {
  const TenantId group = group_of(tenant);
  const auto at = std::ranges::lower_bound(groups_, group, {}, &std::pair<TenantId, int>::first);
  return at != groups_.end() && at->first == group ? at->second : 0;
}

int SlotUse::reserved_from(const TenantUse& use) const {
  if (slots_ < kLeastToReserveOne || use.slots == 0) return 0;
  const Rank own = rank(use);
  const bool other_first =
      first_ && std::pair(first_->of_group, first_->own) < std::pair(own.of_group, own.own);
  return slots_for_new_tenants(use.tenant, slots_) + (other_first ? 1 : 0);
}

bool SlotUse::may_have_more(const TenantUse& use) const {
  if (use.slots >= use.most) return false;
  const int most_of_group = std::max(1, static_cast<int>(kShareOfOne * slots_));
  const TenantId group = group_of(use.tenant);
  const bool one_of_several = is_visitor(group) && group != kThisMachine && several_known_;
  if (one_of_several && of_group(use.tenant) >= most_of_group) return false;
  const int reserved = reserved_from(use);
  return reserved == 0 || in_use_ < slots_ - reserved;
}

SlotUse::Rank SlotUse::rank(const TenantUse& use) const {
  return {.of_group = (of_group(use.tenant) + 1) / use.weight,
          .own = (use.slots + 1) / use.weight,
          .turn = use.turn};
}

std::optional<TenantId> tenant_in_turn(std::span<const Waiter> line, const SlotUse& use) {
  std::optional<TenantId> best;
  SlotUse::Rank first;
  for (const Waiter& waiter : line) {
    if (waiter.tenant == best) continue;
    const TenantUse* its = use.of(waiter.tenant);
    if (its == nullptr || !use.may_have_more(*its)) continue;
    const SlotUse::Rank rank = use.rank(*its);
    if (best && !(rank < first)) continue;
    best = waiter.tenant;
    first = rank;
  }
  return best;
}

}  // namespace recurve
