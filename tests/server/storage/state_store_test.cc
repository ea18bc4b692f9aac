// A store of states over a disk that loses power after any of its calls, and whose calls fail.
#include "server/storage/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/recording_folder.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::state_store_test {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

StateHeader header(size_t elements) {
  return {.model = "m",
          .weights = "bf16",
          .chunk = 8,
          .layout = {.arrays = {{.name = "x", .shape = {static_cast<int64_t>(elements)}}}}};
}
constexpr size_t kSmall = 100, kLarge = 1000;  // elements; the latter have files of their own
// So small that a few commits fill a segment, compact one, and begin a journal.
StateStore::Options options() {
  return {.own_file = 3000, .segment_bytes = 4000, .journal_slack = 1500};
}

std::shared_ptr<const std::byte> image_of(size_t elements, uint64_t number) {
  const std::shared_ptr<std::byte[]> bytes(new std::byte[4 * elements]);
  std::mt19937_64 random(number);
  for (size_t i = 0; i < 4 * elements; ++i) bytes[i] = static_cast<std::byte>(random());
  return {bytes, bytes.get()};
}

std::unique_ptr<StateStore> open(const std::shared_ptr<RecordingDisk>& disk) {
  return std::make_unique<StateStore>(std::make_unique<RecordingFolder>(disk), options());
}

// What a record is to be: its text, and the number that its state is made of.
struct Value {
  std::string text;
  size_t elements = 0;
  uint64_t number = 0;
  bool operator==(const Value&) const = default;
};
using Values = std::map<std::string, std::optional<Value>>;  // none: removed

void PrintTo(const Value& value, std::ostream* out) { *out << value.text; }

// Commits as a server makes them, and what was acknowledged of them.
class Workload {
 public:
  explicit Workload(StateStore& store, Values acknowledged = {})
      : acknowledged(std::move(acknowledged)), store_(store) {}

  struct Wish {
    std::string key;
    size_t elements = kSmall;
    bool removes = false;
  };
  // False if one of them failed.
  bool commit(const std::vector<Wish>& wishes) {
    std::vector<StateStore::Change> changes;
    under_way.clear();
    for (const Wish& wish : wishes) {
      StateStore::Change& change = changes.emplace_back();
      change.key = wish.key;
      change.removes = wish.removes;
      if (wish.removes) {
        under_way[wish.key] = std::nullopt;
        continue;
      }
      const uint64_t number = ++number_;
      Value value{"value " + std::to_string(number), wish.elements, number};
      change.text = value.text;
      StateHeader of_state = header(wish.elements);
      of_state.id = store_.new_id();
      change.states = {of_state.id};
      change.state = {of_state, image_of(wish.elements, number)};
      under_way[wish.key] = value;
    }
    const auto outcomes = store_.commit(changes);
    bool all = true;
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const bool done = outcomes[i].error.empty();
      if (done) {
        acknowledged[wishes[i].key] = under_way[wishes[i].key];
        unknown.erase(wishes[i].key);
      } else {
        error = outcomes[i].error;
      }
      if (!done) unknown[wishes[i].key].push_back(under_way[wishes[i].key]);
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
    commit({{"large", kSmall, true}});
    while (store_.tidy()) continue;
  }

  Values acknowledged, under_way;
  // What failed since: it may be there or not.
  std::map<std::string, std::vector<std::optional<Value>>> unknown;
  std::string error;  // the last one

 private:
  StateStore& store_;
  uint64_t number_ = 0;
  StoredPtr spilled_;
};

// What the store has of a record.
Value value_of(StateStore& store, const StateStore::Record& record) {
  Value value{.text = record.text};
  EXPECT_EQ(record.states.size(), 1u);
  const StoredState& state = *record.states.at(0);
  for (const size_t elements : {kSmall, kLarge}) {
    std::vector<std::byte> bytes(4 * elements);
    try {
      store.read(state, header(elements), bytes);
    } catch (const StateError& error) {
      EXPECT_EQ(error.kind(), StateError::Kind::kOtherModel) << record.text << ": " << error.what();
      continue;
    }
    value.elements = elements;
    value.number = std::stoull(record.text.substr(6));
    const auto wanted = image_of(elements, value.number);
    EXPECT_EQ(std::memcmp(bytes.data(), wanted.get(), bytes.size()), 0) << record.text;
  }
  return value;
}

