// A store of states that grow: full pages are written once, shared, and deleted with the last state
// that needs them, whatever happens to the disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>

#include "tests/support/engine/recording_folder.h"
#include "tests/support/engine/store_workload.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::page_groups_store_test {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Options = StateStore::Options;

StateHeader grown(int64_t position) {
  return {
      .model = "m",
      .weights = "bf16",
      .chunk = 8,
      .position = position,
      .layout = {
          .arrays = {{.name = "n", .shape = {40}},
                     {.name = "K", .layer = 1, .shape = {4}, .growth = StateGrowth::kPerToken}}}};
}
constexpr uint64_t kPageBytes = 64 * 4 * sizeof(float);

// A text: its length, and for each page that it has the number of the turn that filled or began it.
// Its record is that, and its state is made of it.
struct Text {
  int64_t position = 0;
  std::vector<uint64_t> pages = {};

  std::string record() const {
    std::string text = std::to_string(position);
    for (const uint64_t page : pages) text += " " + std::to_string(page);
    return text;
  }
  static Text of(const std::string& record) {
    Text text;
    std::istringstream in(record);
    in >> text.position;
    for (uint64_t page = 0; in >> page;) text.pages.push_back(page);
    return text;
  }
  std::vector<uint32_t> tokens() const {
    std::vector<uint32_t> tokens(static_cast<size_t>(position), 4 * 7 + 1);
    for (size_t p = 0; p < pages.size(); ++p) tokens[64 * p] = static_cast<uint32_t>(pages[p]);
    return tokens;
  }
  StateImage image() const {
    const NewImage made = make_image(grown(0).layout, position);
    const auto fill = [](std::span<std::byte> room, uint64_t seed) {
      std::mt19937 random(static_cast<uint32_t>(seed));
      for (std::byte& byte : room) byte = static_cast<std::byte>(random()) & std::byte{0xBF};
    };
    fill(made.rooms[0], 1000 + static_cast<uint64_t>(position));
    for (size_t p = 0; p < pages.size(); ++p) fill(made.rooms[p + 1], pages[p]);
    return made.image;
  }
};

bool equal(const StateImage& a, const StateImage& b) {
  const auto same = [](const StatePiece& one, const StatePiece& other) {
    return one.bytes == other.bytes &&
           std::memcmp(one.data.get(), other.data.get(), one.bytes) == 0;
  };
  return std::equal(a->begin(), a->end(), b->begin(), b->end(), same);
}

