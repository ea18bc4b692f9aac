// Prompts must not keep decodes waiting, nor decodes prompts, nor one prompt the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/engine_harness.h"

namespace recurve::testing {
namespace {

constexpr int kChunk = NullHarness::kChunk;

Request request(size_t length, int max_tokens, uint64_t seed = 0) {
  return NullHarness::request(length, max_tokens, seed);
}
Request scored(size_t length) {
  Request scored = request(length, 1);
  scored.sampling.prompt_logprobs = 0;
  return scored;
}

TEST(EngineFairness, DecodesGetATokenEveryStepWhilePromptsRun) {
  NullHarness harness({.slots = 6});  // 14 rows a step: one chunk beside the decodes
  std::vector<AnswerPtr> decodes;
  for (uint64_t i = 0; i < 3; ++i) decodes.push_back(harness->submit(request(2, 1000, i)));
  harness->step();
  std::vector<AnswerPtr> prompts;
  for (uint64_t i = 0; i < 3; ++i) prompts.push_back(harness->submit(request(10 * kChunk, 2, i)));
  for (AnswerPtr& decode : decodes) decode->take();
  for (int step = 0; step < 30; ++step) {
    harness->step();
    for (AnswerPtr& decode : decodes) {
      const size_t before = decode->tokens.size();
      decode->take();
      ASSERT_EQ(decode->tokens.size(), before + 1) << "step " << step;
    }
  }
  for (AnswerPtr& prompt : prompts) {
    prompt->take();
    EXPECT_FALSE(prompt->tokens.empty()) << "30 steps are enough for 30 chunks";
  }
}

TEST(EngineFairness, APromptGetsAChunkEveryStepWhileManyDecode) {
  NullHarness harness({.slots = 16});
  std::vector<AnswerPtr> decodes;
  for (uint64_t i = 0; i < 15; ++i) decodes.push_back(harness->submit(request(2, 1000, i)));
  harness->step(2);
  constexpr int kChunks = 20;
  AnswerPtr prompt = harness->submit(request(kChunks * kChunk, 1));
  for (int step = 1; step <= kChunks; ++step) {
    prompt->take();
    ASSERT_FALSE(prompt->ended()) << "before step " << step;
    harness->step();
    ASSERT_EQ(harness.steps().back(),
              (std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, kChunk}));
  }
  prompt->take();
  EXPECT_TRUE(prompt->ended());
}

// Of equal prompts that share too little room for all, none gets ahead by more than a chunk.
TEST(EngineFairness, PromptsMoveInStep) {
  constexpr int kPrompts = 5;
  NullHarness harness({.slots = kPrompts, .rows_per_step = kPrompts + 2 * kChunk});
  std::vector<AnswerPtr> answers;
  for (uint64_t i = 0; i < kPrompts; ++i) answers.push_back(harness->submit(request(400, 1, i)));
  std::vector<int> end(kPrompts, 0);
  for (int step = 1; step <= 200; ++step) {
    harness->step();
    for (size_t i = 0; i < kPrompts; ++i) {
      answers[i]->take();
      if (end[i] == 0 && answers[i]->ended()) end[i] = step;
    }
  }
  const auto [first, last] = std::minmax_element(end.begin(), end.end());
  EXPECT_EQ(*last, kPrompts * 400 / kChunk / 2);
  EXPECT_GE(*first, *last - 3) << "their last chunks take three steps";
}

// The prompt in the middle never fits beside the first one's chunk of scored rows.
TEST(EngineFairness, AScoredPromptIsNotPassedOver) {
  NullHarness harness({.slots = 3, .rows_per_step = 200});
  AnswerPtr first = harness->submit(scored(4000)), middle = harness->submit(scored(4000));
  AnswerPtr last = harness->submit(request(4000, 1));
  harness->step(20);
  middle->take(), first->take();
  EXPECT_GE(middle->prompt.size(), static_cast<size_t>(5 * kChunk));
  EXPECT_GE(first->prompt.size(), static_cast<size_t>(5 * kChunk));
}

// Sequences come and go around a long prompt; it still moves at least every few steps.
TEST(EngineFairness, ALongPromptMovesWhileShortOnesComeAndGo) {
  NullHarness harness({.slots = 4});
  AnswerPtr target = harness->submit(scored(60 * kChunk));
  std::vector<AnswerPtr> others(3);
  size_t before = 0;
  int still = 0;
  for (uint64_t step = 0; !target->ended(); ++step) {
    for (uint64_t i = 0; i < others.size(); ++i) {
      if (others[i]) others[i]->take();
      if (!others[i] || others[i]->ended()) {
        others[i] = harness->submit(request(1 + step * 7 % 40, 1 + static_cast<int>(i), step));
      }
    }
    harness->step();
    target->take();
    still = target->prompt.size() == before ? still + 1 : 0;
    before = target->prompt.size();
    ASSERT_LE(still, 8);
  }
}

}  // namespace
}  // namespace recurve::testing
