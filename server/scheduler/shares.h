#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "server/identity/identity.h"
#include "server/scheduler/admission.h"

namespace recurve {

// How tenants share slots; where there are no keys, connections stand for them, and share what is
// their address's (Identity::share(), group()). Pure: no clock, no requests, no locks.

// What a tenant has of them now.
struct TenantUse {
  TenantId tenant = 0;  // Identity::share()
  int slots = 0;
  uint64_t turn = 0;  // its last one, of all that were given; 0: it had none
  double asked = 0;   // when it last did: seconds of any clock
};

// A tenant is around while it has slots, and for so many seconds after it has asked for one.
inline constexpr double kActiveSeconds = 10;
bool is_active(const TenantUse& use, double now);
// Of several groups.
bool several_are_active(std::span<const TenantUse> uses, double now);

// Tenants with keys are known before they ask. An address is known for so many seconds after it has
// asked: an answer of minutes that begins while no other runs delays none.
inline constexpr double kKnownSeconds = 600;
bool several_are_known(std::span<const TenantUse> uses, double now);

// How many of the slots a tenant may have at once, by its limits.
int most_slots(const Identity& who, int slots);

// Slots that connections without any find free, however many others ask: where there are keys none.
int slots_for_new_tenants(TenantId tenant, int slots);

// Who has what of the slots at one moment. A view: the uses outlive it and stay as they are.
class SlotUse {
 public:
  SlotUse(std::span<const TenantUse> uses, int slots, double now);

  // Null: it is in no use.
  const TenantUse* of(TenantId tenant) const;
  // Whether a tenant that may have so many slots may have one more. One that has some leaves the
  // last ones free, where there are several: one for a tenant that has none while such a one is
  // around, and where there are no keys an eighth, four at most, for connections that have none,
  // also those that are yet to come. So what they ask for begins at once, and not when somebody
  // else's has ended. Another address may have seven eighths, and all while no several are known.
  bool may_have_more(const TenantUse& use, int most) const;

  // Slots for the weight that a tenant and its group would have with the next one.
  struct Rank {
    double of_group = 0, own = 0;
    uint64_t turn = 0;
    auto operator<=>(const Rank&) const = default;
  };
  Rank rank(const TenantUse& use, double weight) const;

 private:
  int of_group(TenantId tenant) const;
  int reserved_from(const TenantUse& use) const;

  const std::span<const TenantUse> uses_;
  const int slots_;
  const bool several_known_;
  bool awaited_ = false;  // somebody without a slot is around
  int in_use_ = 0;
  std::vector<std::pair<TenantId, int>> groups_ = {};  // that have slots, in order
};

// Whose is the next slot: of the groups in the line that may have one more, the one that would have
// the fewest for its weight then, and so of its tenants; of equals, the one whose last turn is
// longest ago. So a tenant's requests wait for each other, however many there are and however
// urgent, and not for another's. Nothing if no request in the line may have more. All in the line
// have a use.
std::optional<TenantId> tenant_in_turn(std::span<const Waiter> line, const SlotUse& use);

}  // namespace recurve
