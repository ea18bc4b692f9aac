// States that grow, in pages that are fewer than all requests need.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "server/session/state_transfer.h"
#include "server/storage/file_system.h"
#include "tests/support/engine/engine_on_disk.h"
#include "tests/support/engine/pages_fixture.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::pages_test {

using ::testing::HasSubstr;
using Kind = SessionCommand::Kind;

TEST_P(PagesTest, GreedyTokensAreThoseOfTheModel) {
  constexpr size_t kPrompt = 130;
  constexpr int kTokens = 70;
  const std::vector<int32_t> prompt = some_prompt(kPrompt, 3, vocab());
  ModelRunner runner(model_case(), std::get<1>(GetParam()));
  const StateSlot slot = *runner.pool().acquire();
  const auto best = [&](const std::vector<float>& logits) {
    const auto row = logits.end() - vocab();
    return static_cast<int32_t>(std::max_element(row, logits.end()) - row);
  };
  std::vector<int32_t> want = {best(runner.forward({{&slot, prompt}}))};
  while (want.size() < kTokens) want.push_back(best(runner.forward({{&slot, {want.back()}}})));

  Request greedy{.prompt = prompt};
  greedy.sampling.temperature = 0;
  greedy.sampling.max_tokens = kTokens;
  EXPECT_EQ(engine(options(2, 8)).ask(std::move(greedy))->ids(), want);
}

// Of 12 requests of 3 or 4 pages each, 10 pages hold three.
TEST_P(PagesTest, PreemptedRequestsContinueToTheSameBits) {
  constexpr int kRequests = 12;
  std::vector<Request> requests;
  for (uint64_t i = 0; i < kRequests; ++i) requests.push_back(request(40 + 9 * i, 120, i));
  EngineHarness harness = engine(options(kRequests, 10));
  std::vector<AnswerPtr> answers;
  for (const Request& one : requests) answers.push_back(harness.submit(one));
  harness.run_until_idle();
  for (size_t i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(i);
    answers[i]->take();
    ASSERT_TRUE(answers[i]->ended());
    EXPECT_EQ(answers[i]->reason(), EndReason::kLength) << answers[i]->ending->message;
    EXPECT_EQ(answers[i]->bits(), alone(requests[i]));
  }
  EXPECT_GT(harness.stats().preemptions, 0);
  EXPECT_LE(harness.stats().preemptions, kRequests * kMostPreemptions);
  EXPECT_EQ(harness.stats().pages_free, 10);
}

TEST_P(PagesTest, ChoicesSharePagesAndArePreempted) {
  const Request asked = request(150, 100, 4);
  EngineHarness harness = engine(options(6, 9));
  std::vector<AnswerPtr> choices = harness.submit(asked, 5);
  harness.run_until_idle();
  for (size_t c = 0; c < choices.size(); ++c) {
    SCOPED_TRACE(c);
    choices[c]->take();
    Request same = asked;
    same.sampling.seed += c;
    EXPECT_EQ(choices[c]->bits(), alone(same));
  }
  EXPECT_EQ(harness.stats().pages_free, 9);
}

TEST_P(PagesTest, SessionsThatTakeTurnsGiveUpTheirPages) {
  constexpr int kSessions = 6, kTurns = 3;
  EngineHarness harness = engine(options(4, 9));
  std::vector<std::vector<AnswerPtr>> answers(kSessions);
  for (int s = 0; s < kSessions; ++s) harness.open("s" + std::to_string(s));
  const auto turn = [](int s, int t) {
    return request(20 + 30 * static_cast<size_t>(t), 50, static_cast<uint64_t>(10 * s + t),
                   "s" + std::to_string(s));
  };
  for (int t = 0; t < kTurns; ++t) {
    for (int s = 0; s < kSessions; ++s) {
      answers[static_cast<size_t>(s)].push_back(harness.submit(turn(s, t)));
    }
    harness.run_until_idle();
  }
  for (int s = 0; s < kSessions; ++s) {
    EngineHarness quiet = engine(options(1, 64));
    quiet.open("s" + std::to_string(s));
    for (int t = 0; t < kTurns; ++t) {
      SCOPED_TRACE(std::to_string(s) + " " + std::to_string(t));
      Answer& answer = *answers[static_cast<size_t>(s)][static_cast<size_t>(t)];
      answer.take();
      EXPECT_EQ(answer.bits(), quiet.ask(turn(s, t))->bits());
    }
  }
}

