#include "server/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace recurve::scheduler_test {

using ::testing::ElementsAre;

constexpr StepCandidate kDecode{.tokens = 1, .prompt = false, .scored = false};
constexpr StepCandidate kWaits{.tokens = 0, .prompt = false, .scored = false};
constexpr StepCandidate prompt(int tokens, int64_t rank = 0) {
  return {.tokens = tokens, .prompt = true, .scored = false, .rank = rank};
}
constexpr StepCandidate scored(int tokens, int64_t rank = 0) {
  return {.tokens = tokens, .prompt = true, .scored = true, .rank = rank};
}

constexpr StepBounds bounds(int rows, int logits, int chunk) {
  return {.rows = rows, .logits = logits, .chunk = chunk, .prompt_rows = rows};
}

std::vector<int> plan(const StepBounds& bounds, const std::vector<StepCandidate>& pending,
                      uint64_t chunks = 0) {
  return plan_step(bounds, pending, {.served = {Served{.chunks = chunks}}}).rows;
}

TEST(PlanStep, NothingToDo) {
  EXPECT_THAT(plan(bounds(10, 10, 8), {}), ElementsAre());
  EXPECT_THAT(plan(bounds(10, 10, 8), {kWaits, kWaits}), ElementsAre(0, 0));
}

TEST(PlanStep, DecodesFirstThenWholeChunks) {
  // 20 rows, 2 of them for decodes; 18 hold two chunks of 8 and no third.
  EXPECT_THAT(plan(bounds(20, 20, 8), {kDecode, prompt(100), kDecode, kWaits}),
              ElementsAre(1, 16, 1, 0));
}

TEST(PlanStep, TheEndOfAPromptNeedNotFillItsChunk) {
  EXPECT_THAT(plan(bounds(100, 20, 8), {prompt(3), prompt(17), prompt(16)}),
              ElementsAre(3, 17, 16));
}

TEST(PlanStep, EqualPromptsGoInTheOrderOfTheirComing) {
  const std::vector<StepCandidate> three = {prompt(24, 2), prompt(24, 1), prompt(24, 3)};
  EXPECT_THAT(plan(bounds(34, 20, 8), three, 0), ElementsAre(8, 24, 0));
  EXPECT_THAT(plan(bounds(34, 20, 8), three, 1), ElementsAre(8, 24, 0));
}

TEST(PlanStep, EverySecondChunkGoesToAFarShorterOne) {
  const std::vector<StepCandidate> two = {prompt(400, 1), prompt(40, 2)};
  EXPECT_THAT(plan(bounds(8, 20, 8), two, 0), ElementsAre(8, 0));
  EXPECT_THAT(plan(bounds(8, 20, 8), two, 1), ElementsAre(0, 8));
  EXPECT_THAT(plan(bounds(32, 20, 8), two), ElementsAre(16, 16));
  EXPECT_THAT(plan(bounds(32, 20, 8), {prompt(300, 1), prompt(40, 2)}), ElementsAre(32, 0));
}

TEST(PlanStep, AShortPromptLeavesItsShareToTheOthers) {
  EXPECT_THAT(plan(bounds(40, 20, 8), {prompt(2, 2), prompt(100, 1)}), ElementsAre(2, 32));
}

TEST(PlanStep, ScoredPromptsAreBoundByTheirLogits) {
  // 12 rows of logits: one chunk of the scored prompt; the other needs none before its end.
  EXPECT_THAT(plan(bounds(100, 12, 8), {scored(40), prompt(24, 1)}), ElementsAre(8, 24));
  EXPECT_THAT(plan(bounds(100, 8, 8), {scored(8), prompt(24, 1)}), ElementsAre(8, 16));
}

