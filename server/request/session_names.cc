#include "server/request/session_names.h"

namespace recurve {

SessionNames::Claim SessionNames::claim(TenantId tenant, const std::string& name,
                                        const std::string& model) {
  std::unique_lock lock(mutex_);
  const auto [entry, is_new] = models_.try_emplace({tenant, name}, model);
  if (!is_new) return nullptr;
  lock.unlock();  // the claim takes it, also where memory for the claim itself is short
  return Claim(&entry->second, [this, entry](const void*) {
    std::lock_guard released(mutex_);
    models_.erase(entry);
  });
}

std::string SessionNames::model_of(TenantId tenant, const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto entry = models_.find({tenant, name});
  return entry == models_.end() ? std::string() : entry->second;
}

}  // namespace recurve
