// A store of states over a disk that loses power after any of its calls, and whose calls fail.
#include "server/storage/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine/recording_folder.h"
#include "tests/support/engine/store_workload.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::state_store_test {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::unique_ptr<StateStore> open(const std::shared_ptr<RecordingDisk>& disk) {
  return std::make_unique<StateStore>(std::make_unique<RecordingFolder>(disk), options());
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
  EXPECT_EQ(found.size(), 5u);
}

TEST(StateStore, ManyCommitsShareTheirSyncs) {
  auto disk = std::make_shared<RecordingDisk>();
  const auto store =
      std::make_unique<StateStore>(std::make_unique<RecordingFolder>(disk), StateStore::Options{});
  Workload workload(*store);
  workload.commit({{"first"}});
  const int64_t before = store->usage().syncs;
  std::vector<Workload::Write> many;
  for (int i = 0; i < 64; ++i) many.push_back({std::to_string(i)});
  workload.commit(many);
  EXPECT_EQ(store->usage().syncs - before, 2);
}

TEST(StateStore, UnreferencedFilesAreRemoved) {
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
  EXPECT_TRUE(is_stored(*store, *held, kSmall, image_of(kSmall, 5)));
}

// What is there at a start after a loss of power, and that it is the same at the next one.
void expect_kept_after_power_loss(const RecordingDisk& disk, const Choose& choose,
                                  const std::optional<Workload>& workload) {
  const auto after = disk.after_power_loss(choose);
  const auto again = open(after);
  const Values found = values_in(*again);
  if (workload) expect_kept(*workload, found);
  const auto later = open(after->after_power_loss([](size_t) { return 0; }));
  EXPECT_EQ(values_in(*later), found);
  EXPECT_EQ(later->usage().set_aside, 0);
}

// Power is lost after each call that there is, or each third, and of what was not synced each part
// is left that can be: whatever of the folder's changes together with whatever of the files' ends.
// Where there are very many of those, as many as kMost by chance.
TEST(StateStore, NothingAcknowledgedIsLostWheneverPowerIs) {
  constexpr int kMost = 100;
  int calls = 0, every = 0, survivals = 0;
  {
    auto disk = std::make_shared<RecordingDisk>();
    const auto store = open(disk);
    Workload(*store).run();
    calls = disk->calls();
  }
  ASSERT_GT(calls, 150);
  for (int last = 1; last <= calls; last += kCallStep) {
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
    EveryChoice choices;
    int tried = 0;
    bool more = true;
    for (; more && tried < kMost; ++tried) {
      SCOPED_TRACE("call " + std::to_string(last) + ", survival " + std::to_string(tried));
      expect_kept_after_power_loss(*disk, std::ref(choices), workload);
      if (HasFailure()) return;
      more = choices.next();
    }
    every += more ? 0 : 1;
    std::mt19937_64 random(static_cast<uint64_t>(last));
    for (int i = 0; more && i < kMost; ++i, ++tried) {
      SCOPED_TRACE("call " + std::to_string(last) + ", by chance " + std::to_string(i));
      expect_kept_after_power_loss(*disk, [&](size_t of) { return random() % of; }, workload);
      if (HasFailure()) return;
    }
    survivals += tried;
  }
  const int losses = (calls + kCallStep - 1) / kCallStep;
  RecordProperty("calls", losses);
  RecordProperty("calls_with_every_survival", every);
  RecordProperty("survivals", survivals);
  EXPECT_GE(every, losses * 17 / 20) << "of " << losses << ", " << survivals << " survivals";
}

// Each call, or each third, fails once, with no room or a bad disk, or from there on all do.
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
  const auto choose = [&](size_t of) { return random() % of; };
  for (int bad = 5; bad <= calls; bad += kCallStep) {
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
    expect_kept(workload, values_in(*open(disk->after_power_loss(choose))));
    disk->on_call = {};
    // It works again: all can be committed, and what failed before is not in the way.
    workload.unknown.clear();
    ASSERT_TRUE(workload.commit({{"a"}, {"b"}, {"c"}, {"d"}, {"often"}, {"large", kLarge}}));
    expect_kept(workload, values_in(*open(disk->after_power_loss(choose))));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, FailingDisk,
                         ::testing::Combine(::testing::Values(ENOSPC, EIO), ::testing::Bool()));

