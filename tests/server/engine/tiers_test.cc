// Sessions that are on a disk, and one that is slow, fails, or is wanted by many at once: what else
// the engine does goes on, and what the disk has not got is not promised.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "server/session/state_transfer.h"
#include "tests/server/engine/tier_server.h"
#include "tests/support/engine/recording_folder.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::tiers_test {

using Kind = SessionCommand::Kind;
using ::testing::HasSubstr;

constexpr auto kNoSpace = ENOSPC;

// A disk whose syncs wait as long as the gate is closed.
class SlowDisk : public ::testing::Test {
 protected:
  SlowDisk() {
    disk_->on_call = [this](int, const char* what) {
      if (std::string(what) != "sync") return;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return open_; });
    };
  }
  ~SlowDisk() override { gate(true); }
  void gate(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }

  std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

TEST_F(SlowDisk, HoldsUpOnlyWhatIsToLast) {
  Server server(std::make_unique<RecordingFolder>(disk_));
  server.open("durable", Durability::kLocal);
  server.open("plain", Durability::kNone);
  gate(false);
  AnswerPtr durable = server->submit(turn("durable", 1));
  for (uint64_t seed = 2; seed < 8; ++seed) {
    EXPECT_EQ(server.ask(turn("plain", seed))->reason(), EndReason::kLength);
    EXPECT_EQ(server.ask(turn("", seed))->reason(), EndReason::kLength);
  }
  EXPECT_EQ(server->command(Kind::kMark, "plain", "here").reason, EndReason::kDone);
  durable->take();
  EXPECT_FALSE(durable->ended()) << "it is not on the disk";
  EXPECT_TRUE(server->get("durable").busy);
  gate(true);
  durable->wait_for_end();
  EXPECT_EQ(durable->reason(), EndReason::kLength);
  EXPECT_EQ(durable->ending->commit.value().number, 2u);
  EXPECT_EQ(durable->bits(), Server::quiet({turn("durable", 1)})->bits());
}

TEST_F(SlowDisk, IsNotWaitedForByARequestThatIsNotToLast) {
  Server server(std::make_unique<RecordingFolder>(disk_));
  server.open("s", Durability::kLocal);
  gate(false);
  Request asked = turn("s", 1);
  asked.durability = Durability::kNone;
  AnswerPtr answer = server.ask(asked);
  EXPECT_EQ(answer->reason(), EndReason::kLength);
  EXPECT_FALSE(answer->ending->commit);
  gate(true);
  while (server->get("s").busy) std::this_thread::yield();
  EXPECT_EQ(server->get("s").commit.value().number, 2u);
  EXPECT_EQ(server.ask(turn("s", 2))->bits(), Server::quiet({turn("s", 1), turn("s", 2)})->bits());

  server.open("plain", Durability::kNone);
  Request lasting = turn("plain", 3);
  lasting.durability = Durability::kLocal;
  AnswerPtr refused = server.ask(lasting);
  EXPECT_EQ(refused->reason(), EndReason::kInvalid);
  EXPECT_THAT(refused->ending->message, HasSubstr("not durable"));
}

class FullDisk : public ::testing::Test {
 protected:
  FullDisk() {
    disk_->on_call = [this](int, const char* what) {
      const std::string call = what;
      if (!full_ || call == "read" || call == "open" || call == "list") return;
      throw std::system_error(kNoSpace, std::generic_category(), "cannot " + call);
    };
  }
  std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
  std::atomic<bool> full_ = false;
};

