#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <semaphore>
#include <set>

#include "server/constraint/constraint_library.h"
#include "server/engine/request_digest.h"
#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/scripted_constraint.h"

namespace recurve::constraint_test {
namespace {

using testing::AnswerPtr;
using testing::NullHarness;
using testing::ScriptedConstraint;
using Place = ScriptedConstraint::Place;

constexpr int32_t kEos = NullHarness::kVocab - 1;

std::shared_ptr<ScriptedConstraint> script(std::vector<Place> places) {
  return std::make_shared<ScriptedConstraint>(std::move(places));
}

Request constrained(std::shared_ptr<const Constraint> constraint, int max_tokens = 20,
                    uint64_t seed = 1, const std::string& session = "") {
  Request request = NullHarness::request(11, max_tokens, seed, session);
  request.sampling.constraint = std::move(constraint);
  return request;
}

TEST(EngineConstraint, EachTokenIsOneOfItsPlaceAndTheEndComesWhereItMay) {
  for (const bool ahead : {false, true}) {
    NullHarness harness({.eos = {kEos}, .launch_ahead = ahead});
    const AnswerPtr answer = harness->ask(constrained(script({{{3, 4}}, {{7}}, {{1, 2, 40}}})));
    ASSERT_EQ(answer->reason(), EndReason::kEos);
    const std::vector<int32_t> ids = answer->ids();
    ASSERT_EQ(ids.size(), 4u);
    EXPECT_TRUE(ids[0] == 3 || ids[0] == 4);
    EXPECT_EQ(ids[1], 7);
    EXPECT_TRUE(ids[2] == 1 || ids[2] == 2 || ids[2] == 40);
    EXPECT_EQ(ids[3], kEos);
  }
}

TEST(EngineConstraint, AnEndThatIsLikelyDoesNotComeBefore) {
  NullHarness harness({.eos = {kEos}});
  Request request = constrained(script({{{3, kEos}}, {{4, kEos}}}));
  request.sampling.logit_bias = {{kEos, 1000.0f}};
  const AnswerPtr answer = harness->ask(std::move(request));
  EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3, 4, kEos}));
}

TEST(EngineConstraint, WhereItMayEndAndGoOnTheModelChooses) {
  NullHarness harness({.eos = {kEos}});
  const auto choice = script({{{3}}, {{4}, true}, {{5}}});
  Request ends = constrained(choice);
  ends.sampling.logit_bias = {{kEos, 1000.0f}};
  EXPECT_EQ(harness->ask(std::move(ends))->ids(), (std::vector<int32_t>{3, kEos}));
  Request goes_on = constrained(choice);
  goes_on.sampling.logit_bias = {{kEos, -1000.0f}};
  EXPECT_EQ(harness->ask(std::move(goes_on))->ids(), (std::vector<int32_t>{3, 4, 5, kEos}));
}

TEST(EngineConstraint, MinTokensHoldAsLongAsSomethingElseCanCome) {
  NullHarness harness({.eos = {kEos}});
  Request request = constrained(script({{{3}}, {{4}, true}, {{5}, true}, {{6}, true}}));
  request.sampling.logit_bias = {{kEos, 1000.0f}};
  request.sampling.min_tokens = 3;
  EXPECT_EQ(harness->ask(std::move(request))->ids(), (std::vector<int32_t>{3, 4, 5, kEos}));
  Request longer = constrained(script({{{3}}}));
  longer.sampling.min_tokens = 10;
  const AnswerPtr answer = harness->ask(std::move(longer));
  EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3, kEos}));
  EXPECT_EQ(answer->reason(), EndReason::kEos);
}

TEST(EngineConstraint, MaxTokensCutIt) {
  NullHarness harness({.eos = {kEos}});
  const AnswerPtr answer = harness->ask(constrained(script({{{3}}, {{4}}, {{5}}}), 2));
  EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(answer->reason(), EndReason::kLength);
}

TEST(EngineConstraint, StopIdsEndItWhereItMayEndAlone) {
  NullHarness harness({.eos = {}});
  Request request = constrained(script({{{3, 8}}, {{8, 9}}}));
  request.sampling.stop_ids = {8};
  request.sampling.logit_bias = {{8, 1000.0f}};
  const AnswerPtr answer = harness->ask(std::move(request));
  EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3, 9, 8}));
  EXPECT_EQ(answer->reason(), EndReason::kStopId);
}