TEST_P(PagesTest, ASessionContinuesWhereItsRequestWasCancelledWhilePreempted) {
  EngineHarness harness = engine(options(2, 5));
  harness.open("s");
  const Request first = request(60, 200, 2, "s");
  const AnswerPtr victim = harness.submit(first);
  harness.step(3);
  Request other = request(60, 200, 7);
  other.priority = 1;  // of equal tenants the lower priority gives way
  const AnswerPtr rival = harness.submit(other);
  while (harness.stats().preemptions == 0) ASSERT_TRUE(harness.step());
  victim->take();
  const size_t told = victim->tokens.size();
  victim->stream()->cancel();
  harness.run_until_idle();
  victim->take();
  rival->take();
  EXPECT_EQ(victim->reason(), EndReason::kCancelled);
  EXPECT_EQ(rival->bits(), alone(other));
  const SessionInfo info = harness.get("s");
  EXPECT_FALSE(info.busy);
  EXPECT_EQ(info.position + (info.pending_token ? 1 : 0), static_cast<int64_t>(60 + told));

  EngineHarness quiet = engine(options(1, 64));
  quiet.open("s");
  Request shorter = first;
  shorter.sampling.max_tokens = static_cast<int>(told);
  quiet.ask(shorter);
  EXPECT_EQ(harness.ask(request(5, 20, 9, "s"))->bits(), quiet.ask(request(5, 20, 9, "s"))->bits());
}

TEST_P(PagesTest, WhatCanNeverFitIsRefusedWithTheMemoryThatWouldDo) {
  EngineHarness harness = engine(options(2, 4));
  const AnswerPtr refused = harness.ask(request(200, 57, 1));
  EXPECT_EQ(refused->reason(), EndReason::kInvalid);
  const size_t would_do = 5 * model().state_layout().page_bytes();
  EXPECT_THAT(refused->ending->message,
              HasSubstr("--kv-memory holds 256 tokens: raise it to " + std::to_string(would_do)));
  EXPECT_EQ(harness.ask(request(200, 56, 1))->reason(), EndReason::kLength);

  HarnessOptions context = options(2, 4);
  context.pages.most_tokens = 100;
  EngineHarness bounded = engine(context);
  EXPECT_THAT(bounded.ask(request(50, 51, 1))->ending->message,
              HasSubstr("the model's context is 100 tokens"));
  EXPECT_EQ(bounded.ask(request(50, 50, 1))->reason(), EndReason::kLength);
}

TEST_P(PagesTest, ADefaultOfMaxTokensIsAtMostTheRestOfTheContext) {
  HarnessOptions context = options(2, 4);
  context.pages.most_tokens = 100;
  EngineHarness harness = engine(context);
  harness.open("s");
  const auto ask = [&](size_t length, const std::string& session) {
    Request asked = request(length, 4096, 1, session);
    asked.max_tokens_is_default = true;
    return harness.ask(std::move(asked));
  };
  EXPECT_EQ(ask(40, "")->tokens.size(), 60u);
  harness.ask(request(40, 20, 1, "s"));
  EXPECT_EQ(harness.get("s").position, 59);
  EXPECT_EQ(ask(10, "s")->reason(), EndReason::kLength);
  EXPECT_EQ(harness.get("s").position, 99);
  const AnswerPtr refused = ask(101, "");
  EXPECT_THAT(refused->ending->message, HasSubstr("the model's context is 100 tokens"));
}