TEST(PlanStep, PromptsKeepToTheirPartOfTheStepButAChunkTheyMay) {
  StepBounds narrow = bounds(100, 20, 8);
  narrow.prompt_rows = 20;
  EXPECT_THAT(plan(narrow, {kDecode, prompt(100)}), ElementsAre(1, 16));
  narrow.prompt_rows = 0;
  EXPECT_THAT(plan(narrow, {kDecode, prompt(100), prompt(100, 1)}), ElementsAre(1, 8, 0));
  // No more than the first one, where that is the end of a prompt.
  EXPECT_THAT(plan(narrow, {kDecode, prompt(4), prompt(4, 1)}), ElementsAre(1, 4, 0));
}

TEST(PlanStep, TheTurnGoesOnFromStepToStep) {
  Turns turns;
  const auto next = [&](int rows) {
    const StepPlan plan =
        plan_step(bounds(rows, 20, 8), std::vector{prompt(400, 1), prompt(40, 2)}, turns);
    turns = plan.turns;
    return plan.rows;
  };
  EXPECT_THAT(next(8), ElementsAre(8, 0));
  EXPECT_THAT(next(8), ElementsAre(0, 8));
  EXPECT_THAT(next(24), ElementsAre(16, 8));
  EXPECT_THAT(next(24), ElementsAre(8, 16));
}

// Random steps, all within what the engine promises to the scheduler.
struct Scene {
  StepBounds bounds;
  std::vector<StepCandidate> pending;
  uint64_t turn;
};

class Scenes {
 public:
  explicit Scenes(uint32_t seed) : random_(seed) {}

  Scene next() {
    const int slots = between(1, 20), chunk = between(1, 64);
    Scene scene{.bounds = bounds(slots + chunk + between(0, 3 * chunk),
                                 slots + chunk + between(0, 10), chunk),
                .pending = {},
                .turn = static_cast<uint64_t>(between(0, 1))};
    scene.bounds.prompt_rows = between(0, scene.bounds.rows);
    for (int i = between(0, slots); i > 0; --i) {
      const int kind = between(0, 4), rank = between(0, 20);
      scene.pending.push_back(kind == 0   ? kWaits
                              : kind == 1 ? kDecode
                              : kind == 2 ? scored(between(1, 5 * chunk), rank)
                                          : prompt(between(1, 5 * chunk), rank));
    }
    return scene;
  }
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }

 private:
  std::mt19937 random_;
};

int logits_of(const StepCandidate& pending, int rows) {
  if (!pending.prompt) return rows;
  return pending.scored ? rows : (rows == pending.tokens ? 1 : 0);
}