TEST_F(FullDisk, TakesBackWhatItCannotKeepAndTheRestGoesOn) {
  Server server(std::make_unique<RecordingFolder>(disk_));
  server.open("s", Durability::kLocal);
  server.open("plain", Durability::kNone);
  const int64_t before = server.ask(turn("s", 1))->ending->session_position;
  full_ = true;
  AnswerPtr lost = server.ask(turn("s", 2));
  EXPECT_EQ(lost->reason(), EndReason::kNotStored);
  EXPECT_THAT(lost->ending->message, HasSubstr("the session is unchanged"));
  EXPECT_THAT(lost->ending->message, HasSubstr("No space left"));
  EXPECT_EQ(server->get("s").position, before);
  EXPECT_EQ(server->get("s").epoch, 1u);
  EXPECT_EQ(server.ask(turn("plain", 3))->reason(), EndReason::kLength);
  EXPECT_EQ(server->command(Kind::kMark, "s", "here").reason, EndReason::kExhausted);
  EXPECT_EQ(server->command(Kind::kClose, "s").reason, EndReason::kExhausted);
  EXPECT_TRUE(server->get("s").marks.empty());
  full_ = false;
  AnswerPtr again = server.ask(turn("s", 2));
  EXPECT_EQ(again->bits(), Server::quiet({turn("s", 1), turn("s", 2)})->bits());
}

// Neither opened, forked nor imported, and no memory of it either.
TEST_F(FullDisk, LeavesNothingOfASessionThatItCouldNotTake) {
  Server server(std::make_unique<RecordingFolder>(disk_));
  server.open("s", Durability::kNone);
  server.ask(turn("s", 1));
  const SessionResult state = server->command(Kind::kExport, "s");
  ASSERT_EQ(state.reason, EndReason::kDone) << state.message;
  std::string written(state.state->bytes(), '\0');
  state.state->read(0, written);
  StateHeader wanted;
  const NullModel model(NullHarness::kVocab, {.ballast = kBallast});
  wanted.layout = model.state_layout();
  const auto ready = state_reader(wanted)(written);
  const auto make = [&](Kind kind, const std::string& name) {
    SessionCommand command{.kind = kind, .name = name, .durability = Durability::kLocal};
    if (kind == Kind::kFork) command.name = "s", command.other = name;
    if (kind == Kind::kImport) command.state = ready;
    return server->command(std::move(command));
  };
  full_ = true;
  for (const Kind kind : {Kind::kOpen, Kind::kFork, Kind::kImport}) {
    const SessionResult refused = make(kind, "new");
    EXPECT_EQ(refused.reason, EndReason::kExhausted);
    EXPECT_THAT(refused.message, HasSubstr("No space left"));
    EXPECT_EQ(server->command(Kind::kGet, "new").reason, EndReason::kNoSession)
        << static_cast<int>(kind);
  }
  full_ = false;
  for (const Kind kind : {Kind::kOpen, Kind::kFork, Kind::kImport}) {
    const std::string name = "new" + std::to_string(static_cast<int>(kind));
    EXPECT_EQ(make(kind, name).reason, EndReason::kDone);
    EXPECT_EQ(server->get(name).durability, Durability::kLocal);
  }
  EXPECT_EQ(server.ask(turn("new" + std::to_string(static_cast<int>(Kind::kImport)), 2))->bits(),
            Server::quiet({turn("s", 1), turn("s", 2)})->bits());
}

// A folder of a server whose records said of each session what is usual, too.
TEST(Tiers, SessionsOfAServerBeforeAreFoundAgain) {
  const auto disk = std::make_shared<RecordingDisk>();
  const auto folder = [&] { return std::make_unique<RecordingFolder>(disk); };
  {
    Server server(folder());
    server.open("s", Durability::kLocal);
    server.ask(turn("s", 1));
  }
  {
    StateStore store(folder(), {});
    StateStore::Change as_before;
    store.for_each_record([&](const StateStore::Record& record) {
      if (!record.key.ends_with("/s")) return;
      auto text = nlohmann::json::parse(record.text);
      ASSERT_FALSE(text.contains("name"));
      const std::string tenant = record.key.substr(8, record.key.find('/') - 8);  // "session "
      text.update({{"tenant", tenant},
                   {"name", "s"},
                   {"parent", ""},
                   {"ttl_seconds", 0.0},
                   {"marks", nlohmann::json::object()}});
      as_before = {.key = record.key, .text = text.dump(), .states = {record.states.at(0)->id()}};
    });
    ASSERT_EQ(store.commit({&as_before, 1}).at(0).error, "");
  }
  Server server(folder());
  EXPECT_EQ(server->stats().sessions_not_restored, 0);
  EXPECT_EQ(server.ask(turn("s", 2))->bits(), Server::quiet({turn("s", 1), turn("s", 2)})->bits());
}