TEST_P(PagesTest, AStreamedPromptEndsAtTheMostTokensOfAState) {
  HarnessOptions bounded = options(2, 4);
  EngineHarness harness = engine(bounded);
  const std::vector<int32_t> ids = some_prompt(300, 1, vocab());
  Request streamed = request(1, 10, 2);
  streamed.prompt = std::vector(ids.begin(), ids.begin() + 100);
  streamed.more_prompt = std::make_shared<PromptFeed>(std::chrono::seconds(1000));
  const std::shared_ptr<PromptFeed> feed = streamed.more_prompt;
  const AnswerPtr answer = harness.submit(streamed);
  harness.step(4);
  feed->push(std::span(ids).subspan(100));
  harness.run_until_idle();
  answer->take();
  EXPECT_EQ(answer->reason(), EndReason::kInvalid);
  EXPECT_EQ(harness.stats().pages_free, 4);
}

// Durable sessions, one of which is preempted in its turn, and cached prefixes, over a restart.
TEST_P(PagesTest, DurableSessionsAndPrefixesAreThereAfterARestart) {
  constexpr int kSessions = 3;
  const TempDir dir;
  const auto start = [&] {
    HarnessOptions disk = options(4, 9);
    disk.prefix = {.bytes = 16 << 20};
    disk.identity = {.model = std::string(32, 'a'),
                     .weights = "f32",
                     .chunk = static_cast<int32_t>(model().info().chunk)};
    const auto make = [](const HarnessOptions& all) {
      return std::make_unique<EngineHarness>(model(), *loaded().backend, all);
    };
    return std::make_unique<OnDisk>(open_folder(dir.path()), disk, make);
  };
  const auto name = [](int s) { return "s" + std::to_string(s); };
  const auto turn = [&](int s, int t) {
    return request(70 + 10 * static_cast<size_t>(t), t == 0 ? 200 : 60,
                   static_cast<uint64_t>(10 * s + t), name(s));
  };
  std::vector<AnswerPtr> answers;
  {
    const auto server = start();
    for (int s = 0; s < kSessions; ++s) {
      auto opened =
          (*server)->post({.kind = Kind::kOpen, .name = name(s), .durability = Durability::kLocal});
      server->settle();
      ASSERT_EQ(opened.get().reason, EndReason::kDone);
    }
    for (int s = 0; s < kSessions; ++s) answers.push_back((*server)->submit(turn(s, 0)));
    answers.push_back((*server)->submit(request(130, 20, 99)));
    server->settle();
    EXPECT_GT((*server)->stats().preemptions, 0);
    EXPECT_GT((*server)->stats().prefix_states, 0);
  }
  const auto server = start();
  EXPECT_EQ((*server)->stats().sessions, kSessions);
  EXPECT_EQ(server->ask(request(130, 20, 99))->bits(), alone(request(130, 20, 99)));
  const AnswerPtr prompt = server->ask(request(130, 20, 99));
  EXPECT_EQ(prompt->ending->prefix.tokens, 128);
  EXPECT_EQ(prompt->bits(), alone(request(130, 20, 99)));
  for (int s = 0; s < kSessions; ++s) {
    SCOPED_TRACE(s);
    EngineHarness quiet = engine(options(1, 64));
    quiet.open(name(s));
    Answer& first = *answers[static_cast<size_t>(s)];
    first.take();
    EXPECT_EQ(first.bits(), quiet.ask(turn(s, 0))->bits());
    EXPECT_EQ(server->ask(turn(s, 1))->bits(), quiet.ask(turn(s, 1))->bits());
  }
}