// Sessions by key, as a server commits their turns; the record of each names one state, and in
// run() the tokens of its text, too.
class Sessions {
 public:
  explicit Sessions(StateStore& store) : store_(store) {
    store.for_each_record([&](const StateStore::Record& record) {
      texts_[record.key] = {Text::of(record.text), record.states.at(0)};
      if (record.states.size() > 1) texts_[record.key].tokens = record.states[1];
    });
  }
  struct Stored {
    Text text;
    StoredPtr state, tokens = {};
  };
  // Absorbs so many tokens. The image lacks the pages that are on the disk.
  StateStore::Change turn(const std::string& key, int64_t tokens) {
    const Stored& before = texts_[key];
    Text text = before.text;
    text.pages.resize(static_cast<size_t>(text.position / kPageTokens));
    text.position += tokens;
    text.pages.resize(static_cast<size_t>(StateLayout::pages(text.position)), ++turns_);
    StateStore::Change change{.key = key, .tenant = "t", .text = text.record()};
    StateHeader header = grown(text.position);
    header.id = store_.new_id();
    change.states = {header.id};
    if (stores_tokens_) {
      change.tokens = {store_.new_id(), 0, text.tokens()};
      change.states.push_back(change.tokens->id);
    }
    std::vector<StatePiece> pieces = *text.image();
    if (before.state) {
      const auto stored = static_cast<size_t>(store_.pages_of(*before.state).count);
      for (size_t p = 0; p < stored; ++p) pieces[p + 1].data = nullptr;
    }
    change.state = {header, std::make_shared<const std::vector<StatePiece>>(pieces), before.state};
    return change;
  }
  StateStore::Change fork(const std::string& from, const std::string& to) {
    const Stored& parent = texts_.at(from);
    StateStore::Change change{
        .key = to, .text = parent.text.record(), .states = {parent.state->id()}};
    if (parent.tokens) change.states.push_back(parent.tokens->id());
    return change;
  }
  static StateStore::Change removal(const std::string& key) {
    return {.key = key, .removes = true};
  }
  // False if one of them failed.
  bool commit(const std::vector<StateStore::Change>& changes) {
    for (const auto& change : changes) under_way[change.key] = record_of_change(change);
    const auto outcomes = store_.commit(changes);
    bool all = true;
    for (size_t c = 0; c < changes.size(); ++c) {
      const auto& [key, removes, tenant, text, states, state, tokens] = changes[c];
      all &= outcomes[c].error.empty();
      if (!outcomes[c].error.empty()) {
        error = outcomes[c].error;
        failed[key].push_back(record_of_change(changes[c]));
        continue;
      }
      acknowledged[key] = record_of_change(changes[c]);
      failed.erase(key);
      if (removes) {
        texts_.erase(key);
        continue;
      }
      Stored stored{Text::of(text), outcomes[c].state, outcomes[c].tokens};
      for (const auto& [other, known] : std::map(texts_)) {
        if (stored.state || known.state->id() != states.at(0)) continue;
        stored = {stored.text, known.state, known.tokens};
      }
      texts_[key] = std::move(stored);
    }
    under_way.clear();
    return all;
  }
  void run() {
    stores_tokens_ = true;
    for (int round = 0; round < 2; ++round) {
      commit({turn("a", 100)});
      commit({turn("a", 40), turn("b", 300)});
      commit({fork("a", "f")});
      commit({turn("a", 70), turn("f", 200)});
      commit({removal("a")});
      commit({turn("f", 20), turn("b", 1)});
      commit({fork("f", "g"), removal("b")});
      commit({turn("g", 64)});
      commit({removal("f")});
      while (store_.tidy()) continue;
    }
    commit({turn("g", 5)});
  }
  const Stored& operator[](const std::string& key) { return texts_[key]; }

  using Values = std::map<std::string, std::optional<std::string>>;  // none: removed
  Values acknowledged, under_way;
  std::map<std::string, std::vector<std::optional<std::string>>> failed;
  std::string error;  // the last one

 private:
  static std::optional<std::string> record_of_change(const StateStore::Change& change) {
    if (change.removes) return std::nullopt;
    return change.text;
  }
  StateStore& store_;
  std::map<std::string, Stored> texts_;
  uint64_t turns_ = 0;
  bool stores_tokens_ = false;
};

std::unique_ptr<StateStore> open(const std::shared_ptr<RecordingDisk>& disk) {
  return std::make_unique<StateStore>(std::make_unique<RecordingFolder>(disk), options());
}