TEST(EngineConstraint, AllowedIdsHoldToo) {
  NullHarness harness({.eos = {kEos}});
  Request request = constrained(script({{{3, 4}}, {{5, 6}}}));
  request.sampling.allowed_ids = {4, 5, kEos};
  EXPECT_EQ(harness->ask(std::move(request))->ids(), (std::vector<int32_t>{4, 5, kEos}));
}

TEST(EngineConstraint, PenaltiesActOnWhatMayCome) {
  const auto choice = script({{{3}}, {{3, 4}}, {{3, 4, 5}}});
  for (const bool repeats : {false, true}) {
    NullHarness harness({.eos = {kEos}});
    Request request = constrained(choice);
    request.sampling.presence_penalty = repeats ? -1000.0f : 1000.0f;
    request.sampling.logit_bias = {{4, 1.0f}};
    const std::vector<int32_t> ids = harness->ask(std::move(request))->ids();
    EXPECT_EQ(ids, repeats ? (std::vector<int32_t>{3, 3, 3, kEos})
                           : (std::vector<int32_t>{3, 4, 5, kEos}));
  }
}

TEST(EngineConstraint, WhereNothingCanComeTheAnswerFailsAlone) {
  NullHarness harness({.eos = {kEos}});
  const AnswerPtr other = harness->submit(NullHarness::request(9, 20, 5));
  const AnswerPtr answer = harness->submit(constrained(script({{{3}}, {{}}})));
  harness->run_until_idle();
  answer->take();
  other->take();
  EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3}));
  EXPECT_EQ(answer->reason(), EndReason::kConstraint);
  EXPECT_THAT(answer->ending->message,
              ::testing::HasSubstr("no allowed token can continue the text"));
  EXPECT_EQ(other->reason(), EndReason::kLength);
}

TEST(EngineConstraint, LogprobsAreTheModelsOwn) {
  NullHarness harness({.eos = {kEos}});
  const AnswerPtr free = harness->ask(NullHarness::request(11, 1, 1));
  const AnswerPtr answer = harness->ask(constrained(script({{{3}}})));
  // The likeliest id at the first place is what the model says without any constraint.
  EXPECT_EQ(answer->bits()[0].top, free->bits()[0].top);
  EXPECT_LT(answer->tokens[0].logprob, free->tokens[0].logprob);
}

TEST(EngineConstraint, EachChoiceHasItsOwn) {
  NullHarness harness({.eos = {kEos}});
  Request request = constrained(script({{{1, 2, 3, 4, 5, 6}}, {{7, 8}}, {{9, 10, 11}}}));
  request.sampling.temperature = 1;
  request.sampling.logprobs = -1;
  const AnswerPtr other = harness->submit(NullHarness::request(9, 30, 5));
  std::vector<AnswerPtr> answers = harness->submit(std::move(request), 4);  // more than are free
  harness->run_until_idle();
  std::set<std::vector<int32_t>> different;
  for (const AnswerPtr& answer : answers) {
    answer->take();
    const std::vector<int32_t> ids = answer->ids();
    ASSERT_EQ(ids.size(), 4u) << answer->ending->message;
    EXPECT_TRUE(ids[0] >= 1 && ids[0] <= 6);
    EXPECT_TRUE(ids[1] == 7 || ids[1] == 8);
    EXPECT_TRUE(ids[2] >= 9 && ids[2] <= 11);
    EXPECT_EQ(ids[3], kEos);
    different.insert(ids);
  }
  EXPECT_GT(different.size(), 1u);
}

TEST(EngineConstraint, SameTokensWhateverRunsConcurrently) {
  const auto choice = script({{{1, 2, 3, 4, 5, 6}}, {{7, 8, 9, 10}}, {{9, 10, 11}}, {{1, 2, 3}}});
  std::vector<int32_t> alone;
  for (const bool ahead : {false, true}) {
    for (const int others : {0, 3}) {
      NullHarness harness({.eos = {kEos}, .launch_ahead = ahead});
      std::vector<AnswerPtr> concurrent;
      for (int o = 0; o < others; ++o) {
        concurrent.push_back(
            harness->submit(NullHarness::request(30, 40, 50 + static_cast<uint64_t>(o))));
      }
      Request request = constrained(choice);
      request.sampling.temperature = 1;
      request.sampling.seed = 77;
      const AnswerPtr answer = harness->ask(std::move(request));
      if (alone.empty()) alone = answer->ids();
      EXPECT_EQ(answer->ids(), alone);
      ASSERT_EQ(alone.size(), 5u);
    }
  }
}

