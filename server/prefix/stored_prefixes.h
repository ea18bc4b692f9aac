#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "server/session/stored_pages.h"
#include "server/storage/state_store.h"

namespace recurve {

// Of the ids that a prompt begins with, and of all that decides whether a state of them may be
// used: the same in every server that may use it.
struct PrefixHash {
  uint64_t low = 0, high = 0;
  bool operator==(const PrefixHash&) const = default;

  std::string text() const;  // 32 hexadecimal digits
  // False if the text is none that text() writes.
  static bool parse(std::string_view text, PrefixHash* hash);
};

// Which states of prompts are on a disk, of this server and of those before it, by whose they are
// and by the hash of what they have absorbed. Equal hashes prove nothing: the ids themselves are
// written with a state, and the reader compares them. Knows what the states are worth, but
// reads and writes nothing. Not thread-safe.
//
// The one to make room is that of the least value, as it is in host memory (PrefixIndex): how often
// it was used times the tokens that it spares, from a clock on that moves with what goes. First go
// those that this server cannot use.
class StoredPrefixes {
 public:
  // chunk: of the grid that prompts are cut on. identity: what decides over the bits of a state.
  // store: of the states, which outlives this; null: none is put here.
  StoredPrefixes(int chunk, std::string_view identity, const StateStore* store = nullptr)
      : chunk_(chunk), identity_(identity), store_(store) {}
  StoredPrefixes(const StoredPrefixes&) = delete;
  StoredPrefixes& operator=(const StoredPrefixes&) = delete;

  struct Key {
    std::string_view tenant;  // outlives all; empty: anybody's
    PrefixHash hash;
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    StoredPtr state = {};  // null: it cannot be read
    int64_t tokens = 0;    // that it has absorbed
    int64_t gain = 0;      // of these, those that no other state had spared when it was kept
    int64_t hits = 0;
    int64_t bytes = 0;  // on the disk, without page groups
    bool usable = true;
  };

  // The hashes of what the ids begin with, after each whole chunk. adapter: the digest of that with
  // which the states are computed; empty: none.
  std::vector<PrefixHash> hashes_of(std::span<const int32_t> ids,
                                    std::string_view adapter = {}) const;

  struct Found {
    StoredPtr state = {};  // null: there is none
    PrefixHash hash = {};
    int64_t tokens = 0;
  };
  // The longest of these beginnings that is there.
  Found longest(std::string_view tenant, std::span<const PrefixHash> hashes) const;
  // Tokens of the longest one that is there, or would be if it could be read.
  int64_t longest_known(std::string_view tenant, std::span<const PrefixHash> hashes) const;

  bool has(const Key& key) const;  // that it can be read
  // It was used, and gains by it. False: it is not there.
  bool use(const Key& key);
  void put(const Key& key, Entry entry);  // in the place of one that cannot be read
  void cannot_be_read(const Key& key);

  // What a state must be worth, in tokens that it spares times its uses, to be put in the place of
  // the one of the least value.
  double least_worth() const;
  static double worth_of(int64_t gain, int64_t hits) {
    return static_cast<double>(hits + 1) * static_cast<double>(gain);
  }
  // Lets go of those of the least values until no more than so many states of so many bytes are
  // left, and says which.
  std::vector<Key> trim(int64_t most_states, int64_t most_bytes);

  bool empty() const { return entries_.empty(); }
  int64_t states() const { return static_cast<int64_t>(by_value_.size()); }
  int64_t bytes() const { return bytes_ + pages_.bytes(); }  // page groups once each
  int64_t memory() const { return states() * entry_bytes() + pages_.memory(); }
  // Host memory that one takes, with what the store has of it.
  static int64_t entry_bytes();

 private:
  struct HashOfKey {
    size_t operator()(const Key& key) const { return key.hash.low; }
  };
  struct Valued : Entry {
    double value = 0;
    uint64_t last_group = 0;  // of its pages, in pages_
  };
  using Entries = std::unordered_map<Key, Valued, HashOfKey>;
  // Of equal value goes the one first that was written first.
  using ByValue = std::set<std::tuple<double, uint64_t, const Key*>>;

  static ByValue::value_type place_of(const Entries::value_type& entry) {
    return {entry.second.value, entry.second.state->id(), &entry.first};
  }
  void take_out(Entries::value_type& entry);
  void put_in(Entries::value_type& entry);

  const int chunk_;
  const std::string identity_;
  const StateStore* const store_;
  StoredPages pages_;
  Entries entries_;
  ByValue by_value_;  // those that can be read
  double clock_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace recurve