// Why the state cannot be read; empty if it is what its record says.
std::string problem_of(StateStore& store, const StateStore::Record& record) {
  const Text text = Text::of(record.text);
  const NewImage found = make_image(grown(0).layout, text.position);
  try {
    store.read(*record.states.at(0), grown(0), found.rooms);
    if (record.states.size() > 1) {
      const auto tokens = store.read_tokens({0, text.position, record.states[1]}, 1 << 20);
      if (tokens != text.tokens()) return "it has other tokens";
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return equal(found.image, text.image()) ? "" : "it is another state";
}

// What is acknowledged is there, each state whole; what is under way is there whole or not at all.
void expect_kept(const Sessions& said, StateStore& store) {
  Sessions::Values found;
  store.for_each_record([&](const StateStore::Record& record) {
    found[record.key] = record.text;
    EXPECT_EQ(problem_of(store, record), "") << record.key << ": " << record.text;
  });
  for (const std::string key : {"a", "b", "f", "g"}) {
    const auto in = [&](const Sessions::Values& values) {
      const auto at = values.find(key);
      return at == values.end() ? std::nullopt : at->second;
    };
    bool may_be = in(found) == in(said.acknowledged);
    may_be |= said.under_way.contains(key) && in(found) == in(said.under_way);
    const auto failed = said.failed.find(key);
    may_be |= failed != said.failed.end() && std::ranges::count(failed->second, in(found)) > 0;
    EXPECT_TRUE(may_be) << key << " is " << in(found).value_or("removed");
  }
}

TEST(PageGroupsOfAStore, ATurnWritesNewPagesAlone) {
  auto disk = std::make_shared<RecordingDisk>();
  auto store = open(disk);
  std::optional<Sessions> sessions(*store);
  ASSERT_TRUE(sessions->commit({sessions->turn("a", 100 * kPageTokens)}));
  constexpr uint64_t kSmall = 2500;  // the fixed part, headers, and records
  for (int i = 0; i < 10; ++i) {
    SCOPED_TRACE(i);
    if (i == 4) {  // as much after a restart, and in a fork
      sessions.reset();
      store.reset();
      store = open(disk);
      sessions.emplace(*store);
    }
    if (i == 6) {
      ASSERT_TRUE(sessions->commit({sessions->fork("a", "f")}));
    }
    const uint64_t before = store->usage().written;
    ASSERT_TRUE(sessions->commit({sessions->turn(i < 6 ? "a" : "f", 2 * kPageTokens)}));
    EXPECT_GE(store->usage().written - before, 2 * kPageBytes);
    EXPECT_LE(store->usage().written - before, 2 * kPageBytes + kSmall);
  }
  expect_kept(*sessions, *store);
}

TEST(PageGroupsOfAStore, AreDeletedWithTheLastStateThatNeedsThem) {
  auto disk = std::make_shared<RecordingDisk>();
  const auto store = open(disk);
  Sessions sessions(*store);
  ASSERT_TRUE(sessions.commit({sessions.turn("a", 640)}));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(sessions.commit({sessions.turn("a", 64)}));
  ASSERT_TRUE(sessions.commit({sessions.fork("a", "f")}));
  ASSERT_TRUE(sessions.commit({sessions.turn("a", 640), sessions.turn("f", 64)}));
  const auto bytes = [&] {
    while (store->tidy(StateStore::Hurry::kFull)) continue;
    return store->usage().bytes;
  };
  EXPECT_GT(bytes(), 26 * kPageBytes);
  ASSERT_TRUE(sessions.commit({Sessions::removal("a")}));
  EXPECT_GT(bytes(), 16 * kPageBytes) << "its fork has them";
  EXPECT_LT(bytes(), 21 * kPageBytes);
  expect_kept(sessions, *store);
  ASSERT_TRUE(sessions.commit({Sessions::removal("f")}));
  EXPECT_LT(bytes(), 8 * kPageBytes);
  EXPECT_EQ(store->usage().states, 0);
}

// From a mark: the pages after it are others'.
TEST(PageGroupsOfAStore, AnEarlierStateIsContinuedDifferently) {
  auto disk = std::make_shared<RecordingDisk>();
  {
    const auto store = open(disk);
    Sessions sessions(*store);
    ASSERT_TRUE(sessions.commit({sessions.turn("a", 150)}));
    ASSERT_TRUE(sessions.commit({sessions.fork("a", "f")}));
    ASSERT_TRUE(sessions.commit({sessions.turn("a", 300)}));
    ASSERT_TRUE(sessions.commit({sessions.turn("f", 300)}));
    const StoredPtr late = sessions["a"].state;
    // A state that is the beginning of a stored one: group by group as much as fits.
    Text early = sessions["a"].text;
    early.position = 200;
    early.pages.resize(4);
    StateHeader header = grown(200);
    header.id = store->new_id();
    StateStore::Change change{.key = "g", .tenant = "t", .text = early.record()};
    change.states = {header.id};
    change.state = {header, early.image(), late};
    EXPECT_EQ(store->bytes_to_write(change), header.layout.bytes() + 2 * kPageBytes);
    ASSERT_TRUE(sessions.commit({change}));
    ASSERT_TRUE(sessions.commit({sessions.turn("g", 100)}));
    expect_kept(sessions, *store);
  }
  const auto store = open(disk);
  store->for_each_record([&](const StateStore::Record& record) {
    EXPECT_EQ(problem_of(*store, record), "") << record.key;
  });
}

// A folder of before has journals without page groups.
TEST(PageGroupsOfAStore, AStateOfAFolderOfBeforeIsContinued) {
  auto disk = std::make_shared<RecordingDisk>();
  {
    const auto store = open(disk);
    Sessions sessions(*store);
    ASSERT_TRUE(sessions.commit({sessions.turn("a", 50)}));
    EXPECT_EQ(store->pages_of(*sessions["a"].state).id, 0u) << "no page is full";
  }
  for (const std::string& name : disk->names()) {
    if (!name.starts_with("journal-")) continue;
    std::string& journal = disk->bytes_of(name);
    ASSERT_EQ(journal[8], 4);
    journal[8] = 3;
    const uint64_t checksum = checksum_of(std::string_view(journal).substr(0, 20));
    std::memcpy(journal.data() + 20, &checksum, sizeof checksum);
  }
  const auto store = open(disk);
  EXPECT_FALSE(store->damage().journal);
  Sessions sessions(*store);
  ASSERT_TRUE(sessions.commit({sessions.turn("a", 350)}));
  EXPECT_EQ(store->pages_of(*sessions["a"].state).count, 6);
  ASSERT_TRUE(sessions.commit({sessions.turn("a", 30)}));
  const auto again = open(disk->after_power_loss([](size_t) { return 0; }));
  again->for_each_record([&](const StateStore::Record& record) {
    EXPECT_EQ(problem_of(*again, record), "") << record.key;
  });
}

// Of expendable states too: their removal frees at once what no other one needs.
TEST(PageGroupsOfAStore, ExpendableStatesShareThem) {
  auto disk = std::make_shared<RecordingDisk>();
  auto store = open(disk);
  std::optional<Sessions> sessions(*store);
  ASSERT_TRUE(sessions->commit({sessions->turn("prefix a", 640)}));
  ASSERT_TRUE(sessions->commit({sessions->fork("prefix a", "prefix b")}));
  const uint64_t before = store->usage().written;
  ASSERT_TRUE(sessions->commit({sessions->turn("prefix b", 128)}));
  EXPECT_LE(store->usage().written - before, 2 * kPageBytes + 2500);
  ASSERT_TRUE(sessions->commit({Sessions::removal("prefix a")}));
  while (store->tidy(StateStore::Hurry::kFull)) continue;
  EXPECT_EQ(store->usage().states, 3) << "a state and two groups";
  sessions.reset();
  store = open(disk);
  store->for_each_record([&](const StateStore::Record& record) {
    EXPECT_EQ(record.key, "prefix b");
    EXPECT_EQ(problem_of(*store, record), "");
  });
  sessions.emplace(*store);
  ASSERT_TRUE(sessions->commit({Sessions::removal("prefix b")}));
  sessions.reset();
  while (store->tidy(StateStore::Hurry::kFull)) continue;
  EXPECT_EQ(store->usage().states, 0);
}

// The file of a group went, and power was lost before the journal said so.
TEST(PageGroupsOfAStore, ExpendableStatesWithoutTheirPagesAreNoRecords) {
  auto disk = std::make_shared<RecordingDisk>();
  {
    const auto store = open(disk);
    Sessions sessions(*store);
    ASSERT_TRUE(sessions.commit({sessions.turn("prefix a", 640), sessions.turn("prefix c", 100)}));
    ASSERT_TRUE(sessions.commit({sessions.fork("prefix a", "prefix b")}));
    ASSERT_TRUE(sessions.commit({sessions.turn("prefix b", 64)}));
  }
  const auto is_file = [](const std::string& name) { return name.starts_with("state-"); };
  const std::vector<std::string> names = disk->names();
  ASSERT_EQ(std::ranges::count_if(names, is_file), 1) << "the first pages of two states";
  disk->remove(*std::ranges::find_if(names, is_file));
  const auto store = open(disk);
  std::vector<std::string> keys;
  store->for_each_record([&](const StateStore::Record& record) {
    keys.push_back(record.key);
    EXPECT_EQ(problem_of(*store, record), "");
  });
  EXPECT_EQ(keys, std::vector<std::string>{"prefix c"});
  EXPECT_EQ(store->usage().states, 2) << "a state and its group";
  EXPECT_EQ(store->usage().set_aside, 0);
  EXPECT_EQ(store->damage().states_gone, 0);
}

// Of each record that is there after a power failure, the state is whole; one whose pages made room
// before the journal had its removal is dropped.
TEST(PageGroupsOfAStore, ExpendableStatesAreWholeOrGoneWheneverPowerIsLost) {
  Options few = options();
  few.most_bytes = 22'000;
  const auto open = [&](const std::shared_ptr<RecordingDisk>& disk) {
    return std::make_unique<StateStore>(std::make_unique<RecordingFolder>(disk), few);
  };
  const auto run = [](StateStore& store) {
    Sessions sessions(store);
    for (int round = 0; round < 3; ++round) {
      sessions.commit({sessions.turn("prefix a", 300), sessions.turn("s", 200)});
      sessions.commit({sessions.fork("prefix a", "prefix b")});
      sessions.commit({sessions.turn("prefix b", 200)});
      sessions.commit({Sessions::removal("prefix a"), sessions.turn("prefix c", 500)});
      sessions.commit({sessions.turn("prefix b", 90), Sessions::removal("prefix c")});
      sessions.commit({Sessions::removal("prefix b"), sessions.turn("s", 400)});
      while (store.tidy(StateStore::Hurry::kFull)) continue;
    }
  };
  auto whole = std::make_shared<RecordingDisk>();
  run(*open(whole));
  ASSERT_GT(whole->calls(), 60);
  int64_t found = 0;
  for (int last = 1; last <= whole->calls(); ++last) {
    auto disk = std::make_shared<RecordingDisk>();
    disk->on_call = [last](int call, const char*) {
      if (call > last) throw PowerLost{};
    };
    try {
      run(*open(disk));
    } catch (const PowerLost&) {
    }
    std::mt19937_64 random(static_cast<uint64_t>(last));
    for (int i = 0; i < 20; ++i) {
      SCOPED_TRACE("call " + std::to_string(last) + ", by chance " + std::to_string(i));
      const auto store = open(disk->after_power_loss([&](size_t of) { return random() % of; }));
      EXPECT_EQ(store->damage().states_gone, 0);
      EXPECT_EQ(store->usage().set_aside, 0);
      store->for_each_record([&](const StateStore::Record& record) {
        EXPECT_EQ(problem_of(*store, record), "") << record.key << ": " << record.text;
        found += is_expendable(record.key);
      });
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(found, 500);
}

// A page a turn, of 38,400 tokens.
TEST(PageGroupsOfAStore, ManyAreReadAndDeletedTogether) {
  constexpr int kTurns = 600;
  const TempDir dir;
  const auto open = [&] {
    return std::make_unique<StateStore>(open_folder(dir.path()), Options{});
  };
  const auto image = [&](int64_t position) {
    return Text{position, std::vector<uint64_t>(static_cast<size_t>(position / 64), 5)}.image();
  };
  {
    const auto store = open();
    StoredPtr before;
    const std::vector<StatePiece> all = *image(64 * kTurns);
    for (int turn = 1; turn <= kTurns; ++turn) {
      StateHeader header = grown(64 * turn);
      header.id = store->new_id();
      StateStore::Change change{.key = "a", .tenant = "t", .states = {header.id}};
      std::vector<StatePiece> pieces(all.begin(), all.begin() + 1 + turn);
      change.state = {header, std::make_shared<const std::vector<StatePiece>>(pieces), before};
      const auto outcome = store->commit({&change, 1})[0];
      ASSERT_EQ(outcome.error, "");
      before = outcome.state;
    }
    EXPECT_LT(store->usage().written, kTurns * (kPageBytes + 2500u));
  }
  const auto store = open();
  store->for_each_record([&](const StateStore::Record& record) {
    const NewImage found = make_image(grown(0).layout, 64 * kTurns);
    store->read(*record.states.at(0), grown(0), found.rooms);
    EXPECT_TRUE(equal(found.image, image(64 * kTurns)));
  });
  const StateStore::Change removal = Sessions::removal("a");
  ASSERT_EQ(store->commit({&removal, 1})[0].error, "");
  while (store->tidy(StateStore::Hurry::kFull)) continue;
  EXPECT_EQ(store->usage().states, 0);
}

TEST(PageGroupsOfAStore, NothingAcknowledgedIsLostWheneverPowerIs) {
  constexpr int kMost = 60;
  int calls = 0;
  {
    auto disk = std::make_shared<RecordingDisk>();
    const auto store = open(disk);
    Sessions(*store).run();
    calls = disk->calls();
  }
  ASSERT_GT(calls, 80);
  for (int last = 1; last <= calls; last += kCallStep) {
    auto disk = std::make_shared<RecordingDisk>();
    disk->on_call = [last](int call, const char*) {
      if (call > last) throw PowerLost{};
    };
    std::unique_ptr<StateStore> store;
    std::optional<Sessions> sessions;
    try {
      store = open(disk);
      sessions.emplace(*store);
      sessions->run();
    } catch (const PowerLost&) {
    }
    std::mt19937_64 random(static_cast<uint64_t>(last));
    for (int i = 0; i < kMost; ++i) {
      SCOPED_TRACE("call " + std::to_string(last) + ", by chance " + std::to_string(i));
      const auto after = disk->after_power_loss([&](size_t of) { return random() % of; });
      const auto again = open(after);
      if (sessions) expect_kept(*sessions, *again);
      EXPECT_EQ(again->usage().set_aside, 0);
      if (HasFailure()) return;
    }
  }
}

TEST(PageGroupsOfAStore, FailingCallsLoseNothing) {
  int calls = 0;
  {
    auto disk = std::make_shared<RecordingDisk>();
    const auto store = open(disk);
    Sessions(*store).run();
    calls = disk->calls();
  }
  for (const bool stays : {false, true}) {
    for (int bad = 5; bad <= calls; bad += kCallStep) {
      SCOPED_TRACE("call " + std::to_string(bad) + (stays ? " and later" : ""));
      auto disk = std::make_shared<RecordingDisk>();
      const auto store = open(disk);
      Sessions sessions(*store);
      ASSERT_TRUE(sessions.commit({sessions.turn("a", 130), sessions.turn("b", 10)}));
      ASSERT_TRUE(sessions.commit({sessions.fork("a", "f"), sessions.fork("b", "g")}));
      bool failed = false;
      disk->on_call = [&](int call, const char* what) {
        if (std::string(what) == "read" || call < bad || (!stays && failed)) return;
        failed = true;
        throw std::system_error(ENOSPC, std::generic_category(), what);
      };
      for (int round = 0; round < 4; ++round) {
        for (const std::string key : {"a", "f", "g"}) sessions.commit({sessions.turn(key, 90)});
        while (store->tidy()) continue;
      }
      std::mt19937_64 random(7);
      const auto choose = [&](size_t of) { return random() % of; };
      expect_kept(sessions, *open(disk->after_power_loss(choose)));
      disk->on_call = {};
      sessions.failed.clear();
      for (const std::string key : {"a", "b", "f", "g"}) {
        ASSERT_TRUE(sessions.commit({sessions.turn(key, 90)})) << sessions.error;
      }
      expect_kept(sessions, *open(disk->after_power_loss(choose)));
      if (HasFailure()) return;
    }
  }
}

// Two sessions that share a group of three pages, which has its own file.
class DamagedGroup : public ::testing::Test {
 protected:
  DamagedGroup() {
    const auto store = open(disk_);
    Sessions sessions(*store);
    EXPECT_TRUE(sessions.commit({sessions.turn("a", 3 * kPageTokens)}));
    EXPECT_TRUE(sessions.commit({sessions.fork("a", "f"), sessions.turn("b", 10)}));
    EXPECT_TRUE(sessions.commit({sessions.turn("a", 70), sessions.turn("f", 70)}));
    for (const std::string& name : disk_->names()) {
      if (name.starts_with("state-")) file_ = name;
    }
    EXPECT_NE(file_, "");
  }
  std::map<std::string, std::string> problems(StateStore& store) {
    std::map<std::string, std::string> found;
    store.for_each_record(
        [&](const StateStore::Record& record) { found[record.key] = problem_of(store, record); });
    return found;
  }
  std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
  std::string file_;
};

TEST_F(DamagedGroup, IsSetAsideAndItsStatesAreGone) {
  disk_->bytes_of(file_)[2000] ^= 1;
  const auto store = open(disk_);
  EXPECT_EQ(store->damage().states_gone, 0) << "not read yet";
  auto found = problems(*store);
  EXPECT_THAT(found["a"], HasSubstr("checksum"));
  EXPECT_THAT(found["f"], HasSubstr("missing"));
  EXPECT_EQ(found["b"], "");
  EXPECT_THAT(disk_->names(), Contains("set-aside-" + file_));
  store->for_each_record([&](const StateStore::Record& record) {
    EXPECT_EQ(store->is_gone(*record.states.at(0)), record.key != "b");
  });
  // Who has the state elsewhere writes all of it.
  Sessions sessions(*store);
  StateStore::Change whole = sessions.turn("a", 64);
  Text text = Text::of(whole.text);
  whole.state->image = text.image();
  whole.state->continues = nullptr;
  ASSERT_TRUE(sessions.commit({whole}));
  EXPECT_EQ(problems(*open(disk_))["a"], "");
}

TEST_F(DamagedGroup, WhatIsMissingOrCutOffIsFoundAtTheStart) {
  disk_->bytes_of(file_).resize(100);
  EXPECT_EQ(open(disk_)->damage().states_gone, 2);
  disk_->remove(file_);
  const auto store = open(disk_);
  EXPECT_EQ(store->damage().states_gone, 2);
  store->for_each_record([&](const StateStore::Record& record) {
    EXPECT_EQ(store->is_gone(*record.states.at(0)), record.key != "b");
  });
}

// As a backup of another folder would have it.
TEST_F(DamagedGroup, OfTheSameIdButAnotherFolderIsRefusedAndStays) {
  std::string& bytes = disk_->bytes_of(file_);
  uint32_t header = 0;
  std::memcpy(&header, bytes.data() + 12, sizeof header);
  bytes[32 + header] ^= 1;
  std::string described = bytes.substr(32, header);
  const size_t sum = described.find("checksum\":\"") + 11;
  const auto page = std::string_view(bytes).substr(32 + header, kPageBytes);
  bytes.replace(32 + sum, 16, fmt::format("{:016x}", checksum_of(page)));
  const uint64_t front = checksum_of(bytes.substr(0, 24) + bytes.substr(32, header));
  std::memcpy(bytes.data() + 24, &front, sizeof front);
  const auto store = open(disk_);
  auto found = problems(*store);
  EXPECT_THAT(found["a"], HasSubstr("restore the file"));
  EXPECT_THAT(found["f"], HasSubstr("restore the file"));
  EXPECT_THAT(disk_->names(), Contains(file_));
}

}  // namespace recurve::testing::page_groups_store_test