// At the start, too: what is there is served, and nothing is removed that the journal may name.
TEST(StateStore, OpensWhereTheDiskIsFullAndCommitsOnceThereIsRoom) {
  for (const int error : {ENOSPC, EROFS}) {
    auto disk = std::make_shared<RecordingDisk>();
    Values there;
    {
      const auto store = open(disk);
      Workload workload(*store);
      workload.run();
      there = workload.acknowledged;
    }
    std::erase_if(there, [](const auto& value) { return !value.second; });
    disk->on_call = [error](int, const char* what) {
      const std::string call = what;
      if (call == "read" || call == "open" || call == "list") return;
      if (call == "create" && error == ENOSPC) return;  // a name may still find room
      throw std::system_error(error, std::generic_category(), what);
    };
    {
      const auto store = open(disk);
      EXPECT_THAT(store->not_writable(), HasSubstr(error == ENOSPC ? "append" : "create"));
      EXPECT_EQ(values_in(*store), there);
      Workload workload(*store);
      EXPECT_FALSE(workload.commit({{"a"}, {"new", kLarge}}));
      while (store->tidy()) continue;
      EXPECT_EQ(values_in(*store), there);
      disk->on_call = {};
      EXPECT_TRUE(workload.commit({{"a"}, {"new", kLarge}}));
      there["a"] = workload.acknowledged["a"];
      there["new"] = workload.acknowledged["new"];
    }
    const auto store = open(disk);
    EXPECT_EQ(store->not_writable(), "");
    EXPECT_EQ(values_in(*store), there);
    EXPECT_EQ(store->usage().set_aside, 0);
  }
}

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

// What is expendable makes room for what comes with its removal, and in no other case anything
// does.
TEST(StateStore, WhatIsExpendableMakesRoomAtOnce) {
  for (const std::string kept : {"k", "prefix k"}) {
    StateStore::Options few = options();
    few.most_bytes = 12'000;
    StateStore store(std::make_unique<RecordingFolder>(std::make_shared<RecordingDisk>()), few);
    Workload workload(store);
    ASSERT_TRUE(workload.commit({{kept, kLarge}}));
    ASSERT_FALSE(workload.commit({{"a", kLarge}, {"b", kLarge}}));
    ASSERT_TRUE(workload.commit({{"a", kSmall, true}, {"b", kSmall, true}}));
    EXPECT_EQ(workload.commit({{kept, kLarge, true}, {"a", kLarge}, {"b", kLarge}}),
              kept == "prefix k");
  }
}

// The file went, and power was lost before the journal said so.
TEST(StateStore, WhatIsExpendableAndGoneIsNoRecord) {
  auto disk = std::make_shared<RecordingDisk>();
  {
    const auto store = open(disk);
    Workload workload(*store);
    workload.commit({{"prefix large", kLarge}, {"prefix small"}, {"kept"}});
  }
  for (const std::string& name : disk->names()) {
    if (name.starts_with("state-")) disk->remove(name);
  }
  const auto store = open(disk);
  const Values found = values_in(*store);
  EXPECT_EQ(found.count("prefix large"), 0u);
  EXPECT_EQ(found.size(), 2u);
  EXPECT_EQ(store->usage().set_aside, 0);
  std::vector<std::string> keys;
  store->for_each_record("prefix ", [&](const auto& record) { keys.push_back(record.key); });
  EXPECT_EQ(keys, std::vector<std::string>{"prefix small"});
}

// A folder with one state in a file and one in a segment, and what damage does.
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
    const size_t elements = record.key == "large" ? kLarge : kSmall;
    try {
      store.read(*record.states.at(0), header(elements), make_image(header(elements).layout).rooms);
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }
  std::map<std::string, std::string> read_all() {
    const auto store = open(disk_);
    std::map<std::string, std::string> said;
    store->for_each_record([&](const auto& record) { said[record.key] = read(*store, record); });
    return said;
  }
  std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
};