// They would be looked up in the embedding, or added to.
TEST(Tiers, ARecordWithNumbersThatNoSessionHasIsNotUsed) {
  const auto disk = std::make_shared<RecordingDisk>();
  const auto folder = [&] { return std::make_unique<RecordingFolder>(disk); };
  {
    Server server(folder());
    for (const char* name : {"a", "b", "c", "s"}) {
      server.open(name, Durability::kLocal);
      server.ask(turn(name, 1));
    }
  }
  {
    StateStore store(folder(), {});
    std::vector<StateStore::Change> forged;
    const auto forge = [&](char session, const char* field, int64_t number) {
      store.for_each_record([&](const StateStore::Record& record) {
        if (!record.key.ends_with(std::string("/") + session)) return;
        auto text = nlohmann::json::parse(record.text);
        text.at("at")[field] = number;
        forged.push_back(
            {.key = record.key, .text = text.dump(), .states = {record.states.at(0)->id()}});
      });
    };
    forge('a', "position", -1);
    forge('b', "position", INT64_MAX);
    forge('c', "pending", NullHarness::kVocab);
    for (const auto& outcome : store.commit(forged)) ASSERT_EQ(outcome.error, "");
  }
  Server server(folder());
  EXPECT_EQ(server->stats().sessions_not_restored, 3);
  EXPECT_EQ(server->command(Kind::kGet, "c").reason, EndReason::kNoSession);
  EXPECT_EQ(server.ask(turn("s", 2))->bits(), Server::quiet({turn("s", 1), turn("s", 2)})->bits());
}

// A disk that is full when the server starts: sessions go on as far as nothing is promised, and
// each start has an epoch of its own once there is room.
TEST(Tiers, AFullDiskAtTheStartRefusesOnlyWhatCannotBePromised) {
  const auto disk = std::make_shared<RecordingDisk>();
  const auto folder = [&] { return std::make_unique<RecordingFolder>(disk); };
  {
    Server server(folder());
    server.open("s", Durability::kLocal);
    server.ask(turn("s", 1));
  }
  std::atomic<bool> full{true};
  disk->on_call = [&full](int, const char* what) {
    if (full && what == std::string("append")) {
      throw std::system_error(kNoSpace, std::generic_category(), what);
    }
  };
  {
    Server server(folder());
    const AnswerPtr refused = server.ask(turn("s", 2));
    EXPECT_EQ(refused->reason(), EndReason::kNotStored);
    EXPECT_THAT(refused->ending->message, HasSubstr("No space left"));
    EXPECT_EQ(server.open("new", Durability::kLocal).reason, EndReason::kExhausted);
    EXPECT_EQ(server.open("plain", Durability::kNone).reason, EndReason::kDone);
    EXPECT_EQ(server.ask(turn("plain", 2))->reason(), EndReason::kLength);
    full = false;
    const AnswerPtr answer = server.ask(turn("s", 2));
    EXPECT_EQ(answer->bits(), Server::quiet({turn("s", 1), turn("s", 2)})->bits());
    EXPECT_EQ(answer->ending->commit->owner_epoch, 2u);
  }
  Server server(folder());
  EXPECT_EQ(server.ask(turn("s", 3))->ending->commit->owner_epoch, 3u);
}

