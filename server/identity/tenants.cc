#include "server/identity/tenants.h"

#include <map>
#include <mutex>
#include <string>

namespace recurve {

Tenant tenant_named(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, TenantId, std::less<>> ids = {
      {std::string(kAnyone.tenant_name), kAnyone.tenant}};
  std::lock_guard lock(mutex);
  auto found = ids.find(name);
  if (found == ids.end()) {
    found = ids.emplace(name, static_cast<TenantId>(ids.size())).first;
  }
  return {found->second, found->first};
}

}  // namespace recurve