// Its pages on the disk are those of the state that it went back to, and its own.
TEST_P(PagesTest, ARewoundDurableSessionIsThereAfterARestart) {
  const TempDir dir;
  const auto start = [&] {
    HarnessOptions disk = options(2, 12);
    disk.identity = {.model = std::string(32, 'a'),
                     .weights = "f32",
                     .chunk = static_cast<int32_t>(model().info().chunk)};
    const auto make = [](const HarnessOptions& all) {
      return std::make_unique<EngineHarness>(model(), *loaded().backend, all);
    };
    return std::make_unique<OnDisk>(open_folder(dir.path()), disk, make);
  };
  const auto run = [](OnDisk& server, SessionCommand command) {
    auto result = server->post(std::move(command));
    server.settle();
    return result.get();
  };
  {
    const auto server = start();
    run(*server, {.kind = Kind::kOpen,
                  .name = "s",
                  .durability = Durability::kLocal,
                  .rewind_tokens = 1000});
    server->ask(request(100, 30, 1, "s"));
    run(*server, {.kind = Kind::kMark, .name = "s", .other = "m"});
    server->ask(request(200, 100, 2, "s"));
    for (const int64_t position : {370, 40}) {  // from the mark, and from nothing
      const SessionResult back =
          run(*server, {.kind = Kind::kRewind, .name = "s", .position = position});
      ASSERT_EQ(back.reason, EndReason::kDone) << back.message;
      EXPECT_EQ(back.absorbed, position == 40 ? 40 : position - 129);
      server->ask(request(30, 60, 3, "s"));
    }
  }
  const auto server = start();
  Request first = request(100, 0, 1, "s");
  first.prompt.ids.resize(40);
  EngineHarness same = engine(options(1, 64));
  same.open("s");
  same.ask(first);
  same.ask(request(30, 60, 3, "s"));
  EXPECT_EQ((*server)->get("s").position, same.get("s").position);
  EXPECT_EQ(server->ask(request(20, 40, 4, "s"))->bits(),
            same.ask(request(20, 40, 4, "s"))->bits());
  // The mark is as it was.
  EXPECT_EQ(run(*server, {.kind = Kind::kRewind, .name = "s", .other = "m"}).reason,
            EndReason::kDone);
  EngineHarness marked = engine(options(1, 64));
  marked.open("s");
  marked.ask(request(100, 30, 1, "s"));
  EXPECT_EQ(server->ask(request(20, 40, 5, "s"))->bits(),
            marked.ask(request(20, 40, 5, "s"))->bits());
}

TEST_P(PagesTest, ForksMarksAndExportsContinueFromTheSameState) {
  EngineHarness harness = engine(options(3, 12)), quiet = engine(options(1, 64));
  harness.open("s");
  quiet.open("s");
  harness.ask(request(100, 30, 1, "s"));
  quiet.ask(request(100, 30, 1, "s"));
  EXPECT_EQ(harness.command(Kind::kFork, "s", "f").reason, EndReason::kDone);
  EXPECT_EQ(harness.command(Kind::kMark, "s", "m").reason, EndReason::kDone);
  const SessionResult exported = harness.command(Kind::kExport, "s");
  ASSERT_EQ(exported.reason, EndReason::kDone) << exported.message;
  const SessionInfo info = harness.get("s");
  EXPECT_EQ(info.position, 129);
  EXPECT_EQ(info.page_bytes, static_cast<int64_t>(3 * model().state_layout().page_bytes()));
  const auto next = [](const std::string& session) { return request(40, 60, 2, session); };
  const std::vector<TokenBits> want = quiet.ask(next("s"))->bits();
  EXPECT_EQ(harness.ask(next("f"))->bits(), want);
  EXPECT_EQ(harness.ask(next("s"))->bits(), want);
  EXPECT_EQ(harness.command(Kind::kMark, "s", "later").reason, EndReason::kDone);
  EXPECT_EQ(harness.command(Kind::kRewind, "s", "m").reason, EndReason::kDone);
  EXPECT_EQ(harness.ask(next("s"))->bits(), want);
  EXPECT_EQ(harness.command(Kind::kRewind, "s", "later").reason, EndReason::kDone);
  EXPECT_EQ(harness.ask(next("s"))->bits(), quiet.ask(next("s"))->bits());

  std::string written(exported.state->bytes(), '\0');
  exported.state->read(0, written);
  const StateHeader wanted{.layout = model().state_layout(), .vocab = vocab()};
  const SessionResult imported =
      harness.command({.kind = Kind::kImport, .name = "i", .state = state_reader(wanted)(written)});
  EXPECT_EQ(imported.reason, EndReason::kDone) << imported.message;
  EXPECT_EQ(harness.ask(next("i"))->bits(), want);
}