// A session whose last turn is lost with a part of the journal and of its copy: behind it another
// session's was committed.
class LostTurn : public ::testing::Test {
 protected:
  LostTurn() {
    Server server(folder());
    server.open("s", Durability::kLocal);
    server.open("other", Durability::kLocal);
    server.ask(turn("s", 1));
    server->command(Kind::kMark, "s", "here");
    position_ = server->get("s").position;
    server.ask(turn("s", 2));
    server.ask(turn("other", 1));
  }
  std::unique_ptr<FileSystem> folder() { return std::make_unique<RecordingFolder>(disk_); }
  void damage(const std::string& file) {
    std::string& bytes = disk_->bytes_of(file);
    bytes[bytes.rfind("\"commit\":4")] ^= 1;
  }
  void expect_refused(Server& server) {
    const std::string still = "position " + std::to_string(position_) + " can be read";
    const AnswerPtr refused = server.ask(turn("s", 2));
    EXPECT_EQ(refused->reason(), EndReason::kStateLost);
    EXPECT_THAT(refused->ending->message, HasSubstr(still));
    for (const Kind kind :
         {Kind::kFork, Kind::kMark, Kind::kUnmark, Kind::kRewind, Kind::kExport}) {
      const SessionResult result = server->command(kind, "s", "here");
      EXPECT_EQ(result.reason, EndReason::kStateLost) << static_cast<int>(kind);
      EXPECT_THAT(result.message, HasSubstr(still));
    }
    EXPECT_TRUE(server->get("s").in_doubt);
    EXPECT_EQ(server->get("s").position, position_);
    EXPECT_FALSE(server->get("other").in_doubt);
    EXPECT_EQ(server.ask(turn("other", 2))->reason(), EndReason::kLength);
  }
  const std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
  int64_t position_ = 0;
};

TEST_F(LostTurn, IsThereWhereOneOfJournalAndCopyIsDamaged) {
  for (const char* file : {"journal-1", "journal-copy-1"}) {
    const auto before = disk_->after_power_loss([](size_t) { return 0; });
    std::string& bytes = before->bytes_of(file);
    bytes[bytes.rfind("\"commit\":4")] ^= 1;
    Server server(std::make_unique<RecordingFolder>(before));
    EXPECT_FALSE(server->get("s").in_doubt);
    EXPECT_EQ(server.ask(turn("s", 3))->bits(),
              Server::quiet({turn("s", 1), turn("s", 2), turn("s", 3)})->bits());
  }
}

TEST_F(LostTurn, PutsTheSessionInDoubtUntilItIsAccepted) {
  damage("journal-1");
  damage("journal-copy-1");
  uint64_t epoch = 0;
  for (int start = 0; start < 2; ++start) {
    Server server(folder());
    expect_refused(server);
    epoch = server->get("s").epoch;
  }
  {
    Server server(folder());
    const SessionResult accepted = server->command(Kind::kAccept, "s");
    ASSERT_EQ(accepted.reason, EndReason::kDone) << accepted.message;
    EXPECT_FALSE(accepted.sessions[0].in_doubt);
    EXPECT_EQ(accepted.sessions[0].position, position_);
    EXPECT_GT(accepted.sessions[0].epoch, epoch + 1) << "that was one of the lost turn";
    EXPECT_EQ(server->command(Kind::kAccept, "s").reason, EndReason::kDone) << "it is, already";
  }
  Server server(folder());
  EXPECT_FALSE(server->get("s").in_doubt);
  EXPECT_EQ(server.ask(turn("s", 2))->bits(), Server::quiet({turn("s", 1), turn("s", 2)})->bits());
}

TEST_F(LostTurn, PutsTheSessionInDoubtUntilItIsClosed) {
  damage("journal-1");
  damage("journal-copy-1");
  {
    Server server(folder());
    EXPECT_EQ(server->command(Kind::kClose, "s").reason, EndReason::kDone);
    EXPECT_EQ(server.open("s", Durability::kLocal).reason, EndReason::kDone);
    EXPECT_FALSE(server->get("s").in_doubt);
  }
  Server server(folder());
  EXPECT_EQ(server.ask(turn("s", 1))->bits(), Server::quiet({turn("s", 1)})->bits());
}

