// Durable sessions of a server that is killed: acknowledged answers survive to the bit, and none
// occurs twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>

#include "tests/support/amount.h"
#include "tests/support/generate_outcome.h"
#include "tests/support/served_calls.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::durable_sessions_test {

using grpc::StatusCode;
using ::testing::HasSubstr;

const std::string kModels = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/";
const std::string kModel = kModels + "xlstm-books";

std::unique_ptr<ServerProcess> server_in(const TempDir& dir, std::vector<std::string> more = {},
                                         const std::string& model = kModel) {
  std::vector<std::string> flags = {"--model", model,         "--threads",
                                    "1",       "--state-dir", (dir / "states").string()};
  flags.insert(flags.end(), more.begin(), more.end());
  return std::make_unique<ServerProcess>(flags);
}

v1::Session open(Client& client, const std::string& name, v1::Durability durability) {
  v1::OpenSessionRequest request;
  request.set_name(name);
  request.set_durability(durability);
  return client.open_session(request);
}

v1::GenerateRequest turn(const std::string& session, const std::string& text, int tokens,
                         const std::string& id = "") {
  v1::GenerateRequest request = generate_request(text, tokens);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_temperature(1);
  request.set_session(session);
  request.set_request_id(id);
  return request;
}

struct Said {
  std::vector<int32_t> ids;
  v1::GenerateFinal last;
};
Said ask(Client& client, const v1::GenerateRequest& request) {
  Said said;
  said.last = client.generate(request, [&](const v1::GenerateResponse& response) {
    const auto& ids = response.chunk().ids();
    said.ids.insert(said.ids.end(), ids.begin(), ids.end());
  });
  return said;
}

TEST(DurableSessions, ContinueUnchangedAfterAKill) {
  const TempDir dir, other;
  Said first, second;
  {
    auto server = server_in(other);
    Client client(server->address());
    open(client, "s", v1::DURABILITY_NONE);
    first = ask(client, turn("s", "Once upon a time", 30));
    second = ask(client, turn("s", "", 30));
    EXPECT_FALSE(first.last.has_commit());
  }
  auto server = server_in(dir);
  {
    Client client(server->address());
    EXPECT_EQ(open(client, "s", v1::DURABILITY_LOCAL).commit().number(), 1u);
    const Said before = ask(client, turn("s", "Once upon a time", 30));
    EXPECT_EQ(before.ids, first.ids);
    EXPECT_EQ(before.last.commit().number(), 2u);
    EXPECT_EQ(before.last.commit().position(), before.last.usage().session_position());
    EXPECT_EQ(before.last.commit().owner_epoch(), 1u);
    open(client, "gone", v1::DURABILITY_NONE);
  }
  server->signal(SIGKILL);
  server->wait();
  server = server_in(dir);
  Client client(server->address());
  const v1::Session found = client.get_session("s");
  EXPECT_EQ(found.tier(), v1::SESSION_TIER_DISK);
  EXPECT_EQ(found.position(), first.last.usage().session_position());
  EXPECT_TRUE(found.has_pending_token());
  EXPECT_EQ(found.commit().owner_epoch(), 1u) << "the epoch that wrote it, not the current one";
  EXPECT_EQ(client.load().sessions().disk(), 1);
  EXPECT_EQ(failure_of([&] { client.get_session("gone"); }).first, StatusCode::NOT_FOUND);
  const Said after = ask(client, turn("s", "", 30));
  EXPECT_EQ(after.ids, second.ids);
  EXPECT_EQ(after.last.commit().owner_epoch(), 2u);
}

TEST(DurableSessions, ARepeatedRequestIsAnsweredOnce) {
  const TempDir dir;
  auto server = server_in(dir);
  Said once;
  {
    Client client(server->address());
    open(client, "s", v1::DURABILITY_LOCAL);
    v1::GenerateRequest request = turn("s", "It was a cold evening", 40, "r-1");
    request.mutable_stop()->add_stop_strings("e");
    once = ask(client, request);
    EXPECT_FALSE(once.last.recorded());
    const Said again = ask(client, request);
    EXPECT_TRUE(again.last.recorded());
    EXPECT_EQ(again.ids, once.ids);
  }
  server->signal(SIGKILL);
  server->wait();
  server = server_in(dir);
  Client client(server->address());
  v1::GenerateRequest request = turn("s", "It was a cold evening", 40, "r-1");
  request.mutable_stop()->add_stop_strings("e");
  const Said again = ask(client, request);
  EXPECT_TRUE(again.last.recorded());
  EXPECT_EQ(again.ids, once.ids);
  EXPECT_EQ(again.last.choices(0).reason(), once.last.choices(0).reason());
  EXPECT_EQ(again.last.usage().session_position(), once.last.usage().session_position());
  EXPECT_EQ(client.get_session("s").epoch(), 1u);
  request.mutable_stop()->set_max_tokens(41);
  EXPECT_EQ(failure_of([&] { ask(client, request); }).first, StatusCode::ALREADY_EXISTS);
}