Values values_in(StateStore& store) {
  Values values;
  for (const StateStore::Record& record : store.take_records()) {
    values[record.key] = value_of(store, record);
  }
  return values;
}

// What was acknowledged is there; what was under way is there whole, or not at all.
void expect_kept(const Workload& workload, const Values& found) {
  std::set<std::string> keys;
  for (const auto* all : {&workload.acknowledged, &workload.under_way, &found}) {
    for (const auto& [key, value] : *all) keys.insert(key);
  }
  const auto in = [](const Values& values, const std::string& key) {
    const auto at = values.find(key);
    return at == values.end() ? std::nullopt : at->second;
  };
  for (const std::string& key : keys) {
    const auto value = in(found, key);
    if (value == in(workload.acknowledged, key)) continue;
    if (workload.under_way.contains(key) && value == in(workload.under_way, key)) continue;
    const auto failed = workload.unknown.find(key);
    const bool may_be = failed != workload.unknown.end() &&
                        std::count(failed->second.begin(), failed->second.end(), value) > 0;
    EXPECT_TRUE(may_be) << key << " is " << (value ? value->text : "removed");
  }
}

TEST(StateStore, KeepsWhatIsCommittedAndReplacesIt) {
  auto disk = std::make_shared<RecordingDisk>();
  Values acknowledged;
  {
    const auto store = open(disk);
    Workload workload(*store);
    workload.run();
    acknowledged = workload.acknowledged;
  }
  const auto store = open(disk);
  Values found = values_in(*store);
  std::erase_if(acknowledged, [](const auto& value) { return !value.second; });
  EXPECT_EQ(found, acknowledged);
  EXPECT_EQ(found.size(), 4u);
}

TEST(StateStore, ManyCommitsShareTheirSyncs) {
  auto disk = std::make_shared<RecordingDisk>();
  const auto store =
      std::make_unique<StateStore>(std::make_unique<RecordingFolder>(disk), StateStore::Options{});
  Workload workload(*store);
  workload.commit({{"first"}});
  const int64_t before = store->usage().syncs;
  std::vector<Workload::Wish> many;
  for (int i = 0; i < 64; ++i) many.push_back({std::to_string(i)});
  workload.commit(many);
  EXPECT_EQ(store->usage().syncs - before, 2);
}

TEST(StateStore, FilesThatNobodyWantsGo) {
  auto disk = std::make_shared<RecordingDisk>();
  const auto store = open(disk);
  Workload workload(*store);
  for (int i = 0; i < 300; ++i) {
    workload.commit({{"small"}, {"large", kLarge}});
    while (store->tidy()) continue;
  }
  EXPECT_LE(store->usage().bytes, 30'000u) << "of 1.4 MB written";
  EXPECT_LE(disk->names().size(), 8u);
  EXPECT_EQ(store->usage().states, 2);
}

TEST(StateStore, AStateIsReadWhileItIsReplaced) {
  auto disk = std::make_shared<RecordingDisk>();
  const auto store = open(disk);
  Workload workload(*store);
  workload.commit({{"a"}, {"b", kLarge}});
  StateStore::Change spill;
  StateHeader of_state = header(kSmall);
  of_state.id = store->new_id();
  spill.state = {of_state, image_of(kSmall, 5)};
  const StoredPtr held = store->commit({&spill, 1})[0].state;
  ASSERT_NE(held, nullptr);
  EXPECT_FALSE(held->durable());
  for (int i = 0; i < 50; ++i) {
    workload.commit({{"a"}, {"b", kLarge}});
    while (store->tidy()) continue;
  }
  std::vector<std::byte> bytes(4 * kSmall);
  store->read(*held, header(kSmall), bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), image_of(kSmall, 5).get(), bytes.size()), 0);
}