// What is still there of a session whose state is damaged is its last mark that is not, or nothing.
TEST(Tiers, ALostStateIsLeftBehindForTheLastMarkOrNothing) {
  for (const bool marked : {true, false}) {
    const auto disk = std::make_shared<RecordingDisk>();
    const auto folder = [&] { return std::make_unique<RecordingFolder>(disk); };
    const StateStore::Options own_files{.own_file = 1};
    int64_t position = 0;
    {
      Server server(folder(), {}, own_files);
      server.open("s", Durability::kLocal);
      if (marked) {
        server->command(Kind::kMark, "s", "begin");
        server.ask(turn("s", 1));
        server->command(Kind::kMark, "s", "here");
        position = server->get("s").position;
      }
      server.ask(turn("s", 2));
    }
    std::string last;
    for (const std::string& name : disk->names()) {
      if (name.starts_with("state-")) last = std::max(last, name);
    }
    std::string& bytes = disk->bytes_of(last);
    bytes[bytes.size() / 2] ^= 1;
    std::vector<std::string> said;
    HarnessOptions telling;
    telling.on_state_lost = [&](auto, std::string_view name, const std::string&) {
      said.emplace_back(name);
    };
    {
      Server server(folder(), telling, own_files);
      const std::string still = "position " + std::to_string(position) + " can be read";
      for (int i = 0; i < 2; ++i) {
        const AnswerPtr refused = server.ask(turn("s", 3));
        EXPECT_EQ(refused->reason(), EndReason::kStateLost);
        EXPECT_THAT(refused->ending->message, HasSubstr(still));
      }
      EXPECT_THAT(said, ::testing::ElementsAre("s"));
      EXPECT_EQ(server->command(Kind::kFork, "s", "fork").reason, EndReason::kStateLost);
      EXPECT_EQ(server->get("s").position, position);
      EXPECT_TRUE(server->get("s").in_doubt);
      const SessionResult accepted = server->command(Kind::kAccept, "s");
      ASSERT_EQ(accepted.reason, EndReason::kDone) << accepted.message;
      EXPECT_EQ(accepted.sessions[0].position, position);
    }
    Server server(folder(), {}, own_files);
    EXPECT_FALSE(server->get("s").in_doubt);
    std::vector<Request> turns = {turn("s", 3)};
    if (marked) turns.insert(turns.begin(), turn("s", 1));
    EXPECT_EQ(server.ask(turn("s", 3))->bits(), Server::quiet(turns)->bits());
  }
}

// A folder that a server of another model has left: its sessions can be looked at and closed.
class OtherModel : public ::testing::Test {
 protected:
  OtherModel() {
    Server server(folder(), of("m"));
    server.open("s", Durability::kLocal);
    server.open("empty", Durability::kLocal);
    server.ask(turn("s", 1));
    server->command(Kind::kMark, "s", "here");
  }
  std::unique_ptr<FileSystem> folder() { return std::make_unique<RecordingFolder>(disk_); }
  static HarnessOptions of(const std::string& model) {
    return {.identity = {.model = model + "-fingerprint", .weights = "bf16"}, .model_name = model};
  }
  void expect_refused_by_name(Server& server) {
    const auto names_both =
        ::testing::AllOf(HasSubstr("\"s\""), HasSubstr("m-finger"), HasSubstr("\"n\" (n-finger"));
    Request again = turn("s", 1);
    again.id = "r-1";
    for (const Request& asked : {turn("s", 2), again}) {
      const AnswerPtr refused = server.ask(asked);
      EXPECT_EQ(refused->reason(), EndReason::kOtherModel);
      EXPECT_THAT(refused->ending->message, names_both);
      EXPECT_LE(refused->ending->message.size(), 130u);
    }
    for (const Kind kind :
         {Kind::kFork, Kind::kMark, Kind::kUnmark, Kind::kRewind, Kind::kExport}) {
      const SessionResult refused = server->command(kind, "s", "here");
      EXPECT_EQ(refused.reason, EndReason::kOtherModel) << static_cast<int>(kind);
      EXPECT_THAT(refused.message, names_both);
    }
    EXPECT_GT(server->get("s").position, 0);
    EXPECT_EQ(server.ask(turn("empty", 1))->reason(), EndReason::kLength)
        << "it is of no model yet";
    EXPECT_EQ(server->stats().sessions_other_model, 1);
    EXPECT_EQ(server->stats().sessions_not_restored, 0);
  }
  std::shared_ptr<RecordingDisk> disk_ = std::make_shared<RecordingDisk>();
};

