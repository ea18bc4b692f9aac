#include "server/session/stored_pages.h"

namespace recurve {

void StoredPages::add(const StateStore& store, TenantId tenant, StateStore::Pages last) {
  while (last.id > 0) {
    Group& group = groups_[last.id];
    if (group.users++ > 0) return;
    const StateStore::Pages before = store.pages_before(last.id);
    group.before = before.id;
    group.bytes = static_cast<int64_t>(last.reserved);
    count(tenant, group.bytes);
    last = before;
  }
}

void StoredPages::remove(TenantId tenant, uint64_t last) {
  while (last > 0) {
    const auto group = groups_.find(last);
    if (--group->second.users > 0) return;
    count(tenant, -group->second.bytes);
    last = group->second.before;
    groups_.erase(group);
  }
}

void StoredPages::count(TenantId tenant, int64_t bytes) {
  bytes_ += bytes;
  const auto of = of_tenants_.try_emplace(tenant).first;
  of->second += bytes;
  if (of->second == 0) of_tenants_.erase(of);
}

int64_t StoredPages::bytes(TenantId tenant) const {
  const auto of = of_tenants_.find(tenant);
  return of == of_tenants_.end() ? 0 : of->second;
}

// A node each, with its share of the buckets.
int64_t StoredPages::memory() const {
  constexpr int64_t kHeap = 16, kPointers = 3 * sizeof(void*);
  const auto each = static_cast<int64_t>(sizeof(decltype(groups_)::value_type)) + kHeap + kPointers;
  return static_cast<int64_t>(groups_.size()) * (each + StateStore::page_group_memory());
}

}  // namespace recurve