TEST(DurableSessions, MarksForksAndClosingSurviveToo) {
  const TempDir dir;
  auto server = server_in(dir);
  Said here;
  {
    Client client(server->address());
    open(client, "s", v1::DURABILITY_LOCAL);
    open(client, "closed", v1::DURABILITY_LOCAL);
    ask(client, turn("s", "Once upon a time", 10));
    client.mark_session("s", "here");
    here = ask(client, turn("s", "", 10));
    v1::ForkSessionRequest fork;
    fork.set_name("s");
    fork.set_new_name("f");
    EXPECT_EQ(client.fork_session(fork).durability(), v1::DURABILITY_LOCAL);
    ask(client, turn("s", "and then", 10));
    EXPECT_EQ(client.rewind_session("s", "here").epoch(), 4u);
    client.close_session("closed");
  }
  server->signal(SIGKILL);
  server->wait();
  server = server_in(dir);
  Client client(server->address());
  EXPECT_EQ(client.list_sessions().size(), 2u);
  EXPECT_EQ(ask(client, turn("s", "", 10)).ids, here.ids);
  EXPECT_EQ(client.rewind_session("s", "here").marks_size(), 1);
  EXPECT_EQ(ask(client, turn("s", "", 10)).ids, here.ids);
  EXPECT_EQ(client.get_session("f").position(), here.last.usage().session_position());
}

// Of its last tokens, sampled ones and a prompt's.
TEST(DurableSessions, AKillForgetsNoTokensToReturnTo) {
  const TempDir dir;
  auto server = server_in(dir);
  const auto rewind = [](Client& client, int64_t position) {
    v1::RewindSessionRequest back;
    back.set_name("s");
    back.set_position(position);
    return client.rewind_session(back);
  };
  std::map<int64_t, std::vector<int32_t>> expected;
  {
    Client client(server->address());
    v1::OpenSessionRequest durable;
    durable.set_name("s");
    durable.set_durability(v1::DURABILITY_LOCAL);
    durable.set_rewind_tokens(1000);
    client.open_session(durable);
    ask(client, turn("s", "Once upon a time", 10));
    ask(client, turn("s", "there was a house", 10));
    const int64_t end = client.get_session("s").position();
    client.mark_session("s", "end");
    for (int64_t position = end - 1; position > 2; position -= 3) {
      EXPECT_EQ(rewind(client, position).position(), position);
      expected[position] = ask(client, turn("s", " and", 10)).ids;
      client.rewind_session("s", "end");
    }
  }
  for (const auto& [position, ids] : expected) {
    server->signal(SIGKILL);
    server->wait();
    server = server_in(dir);
    Client client(server->address());
    EXPECT_EQ(rewind(client, position).position(), position);
    EXPECT_EQ(ask(client, turn("s", " and", 10)).ids, ids) << position;
    client.rewind_session("s", "end");
  }
}

