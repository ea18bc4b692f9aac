#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "server/storage/state_store.h"
#include "tests/support/amount.h"
#include "tests/support/engine/state_bytes.h"

namespace recurve::testing {

// States of two sizes, what a store of them is to hold, and commits as a server makes them.

inline StateHeader header(size_t elements) {
  return {.model = "m",
          .weights = "bf16",
          .chunk = 8,
          .layout = {.arrays = {{.name = "x", .shape = {static_cast<int64_t>(elements)}}}}};
}
inline constexpr size_t kSmall = 100,
                        kLarge = 1000;  // elements; the latter have separate files
// So small that a few commits fill a segment, compact one, and begin a journal.
inline StateStore::Options options() {
  return {.own_file = 3000, .segment_bytes = 4000, .journal_slack = 1500};
}

// Of a workload's calls of the disk, those at which something is tried to go wrong: every one, or
// every third.
inline constexpr int kCallStep = static_cast<int>(amount(1, 3));

inline StateImage image_of(size_t elements, uint64_t number) {
  const NewImage made = make_image(header(elements).layout);
  std::mt19937_64 random(number);
  for (const auto room : made.rooms) {
    for (size_t at = 0; at < room.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random() & 0xBFFF'FFFF'BFFF'FFFF;  // two floats, which are finite
      std::memcpy(room.data() + at, &word, std::min(sizeof(word), room.size() - at));
    }
  }
  return made.image;
}

// Whether the store has that image of the state.
inline bool is_stored(StateStore& store, const StoredState& state, size_t elements,
                      const StateImage& image) {
  const StateLayout layout = header(elements).layout;
  const NewImage found = make_image(layout);
  store.read(state, header(elements), found.rooms);
  return bytes_in(layout, found.image) == bytes_in(layout, image);
}

// What a record is to be: its text, and the number that its state is made of.
struct Value {
  std::string text;
  size_t elements = 0;
  uint64_t number = 0;
  bool operator==(const Value&) const = default;
};
using Values = std::map<std::string, std::optional<Value>>;  // none: removed

inline void PrintTo(const Value& value, std::ostream* out) { *out << value.text; }

// What was said of commits.
struct Promises {
  Values acknowledged = {}, under_way = {};
  // What failed since: it may be there or not.
  std::map<std::string, std::vector<std::optional<Value>>> unknown = {};
  std::string error = {};  // the last one
};

// Commits as a server makes them.
class Workload : public Promises {
 public:
  // tenants: each key's states belong to a separate tenant.
  explicit Workload(StateStore& store, bool tenants = false) : store_(store), tenants_(tenants) {}

  struct Write {
    std::string key;
    size_t elements = kSmall;
    bool removes = false;
  };
  // False if one of them failed.
  bool commit(const std::vector<Write>& writes) {
    std::vector<StateStore::Change> changes;
    under_way.clear();
    for (const Write& write : writes) {
      StateStore::Change& change = changes.emplace_back();
      change.key = write.key;
      change.removes = write.removes;
      if (tenants_) {
        change.tenant = is_expendable(write.key) ? write.key.substr(kExpendable.size()) : write.key;
      }
      if (write.removes) {
        under_way[write.key] = std::nullopt;
        continue;
      }
      const uint64_t number = ++number_;
      Value value{"value " + std::to_string(number), write.elements, number};
      change.text = value.text;
      StateHeader of_state = header(write.elements);
      of_state.id = store_.new_id();
      change.states = {of_state.id};
      change.state = {of_state, image_of(write.elements, number)};
      under_way[write.key] = value;
    }
    const auto outcomes = store_.commit(changes);
    bool all = true;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const bool done = outcomes[i].error.empty();
      if (done) {
        acknowledged[writes[i].key] = under_way[writes[i].key];
        unknown.erase(writes[i].key);
      } else {
        error = outcomes[i].error;
      }
      if (!done) unknown[writes[i].key].push_back(under_way[writes[i].key]);
      if (!done && writes[i].removes && is_expendable(writes[i].key)) {
        // It is gone, and was there as long as nothing else has been committed.
        unknown[writes[i].key].push_back(acknowledged[writes[i].key]);
        acknowledged[writes[i].key] = std::nullopt;
      }
      all &= done;
    }
    under_way.clear();
    return all;
  }
  // A state that is written without a record, and let go.
  void spill() {
    StateStore::Change change;
    StateHeader of_state = header(kSmall);
    of_state.id = store_.new_id();
    change.state = {of_state, image_of(kSmall, 99)};
    spilled_ = store_.commit({&change, 1})[0].state;
  }
  void run() {
    for (int round = 0; round < 3; ++round) {
      commit({{"a"}});
      commit({{"b"}, {"c"}, {"large", kLarge}});
      spill();
      commit({{"a"}, {"b", kLarge}});
      commit({{"c", kSmall, true}, {"d"}});
      for (int i = 0; i < 4; ++i) commit({{"often"}});
      commit({{"large", kLarge}});
      while (store_.tidy()) continue;
    }
    commit({{"large", kSmall, true}, {"prefix p"}, {"prefix q", kLarge}, {"prefix r"}});
    commit({{"prefix p", kSmall, true}, {"prefix q", kLarge, true}, {"large", kLarge}});
    commit({{"large", kSmall, true}});
    while (store_.tidy()) continue;
  }

 private:
  StateStore& store_;
  const bool tenants_;
  uint64_t number_ = 0;
  StoredPtr spilled_;
};

// What the store has of a record.
inline Value value_of(StateStore& store, const StateStore::Record& record) {
  Value value{.text = record.text};
  EXPECT_EQ(record.states.size(), 1u);
  const StoredState& state = *record.states.at(0);
  for (const size_t elements : {kSmall, kLarge}) {
    bool same = false;
    const uint64_t number = std::stoull(record.text.substr(6));
    try {
      same = is_stored(store, state, elements, image_of(elements, number));
    } catch (const StateError& error) {
      EXPECT_EQ(error.reason(), EndReason::kOtherModel) << record.text << ": " << error.what();
      continue;
    }
    value.elements = elements;
    value.number = number;
    EXPECT_TRUE(same) << record.text;
  }
  return value;
}

inline Values values_in(StateStore& store) {
  Values values;
  store.for_each_record(
      [&](const StateStore::Record& record) { values[record.key] = value_of(store, record); });
  return values;
}

// What was acknowledged is there; what was under way is there whole, or not at all.
inline void expect_kept(const Promises& said, const Values& found) {
  std::set<std::string> keys;
  for (const auto* all : {&said.acknowledged, &said.under_way, &found}) {
    for (const auto& [key, value] : *all) keys.insert(key);
  }
  const auto in = [](const Values& values, const std::string& key) {
    const auto at = values.find(key);
    return at == values.end() ? std::nullopt : at->second;
  };
  for (const std::string& key : keys) {
    const auto value = in(found, key);
    if (value == in(said.acknowledged, key)) continue;
    if (said.under_way.contains(key) && value == in(said.under_way, key)) continue;
    const auto failed = said.unknown.find(key);
    const bool may_be = failed != said.unknown.end() &&
                        std::count(failed->second.begin(), failed->second.end(), value) > 0;
    EXPECT_TRUE(may_be) << key << " is " << (value ? value->text : "removed");
  }
}

}  // namespace recurve::testing
