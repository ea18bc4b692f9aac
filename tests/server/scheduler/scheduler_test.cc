#include "server/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace recurve {
namespace {

using ::testing::ElementsAre;

constexpr Pending kDecode{.tokens = 1, .prompt = false, .scored = false};
constexpr Pending kWaits{.tokens = 0, .prompt = false, .scored = false};
constexpr Pending prompt(int tokens) { return {.tokens = tokens, .prompt = true, .scored = false}; }
constexpr Pending scored(int tokens) { return {.tokens = tokens, .prompt = true, .scored = true}; }

std::vector<int> plan(const StepBounds& bounds, const std::vector<Pending>& pending,
                      size_t first = 0) {
  return plan_step(bounds, pending, first);
}

TEST(PlanStep, NothingToDo) {
  EXPECT_THAT(plan({.rows = 10, .logits = 10, .chunk = 8}, {}), ElementsAre());
  EXPECT_THAT(plan({.rows = 10, .logits = 10, .chunk = 8}, {kWaits, kWaits}), ElementsAre(0, 0));
}

TEST(PlanStep, DecodesFirstThenWholeChunks) {
  // 20 rows, 2 of them for decodes; 18 hold two chunks of 8 and no third.
  EXPECT_THAT(plan({.rows = 20, .logits = 20, .chunk = 8}, {kDecode, prompt(100), kDecode, kWaits}),
              ElementsAre(1, 16, 1, 0));
}

TEST(PlanStep, TheEndOfAPromptNeedNotFillItsChunk) {
  EXPECT_THAT(plan({.rows = 100, .logits = 20, .chunk = 8}, {prompt(3), prompt(17), prompt(16)}),
              ElementsAre(3, 17, 16));
}

TEST(PlanStep, PromptsShareInTurns) {
  const std::vector<Pending> three = {prompt(100), prompt(100), prompt(100)};
  EXPECT_THAT(plan({.rows = 34, .logits = 20, .chunk = 8}, three, 0), ElementsAre(16, 8, 8));
  EXPECT_THAT(plan({.rows = 34, .logits = 20, .chunk = 8}, three, 1), ElementsAre(8, 16, 8));
  EXPECT_THAT(plan({.rows = 34, .logits = 20, .chunk = 8}, three, 2), ElementsAre(8, 8, 16));
}

TEST(PlanStep, AShortPromptLeavesItsShareToTheOthers) {
  EXPECT_THAT(plan({.rows = 40, .logits = 20, .chunk = 8}, {prompt(2), prompt(100)}),
              ElementsAre(2, 32));
}

TEST(PlanStep, ScoredPromptsAreBoundByTheirLogits) {
  // 12 rows of logits: one chunk of the scored prompt; the other needs none before its end.
  EXPECT_THAT(plan({.rows = 100, .logits = 12, .chunk = 8}, {scored(40), prompt(24)}),
              ElementsAre(8, 24));
  EXPECT_THAT(plan({.rows = 100, .logits = 8, .chunk = 8}, {scored(8), prompt(24)}),
              ElementsAre(8, 16));
}

TEST(NextFirst, IsThePromptAfterTheOneThatWasFirst) {
  const std::vector<Pending> pending = {prompt(9), kDecode, prompt(9), kWaits, prompt(9)};
  EXPECT_EQ(next_first(pending, 0), 1u);
  EXPECT_EQ(next_first(pending, 1), 3u);
  EXPECT_EQ(next_first(pending, 3), 0u);
  EXPECT_EQ(next_first(pending, 7), 3u) << "sequences have left: 7 % 5 is 2";
  EXPECT_EQ(next_first(std::vector<Pending>{kDecode}, 0), 0u);
  EXPECT_EQ(next_first({}, 5), 0u);
  const std::vector<Pending> starved = {prompt(0), prompt(8), prompt(0), prompt(9)};
  EXPECT_EQ(next_first(starved, 0), 2u) << "a prompt still being sent, of which nothing is there";
  EXPECT_EQ(next_first(starved, 2), 0u);
}

// Random steps, all within what the engine promises to the scheduler.
struct Scene {
  StepBounds bounds;
  std::vector<Pending> pending;
  size_t first;
};

class Scenes {
 public:
  explicit Scenes(uint32_t seed) : random_(seed) {}