TEST(DurableSessions, AnInterruptedRequestHasNoEffect) {
  const TempDir dir;
  auto server = server_in(dir);
  Client client(server->address());
  open(client, "s", v1::DURABILITY_LOCAL);
  const int64_t before =
      ask(client, turn("s", "Once upon a time", 10)).last.usage().session_position();
  v1::GenerateRequest endless = turn("s", "It was", 100'000);
  endless.mutable_stop()->set_ignore_eos(true);
  CallOptions options;
  Canceller canceller;
  options.canceller = &canceller;
  const auto error = failure_of([&] {
    client.generate(
        endless,
        [&](const v1::GenerateResponse& response) {
          if (response.has_chunk()) canceller.cancel();
        },
        options);
  });
  EXPECT_EQ(error.first, StatusCode::CANCELLED);
  while (client.get_session("s").busy()) std::this_thread::yield();
  EXPECT_EQ(client.get_session("s").position(), before);
  EXPECT_EQ(client.get_session("s").epoch(), 1u);
}

TEST(DurableSessions, ARequestMaySetMoreOrLessDurabilityThanItsSession) {
  const TempDir dir;
  auto server = server_in(dir);
  Client client(server->address());
  open(client, "s", v1::DURABILITY_LOCAL);
  open(client, "plain", v1::DURABILITY_NONE);
  v1::GenerateRequest request = turn("s", "Once", 4);
  request.set_durability(v1::DURABILITY_NONE);
  EXPECT_FALSE(ask(client, request).last.has_commit());
  while (client.get_session("s").busy()) std::this_thread::yield();
  request.set_durability(v1::DURABILITY_LOCAL);
  EXPECT_EQ(ask(client, request).last.commit().number(), 3u);
  for (const char* name : {"plain", ""}) {
    request.set_session(name);
    const auto [code, sentence] = failure_of([&] { ask(client, request); });
    EXPECT_EQ(code, StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(sentence, HasSubstr("dura"));
  }
}

TEST(DurableSessions, AnUnexpectedEpochIsRefused) {
  const TempDir dir;
  auto server = server_in(dir);
  Client client(server->address());
  open(client, "s", v1::DURABILITY_LOCAL);
  v1::GenerateRequest request = turn("s", "Once", 2);
  request.set_expected_epoch(0);
  ask(client, request);
  const auto [code, sentence] = failure_of([&] { ask(client, request); });
  EXPECT_EQ(code, StatusCode::ABORTED);
  EXPECT_THAT(sentence, HasSubstr("epoch 1"));
}

// More sessions than fit host memory, durable ones and others: all states return unchanged.
TEST(DurableSessions, StatesMoveToTheDiskAndBack) {
  const TempDir dir;
  auto server = server_in(dir, {"--slots", "2", "--session-memory", "2MB"});
  Client client(server->address());
  std::vector<Said> expected;
  constexpr int kSessions = 30;  // of 260 KiB
  for (int i = 0; i < kSessions; ++i) {
    const std::string name = "s" + std::to_string(i);
    open(client, name, i % 2 == 0 ? v1::DURABILITY_LOCAL : v1::DURABILITY_NONE);
    expected.push_back(ask(client, turn(name, "Chapter " + std::to_string(i), 5)));
  }
  EXPECT_GE(client.load().sessions().disk(), kSessions - 8);
  EXPECT_LE(client.load().sessions().host_bytes(), 2 << 20);
  for (int i = 0; i < kSessions; ++i) {
    const std::string name = "s" + std::to_string(i), straight = "straight";
    open(client, straight, v1::DURABILITY_NONE);
    EXPECT_EQ(ask(client, turn(straight, "Chapter " + std::to_string(i), 5)).ids, expected[i].ids);
    EXPECT_EQ(ask(client, turn(name, " went on", 5)).ids,
              ask(client, turn(straight, " went on", 5)).ids)
        << name;
    client.close_session(straight);
  }
}

TEST(DurableSessions, UnsupportedDurabilityIsRefusedByName) {
  const TempDir dir;
  auto server = server_in(dir, {"--state-disk", "1MB"});
  Client client(server->address());
  open(client, "one", v1::DURABILITY_LOCAL);
  const auto [code, sentence] = failure_of([&] { open(client, "two", v1::DURABILITY_LOCAL); });
  EXPECT_EQ(code, StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(sentence, HasSubstr("--state-disk"));
  open(client, "two", v1::DURABILITY_NONE);

  ServerProcess second({"--model", kModel, "--state-dir", (dir / "states").string()});
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(second.log(), HasSubstr("another server uses it"));

  ServerProcess without({"--model", kModel});
  Client plain(without.address());
  EXPECT_EQ(failure_of([&] { open(plain, "s", v1::DURABILITY_LOCAL); }).first,
            StatusCode::UNIMPLEMENTED);
}

TEST(DurableSessions, ADeletedFolderIsNoticedWithinASecond) {
  for (const char* deleted : {"states", "states/lock"}) {
    const TempDir dir;
    auto server = server_in(dir);
    Client client(server->address());
    const auto health = [&] { return client.health({}, "recurve.v1.Sessions"); };
    open(client, "s", v1::DURABILITY_LOCAL);
    open(client, "plain", v1::DURABILITY_NONE);
    EXPECT_EQ(health(), Health::kServing);
    std::filesystem::remove_all(dir / deleted);
    EXPECT_TRUE(comes_true([&] { return health() == Health::kNotServing; },
                           std::chrono::seconds(kSanitized ? 5 : 1)));
    EXPECT_EQ(client.health(), Health::kServing);
    for (const auto& [code, sentence] :
         {failure_of([&] { ask(client, turn("s", "Once", 2)); }),
          failure_of([&] { client.mark_session("s", "here"); }),
          failure_of([&] { open(client, "new", v1::DURABILITY_LOCAL); })}) {
      EXPECT_EQ(code, StatusCode::UNAVAILABLE);
      EXPECT_THAT(sentence, HasSubstr("was deleted or replaced"));
    }
    EXPECT_EQ(ask(client, turn("plain", "Once", 2)).last.usage().generated_tokens(), 2);
    EXPECT_TRUE(comes_true([&] {
      return server->log().find("level=error event=state_dir_lost") != std::string::npos;
    }));
    if (!std::filesystem::exists(dir / "states")) continue;
    ServerProcess second({"--model", kModel, "--state-dir", (dir / "states").string()});
    EXPECT_EQ(second.wait_for(std::chrono::seconds(60)), 1);
    EXPECT_THAT(second.log(), HasSubstr("another server uses it"));
  }
}

// The flags of a server with or without encryption of its folder.
std::vector<std::string> key_flags(const TempDir& dir, bool encrypted) {
  if (!encrypted) return {};
  const std::string file = dir / "state.keys";
  std::ofstream(file) << std::string(64, 'a') << "\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  return {"--state-keys", file};
}

TEST(DurableSessions, ADamagedStateIsReportedAndOthersContinue) {
  for (const bool encrypted : {false, true}) {
    const TempDir dir;
    const std::vector<std::string> flags = key_flags(dir, encrypted);
    auto server = server_in(dir, flags);
    {
      Client client(server->address());
      for (const char* name : {"a", "b"}) {
        open(client, name, v1::DURABILITY_LOCAL);
        ask(client, turn(name, "Once upon a time", 5));
      }
    }
    server->signal(SIGKILL);
    server->wait();
    for (const auto& entry : std::filesystem::directory_iterator(dir / "states")) {
      if (!entry.path().filename().string().starts_with("segment-")) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(50'000);
      file.put('?');
    }
    server = server_in(dir, flags);
    Client client(server->address());
    const auto [code, sentence] = failure_of([&] { ask(client, turn("a", "", 5)); });
    EXPECT_EQ(code, StatusCode::DATA_LOSS);
    EXPECT_THAT(sentence, HasSubstr("\"a\""));
    EXPECT_TRUE(comes_true([&] {
      return server->log().find("level=error event=session_state_lost") != std::string::npos;
    }));
    EXPECT_EQ(ask(client, turn("b", "", 5)).last.usage().generated_tokens(), 5);
    client.close_session("a");
  }
}

// One flipped bit of the journal loses nothing; the same bit in its copy puts the session in doubt,
// until its owner accepts the remaining state. Encrypted or not, the server starts.
TEST(DurableSessions, ADamagedJournalIsReadFromItsCopyOrReported) {
  for (const bool encrypted : {false, true}) {
    const TempDir dir;
    const std::vector<std::string> flags = key_flags(dir, encrypted);
    auto server = server_in(dir, flags);
    int64_t position = 0;
    {
      Client client(server->address());
      for (const char* name : {"a", "b"}) open(client, name, v1::DURABILITY_LOCAL);
      for (const char* name : {"a", "b"}) ask(client, turn(name, "Once upon a time", 5));
      position = client.get_session("a").position();
    }
    server->signal(SIGKILL);
    server->wait();
    std::filesystem::copy(dir / "states", dir / "whole");
    // In the group of the turn of "a", which precedes that of "b".
    const auto flip = [&](const std::string& name) {
      const auto path = dir / "states" / name;
      const auto at = static_cast<std::streamoff>(std::filesystem::file_size(path) * 6 / 10);
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      const int byte = file.seekg(at).get();
      file.seekp(at).put(static_cast<char>(byte ^ 4));
    };
    flip("journal-1");
    server = server_in(dir, flags);
    {
      Client client(server->address());
      EXPECT_EQ(client.get_session("a").position(), position);
      EXPECT_FALSE(client.get_session("a").in_doubt());
      EXPECT_THAT(server->log(), HasSubstr("level=error event=state_dir_damaged journal=true"));
    }
    server->stop();
    std::filesystem::remove_all(dir / "states");
    std::filesystem::copy(dir / "whole", dir / "states");
    flip("journal-1");
    flip("journal-copy-1");
    server = server_in(dir, flags);
    Client client(server->address());
    EXPECT_THAT(server->log(), HasSubstr("records_lost=true"));
    const auto [code, sentence] = failure_of([&] { ask(client, turn("a", "", 5)); });
    EXPECT_EQ(code, StatusCode::DATA_LOSS);
    EXPECT_THAT(sentence, HasSubstr("position 0 can be read"));
    EXPECT_FALSE(client.get_session("b").in_doubt());
    ask(client, turn("b", "", 5));
    EXPECT_EQ(client.accept_session("a").position(), 0);
    ask(client, turn("a", "Once upon a time", 5));
    EXPECT_EQ(client.get_session("a").position(), position);
  }
}

// A session with repeated requests, and their acknowledged answers.
struct Talk {
  std::string name;
  int tokens = 4;  // of an answer
  std::vector<std::vector<int32_t>> answers = {};
  int64_t position = 0;  // after the last one

  v1::GenerateRequest request(size_t t) const {
    return turn(name, t == 0 ? "Once upon a time" : "", tokens, "turn-" + std::to_string(t));
  }
  // Until the server has ended. A request whose end was lost is repeated with the same id.
  void go_on(const std::string& address, std::atomic<int>* count) {
    Client client(address);
    try {
      while (true) {
        Said said = ask(client, request(answers.size()));
        answers.push_back(std::move(said.ids));
        position = said.last.usage().session_position();
        ++*count;
      }
    } catch (const ClientError&) {
    }
  }
  // After a restart the session has its last acknowledged answer and repeats it unchanged, or one
  // more that was not acknowledged. The first commit opened it.
  void expect_kept(Client& client) const {
    const v1::Session found = client.get_session(name);
    const uint64_t acknowledged = 1 + answers.size();
    if (found.commit().number() == acknowledged + 1) return;
    ASSERT_EQ(found.commit().number(), acknowledged) << name;
    ASSERT_EQ(found.position(), position) << name;
    if (answers.empty()) return;
    const Said again = ask(client, request(answers.size() - 1));
    ASSERT_TRUE(again.last.recorded()) << name;
    ASSERT_EQ(again.ids, answers.back()) << name;
    ASSERT_EQ(client.get_session(name).position(), position) << name << " was answered twice";
  }
  // The whole session equals one without interruptions.
  void expect_straight(Client& client) const {
    open(client, "straight", v1::DURABILITY_NONE);
    for (size_t t = 0; t < answers.size(); ++t) {
      v1::GenerateRequest same = request(t);
      same.set_session("straight");
      same.set_request_id("");
      ASSERT_EQ(ask(client, same).ids, answers[t]) << name << ", turn " << t;
    }
    client.close_session("straight");
  }
};

// Streams run while the server is killed repeatedly, for so many seconds or a few times.
void kill_again_and_again(const std::string& model, int tokens, int seconds) {
  constexpr int kKills = 6, kSessions = 4;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const TempDir dir;
  std::mt19937 random(11);
  std::vector<Talk> talks;
  auto server = server_in(dir, {}, model);
  {
    Client client(server->address());
    for (int s = 0; s < kSessions; ++s) {
      talks.push_back({.name = std::to_string(s), .tokens = tokens});
      open(client, talks.back().name, v1::DURABILITY_LOCAL);
    }
  }
  int kills = 0;
  for (; kills < kKills || std::chrono::steady_clock::now() < end; ++kills) {
    std::atomic<int> answers = 0;
    const int wanted = 5 + static_cast<int>(random() % 20);
    std::vector<std::jthread> clients;
    for (Talk& talk : talks) {
      clients.emplace_back([&, address = server->address()] { talk.go_on(address, &answers); });
    }
    while (answers < wanted) std::this_thread::yield();
    server->signal(SIGKILL);
    server->wait();
    clients.clear();
    server = server_in(dir, {}, model);
    Client client(server->address());
    for (const Talk& talk : talks) talk.expect_kept(client);
    if (::testing::Test::HasFatalFailure()) return;
  }
  Client client(server->address());
  size_t all = 0;
  for (const Talk& talk : talks) {
    all += talk.answers.size();
    talk.expect_straight(client);
  }
  std::cout << kills << " kills, " << all << " answers acknowledged\n";
}

// For RECURVE_KILL_SECONDS if set, as tests/durable/kills.sh does.
TEST(DurableSessions, NoKillLosesOrRepeatsAnAcknowledgedAnswer) {
  const char* seconds = std::getenv("RECURVE_KILL_SECONDS");
  kill_again_and_again(kModel, 4, seconds == nullptr ? 0 : std::atoi(seconds));
}

// Most answers fill a page. The context of the model bounds how many there can be.
TEST(DurableSessions, NoKillLosesOrRepeatsAnAnswerOfAStateThatGrows) {
  kill_again_and_again(kModels + "qwen35-books", 48, 0);
}

}  // namespace recurve::testing::durable_sessions_test
