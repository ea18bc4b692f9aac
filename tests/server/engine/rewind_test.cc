// Sessions that return to a token without a mark: what is stored, what is refused, and what remains
// if that breaks off.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/storage/file_system.h"
#include "tests/support/engine/engine_on_disk.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::rewind_test {

using ::testing::HasSubstr;
using Kind = SessionCommand::Kind;

Request request(size_t length, int max_tokens, uint64_t seed, const std::string& session = "s") {
  return NullHarness::request(length, max_tokens, seed, session);
}
SessionCommand open(int64_t tokens, const std::string& name = "s") {
  return {.kind = Kind::kOpen, .name = name, .rewind_tokens = tokens};
}
SessionCommand rewind(int64_t position, const std::string& name = "s") {
  return {.kind = Kind::kRewind, .name = name, .position = position};
}

TEST(Rewind, WhatIsNotStoredIsRefusedByName) {
  NullHarness harness;
  harness->command(open(0));
  harness->ask(request(10, 5, 1));
  SessionResult refused = harness->command(rewind(7));
  EXPECT_EQ(refused.reason, EndReason::kNotFound);
  EXPECT_THAT(refused.message, HasSubstr("stores none of its tokens"));
  EXPECT_EQ(harness->command(rewind(15)).reason, EndReason::kInvalid);
  EXPECT_EQ(harness->command(rewind(14)).reason, EndReason::kDone) << "it is there";
  EXPECT_EQ(harness->command(rewind(0)).reason, EndReason::kDone) << "the start needs no tokens";
  EXPECT_EQ(harness->get("s").position, 0);

  harness->command(open(20, "t"));
  harness->ask(request(10, 5, 1, "t"));
  EXPECT_EQ(harness->get("t").tokens_from, 0);
  harness->ask(request(10, 5, 2, "t"));
  const SessionInfo info = harness->get("t");
  EXPECT_EQ(info.position, 14 + 15);
  EXPECT_EQ(info.tokens_from, 9);
  EXPECT_EQ(info.rewind_tokens, 20);
  refused = harness->command(rewind(12, "t"));
  EXPECT_EQ(refused.reason, EndReason::kNotFound);
  EXPECT_THAT(refused.message,
              HasSubstr("from 9 on, and has no mark of this text between there and 12"));
  EXPECT_EQ(harness->get("t").position, 29);
  EXPECT_FALSE(harness->get("t").busy);
}

// A mark of a text that was left again is on no way to the tokens of another one.
TEST(Rewind, BeginsWithMarksOfItsOwnTextAlone) {
  NullHarness harness, quiet;
  for (NullHarness* one : {&harness, &quiet}) {
    (*one)->command(open(100));
    (*one)->ask(request(10, 5, 1));
    (*one)->command(Kind::kMark, "s", "a");
  }
  harness->ask(request(10, 5, 2));
  harness->command(Kind::kMark, "s", "b");
  harness->command(Kind::kRewind, "s", "a");
  harness->ask(request(30, 5, 3));
  harness->command(Kind::kMark, "s", "c");
  const SessionResult back = harness->command(rewind(35));
  ASSERT_EQ(back.reason, EndReason::kDone) << back.message;
  EXPECT_EQ(back.absorbed, 35 - 14) << "from a, not from b";
  quiet->ask(request(20, 0, 3));  // with the token before, 21
  EXPECT_EQ(quiet->get("s").position, 35);
  EXPECT_EQ(harness->ask(request(8, 5, 4))->bits(), quiet->ask(request(8, 5, 4))->bits());
  // And another one's mark is still there, with its tokens.
  harness->command(Kind::kRewind, "s", "b");
  EXPECT_EQ(harness->command(rewind(20)).absorbed, 20 - 14);
}

TEST(Rewind, AForkStoresTheTokensToo) {
  NullHarness harness, quiet;
  harness->command(open(100));
  harness->ask(request(10, 5, 1));
  harness->command(Kind::kFork, "s", "f");
  EXPECT_EQ(harness->get("f").rewind_tokens, 100);
  EXPECT_EQ(harness->command(rewind(12, "f")).absorbed, 12);
  quiet->open("f");
  quiet->ask(request(10, 3, 1, "f"));
  EXPECT_EQ(harness->get("f").pending_token, quiet->get("f").pending_token);
  EXPECT_EQ(harness->ask(request(0, 9, 2, "f"))->bits(), quiet->ask(request(0, 9, 2, "f"))->bits());
  EXPECT_EQ(harness->get("s").position, 14);
}

TEST(Rewind, LeavesTheSessionAsItWasIfItBreaksOff) {
  NullHarness harness({.slots = 1}), quiet;
  for (NullHarness* one : {&harness, &quiet}) {
    (*one)->command(open(1000));
    (*one)->ask(request(100, 50, 1));
  }
  AnswerPtr running = harness->submit(NullHarness::request(5, 100000, 2));
  harness->step(2);
  auto rewound = harness->post(rewind(70));
  harness->step(2);
  EXPECT_TRUE(harness->get("s").busy);
  AnswerPtr refused = harness->submit(request(1, 1, 3));
  harness->step(2);
  refused->take();
  EXPECT_EQ(refused->reason(), EndReason::kSessionBusy);
  harness->engine().abandon();
  harness->engine().run();
  EXPECT_EQ(rewound.get().reason, EndReason::kDraining);
}

