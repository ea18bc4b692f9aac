#include "server/identity/tenants.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace recurve {
namespace {

struct Known {
  std::mutex mutex;
  std::map<std::string, TenantId, std::less<>> ids = {
      {std::string(kAnyone.tenant_name), kAnyone.tenant}};
  std::vector<std::string_view> names = {ids.begin()->first};  // by number
};

Known& known() {
  static Known all;
  return all;
}

}  // namespace

Tenant tenant_named(std::string_view name) {
  Known& all = known();
  std::lock_guard lock(all.mutex);
  auto found = all.ids.find(name);
  if (found == all.ids.end()) {
    found = all.ids.emplace(name, static_cast<TenantId>(all.ids.size())).first;
    all.names.push_back(found->first);
  }
  return {found->second, found->first};
}

std::string_view name_of_tenant(TenantId id) {
  Known& all = known();
  std::lock_guard lock(all.mutex);
  return id < all.names.size() ? all.names[id] : std::string_view();
}

}  // namespace recurve