// Three tokens, of which the second one's mask is there once `release` is.
std::shared_ptr<ScriptedConstraint> slow_script(std::latch* release) {
  auto slow = script({{{3}}, {{4}}, {{5}}});
  slow->before_mask = [release](size_t place) {
    if (place == 1) release->wait();
  };
  return slow;
}

TEST(EngineConstraint, ASlowMaskDelaysNoOtherRequest) {
  for (const bool ahead : {false, true}) {
    NullHarness harness({.eos = {kEos}, .launch_ahead = ahead});
    std::latch release(1);
    const auto slow = slow_script(&release);
    const AnswerPtr answer = harness->submit(constrained(slow));
    const AnswerPtr other = harness->submit(NullHarness::request(9, 30, 5));
    for (int i = 0; i < 200 && !other->ended(); ++i) {
      harness->step();
      other->take();
    }
    answer->take();
    EXPECT_EQ(other->reason(), EndReason::kLength);
    EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3})) << "it waits for its second mask";
    EXPECT_FALSE(answer->ended());
    release.count_down();
    harness->start();
    answer->wait_for_end();
    harness->join();
    EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3, 4, 5, kEos}));
  }
}

TEST(EngineConstraint, ASlowMaskDelaysNoOtherWhereAllHaveConstraints) {
  for (const bool ahead : {false, true}) {
    NullHarness harness({.eos = {kEos}, .launch_ahead = ahead});
    std::latch release(1);
    const auto slow = slow_script(&release);
    const AnswerPtr answer = harness->submit(constrained(slow));
    const AnswerPtr other = harness->submit(constrained(script({{{6}}, {{7}}, {{8}}, {{9}}})));
    harness->start();
    other->wait_for_end();  // for ever, if it waited for the other's mask
    answer->take();
    EXPECT_EQ(other->ids(), (std::vector<int32_t>{6, 7, 8, 9, kEos}));
    EXPECT_FALSE(answer->ended());
    release.count_down();
    answer->wait_for_end();
    harness->join();
    EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3, 4, 5, kEos}));
  }
}

void compute_for(double seconds) {
  const double end = thread_seconds() + seconds;
  while (thread_seconds() < end) continue;
}

// As many answers as there can be threads for masks: each takes long for its first, and for ever
// for its second.
TEST(EngineConstraint, AnswersThatTakeLongAgainAndAgainHoldUpNoOther) {
  constexpr size_t kMany = 8;
  NullHarness harness({.slots = static_cast<int>(kMany) + 1, .eos = {kEos}});
  std::latch release(1);
  std::counting_semaphore<kMany> second(0);
  const auto slow = script({{{3}}, {{4}}});
  slow->before_mask = [&](size_t place) {
    if (place == 0) return compute_for(0.02);
    second.release();
    release.wait();
  };
  std::vector<AnswerPtr> many;
  for (size_t i = 0; i < kMany; ++i) many.push_back(harness->submit(constrained(slow)));
  harness->start();
  second.acquire();
  const AnswerPtr other = harness->submit(constrained(script({{{6}}, {{7}}, {{8}}})));
  other->wait_for_end();
  EXPECT_EQ(other->ids(), (std::vector<int32_t>{6, 7, 8, kEos}));
  for (const AnswerPtr& answer : many) EXPECT_FALSE(answer->ended());
  release.count_down();
  for (const AnswerPtr& answer : many) answer->wait_for_end();
  harness->join();
}

