#pragma once
#include <string_view>

#include "server/identity/identity.h"

namespace recurve {

// The slot_share of one of several, tenants or addresses that stand for them: so that another finds
// a slot, as there is always somebody who does not give them back.
inline constexpr double kShareOfOne = 0.875;

// The tenant of that name, which has the same number and the same view of its name as long as the
// process lives, whatever becomes of its keys. The default tenant is "default". Thread-safe.
struct Tenant {
  TenantId id = 0;
  std::string_view name;
};
Tenant tenant_named(std::string_view name);

}  // namespace recurve