TEST_F(DamagedFolder, AChangedByteIsFoundAndTheFileIsKept) {
  disk_->bytes_of(file("state-"))[2000] ^= 1;
  const auto store = open(disk_);
  store->for_each_record([&](const StateStore::Record& record) {
    if (record.key != "large") return;
    EXPECT_THAT(read(*store, record), HasSubstr("checksum"));
    store->set_aside(*record.states[0]);
    EXPECT_THAT(read(*store, record), HasSubstr("missing"));
  });
  EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-state-")));
  EXPECT_EQ(store->usage().set_aside, 1);
}

TEST_F(DamagedFolder, WhatIsCutOffIsSetAsideToo) {
  disk_->bytes_of(file("state-")).resize(2000);
  const auto store = open(disk_);
  store->for_each_record([&](const StateStore::Record& record) {
    if (record.key == "large") store->set_aside(*record.states[0]);
  });
  EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-state-")));
}

TEST_F(DamagedFolder, WhatIsCutOffOrGoneIsSaidAndTheRestGoesOn) {
  disk_->bytes_of(file("segment-")).resize(100);
  auto said = read_all();
  EXPECT_THAT(said.at("small"), HasSubstr("truncated"));
  EXPECT_EQ(said.at("large"), "");
  disk_->remove(file("state-"));
  EXPECT_THAT(read_all().at("large"), HasSubstr("missing"));
}

// While the store runs, too.
TEST_F(DamagedFolder, AFileThatIsDeletedMeanwhileIsSaidToBeGone) {
  const auto store = open(disk_);
  disk_->remove(file("state-"));
  store->for_each_record([&](const StateStore::Record& record) {
    EXPECT_THAT(read(*store, record), HasSubstr(record.key == "large" ? "missing" : ""));
  });
}

// Offset and bytes come to what is in the file, modulo 2^64.
TEST_F(DamagedFolder, AStateThatCannotBeThereIsSaidToBeGone) {
  std::string entries;
  append_entry(StateLocation{.id = 900, .segment = 1, .offset = UINT64_MAX - 99, .bytes = 200},
               &entries);
  append_entry(RecordEntry{.key = "beyond", .text = "", .states = {900}}, &entries);
  std::string& journal = disk_->bytes_of(file("journal-"));
  journal += journal_group(parse_journal(journal).groups.size(), entries);
  const auto said = read_all();
  EXPECT_THAT(said.at("beyond"), HasSubstr("truncated"));
  EXPECT_EQ(said.at("small"), "");
}

// Page groups that name each other, or a state, as the one before them.
TEST_F(DamagedFolder, PageGroupsInACircleAreNotFollowedForEver) {
  std::string entries;
  const StateLocation at{.segment = 1, .bytes = 100};
  const auto put = [&](uint64_t id, uint64_t base, uint64_t pages) {
    StateLocation of = at;
    of.id = id;
    append_entry(PagedLocation{.at = of, .base = base, .pages = pages}, &entries);
  };
  put(900, 901, 0);
  put(901, 902, 1);
  put(902, 901, 1);
  put(903, 904, 0);
  put(904, 903, 0);
  append_entry(RecordEntry{.key = "groups", .text = "", .states = {900}}, &entries);
  append_entry(RecordEntry{.key = "states", .text = "", .states = {903}}, &entries);
  std::string& journal = disk_->bytes_of(file("journal-"));
  journal += journal_group(parse_journal(journal).groups.size(), entries);
  const auto said = read_all();
  EXPECT_NE(said.at("groups"), "");
  EXPECT_NE(said.at("states"), "");
  EXPECT_EQ(said.at("small"), "");
}

