// Prompts that are still being sent while they are absorbed.
#include <gtest/gtest.h>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::prompt_feed_test {

constexpr int kChunk = NullHarness::kChunk;

// A prompt that is only scored.
Request scored(std::vector<int32_t> prompt) {
  Request request{.prompt = std::move(prompt)};
  request.sampling.max_tokens = 0;
  request.sampling.prompt_logprobs = 1;
  return request;
}

struct Fed {
  std::shared_ptr<PromptFeed> feed;
  AnswerPtr answer;
};
Fed feed_to(NullHarness& engine, std::vector<int32_t> begin,
            std::chrono::milliseconds patience = std::chrono::minutes(1)) {
  Request request = scored(std::move(begin));
  request.more_prompt = std::make_shared<PromptFeed>(patience);
  auto feed = request.more_prompt;
  return {std::move(feed), engine->submit(std::move(request))};
}

// However the rest comes, in whatever steps: the same bits as the whole prompt alone.
TEST(PromptFeedTest, AnyDivisionScoresAsTheWhole) {
  const std::vector<int32_t> prompt = some_prompt(203, 1, NullHarness::kVocab - 1);
  NullHarness engine({.slots = 3});
  const AnswerPtr whole = engine.alone(scored(prompt));
  ASSERT_EQ(whole->prompt.size(), prompt.size() - 1);
  for (const size_t part : {1u, 3u, 8u, 9u, 64u, 202u}) {
    auto [feed, answer] = feed_to(engine, {prompt[0]});
    const AnswerPtr neighbour = engine->submit(NullHarness::request(part + 5, 20, part));
    for (size_t at = 1; at < prompt.size(); at += part) {
      const size_t size = std::min(part, prompt.size() - at);
      feed->push(std::span(prompt).subspan(at, size));
      if (at % 2 == 0) engine->step();
    }
    feed->close();
    engine->run_until_idle();
    answer->take();
    EXPECT_EQ(answer->reason(), EndReason::kLength);
    EXPECT_EQ(answer->prompt_bits(), whole->prompt_bits()) << part;
    EXPECT_EQ(answer->accepted->prompt_tokens, 0);
    EXPECT_EQ(answer->ending->prompt_tokens, static_cast<int64_t>(prompt.size()));
  }
  EXPECT_EQ(engine->stats().running, 0);
}

// Whole chunks, and never the last token there is: what follows it is to be scored too.
TEST(PromptFeedTest, IsAbsorbedOnTheGridAsFarAsItHasCome) {
  NullHarness engine({.slots = 1});
  const std::vector<int32_t> ids = some_prompt(3 * kChunk, 2, NullHarness::kVocab - 1);
  auto [feed, answer] = feed_to(engine, {ids[0]});
  const auto scored_with = [&](size_t tokens) {
    feed->push(std::span(ids).first(tokens));
    engine->run_until_idle();
    answer->take();
    return answer->prompt.size();
  };
  EXPECT_EQ(scored_with(kChunk - 1), 0u);  // a chunk, but not the token behind it
  EXPECT_EQ(scored_with(1), static_cast<size_t>(kChunk));
  EXPECT_EQ(scored_with(3 * kChunk - 2), static_cast<size_t>(3 * kChunk));
  EXPECT_EQ(scored_with(1), static_cast<size_t>(3 * kChunk));
  feed->close();
  engine->run_until_idle();
  answer->take();
  EXPECT_EQ(answer->reason(), EndReason::kLength);
  EXPECT_EQ(answer->prompt.size(), static_cast<size_t>(4 * kChunk - 1));
}

TEST(PromptFeedTest, NothingMoreMayComeToo) {
  NullHarness engine;
  auto [feed, answer] = feed_to(engine, {1, 2, 3});
  feed->close();
  engine->run_until_idle();
  answer->take();
  EXPECT_EQ(answer->reason(), EndReason::kLength);
  EXPECT_EQ(answer->prompt.size(), 2u);
}

TEST(PromptFeedTest, ASlotIsNotHeldForASenderThatStalls) {
  NullHarness engine({.slots = 1});
  auto [feed, answer] = feed_to(engine, {1, 2}, std::chrono::milliseconds(50));
  const AnswerPtr next = engine->submit(NullHarness::request(5, 1));
  engine->start();  // its thread must wake up by itself
  answer->wait_for_end();
  EXPECT_EQ(answer->reason(), EndReason::kStalled);
  next->wait_for_end();
  EXPECT_EQ(next->reason(), EndReason::kLength);
}

TEST(PromptFeedTest, PatienceCountsFromWhenThereIsNothingToAbsorb) {
  const HeldClock held;
  NullHarness engine({.slots = 1});
  auto [feed, answer] = feed_to(engine, {1}, std::chrono::milliseconds(300));
  for (int i = 0; i < 8; ++i) {
    engine->run_until_idle();
    Clock::pass(std::chrono::milliseconds(60));
    feed->push(some_prompt(kChunk, static_cast<uint64_t>(i), NullHarness::kVocab - 1));
  }
  engine->run_until_idle();
  answer->take();
  EXPECT_FALSE(answer->ended());
  Clock::pass(std::chrono::milliseconds(320));
  engine->step();
  answer->take();
  EXPECT_EQ(answer->reason(), EndReason::kStalled);
}

// The engine may have been busy for longer than the patience: what counts is what has come.
TEST(PromptFeedTest, WhatHasComeIsLookedAtBeforePatienceEnds) {
  const HeldClock held;
  NullHarness engine({.slots = 1});
  auto [feed, answer] = feed_to(engine, {1}, std::chrono::milliseconds(300));
  engine->run_until_idle();
  feed->push(some_prompt(kChunk, 1, NullHarness::kVocab - 1));
  Clock::pass(std::chrono::milliseconds(320));
  engine->step();
  answer->take();
  EXPECT_FALSE(answer->ended());
}

TEST(PromptFeedTest, CancelAndDeadlineEndIt) {
  const HeldClock held;
  NullHarness engine({.slots = 2});
  auto cancelled = feed_to(engine, {1, 2});
  Request request = scored({3});
  request.more_prompt = std::make_shared<PromptFeed>(std::chrono::minutes(1));
  request.deadline = Clock::now() + std::chrono::milliseconds(20);
  const AnswerPtr late = engine->submit(std::move(request));
  engine->step();
  cancelled.answer->stream()->cancel();
  Clock::pass(std::chrono::milliseconds(25));
  engine->step();
  cancelled.answer->take();
  late->take();
  EXPECT_EQ(cancelled.answer->reason(), EndReason::kCancelled);
  EXPECT_EQ(late->reason(), EndReason::kDeadline);
  EXPECT_EQ(engine->stats().running, 0);
}

}  // namespace recurve::testing::prompt_feed_test
