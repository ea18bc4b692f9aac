#pragma once
#include <cstdint>
#include <unordered_map>

#include "server/identity/identity.h"
#include "server/storage/state_store.h"

namespace recurve {

// The page groups on the disk of some states, those of durable sessions and their marks or those of
// cached prefixes, and what they take there: each is counted once, however many states share it.
// Belongs to the engine's thread.
class StoredPages {
 public:
  // Another state has these as its last pages; or no longer has them.
  void add(const StateStore& store, TenantId tenant, StateStore::Pages last);
  void remove(TenantId tenant, uint64_t last);

  int64_t bytes() const { return bytes_; }
  int64_t bytes(TenantId tenant) const;
  // Host memory, with what the store has of them.
  int64_t memory() const;

 private:
  struct Group {
    int32_t users = 0;  // states, and groups that it is before
    uint64_t before = 0;
    int64_t bytes = 0;
  };
  void count(TenantId tenant, int64_t bytes);

  std::unordered_map<uint64_t, Group> groups_;  // by ID
  std::unordered_map<TenantId, int64_t> of_tenants_;
  int64_t bytes_ = 0;
};

}  // namespace recurve
