#include "server/request/call_registry.h"

#include <algorithm>

namespace recurve {

void CallRegistry::enter(Call* call) {
  std::lock_guard lock(mutex_);
  ++count_;
  calls_.insert(call);
}

void CallRegistry::refused() {
  std::lock_guard lock(mutex_);
  ++refused_;
  if (count_ == refused_) changed_.notify_all();
}

void CallRegistry::leave(Call* call) {
  std::lock_guard lock(mutex_);
  calls_.erase(call);
}

void CallRegistry::gone(bool was_refused) {
  std::lock_guard lock(mutex_);
  --count_;
  if (was_refused) --refused_;
  // Under the lock: once it is released, the registry may go.
  if (count_ == refused_) changed_.notify_all();
}

int CallRegistry::count() const {
  std::lock_guard lock(mutex_);
  return count_;
}

bool CallRegistry::wait_until_empty(Clock::time_point until) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, until, [this] { return count_ == 0; });
}

bool CallRegistry::wait_until_all_served(Clock::time_point until) const {
  std::unique_lock lock(mutex_);
  while (count_ != refused_) {
    const Clock::time_point end = std::min(until, end_by_);
    if (end <= Clock::now()) return false;
    changed_.wait_until(lock, end);
  }
  return true;
}

void CallRegistry::end_by(Clock::time_point deadline) {
  std::lock_guard lock(mutex_);
  end_by_ = std::min(end_by_, deadline);
  changed_.notify_all();
}

bool CallRegistry::name(TenantId tenant, const std::string& id, Call* call) {
  std::lock_guard lock(mutex_);
  return by_id_.emplace(std::pair(tenant, id), call).second;
}

void CallRegistry::forget(TenantId tenant, const std::string& id, const Call* call) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find({tenant, id});
  if (found != by_id_.end() && found->second == call) by_id_.erase(found);
}

bool CallRegistry::abort(TenantId tenant, const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find({tenant, id});
  if (found == by_id_.end()) return false;
  found->second->abort(Reason::kAbort);
  return true;
}

bool CallRegistry::abort_of_any(const std::string& id) {
  std::lock_guard lock(mutex_);
  bool found = false;
  for (const auto& [name, call] : by_id_) {
    if (name.second != id) continue;
    call->abort(Reason::kAbort);
    found = true;
  }
  return found;
}

void CallRegistry::abort_all(Reason reason) {
  std::lock_guard lock(mutex_);
  for (Call* call : calls_) call->abort(reason);
}

}  // namespace recurve