// The engine's own threads have the processors while it goes on.
TEST(MaskWorkers, AThreadThatIsAtOneMaskForLongIsLoweredAndReplaced) {
  using namespace std::chrono_literals;
  const GuideRules rules{.ids = 32};
  std::latch computed(1), release(1);
  std::atomic<int> slow_thread = 0, quick_priority = -1;
  MaskWorkers workers(2, [] {});
  const auto slow = script({{{3}}}), quick = script({{{4}}});
  slow->before_mask = [&](size_t) {
    slow_thread = gettid();
    compute_for(0.01);
    computed.count_down();
    release.wait();
  };
  quick->before_mask = [&](size_t) { quick_priority = getpriority(PRIO_PROCESS, gettid()); };
  const auto slow_one = std::make_shared<Guide>(slow, rules);
  slow_one->begin(workers);
  computed.wait();
  workers.wait(1ms);
  EXPECT_EQ(getpriority(PRIO_PROCESS, slow_thread), 10);

  // As many as there are threads: neither has the slow one's.
  for (int i = 0; i < 2; ++i) {
    const auto one = std::make_shared<Guide>(quick, rules);
    one->begin(workers);
    workers.wait(60s, 1);
    EXPECT_TRUE(one->ready());
    EXPECT_EQ(quick_priority, getpriority(PRIO_PROCESS, gettid()));
  }
  release.count_down();
  workers.wait(60s);
  EXPECT_TRUE(slow_one->ready());
  const auto last = std::make_shared<Guide>(quick, rules);
  last->begin(workers);
  workers.wait(60s);
  EXPECT_TRUE(last->ready());
  EXPECT_EQ(quick_priority, getpriority(PRIO_PROCESS, gettid()));
}

// What cannot be followed says why.
TEST(EngineConstraint, AMaskThatIsGivenUpEndsItsAnswerWithASentence) {
  NullHarness harness({.eos = {kEos}});
  const auto refused = script({{{3}}, {{4}}});
  refused->before_mask = [](size_t place) {
    if (place == 1) throw ConstraintRefused("it takes too long");
  };
  const AnswerPtr answer = harness->ask(constrained(refused));
  EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3}));
  EXPECT_EQ(answer->reason(), EndReason::kConstraint);
  EXPECT_EQ(answer->ending->message, "the constraint cannot be followed: it takes too long");
}

TEST(EngineConstraint, APromptIsAbsorbedWhileItsFirstMaskIsWorkedOut) {
  NullHarness harness({.eos = {kEos}});
  auto slow = script({{{3}}});
  std::latch release(1);
  slow->before_mask = [&](size_t) { release.wait(); };
  Request request = constrained(slow);
  request.prompt = testing::some_prompt(8 * NullHarness::kChunk, 3, NullHarness::kVocab - 1);
  const AnswerPtr answer = harness->submit(std::move(request));
  for (int i = 0; i < 30; ++i) harness->step();
  int absorbed = 0;
  for (const auto& step : harness.steps()) {
    for (const int rows : step) absorbed += rows;
  }
  EXPECT_EQ(absorbed, 7 * NullHarness::kChunk) << "all but the chunk that ends it";
  release.count_down();
  harness->start();
  answer->wait_for_end();
  harness->join();
  EXPECT_EQ(answer->ids(), (std::vector<int32_t>{3, kEos}));
}

TEST(EngineConstraint, ItIsOneRequestsAndNotItsSessions) {
  NullHarness harness({.eos = {kEos}});
  harness->open("s");
  const AnswerPtr cut = harness->ask(constrained(script({{{3}}, {{4}}, {{5}}}), 2, 1, "s"));
  EXPECT_EQ(cut->reason(), EndReason::kLength);
  Request goes_on = NullHarness::request(0, 3, 1, "s");
  goes_on.sampling.allowed_ids = {20, 21, 22};
  const AnswerPtr free = harness->ask(std::move(goes_on));
  for (const int32_t id : free->ids()) EXPECT_GE(id, 20);
  const AnswerPtr again = harness->ask(constrained(script({{{3}}, {{4}}}), 9, 1, "s"));
  EXPECT_EQ(again->ids(), (std::vector<int32_t>{3, 4, kEos})) << "from its beginning";
}

TEST(EngineConstraint, IsPartOfWhatAskedAloneMeans) {
  Request one = constrained(std::make_shared<ScriptedConstraint>(std::vector<Place>{}, "a"));
  Request other = constrained(std::make_shared<ScriptedConstraint>(std::vector<Place>{}, "b"));
  EXPECT_NE(digest_of(one), digest_of(other));
  EXPECT_NE(digest_of(one), digest_of(NullHarness::request(11, 20, 1)));
}

}  // namespace
}  // namespace recurve::constraint_test