TEST_F(OtherModel, SessionsAreRefusedByNameAndGoOnWithTheirOwn) {
  {
    std::vector<std::string> said;
    HarnessOptions other = of("n");
    other.on_other_model = [&](const StoredModel& model, int sessions) {
      said.push_back(model.name + " " + std::to_string(sessions));
    };
    Server server(folder(), other);
    expect_refused_by_name(server);
    EXPECT_THAT(said, ::testing::ElementsAre("m 1"));
  }
  Server server(folder(), of("m"));
  EXPECT_EQ(server.ask(turn("s", 2))->bits(), Server::quiet({turn("s", 1), turn("s", 2)})->bits());
  EXPECT_EQ(server.ask(turn("empty", 1))->reason(), EndReason::kOtherModel);
  EXPECT_EQ(server->command(Kind::kClose, "empty").reason, EndReason::kDone);
}

// Records of before do not say their model: the states' own headers do.
TEST_F(OtherModel, IsFoundInRecordsOfBeforeToo) {
  {
    StateStore store(folder(), {});
    std::vector<StateStore::Change> changes;
    store.for_each_record([&](const StateStore::Record& record) {
      StateStore::Change& change = changes.emplace_back(StateStore::Change{.key = record.key});
      change.removes = record.key.starts_with("model ");
      const size_t model = record.text.find(",\"model\":\"");
      change.text = record.text;
      if (model != std::string::npos) change.text.erase(model, 10 + 16 + 1);
      for (const StoredPtr& state : record.states) change.states.push_back(state->id());
    });
    for (const auto& outcome : store.commit(changes)) ASSERT_EQ(outcome.error, "");
  }
  Server server(folder(), of("n"));
  expect_refused_by_name(server);
}

TEST(Tiers, WhatIsSealedWaitsForItsKey) {
  const auto disk = std::make_shared<RecordingDisk>();
  const auto folder = [&] { return std::make_unique<RecordingFolder>(disk); };
  {
    Server server(folder());
    server.open("s", Durability::kLocal);
    server.ask(turn("s", 1));
  }
  std::atomic<bool> key_is_there = true;
  disk->on_call = [&](int, const char* what) {
    if (what == std::string("read") && !key_is_there) throw KeyMissing("where is its key?");
  };
  Server server(folder());
  key_is_there = false;
  for (int i = 0; i < 2; ++i) {
    AnswerPtr refused = server.ask(turn("s", 2));
    EXPECT_EQ(refused->reason(), EndReason::kStateSealed);
    EXPECT_THAT(refused->ending->message, HasSubstr("where is its key?"));
    const SessionResult exported = server->command(Kind::kExport, "s");
    EXPECT_EQ(exported.reason, EndReason::kStateSealed);
    EXPECT_THAT(exported.message, HasSubstr("where is its key?"));
  }
  key_is_there = true;
  EXPECT_EQ(server.ask(turn("s", 2))->bits(), Server::quiet({turn("s", 1), turn("s", 2)})->bits());
  for (const std::string& name : disk->names()) EXPECT_FALSE(name.starts_with("set-aside-"));
}

