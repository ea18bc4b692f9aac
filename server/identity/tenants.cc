#include "server/identity/tenants.h"

#include <map>
#include <mutex>
#include <string>

namespace recurve {

namespace {

struct Known {
  std::mutex mutex;
  std::map<std::string, TenantId, std::less<>> ids = {
      {std::string(kAnyone.tenant_name), kAnyone.tenant}};
};

Known& known() {
  static Known all;
  return all;
}

}  // namespace

Tenant tenant_named(std::string_view name) {
  auto& [mutex, ids] = known();
  std::lock_guard lock(mutex);
  auto found = ids.find(name);
  if (found == ids.end()) {
    found = ids.emplace(name, static_cast<TenantId>(ids.size())).first;
  }
  return {found->second, found->first};
}

std::vector<Tenant> known_tenants() {
  auto& [mutex, ids] = known();
  std::lock_guard lock(mutex);
  std::vector<Tenant> tenants;
  for (const auto& [name, id] : ids) tenants.push_back({id, name});
  return tenants;
}

}  // namespace recurve
