#include "server/http/openai/responses/response_store.h"

#include <algorithm>
#include <utility>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

// About the memory of a response without its turns.
int64_t bytes_of(const StoredResponse& response) {
  constexpr size_t kEntry = 1024;
  return static_cast<int64_t>(kEntry + 2 * dump(response.object).size() +
                              response.definition.size());
}

int64_t bytes_of(const std::vector<ChatMessage>& messages) {
  constexpr size_t kTurn = 256;
  size_t bytes = kTurn;
  for (const ChatMessage& message : messages) {
    bytes += sizeof message + message.content.value_or("").size() + message.fields_json.size();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

Turn::Turn(std::shared_ptr<const Turn> before, std::vector<ChatMessage> messages, LiveBytes live)
    : before_(std::move(before)),
      messages_(std::move(messages)),
      live_(std::move(live)),
      bytes_(bytes_of(messages_)),
      bytes_of_all_(bytes_ + (before_ == nullptr ? 0 : before_->bytes_of_all_)) {
  *live_.all += bytes_;
  *live_.owners += bytes_;
}

// In a loop: each pointer would otherwise destroy its turn within the next one's destructor, and a
// long conversation would overflow the stack.
Turn::~Turn() {
  *live_.all -= bytes_;
  *live_.owners -= bytes_;
  std::shared_ptr<const Turn> last = std::move(before_);
  while (last != nullptr && last.use_count() == 1) {
    std::atomic_thread_fence(std::memory_order_acquire);  // sees what other owners wrote
    std::shared_ptr<const Turn> before = std::move(last->before_);
    last = std::move(before);
  }
}

std::shared_ptr<const Turn> ResponseStore::make_turn(TenantId owner,
                                                     std::shared_ptr<const Turn> before,
                                                     std::vector<ChatMessage> messages) {
  Turn::LiveBytes live{.all = turn_bytes_};
  {
    const std::lock_guard lock(mutex_);
    live.owners = owners_[owner].turn_bytes;
  }
  return std::make_shared<const Turn>(std::move(before), std::move(messages), std::move(live));
}

int64_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_ + *turn_bytes_;
}

std::vector<ResponseStore::Key> ResponseStore::put(TenantId tenant, TenantId owner,
                                                   StoredResponse response) {
  Entry entry{.bytes = bytes_of(response), .stored = Clock::now(), .owner = owner};
  Key key(tenant, response.id);
  entry.response = std::make_shared<const StoredResponse>(std::move(response));
  std::lock_guard lock(mutex_);
  entry.position = order_.insert(order_.end(), key);
  Owner& of = owners_[owner];
  entry.owners_position = of.order.insert(of.order.end(), key);
  of.bytes += entry.bytes;
  bytes_ += entry.bytes;
  entries_.insert_or_assign(std::move(key), std::move(entry));
  std::vector<Key> gone;
  while (bytes_ + *turn_bytes_ > most_bytes_ && !order_.empty()) {
    gone.push_back(oldest_of_largest());
    erase(entries_.find(gone.back()));
  }
  return gone;
}

// At least one owner has a response.
const ResponseStore::Key& ResponseStore::oldest_of_largest() const {
  const Owner* largest = nullptr;
  for (const auto& [id, owner] : owners_) {
    if (owner.order.empty()) continue;
    if (largest == nullptr || owner.all_bytes() > largest->all_bytes()) largest = &owner;
  }
  return largest->order.front();
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
  order_.erase(entry->second.position);
  const auto owner = owners_.find(entry->second.owner);
  owner->second.bytes -= entry->second.bytes;
  owner->second.order.erase(entry->second.owners_position);
  if (owner->second.order.empty()) owners_.erase(owner);
  entries_.erase(entry);
}

}  // namespace recurve
