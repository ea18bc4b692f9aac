#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "server/identity/identity.h"
#include "server/scheduler/admission.h"

namespace recurve {

// How tenants share slots. Without keys, a connection counts as a tenant, and the connections of an
// address form a group (Identity::share(), group()). Pure functions: no clock, no locks.

// The slots that a tenant has now.
struct TenantUse {
  TenantId tenant = 0;  // Identity::share()
  int slots = 0;
  uint64_t turn = 0;               // number of its last turn, among all tenants; 0: none
  double asked = 0;                // when its last request arrived: seconds of any clock
  int64_t pages = 0;               // that what is in its slots may come to need
  double weight = 1;               // of its last request, see TenantLimits
  int most = TenantLimits::kNone;  // slots, see most_slots()
};

// A tenant is active while it has slots, and for this time after the arrival of a request.
inline constexpr double kActiveSeconds = 10;
bool is_active(const TenantUse& use, double now);
// Tenants of several groups are active.
bool several_are_active(std::span<const TenantUse> uses, double now);

// A group is known while it has slots, and for this time after its last request, which is longer
// than most answers.
inline constexpr double kKnownSeconds = 600;
bool several_are_known(std::span<const TenantUse> uses, double now);

// Maximum of a tenant's slots, by its limits.
int most_slots(const Identity& who, int slots);

// Slots that are reserved for connections without a slot; 0 with keys.
int slots_for_new_tenants(TenantId tenant, int slots);

// The use of slots at one moment. A view: the uses outlive it and do not change.
class SlotUse {
 public:
  SlotUse(std::span<const TenantUse> uses, int slots, double now);

  // Null if `uses` has no entry of the tenant.
  const TenantUse* of(TenantId tenant) const;
  // Whether a tenant may have another slot. A tenant that has slots leaves the last ones free, so
  // that requests of others start at once: one, while an active tenant has none, or would be before
  // it in the order of ranks; without keys also an eighth of the slots, four at most, for
  // connections that have none. An address may have seven eighths of the slots, or all while no
  // other group is known.
  bool may_have_more(const TenantUse& use) const;

  // Slots per weight that a tenant and its group would have with another slot.
  struct Rank {
    double of_group = 0, own = 0;
    uint64_t turn = 0;
    auto operator<=>(const Rank&) const = default;
  };
  Rank rank(const TenantUse& use) const;

 private:
  int of_group(TenantId tenant) const;
  int reserved_from(const TenantUse& use) const;

  const std::span<const TenantUse> uses_;
  const int slots_;
  const bool several_known_;
  int in_use_ = 0;
  std::vector<std::pair<TenantId, int>> groups_ = {};  // with slots, ordered
  std::optional<Rank> first_;  // of active tenants that may come to ask for another slot
};

// The tenant that gets the next slot: of the groups in the line that may have another slot, the one
// that would have the fewest per weight, then the same among its tenants; of equals, the one whose
// last turn is the oldest. So the number and priority of a tenant's requests do not delay other
// tenants. Empty if no request in the line may have a slot. Every tenant in the line has an entry
// in the uses.
std::optional<TenantId> tenant_in_turn(std::span<const Waiter> line, const SlotUse& use);

}  // namespace recurve
