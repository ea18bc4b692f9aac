// Durable sessions that return to a token after a restart: what is stored of their tokens, what is
// written for it, and what happens if that is damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/session/state_transfer.h"
#include "tests/server/engine/tier_server.h"
#include "tests/support/engine/recording_folder.h"

namespace recurve::testing::rewind_disk_test {

using ::testing::HasSubstr;
using tiers_test::Server;
using Kind = SessionCommand::Kind;

Request request(size_t length, int max_tokens, uint64_t seed, const std::string& session = "s") {
  return NullHarness::request(length, max_tokens, seed, session);
}
SessionCommand open(int64_t tokens, Durability durability = Durability::kLocal) {
  return {.kind = Kind::kOpen, .name = "s", .durability = durability, .rewind_tokens = tokens};
}
SessionCommand rewind(int64_t position, const std::string& name = "s") {
  return {.kind = Kind::kRewind, .name = name, .position = position};
}

// A session with marks. "left" is on a text that it has returned from, and "here" where it is.
void talk(Server& server) {
  server.ask(request(10, 5, 1));
  server->command(Kind::kMark, "s", "early");
  server.ask(request(30, 9, 2));
  server->command(Kind::kMark, "s", "left");
  server->command(rewind(24));
  for (uint64_t seed = 3; seed < 9; ++seed) server.ask(request(seed % 4, 4, seed));
  server->command(Kind::kMark, "s", "late");
  server.ask(request(8, 8, 9));
  server->command(Kind::kMark, "s", "here");
}

// The session after it has returned to a mark, and from there to a token, and how it continues.
struct Returned {
  EndReason reason = EndReason::kDone;
  int64_t absorbed = 0, position = 0, tokens_from = 0;
  std::optional<int32_t> pending = {};
  std::vector<TokenBits> next = {};
  bool operator==(const Returned&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Returned& r) {
  return out << row_of(r.reason).name << ", " << r.absorbed << " absorbed, at " << r.position
             << ", from " << r.tokens_from << ", " << r.next.size() << " tokens";
}

Returned returned(Server& server, const std::string& mark, int64_t position) {
  EXPECT_EQ(server->command(Kind::kRewind, "s", mark).reason, EndReason::kDone);
  const SessionResult back = server->command(rewind(position));
  const SessionInfo now = server->get("s");
  const auto seed = static_cast<uint64_t>(position);
  return {back.reason,     back.absorbed,     now.position,
          now.tokens_from, now.pending_token, server.ask(request(seed % 3, 6, seed))->bits()};
}

using DiskPtr = std::shared_ptr<RecordingDisk>;
std::unique_ptr<FileSystem> folder(const DiskPtr& disk) {
  return std::make_unique<RecordingFolder>(disk);
}

class RewindAfterARestart : public ::testing::TestWithParam<int64_t /* rewind_tokens */> {};

// All tokens that the session and its marks could return to before the restart, and no others.
TEST_P(RewindAfterARestart, IsTheSameToTheBit) {
  const auto disk = std::make_shared<RecordingDisk>();
  Server stays(folder(std::make_shared<RecordingDisk>()));
  std::optional<Server> restarted;
  const auto restart = [&] {
    restarted.reset();
    restarted.emplace(folder(disk));
  };
  restart();
  for (Server* server : {&stays, &*restarted}) {
    ASSERT_EQ((*server)->command(open(GetParam())).reason, EndReason::kDone);
    talk(*server);
  }
  int done = 0;
  for (const std::string mark : {"here", "left", "late", "early"}) {
    stays->command(Kind::kRewind, "s", mark);
    const int64_t end = stays->get("s").position;
    for (int64_t position = end - 1; position > 0; position -= 3) {
      restart();
      const Returned want = returned(stays, mark, position);
      EXPECT_EQ(returned(*restarted, mark, position), want) << mark << " to " << position;
      done += want.reason == EndReason::kDone;
    }
  }
  EXPECT_GE(done, 5);
  // From where it is, not from a mark, to what was absorbed before and after the restarts.
  for (Server* server : {&stays, &*restarted}) server->ask(request(6, 40, 77));
  restart();
  EXPECT_EQ(stays->get("s").tokens_from, (*restarted)->get("s").tokens_from);
  const int64_t back = stays->get("s").position - 5;
  EXPECT_EQ(stays->command(rewind(back)).absorbed, (*restarted)->command(rewind(back)).absorbed);
  EXPECT_EQ(restarted->ask(request(3, 5, 7))->bits(), stays.ask(request(3, 5, 7))->bits());
}

INSTANTIATE_TEST_SUITE_P(Tokens, RewindAfterARestart, ::testing::Values(1000, 40, 20));

// A turn writes its own tokens, and few times later on each of them again.
TEST(StoredTokensOfASession, AreWrittenOnce) {
  const auto written = [](int64_t tokens) {
    Server server(folder(std::make_shared<RecordingDisk>()));
    server->command(open(tokens));
    for (uint64_t turn = 0; turn < 200; ++turn) server.ask(request(12, 5, turn));
    return static_cast<double>(server.store().usage().written);
  };
  const double without = written(0), with = written(kMostRewindTokens);
  fmt::print("{:.3f} times as many bytes with tokens\n", with / without);
  EXPECT_GT(with, without);
  EXPECT_LT(with, 1.2 * without);
}

// Files of tokens that no session needs are deleted.
TEST(StoredTokensOfASession, GoWithTheLastThatHasThem) {
  const auto disk = std::make_shared<RecordingDisk>();
  {
    Server server(folder(disk));
    server->command(open(1000));
    talk(server);
    server->command(Kind::kFork, "s", "f");
    server->command(Kind::kClose, "s");
    EXPECT_EQ(server->command(rewind(30, "f")).reason, EndReason::kDone);
  }
  Server server(folder(disk));
  EXPECT_EQ(server->command(rewind(20, "f")).absorbed, 20);
  server->command(Kind::kClose, "f");
  server.store().tidy();
  EXPECT_EQ(server.store().usage().states, 0);
}

class DamagedTokens : public ::testing::TestWithParam<bool /* cut off */> {};

// The session continues, and returns to marks alone.
TEST_P(DamagedTokens, AreSetAsideAndTheSessionGoesOn) {
  const auto disk = std::make_shared<RecordingDisk>();
  {
    Server server(folder(disk), {}, {.own_file = 1});
    server->command(open(1000));
    talk(server);
  }
  int damaged = 0;
  for (const std::string& name : disk->names()) {
    std::string& bytes = disk->bytes_of(name);
    const size_t at = bytes.find("\"tokens\":[");
    if (!name.starts_with("state-") || at == std::string::npos) continue;
    if (GetParam()) {
      bytes.resize(at + 15);
    } else {
      bytes[at + 11] ^= 1;
    }
    ++damaged;
  }
  EXPECT_GE(damaged, 1);
  std::string lost;
  HarnessOptions options;
  options.on_tokens_lost = [&](auto, std::string_view name, const std::string&) { lost = name; };
  Server server(folder(disk), options, {.own_file = 1});
  const int64_t position = server->get("s").position;
  SessionResult refused = server->command(rewind(position - 3));
  EXPECT_EQ(refused.reason, EndReason::kNotFound);
  EXPECT_THAT(refused.message, HasSubstr(fmt::format("stores its tokens from {} on", position)));
  EXPECT_EQ(lost, "s");
  EXPECT_GE(server.store().usage().set_aside, 1);
  Server whole(folder(std::make_shared<RecordingDisk>()));
  whole->command(open(1000));
  talk(whole);
  EXPECT_EQ(server.ask(request(3, 9, 5))->bits(), whole.ask(request(3, 9, 5))->bits());
  const int64_t now = server->get("s").position;
  server->command(Kind::kMark, "s", "new");
  server.ask(request(5, 5, 5));
  EXPECT_EQ(server->command(rewind(now + 2)).absorbed, 2) << "from what was absorbed since";
  EXPECT_EQ(server->command(Kind::kRewind, "s", "late").reason, EndReason::kDone);
  whole->command(Kind::kRewind, "s", "late");
  EXPECT_EQ(server.ask(request(3, 9, 6))->bits(), whole.ask(request(3, 9, 6))->bits());
}

INSTANTIATE_TEST_SUITE_P(Ways, DamagedTokens, ::testing::Bool());

// A key that is missing for a while loses no tokens.
TEST(StoredTokensOfASession, WaitForTheirKey) {
  const auto disk = std::make_shared<RecordingDisk>();
  {
    Server server(folder(disk));
    server->command(open(1000));
    talk(server);
  }
  std::atomic<bool> key_is_there = true;
  disk->on_call = [&](int, const char* what) {
    if (what == std::string("read") && !key_is_there) throw KeyMissing("where is its key?");
  };
  Server server(folder(disk));
  key_is_there = false;
  EXPECT_EQ(server->command(rewind(30)).reason, EndReason::kStateSealed);
  EXPECT_EQ(server->command(rewind(30)).reason, EndReason::kStateSealed);
  key_is_there = true;
  EXPECT_EQ(server->command(rewind(30)).reason, EndReason::kDone);
}

TEST(StoredTokensOfASession, AreInAnExport) {
  for (const int64_t most : {1000, 40}) {
    const auto disk = std::make_shared<RecordingDisk>();
    std::optional<Server> server(folder(disk));
    (*server)->command(open(most));
    talk(*server);
    server.reset();
    server.emplace(folder(disk));
    const SessionResult exported = (*server)->command(Kind::kExport, "s");
    std::string written(exported.state->bytes(), '\0');
    exported.state->read(0, written);
    StateHeader wanted;
    wanted.layout =
        NullModel(NullHarness::kVocab, {.ballast = tiers_test::kBallast}).state_layout();
    wanted.vocab = NullHarness::kVocab;
    Server other(folder(std::make_shared<RecordingDisk>()));
    const SessionResult imported = other->command({.kind = Kind::kImport,
                                                   .name = "s",
                                                   .durability = Durability::kLocal,
                                                   .rewind_tokens = 500,
                                                   .state = state_reader(wanted)(written)});
    ASSERT_EQ(imported.reason, EndReason::kDone) << imported.message;
    const SessionInfo now = other->get("s");
    EXPECT_EQ(now.tokens_from, most == 1000 ? 0 : now.position - most);
    // A mark has its own.
    const SessionResult early = (*server)->command(Kind::kExport, "s", "early");
    ASSERT_EQ(early.reason, EndReason::kDone) << early.message;
    std::string of_early(early.state->bytes(), '\0');
    early.state->read(0, of_early);
    other->command({.kind = Kind::kImport,
                    .name = "early",
                    .rewind_tokens = 500,
                    .state = state_reader(wanted)(of_early)});
    EXPECT_EQ(other->get("early").tokens_from, 0);
    EXPECT_EQ(other->command(rewind(7, "early")).absorbed, 7);
    const int64_t back = now.position - 7;
    const auto back_from = [&](const std::string& mark) {
      const SessionResult of_mark = (*server)->command(Kind::kExport, "s", mark);
      EXPECT_EQ(of_mark.reason, EndReason::kDone) << of_mark.message;
      std::string text(of_mark.state->bytes(), '\0');
      of_mark.state->read(0, text);
      SessionCommand with = rewind(back);
      with.state = state_reader(wanted)(text);
      return other->command(with).reason;
    };
    if (most < 1000) {  // it has no mark to begin with, unless it gets one
      EXPECT_EQ(other->command(rewind(back)).reason, EndReason::kNotFound);
      EXPECT_EQ(back_from("early"), EndReason::kForeignState) << "its tokens are not stored";
      EXPECT_EQ(back_from("late"), EndReason::kDone);
    } else {
      EXPECT_EQ(back_from("left"), EndReason::kForeignState) << "it is of another text";
      EXPECT_EQ(back_from("here"), EndReason::kForeignState) << "it is behind";
      EXPECT_EQ(other->command(rewind(back)).absorbed, back);
    }
    (*server)->command(rewind(back));
    EXPECT_EQ(other->get("s").pending_token, (*server)->get("s").pending_token);
    EXPECT_EQ(other.ask(request(5, 5, 5))->bits(), server->ask(request(5, 5, 5))->bits());
  }
}

}  // namespace recurve::testing::rewind_disk_test
