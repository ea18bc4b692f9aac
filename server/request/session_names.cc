#include "server/request/session_names.h"

namespace recurve {

SessionNames::Claim SessionNames::claim(TenantId tenant, const std::string& name,
                                        const std::string& model) {
  std::unique_lock lock(mutex_);
  const auto [entry, is_new] = owners_.try_emplace({tenant, name}, Owner{.model = model});
  Owner& owner = entry->second;
  if (!is_new && !(owner.retained && owner.model == model)) return nullptr;
  owner.retained = false;
  lock.unlock();  // the claim takes it, also where memory for the claim itself is short
  return Claim(&owner, [this, entry](const void*) {
    std::lock_guard released(mutex_);
    if (!entry->second.retained) owners_.erase(entry);
  });
}

void SessionNames::retain(TenantId tenant, const std::string& name) {
  std::lock_guard lock(mutex_);
  const auto entry = owners_.find({tenant, name});
  if (entry != owners_.end()) entry->second.retained = true;
}

std::string SessionNames::model_of(TenantId tenant, const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto entry = owners_.find({tenant, name});
  return entry == owners_.end() ? std::string() : entry->second.model;
}

}  // namespace recurve
