// Prompts must not keep decodes waiting, nor decodes prompts, nor one prompt the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "server/identity/tenants.h"
#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::fairness_test {

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
  NullHarness harness({.slots = 6});  // 14 rows a step: one chunk and the decodes
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

// Equal prompts that share too little room for all end one after the other, none of them later than
// if they had moved in step.
TEST(EngineFairness, EqualPromptsEndInTheOrderOfTheirComing) {
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
  for (int i = 0; i < kPrompts; ++i)
    EXPECT_EQ(end[static_cast<size_t>(i)], (i + 1) * 400 / kChunk / 2);
}

// Two chunks of scored rows never fit into one step.
TEST(EngineFairness, AScoredPromptIsNotPassedOver) {
  NullHarness harness({.slots = 3, .rows_per_step = 200});
  AnswerPtr first = harness->submit(scored(4000)), middle = harness->submit(scored(10 * kChunk));
  AnswerPtr last = harness->submit(request(100000, 1));
  harness->step(20);
  middle->take(), first->take();
  EXPECT_TRUE(middle->ended()) << "half of the steps are the shorter one's";
  EXPECT_GE(first->prompt.size(), static_cast<size_t>(9 * kChunk));
}

// A text that is sent while it is absorbed stands behind what came before its next part.
TEST(EngineFairness, AnEndlessTextDelaysNoOtherAndIsNotDelayed) {
  NullHarness harness({.slots = 3});
  Request endless = scored(4 * kChunk);
  endless.sampling.max_tokens = 0;
  endless.more_prompt = std::make_shared<PromptFeed>(std::chrono::hours(1));
  const std::shared_ptr<PromptFeed> feed = endless.more_prompt;
  AnswerPtr text = harness->submit(std::move(endless));
  size_t given = 4 * kChunk;
  constexpr int kChunks = 40;
  std::vector<AnswerPtr> prompts;
  for (uint64_t i = 0; i < 10; ++i)
    prompts.push_back(harness->submit(request(kChunks * kChunk, 1, i)));
  for (int step = 0; step < 2 * 10 * kChunks; ++step) {
    text->take();
    if (given - text->prompt.size() < 4 * kChunk) {  // as Score does: not far ahead
      feed->push(some_prompt(2 * kChunk, 1, NullHarness::kVocab - 1));
      given += 2 * kChunk;
    }
    harness->step();
  }
  for (AnswerPtr& prompt : prompts) {
    prompt->take();
    EXPECT_TRUE(prompt->ended());
  }
  EXPECT_GE(text->prompt.size(), static_cast<size_t>(10 * kChunks * kChunk / 4));
  feed->close();
  harness->run_until_idle();
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

constexpr Identity kMany{.tenant = 1, .tenant_name = "many", .limits = {.slot_share = kShareOfOne}};
constexpr Identity kOne{.tenant = 2, .tenant_name = "one", .limits = {.slot_share = kShareOfOne}};

// 64 streams without end, as urgent as can be, of one tenant, and one short request after another
// of another tenant: each has its slot at once and its prompt in a few steps.
TEST(EngineFairness, AFloodOfOneTenantDoesNotKeepOutAnother) {
  NullHarness harness({.slots = 8, .first_token = {.seconds = 1}});
  std::vector<AnswerPtr> flood;
  for (uint64_t i = 0; i < 64; ++i) {
    Request endless = request(20 * kChunk, 1 << 20, i);
    endless.caller = kMany;
    endless.priority = kMaxPriority;
    flood.push_back(harness->submit(std::move(endless)));
  }
  harness->step(3);
  for (int i = 0; i < 50; ++i) {
    Request asked = request(4 * kChunk, 2);
    asked.caller = kOne;
    asked.priority = -kMaxPriority;
    AnswerPtr answer = harness->submit(std::move(asked));
    harness->step(20);
    answer->take();
    ASSERT_TRUE(answer->ended()) << "request " << i;
    ASSERT_EQ(answer->reason(), EndReason::kLength) << "request " << i;
  }
  int running = 0;
  for (const AnswerPtr& endless : flood) {
    endless->take();
    if (!endless->tokens.empty()) ++running;
  }
  EXPECT_EQ(running, 7) << "all but an eighth";
}

// The other tenant has one request after another in a slot already; a second one starts at once
// too.
TEST(EngineFairness, AFloodLeavesASlotForTheSecondRequestOfAnother) {
  NullHarness harness({.slots = 8, .first_token = {.seconds = 10}});
  const auto submit = [&](const Identity& caller, int tokens, uint64_t seed) {
    Request asked = request(1, tokens, seed);
    asked.caller = caller;
    return harness->submit(std::move(asked));
  };
  std::vector<AnswerPtr> flood;
  AnswerPtr stream = submit(kOne, 100, 0);
  int most_steps = 0;
  for (uint64_t step = 0, began = 0; step < 1000; began = step) {
    while (flood.size() < 16) flood.push_back(submit(kMany, 300, step + flood.size()));
    AnswerPtr light = submit(kOne, 4, step);
    while (light->tokens.empty()) {
      ASSERT_TRUE(harness->step());
      light->take();
      ++step;
    }
    most_steps = std::max(most_steps, static_cast<int>(step - began));
    for (AnswerPtr& heavy : flood) heavy->take();
    std::erase_if(flood, [](const AnswerPtr& heavy) { return heavy->ended(); });
    stream->take();
    if (stream->ended()) stream = submit(kOne, 100, step);
  }
  EXPECT_LE(most_steps, 4);
}

// Without keys a network address stands for a tenant. Its share is known before it floods: a tenant
// that asked in the last minutes finds a slot, and a tenant that is alone may use all.
TEST(EngineFairness, AFloodOfOneAddressDoesNotKeepOutAnother) {
  const HeldClock held;
  NullHarness harness({.slots = 8, .first_token = {.seconds = 1}});
  const auto submit = [&](TenantId network, int tokens, uint64_t seed) {
    Request asked = request(1, tokens, seed);
    asked.arrival = Clock::now();
    asked.caller = kAnyone;
    asked.caller.visitor = kVisitors | network << kConnectionBits | (seed % 8 + 1);
    return harness->submit(std::move(asked));
  };
  const auto answered = [&](AnswerPtr answer) {
    harness->step(20);
    answer->take();
    return answer->ended() && answer->reason() == EndReason::kLength;
  };
  std::vector<AnswerPtr> flood;
  const auto running = [&] {
    return std::ranges::count_if(flood, [](const AnswerPtr& endless) {
      endless->take();
      return !endless->tokens.empty() && !endless->ended();
    });
  };
  ASSERT_TRUE(answered(submit(2, 2, 0)));
  Clock::pass(std::chrono::minutes(5));
  for (uint64_t i = 0; i < 64; ++i) flood.push_back(submit(1, 1 << 20, i));
  harness->step(3);
  EXPECT_EQ(running(), 7) << "all but an eighth";
  for (uint64_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(answered(submit(2, 2, i)));
    Clock::pass(std::chrono::minutes(1));
  }
  for (const AnswerPtr& endless : flood) endless->stream()->cancel();
  harness->step(3);
  flood.clear();
  Clock::pass(std::chrono::minutes(20));
  for (uint64_t i = 0; i < 8; ++i) flood.push_back(submit(1, 1 << 20, i));
  harness->step(3);
  EXPECT_EQ(running(), 8) << "no other tenant is known";
}

// Streams without end of one connection, as urgent as can be and from before anybody else had
// asked, and one short request after another of a second connection from the same address.
TEST(EngineFairness, AFloodOfOneConnectionDoesNotKeepOutAnother) {
  NullHarness harness({.slots = 8, .first_token = {.seconds = 1}});
  const auto submit = [&](TenantId connection, int tokens, int priority, uint64_t seed) {
    Request asked = request(4 * kChunk, tokens, seed);
    asked.caller.visitor = kVisitors | connection;
    asked.priority = priority;
    return harness->submit(std::move(asked));
  };
  std::vector<AnswerPtr> flood;
  for (uint64_t i = 0; i < 64; ++i) flood.push_back(submit(1, 1 << 20, kMaxPriority, i));
  harness->step(20);
  for (uint64_t i = 0; i < 50; ++i) {
    AnswerPtr answer = submit(2, 2, -kMaxPriority, i);
    harness->step(20);
    answer->take();
    ASSERT_TRUE(answer->ended()) << "request " << i;
    ASSERT_EQ(answer->reason(), EndReason::kLength) << "request " << i;
  }
  const auto running = std::ranges::count_if(flood, [](const AnswerPtr& endless) {
    endless->take();
    return !endless->tokens.empty() && !endless->ended();
  });
  EXPECT_EQ(running, 7) << "all but an eighth";
}

// Whose slots come free goes to who has fewer, and choices of one request wait for others'.
TEST(EngineFairness, SlotsAreSharedOnceTheyComeFree) {
  NullHarness harness({.slots = 4});
  const auto submit = [&](const Identity& caller, int tokens, uint64_t seed) {
    Request asked = request(1, tokens, seed);
    asked.caller = caller;
    asked.caller.limits = {};
    return harness->submit(std::move(asked));
  };
  std::vector<AnswerPtr> many, one;
  for (uint64_t i = 0; i < 12; ++i) many.push_back(submit(kMany, 10, i));
  harness->step(2);
  for (uint64_t i = 0; i < 4; ++i) one.push_back(submit(kOne, 10, i));
  harness->step(12);  // the first four have ended, the next ones run
  int of_one = 0;
  for (const AnswerPtr& answer : one) {
    answer->take();
    if (!answer->tokens.empty()) ++of_one;
  }
  EXPECT_EQ(of_one, 2) << "half of the slots";
}

}  // namespace recurve::testing::fairness_test