TEST(PlanStep, HoldsItsPromisesOnRandomSteps) {
  Scenes scenes(1);
  for (int round = 0; round < 20000; ++round) {
    auto [bounds, pending, turn] = scenes.next();
    const std::vector<int> rows = plan(bounds, pending, turn);
    ASSERT_EQ(rows.size(), pending.size());
    int all_rows = 0, prompt_rows = 0, all_logits = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      all_rows += rows[i];
      all_logits += logits_of(pending[i], rows[i]);
      if (pending[i].prompt) {
        prompt_rows += rows[i];
        EXPECT_TRUE(rows[i] == pending[i].tokens || rows[i] % bounds.chunk == 0)
            << "cut off the grid";
        EXPECT_LE(rows[i], pending[i].tokens);
      } else {
        EXPECT_EQ(rows[i], pending[i].tokens) << "a decode has to wait";
      }
    }
    const int most_prompt_rows = std::max(bounds.prompt_rows, bounds.chunk);
    EXPECT_LE(all_rows, bounds.rows);
    EXPECT_LE(prompt_rows, most_prompt_rows);
    EXPECT_LE(all_logits, bounds.logits);
    for (size_t i = 0; i < rows.size(); ++i) {  // no room is left that somebody could use
      const int piece = std::min(pending[i].tokens - rows[i], bounds.chunk);
      if (!pending[i].prompt || piece == 0) continue;
      const int logits = logits_of(pending[i], rows[i] + piece) - logits_of(pending[i], rows[i]);
      EXPECT_TRUE(all_rows + piece > bounds.rows || prompt_rows + piece > bounds.prompt_rows ||
                  all_logits + logits > bounds.logits);
      EXPECT_GT(prompt_rows, 0) << "a chunk always fits";
    }
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

// Prompts of all lengths that come for ever, faster than they can be absorbed, or slower.
class Traffic {
 public:
  Traffic(Scenes& random, int chunk) : random_(random), chunk_(chunk) {}

  void add(int tokens) { prompts_.push_back(prompt(tokens, ++came_)); }
  // Prompts of far more than `tokens`, and still so after a chunk, until so many are there.
  void flood(size_t until, int tokens) {
    while (prompts_.size() < until) {
      add(kFarShorter * tokens + random_.between(2 * chunk_, 9 * chunk_));
    }
  }
  // One step of so many chunks; true if the prompt of that rank is through.
  bool step_ends(int chunks, int64_t rank) {
    const StepPlan plan = plan_step(bounds(chunks * chunk_, 100000, chunk_), prompts_, turns_);
    turns_ = plan.turns;
    const std::vector<int>& rows = plan.rows;
    bool ended = false;
    for (size_t i = 0; i < rows.size(); ++i) {
      prompts_[i].tokens -= rows[i];
      ended |= prompts_[i].tokens == 0 && prompts_[i].rank == rank;
    }
    std::erase_if(prompts_, [](const StepCandidate& p) { return p.tokens == 0; });
    return ended;
  }
  int64_t last_rank() const { return came_; }
  // Tokens of all that came before that rank.
  int64_t tokens_until(int64_t rank) const {
    int64_t tokens = 0;
    for (const StepCandidate& p : prompts_) tokens += p.rank <= rank ? p.tokens : 0;
    return tokens;
  }

 private:
  Scenes& random_;
  const int chunk_;
  std::vector<StepCandidate> prompts_;
  int64_t came_ = 0;
  Turns turns_;
};

int64_t chunks_of(int64_t tokens, int chunk) { return (tokens + chunk - 1) / chunk; }

// However many far longer ones are there and come, it takes at most twice its own time.
TEST(PlanStep, AShortPromptGetsThroughAFloodOfLongOnes) {
  Scenes random(2);
  for (int round = 0; round < 500; ++round) {
    const int chunk = random.between(1, 64), chunks = random.between(1, 6);
    const int tokens = random.between(1, 10 * chunk);
    Traffic traffic(random, chunk);
    traffic.flood(20, tokens);
    traffic.add(tokens);
    const int64_t rank = traffic.last_rank();
    int64_t steps = 1;
    while (!traffic.step_ends(chunks, rank)) {
      traffic.flood(20, tokens);
      ASSERT_LE(++steps, chunks_of(2 * chunks_of(tokens, chunk), chunks)) << "round " << round;
    }
  }
}

// However many short ones come after it, it takes at most twice what it and those before it take.
TEST(PlanStep, ALongPromptGetsThroughAFloodOfShortOnes) {
  Scenes random(3);
  for (int round = 0; round < 500; ++round) {
    const int chunk = random.between(1, 64), chunks = random.between(1, 6);
    Traffic traffic(random, chunk);
    traffic.flood(static_cast<size_t>(random.between(0, 10)), 0);
    traffic.add(random.between(1, 30 * chunk));
    const int64_t rank = traffic.last_rank();
    // Each prompt before it may end within a chunk.
    const int64_t before = chunks_of(traffic.tokens_until(rank), chunk) + rank;
    int64_t steps = 1;
    while (!traffic.step_ends(chunks, rank)) {
      for (int i = 0; i < 4 * chunks; ++i) traffic.add(random.between(1, chunk));
      ASSERT_LE(++steps, chunks_of(2 * before, chunks)) << "round " << round;
    }
  }
}

}  // namespace recurve::scheduler_test