  Scene next() {
    const int slots = between(1, 20), chunk = between(1, 64);
    Scene scene{.bounds = {.rows = slots + chunk + between(0, 3 * chunk),
                           .logits = slots + chunk + between(0, 10),
                           .chunk = chunk},
                .pending = {},
                .first = static_cast<size_t>(between(0, 25))};
    for (int i = between(0, slots); i > 0; --i) {
      const int kind = between(0, 4);
      scene.pending.push_back(kind == 0   ? kWaits
                              : kind == 1 ? kDecode
                              : kind == 2 ? scored(between(1, 5 * chunk))
                                          : prompt(between(1, 5 * chunk)));
    }
    return scene;
  }
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }

 private:
  std::mt19937 random_;
};

int logits_of(const Pending& pending, int rows) {
  if (!pending.prompt) return rows;
  return pending.scored ? rows : (rows == pending.tokens ? 1 : 0);
}

TEST(PlanStep, HoldsItsPromisesOnRandomSteps) {
  Scenes scenes(1);
  for (int round = 0; round < 20000; ++round) {
    const auto [bounds, pending, first] = scenes.next();
    const std::vector<int> rows = plan_step(bounds, pending, first);
    ASSERT_EQ(rows.size(), pending.size());
    int all_rows = 0, all_logits = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      all_rows += rows[i];
      all_logits += logits_of(pending[i], rows[i]);
      if (pending[i].prompt) {
        EXPECT_TRUE(rows[i] == pending[i].tokens || rows[i] % bounds.chunk == 0)
            << "cut off the grid";
        EXPECT_LE(rows[i], pending[i].tokens);
      } else {
        EXPECT_EQ(rows[i], pending[i].tokens) << "a decode has to wait";
      }
    }
    EXPECT_LE(all_rows, bounds.rows);
    EXPECT_LE(all_logits, bounds.logits);
    for (size_t i = 0; i < rows.size(); ++i) {  // no room is left that somebody could use
      const int piece = std::min(pending[i].tokens - rows[i], bounds.chunk);
      if (!pending[i].prompt || piece == 0) continue;
      const int logits = logits_of(pending[i], rows[i] + piece) - logits_of(pending[i], rows[i]);
      EXPECT_TRUE(all_rows + piece > bounds.rows || all_logits + logits > bounds.logits);
    }
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

// Two prompts that both go on after the step differ by one chunk at most.
TEST(PlanStep, SharesEvenly) {
  Scenes scenes(2);
  for (int round = 0; round < 5000; ++round) {
    auto [bounds, pending, first] = scenes.next();
    for (Pending& p : pending) p.scored = false;
    const std::vector<int> rows = plan_step(bounds, pending, first);
    int least = 1 << 30, most = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!pending[i].prompt || pending[i].tokens - rows[i] < bounds.chunk) continue;
      least = std::min(least, rows[i]);
      most = std::max(most, rows[i]);
    }
    if (most > 0) {
      ASSERT_LE(most - least, bounds.chunk) << "round " << round;
    }
  }
}

// With new prompts coming all the time, none waits more steps than there are sequences.
TEST(PlanStep, TheRotationServesEveryone) {
  Scenes scenes(3);
  for (int round = 0; round < 300; ++round) {
    auto [bounds, pending, first] = scenes.next();
    std::vector<size_t> waited(pending.size(), 0);
    for (int step = 0; step < 200; ++step) {
      const std::vector<int> rows = plan_step(bounds, pending, first);
      for (size_t i = 0; i < rows.size(); ++i) {
        if (!pending[i].prompt) continue;
        waited[i] = rows[i] == 0 ? waited[i] + 1 : 0;
        ASSERT_LT(waited[i], pending.size()) << "round " << round;
        pending[i].tokens -= rows[i];  // one that ends makes room for a new one
        if (pending[i].tokens == 0) pending[i].tokens = scenes.between(1, 5 * bounds.chunk);
      }
      first = next_first(pending, first);
    }
  }
}

}  // namespace
}  // namespace recurve