TEST_F(DamagedFolder, ExchangedStatesAreNotTakenForEachOther) {
  {
    const auto store = open(disk_);
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

// Files that a commit which did not end has left go; what is no such file is kept, by another name.
TEST_F(DamagedFolder, ForeignFilesAreSetAsideAndNeverRemoved) {
  const std::string state = disk_->bytes_of(file("state-"));
  const std::string photograph = std::string(5000, '\xd8');
  const auto put = [&](const std::string& name, const std::string& bytes) {
    RecordingFolder(disk_).create(name)->append(bytes);
  };
  put("state-700", photograph);
  put("state-701", state);  // of another number
  put("state-702", state.substr(0, 200));
  put("state-703", std::string(600, '\0'));
  put("segment-800", photograph);
  put("journal-1.new", photograph);
  put("state-99999999999999999999", photograph);
  put("holiday.jpg", photograph);
  const auto said = read_all();
  EXPECT_EQ(said.at("small") + said.at("large"), "");
  for (const char* name : {"state-700", "segment-800", "journal-1.new"}) {
    EXPECT_EQ(disk_->bytes_of(std::string("set-aside-") + name), photograph);
  }
  EXPECT_EQ(disk_->bytes_of("set-aside-state-701"), state);
  EXPECT_THAT(disk_->names(), Not(Contains(HasSubstr("state-702"))));
  EXPECT_THAT(disk_->names(), Not(Contains(HasSubstr("state-703"))));
  for (const char* name : {"state-99999999999999999999", "holiday.jpg"}) {
    EXPECT_EQ(disk_->bytes_of(name), photograph) << "it is not the store's";
  }
}

TEST_F(DamagedFolder, AForeignJournalDoesNotHideTheOneThatIsThere) {
  RecordingFolder(disk_).create("journal-5000")->append(std::string(5000, '\xd8'));
  auto said = read_all();
  EXPECT_EQ(said.at("small") + said.at("large"), "");
  EXPECT_EQ(disk_->bytes_of("set-aside-journal-5000").size(), 5000u);
  EXPECT_EQ(read_all(), said);
}

// What is set aside later does not take the name of what is there.
TEST_F(DamagedFolder, NumbersOfWhatWasSetAsideAreNotUsedAgain) {
  EXPECT_LT(open(disk_)->new_id(), 900u);
  RecordingFolder(disk_).create("set-aside-state-900");
  EXPECT_EQ(open(disk_)->new_id(), 901u);
}

// Of the journal and its copy one is enough, whichever byte of the other is not as it was written,
// or wherever it ends.
TEST_F(DamagedFolder, AJournalIsReadFromItsCopyAndTheOtherWayRound) {
  {
    const auto store = open(disk_);
    Workload workload(*store);
    workload.commit({{"small"}, {"later"}});
    workload.commit({{"small"}});
    workload.commit({{"last"}, {"large", kLarge, true}});
  }
  const auto whole = disk_->after_power_loss([](size_t) { return 0; });
  const Values there = values_in(*open(whole->after_power_loss([](size_t) { return 0; })));
  ASSERT_EQ(there.size(), 3u);
  const auto expect_all = [&](const std::string& name, const auto& damage) {
    disk_ = whole->after_power_loss([](size_t) { return 0; });
    damage(disk_->bytes_of(name));
    const auto store = open(disk_);
    ASSERT_EQ(values_in(*store), there) << name;
    ASSERT_EQ(store->damage().in_doubt, 0);
    ASSERT_FALSE(store->damage().records_lost);
  };
  for (const std::string& name : {file("journal-2"), file("journal-copy-2")}) {
    const size_t bytes = whole->bytes_of(name).size();
    for (size_t at = 0; at < bytes; at += kCallStep) {
      SCOPED_TRACE(at);
      expect_all(name, [&](std::string& journal) { journal[at] ^= 1 << at % 8; });
      expect_all(name, [&](std::string& journal) { journal.resize(at); });
      if (HasFatalFailure()) return;
    }
    expect_all(name, [&](std::string& journal) { std::ranges::fill(journal, '\0'); });
    disk_ = whole->after_power_loss([](size_t) { return 0; });
    disk_->remove(name);
    EXPECT_EQ(values_in(*open(disk_)), there);
  }
}

// Where both are damaged, what may have been replaced is in doubt, until it is put anew; and
// nothing is removed that the lost part may have named.
class DamagedJournal : public DamagedFolder {
 protected:
  // Of the commits "small", "large"; "between"; "later", that of "between" is lost.
  DamagedJournal() {
    const auto store = open(disk_);
    Workload workload(*store);
    workload.commit({{"between"}, {"prefix p"}});
    workload.commit({{"later"}});
  }
  void damage(const std::string& name) {
    std::string& bytes = disk_->bytes_of(name);
    bytes[bytes.rfind("between")] ^= 1;
  }
  static std::set<std::string> doubts(StateStore& store) {
    std::set<std::string> keys;
    store.for_each_record([&](const auto& record) {
      if (record.in_doubt) keys.insert(record.key);
    });
    EXPECT_EQ(store.damage().in_doubt, static_cast<int64_t>(keys.size()));
    return keys;
  }
  void expect_doubts() {
    EXPECT_EQ(doubts(*open(disk_)), (std::set<std::string>{"large", "small"}));
    EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-journal-")));
    {
      const auto store = open(disk_);
      EXPECT_EQ(doubts(*store), (std::set<std::string>{"large", "small"})) << "it is remembered";
      Workload workload(*store);
      EXPECT_TRUE(workload.commit({{"small"}, {"large", kSmall, true}}));
      while (store->tidy()) continue;
    }
    const auto store = open(disk_);
    EXPECT_EQ(doubts(*store), std::set<std::string>{});
    EXPECT_EQ(values_in(*store).size(), 2u);
    EXPECT_FALSE(store->damage().journal);
  }
};

TEST_F(DamagedJournal, WhatMayHaveBeenReplacedIsInDoubt) {
  damage(file("journal-2"));
  damage(file("journal-copy-2"));
  const auto store = open(disk_);
  EXPECT_TRUE(store->damage().journal);
  EXPECT_TRUE(store->damage().records_lost);
  expect_doubts();
}

TEST_F(DamagedJournal, WithoutItsCopyTheSame) {
  damage(file("journal-2"));
  disk_->remove(file("journal-copy-2"));
  expect_doubts();
}

// As journals of before, which have no numbers and no copies.
TEST_F(DamagedJournal, OfVersion2TheSame) {
  std::string& journal = disk_->bytes_of(file("journal-2"));
  std::string before("RCRVJRNL\2\0\0\0", 12);
  const auto put_checksum = [&](std::string_view of) {
    const uint64_t checksum = checksum_of(of);
    before.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  };
  put_checksum(before);
  for (size_t at = 28; at < journal.size();) {
    uint32_t length = 0;
    std::memcpy(&length, journal.data() + at + 4, sizeof length);
    before += journal.substr(at, 8);
    put_checksum(journal.substr(at + 24, length));
    before += journal.substr(at + 24, length);
    at += 24 + length;
  }
  journal = before;
  disk_->remove(file("journal-copy-2"));
  EXPECT_EQ(values_in(*open(disk_->after_power_loss([](size_t) { return 0; }))).size(), 5u);
  damage(file("journal-2"));
  expect_doubts();
}

// The snapshot replaced nothing: what is lost of it makes no other record doubtful.
TEST_F(DamagedJournal, AGroupOfTheSnapshotLeavesTheOthersCertain) {
  for (const std::string& name : {file("journal-2"), file("journal-copy-2")}) {
    std::string& bytes = disk_->bytes_of(name);
    bytes[bytes.find("large")] ^= 1;
  }
  const auto store = open(disk_);
  EXPECT_TRUE(store->damage().records_lost);
  EXPECT_EQ(doubts(*store), std::set<std::string>{});
  EXPECT_EQ(values_in(*store).size(), 4u);
  EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-state-")));
}

TEST_F(DamagedJournal, WithoutAnyAllFilesAreSetAside) {
  disk_->remove(file("journal-2"));
  disk_->remove(file("journal-copy-2"));
  const auto store = open(disk_);
  EXPECT_TRUE(store->damage().records_lost);
  EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-state-")));
  EXPECT_THAT(disk_->names(), Contains(StartsWith("set-aside-segment-")));
}

TEST_F(DamagedFolder, ANewerJournalIsRefusedByName) {
  std::string& journal = disk_->bytes_of(file("journal-"));
  journal[8] = 9;
  const uint64_t checksum = checksum_of(std::string_view(journal).substr(0, 20));
  std::memcpy(journal.data() + 20, &checksum, sizeof checksum);
  EXPECT_THAT(error_of([&] { open(disk_); }), HasSubstr("version 9"));
}

}  // namespace recurve::testing::state_store_test
