#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "server/identity/identity.h"
#include "server/scheduler/admission.h"

namespace recurve {

// How tenants share slots. Pure: no clock, no requests, no locks.

// What a tenant has of them now.
struct TenantUse {
  TenantId tenant = 0;
  int slots = 0;
  uint64_t turn = 0;  // its last one, of all that were given; 0: it had none
  double asked = 0;   // when it last did: seconds of any clock
};

// A tenant is around while it has slots, and for so many seconds after it has asked for one.
inline constexpr double kAround = 10;
bool is_around(const TenantUse& use, double now);
bool several_are_around(std::span<const TenantUse> uses, double now);

// Tenants with keys are known before they ask. An address of the network that stands for one is
// known for so many seconds after it has asked: an answer of minutes that begins beside nobody is
// in nobody's way.
inline constexpr double kKnown = 600;
bool several_are_known(std::span<const TenantUse> uses, double now);

// How many of the slots a tenant may have at once, by its limits. An address may have all while no
// `several` are known.
int most_slots(const Identity& who, int slots, bool several);

// Whether a tenant with so many slots may have one more.
bool may_have_more(const TenantUse& use, int most);

// Whose is the next slot: of the tenants in the line that may have one more, the one that would
// have the fewest for its weight then; of equals, the one whose last turn is longest ago. So a
// tenant's requests wait for each other, however many there are and however urgent, and not for
// another's. Nothing where nobody in the line may have more. All in the line have a use.
//
// The last of `slots`, where there are several, is for a tenant that has none while such a one is
// around: what it asks for next begins at once, and not when somebody else's has ended.
std::optional<TenantId> tenant_in_turn(std::span<const Waiter> line,
                                       std::span<const TenantUse> uses, int slots, double now);

// Whether a tenant that has slots must leave the last one to another.
bool last_is_kept(std::span<const TenantUse> uses, int slots, double now);

}  // namespace recurve
