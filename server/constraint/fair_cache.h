#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <utility>

namespace recurve {

// A cache shared by clients, of a limited total size. It evicts the least recently used entry of
// the client with the most bytes, so that a client that always adds new entries evicts its own; but
// first those of a client that has used nothing for a long time. One thread at a time.
template <typename Key, typename Value>
class FairCache {
 public:
  static constexpr std::chrono::nanoseconds kIdle = std::chrono::minutes(10);

  explicit FairCache(size_t most_bytes, std::chrono::nanoseconds idle = kIdle)
      : most_bytes_(most_bytes), idle_(idle) {}

  // The value, used by this client; null: there is none. It then counts for the client or for its
  // previous owner, whichever has fewer bytes. Valid until the next put().
  template <typename LikeKey>
  const Value* find(const LikeKey& key, uint64_t client) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return nullptr;
    const uint64_t owner = found->second.client;
    remove_from_share(found);
    add_to_share(found, bytes_of(client) < bytes_of(owner) ? client : owner);
    return &found->second.value;
  }

  // Adds an entry unless the key exists. `bytes`: memory of the entry and its key.
  void put(Key key, Value value, size_t bytes, uint64_t client) {
    const auto [entry, is_new] =
        entries_.try_emplace(std::move(key), Entry{std::move(value), bytes});
    if (!is_new) return;
    bytes_ += bytes;
    add_to_share(entry, client);
    while (bytes_ > most_bytes_) evict_one();
  }

  size_t bytes() const { return bytes_; }
  size_t most_bytes() const { return most_bytes_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry;
  using Entries = std::map<Key, Entry, std::less<>>;
  struct Entry {
    Value value;
    size_t bytes;
    uint64_t client = 0;
    typename std::list<typename Entries::iterator>::iterator position =
        {};  // in its client's share
  };
  // The entries of one client.
  struct Share {
    std::list<typename Entries::iterator> entries = {};  // most recently used first
    size_t bytes = 0;
    Clock::time_point used = {};
    std::list<uint64_t>::iterator position = {};  // in clients_
  };

  size_t bytes_of(uint64_t client) const {
    const auto found = shares_.find(client);
    return found == shares_.end() ? 0 : found->second.bytes;
  }
  void add_to_share(typename Entries::iterator entry, uint64_t client) {
    const auto [at, is_new] = shares_.try_emplace(client);
    Share& share = at->second;
    if (is_new) {
      share.position = clients_.insert(clients_.begin(), client);
    } else {
      clients_.splice(clients_.begin(), clients_, share.position);
    }
    share.used = Clock::now();
    entry->second.client = client;
    entry->second.position = share.entries.insert(share.entries.begin(), entry);
    resize(client, &share, share.bytes + entry->second.bytes);
  }
  void remove_from_share(typename Entries::iterator entry) {
    const auto at = shares_.find(entry->second.client);
    Share& share = at->second;
    share.entries.erase(entry->second.position);
    resize(at->first, &share, share.bytes - entry->second.bytes);
    if (!share.entries.empty()) return;
    by_bytes_.erase({share.bytes, at->first});
    clients_.erase(share.position);
    shares_.erase(at);
  }
  void resize(uint64_t client, Share* share, size_t bytes) {
    by_bytes_.erase({share->bytes, client});
    share->bytes = bytes;
    by_bytes_.emplace(bytes, client);
  }
  void evict_one() {
    const Share& quiet = shares_.at(clients_.back());
    const bool is_idle = Clock::now() - quiet.used > idle_;
    const Share& of = is_idle ? quiet : shares_.at(by_bytes_.rbegin()->second);
    const auto entry = of.entries.back();
    bytes_ -= entry->second.bytes;
    remove_from_share(entry);
    entries_.erase(entry);
  }

  const size_t most_bytes_;
  const std::chrono::nanoseconds idle_;
  Entries entries_;
  std::map<uint64_t, Share> shares_;                // by client with entries
  std::set<std::pair<size_t, uint64_t>> by_bytes_;  // of shares_
  std::list<uint64_t> clients_;                     // of shares_; most recently used first
  size_t bytes_ = 0;
};

}  // namespace recurve
