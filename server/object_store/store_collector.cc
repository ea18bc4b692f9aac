#include "server/object_store/store_collector.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "server/object_store/prefix_key.h"
#include "server/object_store/printable.h"
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
  for_each(std::string(kBlobs), [&](const Listed& blob) { sort(blob); });
  for_each(std::string(kHeads), [&](const Listed& head) { read_head(head); });
  collected_.recent =
      std::ranges::count_if(young_, [&](const Listed& blob) { return !named_.contains(blob.key); });
  remove_blobs();
  remove_heads();
  for_each(std::string(kPrefixFolder), [&](const Listed& prefix) { sort_prefix(prefix); });
  for (const Listed& prefix : old_prefixes_) remove(prefix);
  return collected_;
}

void StoreCollector::for_each(const std::string& begins,
                              const std::function<void(const Listed&)>& visit) {
  const ObjectResult listed = store_.for_each(begins, visit);
  if (!listed.done()) throw std::runtime_error(listed.error);
}

bool StoreCollector::is_old(const Listed& object, std::chrono::seconds age) const {
  return object.changed > 0 && object.changed < now_ - age.count();
}

void StoreCollector::sort(const Listed& blob) {
  if (!is_blob_key(blob.key)) return report(blob.key, "no server has written it, and it stays");
  ++collected_.blobs;
  (is_old(blob, options_.grace) ? old_ : young_).push_back(blob);
}

void StoreCollector::sort_prefix(const Listed& prefix) {
  PrefixKeyParts parts;
  if (!parse_prefix_key(prefix.key, &parts)) {
    return report(prefix.key, "no server has written it, and it stays");
  }
  ++collected_.prefixes;
  if (is_old(prefix, kLongestPrefix)) old_prefixes_.push_back(prefix);
}

void StoreCollector::read_head(const Listed& listed) {
  const std::string& key = listed.key;
  const auto retain = [&](std::string_view why) {
    const std::string_view tenant = tenant_part(key, kHeads);
    retained_.emplace(tenant);
    report(key, fmt::format("{}: no blob of {} is removed", why, tenant));
  };
  if (!ObjectStore::is_key(key)) return retain("no server has written it");
  const ObjectResult found = store_.get(key, kMostBytesOfHead);
  if (found.outcome == ObjectResult::Outcome::kMissing) return;
  if (!found.done()) throw std::runtime_error(found.error);
  ++collected_.heads;
  SessionHead head;
  try {
    head = parse_any_head(found.body);
  } catch (const std::runtime_error& error) {
    return retain(error.what());
  }
  for (const RemoteBlob& blob : head.blobs) named_.insert(blob.key);
  if (head_key(head.tenant, head.session) != key) {
    return retain(
        fmt::format("it is that of session \"{}\" of tenant \"{}\"", head.session, head.tenant));
  }
  if (!head.closed()) return;
  const bool goes =
      is_old(listed, options_.grace) && head.blobs.empty() && listed.etag == found.etag;
  if (goes) closed_.push_back(listed);
  collected_.closed += goes ? 0 : 1;
}

void StoreCollector::remove_blobs() {
  for (const Listed& blob : old_) {
    if (named_.contains(blob.key) || retained_.contains(tenant_part(blob.key, kBlobs))) continue;
    remove(blob);
  }
}

void StoreCollector::remove(const Listed& object) {
  if (options_.removes) {
    const ObjectResult removed = store_.remove(object.key);
    if (!removed.done()) throw std::runtime_error(removed.error);
  }
  count_removed(object);
}

void StoreCollector::remove_heads() {
  if (options_.removes && !closed_.empty() && !store_.removes_on_condition()) {
    collected_.without_conditions = true;
    collected_.closed += static_cast<int64_t>(closed_.size());
    return;
  }
  for (const Listed& head : closed_) {
    if (options_.removes) {
      const ObjectResult removed = store_.remove(head.key, ObjectCondition::matches(head.etag));
      // It is used again; or an answer was lost, and it is gone or goes another time.
      const bool may_stay = removed.outcome == ObjectResult::Outcome::kNotMet ||
                            removed.outcome == ObjectResult::Outcome::kUnknown;
      if (may_stay) continue;
      if (!removed.done()) throw std::runtime_error(removed.error);
    }
    count_removed(head);
  }
}

void StoreCollector::count_removed(const Listed& object) {
  if (options_.on_removed) options_.on_removed(object);
  ++collected_.removed;
  collected_.removed_bytes += static_cast<int64_t>(object.bytes);
}

void StoreCollector::report(const std::string& key, const std::string& why) const {
  if (options_.on_strange) options_.on_strange(printable(key), printable(why));
}

}  // namespace recurve
