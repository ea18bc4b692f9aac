#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/storage/journal.h"

namespace recurve {

// Records with this prefix of the key are useful, but promised to no client: see StateStore.
inline constexpr std::string_view kExpendable = "prefix ";
inline bool is_expendable(std::string_view key) { return key.starts_with(kExpendable); }

// The records of a store by their keys, each serialized as in the journal: a hundred thousand of
// them take little more memory than their texts.
class Records {
 public:
  void put(const RecordEntry& record) {  // replaces the record of that key
    std::string entry;
    append_entry(record, &entry);
    entry.shrink_to_fit();
    const auto before = entries_.find(std::string_view(record.key));
    if (before == entries_.end()) {
      entries_.insert(std::move(entry));
    } else {
      auto node = entries_.extract(before);
      node.value() = std::move(entry);
      entries_.insert(std::move(node));
    }
  }
  void remove(std::string_view key) {
    const auto found = entries_.find(key);
    if (found != entries_.end()) entries_.erase(found);
  }
  std::optional<RecordEntry> find(std::string_view key) const {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return std::nullopt;
    return record_of(*found);
  }
  size_t size() const { return entries_.size(); }
  // Serialized as in the journal, in the order of their keys; `from`: from that key on.
  auto begin() const { return entries_.begin(); }
  auto begin(std::string_view from) const { return entries_.lower_bound(from); }
  auto end() const { return entries_.end(); }

 private:
  struct ByKey {
    using is_transparent = void;
    bool operator()(const std::string& a, const std::string& b) const {
      return key_of_record(a) < key_of_record(b);
    }
    bool operator()(const std::string& a, std::string_view key) const {
      return key_of_record(a) < key;
    }
    bool operator()(std::string_view key, const std::string& b) const {
      return key < key_of_record(b);
    }
  };
  std::set<std::string, ByKey> entries_;
};

}  // namespace recurve
