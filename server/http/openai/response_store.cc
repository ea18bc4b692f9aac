#include "server/http/openai/response_store.h"

#include <algorithm>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

// About what it takes, its own turn included: those before belong to others, or did.
int64_t bytes_of(const StoredResponse& response) {
  constexpr size_t kEntry = 1024;
  size_t bytes = kEntry + 2 * dump(response.object).size() + response.definition.size();
  for (const ChatMessage& message : response.turn->messages) {
    bytes += sizeof message + message.content.value_or("").size() + message.fields_json.size();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

std::vector<ResponseStore::Key> ResponseStore::put(TenantId tenant, StoredResponse response) {
  Entry entry{.bytes = bytes_of(response), .stored = Clock::now()};
  Key key(tenant, response.id);
  entry.response = std::make_shared<const StoredResponse>(std::move(response));
  std::lock_guard lock(mutex_);
  entry.place = order_.insert(order_.end(), key);
  bytes_ += entry.bytes;
  entries_.insert_or_assign(std::move(key), std::move(entry));
  std::vector<Key> gone;
  while (bytes_ > most_bytes_) {
    gone.push_back(order_.front());
    erase(entries_.find(order_.front()));
  }
  return gone;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(TenantId tenant, const std::string& id,
                                                          double most_age) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find({tenant, id});
  if (found == entries_.end()) return nullptr;
  if (most_age > 0 && seconds_between(found->second.stored, Clock::now()) > most_age) {
    erase(found);
    return nullptr;
  }
  return found->second.response;
}

bool ResponseStore::erase(TenantId tenant, const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find({tenant, id});
  if (found == entries_.end()) return false;
  erase(found);
  return true;
}

std::optional<std::string> ResponseStore::erase_oldest(TenantId tenant, const std::string& spared) {
  std::lock_guard lock(mutex_);
  const auto oldest = std::find_if(order_.begin(), order_.end(), [&](const Key& key) {
    return key.first == tenant && key.second != spared;
  });
  if (oldest == order_.end()) return {};
  std::string id = oldest->second;
  erase(entries_.find(*oldest));
  return id;
}

void ResponseStore::erase(Entries::iterator entry) {
  bytes_ -= entry->second.bytes;
  order_.erase(entry->second.place);
  entries_.erase(entry);
}

}  // namespace recurve