TEST(Rewind, TokensAndMarksReserveTheirMemory) {
  NullHarness harness;
  harness->open("plain");
  harness->command(open(1000));
  const int64_t plain = harness->get("plain").host_bytes, more = harness->get("s").host_bytes;
  EXPECT_GE(more - plain, 4000);
  EXPECT_LE(more - plain, 4032);
  harness->ask(request(10, 5, 1));
  harness->ask(request(10, 5, 1, "plain"));
  harness->command(Kind::kMark, "s", "m");
  harness->command(Kind::kMark, "plain", "m");
  EXPECT_GE(harness->get("s").host_bytes - harness->get("plain").host_bytes, 2 * 4000);

  HarnessOptions small;
  small.host_bytes = more - 1;
  NullHarness full(small);
  EXPECT_EQ(full->command(open(1000)).reason, EndReason::kExhausted);
  EXPECT_EQ(full->command(open(10)).reason, EndReason::kDone);
}

class RewindOnDisk : public ::testing::Test {
 protected:
  std::unique_ptr<OnDisk> start(int64_t host_bytes = int64_t{1} << 30) {
    HarnessOptions options{.slots = 2, .host_bytes = host_bytes};
    options.ballast = 2048;
    const auto make = [this](const HarnessOptions& all) {
      backend_ = make_backend("reference");
      model_ = std::make_unique<NullModel>(
          NullHarness::kVocab, NullModel::Options{.chunk = NullHarness::kChunk, .ballast = 2048});
      return std::make_unique<EngineHarness>(*model_, *backend_, all);
    };
    return std::make_unique<OnDisk>(open_folder(dir_.path()), options, make);
  }
  static SessionResult run(OnDisk& server, SessionCommand command) {
    auto result = server->post(std::move(command));
    server.settle();
    return result.get();
  }
  static SessionCommand durable(int64_t tokens) {
    SessionCommand command = open(tokens);
    command.durability = Durability::kLocal;
    return command;
  }
  static std::vector<TokenBits> quiet(const std::vector<Request>& turns) {
    NullHarness alone({.slots = 1, .ballast = 2048});
    alone->open("s");
    AnswerPtr last;
    for (const Request& turn : turns) last = alone->ask(turn);
    return last->bits();
  }

  const TempDir dir_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<NullModel> model_;
};

// Its marks are on the disk alone.
TEST_F(RewindOnDisk, ADurableSessionCommitsWhereItReturnedTo) {
  {
    const auto server = start();
    run(*server, durable(100));
    server->ask(request(10, 5, 1));
    run(*server, {.kind = Kind::kMark, .name = "s", .other = "m"});
    server->ask(request(10, 5, 2));
    const SessionInfo before = (*server)->get("s");
    const SessionResult back = run(*server, rewind(27));
    ASSERT_EQ(back.reason, EndReason::kDone) << back.message;
    EXPECT_EQ(back.absorbed, 27 - 14);
    const SessionInfo now = back.sessions.front();
    EXPECT_EQ(now.position, 27);
    EXPECT_EQ(now.epoch, before.epoch + 1);
    EXPECT_EQ(now.commit->number, before.commit->number + 1);
    EXPECT_EQ(now.commit->position, 27);
    EXPECT_FALSE(now.busy);
  }
  const auto server = start();
  EXPECT_EQ((*server)->get("s").position, 27);
  EXPECT_EQ(server->ask(request(0, 9, 3))->bits(),
            quiet({request(10, 5, 1), request(10, 3, 2), request(0, 9, 3)}));
  const int64_t here = (*server)->get("s").position;
  run(*server, {.kind = Kind::kMark, .name = "s", .other = "n"});
  server->ask(request(10, 5, 4));
  EXPECT_EQ(run(*server, rewind(here + 5)).absorbed, 5);
}

// States and marks that have left host memory are read again.
TEST_F(RewindOnDisk, AStateThatHasMovedToTheDiskIsReadFirst) {
  const int64_t each = SessionStore::bytes_each(
      NullModel(NullHarness::kVocab, {.chunk = NullHarness::kChunk, .ballast = 2048})
          .state_layout(),
      NullHarness::kVocab);
  const auto server = start(6 * each + 4000);
  run(*server, open(100));
  server->ask(request(10, 5, 1));
  for (int i = 0; i < 8; ++i) {
    const std::string name = "other" + std::to_string(i);
    run(*server, {.kind = Kind::kOpen, .name = name});
    server->ask(request(10, 5, 9, name));
  }
  ASSERT_EQ((*server)->get("s").tier, Tier::kDisk);
  run(*server, {.kind = Kind::kMark, .name = "s", .other = "m"});  // where it is
  server->ask(request(10, 5, 2));
  const SessionResult back = run(*server, rewind(22));
  ASSERT_EQ(back.reason, EndReason::kDone) << back.message;
  EXPECT_EQ(back.absorbed, 22 - 14);
  EXPECT_EQ(server->ask(request(8, 9, 3))->bits(),
            quiet({request(10, 5, 1), request(7, 0, 2), request(8, 9, 3)}));
}

}  // namespace recurve::testing::rewind_test