// A rewind absorbs tokens again while others take the pages: it is preempted as they are.
TEST_P(PagesTest, RewindsAreBoundedByPagesAndPreempted) {
  EngineHarness harness = engine(options(4, 9)), quiet = engine(options(1, 64));
  for (EngineHarness* one : {&harness, &quiet}) {
    one->command({.kind = Kind::kOpen, .name = "s", .rewind_tokens = 1000});
    one->ask(request(100, 30, 1, "s"));
  }
  harness.command(Kind::kMark, "s", "m");
  harness.ask(request(200, 100, 2, "s"));
  harness.command(Kind::kMark, "s", "end");
  Request shorter = request(200, 41, 2, "s");
  quiet.ask(shorter);
  std::vector<AnswerPtr> others;
  for (uint64_t i = 0; i < 4; ++i) others.push_back(harness.submit(request(60, 250, 10 + i)));
  harness.step(2);
  auto rewound =
      harness.post({.kind = Kind::kRewind, .name = "s", .position = quiet.get("s").position});
  harness.run_until_idle();
  const SessionResult result = rewound.get();
  ASSERT_EQ(result.reason, EndReason::kDone) << result.message;
  EXPECT_EQ(result.absorbed, 1 + 200 + 40);
  EXPECT_GT(harness.stats().preemptions, 0);
  for (uint64_t i = 0; i < 4; ++i) {
    others[i]->take();
    EXPECT_EQ(others[i]->bits(), alone(request(60, 250, 10 + i)));
  }
  EXPECT_EQ(harness.get("s").pending_token, quiet.get("s").pending_token);
  // What follows is no part of the text at the mark "end", nor are its pages.
  const auto next = [](size_t tokens, uint64_t seed, const std::string& session) {
    return request(tokens, 30, seed, session);
  };
  for (const auto& [tokens, seed] : {std::pair(20, 3), std::pair(40, 4)}) {
    const Request turn = next(static_cast<size_t>(tokens), static_cast<uint64_t>(seed), "s");
    EXPECT_EQ(harness.ask(turn)->bits(), quiet.ask(turn)->bits());
  }
  harness.command(Kind::kMark, "s", "other");
  harness.ask(next(10, 5, "s"));
  harness.command(Kind::kRewind, "s", "other");
  EXPECT_EQ(harness.get("s").position, quiet.get("s").position);
  harness.command(Kind::kFork, "s", "f");
  const std::vector<TokenBits> want = quiet.ask(next(10, 6, "s"))->bits();
  EXPECT_EQ(harness.ask(next(10, 6, "f"))->bits(), want);
  EXPECT_EQ(harness.ask(next(10, 6, "s"))->bits(), want);
}

TEST_P(PagesTest, ASessionReservesWhatItsRequestMayAdd) {
  HarnessOptions small = options(2, 64);
  const auto page = static_cast<int64_t>(model().state_layout().page_bytes());
  const int64_t empty = SessionStore::bytes_each(model().state_layout(), vocab());
  small.host_bytes = empty + 3 * page;
  EngineHarness harness = engine(small);
  harness.open("s");
  const AnswerPtr refused = harness.ask(request(64, 64 * 6, 1, "s"));
  EXPECT_EQ(refused->reason(), EndReason::kExhausted);
  EXPECT_THAT(refused->ending->message, HasSubstr("raise --session-memory"));
  EXPECT_FALSE(harness.get("s").busy);
  EXPECT_EQ(harness.ask(request(64, 64, 1, "s"))->reason(), EndReason::kLength);
  EXPECT_GE(harness.get("s").host_bytes, empty + 2 * page);
  EXPECT_EQ(harness.command(Kind::kMark, "s", "m").reason, EndReason::kExhausted);
}

INSTANTIATE_TEST_SUITE_P(Growing, PagesTest, all_pages_params(), pages_param_name);

}  // namespace recurve::testing::pages_test
