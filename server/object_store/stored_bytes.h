#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "server/object_store/object_store.h"

namespace recurve {

// The bytes of the blobs that tenants have in a store, by whichever server: those that a list of
// the store said, which is at most an interval old, and what this server has changed since. What
// other servers have changed since the list is missing, and what they or this one remove while it
// is made may count. Blobs that no head names count until they are collected. Calls may block. Any
// thread.
class StoredBytes {
 public:
  static constexpr std::chrono::seconds kInterval{60};
  explicit StoredBytes(ObjectStore& store, std::chrono::milliseconds interval = kInterval)
      : store_(store), interval_(interval) {}

  // Nothing: the store cannot be listed, and *error says why.
  std::optional<int64_t> of(const std::string& tenant, std::string* error);
  // A head was written that names so many bytes more. Counts only for tenants that of() was asked
  // for.
  void add(const std::string& tenant, int64_t bytes);

 private:
  struct Tenant {
    std::mutex listing;  // guards the two members below
    std::optional<int64_t> listed = {};
    std::chrono::steady_clock::time_point when = {};
    int64_t since = 0;  // guarded by mutex_
  };
  std::optional<int64_t> list(const std::string& tenant, std::string* error);

  ObjectStore& store_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;  // guards the map, whose elements remain
  std::map<std::string, Tenant> tenants_;
};

// The blobs of each tenant. Throws std::runtime_error with a sentence if the store cannot be
// listed.
struct TenantBlobs {
  int64_t blobs = 0, bytes = 0;
};
std::map<std::string, TenantBlobs> blobs_of_tenants(ObjectStore& store);

}  // namespace recurve
