#pragma once
#include <cstdint>
#include <string_view>

namespace recurve {

// Whose sessions, requests and share of the server something is. Two tenants never see each other's
// names.
using TenantId = uint32_t;

// What a caller may do beside using what is the tenant's own.
enum class Role {
  kUser,      // nothing
  kOperator,  // look at the whole server, and drain it
};

// Who asks: a door finds it out, and it goes with a request or a command wherever that goes.
struct Identity {
  TenantId tenant = 0;
  Role role = Role::kUser;
  std::string_view tenant_name = {};  // for logs; outlives all that is asked in its name
};

// As long as there are no keys, whoever reaches a door is this one.
inline constexpr Identity kAnyone{.tenant = 0, .role = Role::kOperator, .tenant_name = "default"};

}  // namespace recurve