// Forks of one session that are asked together after a restart have one state between them.
TEST(Tiers, WhatSeveralSessionsHaveIsReadOnce) {
  const auto disk = std::make_shared<RecordingDisk>();
  const auto folder = [&] { return std::make_unique<RecordingFolder>(disk); };
  constexpr int kForks = 5;
  const auto name = [](int fork) { return "f" + std::to_string(fork); };
  {
    Server server(folder());
    server.open("s", Durability::kLocal);
    server.ask(turn("s", 1));
    for (int f = 0; f < kForks; ++f) server->command(Kind::kFork, "s", name(f));
  }
  const auto reads_of = [&](int first, int forks) {
    std::atomic<int> reads = 0;
    std::atomic<bool> started = false, open = false;
    disk->on_call = [&](int, const char* what) {  // set while no server has threads
      if (!started || what != std::string("read")) return;
      ++reads;
      open.wait(false);
    };
    {
      Server server(folder(), {.slots = 2});
      started = true;
      std::vector<AnswerPtr> answers;
      for (int f = first; f < first + forks; ++f) {
        answers.push_back(server->submit(turn(name(f), 2)));
      }
      for (int i = 0; i < 2; ++i) server->get("s");  // the requests have been taken by then
      open = true;
      open.notify_all();
      for (const AnswerPtr& answer : answers) {
        answer->wait_for_end();
        EXPECT_EQ(answer->bits(), Server::quiet({turn("f", 1), turn("f", 2)})->bits());
      }
    }
    disk->on_call = {};
    return reads.load();
  };
  const int one = reads_of(0, 1);
  EXPECT_GT(one, 0);
  EXPECT_EQ(reads_of(1, kForks - 1), one);
}

// Nor does the time count in which there was no server.
TEST(Tiers, IdleLimitsAreForDurableSessionsOnlyWhereTheyWereAskedFor) {
  const auto disk = std::make_shared<RecordingDisk>();
  const auto folder = [&] { return std::make_unique<RecordingFolder>(disk); };
  {
    Server server(folder(), {.ttl_seconds = 60});
    server.open("plain", Durability::kNone);
    server.open("for good", Durability::kLocal);
    server->command({.kind = Kind::kOpen,
                     .name = "for an hour",
                     .ttl_seconds = 3600,
                     .durability = Durability::kLocal});
    EXPECT_EQ(server->get("plain").ttl_seconds, 60);
    EXPECT_EQ(server->get("for good").ttl_seconds, 0);
    EXPECT_EQ(server->get("for an hour").ttl_seconds, 3600);
  }
  const auto began = Clock::now();
  Server server(folder(), {.ttl_seconds = 60});
  EXPECT_EQ(server->get("for good").ttl_seconds, 0);
  const SessionInfo again = server->get("for an hour");
  EXPECT_EQ(again.ttl_seconds, 3600);
  EXPECT_LE(again.idle_seconds, seconds_between(began, Clock::now()));
}

TEST(Tiers, AnExportOfADamagedStateEndsWithWhy) {
  const auto disk = std::make_shared<RecordingDisk>();
  const auto folder = [&] { return std::make_unique<RecordingFolder>(disk); };
  {
    Server server(folder());
    server.open("s", Durability::kLocal);
    server.ask(turn("s", 1));
  }
  std::string& segment = disk->bytes_of("segment-1");
  segment[segment.size() / 2] ^= 1;
  Server server(folder());
  const SessionResult exported = server->command(Kind::kExport, "s");
  EXPECT_EQ(exported.reason, EndReason::kStateLost);
  EXPECT_THAT(exported.message, HasSubstr("\"s\""));
  EXPECT_EQ(server.ask(turn("s", 2))->reason(), EndReason::kStateLost);
}

