#pragma once
#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/identity/identity.h"
#include "server/request/clock.h"
#include "server/text/chat/chat_input.h"

namespace recurve {

// A part of a conversation: messages and the answer, after the turns before it.
class Turn {
 public:
  // Of all turns, and of those of their owner.
  struct LiveBytes {
    std::shared_ptr<std::atomic<int64_t>> all, owners;
  };
  Turn(std::shared_ptr<const Turn> before, std::vector<ChatMessage> messages, LiveBytes live);
  ~Turn();  // with any number of turns before it
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  const Turn* before() const { return before_.get(); }
  const std::vector<ChatMessage>& messages() const { return messages_; }
  int64_t bytes_of_all() const { return bytes_of_all_; }  // those before it included

 private:
  mutable std::shared_ptr<const Turn> before_;  // taken from it by the last owner
  const std::vector<ChatMessage> messages_;
  const LiveBytes live_;
  const int64_t bytes_, bytes_of_all_;
};

// A stored response: it can be read again, and conversations can branch from it. The state after
// its answer is an internal session: see reserved_name().
struct StoredResponse {
  std::string id = {};
  nlohmann::json object = {};  // as it was answered
  std::shared_ptr<const Turn> turn = {};
  // What the state has absorbed before the turns: instructions, tools, variables of the template.
  std::string definition = {};
  std::string model = {};  // the name of the model, whose state it is
};

// The responses of all tenants, each of which sees only its responses. Bounded by age and by bytes:
// above the limit, the owner with the most bytes loses its oldest, so that no owner below an equal
// share loses one to another. An owner is a tenant or, without keys, an address. A turn counts as
// long as a later response needs it. Any thread.
class ResponseStore {
 public:
  explicit ResponseStore(int64_t most_bytes) : most_bytes_(most_bytes) {}

  using Key = std::pair<TenantId, std::string>;  // and the response's id

  // The turns of one conversation may take half of all.
  int64_t most_bytes_of_turns() const { return most_bytes_ / 2; }
  std::shared_ptr<const Turn> make_turn(TenantId owner, std::shared_ptr<const Turn> before,
                                        std::vector<ChatMessage> messages);

  // Stores it. Returns those that were removed for it, which includes it if it is too large itself.
  std::vector<Key> put(TenantId tenant, TenantId owner, StoredResponse response);
  // Null if there is none, or it is older than `most_age` seconds; 0: of any age.
  std::shared_ptr<const StoredResponse> find(TenantId tenant, const std::string& id,
                                             double most_age);
  // False if there is none.
  bool erase(TenantId tenant, const std::string& id);
  // Removes the tenant's oldest except `spared`, and returns its id; nothing if there is none.
  std::optional<std::string> erase_oldest(TenantId tenant, const std::string& spared);

  int64_t bytes() const;  // of all responses and turns

 private:
  struct Entry {
    std::shared_ptr<const StoredResponse> response;
    int64_t bytes = 0;
    Clock::time_point stored;
    TenantId owner = 0;
    std::list<Key>::iterator position, owners_position;
  };
  using Entries = std::map<Key, Entry>;
  struct Owner {
    std::list<Key> order = {};  // oldest first
    int64_t bytes = 0;          // of its responses
    std::shared_ptr<std::atomic<int64_t>> turn_bytes = std::make_shared<std::atomic<int64_t>>(0);
    int64_t all_bytes() const { return bytes + *turn_bytes; }
  };

  void erase(Entries::iterator entry);
  const Key& oldest_of_largest() const;

  const int64_t most_bytes_;
  const std::shared_ptr<std::atomic<int64_t>> turn_bytes_ =
      std::make_shared<std::atomic<int64_t>>(0);
  mutable std::mutex mutex_;
  Entries entries_;
  std::list<Key> order_;              // oldest first
  std::map<TenantId, Owner> owners_;  // that have responses, or are about to
  int64_t bytes_ = 0;
};

}  // namespace recurve
