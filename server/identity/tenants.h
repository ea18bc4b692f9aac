#pragma once
#include <string_view>
#include <vector>

#include "server/identity/identity.h"

namespace recurve {

// The slot_share of one of several tenants, or networks without keys, so that another finds a slot
// though one client may hold its slots for long.
inline constexpr double kShareOfOne = 0.875;

// The tenant of that name. Its id and the view of its name are the same until the process ends,
// even if its keys are removed. The default tenant is "default". Thread-safe.
struct Tenant {
  TenantId id = 0;
  std::string_view name;
};
Tenant tenant_named(std::string_view name);
// Those that were asked for so far. Thread-safe.
std::vector<Tenant> known_tenants();

}  // namespace recurve
