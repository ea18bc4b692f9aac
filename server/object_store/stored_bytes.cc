#include "server/object_store/stored_bytes.h"

#include <stdexcept>
#include <utility>

#include "server/object_store/session_head.h"

namespace recurve {

std::optional<int64_t> StoredBytes::of(const std::string& tenant, std::string* error) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  Tenant& one = tenants_[tenant];
  lock.unlock();
  const std::lock_guard listing(one.listing);
  if (!one.listed || Clock::now() - one.when >= interval_) {
    lock.lock();
    one.since = 0;  // what is added from here on may be in the list too
    lock.unlock();
    one.when = Clock::now();
    one.listed = list(tenant, error);
    if (!one.listed) return std::nullopt;
  }
  lock.lock();
  return *one.listed + one.since;
}

void StoredBytes::add(const std::string& tenant, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = tenants_.find(tenant);
  if (found != tenants_.end()) found->second.since += bytes;
}

std::optional<int64_t> StoredBytes::list(const std::string& tenant, std::string* error) {
  int64_t bytes = 0;
  ObjectResult listed = store_.for_each(blob_folder(tenant), [&](const ObjectStore::Listed& blob) {
    bytes += static_cast<int64_t>(blob.bytes);
  });
  if (listed.done()) return bytes;
  *error = std::move(listed.error);
  return std::nullopt;
}

std::map<std::string, TenantBlobs> blobs_of_tenants(ObjectStore& store) {
  std::map<std::string, TenantBlobs> all;
  const ObjectResult listed = store.for_each("blobs/", [&](const ObjectStore::Listed& blob) {
    if (!is_blob_key(blob.key)) return;
    const size_t begin = blob_folder("").size() - 1, end = blob.key.rfind('/');
    TenantBlobs& of = all[blob.key.substr(begin, end - begin)];
    ++of.blobs;
    of.bytes += static_cast<int64_t>(blob.bytes);
  });
  if (!listed.done()) throw std::runtime_error(listed.error);
  return all;
}

}  // namespace recurve
