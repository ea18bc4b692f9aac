#include "server/http/openai/response_store.h"

#include <algorithm>
#include <utility>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

// About what it takes beside its turns.
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

Turn::Turn(std::shared_ptr<const Turn> before, std::vector<ChatMessage> messages,
           std::shared_ptr<std::atomic<int64_t>> live_bytes)
    : before_(std::move(before)),
      messages_(std::move(messages)),
      live_bytes_(std::move(live_bytes)),
      bytes_(bytes_of(messages_)),
      bytes_of_all_(bytes_ + (before_ == nullptr ? 0 : before_->bytes_of_all_)) {
  *live_bytes_ += bytes_;
}

// One after another: left to their pointers, each would go within the one behind it, and a long
// conversation would take all of a thread's stack.
Turn::~Turn() {
  *live_bytes_ -= bytes_;
  std::shared_ptr<const Turn> last = std::move(before_);
  while (last != nullptr && last.use_count() == 1) {
    std::atomic_thread_fence(std::memory_order_acquire);  // what others did before they let it go
    std::shared_ptr<const Turn> before = std::move(last->before_);
    last = std::move(before);
  }
}

std::shared_ptr<const Turn> ResponseStore::make_turn(std::shared_ptr<const Turn> before,
                                                     std::vector<ChatMessage> messages) const {
  return std::make_shared<const Turn>(std::move(before), std::move(messages), turn_bytes_);
}

int64_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_ + *turn_bytes_;
}

std::vector<ResponseStore::Key> ResponseStore::put(TenantId tenant, StoredResponse response) {
  Entry entry{.bytes = bytes_of(response), .stored = Clock::now()};
  Key key(tenant, response.id);
  entry.response = std::make_shared<const StoredResponse>(std::move(response));
  std::lock_guard lock(mutex_);
  entry.place = order_.insert(order_.end(), key);
  bytes_ += entry.bytes;
  entries_.insert_or_assign(std::move(key), std::move(entry));
  std::vector<Key> gone;
  while (bytes_ + *turn_bytes_ > most_bytes_ && !order_.empty()) {
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