// Power is lost after each call that there is, and of what was not synced each time other parts are
// left.
TEST(StateStore, NothingAcknowledgedIsLostWheneverPowerIs) {
  constexpr int kSurvivals = 24;
  int calls = 0;
  {
    auto disk = std::make_shared<RecordingDisk>();
    const auto store = open(disk);
    Workload(*store).run();
    calls = disk->calls();
  }
  ASSERT_GT(calls, 150);
  for (int last = 1; last <= calls; ++last) {
    auto disk = std::make_shared<RecordingDisk>();
    disk->on_call = [last](int call, const char*) {
      if (call > last) throw PowerLost{};
    };
    std::unique_ptr<StateStore> store;
    std::optional<Workload> workload;
    try {
      store = open(disk);
      workload.emplace(*store);
      workload->run();
    } catch (const PowerLost&) {
    }
    std::mt19937_64 random(static_cast<uint64_t>(last));
    for (int i = 0; i < kSurvivals; ++i) {
      SCOPED_TRACE("call " + std::to_string(last) + ", survival " + std::to_string(i));
      const auto after = disk->after_power_loss(random);
      const auto again = open(after);
      const Values found = values_in(*again);
      if (workload) expect_kept(*workload, found);
      // And once more: what the start has made of it is whole too.
      const auto later = open(after->after_power_loss(random));
      EXPECT_EQ(values_in(*later), found);
      EXPECT_EQ(later->usage().set_aside, 0);
      if (HasFailure()) return;
    }
  }
}

