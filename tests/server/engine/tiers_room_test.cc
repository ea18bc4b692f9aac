// Sessions with little capacity in memory and on the disk: a request that is admitted has its
// share.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/server/engine/tier_server.h"
#include "tests/support/engine/recording_folder.h"

namespace recurve::testing::tiers_test {

using Kind = SessionCommand::Kind;
using ::testing::HasSubstr;

// Clients of a server that has little room, and what they have said on sessions and marks.
class Crowd {
 public:
  Crowd(Server& server, std::mt19937& random) : server_(server), random_(random) {}

  // Whether it was let in.
  bool open(const std::string& name) {
    const auto durability = random_() % 2 == 0 ? Durability::kLocal : Durability::kNone;
    if (server_.open(name, durability).reason != EndReason::kDone) return false;
    said_[name];
    if (random_() % 4 > 0) ask({name});
    return true;
  }
  // Some of them, all at once: each has its answer.
  void ask_some() {
    std::vector<std::string> names;
    for (const auto& [name, turns] : said_) {
      if (random_() % 2 == 0) names.push_back(name);
    }
    ask(names);
  }
  // Marks, rewinds, forks, exports or closes one of them, which may be refused.
  void change_one(const std::string& fork) {
    if (said_.empty()) return;
    auto at = said_.begin();
    std::advance(at, random_() % said_.size());
    const std::string name = at->first, mark = random_() % 2 == 0 ? "a" : "b";
    const auto is_done = [&](Kind kind, const std::string& other) {
      SessionCommand command{.kind = kind, .name = name, .other = other};
      if (kind == Kind::kFork && random_() % 2 == 0) {
        command.durability = random_() % 2 == 0 ? Durability::kLocal : Durability::kNone;
      }
      return server_->command(std::move(command)).reason == EndReason::kDone;
    };
    switch (random_() % 9) {
      case 0:
      case 1:
        if (is_done(Kind::kMark, mark)) marked_[name + mark] = said_[name];
        break;
      case 2:
      case 3:
        if (is_done(Kind::kRewind, mark)) said_[name] = marked_.at(name + mark);
        break;
      case 4:
      case 5:
        if (is_done(Kind::kFork, fork)) said_[fork] = said_[name];
        break;
      case 6:
      case 7:
        is_done(Kind::kExport, "");
        break;
      default:
        if (is_done(Kind::kClose, "")) said_.erase(name);
    }
  }

 private:
  void ask(const std::vector<std::string>& names) {
    std::vector<AnswerPtr> answers;
    for (const std::string& name : names) {
      said_[name].push_back(turn(name, random_() % 1000));
      answers.push_back(server_->submit(said_[name].back()));
    }
    for (size_t a = 0; a < names.size(); ++a) {
      answers[a]->wait_for_end();
      ASSERT_EQ(answers[a]->reason(), EndReason::kLength)
          << names[a] << answers[a]->ending->message;
      std::vector<Request> turns = said_[names[a]];  // some are of what it was forked from
      for (Request& turn : turns) turn.session = names[a];
      EXPECT_EQ(answers[a]->bits(), Server::quiet(turns)->bits()) << names[a];
    }
  }

  Server& server_;
  std::mt19937& random_;
  std::map<std::string, std::vector<Request>> said_, marked_;
};

// Whatever little room there is in memory and on the disk: who is let in always comes back, several
// at once, and what durable sessions have reserved is theirs. Plain sessions' states never fill it.
TEST(Tiers, WhoIsAdmittedAlwaysComesBack) {
  const NullModel model(NullHarness::kVocab, {.ballast = kBallast});
  const int64_t each = SessionStore::bytes_each(model.state_layout(), NullHarness::kVocab);
  const auto written =
      static_cast<int64_t>(most_written_bytes(model.state_layout(), NullHarness::kVocab, 4096));
  int moved = 0, refused = 0;
  constexpr uint32_t kSeeds = 100;
  for (uint32_t seed = 0; seed < kSeeds && !HasFatalFailure(); ++seed) {
    std::mt19937 random(seed);
    const int64_t host = 2 + random() % 4, disk = random() % 6;
    SCOPED_TRACE(fmt::format("seed {}: {} states in memory, {} on the disk", seed, host, disk));
    const auto disk_bytes = static_cast<uint64_t>(2 * written * disk + written);
    Server server(
        std::make_unique<RecordingFolder>(std::make_shared<RecordingDisk>()),
        {.slots = 2,
         .host_bytes = host * each + 4096,
         .disk_bytes = static_cast<int64_t>(disk_bytes)},
        {.most_bytes = disk_bytes + (64 << 10), .segment_bytes = 32 << 10, .journal_slack = 4096});
    Crowd crowd(server, random);
    for (int t = 0; t < 32 && !HasFatalFailure(); ++t) {
      if (t % 2 == 0) {
        refused += !crowd.open(fmt::format("s{}", t));
      } else if (random() % 2 == 0) {
        crowd.change_one(fmt::format("f{}", t));
      } else {
        crowd.ask_some();
      }
    }
    moved += server->stats().sessions_disk;
  }
  EXPECT_GT(moved, 20) << "memory is short";
  EXPECT_GT(refused, 20) << "so is all of it";
}

// A session that is rewound to nothing cannot leave memory any more: it needs a room that may be
// what others come back to.
TEST(Tiers, ASessionRewoundToNothingTakesNoCapacity) {
  for (const Durability durability : {Durability::kNone, Durability::kLocal}) {
    const NullModel model(NullHarness::kVocab, {.ballast = kBallast});
    const int64_t each = SessionStore::bytes_each(model.state_layout(), NullHarness::kVocab);
    Server server(std::make_unique<RecordingFolder>(std::make_shared<RecordingDisk>()),
                  {.slots = 2, .host_bytes = 3 * each + 4096, .disk_bytes = 1 << 20});
    server.open("x", durability);
    ASSERT_EQ(server->command(Kind::kMark, "x", "nothing").reason, EndReason::kDone);
    server.ask(turn("x", 1));
    for (const char* name : {"y", "z"}) {
      ASSERT_EQ(server.open(name, Durability::kNone).reason, EndReason::kDone);
      ASSERT_EQ(server.ask(turn(name, 1))->reason(), EndReason::kLength);
    }
    for (const char* name : {"v", "w"}) {  // which stay empty, and in memory
      ASSERT_EQ(server.open(name, Durability::kNone).reason, EndReason::kDone);
    }
    const SessionResult refused = server->command(Kind::kRewind, "x", "nothing");
    EXPECT_EQ(refused.reason, EndReason::kExhausted);
    EXPECT_THAT(refused.message, HasSubstr("--session-memory"));
    for (const char* name : {"y", "z", "x", "w"}) {
      AnswerPtr answer = server.ask(turn(name, 2));
      EXPECT_EQ(answer->reason(), EndReason::kLength) << name << ": " << answer->ending->message;
    }
    server->command(Kind::kClose, "w");
    EXPECT_EQ(server->command(Kind::kRewind, "x", "nothing").reason, EndReason::kDone);
    EXPECT_EQ(server->get("x").position, 0);
    for (const char* name : {"x", "y", "z"}) {
      EXPECT_EQ(server.ask(turn(name, 3))->reason(), EndReason::kLength) << name;
    }
  }
}

}  // namespace recurve::testing::tiers_test
