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

// What was made for clients, by its key, as far as it fits into so many bytes in all. What goes
// first is what the client that has most bytes has not used for longest, so that a client that asks
// for ever new things pushes out its own alone; but a client that has used nothing for long goes
// before. One thread at a time.
template <typename Key, typename Value>
class FairCache {
 public:
  static constexpr std::chrono::nanoseconds kIdle = std::chrono::minutes(10);

  explicit FairCache(size_t most_bytes, std::chrono::nanoseconds idle = kIdle)
      : most_bytes_(most_bytes), idle_(idle) {}

  // Null: it is not here. Otherwise it has been used by this client, and belongs to it or to who
  // had it, whoever of the two has fewer bytes. Valid until the next keep().
  template <typename LikeKey>
  const Value* find(const LikeKey& key, uint64_t client) {
    const auto found = kept_.find(key);
    if (found == kept_.end()) return nullptr;
    const uint64_t owner = found->second.client;
    take_off(found);
    put_on(found, bytes_of(client) < bytes_of(owner) ? client : owner);
    return &found->second.value;
  }

  // Not where the key is here already. `bytes`: of memory, with its key.
  void keep(Key key, Value value, size_t bytes, uint64_t client) {
    const auto [entry, is_new] = kept_.try_emplace(std::move(key), Entry{std::move(value), bytes});
    if (!is_new) return;
    bytes_ += bytes;
    put_on(entry, client);
    while (bytes_ > most_bytes_) forget_one();
  }

  size_t bytes() const { return bytes_; }
  size_t most_bytes() const { return most_bytes_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry;
  using Kept = std::map<Key, Entry, std::less<>>;
  struct Entry {
    Value value;
    size_t bytes;
    uint64_t client = 0;
    typename std::list<typename Kept::iterator>::iterator place = {};  // on its client's shelf
  };
  // What one client has.
  struct Shelf {
    std::list<typename Kept::iterator> entries = {};  // the last used first
    size_t bytes = 0;
    Clock::time_point used = {};
    std::list<uint64_t>::iterator place = {};  // among all clients
  };

  size_t bytes_of(uint64_t client) const {
    const auto found = shelves_.find(client);
    return found == shelves_.end() ? 0 : found->second.bytes;
  }
  void put_on(typename Kept::iterator entry, uint64_t client) {
    const auto [at, is_new] = shelves_.try_emplace(client);
    Shelf& shelf = at->second;
    if (is_new) {
      shelf.place = clients_.insert(clients_.begin(), client);
    } else {
      clients_.splice(clients_.begin(), clients_, shelf.place);
    }
    shelf.used = Clock::now();
    entry->second.client = client;
    entry->second.place = shelf.entries.insert(shelf.entries.begin(), entry);
    resize(client, &shelf, shelf.bytes + entry->second.bytes);
  }
  void take_off(typename Kept::iterator entry) {
    const auto at = shelves_.find(entry->second.client);
    Shelf& shelf = at->second;
    shelf.entries.erase(entry->second.place);
    resize(at->first, &shelf, shelf.bytes - entry->second.bytes);
    if (!shelf.entries.empty()) return;
    by_bytes_.erase({shelf.bytes, at->first});
    clients_.erase(shelf.place);
    shelves_.erase(at);
  }
  void resize(uint64_t client, Shelf* shelf, size_t bytes) {
    by_bytes_.erase({shelf->bytes, client});
    shelf->bytes = bytes;
    by_bytes_.emplace(bytes, client);
  }
  void forget_one() {
    const Shelf& quiet = shelves_.at(clients_.back());
    const bool is_idle = Clock::now() - quiet.used > idle_;
    const Shelf& of = is_idle ? quiet : shelves_.at(by_bytes_.rbegin()->second);
    const auto entry = of.entries.back();
    bytes_ -= entry->second.bytes;
    take_off(entry);
    kept_.erase(entry);
  }

  const size_t most_bytes_;
  const std::chrono::nanoseconds idle_;
  Kept kept_;
  std::map<uint64_t, Shelf> shelves_;               // by client, of those that have something
  std::set<std::pair<size_t, uint64_t>> by_bytes_;  // each of them
  std::list<uint64_t> clients_;                     // likewise; who used something last first
  size_t bytes_ = 0;
};

}  // namespace recurve