// Each call fails once, with no room or a bad disk, or from there on all do.
class FailingDisk : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(FailingDisk, RefusesWhatItCannotPromiseAndKeepsTheRest) {
  const auto [error, stays] = GetParam();
  int calls = 0;
  {
    auto disk = std::make_shared<RecordingDisk>();
    const auto store = open(disk);
    Workload(*store).run();
    calls = disk->calls();
  }
  std::mt19937_64 random(7);
  for (int bad = 5; bad <= calls; ++bad) {
    SCOPED_TRACE("call " + std::to_string(bad));
    auto disk = std::make_shared<RecordingDisk>();
    const auto store = open(disk);
    Workload workload(*store);
    bool failed = false;
    disk->on_call = [&](int call, const char* what) {
      const bool write = std::string(what) != "read";
      if (!write || call < bad || (!stays && failed)) return;
      failed = true;
      throw std::system_error(error, std::generic_category(), what);
    };
    workload.run();
    expect_kept(workload, values_in(*open(disk->after_power_loss(random))));
    disk->on_call = {};
    // It works again: all can be committed, and what failed before is not in the way.
    workload.unknown.clear();
    ASSERT_TRUE(workload.commit({{"a"}, {"b"}, {"c"}, {"d"}, {"often"}, {"large", kLarge}}));
    expect_kept(workload, values_in(*open(disk->after_power_loss(random))));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, FailingDisk,
                         ::testing::Combine(::testing::Values(ENOSPC, EIO), ::testing::Bool()));

TEST(StateStore, IsFullByName) {
  auto disk = std::make_shared<RecordingDisk>();
  StateStore::Options few = options();
  few.most_bytes = 10'000;
  StateStore store(std::make_unique<RecordingFolder>(disk), few);
  Workload workload(store);
  while (workload.commit({{std::to_string(workload.acknowledged.size())}})) continue;
  EXPECT_LE(store.usage().bytes, 10'000u);
  EXPECT_GE(workload.acknowledged.size(), 5u);
  StateStore::Change change{.key = "k", .text = std::string(9000, 'x')};
  EXPECT_THAT(store.commit({&change, 1})[0].error, HasSubstr("--state-disk"));
  // Room that is given back is there again.
  ASSERT_TRUE(workload.commit({{"0", kSmall, true}, {"1", kSmall, true}, {"2", kSmall, true}}));
  EXPECT_TRUE(workload.commit({{"again"}})) << workload.error << ", " << store.usage().bytes;
}

// A folder with one state in a file of its own and one in a segment, and what damage does.
class DamagedFolder : public ::testing::Test {
 protected:
  DamagedFolder() {
    const auto store = open(disk_);
    Workload workload(*store);
    workload.commit({{"small"}, {"large", kLarge}});
  }
  std::string file(const std::string& prefix) {
    for (const std::string& name : disk_->names()) {
      if (name.starts_with(prefix)) return name;
    }
    return {};
  }
  // What reading the state of a record says; empty if it can be read.
  std::string read(StateStore& store, const StateStore::Record& record) {
    std::vector<std::byte> bytes(4 * kLarge);
    const size_t elements = record.key == "large" ? kLarge : kSmall;
    try {
      store.read(*record.states.at(0), header(elements), std::span(bytes).first(4 * elements));
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }
  std::map<std::string, std::string> read_all() {
    const auto store = open(disk_);
    std::map<std::string, std::string> said;
    for (const auto& record : store->take_records()) said[record.key] = read(*store, record);
    return said;
  }
  std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
};

TEST_F(DamagedFolder, AChangedByteIsFoundAndTheFileIsKept) {
  disk_->bytes_of(file("state-"))[2000] ^= 1;
  const auto store = open(disk_);
  for (auto& record : store->take_records()) {
    if (record.key != "large") continue;
    EXPECT_THAT(read(*store, record), HasSubstr("checksum"));
    store->set_aside(*record.states[0]);
    EXPECT_THAT(read(*store, record), HasSubstr("gone"));
  }
  EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-state-")));
  EXPECT_EQ(store->usage().set_aside, 1);
}

TEST_F(DamagedFolder, WhatIsCutOffOrGoneIsSaidAndTheRestGoesOn) {
  disk_->bytes_of(file("segment-")).resize(100);
  auto said = read_all();
  EXPECT_THAT(said.at("small"), HasSubstr("cut off"));
  EXPECT_EQ(said.at("large"), "");
  disk_->remove(file("state-"));
  EXPECT_THAT(read_all().at("large"), HasSubstr("gone"));
}

TEST_F(DamagedFolder, ExchangedStatesAreNotTakenForEachOther) {
  {
    const auto store = open(disk_);
    store->take_records();
    Workload workload(*store);
    workload.commit({{"other", kLarge}});
  }
  std::vector<std::string> states;
  for (const std::string& name : disk_->names()) {
    if (name.starts_with("state-")) states.push_back(name);
  }
  ASSERT_EQ(states.size(), 2u);
  std::swap(disk_->bytes_of(states[0]), disk_->bytes_of(states[1]));
  auto said = read_all();
  EXPECT_FALSE(said.at("large").empty());
}

TEST_F(DamagedFolder, ADamagedJournalIsSetAsideWithAllThatItMayHaveNamed) {
  std::string& journal = disk_->bytes_of(file("journal-"));
  const size_t large = journal.find("large");
  ASSERT_NE(large, std::string::npos);
  // The entry is in front of others, or after this it is.
  {
    const auto store = open(disk_);
    store->take_records();
    Workload workload(*store);
    workload.commit({{"later"}});
  }
  std::string& now = disk_->bytes_of(file("journal-"));
  now[now.find("large")] ^= 1;
  const auto said = read_all();
  EXPECT_EQ(said.count("large"), 0u);
  EXPECT_EQ(said.at("small"), "");
  EXPECT_EQ(said.at("later"), "");
  EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-journal-")));
  EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-state-")));
}

TEST_F(DamagedFolder, ANewerJournalIsRefusedByName) {
  std::string& journal = disk_->bytes_of(file("journal-"));
  journal[8] = 9;
  const uint64_t checksum = checksum_of(std::string_view(journal).substr(0, 12));
  std::memcpy(journal.data() + 12, &checksum, sizeof checksum);
  EXPECT_THAT(error_of([&] { open(disk_); }), HasSubstr("version 9"));
}

TEST(StateFolder, IsOneServersAtATime) {
  const TempDir dir;
  const std::string path = (dir / "states").string();
  auto first = open_folder(path);
  EXPECT_THAT(error_of([&] { open_folder(path); }), HasSubstr("another server"));
  first.reset();
  EXPECT_NO_THROW(open_folder(path));
}

TEST(StateFolder, KeepsWhatIsCommittedInFiles) {
  const TempDir dir;
  Values acknowledged;
  {
    StateStore store(open_folder(dir.path().string()), options());
    Workload workload(store);
    workload.run();
    acknowledged = workload.acknowledged;
  }
  StateStore store(open_folder(dir.path().string()), options());
  std::erase_if(acknowledged, [](const auto& value) { return !value.second; });
  EXPECT_EQ(values_in(store), acknowledged);
}

}  // namespace recurve::testing::state_store_test