// As an engine has it that many clients wait for at once.
TEST(Tiers, WhatEndsInOneStepSharesItsSyncs) {
  constexpr int kSessions = 8;
  StateStore store(std::make_unique<RecordingFolder>(std::make_shared<RecordingDisk>()), {});
  Archive archive(store);
  NullHarness harness({.slots = kSessions, .rows_per_step = 64, .archive = &archive});
  for (int s = 0; s < kSessions; ++s) {
    harness->command(
        {.kind = Kind::kOpen, .name = fmt::format("{}", s), .durability = Durability::kLocal});
  }
  const int64_t before = store.usage().syncs;
  std::vector<AnswerPtr> answers;
  for (int s = 0; s < kSessions; ++s) {
    answers.push_back(harness->submit(
        NullHarness::request(1, 5, static_cast<uint64_t>(s), fmt::format("{}", s))));
  }
  harness->run_until_idle();
  while (archive.working()) {
    archive.wait();
    harness->step();
  }
  for (const AnswerPtr& answer : answers) {
    answer->take();
    EXPECT_EQ(answer->reason(), EndReason::kLength);
    EXPECT_TRUE(answer->ending->commit);
  }
  EXPECT_EQ(store.usage().syncs - before, 2) << "one of the states, and one of the journal";
}

// Clients that take turns on sessions of both kinds, with memory for a few of them.
TEST(Tiers, ManyClientsOverAllOfThem) {
  const TempDir dir;
  const NullModel model(NullHarness::kVocab, {.ballast = kBallast});
  const int64_t each = SessionStore::bytes_each(model.state_layout(), NullHarness::kVocab);
  constexpr int kClients = 4, kSessions = 4, kTurns = 12;
  Server server(open_folder(dir.path().string()), {.slots = 2, .host_bytes = 8 * each});
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&server, c] {
      std::mt19937 random(static_cast<uint32_t>(c));
      std::map<std::string, std::vector<Request>> said;
      for (int t = 0; t < kTurns; ++t) {
        const size_t which = random() % kSessions;
        const std::string name = fmt::format("{}-{}", c, which);
        const bool durable = which % 2 == 0;
        std::vector<Request>& turns = said[name];
        if (turns.empty()) {
          const auto durability = durable ? Durability::kLocal : Durability::kNone;
          ASSERT_EQ(server.open(name, durability).reason, EndReason::kDone);
        }
        turns.push_back(turn(name, random() % 1000));
        AnswerPtr answer = server.ask(turns.back());
        ASSERT_EQ(answer->reason(), EndReason::kLength) << answer->ending->message;
        EXPECT_EQ(answer->bits(), Server::quiet(turns)->bits()) << name << ", turn " << t;
        // A plain session's mark stays in host memory.
        if (durable && t % 4 == 0) server->command(Kind::kMark, name, "here");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  server->join();
  EXPECT_GT(server->stats().sessions_disk, 4) << "memory is short";
}

// Prompts of few beginnings, with memory for the states of two of them, all at once.
TEST(Tiers, SharedPrefixesComeAndGoConcurrently) {
  const TempDir dir;
  const NullModel model(NullHarness::kVocab, {.ballast = kBallast});
  const int64_t each = PrefixCache::bytes_each(model.state_layout(), model.info().chunk, 64);
  constexpr int kClients = 4, kBeginnings = 6, kTurns = 16;
  Server server(open_folder(dir.path().string()), {.slots = 3, .prefix = {.bytes = 2 * each}});
  std::atomic<int64_t> spared = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&server, &spared, c] {
      std::mt19937 random(static_cast<uint32_t>(c));
      for (int t = 0; t < kTurns; ++t) {
        Request request = NullHarness::request(60, 3, random() % kBeginnings);
        request.prompt.ids.push_back(static_cast<int32_t>(random() % 100));
        AnswerPtr answer = server.ask(request);
        ASSERT_EQ(answer->reason(), EndReason::kLength) << answer->ending->message;
        EXPECT_EQ(answer->bits(), Server::quiet({request})->bits()) << "client " << c;
        spared += answer->ending->prefix.tokens;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  server->join();
  EXPECT_GT(spared, 0);
}

}  // namespace recurve::testing::tiers_test
