#include "server/object_store/store_collector.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "server/object_store/session_head.h"

namespace recurve {
namespace {

constexpr std::chrono::hours kLeastGrace(2);
constexpr std::string_view kHeads = "sessions/", kBlobs = "blobs/";

// "t-TENANT" of FOLDER/t-TENANT/...
std::string_view tenant_part(std::string_view key, std::string_view folder) {
  key.remove_prefix(std::min(folder.size(), key.size()));
  return key.substr(0, key.find('/'));
}

}  // namespace

StoreCollector::Collected StoreCollector::collect() {
  if (options_.grace < kLeastGrace) {
    throw std::runtime_error("the grace period must be at least two hours: a commit may take one");
  }
  // Blobs first: what is named after that is seen.
  const int64_t before = now_ - options_.grace.count();
  int64_t recent = 0;
  std::vector<ObjectStore::Listed> young;
  for_each(std::string(kBlobs), [&](const ObjectStore::Listed& blob) {
    ++collected_.blobs;
    (blob.changed > 0 && blob.changed < before ? old_ : young).push_back(blob);
  });
  for_each(std::string(kHeads), [&](const ObjectStore::Listed& head) {
    ++collected_.heads;
    read_head(head.key);
  });
  for (const ObjectStore::Listed& blob : young) recent += named_.contains(blob.key) ? 0 : 1;
  collected_.recent = recent;
  for (const ObjectStore::Listed& blob : old_) {
    if (named_.contains(blob.key) || retained_.contains(tenant_part(blob.key, kBlobs))) continue;
    remove(blob);
  }
  return collected_;
}

void StoreCollector::for_each(const std::string& begins,
                              const std::function<void(const ObjectStore::Listed&)>& visit) {
  std::string after;
  while (true) {
    const ObjectStore::Page page = store_.list(begins, after);
    if (!page.result.done()) throw std::runtime_error(page.result.error);
    for (const ObjectStore::Listed& one : page.objects) visit(one);
    if (!page.more) return;
    after = page.objects.back().key;
  }
}

void StoreCollector::read_head(const std::string& key) {
  const ObjectResult found = store_.get(key, kMostBytesOfHead);
  if (found.outcome == ObjectResult::Outcome::kMissing) return;
  if (!found.done()) throw std::runtime_error(found.error);
  try {
    for (RemoteBlob& blob : blobs_of_head(found.body)) named_.insert(std::move(blob.key));
  } catch (const std::runtime_error& error) {
    retained_.emplace(tenant_part(key, kHeads));
    if (options_.on_damaged) options_.on_damaged(key, error.what());
  }
}

void StoreCollector::remove(const ObjectStore::Listed& blob) {
  if (options_.on_blob) options_.on_blob(blob);
  ++collected_.removed;
  collected_.removed_bytes += static_cast<int64_t>(blob.bytes);
  if (!options_.removes) return;
  const ObjectResult removed = store_.remove(blob.key);
  if (!removed.done()) throw std::runtime_error(removed.error);
}

}  // namespace recurve
